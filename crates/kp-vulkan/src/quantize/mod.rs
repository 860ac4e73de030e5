//! Codes and scales from numbers.

mod blocks;

use kp_hal::{KernelList, op::Quantize};

/// Best first.
pub(crate) const LIST: KernelList<Quantize> = &[&blocks::Blocks];
