//! D = A·B for at most eight rows of 8- or 4-bit codes whose B, of such codes too, has contiguous columns: exact sums in
//! i32, at the speed of memory.
//!
//! ```text
//!                  n ─▶ columns, each thread a run of them
//!   A, as i8    ┌──────┐      ┌─┬─┬─┬─┐
//!   and in L1   └──────┘    k │ │ │ │ │  four products an instruction and lane
//!                             └─┴─┴─┴─┘
//! ```
//! See [`super::few::byte_dots`] for the loop. Limits: A of i8, i4, u4 or e2m1 without zero points (e2m1 doubled is a
//! whole number), or of floats that may be rounded; B of these or u8; AVX-512 with VNNI; scales that change along k do so at
//! multiples of 16; what is scaled is finished in f32, unlike in `packed`, so not `batch-invariant`.

use super::{
    few::{
        byte_dots::{self, Column, Eight, Four, Lift, Rows, scaled, whole},
        bytes::{self, fold},
        columns::{self, BROAD, Dots, Few, HEIGHTS, MOST, Reading, Task, overlapped},
        dots::{Far, SHARE, STEP, SUMS},
        lists::{self, Lists},
    },
    product::{Item, Product, finishes_in_f64},
    rounded::{self, is_rounded},
    side::Scaling,
};
use crate::{
    act::Tail,
    kernel::{self, Disjoint},
    numbers, threads,
};
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant,
    op::{Acc, Format, Gemm, GemmProblem, GemmSpec, Matrix, Order, Repro, Scheme, Sparsity},
    source_hash,
};
use std::{marker::PhantomData, sync::Arc};

/// The kernel for decoding with codes on both sides.
pub(crate) struct VnniFewRows;

const FEATURES: [&str; 5] = ["avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni"];

/// Up to this many products of bytes, sums fit 32 bits.
const MOST_K: u32 = 1 << 16;

impl Kernel<Gemm> for VnniFewRows {
    fn name(&self) -> &'static str {
        "vnni_few_rows"
    }

    fn code(&self) -> u64 {
        const {
            source_hash(include_bytes!("vnni_few_rows.rs"))
                ^ source_hash(include_bytes!("few/byte_dots.rs")).rotate_left(1)
                ^ source_hash(include_bytes!("few/lists.rs")).rotate_left(2)
                ^ source_hash(include_bytes!("few/columns.rs")).rotate_left(3)
                ^ source_hash(include_bytes!("rounded.rs")).rotate_left(4)
        }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        if p.m as usize > MOST {
            return Err(Unsupported::TooLarge { dim: "m", max: MOST as u64, got: p.m.into() });
        }
        if p.b.order != Order::Col {
            return Err(Unsupported::Layout { operand: "b", got: p.b.order.to_string() });
        }
        supports(caps, p)?;
        Ok(Reading::VARIANTS)
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, variant: Variant) -> Nanos {
        let (_, memory) = Nanos::floors(caps, p);
        let rows = HEIGHTS[columns::height((p.m as usize).max(1))] as f64;
        // For a line of 64 bytes: an instruction or two for each row, some more where scales change.
        let lines = f64::from(p.batch) * f64::from(p.n) * f64::from(p.k) * f64::from(p.b.dtype().bits()) / 512.0;
        let varies = a_varies(p) || varies(&p.b, p.k);
        let is_four = p.b.dtype().bits() == 4;
        let if_so = |is: bool, instructions: f64| if is { instructions } else { 0.0 };
        let instructions = match (varies, is_four) {
            (false, _) => 2.0 + 2.0 * rows,
            (true, false) => 8.0 + 5.0 * rows,
            (true, true) => 3.0 + rows * (6.0 + if_so(a_varies(p), 2.0) + if_so(p.b.format.has_zero(), 2.5)),
        };
        let compute = lines * instructions / (1.6 * caps.clock_hz.max(1e9) * f64::from(caps.units.max(1)));
        // Four bits are limited by memory only where one row has no lists of scales; otherwise several columns share the work.
        let is_busy = is_four && (p.m > 1 || varies);
        let share = match Reading::of(variant) {
            Reading::Beside if is_busy => 0.9,
            Reading::InTurn if is_busy => 0.85,
            reading => reading.share(caps),
        };
        let secs = if is_busy { overlapped(memory, compute / share) } else { memory.as_secs().max(compute) / share };
        Nanos::from_secs(secs + 2e-6 * f64::from(p.batch.max(1)))
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        macro_rules! plan {
            ($end:ty) => {{
                let code = Few::new(p, 16, Codes::<$end>::new(p, Reading::of(variant)));
                // SAFETY: the loops touch what the spec names, and the scratch that `scratch_bytes` counts.
                Ok(unsafe { kernel::plan(self, device, p, variant, code.scratch_bytes(), code) })
            }};
        }
        if ends_wide(p) { plan!(f64) } else { plan!(f32) }
    }
}

/// Whether `caps` and the types, scales and sums of `p` suit products of bytes.
pub(crate) fn supports(caps: &Caps, p: &GemmProblem) -> std::result::Result<(), Unsupported> {
    if let Some(need) = FEATURES.into_iter().find(|feature| !caps.has(feature)) {
        return Err(Unsupported::Feature { need });
    }
    if p.repro() == Repro::BatchInvariant {
        return Err(Unsupported::Repro { asked: p.repro() });
    }
    if p.acc == Acc::F16 {
        return Err(Unsupported::Option { option: "acc", got: p.acc.to_string() });
    }
    if p.sparsity != Sparsity::Dense {
        return Err(Unsupported::Option { option: "sparse", got: p.sparsity.to_string() });
    }
    for (operand, dtype, is_a) in [("a", p.a.dtype(), true), ("b", p.b.dtype(), false)] {
        let is_known = lift(dtype).is_some() && !(is_a && dtype == DType::U8);
        if !(is_known || is_a && is_rounded(p)) {
            return Err(Unsupported::DType { operand, got: dtype });
        }
    }
    let vary = a_varies(p) || varies(&p.b, p.k);
    for (operand, matrix) in [("a", &p.a), ("b", &p.b)] {
        let listed = is_rounded(p) && (operand == "a" || !varies(matrix, p.k))
            || lists::can_list(matrix, p.k)
            || !varies(matrix, p.k) && p.k.is_multiple_of(SHARE as u32);
        if vary && !listed || operand == "a" && matrix.format.has_zero() {
            return Err(Unsupported::Scheme { operand, got: matrix.format.to_string() });
        }
    }
    let is_scaled = p.a.format.scheme != Scheme::None || p.b.format.scheme != Scheme::None;
    if is_scaled && p.k > MOST_K {
        return Err(Unsupported::TooLarge { dim: "k", max: MOST_K.into(), got: p.k.into() });
    }
    Ok(())
}

/// Whether what follows the sums is computed in f64: where f32 would lose what an operand or an exact sum holds.
pub(crate) fn ends_wide(spec: &GemmSpec) -> bool {
    let is_plain = spec.a.format.scheme == Scheme::None && spec.b.format.scheme == Scheme::None;
    spec.acc == Acc::I32 && is_plain || finishes_in_f64(&GemmSpec { acc: Acc::F32, ..*spec })
}

/// Whether scales or zero points of `matrix` are applied within sums of `inner` products.
pub(crate) fn varies(matrix: &Matrix, inner: u32) -> bool {
    matrix.format.has_zero() || matrix.format.scheme != Scheme::None && matrix.format.block().1 < inner
}

/// The same of A's scales, which it has in any case once it is rounded.
pub(crate) fn a_varies(spec: &GemmSpec) -> bool {
    is_rounded(spec) || varies(&spec.a, spec.k)
}

/// How codes of a type become unsigned bytes, by which offset, and what a step of these is worth.
pub(crate) fn lift(dtype: DType) -> Option<(Lift, i32, f32)> {
    let whole = |flip| Lift { flip, table: [0; 16] };
    let four = |value: fn(usize) -> u8| Lift { flip: 0, table: std::array::from_fn(value) };
    Some(match dtype {
        DType::I8 => (whole(0x80), 128, 1.0),
        DType::U8 => (whole(0), 0, 1.0),
        DType::U4 => (four(|c| c as u8), 0, 1.0),
        DType::I4 => (four(|c| c as u8 ^ 8), 8, 1.0),
        // Twice the value, which is 0 to 12 and its negatives.
        DType::E2m1 => {
            const TWICE: [u8; 8] = [0, 1, 2, 3, 4, 6, 8, 12];
            (four(|c| if c < 8 { 12 + TWICE[c] } else { 12 - TWICE[c - 8] }), 12, 0.5)
        }
        _ => return None,
    })
}

/// What a whole step of an operand is worth, but for scales.
pub(crate) fn unit(format: Format) -> f32 {
    lift(format.dtype).map_or(1.0, |(.., unit)| unit)
}

/// The loops for one height.
type Whole = unsafe fn(&Lift, Rows<'_>, &[Column<'_>], (usize, Far), &mut [i32]);
type Scaled = unsafe fn(&Lift, Rows<'_>, &[Column<'_>], (usize, Far), &mut [f32]);

/// How many columns meet rows of each of [`HEIGHTS`] at once; with more rows fewer, since registers hold their sums, and in turn
/// as few as keep the units busy.
const BREADTHS: [usize; 4] = [BROAD, 4, 4, 2];
const BREADTHS_IN_TURN: [usize; 4] = [1, 2, 2, 2];

/// What of A is in L1 at a time, in bytes; the less, the more of the columns read next has room there.
const NEAR: usize = 32 << 10;
const NEAR_IN_TURN: usize = 16 << 10;

/// One for each of [`HEIGHTS`].
enum Loops {
    Whole([Whole; 4]),
    Scaled([Scaled; 4]),
}

/// Sums of codes.
struct Codes<E> {
    spec: GemmSpec,
    reading: Reading,
    breadths: [usize; 4],
    lift: Lift,
    offset: i32,
    loops: Loops,
    a_varies: bool,
    b_varies: bool,
    /// Whether scales of A's one row multiply those of columns, so that the loop has only these.
    folds: bool,
    kind_of_end: PhantomData<E>,
}

impl<E> Codes<E> {
    fn new(spec: &GemmSpec, reading: Reading) -> Self {
        let (lift, offset, _) = lift(spec.b.dtype()).expect("a supported type");
        let (a_varies, b_varies) = (a_varies(spec), varies(&spec.b, spec.k));
        let folds = a_varies && spec.m == 1;
        // Questions within the loop would cost more than half of its time where there are many rows; where rows are scaled
        // too, or zero points are subtracted, that is most of the work in any case.
        let is_simple = (!a_varies || folds) && !spec.b.format.has_zero();
        let reading = if is_simple { reading } else { Reading::Beside };
        macro_rules! loops {
            ($width:ty, $breadths:ident) => {{
                const B: [usize; 4] = $breadths;
                if !a_varies && !b_varies {
                    Loops::Whole([
                        whole::<$width, 1, { B[0] }> as Whole,
                        whole::<$width, 2, { B[1] }>,
                        whole::<$width, 4, { B[2] }>,
                        whole::<$width, 8, { B[3] }>,
                    ])
                } else if is_simple {
                    Loops::Scaled([
                        scaled::<$width, 1, { B[0] }, true> as Scaled,
                        scaled::<$width, 2, { B[1] }, true>,
                        scaled::<$width, 4, { B[2] }, true>,
                        scaled::<$width, 8, { B[3] }, true>,
                    ])
                } else {
                    Loops::Scaled([
                        scaled::<$width, 1, { BREADTHS[0] }, false> as Scaled,
                        scaled::<$width, 2, { BREADTHS[1] }, false>,
                        scaled::<$width, 4, { BREADTHS[2] }, false>,
                        scaled::<$width, 8, { BREADTHS[3] }, false>,
                    ])
                }
            }};
        }
        let (loops, breadths) = match (reading, spec.b.dtype().bits()) {
            (Reading::Beside, 4) => (loops!(Four, BREADTHS), BREADTHS),
            (Reading::Beside, _) => (loops!(Eight, BREADTHS), BREADTHS),
            (Reading::InTurn, 4) => (loops!(Four, BREADTHS_IN_TURN), BREADTHS_IN_TURN),
            (Reading::InTurn, _) => (loops!(Eight, BREADTHS_IN_TURN), BREADTHS_IN_TURN),
        };
        Self {
            spec: *spec,
            reading,
            breadths,
            lift,
            offset,
            loops,
            a_varies,
            b_varies,
            folds,
            kind_of_end: PhantomData,
        }
    }

    fn steps(&self) -> usize {
        (self.spec.k as usize).div_ceil(STEP)
    }

    /// Lanes of all lines of a step.
    fn lanes(&self) -> usize {
        4 * self.spec.b.dtype().bits() as usize
    }

    /// Numbers of A made ready for `rows` rows: codes, lanes, scales, and each row's sum.
    fn a_lens(&self, rows: usize) -> [usize; 4] {
        let all = self.steps() * rows;
        match self.loops {
            Loops::Whole(_) => [all * STEP, 0, 0, self.steps() * rows],
            Loops::Scaled(_) => [all * STEP, all * self.lanes(), all * self.row_scales(), 0],
        }
    }

    /// Scales of a row and step: one for each lane, or an entry of a list for each [`SHARE`].
    fn row_scales(&self) -> usize {
        match (self.a_varies, self.folds) {
            (false, _) => 0,
            (true, false) => self.lanes(),
            (true, true) => STEP / SHARE,
        }
    }
}

impl<E: Tail> Dots for Codes<E> {
    type End = E;

    fn a_bytes(&self) -> usize {
        let [codes, lanes, scales, sums] = self.a_lens(HEIGHTS[columns::height((self.spec.m as usize).max(1))]);
        codes + 4 * (lanes + scales) + (4 * sums).next_multiple_of(64)
    }

    fn work_bytes(&self) -> usize {
        2 * (BROAD * self.steps() * STEP / SHARE * size_of::<f32>()).next_multiple_of(64)
            + MOST * columns::WIDE * size_of::<u32>()
    }

    fn prepare(&self, product: &Product<'_>, item: Item, a: &mut [u8]) {
        let rows = HEIGHTS[columns::height(item.rows.max(1))];
        let k = self.spec.k as usize;
        let lens = self.a_lens(rows);
        let (codes, rest) = columns::take::<i8>(a, lens[0]);
        let (lanes, rest) = columns::take::<u32>(rest, lens[1]);
        let (scales, rest) = columns::take::<f32>(rest, lens[2]);
        let (sums, _) = columns::take::<u32>(rest, lens[3]);
        let (codes, lanes) = (Disjoint::of(codes), Disjoint::of(lanes));
        let (scales, sums) = (Disjoint::of(scales), Disjoint::of(sums));
        let (bits, count, each) = (self.spec.b.dtype().bits() as usize, self.lanes(), self.row_scales());
        threads::for_each(self.steps() * rows, |i| {
            let (step, row) = (i / rows, i % rows);
            let inner = step * STEP..((step + 1) * STEP).min(k);
            let (mut line, mut list) = ([0_i8; STEP], [0.0; STEP / SHARE]);
            if !is_rounded(&self.spec) {
                line = bytes::codes(product, item, row, inner.clone());
            } else if row < item.rows {
                let (mut numbers, mut scales) = ([0.0_f32; STEP], [0.0; STEP / rounded::RUN]);
                let some = &mut numbers[..inner.len()];
                product.a.row(item.row_batch, item.row + row, inner.clone(), Scaling::Left, some);
                // SAFETY: `supports` asked for the features.
                unsafe { rounded::round(numbers.as_chunks().0, line.as_chunks_mut().0, &mut scales) };
                list = std::array::from_fn(|i| scales[i * SHARE / rounded::RUN]);
            }
            // SAFETY: each step of each row once.
            let codes = unsafe { codes.part(i * STEP..(i + 1) * STEP) };
            match bits {
                8 => codes.copy_from_slice(&line),
                _ => codes.iter_mut().enumerate().for_each(|(at, code)| *code = line[byte_dots::place(bits, at)]),
            }
            if let Loops::Whole(_) = self.loops {
                // SAFETY: as above.
                let sum = unsafe { sums.part(i..i + 1) };
                sum[0] = line.into_iter().map(i32::from).sum::<i32>() as u32;
                return;
            }
            // SAFETY: as above.
            let lanes = unsafe { lanes.part(i * count..(i + 1) * count) };
            for (lane, codes) in lanes.iter_mut().zip(line.chunks_exact(STEP / count)) {
                let sum = codes.iter().copied().map(i32::from).sum::<i32>();
                let is_shifted = self.spec.b.format.has_zero();
                *lane = if is_shifted { (sum as f32).to_bits() } else { (-self.offset * sum) as u32 };
            }
            if self.a_varies {
                if row < item.rows && !is_rounded(&self.spec) {
                    // SAFETY: `supports` asked for the features.
                    unsafe {
                        Lists::new(&product.a, item.row_batch, inner.start, SHARE).scales(item.row + row, &mut list)
                    };
                }
                // SAFETY: as above.
                let scales = unsafe { scales.part(i * each..(i + 1) * each) };
                for (lane, scale) in scales.iter_mut().enumerate() {
                    *scale = list[lane * list.len() / each];
                }
            }
        });
    }

    fn sums(&self, task: Task<'_, '_>, sums: &mut [E], ld: usize, work: &mut [u8]) {
        let Task { product, item, columns, a } = task;
        let (b, k, count) = (&product.b, self.spec.k as usize, self.lanes());
        let has_zero = b.matrix.format.has_zero();
        let height = columns::height(item.rows.max(1));
        let rows = HEIGHTS[height];
        let lens = self.a_lens(rows);
        let (codes, rest) = a.split_at(lens[0]);
        let (lanes, rest) = rest.split_at(4 * lens[1]);
        let (row_scales, rest) = rest.split_at(4 * lens[2]);
        let row_sums = &columns::numbers::<u32>(rest)[..lens[3]];
        let (codes, lanes, row_scales) =
            (columns::numbers(codes), columns::numbers(lanes), columns::numbers(row_scales));
        let list = self.steps() * STEP / SHARE;
        let (scales, rest) = columns::take::<f32>(work, BROAD * list);
        let (zeros, rest) = columns::take::<f32>(rest, BROAD * list);
        let (totals, _) = columns::take::<u32>(rest, MOST * columns.len());
        scales.fill(1.0);
        totals.fill(0);
        for sums in sums.chunks_mut(ld).take(item.rows) {
            sums[..columns.len()].fill(E::ZERO);
        }
        let near = if self.reading == Reading::Beside { NEAR } else { NEAR_IN_TURN };
        let most = (near * self.steps() / (codes.len() + 4 * (lanes.len() + row_scales.len())).max(1)).max(1);
        for first in (0..self.steps()).step_by(most) {
            let steps = first..(first + most).min(self.steps());
            let inner = steps.start * STEP..(steps.end * STEP).min(k);
            let part = |each: usize| steps.start * rows * each..steps.end * rows * each;
            let a = Rows {
                codes: &codes[part(STEP)],
                lanes: if lanes.is_empty() { &[] } else { &lanes[part(count)] },
                scales: if self.folds { &[] } else { &row_scales[part(self.row_scales())] },
            };
            let folded = if self.folds { &row_scales[part(STEP / SHARE)] } else { &[] };
            let shares = steps.len() * STEP / SHARE;
            let from = Lists::new(b, item.b, inner.start, SHARE);
            let of_columns = columns::Codes::of(b, item.b, inner.clone());
            let breadth = self.breadths[height];
            // Eight rows compute for so long that lines asked for twice cost more than they bring.
            let ahead = |o: usize| match rows {
                MOST => (columns::ahead(self.reading, breadth, of_columns.step(), inner.len() == k), Far::NONE),
                _ => of_columns.ahead(self.reading, o, breadth, inner.len() == k),
            };
            let loops = match &self.loops {
                Loops::Scaled(loops) => loops,
                Loops::Whole(loops) => {
                    // Made once: written and copied for each loop, they kept it waiting for the one before.
                    let mut some = [Column { codes: &[], scales: &[], zeros: &[] }; BROAD];
                    for o in columns.clone().step_by(breadth) {
                        for (c, column) in some[..breadth].iter_mut().enumerate() {
                            // Past the last column, that one again.
                            column.codes = of_columns.column((o + c).min(columns.end - 1));
                        }
                        let mut of_rows = [0; SUMS];
                        // SAFETY: `supports` asked for the features.
                        unsafe { loops[height](&self.lift, a, &some[..breadth], ahead(o), &mut of_rows) };
                        let places = o - columns.start..columns.len();
                        for (j, of_rows) in places.zip(of_rows.chunks_exact(rows).take(breadth)) {
                            for (total, &more) in totals.chunks_mut(columns.len()).zip(of_rows) {
                                total[j] = total[j].wrapping_add(more as u32);
                            }
                        }
                    }
                    continue;
                }
            };
            for o in columns.clone().step_by(breadth) {
                let mut some = [Column { codes: &[], scales: &[], zeros: &[] }; BROAD];
                let lists = scales.chunks_exact_mut(list).zip(zeros.chunks_exact_mut(list));
                for (c, (column, (scales, zeros))) in some[..breadth].iter_mut().zip(lists).enumerate() {
                    // Past the last column, that one again.
                    let o = (o + c).min(columns.end - 1);
                    // SAFETY: `supports` asked for the features.
                    unsafe {
                        if self.b_varies {
                            from.scales(o, &mut scales[..shares]);
                        }
                        fold(folded, self.b_varies, &mut scales[..shares]);
                        if has_zero {
                            from.zeros(o, &mut zeros[..shares]);
                            zeros[..shares].iter_mut().for_each(|zero| *zero += self.offset as f32);
                        }
                    }
                    let codes = of_columns.column(o);
                    let zeros = if has_zero { &zeros[..shares] } else { &[] };
                    *column = Column { codes, scales: &scales[..shares], zeros };
                }
                let mut of_rows = [0.0; SUMS];
                // SAFETY: as above.
                unsafe { loops[height](&self.lift, a, &some[..breadth], ahead(o), &mut of_rows) };
                let places = o - columns.start..columns.len();
                for (j, of_rows) in places.zip(of_rows.chunks_exact(rows).take(breadth)) {
                    for (sums, &more) in sums.chunks_mut(ld).zip(&of_rows[..item.rows]) {
                        sums[j] += E::from_f32(more);
                    }
                }
            }
        }
        if let Loops::Whole(_) = self.loops {
            for (r, (sums, totals)) in sums.chunks_mut(ld).take(item.rows).zip(totals.chunks(columns.len())).enumerate()
            {
                let of_row = row_sums.iter().skip(r).step_by(rows).fold(0_i32, |a, &b| a.wrapping_add(b as i32));
                let taken = self.offset.wrapping_mul(of_row);
                for (sum, &total) in sums.iter_mut().zip(totals) {
                    *sum = E::from_f64(f64::from((total as i32).wrapping_sub(taken)));
                }
            }
        }
        let unit = E::from_f32(unit(self.spec.a.format) * unit(self.spec.b.format));
        let mut factors = [E::ONE; MOST];
        if !self.a_varies {
            product.a.scales_of(item.row_batch, item.row..item.row + item.rows, 0, &mut factors[..item.rows]);
        } else if !product.a.global.is_empty() {
            factors.fill(numbers::get(DType::F32, product.a.global, 0));
        }
        columns::scale(b, item, columns, self.b_varies, |r| factors[r] * unit, sums, ld);
    }
}
