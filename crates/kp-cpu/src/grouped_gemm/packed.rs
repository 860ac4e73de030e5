//! D\[rows of g\] = A\[rows of g\]·B\[g\]: group after group, each as `gemm` does it.
//!
//! Every thread works on every group, since groups may differ in size by any factor. Limits: as `gemm`'s.

use crate::{
    act::Tail,
    gemm::{
        blocks::Blocks,
        finish::store_staged,
        packed::{Form, estimate, supports, with_blocks},
        product::{self, Product},
    },
    kernel::{self, Disjoint, input},
    memory::Number,
    numbers::{self, Real},
    simd::vector::transpose::Transpose,
};
use kp_hal::{
    Caps, Device, Kernel, Launch, Nanos, Plan, Queue, Result, Support, Variant,
    op::{GroupedGemm, GroupedGemmArgs, GroupedGemmProblem, GroupedGemmSpec, Grouping},
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
        estimate(caps, &p.gemm, f64::from(repeats) * f64::from(p.gemm.m), p.gemm.batch, variant)
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

struct Grouped<F> {
    spec: GroupedGemmSpec,
    form: F,
}

impl<I: Transpose<R>, R: Real + Number, E: Tail, const NV: usize> Launch<GroupedGemm> for Grouped<Form<I, R, E, NV>> {
    unsafe fn launch(&self, queue: &mut dyn Queue, args: &GroupedGemmArgs<'_>) -> Result<()> {
        let Self { spec, form } = self;
        // SAFETY: the arguments were checked, says the caller.
        let (product, groups) = unsafe { (Product::of_groups(spec, args), input(&args.groups)) };
        let (loops, stage, codes) = form.scratch(kernel::own(queue).scratch());
        let staged = !stage.is_empty();
        let count = spec.gemm.batch as usize;
        for g in 0..count {
            let item = product::group(spec, groups, g);
            let waiting = staged.then(|| Disjoint::of(&mut *stage));
            // SAFETY: groups have their own rows of D; where they do not, they are computed one after the other.
            unsafe { Blocks::<I, R, E, NV>::item(&product, item, form.summing, &form.room, loops, waiting) };
            if staged && spec.grouping == Grouping::Masked {
                store_staged(&product, item.row_batch, item.rows, stage, codes);
            }
        }
        if staged && spec.grouping == Grouping::Contiguous {
            let end = numbers::index(groups, count).clamp(0, spec.gemm.m as i32) as usize;
            store_staged(&product, 0, end, stage, codes);
        }
        Ok(())
    }
}
