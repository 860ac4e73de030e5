//! The kernels of `grouped_gemm`, best first.

#[cfg(target_arch = "x86_64")]
mod amx_bf16;
#[cfg(target_arch = "x86_64")]
mod avx512_bf16;
mod groups;
mod packed;
#[cfg(target_arch = "x86_64")]
mod tiles;

use kp_hal::{KernelList, op::GroupedGemm};
use packed::Packed;

#[cfg(target_arch = "x86_64")]
pub(crate) const KERNELS: KernelList<GroupedGemm> = &[&amx_bf16::AmxBf16, &avx512_bf16::Avx512Bf16, &Packed];

#[cfg(not(target_arch = "x86_64"))]
pub(crate) const KERNELS: KernelList<GroupedGemm> = &[&Packed];
