//! The kernels of `norm_backward`, best first.

mod portable;

use crate::portable::Every;
use kp_hal::{KernelList, op::NormBackward};

pub(crate) const KERNELS: KernelList<NormBackward> = &[&Every::<NormBackward>::KERNEL];
