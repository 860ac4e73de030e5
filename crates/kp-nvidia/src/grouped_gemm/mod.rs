//! Matrix products of many groups at once.

mod simt;
mod sm80;
mod sm90_bf16;
mod sm90_e4m3_1d2d;

use crate::compile::Listed;
use kp_hal::{KernelList, op::GroupedGemm};

/// Best first.
pub(crate) const LIST: KernelList<GroupedGemm> =
    &[&sm90_e4m3_1d2d::Sm90E4m3_1d2d, &sm90_bf16::Sm90Bf16, &sm80::Sm80, &simt::Simt];

/// Every build that a kernel of the list may ask for on `arch`; those of `simt` and `sm80` are `gemm`'s.
pub(crate) fn builds(arch: &str) -> Vec<Listed> {
    match arch {
        "sm_90a" => sm90_e4m3_1d2d::builds().into_iter().chain(sm90_bf16::builds()).collect(),
        _ => Vec::new(),
    }
}
