//! D = alpha · A·B of e4m3 scaled per row and 128 k.
//!
//! See `kernels/gemm/cuda/sm90_blocks.cuh`. Limits: both contiguous along k and 16-byte aligned, D plain.

use super::blocks::{Family, Tile, source, tile};
use crate::compile::{Listed, Source};
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Variant,
    op::{Gemm, GemmProblem},
    source_hash,
};
use std::sync::Arc;

/// The kernel.
pub(crate) struct Sm90E4m3_1d1d;

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

/// What it is made of.
pub(super) static FAMILY: Family =
    Family { name: "sm90_e4m3_1d1d", source: &SOURCE, tiles: &TILES, dtype: DType::E4m3, scales: Some((1, 1)) };

impl Kernel<Gemm> for Sm90E4m3_1d1d {
    fn name(&self) -> &'static str {
        "sm90_e4m3_1d1d"
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("sm90_e4m3_1d1d.rs")) ^ super::hash(&SOURCE).rotate_left(1) }
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
    FAMILY.builds(&[None]).into_iter().map(|build| Listed::new("gemm/sm90_e4m3_1d1d", build)).collect()
}
