//! Matrix products of many groups at once.

mod simt;
mod sm80;
mod sm90_bf16;
mod sm90_e4m3_1d2d;

use crate::compile::Listed;
use kp_hal::{
    KernelList,
    op::{GroupedGemm, Grouping},
};

/// Best first.
pub(crate) const LIST: KernelList<GroupedGemm> =
    &[&sm90_e4m3_1d2d::KERNEL, &sm90_bf16::KERNEL, &sm80::Sm80, &simt::Simt];

/// Every build that a kernel of the list may ask for on `arch`; those of `simt` and `sm80` are `gemm`'s.
pub(crate) fn builds(arch: &str) -> Vec<Listed> {
    if arch != "sm_90a" {
        return Vec::new();
    }
    let groupings = [Some(Grouping::Contiguous), Some(Grouping::Masked)];
    let mut builds = sm90_e4m3_1d2d::KERNEL.builds("grouped_gemm/sm90_e4m3_1d2d", &groupings);
    builds.extend(sm90_bf16::KERNEL.builds("grouped_gemm/sm90_bf16", &groupings));
    builds
}
