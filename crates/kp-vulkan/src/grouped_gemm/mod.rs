//! Matrix products of groups of rows.

mod simt;

use kp_hal::{KernelList, op::GroupedGemm};

pub(crate) const LIST: KernelList<GroupedGemm> = &[&simt::Simt];
