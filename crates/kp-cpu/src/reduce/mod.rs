//! The kernels of `reduce`, best first.

mod portable;

use crate::portable::Every;
use kp_hal::{KernelList, op::Reduce};

pub(crate) const KERNELS: KernelList<Reduce> = &[&Every::<Reduce>::KERNEL];
