//! D = A·B for at most eight rows whose B has contiguous columns, in f32: weights as they lie, at the speed of memory.
//!
//! ```text
//!                 n ─▶ columns, each thread a run of them
//!   A, in f32  ┌──────┐      ┌─┬─┬─┬─┐
//!   and in L1  └──────┘    k │ │ │ │ │  codes become numbers in registers and meet every row at once
//!                            └─┴─┴─┴─┘
//! ```
//! See [`super::few::dots`] for the loop of one row and [`super::few::unpack`] for those of more. Limits: codes of 32, 16, 8
//! or 4 bits that AVX-512 with VBMI turns into f32, and of 4 bits one row, since more are [`super::avx512_four_bits`]'s;
//! scales that change along k do so at multiples of 16; sums are in another order than `packed` has, so not
//! `batch-invariant`.

use super::{
    few::{
        columns::{self, BROAD, Codes, Dots, FEATURES, Few, HEIGHTS, MOST, Reading, Task},
        dots::{self, Bf16, Bytes, Columns, F16, F32, I8, Kind, LIST, List, Nibbles, STEP, Shifts, Table, U8, dots},
        far::Far,
        lists::{self, Lists},
        unpack::{multiply, unpack},
    },
    product::{Item, Product, finishes_in_f64},
    side::Scaling,
    vnni_few_rows::varies,
};
use crate::{
    act::Tail,
    kernel::{self, Disjoint},
    memory::numbers_mut,
    numbers, threads,
};
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Format, Gemm, GemmProblem, GemmSpec, Order},
    source_hash,
};
use std::{marker::PhantomData, sync::Arc};

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
        }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        columns::suits(caps, &FEATURES, p, MOST, Order::Col)?;
        if kind(p.b.dtype()).is_none() {
            return Err(Unsupported::DType { operand: "b", got: p.b.dtype() });
        }
        if kind(p.b.dtype()) == Some(Kind::Nibbles) && p.m > 1 {
            return Err(Unsupported::TooLarge { dim: "m", max: 1, got: p.m.into() });
        }
        if varies(&p.b, p.k) && !lists::can_list(&p.b, p.k) {
            return Err(Unsupported::Scheme { operand: "b", got: p.b.format.to_string() });
        }
        // Four bits take so much arithmetic that several columns at once share numbers of A.
        Ok(if kind(p.b.dtype()) == Some(Kind::Nibbles) { Variants::ONE } else { Reading::VARIANTS })
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, variant: Variant) -> Nanos {
        let (_, memory) = Nanos::floors(caps, p);
        // For each sixteen elements: two instructions to make them numbers, one for each row; two at a time.
        let vectors = f64::from(p.batch) * f64::from(p.n) * f64::from(p.k) / 16.0;
        let rows = HEIGHTS[columns::height((p.m as usize).max(1))] as f64;
        let compute = vectors * (2.5 + rows) / (1.6 * caps.clock_hz.max(1e9) * f64::from(caps.units.max(1)));
        let is_shared = kind(p.b.dtype()) == Some(Kind::Nibbles);
        let share = if is_shared { 0.9 } else { Reading::of(variant).share(caps) };
        Nanos::from_secs(memory.as_secs().max(compute) / share + 2e-6 * f64::from(p.batch.max(1)))
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        macro_rules! plan {
            ($end:ty) => {{
                let code = Few::new(p, 16, Numbers::<$end>::new(p, Reading::of(variant)));
                // SAFETY: the loops touch what the spec names, and the scratch that `scratch_bytes` counts.
                Ok(unsafe { kernel::plan(self, device, p, variant, code.scratch_bytes(), code) })
            }};
        }
        if finishes_in_f64(p) { plan!(f64) } else { plan!(f32) }
    }
}

pub(super) fn kind(dtype: DType) -> Option<Kind> {
    Some(match dtype {
        DType::F32 => Kind::F32,
        DType::Bf16 => Kind::Bf16,
        DType::F16 => Kind::F16,
        DType::I8 => Kind::I8,
        DType::U8 => Kind::U8,
        DType::E4m3 | DType::E5m2 => Kind::Bytes,
        DType::I4 | DType::U4 | DType::Nf4 | DType::E2m1 => Kind::Nibbles,
        _ => return None,
    })
}

/// How many columns meet one row at once: as many as memory likes, unless registers are short.
const fn one_row(kind: Kind, reading: Reading) -> usize {
    match (reading, kind) {
        (_, Kind::Nibbles) => 4,
        (Reading::Beside, _) => BROAD,
        (Reading::InTurn, _) => 1,
    }
}

/// How many meet each of the larger [`HEIGHTS`]: sums fill the registers.
const BREADTHS: [usize; 3] = [4, 4, 3];

/// The most sums of a loop.
const MOST_SUMS: usize = MOST * BREADTHS[2];

/// What of A, and of the numbers of columns that meet it, is in L1 at a time, in bytes; and in L2, where columns are numbers
/// and so long to read that A may come from there.
const NEAR: usize = 44 << 10;
const FAR: usize = 256 << 10;

/// One row by some columns; the codes of a column; some rows by numbers.
type OneRow = unsafe fn(&Table, usize, &[f32], &Columns<'_>, &mut [f32]);
type Unpack = unsafe fn(&Table, usize, &Columns<'_>, usize, &mut [f32]);
type Multiply = unsafe fn(&[f32], &[f32], usize, usize, &mut [f32]);

/// For each of the larger [`HEIGHTS`].
const MULTIPLY: [Multiply; 3] =
    [multiply::<2, { BREADTHS[0] }>, multiply::<4, { BREADTHS[1] }>, multiply::<8, { BREADTHS[2] }>];

/// Sums of numbers.
struct Numbers<E> {
    spec: GemmSpec,
    reading: Reading,
    kind: Kind,
    table: Box<Table>,
    one_row: OneRow,
    /// Not of four bits, which have one row here.
    unpack: Option<Unpack>,
    varies: bool,
    /// Elements that share an entry of the lists.
    share: usize,
    kind_of_end: PhantomData<E>,
}

impl<E> Numbers<E> {
    fn new(spec: &GemmSpec, reading: Reading) -> Self {
        let dtype = spec.b.dtype();
        let kind = kind(dtype).expect("a supported type");
        macro_rules! one_row {
            ($kind:ident) => {
                match reading {
                    Reading::Beside => dots::<$kind, { one_row(Kind::$kind, Reading::Beside) }> as OneRow,
                    Reading::InTurn => dots::<$kind, { one_row(Kind::$kind, Reading::InTurn) }>,
                }
            };
        }
        macro_rules! loops {
            ($kind:ident) => {
                (one_row!($kind), Some(unpack::<$kind> as Unpack))
            };
        }
        let (one_row, unpack) = match kind {
            Kind::F32 => loops!(F32),
            Kind::Bf16 => loops!(Bf16),
            Kind::F16 => loops!(F16),
            Kind::I8 => loops!(I8),
            Kind::U8 => loops!(U8),
            Kind::Bytes => loops!(Bytes),
            Kind::Nibbles => (one_row!(Nibbles), None),
        };
        let table = Box::new(table(kind, spec.b.format));
        let varies = varies(&spec.b, spec.k);
        let is_broad = |share: usize| (spec.b.format.block().1 as usize).is_multiple_of(share);
        let broad = kind == Kind::Nibbles && (!varies || is_broad(dots::BROAD_SHARE));
        let share = if broad { dots::BROAD_SHARE } else { dots::SHARE };
        Self { spec: *spec, reading, kind, table, one_row, unpack, varies, share, kind_of_end: PhantomData }
    }

    fn steps(&self) -> usize {
        (self.spec.k as usize).div_ceil(STEP)
    }

    /// Columns that meet rows of height `height` at once.
    fn breadth(&self, height: usize) -> usize {
        if height == 0 { one_row(self.kind, self.reading) } else { BREADTHS[height - 1] }
    }

    /// Whether columns are numbers that several rows meet, and which take so long to read that A may come from L2: up to
    /// eight rows where memory is slow enough to be read in several places.
    fn is_far(&self, height: usize) -> bool {
        self.kind == Kind::F32 && height > 0 && (self.reading == Reading::Beside || HEIGHTS[height] < MOST)
    }

    /// Steps of A, and of a column's numbers if there are several rows, that are near at a time: fours, whose lists are whole
    /// vectors.
    fn near(&self, height: usize) -> usize {
        let numbers = if height == 0 { 0 } else { self.breadth(height) };
        let bytes = if self.is_far(height) { FAR } else { NEAR };
        let most = bytes / ((HEIGHTS[height] + numbers) * STEP * size_of::<f32>());
        most / 4 * 4
    }
}

/// What the codes of `format` are looked up in.
pub(super) fn table(kind: Kind, format: Format) -> Table {
    let dtype = format.dtype;
    let mut table = Table([[0; 64]; 4]);
    match kind {
        Kind::Nibbles if format.has_zero() => return Table::shifted(dtype == DType::I4),
        Kind::Nibbles => {
            for (bytes, value) in table.0[0].chunks_exact_mut(4).zip(columns::sixteen(dtype)) {
                bytes.copy_from_slice(&value.to_le_bytes());
            }
        }
        Kind::Bytes => {
            let codes: [u8; 128] = std::array::from_fn(|i| i as u8);
            let mut values = [0.0_f32; 128];
            numbers::read(dtype, &codes, 0, &mut values);
            for (i, value) in values.into_iter().enumerate() {
                // Exact: they have fewer bits than a bf16.
                let [.., low, high] = value.to_le_bytes();
                (table.0[i / 64][i % 64], table.0[2 + i / 64][i % 64]) = (low, high);
            }
        }
        _ => {}
    }
    table
}

impl<E: Tail> Dots for Numbers<E> {
    type End = E;

    fn a_bytes(&self) -> usize {
        let rows = HEIGHTS[columns::height((self.spec.m as usize).max(1))];
        self.steps() * rows * STEP * size_of::<f32>()
    }

    fn work_bytes(&self) -> usize {
        let height = columns::height((self.spec.m as usize).max(1));
        let numbers = self.breadth(height) * self.near(height) * STEP;
        (2 * BROAD * LIST + numbers) * size_of::<f32>()
    }

    fn prepare(&self, product: &Product<'_>, item: Item, a: &mut [u8]) {
        let rows = HEIGHTS[columns::height(item.rows.max(1))];
        let k = self.spec.k as usize;
        let a = Disjoint::of(&mut numbers_mut::<f32>(a)[..self.steps() * rows * STEP]);
        threads::for_each(self.steps(), |step| {
            // SAFETY: each step once.
            let out = unsafe { a.part(step * rows * STEP..(step + 1) * rows * STEP) };
            let inner = step * STEP..((step + 1) * STEP).min(k);
            for (row, out) in out.chunks_exact_mut(STEP).enumerate() {
                let mut line = [0.0; STEP];
                if row < item.rows {
                    let line = &mut line[..inner.len()];
                    product.a.row(item.row_batch, item.row + row, inner.clone(), Scaling::Applied, line);
                }
                for (j, out) in out.chunks_exact_mut(16).enumerate() {
                    for (lane, out) in out.iter_mut().enumerate() {
                        *out = line[self.kind.element(j, lane)];
                    }
                }
            }
        });
    }

    fn sums(&self, task: Task<'_, '_>, sums: &mut [E], ld: usize, work: &mut [u8]) {
        let Task { product, item, columns, a } = task;
        let (b, k) = (&product.b, self.spec.k as usize);
        let height = columns::height(item.rows.max(1));
        let rows = HEIGHTS[height];
        let a = &columns::numbers::<f32>(a)[..self.steps() * rows * STEP];
        let (breadth, near) = (self.breadth(height), self.near(height));
        let (scales, rest) = columns::take::<f32>(work, BROAD * LIST);
        let (zeros, rest) = columns::take::<f32>(rest, BROAD * LIST);
        let (numbers, _) = columns::take::<f32>(rest, breadth * near * STEP);
        let (scales, zeros): (&mut [List], &mut [List]) = (scales.as_chunks_mut().0, zeros.as_chunks_mut().0);
        for sums in sums.chunks_mut(ld).take(item.rows) {
            sums[..columns.len()].fill(E::ZERO);
        }
        // The loop of one row over four bits scales by a list in any case.
        let listed = self.varies || self.kind == Kind::Nibbles && height == 0;
        if listed && !self.varies {
            scales.as_flattened_mut().fill(1.0);
        }
        let has_zero = b.matrix.format.has_zero();
        for first in (0..self.steps()).step_by(near) {
            let steps = first..(first + near).min(self.steps());
            let inner = steps.start * STEP..(steps.end * STEP).min(k);
            let a = &a[steps.start * rows * STEP..steps.end * rows * STEP];
            let lists = Lists::new(b, item.b, inner.start, self.share);
            let shares = steps.len() * STEP / self.share;
            let codes = Codes::of(b, item.b, inner.clone());
            let lie = self.kind == Kind::F32 && inner.len() == steps.len() * STEP;
            let ahead = columns::ahead(self.reading, breadth, codes.step(), inner.len() == k);
            for o in columns.clone().step_by(breadth) {
                // Past the last column, that one again.
                let place = |c: usize| (o + c).min(columns.end - 1);
                let mut some: [&[u8]; BROAD] = [&[]; BROAD];
                let mut is_beyond = [false; BROAD];
                for (c, some) in some[..breadth].iter_mut().enumerate() {
                    *some = codes.column(place(c));
                    // SAFETY: `supports` asked for the features.
                    unsafe {
                        if self.varies {
                            lists.scales(place(c), &mut scales[c][..shares]);
                        }
                        if has_zero && self.kind == Kind::Nibbles {
                            is_beyond[c] = lists.shifts(place(c), &mut columns::bytes_mut(&mut zeros[c])[..shares]);
                        } else if has_zero {
                            lists.zeros(place(c), &mut zeros[c][..shares]);
                        }
                    }
                }
                let (zeros, shifts): (&[List], &[Shifts]) = match self.kind {
                    _ if !has_zero => (&[], &[]),
                    Kind::Nibbles => (&[], columns::bytes_mut(zeros.as_flattened_mut()).as_chunks().0),
                    _ => (zeros, &[]),
                };
                let scales = if listed { &*scales } else { &[] };
                let some = Columns { codes: &some[..breadth], scales, zeros, shifts, ahead, far: Far::NONE };
                let mut of_rows = [0.0; MOST_SUMS];
                // SAFETY: as above.
                unsafe {
                    if height == 0 {
                        (self.one_row)(&self.table, self.share, a, &some, &mut of_rows);
                    } else if lie && o + breadth <= columns.end {
                        let numbers = columns::numbers(codes.from(o));
                        let ahead = if self.is_far(height) { 0 } else { ahead };
                        MULTIPLY[height - 1](a, numbers, codes.step() / size_of::<f32>(), ahead, &mut of_rows);
                    } else {
                        let len = steps.len() * STEP;
                        let unpack = self.unpack.expect("several rows of more than four bits");
                        for (c, numbers) in numbers.chunks_exact_mut(len).enumerate().take(breadth) {
                            unpack(&self.table, self.share, &some, c, numbers);
                        }
                        MULTIPLY[height - 1](a, numbers, len, 0, &mut of_rows);
                    }
                }
                for c in (0..breadth).filter(|&c| is_beyond[c]) {
                    // Of four bits: an element's lanes are those of all vectors of a step.
                    let lane = |i: usize| i % (STEP / self.share) * self.share / 8;
                    let sum = |i: usize| {
                        let vectors = a[i * self.share / STEP * STEP..][..STEP].chunks_exact(16);
                        vectors.flat_map(|numbers| &numbers[lane(i)..][..self.share / 8]).sum()
                    };
                    of_rows[c] -= lists.beyond(place(c), shares, sum);
                }
                let places = o - columns.start..columns.len().min(o - columns.start + breadth);
                columns::add(sums, ld, places, &of_rows, (rows, item.rows));
            }
        }
        columns::scale(b, item, columns, self.varies, |_| E::ONE, sums, ld);
    }
}
