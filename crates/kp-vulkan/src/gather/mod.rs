//! Rows of a table.

mod elements;

use kp_hal::{KernelList, op::Gather};

/// Best first.
pub(crate) const LIST: KernelList<Gather> = &[&elements::Elements];
