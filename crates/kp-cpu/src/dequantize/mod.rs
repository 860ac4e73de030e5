//! The kernels of `dequantize`, best first.

mod portable;

use crate::portable::Every;
use kp_hal::{KernelList, op::Dequantize};

pub(crate) const KERNELS: KernelList<Dequantize> = &[&Every::<Dequantize>::KERNEL];
