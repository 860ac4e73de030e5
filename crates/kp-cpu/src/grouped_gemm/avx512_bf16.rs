//! D\[rows of g\] = A\[rows of g\]·B\[g\] in bf16 by dot products of pairs: group after group, each as `gemm` does it.
//!
//! Every thread works on every group, since groups may differ in size by any factor. Limits: as those of `gemm`'s kernel of
//! this name.

use super::groups::Grouped;
use crate::{
    gemm::{
        amx::{
            lines::Holds,
            product::ByTiles,
            source::{Units, estimate},
        },
        avx512_bf16::supports,
        vnni_few_rows::ends_wide,
    },
    kernel,
};
use kp_hal::{
    Caps, Device, Kernel, Nanos, Plan, Result, Support, Variant,
    op::{GroupedGemm, GroupedGemmProblem, Grouping},
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
            (Holds::Bf16, Units::Vectors),
            memory,
            f64::from(repeats) * f64::from(p.gemm.m),
            p.gemm.batch,
        )
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GroupedGemmProblem, variant: Variant) -> Result<Plan<GroupedGemm>> {
        macro_rules! plan {
            ($end:ty) => {{
                let code =
                    Grouped { spec: *p.spec(), form: ByTiles::<$end>::new(&p.gemm, Holds::Bf16, Units::Vectors) };
                // SAFETY: the loops touch what the spec names, and the scratch that `scratch_bytes` counts.
                Ok(unsafe { kernel::plan(self, device, p, variant, code.form.scratch_bytes(), code) })
            }};
        }
        if ends_wide(&p.gemm) { plan!(f64) } else { plan!(f32) }
    }
}
