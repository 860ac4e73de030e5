//! The kernels of `quantize`, best first.

mod portable;

use crate::portable::Every;
use kp_hal::{KernelList, op::Quantize};

pub(crate) const KERNELS: KernelList<Quantize> = &[&Every::<Quantize>::KERNEL];
