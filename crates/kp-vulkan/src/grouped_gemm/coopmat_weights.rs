//! The same as `coopmat` with B of 8 or 4 bits, by the shader of `gemm`'s `coopmat_weights`.

use super::tiles;
use crate::gemm::coopmat_weights as of_gemm;
use kp_hal::{
    Caps, Device, Kernel, Nanos, Plan, Result, Support, Variant,
    op::{GroupedGemm, GroupedGemmProblem},
    source_hash,
};
use std::sync::Arc;

/// The kernel for weights of few bits on matrix units that subgroups share.
pub(crate) struct CoopmatWeights;

impl Kernel<GroupedGemm> for CoopmatWeights {
    fn name(&self) -> &'static str {
        "coopmat_weights"
    }

    fn code(&self) -> u64 {
        const {
            source_hash(include_bytes!("coopmat_weights.rs"))
                ^ source_hash(include_bytes!("tiles.rs")).rotate_left(9)
                ^ of_gemm::CODE.rotate_left(1)
        }
    }

    fn supports(&self, caps: &Caps, p: &GroupedGemmProblem) -> Support {
        tiles::supports(caps, of_gemm::supports(caps, &p.spec().gemm))
    }

    fn estimate(&self, caps: &Caps, p: &GroupedGemmProblem, variant: Variant) -> Nanos {
        tiles::estimate(caps, p, variant, of_gemm::widening)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GroupedGemmProblem, variant: Variant) -> Result<Plan<GroupedGemm>> {
        tiles::plan(device, p, variant, self.name(), of_gemm::shader(&p.spec().gemm))
    }
}
