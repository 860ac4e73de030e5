//! Gradients of norms.

mod columns;
mod rows;

use kp_hal::{KernelList, op::NormBackward};

pub(crate) const LIST: KernelList<NormBackward> = &[&rows::Rows];
