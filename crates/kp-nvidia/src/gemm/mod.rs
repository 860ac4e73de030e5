//! Matrix products.

pub(crate) mod simt;

use crate::compile::Listed;
use kp_hal::{KernelList, op::Gemm};

/// Best first.
pub(crate) const LIST: KernelList<Gemm> = &[&simt::Simt];

/// Every build that a kernel of the list may ask for on `arch`.
pub(crate) fn builds(_arch: &str) -> Vec<Listed> {
    simt::builds()
}
