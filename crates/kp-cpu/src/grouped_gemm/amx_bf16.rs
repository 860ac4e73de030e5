//! D\[rows of g\] = A\[rows of g\]·B\[g\] in bf16 by tiles of AMX: group after group, each as `gemm` does it.
//!
//! Every thread works on every group, since groups may differ in size by any factor. Limits: as those of `gemm`'s kernel of
//! this name.

use super::groups::{Grouped, Loops};
use crate::{
    act::Tail,
    gemm::{
        amx::{
            lines::Holds,
            product::ByTiles,
            source::{Units, estimate},
        },
        amx_bf16::supports,
        product::{Item, Product},
        vnni_few_rows::ends_wide,
    },
    kernel::{self, Disjoint},
};
use kp_hal::{
    Caps, Device, Kernel, Nanos, Plan, Result, Support, Variant,
    op::{GroupedGemm, GroupedGemmProblem, Grouping},
    source_hash,
};
use std::sync::Arc;

/// The kernel.
pub(crate) struct AmxBf16;

impl Kernel<GroupedGemm> for AmxBf16 {
    fn name(&self) -> &'static str {
        "amx_bf16"
    }

    fn code(&self) -> u64 {
        const {
            source_hash(include_bytes!("amx_bf16.rs"))
                ^ source_hash(include_bytes!("../gemm/amx/tile.rs")).rotate_left(1)
                ^ source_hash(include_bytes!("../gemm/amx/lines.rs")).rotate_left(2)
                ^ source_hash(include_bytes!("../gemm/amx/codes.rs")).rotate_left(3)
                ^ source_hash(include_bytes!("../gemm/amx/source.rs")).rotate_left(4)
                ^ source_hash(include_bytes!("../gemm/amx/product.rs")).rotate_left(5)
                ^ source_hash(include_bytes!("../gemm/amx/cut.rs")).rotate_left(6)
        }
    }

    fn supports(&self, caps: &Caps, p: &GroupedGemmProblem) -> Support {
        supports(caps, &p.gemm, p.repro())
    }

    fn estimate(&self, caps: &Caps, p: &GroupedGemmProblem, _: Variant) -> Nanos {
        let repeats = if p.grouping == Grouping::Masked { p.gemm.batch } else { 1 };
        let (_, memory) = Nanos::floors(caps, p);
        estimate(
            caps,
            &p.gemm,
            (Holds::Bf16, Units::Tiles),
            memory,
            f64::from(repeats) * f64::from(p.gemm.m),
            p.gemm.batch,
        )
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GroupedGemmProblem, variant: Variant) -> Result<Plan<GroupedGemm>> {
        macro_rules! plan {
            ($end:ty) => {{
                let code = Grouped { spec: *p.spec(), form: ByTiles::<$end>::new(&p.gemm, Holds::Bf16, Units::Tiles) };
                // SAFETY: the loops touch what the spec names, and the scratch that `scratch_bytes` counts.
                Ok(unsafe { kernel::plan(self, device, p, variant, code.form.scratch_bytes(), code) })
            }};
        }
        if ends_wide(&p.gemm) { plan!(f64) } else { plan!(f32) }
    }
}

impl<E: Tail> Loops for ByTiles<E> {
    type End = E;

    fn scratch<'s>(&self, scratch: &'s mut [u8]) -> (&'s mut [u8], &'s mut [E], &'s mut [u8]) {
        self.scratch(scratch)
    }

    unsafe fn item(&self, product: &Product<'_>, item: Item, scratch: &mut [u8], stage: Option<Disjoint<'_, E>>) {
        // SAFETY: passed on.
        unsafe { self.item(product, item, scratch, stage) }
    }
}
