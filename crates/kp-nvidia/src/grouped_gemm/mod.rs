//! Matrix products of many groups at once.

use kp_hal::{KernelList, op::GroupedGemm};

/// Best first.
pub(crate) const LIST: KernelList<GroupedGemm> = &[];
