//! D = A·B for at most four rows whose B was packed ahead to panels of 16 columns, in f32, on processors that have AVX2 and no
//! AVX-512: weights as they lie, at the speed of memory.
//!
//! See [`super::few::avx2_panels`] for the loop and [`super::few::panel_rows`] for the frame. Limits: as `avx512_few_panels`.

use super::few::{
    avx2::{Bf16, F16, F32},
    avx2_panels::{PANEL, panels},
    columns,
    panel_rows::{BREADTH, HEIGHT, Loop, Loops, Rows, estimate, suits},
};
use crate::simd::{Avx2, Isa};
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Variant, Variants,
    op::{Gemm, GemmProblem},
    source_hash,
};
use std::sync::Arc;

/// The kernel for decoding with weights packed ahead on processors without AVX-512.
pub(crate) struct Avx2FewPanels;

impl Kernel<Gemm> for Avx2FewPanels {
    fn name(&self) -> &'static str {
        "avx2_few_panels"
    }

    fn code(&self) -> u64 {
        const {
            source_hash(include_bytes!("avx2_few_panels.rs"))
                ^ source_hash(include_bytes!("few/avx2_panels.rs")).rotate_left(1)
                ^ source_hash(include_bytes!("few/columns.rs")).rotate_left(2)
                ^ source_hash(include_bytes!("few/panel_rows.rs")).rotate_left(3)
        }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        // By eight rows `packed` was faster on Zen 3, 6.2 ms by 4096² of f32 instead of 8.2; by four both take as long.
        suits::<PANEL>(caps, Avx2::FEATURES, p, HEIGHT)?;
        Ok(Variants::ONE)
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, _: Variant) -> Nanos {
        estimate(caps, p, 8.0)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        macro_rules! loops {
            ($kind:ident) => {
                (panels::<$kind, 1, BREADTH> as Loop<PANEL>, panels::<$kind, HEIGHT, 1> as Loop<PANEL>)
            };
        }
        let (one_row, group) = match p.b.dtype() {
            DType::F32 => loops!(F32),
            DType::Bf16 => loops!(Bf16),
            _ => loops!(F16),
        };
        Ok(columns::plan(self, device, p, variant, PANEL, Rows::new(p, Loops { one_row, group, by_second: false })))
    }
}
