//! D = A·B for at most eight rows whose B has contiguous columns, in f32: weights as they lie, at the speed of memory.
//!
//! ```text
//!                 n ─▶ columns, each thread a run of them
//!   A, in f32  ┌──────┐      ┌─┬─┬─┬─┐
//!   and in L1  └──────┘    k │ │ │ │ │  codes become numbers in registers and meet every row at once
//!                            └─┴─┴─┴─┘
//! ```
//! See [`super::few::numbers`] for the frame, [`super::few::dots`] for the loop of one row and [`super::few::unpack`] for those of
//! more. Limits: codes of 32, 16, 8
//! or 4 bits that AVX-512 with VBMI turns into f32, and of 4 bits one row, since more are [`super::avx512_four_bits`]'s;
//! scales that change along k do so at multiples of 16; sums are in another order than `packed` has, so not
//! `batch-invariant`.

use super::{
    few::{
        columns::{self, BROAD, FEATURES, HEIGHTS, MOST, Reading, overlapped},
        dots::{BROAD_SHARE, Bf16, Bytes, F16, F32, I8, Kind, Nibbles, SHARE, STEP, Table, U8, dots},
        far::Far,
        lists::{self, Columns, Lists},
        numbers::{self, Numbers},
        unpack::{multiply, unpack},
    },
    side::varies,
};
use kp_hal::{
    Caps, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Gemm, GemmProblem, GemmSpec, Order},
    source_hash,
};
use std::sync::Arc;

/// The kernel for decoding on processors with AVX-512.
pub(crate) struct Avx512FewRows;

impl Kernel<Gemm> for Avx512FewRows {
    fn name(&self) -> &'static str {
        "avx512_few_rows"
    }

    fn code(&self) -> u64 {
        const {
            source_hash(include_bytes!("avx512_few_rows.rs"))
                ^ source_hash(include_bytes!("few/dots.rs")).rotate_left(1)
                ^ source_hash(include_bytes!("few/lists.rs")).rotate_left(2)
                ^ source_hash(include_bytes!("few/columns.rs")).rotate_left(3)
                ^ source_hash(include_bytes!("few/unpack.rs")).rotate_left(4)
                ^ source_hash(include_bytes!("few/numbers.rs")).rotate_left(5)
                ^ source_hash(include_bytes!("few/apart.rs")).rotate_left(6)
        }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        columns::suits(caps, &FEATURES, p, MOST, Order::Col)?;
        if Kind::of(p.b.dtype()).is_none() {
            return Err(Unsupported::DType { operand: "b", got: p.b.dtype() });
        }
        if Kind::of(p.b.dtype()) == Some(Kind::Nibbles) && p.m > 1 {
            return Err(Unsupported::TooLarge { dim: "m", max: 1, got: p.m.into() });
        }
        if varies(&p.b, p.k) && !lists::can_list(&p.b, p.k) {
            return Err(Unsupported::Scheme { operand: "b", got: p.b.format.to_string() });
        }
        // Four bits take so much arithmetic that several columns at once share numbers of A.
        Ok(match Kind::of(p.b.dtype()) {
            Some(Kind::Nibbles) => Variants::ONE,
            // Several rows by narrower numbers are limited by making these.
            Some(Kind::F32) => Reading::IN_ORDER_TOO,
            _ if p.m > 1 => Reading::VARIANTS,
            _ => Reading::IN_ORDER_TOO,
        })
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, variant: Variant) -> Nanos {
        let (_, memory) = Nanos::floors(caps, p);
        // For each sixteen elements: two instructions to make them numbers, one for each row; two at a time.
        let vectors = f64::from(p.batch) * f64::from(p.n) * f64::from(p.k) / 16.0;
        let rows = HEIGHTS[columns::height((p.m as usize).max(1))] as f64;
        let compute = vectors * (2.5 + rows) / (1.6 * caps.clock_hz.max(1e9) * f64::from(caps.units.max(1)));
        // Four bits share the work of several columns.
        let secs = match Kind::of(p.b.dtype()) {
            Some(Kind::Nibbles) => memory.as_secs().max(compute) / 0.9,
            _ => overlapped(memory, compute) / Reading::of(variant).share(caps),
        };
        Nanos::from_secs(secs + 2e-6 * f64::from(p.batch.max(1)))
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        let reading = match Kind::of(p.b.dtype()) {
            // Of four bits there is one variant.
            Some(Kind::Nibbles) => Reading::of_several(&device.info().caps),
            _ => Reading::of(variant),
        };
        Ok(columns::plan(self, device, p, variant, 16, Numbers::new(p, reading, Loops::new(p, reading))))
    }
}

/// How many columns meet one row at once: as many as memory likes, unless registers are short.
const fn one_row(kind: Kind, reading: Reading) -> usize {
    match (reading, kind) {
        (_, Kind::Nibbles) => 4,
        (Reading::InTurn, _) => 1,
        // In order: A is met as seldom as can be, which a small first cache does not keep while a column passes. But lines of
        // columns that lie whole pages apart push each other out, the more so the longer they take.
        (Reading::InOrder, Kind::Bf16 | Kind::F16) => 4,
        (Reading::InOrder, Kind::I8 | Kind::U8) => 2,
        (Reading::Beside | Reading::InOrder, _) => BROAD,
    }
}

/// How many meet each of the larger [`HEIGHTS`]: sums fill the registers.
const BREADTHS: [usize; 3] = [4, 4, 3];

/// What of A, and of the numbers of columns that meet it, is in L1 at a time, in bytes; and in L2, where columns are numbers
/// and so long to read that A may come from there. Less of several rows where the order of memory is asked for, since L1 is small.
const NEAR: usize = 44 << 10;
const NEAR_IN_ORDER: usize = 28 << 10;
const FAR: usize = 256 << 10;

/// One row by some columns; the codes of a column; some rows by numbers.
type OneRow = unsafe fn(&Table, &[f32], &Columns<'_>, &mut [f32]);
type Unpack = unsafe fn(&Table, &Columns<'_>, usize, &mut [f32]);
type Multiply = unsafe fn(&[f32], &[&[f32]], (usize, Far), &mut [f32]);

/// For each of the larger [`HEIGHTS`].
const MULTIPLY: [Multiply; 3] =
    [multiply::<2, { BREADTHS[0] }>, multiply::<4, { BREADTHS[1] }>, multiply::<8, { BREADTHS[2] }>];

/// Loops with AVX-512.
struct Loops {
    kind: Kind,
    table: Box<Table>,
    rows: usize,
    breadth: usize,
    /// Bytes of A that are met at a time: [`FAR`] where columns are numbers that several rows meet, and which take so long to
    /// read that A may come from L2, up to eight rows where memory is slow enough to be read in several places.
    near: usize,
    run: Run,
}

enum Run {
    OneRow(OneRow),
    /// Not of four bits, which have one row here.
    Rows(Unpack, Multiply),
}

impl Loops {
    fn new(spec: &GemmSpec, reading: Reading) -> Self {
        let kind = Kind::of(spec.b.dtype()).expect("a supported type");
        let height = columns::height((spec.m as usize).max(1));
        macro_rules! one_row {
            ($kind:ident) => {
                match reading {
                    Reading::Beside => dots::<$kind, { one_row(Kind::$kind, Reading::Beside) }> as OneRow,
                    Reading::InTurn => dots::<$kind, { one_row(Kind::$kind, Reading::InTurn) }>,
                    Reading::InOrder => dots::<$kind, { one_row(Kind::$kind, Reading::InOrder) }>,
                }
            };
        }
        macro_rules! run {
            ($kind:ident) => {
                match height {
                    0 => Run::OneRow(one_row!($kind)),
                    _ => Run::Rows(unpack::<$kind>, MULTIPLY[height - 1]),
                }
            };
        }
        let run = match kind {
            Kind::F32 => run!(F32),
            Kind::Bf16 => run!(Bf16),
            Kind::F16 => run!(F16),
            Kind::I8 => run!(I8),
            Kind::U8 => run!(U8),
            Kind::Bytes => run!(Bytes),
            Kind::Nibbles => Run::OneRow(one_row!(Nibbles)),
        };
        let rows = HEIGHTS[height];
        let breadth = if height == 0 { one_row(kind, reading) } else { BREADTHS[height - 1] };
        let near = match reading {
            Reading::InOrder if height > 0 => NEAR_IN_ORDER,
            Reading::Beside if kind == Kind::F32 && height > 0 => FAR,
            Reading::InTurn if kind == Kind::F32 && height > 0 && rows < MOST => FAR,
            _ => NEAR,
        };
        Self { kind, table: Box::new(Table::of(kind, spec.b.format)), rows, breadth, near, run }
    }
}

impl numbers::Loops for Loops {
    const STEP: usize = STEP;

    fn shape(&self) -> (usize, usize) {
        (self.rows, self.breadth)
    }

    /// Fours, whose lists are whole vectors.
    fn near(&self) -> usize {
        let numbers = if self.rows == 1 { 0 } else { self.breadth };
        self.near / ((self.rows + numbers) * STEP * size_of::<f32>()) / 4 * 4
    }

    fn share(&self) -> usize {
        if self.kind == Kind::Nibbles { BROAD_SHARE } else { SHARE }
    }

    fn element(&self, place: usize) -> usize {
        self.kind.element(place / 16, place % 16)
    }

    /// Columns as numbers.
    fn room(&self) -> usize {
        if self.rows == 1 { 0 } else { self.breadth * self.near() * STEP }
    }

    fn zeros(&self, lists: &Lists<'_, '_>, o: usize, out: &mut [f32]) -> bool {
        if self.kind == Kind::Nibbles {
            let shares = out.len();
            // SAFETY: `supports` asked for the features.
            return unsafe { lists.shifts(o, &mut columns::bytes_mut(out)[..shares]) };
        }
        lists.zeros(o, out);
        false
    }

    // Called, it takes a fifth of the time of a short column.
    #[inline(always)]
    unsafe fn add(&self, a: &[f32], columns: &Columns<'_>, room: &mut [f32], sums: &mut [f32]) {
        let (unpack, multiply) = match self.run {
            // SAFETY: passed on.
            Run::OneRow(dots) => return unsafe { dots(&self.table, a, columns, sums) },
            Run::Rows(unpack, multiply) => (unpack, multiply),
        };
        let len = a.len() / self.rows;
        let (mut numbers, mut ahead): ([&[f32]; BROAD], _) = ([&[]; BROAD], (0, Far::NONE));
        if self.kind == Kind::F32 && columns.codes[0].len() == len * size_of::<f32>() {
            // Where they lie.
            for (numbers, codes) in numbers.iter_mut().zip(columns.codes) {
                *numbers = columns::numbers(codes);
            }
            ahead = (if self.near == FAR { 0 } else { columns.ahead }, columns.far);
        } else {
            for (c, (numbers, room)) in
                numbers.iter_mut().zip(room.chunks_exact_mut(len)).enumerate().take(self.breadth)
            {
                // SAFETY: passed on.
                unsafe { unpack(&self.table, columns, c, room) };
                *numbers = room;
            }
        }
        // SAFETY: passed on.
        unsafe { multiply(a, &numbers, ahead, sums) };
    }
}
