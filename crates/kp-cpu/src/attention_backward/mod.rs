//! The kernels of `attention_backward`, best first.

pub(crate) mod pair;
mod portable;
#[cfg(test)]
mod tests;

use kp_hal::{KernelList, op::AttentionBackward};

pub(crate) const KERNELS: KernelList<AttentionBackward> = &[&portable::Portable];
