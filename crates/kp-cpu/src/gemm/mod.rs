//! The kernels of `gemm`, best first.

#[cfg(target_arch = "x86_64")]
mod avx512_few_rows;
#[cfg(target_arch = "x86_64")]
mod avx512_small;
pub(crate) mod blocks;
mod cuts;
#[cfg(target_arch = "x86_64")]
mod few;
mod few_rows;
pub(crate) mod finish;
pub(crate) mod packed;
pub(crate) mod product;
pub(crate) mod side;
mod tile;
#[cfg(target_arch = "x86_64")]
mod vnni;
#[cfg(target_arch = "x86_64")]
mod vnni_few_rows;
#[cfg(target_arch = "x86_64")]
mod vnni_tiles;

#[cfg(test)]
mod tests;

use few_rows::FewRows;
use kp_hal::{KernelList, op::Gemm};
use packed::Packed;

#[cfg(target_arch = "x86_64")]
pub(crate) const KERNELS: KernelList<Gemm> = &[
    &avx512_small::Avx512Small,
    &vnni_few_rows::VnniFewRows,
    &avx512_few_rows::Avx512FewRows,
    &vnni_tiles::VnniTiles,
    &FewRows,
    &Packed,
];

#[cfg(not(target_arch = "x86_64"))]
pub(crate) const KERNELS: KernelList<Gemm> = &[&FewRows, &Packed];
