//! D\[rows of g\] = alpha · A\[rows of g\]·B\[g\] of bf16.
//!
//! See `kernels/gemm/cuda/sm90_blocks.cuh`; every block finds its tiles from the numbers in memory. Limits: both contiguous
//! along k and 16-byte aligned, D plain.

use crate::{
    compile::Source,
    gemm::blocks::{Family, Tile, source, tile},
};
use kp_hal::{DType, source_hash};

static SOURCE: Source = source!("grouped_gemm/cuda/sm90_bf16.cu");

/// Append only, because wisdom names variants by their place.
const TILES: [Tile; 11] = [
    tile(256, 128, 4, (1, 2), 1),
    tile(128, 256, 4, (1, 1), 1),
    tile(128, 256, 4, (1, 2), 1),
    tile(128, 192, 4, (1, 2), 3),
    tile(128, 128, 5, (1, 2), 2),
    tile(64, 128, 8, (1, 2), 2),
    tile(64, 64, 12, (1, 1), 1),
    tile(256, 128, 4, (1, 2), 2),
    tile(128, 256, 4, (1, 1), 2),
    tile(128, 256, 4, (1, 2), 2),
    tile(128, 256, 4, (2, 1), 2),
];

/// The kernel.
pub(super) const KERNEL: Family = Family {
    name: "sm90_bf16",
    code: source_hash(include_bytes!("sm90_bf16.rs")) ^ crate::gemm::hash(&SOURCE).rotate_left(1),
    source: &SOURCE,
    tiles: &TILES,
    dtype: DType::Bf16,
    scales: None,
};
