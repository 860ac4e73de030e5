//! The kernels of `norm`, best first.

mod portable;

use crate::portable::Every;
use kp_hal::{KernelList, op::Norm};

pub(crate) const KERNELS: KernelList<Norm> = &[&Every::<Norm>::KERNEL];
