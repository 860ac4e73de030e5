//! D\[rows of g\] = A\[rows of g\]·B\[g\], all groups in one launch, by the shader of `gemm`'s `simt`: each group has tiles of its own, and
//! which rows it has is read on the device.

use crate::gemm::{
    full::Form,
    simt::{CODE, estimate, ready, supports},
};
use crate::launch::planned;
use kp_hal::{
    Caps, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant,
    op::{GroupedGemm, GroupedGemmProblem, Spec},
    source_hash,
};
use std::sync::Arc;

/// The kernel that runs on every device.
pub(crate) struct Simt;

fn form(p: &GroupedGemmProblem) -> Form<'_> {
    Form { spec: &p.spec().gemm, grouping: Some(p.grouping) }
}

impl Kernel<GroupedGemm> for Simt {
    fn name(&self) -> &'static str {
        "simt"
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("simt.rs")) ^ CODE.rotate_left(1) }
    }

    fn supports(&self, caps: &Caps, p: &GroupedGemmProblem) -> Support {
        if super::is_invariant_elsewhere(caps, p, "simt") {
            return Err(Unsupported::Repro { asked: p.repro() });
        }
        supports(caps, form(p))
    }

    fn estimate(&self, caps: &Caps, p: &GroupedGemmProblem, variant: Variant) -> Nanos {
        estimate(caps, form(p), p.bytes(), variant)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GroupedGemmProblem, variant: Variant) -> Result<Plan<GroupedGemm>> {
        let code = ready(device, form(p), variant)?;
        // SAFETY: the shaders touch what the spec names, and the scratch that is asked for.
        Ok(unsafe { planned(self.name(), variant, device.id(), p, form(p).scratch_bytes(), Box::new(code)) })
    }
}
