//! D = A·B for at most eight rows whose B has contiguous columns, in f32, on processors that have AVX2 and no AVX-512: weights
//! as they lie, at the speed of memory where turning codes into numbers allows.
//!
//! See [`super::few::avx2`] for the loops and [`super::few::numbers`] for the frame. Limits: codes of 32, 16 or 8 bits,
//! since 4 are [`super::avx2_four_bits`]'s; scales that change along k do so at multiples of 16; sums are in another order than
//! `packed` has, so not `batch-invariant`.

use super::{
    few::{
        avx2::{BREADTHS, Bf16, E4m3, E5m2, F16, F32, HEIGHTS, I8, Kind, STEP, U8, dots},
        columns::{self, MOST, Reading, overlapped},
        lists::{self, Columns},
        numbers::{self, Numbers},
    },
    side::varies,
};
use crate::simd::{Avx2, Isa};
use kp_hal::{
    Caps, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant,
    op::{Gemm, GemmProblem, GemmSpec, Order},
    source_hash,
};
use std::sync::Arc;

/// The kernel for decoding on processors without AVX-512.
pub(crate) struct Avx2FewRows;

impl Kernel<Gemm> for Avx2FewRows {
    fn name(&self) -> &'static str {
        "avx2_few_rows"
    }

    fn code(&self) -> u64 {
        const {
            source_hash(include_bytes!("avx2_few_rows.rs"))
                ^ source_hash(include_bytes!("few/avx2.rs")).rotate_left(1)
                ^ source_hash(include_bytes!("few/lists.rs")).rotate_left(2)
                ^ source_hash(include_bytes!("few/columns.rs")).rotate_left(3)
                ^ source_hash(include_bytes!("few/numbers.rs")).rotate_left(4)
                ^ source_hash(include_bytes!("few/apart.rs")).rotate_left(5)
        }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        columns::suits(caps, Avx2::FEATURES, p, MOST, Order::Col)?;
        let Some(kind) = Kind::of(p.b.dtype()) else {
            return Err(Unsupported::DType { operand: "b", got: p.b.dtype() });
        };
        let lists = !varies(&p.b, p.k) || lists::can_list(&p.b, p.k);
        if !lists || p.b.format.has_zero() && kind.factor() != 1.0 {
            return Err(Unsupported::Scheme { operand: "b", got: p.b.format.to_string() });
        }
        Ok(Reading::VARIANTS)
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, variant: Variant) -> Nanos {
        let (_, memory) = Nanos::floors(caps, p);
        let kind = Kind::of(p.b.dtype()).unwrap_or(Kind::F32);
        // For each eight elements: instructions that make them numbers, three at a time, and one for each row, two at a time.
        let made = match kind {
            Kind::F32 => 1.0,
            Kind::Bf16 | Kind::F16 => 2.0,
            Kind::I8 | Kind::U8 | Kind::E5m2 => 3.0,
            Kind::E4m3 => 5.0,
        };
        let rows = HEIGHTS[height((p.m as usize).max(1))] as f64;
        let vectors = f64::from(p.batch) * f64::from(p.n) * f64::from(p.k) / 8.0;
        let cycles = vectors * (made / 3.0 + rows / 2.0) / 0.8;
        let compute = cycles / (caps.clock_hz.max(1e9) * f64::from(caps.units.max(1)));
        // A little less than wider loops reach, where there are both.
        let share = Reading::of(variant).share(caps) - 0.02;
        Nanos::from_secs(overlapped(memory, compute) / share + 2e-6 * f64::from(p.batch.max(1)))
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        let reading = Reading::of(variant);
        Ok(columns::plan(self, device, p, variant, 16, Numbers::new(p, reading, Loops::new(p, reading))))
    }
}

/// The place in [`HEIGHTS`] of the least that has room for `rows`.
fn height(rows: usize) -> usize {
    HEIGHTS.iter().position(|&h| h >= rows).expect("few rows")
}

/// What of A is in L1 at a time, in bytes; and the most steps, whose lists there is room for.
const NEAR: usize = 24 << 10;
const MOST_STEPS: usize = 96;

/// Some rows by some columns.
type Sums = unsafe fn(&[f32], &Columns<'_>, &mut [f32]);

/// Loops with AVX2.
struct Loops {
    kind: Kind,
    rows: usize,
    breadth: usize,
    sums: Sums,
}

impl Loops {
    fn new(spec: &GemmSpec, reading: Reading) -> Self {
        let kind = Kind::of(spec.b.dtype()).expect("a supported type");
        let height = height((spec.m as usize).max(1));
        macro_rules! sums {
            ($kind:ident) => {
                match (height, reading) {
                    (0, Reading::Beside) => dots::<$kind, 1, { BREADTHS[0] }> as Sums,
                    (0, _) => dots::<$kind, 1, 1>,
                    (1, _) => dots::<$kind, { HEIGHTS[1] }, { BREADTHS[1] }>,
                    _ => dots::<$kind, { HEIGHTS[2] }, { BREADTHS[2] }>,
                }
            };
        }
        let sums = match kind {
            Kind::F32 => sums!(F32),
            Kind::Bf16 => sums!(Bf16),
            Kind::F16 => sums!(F16),
            Kind::I8 => sums!(I8),
            Kind::U8 => sums!(U8),
            Kind::E4m3 => sums!(E4m3),
            Kind::E5m2 => sums!(E5m2),
        };
        let breadth = if height == 0 && reading == Reading::InTurn { 1 } else { BREADTHS[height] };
        Self { kind, rows: HEIGHTS[height], breadth, sums }
    }
}

impl numbers::Loops for Loops {
    const STEP: usize = STEP;
    // Loads of rows one after the other then share lines: up to a fifth faster on Zen 3 than 256 bytes apart.
    const TOGETHER: usize = 8;

    fn shape(&self) -> (usize, usize) {
        (self.rows, self.breadth)
    }

    fn near(&self) -> usize {
        (NEAR / (self.rows * STEP * size_of::<f32>())).min(MOST_STEPS)
    }

    fn share(&self) -> usize {
        STEP
    }

    fn element(&self, place: usize) -> usize {
        self.kind.element(place / 8, place % 8)
    }

    #[inline(always)]
    unsafe fn add(&self, a: &[f32], columns: &Columns<'_>, _: &mut [f32], sums: &mut [f32]) {
        // SAFETY: passed on.
        unsafe { (self.sums)(a, columns, sums) };
    }
}
