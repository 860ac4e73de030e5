//! D = alpha · A·B of e4m3 scaled per row and 128 k.
//!
//! See `kernels/gemm/cuda/sm90_blocks.cuh`. Limits: both contiguous along k and 16-byte aligned, D plain.

use super::blocks::{Family, Tile, source, tile};
use crate::compile::Source;
use kp_hal::{DType, source_hash};

static SOURCE: Source = source!("gemm/cuda/sm90_e4m3_1d1d.cu");

/// Append only, because wisdom names variants by their place.
const TILES: [Tile; 6] = [
    tile(128, 128, 4, (1, 2), 2),
    tile(128, 112, 5, (2, 1), 2),
    tile(64, 128, 8, (1, 1), 2),
    tile(64, 64, 8, (1, 2), 1),
    tile(128, 128, 5, (1, 2), 2),
    tile(128, 128, 5, (1, 1), 2),
];

/// The kernel.
pub(super) const KERNEL: Family = Family {
    name: "sm90_e4m3_1d1d",
    code: source_hash(include_bytes!("sm90_e4m3_1d1d.rs")) ^ super::hash(&SOURCE).rotate_left(1),
    source: &SOURCE,
    tiles: &TILES,
    dtype: DType::E4m3,
    scales: Some((1, 1)),
};
