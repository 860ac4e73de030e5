//! D\[rows of g\] = alpha · A\[rows of g\]·B\[g\] of e4m3 scaled per row of A and 128 k, and per 128 rows of B and 128 k.
//!
//! See `kernels/gemm/cuda/sm90_blocks.cuh`; every block finds its tiles from the numbers in memory. Limits: both contiguous
//! along k and 16-byte aligned, D plain.

use crate::{
    compile::{Listed, Source},
    gemm::blocks::{Family, Tile, ahead, source, tile},
};
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Variant,
    op::{GroupedGemm, GroupedGemmProblem, Grouping},
    source_hash,
};
use std::sync::Arc;

/// The kernel.
pub(crate) struct Sm90E4m3_1d2d;

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

/// What it is made of.
pub(super) static FAMILY: Family =
    Family { name: "sm90_e4m3_1d2d", source: &SOURCE, tiles: &TILES, dtype: DType::E4m3, scales: Some((1, 128)) };

impl Kernel<GroupedGemm> for Sm90E4m3_1d2d {
    fn name(&self) -> &'static str {
        "sm90_e4m3_1d2d"
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("sm90_e4m3_1d2d.rs")) ^ crate::gemm::hash(&SOURCE).rotate_left(1) }
    }

    fn supports(&self, caps: &Caps, p: &GroupedGemmProblem) -> Support {
        FAMILY.supports(caps, &p.gemm, Some(p.grouping), p.repro(), p.align())
    }

    fn estimate(&self, caps: &Caps, p: &GroupedGemmProblem, variant: Variant) -> Nanos {
        FAMILY.estimate(caps, &p.gemm, Some(p.grouping), variant)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GroupedGemmProblem, variant: Variant) -> Result<Plan<GroupedGemm>> {
        let code = FAMILY.ready(device, &p.gemm, Some(p.grouping), variant)?;
        // SAFETY: maps and arguments are of the spec's operands; there is no scratch.
        Ok(unsafe { Plan::new(self.name(), variant, device.id(), p, 0, Box::new(code)) })
    }
}

/// Every build there is.
pub(super) fn builds() -> Vec<Listed> {
    let builds = FAMILY.builds(&[Some(Grouping::Contiguous), Some(Grouping::Masked)]);
    builds.into_iter().map(|build| Listed::new("grouped_gemm/sm90_e4m3_1d2d", build)).collect()
}
