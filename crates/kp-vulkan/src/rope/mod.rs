//! Rotary position embedding.

mod pairs;

use kp_hal::{KernelList, op::Rope};

/// Best first.
pub(crate) const LIST: KernelList<Rope> = &[&pairs::Pairs];
