//! The kernels of `softmax`, best first.

#[cfg(target_arch = "x86_64")]
mod bf16s;
mod portable;
#[cfg(test)]
mod tests;

use crate::portable::Every;
use kp_hal::{KernelList, op::Softmax};

pub(crate) const KERNELS: KernelList<Softmax> = &[&Every::<Softmax>::KERNEL];
