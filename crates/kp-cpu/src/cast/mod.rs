//! The kernels of `cast`, best first.

mod portable;
#[cfg(test)]
mod tests;

use crate::portable::Every;
use kp_hal::{KernelList, op::Cast};

pub(crate) const KERNELS: KernelList<Cast> = &[&Every::<Cast>::KERNEL];
