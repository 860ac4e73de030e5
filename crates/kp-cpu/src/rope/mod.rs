//! The kernels of `rope`, best first.

mod portable;

use crate::portable::Every;
use kp_hal::{KernelList, op::Rope};

pub(crate) const KERNELS: KernelList<Rope> = &[&Every::<Rope>::KERNEL];
