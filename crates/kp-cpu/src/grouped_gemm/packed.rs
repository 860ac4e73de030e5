//! D\[rows of g\] = A\[rows of g\]·B\[g\]: group after group, each as `gemm` does it.
//!
//! Every thread works on every group, since groups may differ in size by any factor. Limits: as `gemm`'s.

use super::groups::{Grouped, Loops};
use crate::{
    act::Tail,
    gemm::{
        blocks::Blocks,
        packed::{Form, estimate, supports, with_blocks},
        product::{Item, Product},
    },
    kernel::{self, Disjoint},
    memory::Number,
    numbers::Real,
    simd::vector::transpose::Transpose,
};
use kp_hal::{
    Caps, Device, Kernel, Nanos, Plan, Result, Support, Variant,
    op::{GroupedGemm, GroupedGemmProblem, Grouping},
    source_hash,
};
use std::{borrow::Cow, sync::Arc};

/// The kernel that runs everything.
pub(crate) struct Packed;

impl Kernel<GroupedGemm> for Packed {
    fn name(&self) -> &'static str {
        "packed"
    }

    fn code(&self) -> u64 {
        const {
            source_hash(include_bytes!("packed.rs"))
                ^ source_hash(include_bytes!("../gemm/blocks.rs")).rotate_left(1)
                ^ source_hash(include_bytes!("../gemm/tile.rs")).rotate_left(2)
        }
    }

    fn supports(&self, caps: &Caps, p: &GroupedGemmProblem) -> Support {
        supports(caps, p.repro())
    }

    fn estimate(&self, caps: &Caps, p: &GroupedGemmProblem, variant: Variant) -> Nanos {
        let repeats = if p.grouping == Grouping::Masked { p.gemm.batch } else { 1 };
        estimate(caps, &p.gemm, f64::from(repeats) * f64::from(p.gemm.m), p.gemm.batch, variant, None)
    }

    fn note(&self, _: &Caps, p: &GroupedGemmProblem, variant: Variant) -> Option<Cow<'static, str>> {
        let columns = with_blocks!(variant, &p.gemm, |Chosen| Chosen::PANEL);
        kernel::pads([("n", p.gemm.n as usize, columns)])
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GroupedGemmProblem, variant: Variant) -> Result<Plan<GroupedGemm>> {
        with_blocks!(variant, &p.gemm, |Chosen| {
            let code = Grouped { spec: *p.spec(), form: Chosen::together(&p.gemm) };
            // SAFETY: the loops touch what the spec names, and the scratch that `scratch_bytes` counts.
            Ok(unsafe { kernel::plan(self, device, p, variant, code.form.scratch_bytes(), code) })
        })
    }
}

impl<I: Transpose<R>, R: Real + Number, E: Tail, const NV: usize> Loops for Form<I, R, E, NV> {
    type End = E;

    fn scratch<'s>(&self, scratch: &'s mut [u8]) -> (&'s mut [u8], &'s mut [E], &'s mut [u8]) {
        self.scratch(scratch)
    }

    unsafe fn item(&self, product: &Product<'_>, item: Item, scratch: &mut [u8], stage: Option<Disjoint<'_, E>>) {
        // SAFETY: passed on.
        unsafe { Blocks::<I, R, E, NV>::item(product, item, self.summing, &self.room, scratch, stage) }
    }
}
