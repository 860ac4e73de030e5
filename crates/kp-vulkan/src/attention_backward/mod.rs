//! Gradients of attention.

mod pairs;
mod rows;

use kp_hal::{KernelList, op::AttentionBackward};

pub(crate) const LIST: KernelList<AttentionBackward> = &[&pairs::Pairs];
