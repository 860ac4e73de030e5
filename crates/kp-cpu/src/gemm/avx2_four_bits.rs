//! D = A·B for at most eight rows whose B has contiguous columns of 4-bit codes, in f32, on processors that have AVX2 and no AVX-512.
//!
//! See [`super::few::avx2_nibbles`] for the loop and [`super::few::numbers`] for the frame. Limits: scales that change along k do so
//! at multiples of 16; sums are in another order than `packed` has, so not `batch-invariant`.

use super::few::{
    avx2_nibbles::{STEP, Table, element, nibbles},
    columns::{self, HEIGHTS, MOST, Reading, overlapped},
    lists::{self, Columns},
    numbers::{self, Numbers},
};
use crate::simd::{Avx2, Isa};
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Variant, Variants,
    op::{Gemm, GemmProblem, GemmSpec},
    source_hash,
};
use std::sync::Arc;

/// The kernel for few rows of numbers by weights of four bits without AVX-512.
pub(crate) struct Avx2FourBits;

impl Kernel<Gemm> for Avx2FourBits {
    fn name(&self) -> &'static str {
        "avx2_four_bits"
    }

    fn code(&self) -> u64 {
        const {
            source_hash(include_bytes!("avx2_four_bits.rs"))
                ^ source_hash(include_bytes!("few/avx2_nibbles.rs")).rotate_left(1)
                ^ source_hash(include_bytes!("few/lists.rs")).rotate_left(2)
                ^ source_hash(include_bytes!("few/columns.rs")).rotate_left(3)
                ^ source_hash(include_bytes!("few/numbers.rs")).rotate_left(4)
        }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        lists::suits_four_bits(caps, Avx2::FEATURES, p, MOST)?;
        Ok(Variants::ONE)
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, _: Variant) -> Nanos {
        let (_, memory) = Nanos::floors(caps, p);
        // Cycles for eight elements: instructions that make them numbers, three at a time, and one for each row, two at a time.
        let made = if p.b.dtype() == DType::Nf4 { 5.0 } else { 4.0 };
        let rows = HEIGHTS[columns::height((p.m as usize).max(1))] as f64;
        let vectors = f64::from(p.batch) * f64::from(p.n) * f64::from(p.k) / 8.0;
        let cycles = vectors * (made / 3.0 + rows / 2.0) / 0.8;
        let compute = cycles / (caps.clock_hz.max(1e9) * f64::from(caps.units.max(1)));
        Nanos::from_secs(overlapped(memory, compute) + 2e-6 * f64::from(p.batch.max(1)))
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        Ok(columns::plan(self, device, p, variant, 16, Numbers::new(p, Reading::InTurn, Loops::new(p))))
    }
}

/// What of A is in L1 at a time, in bytes; and the most steps, whose lists there is room for.
const NEAR: usize = 24 << 10;
const MOST_STEPS: usize = 160;

/// Some rows by a column.
type Sums = unsafe fn(&Table, &[f32], &Columns<'_>, &mut [f32]);

/// Loops over nibbles.
struct Loops {
    table: Table,
    rows: usize,
    sums: Sums,
}

impl Loops {
    fn new(spec: &GemmSpec) -> Self {
        let table = Table::of(&columns::sixteen(spec.b.dtype()));
        let height = columns::height((spec.m as usize).max(1));
        macro_rules! heights {
            ($whole:literal, $shifted:literal) => {
                match height {
                    0 => nibbles::<$whole, $shifted, { HEIGHTS[0] }> as Sums,
                    1 => nibbles::<$whole, $shifted, { HEIGHTS[1] }>,
                    2 => nibbles::<$whole, $shifted, { HEIGHTS[2] }>,
                    _ => nibbles::<$whole, $shifted, { HEIGHTS[3] }>,
                }
            };
        }
        // Integers, which alone have zero points, have all that they are in two bytes.
        let sums = match (table.is_whole(), spec.b.format.has_zero()) {
            (true, _) => heights!(true, false),
            (false, true) => heights!(false, true),
            (false, false) => heights!(false, false),
        };
        Self { table, rows: HEIGHTS[height], sums }
    }
}

impl numbers::Loops for Loops {
    const STEP: usize = STEP;
    // As `avx2_few_rows` has them.
    const TOGETHER: usize = 8;

    fn shape(&self) -> (usize, usize) {
        (self.rows, 1)
    }

    fn near(&self) -> usize {
        (NEAR / (self.rows * STEP * size_of::<f32>())).min(MOST_STEPS)
    }

    fn share(&self) -> usize {
        STEP
    }

    fn element(&self, place: usize) -> usize {
        element(self.table.is_whole(), place / 8, place % 8)
    }

    #[inline(always)]
    unsafe fn add(&self, a: &[f32], columns: &Columns<'_>, _: &mut [f32], sums: &mut [f32]) {
        // SAFETY: passed on.
        unsafe { (self.sums)(&self.table, a, columns, sums) };
    }
}
