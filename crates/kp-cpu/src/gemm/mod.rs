//! The kernels of `gemm`, best first.

#[cfg(target_arch = "x86_64")]
pub(crate) mod across;
#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
pub(crate) mod amx_bf16;
#[cfg(target_arch = "x86_64")]
mod amx_f32;
#[cfg(target_arch = "x86_64")]
mod amx_four_bits;
#[cfg(target_arch = "x86_64")]
mod amx_int8;
#[cfg(target_arch = "x86_64")]
mod avx2_code_tiles;
#[cfg(target_arch = "x86_64")]
mod avx2_few_codes;
#[cfg(target_arch = "x86_64")]
mod avx2_few_lines;
#[cfg(target_arch = "x86_64")]
mod avx2_few_panels;
#[cfg(target_arch = "x86_64")]
mod avx2_few_rows;
#[cfg(target_arch = "x86_64")]
mod avx2_four_bit_code_lanes;
#[cfg(target_arch = "x86_64")]
mod avx2_four_bit_codes;
#[cfg(target_arch = "x86_64")]
mod avx2_four_bit_lanes;
#[cfg(target_arch = "x86_64")]
mod avx2_four_bits;
#[cfg(target_arch = "x86_64")]
mod avx2_small;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512_bf16;
#[cfg(target_arch = "x86_64")]
mod avx512_few_lines;
#[cfg(target_arch = "x86_64")]
mod avx512_few_pairs;
#[cfg(target_arch = "x86_64")]
mod avx512_few_panels;
#[cfg(target_arch = "x86_64")]
mod avx512_few_rows;
#[cfg(target_arch = "x86_64")]
mod avx512_four_bits;
#[cfg(target_arch = "x86_64")]
mod avx512_small;
pub(crate) mod blocks;
mod cuts;
#[cfg(target_arch = "x86_64")]
pub(crate) mod few;
mod few_rows;
pub(crate) mod finish;
#[cfg(target_arch = "x86_64")]
mod interleaved;
mod lying;
pub(crate) mod packed;
pub(crate) mod product;
#[cfg(target_arch = "x86_64")]
pub(crate) mod rounded;
pub(crate) mod side;
#[cfg(target_arch = "x86_64")]
mod small;
mod straight;
mod tile;
mod turned;
#[cfg(target_arch = "x86_64")]
pub(crate) mod vnni;
#[cfg(target_arch = "x86_64")]
mod vnni_few_lines;
#[cfg(target_arch = "x86_64")]
mod vnni_few_panels;
#[cfg(target_arch = "x86_64")]
pub(crate) mod vnni_few_rows;
#[cfg(target_arch = "x86_64")]
mod vnni_four_bits;
#[cfg(target_arch = "x86_64")]
mod vnni_one_row;
#[cfg(target_arch = "x86_64")]
mod vnni_tiles;

#[cfg(test)]
mod tests;

use few_rows::FewRows;
use kp_hal::{Caps, DType, KernelList, op::Gemm, op::Order};
use packed::Packed;

#[cfg(target_arch = "x86_64")]
pub(crate) const KERNELS: KernelList<Gemm> = &[
    &avx512_small::Avx512Small,
    &avx2_small::Avx2Small,
    &vnni_one_row::VnniOneRow,
    &vnni_four_bits::VnniFourBits,
    &vnni_few_rows::VnniFewRows,
    &vnni_few_lines::VnniFewLines,
    &vnni_few_panels::VnniFewPanels,
    &avx512_few_pairs::Avx512FewPairs,
    &amx_four_bits::AmxFourBits,
    &avx512_few_rows::Avx512FewRows,
    &avx512_four_bits::Avx512FourBits,
    &avx512_few_panels::Avx512FewPanels,
    &avx512_few_lines::Avx512FewLines,
    &avx2_four_bit_codes::Avx2FourBitCodes,
    &avx2_four_bit_code_lanes::Avx2FourBitCodeLanes,
    &avx2_few_codes::Avx2FewCodes,
    &avx2_four_bits::Avx2FourBits,
    &avx2_four_bit_lanes::Avx2FourBitLanes,
    &avx2_few_rows::Avx2FewRows,
    &avx2_few_panels::Avx2FewPanels,
    &avx2_few_lines::Avx2FewLines,
    &amx_int8::AmxInt8,
    &amx_bf16::AmxBf16,
    &amx_f32::AmxF32,
    &avx512_bf16::Avx512Bf16,
    &vnni_tiles::VnniTiles,
    &avx2_code_tiles::Avx2CodeTiles,
    &FewRows,
    &Packed,
];

#[cfg(not(target_arch = "x86_64"))]
pub(crate) const KERNELS: KernelList<Gemm> = &[&FewRows, &Packed];

/// The panels that these kernels read where they lie, on a processor that has what `caps` say.
pub(crate) fn panels(caps: &Caps) -> Vec<(DType, Order)> {
    let mut panels: Vec<_> =
        packed::panels(caps).map(|(dtype, width)| (dtype, Order::Panel { width, depth: 1 })).into();
    #[cfg(target_arch = "x86_64")]
    if caps.has("avx512vnni") {
        let fours = Order::Panel { width: 64, depth: 4 };
        panels.extend([(DType::I8, fours), (DType::U8, fours)]);
    }
    #[cfg(target_arch = "x86_64")]
    if ["amx-tile", "amx-bf16"].into_iter().all(|feature| caps.has(feature)) || avx512_bf16::is_fast(caps) {
        panels.push((DType::Bf16, Order::Panel { width: 32, depth: 2 }));
    }
    panels
}
