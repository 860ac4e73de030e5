//! D = A·B for at most eight rows whose B was packed ahead to panels of 64 columns, in f32: weights as they lie, at the speed
//! of memory.
//!
//! ```text
//!                 n ─▶ panels, each thread a run of them
//!   A, in f32  ┌──────┐      ┌────┬────┬────┐
//!              └──────┘    k │    │    │    │  four panels at once meet one row, each panel alone four rows at a time
//!                            └────┴────┴────┘
//! ```
//! See [`super::few::panels`] for the loop and [`super::few::panel_rows`] for the frame. Limits: numbers of 32 or 16 bits without
//! scales; not `batch-invariant`, since `packed` adds blocks of k apart.

use super::few::{
    columns,
    dots::{Bf16, F16, F32},
    panel_rows::{BREADTH, HEIGHT, Loop, Loops, Rows, estimate, suits},
    panels::{PANEL, panels},
};
use crate::caps::streams_by_second_cache;
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Variant, Variants,
    op::{Gemm, GemmProblem},
    source_hash,
};
use std::sync::Arc;

/// The kernel for decoding with weights packed ahead.
pub(crate) struct Avx512FewPanels;

impl Kernel<Gemm> for Avx512FewPanels {
    fn name(&self) -> &'static str {
        "avx512_few_panels"
    }

    fn code(&self) -> u64 {
        const {
            source_hash(include_bytes!("avx512_few_panels.rs"))
                ^ source_hash(include_bytes!("few/panels.rs")).rotate_left(1)
                ^ source_hash(include_bytes!("few/dots.rs")).rotate_left(2)
                ^ source_hash(include_bytes!("few/columns.rs")).rotate_left(3)
                ^ source_hash(include_bytes!("few/panel_rows.rs")).rotate_left(4)
                ^ source_hash(include_bytes!("few/far.rs")).rotate_left(5)
        }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        suits::<PANEL>(caps, &columns::FEATURES, p, columns::MOST)?;
        Ok(Variants::ONE)
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, _: Variant) -> Nanos {
        // For each sixteen elements: an instruction or two to make them numbers, one for each row; two at a time.
        estimate(caps, p, 16.0)
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
        let loops = Loops { one_row, group, by_second: streams_by_second_cache() };
        Ok(columns::plan(self, device, p, variant, PANEL, Rows::new(p, loops)))
    }
}
