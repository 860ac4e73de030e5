//! The kernels of `activation`, best first.

mod portable;

use crate::portable::Every;
use kp_hal::{KernelList, op::Activation};

pub(crate) const KERNELS: KernelList<Activation> = &[&Every::<Activation>::KERNEL];
