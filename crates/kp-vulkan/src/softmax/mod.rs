//! Softmax over rows.

mod rows;

use kp_hal::{KernelList, op::Softmax};

/// Best first.
pub(crate) const LIST: KernelList<Softmax> = &[&rows::Rows];
