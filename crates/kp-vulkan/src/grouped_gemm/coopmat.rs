//! D\[rows of g\] = A\[rows of g\]·B\[g\] of f16 or bf16 on the matrix unit, by the shader of `gemm`'s `coopmat`.

use super::tiles;
use crate::gemm::coopmat as of_gemm;
use kp_hal::{
    Caps, Device, Kernel, Nanos, Plan, Result, Support, Variant,
    op::{GroupedGemm, GroupedGemmProblem},
    source_hash,
};
use std::sync::Arc;

/// The kernel for matrix units that subgroups share.
pub(crate) struct Coopmat;

impl Kernel<GroupedGemm> for Coopmat {
    fn name(&self) -> &'static str {
        "coopmat"
    }

    fn code(&self) -> u64 {
        const {
            source_hash(include_bytes!("coopmat.rs"))
                ^ source_hash(include_bytes!("tiles.rs")).rotate_left(9)
                ^ of_gemm::CODE.rotate_left(1)
        }
    }

    fn supports(&self, caps: &Caps, p: &GroupedGemmProblem) -> Support {
        tiles::supports(caps, of_gemm::supports(caps, &p.spec().gemm))
    }

    fn estimate(&self, caps: &Caps, p: &GroupedGemmProblem, variant: Variant) -> Nanos {
        tiles::estimate(caps, p, variant, |_| 1.0)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GroupedGemmProblem, variant: Variant) -> Result<Plan<GroupedGemm>> {
        tiles::plan(device, p, variant, self.name(), of_gemm::shader(&p.spec().gemm))
    }
}
