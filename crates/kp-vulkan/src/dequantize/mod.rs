//! Numbers from codes and scales.

mod elements;

use kp_hal::{KernelList, op::Dequantize};

/// Best first.
pub(crate) const LIST: KernelList<Dequantize> = &[&elements::Elements];
