//! D = A·B for at most eight rows whose B has contiguous columns of 4-bit codes, in f32, on processors that have AVX2 and no AVX-512.
//!
//! See [`super::few::avx2_nibbles`] for the loops and [`super::few::numbers`] for the frame. Limits: scales that change along k do so
//! at multiples of 16; sums are in another order than `packed` has, so not `batch-invariant`.

use super::{
    few::{
        avx2_nibbles::{STEP, Table, element, nibbles, opened},
        avx2_opened::BREADTH,
        columns::{self, HEIGHTS, MOST, Reading, overlapped},
        dots::{BROAD_SHARE, SHARE},
        lists::Columns,
        numbers::{self, Numbers},
        suits,
    },
    side::varies,
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
                ^ source_hash(include_bytes!("few/avx2_opened.rs")).rotate_left(5)
                ^ source_hash(include_bytes!("few/apart.rs")).rotate_left(6)
        }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        suits::four_bits(caps, Avx2::FEATURES, p, MOST)?;
        Ok(Variants::ONE)
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, _: Variant) -> Nanos {
        let (_, memory) = Nanos::floors(caps, p);
        // Cycles for eight elements, as measured on Zen 3: making numbers of them, and each row.
        let making = if p.b.dtype() == DType::Nf4 { 0.35 } else { 0.0 };
        let cycles = match HEIGHTS[columns::height((p.m as usize).max(1))] as f64 {
            rows if rows < FROM_OPENED as f64 => making + 0.75 + 0.7 * rows,
            rows => making + 1.2 + 0.56 * rows,
        };
        let cycles = cycles * f64::from(p.batch) * f64::from(p.n) * f64::from(p.k) / 8.0;
        let compute = cycles / (caps.clock_hz.max(1e9) * f64::from(caps.units.max(1)));
        // A little more than wider loops take, where there are both.
        Nanos::from_secs(overlapped(memory, compute) / 0.95 + 2e-6 * f64::from(p.batch.max(1)))
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        Ok(columns::plan(self, device, p, variant, 16, Numbers::new(p, Reading::InTurn, Loops::new(p))))
    }
}

/// The fewest rows, of [`HEIGHTS`], for which columns' numbers are made before they are multiplied.
const FROM_OPENED: usize = 4;

/// What of A is near at a time, in bytes: in L1; for tiles in L2, which brings it nearly as fast as they take it, so that runs are
/// longer and end less often. And the most steps, whose lists there is room for.
const NEAR: usize = 24 << 10;
const NEAR_OPENED: usize = 64 << 10;
const MOST_STEPS: usize = 160;

/// Some rows by a column, or by [`BREADTH`].
type Sums = unsafe fn(&Table, &[f32], &Columns<'_>, &mut [f32], &mut [f32]);

/// Loops over nibbles.
struct Loops {
    table: Table,
    rows: usize,
    breadth: usize,
    share: usize,
    near: usize,
    sums: Sums,
}

impl Loops {
    fn new(spec: &GemmSpec) -> Self {
        let table = Table::of(&columns::sixteen(spec.b.dtype()));
        let height = columns::height((spec.m as usize).max(1));
        let is_fine = varies(&spec.b, spec.k) && !(spec.b.format.block().1 as usize).is_multiple_of(BROAD_SHARE);
        macro_rules! heights {
            ($whole:literal, $shifted:literal, $fine:literal) => {
                match height {
                    0 => nibbles::<$whole, $shifted, $fine, { HEIGHTS[0] }> as Sums,
                    1 => nibbles::<$whole, $shifted, $fine, { HEIGHTS[1] }>,
                    2 => opened::<$whole, $shifted, $fine, { HEIGHTS[2] }>,
                    _ => opened::<$whole, $shifted, $fine, { HEIGHTS[3] }>,
                }
            };
        }
        // Integers, which alone have zero points, have all that they are in two bytes.
        let sums = match (table.is_whole(), spec.b.format.has_zero(), is_fine) {
            (true, _, false) => heights!(true, false, false),
            (true, _, true) => heights!(true, false, true),
            (false, true, false) => heights!(false, true, false),
            (false, true, true) => heights!(false, true, true),
            (false, false, false) => heights!(false, false, false),
            (false, false, true) => heights!(false, false, true),
        };
        let share = if is_fine { SHARE } else { STEP };
        let (rows, steps) = (HEIGHTS[height], (spec.k as usize).div_ceil(STEP).max(1));
        let (breadth, near) = if rows < FROM_OPENED { (1, NEAR) } else { (BREADTH, NEAR_OPENED) };
        let most = (near / (rows * STEP * size_of::<f32>())).min(MOST_STEPS);
        // Runs of one length.
        let near = steps.div_ceil(steps.div_ceil(most));
        Self { table, rows, breadth, share, near, sums }
    }
}

impl numbers::Loops for Loops {
    const STEP: usize = STEP;
    // As `avx2_few_rows` has them.
    const TOGETHER: usize = 8;

    fn shape(&self) -> (usize, usize) {
        (self.rows, self.breadth)
    }

    fn near(&self) -> usize {
        self.near
    }

    fn share(&self) -> usize {
        self.share
    }

    fn element(&self, place: usize) -> usize {
        element(self.table.is_whole(), place / 8, place % 8)
    }

    fn room(&self) -> usize {
        if self.breadth > 1 { self.breadth * self.near * STEP } else { 0 }
    }

    #[inline(always)]
    unsafe fn add(&self, a: &[f32], columns: &Columns<'_>, room: &mut [f32], sums: &mut [f32]) {
        // SAFETY: passed on.
        unsafe { (self.sums)(&self.table, a, columns, room, sums) };
    }
}
