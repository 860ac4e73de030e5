//! Matrix products of many groups at once.

mod simt;

use crate::compile::Listed;
use kp_hal::{KernelList, op::GroupedGemm};

/// Best first.
pub(crate) const LIST: KernelList<GroupedGemm> = &[&simt::Simt];

/// Every build that a kernel of the list may ask for on `arch`.
pub(crate) fn builds(arch: &str) -> Vec<Listed> {
    let _ = arch;
    Vec::new()
}
