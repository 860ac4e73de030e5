//! Normalizations of rows.

mod rows;

use kp_hal::{KernelList, op::Norm};

/// Best first.
pub(crate) const LIST: KernelList<Norm> = &[&rows::Rows];
