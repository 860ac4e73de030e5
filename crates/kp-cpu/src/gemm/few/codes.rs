//! Few rows of codes by contiguous columns of codes: what makes rows ready, which loops multiply them, and what is done with the
//! sums, whichever instructions these are made of.

use super::{
    apart::{AtOnce, are_apart},
    avx2_bytes,
    byte_dots::{self, Column, Eight, Four, Lift, Rows, scaled, whole},
    bytes::{self, fold_anywhere},
    columns::{self, BROAD, Dots, HEIGHTS, MOST, Reading, Task},
    dots::{SHARE, STEP, SUMS},
    far::Far,
    lists::Lists,
};
use crate::{
    act::Tail,
    gemm::{
        product::{Item, Product},
        rounded::{self, is_rounded},
        side::{Scaling, varies},
        vnni_few_rows::{a_varies, lift_for, unit},
    },
    kernel::Disjoint,
    numbers, threads,
};
use kp_hal::{DType, op::GemmSpec};

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

/// How many with vectors half as wide, of which there are half as many.
const BREADTHS_AVX2: [usize; 4] = [2, 2, 2, 1];

/// Which instructions loops are made of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Set {
    Avx512,
    /// AVX2 with AVX-VNNI, and without.
    Vnni,
    Plain,
}

/// One for each of [`HEIGHTS`].
enum Loops {
    Whole([Whole; 4]),
    Scaled([Scaled; 4]),
}

/// Sums of codes.
pub(crate) struct Codes {
    spec: GemmSpec,
    reading: Reading,
    /// Whether columns that are read at once are far from each other.
    is_apart: bool,
    breadths: [usize; 4],
    lift: Lift,
    offset: i32,
    loops: Loops,
    a_varies: bool,
    b_varies: bool,
    /// Whether scales of A's one row multiply those of columns, so that the loop has only these.
    folds: bool,
}

impl Codes {
    pub(crate) fn new(spec: &GemmSpec, reading: Reading, set: Set) -> Self {
        let (lift, offset) = lift_for(spec.a.dtype(), spec.b.dtype());
        let signed = spec.a.dtype() != DType::U8;
        let (a_varies, b_varies) = (a_varies(spec), varies(&spec.b, spec.k));
        let folds = a_varies && spec.m == 1;
        // Questions within the loop would cost more than half of its time where there are many rows; where rows are scaled
        // too, or zero points are subtracted, that is most of the work in any case.
        let is_simple = (!a_varies || folds) && !spec.b.format.has_zero();
        let reading = if is_simple || set != Set::Avx512 { reading } else { Reading::Beside };
        macro_rules! half {
            (@whole $width:ty, $whole:ident) => {
                Loops::Whole([
                    avx2_bytes::$whole::<$width, 1, { BREADTHS_AVX2[0] }> as Whole,
                    avx2_bytes::$whole::<$width, 2, { BREADTHS_AVX2[1] }>,
                    avx2_bytes::$whole::<$width, 4, { BREADTHS_AVX2[2] }>,
                    avx2_bytes::$whole::<$width, 8, { BREADTHS_AVX2[3] }>,
                ])
            };
            ($whole:ident, $scaled:ident) => {
                match (spec.b.dtype().bits(), a_varies || b_varies) {
                    (8, true) => Loops::Scaled([
                        avx2_bytes::$scaled::<1, { BREADTHS_AVX2[0] }> as Scaled,
                        avx2_bytes::$scaled::<2, { BREADTHS_AVX2[1] }>,
                        avx2_bytes::$scaled::<4, { BREADTHS_AVX2[2] }>,
                        avx2_bytes::$scaled::<8, { BREADTHS_AVX2[3] }>,
                    ]),
                    (8, false) => half!(@whole Eight, $whole),
                    (_, varies) => {
                        assert!(!varies, "avx2_four_bit_codes has scales");
                        half!(@whole Four, $whole)
                    }
                }
            };
        }
        macro_rules! whole {
            ($width:ty, $breadths:ident, $signed:literal) => {
                Loops::Whole([
                    whole::<$width, 1, { $breadths[0] }, $signed> as Whole,
                    whole::<$width, 2, { $breadths[1] }, $signed>,
                    whole::<$width, 4, { $breadths[2] }, $signed>,
                    whole::<$width, 8, { $breadths[3] }, $signed>,
                ])
            };
        }
        macro_rules! loops {
            ($width:ty, $breadths:ident) => {{
                const B: [usize; 4] = $breadths;
                if !a_varies && !b_varies && signed {
                    whole!($width, B, true)
                } else if !a_varies && !b_varies {
                    whole!($width, B, false)
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
        let (loops, breadths) = match (set, reading, spec.b.dtype().bits()) {
            (Set::Avx512, Reading::InTurn, 4) => (loops!(Four, BREADTHS_IN_TURN), BREADTHS_IN_TURN),
            (Set::Avx512, Reading::InTurn, _) => (loops!(Eight, BREADTHS_IN_TURN), BREADTHS_IN_TURN),
            (Set::Avx512, _, 4) => (loops!(Four, BREADTHS), BREADTHS),
            (Set::Avx512, ..) => (loops!(Eight, BREADTHS), BREADTHS),
            (Set::Vnni, ..) => (half!(vnni_whole, vnni_scaled), BREADTHS_AVX2),
            (Set::Plain, ..) => (half!(plain_whole, plain_scaled), BREADTHS_AVX2),
        };
        // Those of AVX2 read one column after the other.
        let is_apart = set == Set::Avx512 && are_apart(spec, reading);
        Self { spec: *spec, reading, is_apart, breadths, lift, offset, loops, a_varies, b_varies, folds }
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

impl<E: Tail> Dots<E> for Codes {
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
                rounded::round_anywhere(numbers.as_chunks().0, line.as_chunks_mut().0, &mut scales);
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
                sum[0] = match self.spec.a.dtype() {
                    DType::U8 => line.into_iter().map(|code| u32::from(code as u8)).sum(),
                    _ => line.into_iter().map(i32::from).sum::<i32>() as u32,
                };
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
                    let lists = Lists::new(&product.a, item.row_batch, inner.start, SHARE);
                    lists.scales(item.row + row, &mut list);
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
            let sets = AtOnce::new(columns.clone(), breadth, self.is_apart);
            let ahead = |o: usize| match rows {
                _ if self.is_apart => (columns::AHEAD, Far::NONE),
                // Eight rows compute for so long that lines asked for twice cost more than they bring.
                MOST if self.reading != Reading::InOrder => {
                    (columns::ahead(self.reading, breadth, of_columns.step(), inner.len() == k), Far::NONE)
                }
                _ => of_columns.ahead(self.reading, o, breadth, inner.len() == k),
            };
            let loops = match &self.loops {
                Loops::Scaled(loops) => loops,
                Loops::Whole(loops) => {
                    // Made once: written and copied for each loop, they kept it waiting for the one before.
                    let mut some = [Column { codes: &[], scales: &[], zeros: &[] }; BROAD];
                    for o in sets.firsts() {
                        for (c, column) in some[..breadth].iter_mut().enumerate() {
                            column.codes = of_columns.column(sets.column(o, c));
                        }
                        let mut of_rows = [0; SUMS];
                        // SAFETY: `supports` asked for the features.
                        unsafe { loops[height](&self.lift, a, &some[..breadth], ahead(o), &mut of_rows) };
                        for (j, of_rows) in sets.places(o).zip(of_rows.chunks_exact(rows)) {
                            for (total, &more) in totals.chunks_mut(columns.len()).zip(of_rows) {
                                total[j] = total[j].wrapping_add(more as u32);
                            }
                        }
                    }
                    continue;
                }
            };
            for o in sets.firsts() {
                let mut some = [Column { codes: &[], scales: &[], zeros: &[] }; BROAD];
                let lists = scales.chunks_exact_mut(list).zip(zeros.chunks_exact_mut(list));
                for (c, (column, (scales, zeros))) in some[..breadth].iter_mut().zip(lists).enumerate() {
                    let o = sets.column(o, c);
                    if self.b_varies {
                        from.scales(o, &mut scales[..shares]);
                    }
                    fold_anywhere(folded, self.b_varies, &mut scales[..shares]);
                    if has_zero {
                        from.zeros(o, &mut zeros[..shares]);
                        zeros[..shares].iter_mut().for_each(|zero| *zero += self.offset as f32);
                    }
                    let codes = of_columns.column(o);
                    let zeros = if has_zero { &zeros[..shares] } else { &[] };
                    *column = Column { codes, scales: &scales[..shares], zeros };
                }
                let mut of_rows = [0.0; SUMS];
                // SAFETY: as above.
                unsafe { loops[height](&self.lift, a, &some[..breadth], ahead(o), &mut of_rows) };
                for (j, of_rows) in sets.places(o).zip(of_rows.chunks_exact(rows)) {
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
        columns::scale(b, item, columns, self.b_varies, &|r| factors[r] * unit, sums, ld);
    }
}
