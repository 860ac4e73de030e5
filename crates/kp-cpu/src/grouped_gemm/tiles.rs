//! Groups of bf16, each a product by tiles, whichever units compute these.
//!
//! Every thread works on every group, since groups may differ in size by any factor.

use super::groups::{Grouped, Loops};
use crate::{
    act::Tail,
    gemm::{
        amx::{
            lines::Holds,
            product::ByTiles,
            source::{self, Units},
        },
        product::{Item, Product, ends_wide},
    },
    kernel::{self, Disjoint},
};
use kp_hal::{
    Caps, Device, Kernel, Nanos, Plan, Variant,
    op::{GroupedGemm, GroupedGemmProblem, Grouping},
};
use std::sync::Arc;

/// How long `units` take.
pub(super) fn estimate(caps: &Caps, p: &GroupedGemmProblem, units: Units) -> Nanos {
    let repeats = if p.grouping == Grouping::Masked { p.gemm.batch } else { 1 };
    let (_, memory) = Nanos::floors(caps, p);
    let rows = f64::from(repeats) * f64::from(p.gemm.m);
    source::estimate(caps, &p.gemm, (Holds::Bf16, units), memory, rows, p.gemm.batch)
}

/// The plan of `kernel` for `p`.
pub(super) fn plan(
    kernel: &dyn Kernel<GroupedGemm>,
    device: &Arc<dyn Device>,
    p: &GroupedGemmProblem,
    variant: Variant,
    units: Units,
) -> Plan<GroupedGemm> {
    macro_rules! plan {
        ($end:ty) => {{
            let code = Grouped { spec: *p.spec(), form: ByTiles::<$end>::new(&p.gemm, Holds::Bf16, units) };
            // SAFETY: the loops touch what the spec names, and the scratch that `scratch_bytes` counts.
            unsafe { kernel::plan(kernel, device, p, variant, code.form.scratch_bytes(), code) }
        }};
    }
    if ends_wide(&p.gemm) { plan!(f64) } else { plan!(f32) }
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
