//! D\[rows of g\] = A\[rows of g\]·B\[g\] on the matrix unit of any device since sm_80.
//!
//! As `gemm`'s kernel of that name; every block finds its group from the numbers in memory. Limits: the same.

use crate::gemm::{is_invariant_elsewhere, simt_store::Form, sm80};
use kp_hal::{
    Caps, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant,
    op::{GroupedGemm, GroupedGemmProblem, Grouping},
    source_hash,
};
use std::sync::Arc;

/// The kernel.
pub(crate) struct Sm80;

impl Kernel<GroupedGemm> for Sm80 {
    fn name(&self) -> &'static str {
        "sm80"
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("sm80.rs")) ^ sm80::CODE.rotate_left(1) }
    }

    fn supports(&self, caps: &Caps, p: &GroupedGemmProblem) -> Support {
        if is_invariant_elsewhere(super::LIST, caps, p, "sm80") {
            return Err(Unsupported::Repro { asked: p.repro() });
        }
        sm80::supports(caps, &p.gemm)
    }

    fn estimate(&self, caps: &Caps, p: &GroupedGemmProblem, variant: Variant) -> Nanos {
        let row_batch = if p.grouping == Grouping::Masked { p.gemm.batch } else { 1 };
        sm80::estimate(caps, &p.gemm, row_batch, variant)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GroupedGemmProblem, variant: Variant) -> Result<Plan<GroupedGemm>> {
        let code = Form::new(device, &p.gemm, Some(p.grouping), p.align(), &sm80::main(&p.gemm, variant))?;
        // SAFETY: the kernels touch what the spec names, and the scratch that `scratch_bytes` counts.
        Ok(unsafe { Plan::new(self.name(), variant, device.id(), p, code.scratch_bytes, Box::new(code)) })
    }
}
