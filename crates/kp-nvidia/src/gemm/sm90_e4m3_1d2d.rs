//! D = alpha · A·B of e4m3 scaled per row of A and 128 k, and per 128 rows of B and 128 k.
//!
//! See `kernels/gemm/cuda/sm90_blocks.cuh`. Limits: both contiguous along k and 16-byte aligned, D plain.

use super::blocks::{Family, Tile, ahead, parted, source, tile};
use crate::compile::Source;
use kp_hal::{DType, source_hash};

static SOURCE: Source = source!("gemm/cuda/sm90_e4m3_1d2d.cu");

/// Append only, because wisdom names variants by their place.
const TILES: [Tile; 32] = [
    tile(128, 192, 4, (2, 1), 3),
    tile(128, 192, 5, (1, 1), 1),
    tile(256, 128, 4, (1, 2), 1),
    tile(256, 128, 3, (1, 2), 4),
    tile(256, 128, 4, (1, 1), 1),
    tile(128, 160, 5, (1, 1), 2),
    tile(128, 128, 5, (1, 1), 2),
    tile(128, 128, 5, (1, 2), 2),
    tile(128, 112, 6, (1, 1), 3),
    tile(128, 96, 6, (1, 1), 3),
    tile(128, 64, 8, (1, 1), 1),
    tile(64, 128, 8, (1, 1), 2),
    tile(64, 96, 9, (1, 1), 1),
    tile(64, 64, 12, (1, 1), 1),
    tile(64, 32, 16, (1, 1), 1),
    tile(64, 16, 18, (1, 1), 1),
    tile(192, 128, 4, (1, 2), 2),
    tile(192, 128, 4, (1, 1), 2),
    ahead(64, 128, 8, 2),
    ahead(64, 96, 9, 1),
    ahead(64, 64, 12, 1),
    ahead(64, 32, 16, 1),
    tile(128, 192, 4, (1, 1), 3),
    ahead(128, 128, 5, 2),
    tile(256, 128, 3, (1, 1), 4),
    ahead(128, 112, 6, 7),
    ahead(128, 80, 7, 5),
    ahead(128, 64, 8, 1),
    ahead(64, 56, 12, 7),
    parted(ahead(64, 64, 11, 1), 2),
    parted(ahead(128, 64, 7, 1), 2),
    parted(ahead(128, 128, 5, 1), 2),
];

/// The kernel.
pub(super) const KERNEL: Family = Family {
    name: "sm90_e4m3_1d2d",
    code: source_hash(include_bytes!("sm90_e4m3_1d2d.rs")) ^ super::hash(&SOURCE).rotate_left(1),
    source: &SOURCE,
    tiles: &TILES,
    dtype: DType::E4m3,
    scales: Some((1, 128)),
};
