//! Rotary position embedding.

mod pairs;
mod runs;

use kp_hal::{KernelList, op::Rope};

/// Best first.
pub(crate) const LIST: KernelList<Rope> = &[&runs::Runs, &pairs::Pairs];
