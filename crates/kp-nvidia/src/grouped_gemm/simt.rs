//! D\[rows of g\] = A\[rows of g\]·B\[g\] for every form of the op, on the ordinary arithmetic units.
//!
//! As `gemm`'s kernel of that name; every block finds its group from the numbers in memory. Limits: none.

use crate::gemm::{is_invariant_elsewhere, simt, simt_store::Form};
use kp_hal::{
    Caps, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant,
    op::{GroupedGemm, GroupedGemmProblem, Grouping},
    source_hash,
};
use std::sync::Arc;

/// The kernel that runs everything.
pub(crate) struct Simt;

impl Kernel<GroupedGemm> for Simt {
    fn name(&self) -> &'static str {
        "simt"
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("simt.rs")) ^ simt::CODE.rotate_left(1) }
    }

    fn supports(&self, caps: &Caps, p: &GroupedGemmProblem) -> Support {
        if is_invariant_elsewhere(super::LIST, caps, p, "simt") {
            return Err(Unsupported::Repro { asked: p.repro() });
        }
        simt::supports(&p.gemm)
    }

    fn estimate(&self, caps: &Caps, p: &GroupedGemmProblem, variant: Variant) -> Nanos {
        let row_batch = if p.grouping == Grouping::Masked { p.gemm.batch } else { 1 };
        simt::estimate(caps, &p.gemm, row_batch.into(), variant)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GroupedGemmProblem, variant: Variant) -> Result<Plan<GroupedGemm>> {
        let code = Form::new(device, &p.gemm, Some(p.grouping), p.align(), &simt::main(&p.gemm, variant))?;
        // SAFETY: the kernels touch what the spec names, and the scratch that `scratch_bytes` counts.
        Ok(unsafe { Plan::new(self.name(), variant, device.id(), p, code.scratch_bytes, Box::new(code)) })
    }
}
