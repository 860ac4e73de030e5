//! Other types and layouts.

mod elements;
mod runs;

use kp_hal::{KernelList, op::Cast};

/// Best first.
pub(crate) const LIST: KernelList<Cast> = &[&runs::Runs, &elements::Elements];
