//! D\[rows of g\] = alpha · A\[rows of g\]·B\[g\] of e4m3 scaled per row of A and 128 k, and per 128 rows of B and 128 k.
//!
//! See `kernels/gemm/cuda/sm90_blocks.cuh`; every block finds its tiles from the numbers in memory. Limits: both contiguous
//! along k and 16-byte aligned, D plain.

use crate::{
    compile::Source,
    gemm::blocks::{Family, Tile, ahead, source, tile},
};
use kp_hal::{DType, source_hash};

static SOURCE: Source = source!("grouped_gemm/cuda/sm90_e4m3_1d2d.cu");

/// Append only, because wisdom names variants by their place.
const TILES: [Tile; 14] = [
    tile(256, 128, 4, (1, 2), 1),
    tile(256, 128, 3, (1, 2), 4),
    tile(128, 192, 4, (1, 2), 3),
    tile(128, 128, 5, (1, 1), 2),
    tile(128, 128, 5, (1, 2), 2),
    tile(64, 128, 8, (1, 1), 2),
    tile(64, 64, 12, (1, 1), 1),
    tile(192, 128, 4, (1, 1), 2),
    tile(128, 192, 4, (1, 1), 3),
    ahead(64, 128, 8, 2),
    ahead(64, 64, 12, 1),
    tile(128, 192, 4, (2, 1), 3),
    tile(256, 128, 3, (1, 1), 4),
    ahead(64, 96, 9, 1),
];

/// The kernel.
pub(super) const KERNEL: Family = Family {
    name: "sm90_e4m3_1d2d",
    code: source_hash(include_bytes!("sm90_e4m3_1d2d.rs")) ^ crate::gemm::hash(&SOURCE).rotate_left(1),
    source: &SOURCE,
    tiles: &TILES,
    dtype: DType::E4m3,
    scales: Some((1, 128)),
};
