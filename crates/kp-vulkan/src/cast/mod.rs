//! Other types and layouts.

mod elements;

use kp_hal::{KernelList, op::Cast};

/// Best first.
pub(crate) const LIST: KernelList<Cast> = &[&elements::Elements];
