//! Element by element functions.

mod elements;

use kp_hal::{KernelList, op::Activation};

/// Best first.
pub(crate) const LIST: KernelList<Activation> = &[&elements::Elements];
