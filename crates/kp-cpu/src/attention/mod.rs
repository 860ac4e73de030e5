//! The kernels of `attention`, best first.

#[cfg(target_arch = "x86_64")]
mod ahead;
#[cfg(target_arch = "x86_64")]
mod amx_bf16;
#[cfg(target_arch = "x86_64")]
mod amx_f32;
#[cfg(target_arch = "x86_64")]
mod avx2_decode;
#[cfg(target_arch = "x86_64")]
mod avx512_bf16;
#[cfg(target_arch = "x86_64")]
mod avx512_decode;
pub(crate) mod chunk;
#[cfg(target_arch = "x86_64")]
mod decode;
#[cfg(target_arch = "x86_64")]
mod dots;
#[cfg(target_arch = "x86_64")]
mod fours;
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "the loops that keep what they made ready are for one processor")
)]
mod held;
pub(crate) mod machine;
#[cfg(target_arch = "x86_64")]
mod meets;
#[cfg(target_arch = "x86_64")]
mod of_bf16;
#[cfg(target_arch = "x86_64")]
mod of_parts;
#[cfg(target_arch = "x86_64")]
mod order;
#[cfg(target_arch = "x86_64")]
mod paired;
#[cfg(target_arch = "x86_64")]
mod pairs;
pub(crate) mod places;
pub(crate) mod plan;
mod portable;
pub(crate) mod product;
pub(crate) mod read;
#[cfg(test)]
mod row_tests;
mod run;
pub(crate) mod sight;
pub(crate) mod soften;
pub(crate) mod soon;
#[cfg(test)]
pub(crate) mod tests;
#[cfg(target_arch = "x86_64")]
mod tiled;
pub(crate) mod turn;
#[cfg(target_arch = "x86_64")]
mod weights;
#[cfg(target_arch = "x86_64")]
mod widened;

use kp_hal::{KernelList, op::Attention};

#[cfg(target_arch = "x86_64")]
pub(crate) const KERNELS: KernelList<Attention> = &[
    &avx512_decode::Avx512Decode,
    &avx2_decode::Avx2Decode,
    &amx_bf16::AmxBf16,
    &avx512_bf16::Avx512Bf16,
    &amx_f32::AmxF32,
    &portable::Portable,
];

#[cfg(not(target_arch = "x86_64"))]
pub(crate) const KERNELS: KernelList<Attention> = &[&portable::Portable];
