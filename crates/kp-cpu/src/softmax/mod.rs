//! The kernels of `softmax`, best first.

mod portable;

use crate::portable::Every;
use kp_hal::{KernelList, op::Softmax};

pub(crate) const KERNELS: KernelList<Softmax> = &[&Every::<Softmax>::KERNEL];
