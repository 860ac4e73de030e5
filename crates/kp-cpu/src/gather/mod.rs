//! The kernels of `gather`, best first.

mod portable;

use crate::portable::Every;
use kp_hal::{KernelList, op::Gather};

pub(crate) const KERNELS: KernelList<Gather> = &[&Every::<Gather>::KERNEL];
