//! D\[rows of g\] = A\[rows of g\]·B\[g\] in bf16 by dot products of pairs: group after group, each as `gemm` does it.
//!
//! Limits: as those of `gemm`'s kernel of this name.

use super::tiles;
use crate::gemm::{amx::source::Units, avx512_bf16::supports};
use kp_hal::{
    Caps, Device, Kernel, Nanos, Plan, Result, Support, Variant,
    op::{GroupedGemm, GroupedGemmProblem},
    source_hash,
};
use std::sync::Arc;

/// The kernel.
pub(crate) struct Avx512Bf16;

impl Kernel<GroupedGemm> for Avx512Bf16 {
    fn name(&self) -> &'static str {
        "avx512_bf16"
    }

    fn code(&self) -> u64 {
        const {
            source_hash(include_bytes!("avx512_bf16.rs"))
                ^ source_hash(include_bytes!("../gemm/amx/vectors.rs")).rotate_left(1)
                ^ source_hash(include_bytes!("../gemm/amx/lines.rs")).rotate_left(2)
                ^ source_hash(include_bytes!("../gemm/amx/codes.rs")).rotate_left(3)
                ^ source_hash(include_bytes!("../gemm/amx/convert.rs")).rotate_left(27)
                ^ source_hash(include_bytes!("../gemm/amx/source.rs")).rotate_left(4)
                ^ source_hash(include_bytes!("../gemm/amx/product.rs")).rotate_left(5)
                ^ source_hash(include_bytes!("../gemm/amx/cut.rs")).rotate_left(6)
                ^ source_hash(include_bytes!("tiles.rs")).rotate_left(7)
                ^ source_hash(include_bytes!("../gemm/amx/operands.rs")).rotate_left(8)
                ^ source_hash(include_bytes!("../gemm/amx/along.rs")).rotate_left(28)
                ^ source_hash(include_bytes!("../gemm/amx/asks.rs")).rotate_left(29)
                ^ source_hash(include_bytes!("../gemm/amx/room.rs")).rotate_left(30)
                ^ source_hash(include_bytes!("../gemm/amx/bits.rs")).rotate_left(9)
                ^ source_hash(include_bytes!("../gemm/amx/parts.rs")).rotate_left(10)
                ^ source_hash(include_bytes!("../gemm/across.rs")).rotate_left(12)
        }
    }

    fn supports(&self, caps: &Caps, p: &GroupedGemmProblem) -> Support {
        supports(caps, &p.gemm, p.repro())
    }

    fn estimate(&self, caps: &Caps, p: &GroupedGemmProblem, _: Variant) -> Nanos {
        tiles::estimate(caps, p, Units::Vectors)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GroupedGemmProblem, variant: Variant) -> Result<Plan<GroupedGemm>> {
        Ok(tiles::plan(self, device, p, variant, Units::Vectors))
    }
}
