//! D = A·B for at most eight rows whose B has contiguous rows, in f32: weights as they lie.
//!
//! See [`super::few::line_rows`] for the frame and [`super::few::lines`] for the loop. Limits: scales that change along k
//! do so at multiples of 16; not `batch-invariant`, since `packed` adds blocks of k apart.

use super::few::{
    columns,
    line_rows::{Lines, Loop, UNIT, estimate, height, suits},
    lines::{Bf16, F16, F32, Float, Four, I8, U8, lines},
};
use crate::caps::fetches_runs_of;
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Variant, Variants,
    op::{Gemm, GemmProblem},
    source_hash,
};
use std::sync::Arc;

/// The kernel for decoding with weights in rows.
pub(crate) struct Avx512FewLines;

impl Kernel<Gemm> for Avx512FewLines {
    fn name(&self) -> &'static str {
        "avx512_few_lines"
    }

    fn code(&self) -> u64 {
        const {
            source_hash(include_bytes!("avx512_few_lines.rs"))
                ^ source_hash(include_bytes!("few/lines.rs")).rotate_left(1)
                ^ source_hash(include_bytes!("few/line_rows.rs")).rotate_left(2)
                ^ source_hash(include_bytes!("few/columns.rs")).rotate_left(3)
                ^ source_hash(include_bytes!("few/lists.rs")).rotate_left(4)
                ^ source_hash(include_bytes!("amx/convert.rs")).rotate_left(5)
                ^ source_hash(include_bytes!("few/list_rows.rs")).rotate_left(8)
        }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        suits(caps, &columns::FEATURES, p)?;
        Ok(Variants::ONE)
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, _: Variant) -> Nanos {
        estimate(caps, p, 16.0)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        macro_rules! loops {
            ($kind:ident) => {
                match height(p) {
                    1 => (lines::<$kind, 1, 8> as Loop, 128),
                    2 => (lines::<$kind, 2, 8> as Loop, 128),
                    4 => (lines::<$kind, 4, 4> as Loop, 64),
                    _ => (lines::<$kind, 8, 2> as Loop, 32),
                }
            };
        }
        let caps = &device.info().caps;
        let loops = match p.b.dtype() {
            // Narrow strips, where lines are read along: each is met again soon, and the processor fetches what follows.
            DType::F32 if height(p) == 1 && fetches_runs_of(caps) => (lines::<F32, 1, 1> as Loop, 16),
            DType::F32 => loops!(F32),
            DType::Bf16 => loops!(Bf16),
            DType::F16 => loops!(F16),
            DType::I8 => loops!(I8),
            DType::U8 => loops!(U8),
            DType::E4m3 | DType::E5m2 => loops!(Float),
            _ => loops!(Four),
        };
        Ok(columns::plan(self, device, p, variant, UNIT, Lines::new(p, caps, loops)))
    }
}
