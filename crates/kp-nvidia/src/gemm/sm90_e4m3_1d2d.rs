//! D = alpha · A·B of e4m3 scaled per row of A and 128 k, and per 128 rows of B and 128 k.
//!
//! See `kernels/gemm/cuda/sm90_blocks.cuh`. Limits: both contiguous along k and 16-byte aligned, D plain.

use super::blocks::{Family, Tile, ahead, parted, source, tile};
use crate::compile::{Listed, Source};
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Variant,
    op::{Gemm, GemmProblem},
    source_hash,
};
use std::sync::Arc;

/// The kernel.
pub(crate) struct Sm90E4m3_1d2d;

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

/// What it is made of.
pub(super) static FAMILY: Family =
    Family { name: "sm90_e4m3_1d2d", source: &SOURCE, tiles: &TILES, dtype: DType::E4m3, scales: Some((1, 128)) };

impl Kernel<Gemm> for Sm90E4m3_1d2d {
    fn name(&self) -> &'static str {
        "sm90_e4m3_1d2d"
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("sm90_e4m3_1d2d.rs")) ^ super::hash(&SOURCE).rotate_left(1) }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        FAMILY.supports(caps, p.spec(), None, p.repro(), p.align())
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, variant: Variant) -> Nanos {
        FAMILY.estimate(caps, p.spec(), None, variant)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        let code = FAMILY.ready(device, p.spec(), None, variant)?;
        // SAFETY: maps and arguments are of the spec's operands; there is no scratch.
        Ok(unsafe { Plan::new(self.name(), variant, device.id(), p, 0, Box::new(code)) })
    }
}

/// Every build there is.
pub(super) fn builds() -> Vec<Listed> {
    FAMILY.builds(&[None]).into_iter().map(|build| Listed::new("gemm/sm90_e4m3_1d2d", build)).collect()
}
