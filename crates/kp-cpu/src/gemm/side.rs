//! An operand of a product as the product sees it, and how pieces of it become numbers.

use super::tile::Wanted;
use crate::{
    numbers::{self, Real},
    simd::vector::transpose::Transpose,
};
use kp_hal::{
    DType,
    op::{Matrix, Order, ScaleLayout, Scheme},
};
use std::ops::Range;

/// Most inner elements that are unpacked at once.
pub(crate) const LINE: usize = 512;

/// Inner elements of a square's worth of outer rows that are turned at once: from L1, at no distance that would leave
/// them few places there.
const TURN: usize = 256;
const TURN_LD: usize = TURN + 16;

/// Most outer rows that are turned together.
const TURN_ROWS: usize = 16;

/// Scales of an outer row that are read together.
const SCALES: usize = 32;

/// One operand: `outer` rows (A's rows, B's columns) of `inner` elements, which are summed over.
#[derive(Clone, Copy)]
pub(crate) struct Side<'a> {
    pub(crate) matrix: Matrix,
    /// Whether outer rows are the matrix's columns, as B's are.
    pub(crate) columns: bool,
    pub(crate) outer: u32,
    pub(crate) inner: u32,
    pub(crate) codes: &'a [u8],
    pub(crate) scales: &'a [u8],
    pub(crate) zeros: &'a [u8],
    /// The one f32 on top of all scales, or nothing.
    pub(crate) global: &'a [u8],
    /// Positions of the kept elements if the operand is sparse 2:4.
    pub(crate) meta: Option<&'a [u8]>,
}

/// Whether a piece is unpacked with its scales, or as codes less zero points, for integer sums.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scaling {
    Applied,
    Left,
}

impl Side<'_> {
    /// Whether the elements of an outer row lie next to each other.
    pub(crate) fn inner_is_contiguous(&self) -> bool {
        match self.matrix.order {
            Order::Row => !self.columns,
            Order::Col => self.columns,
            Order::Panel { .. } => false,
        }
    }

    /// Whether outer rows lie next to each other, element by element.
    pub(crate) fn outer_is_contiguous(&self) -> bool {
        match self.matrix.order {
            Order::Row => self.columns,
            Order::Col => !self.columns,
            Order::Panel { .. } => false,
        }
    }

    /// Whether outer rows `outer` lie next to each other: as [`Self::outer_is_contiguous`] says, or within one panel.
    pub(super) fn lie_across(&self, outer: &Range<usize>) -> bool {
        match self.matrix.order {
            Order::Panel { width, depth: 1 } if !outer.is_empty() => {
                outer.start / usize::from(width) == (outer.end - 1) / usize::from(width)
            }
            _ => self.outer_is_contiguous(),
        }
    }

    /// Where the codes of outer rows `outer` and inner elements `inner` lie, if in runs.
    pub(crate) fn wanted(&self, batch: usize, outer: &Range<usize>, inner: &Range<usize>) -> Option<Wanted> {
        let dtype = self.matrix.dtype();
        let ld = match self.matrix.order {
            Order::Panel { width, .. } => width.into(),
            _ => self.matrix.ld as usize,
        };
        let (run, count) = match (self.inner_is_contiguous(), self.lie_across(outer)) {
            _ if self.meta.is_some() => return None,
            (true, _) => (inner.len(), outer.len()),
            (_, true) => (outer.len(), inner.len()),
            _ => return None,
        };
        let bytes = |elements: usize| dtype.bytes(elements as u64) as usize;
        let at = self.codes.as_ptr().wrapping_add(bytes(self.place(batch, outer.start, inner.start)));
        // Runs without gaps, as in a panel, are one.
        let (run, count) = if run == ld { (run * count, 1) } else { (run, count) };
        Some(Wanted { at, bytes: bytes(run), count, step: bytes(ld) })
    }

    /// Unpacks outer rows `outer`, at most `width`, and inner elements `inner` to `out[i][o]`; rows that are missing
    /// to `width` become zeros.
    #[inline(always)]
    pub(crate) fn pack<I: Transpose<R>, R: Real>(
        &self,
        batch: usize,
        outer: Range<usize>,
        inner: Range<usize>,
        width: usize,
        scaling: Scaling,
        out: &mut [R],
    ) {
        if inner.is_empty() {
            return;
        }
        let rows = outer.len();
        if rows < width {
            out.fill(R::ZERO);
        }
        if self.lie_across(&outer) {
            self.lines_across(batch, outer.clone(), inner.clone(), width, out);
            if self.meta.is_none() && self.matrix.format.scheme != Scheme::None {
                self.scale_columns(batch, outer, inner, width, scaling, out);
            }
        } else if let Some((numbers, ld)) = self.numbers_in_rows::<R>(batch) {
            let from = &numbers[outer.start * ld + inner.start..];
            turn::<I, R>((from, ld), (rows, inner.len()), (out, width));
        } else {
            let mut lines = [R::ZERO; TURN_ROWS * TURN_LD];
            for part in inner.clone().step_by(TURN) {
                let range = part..(part + TURN).min(inner.end);
                let out = &mut out[(part - inner.start) * width..];
                for first in (0..rows).step_by(TURN_ROWS) {
                    let some = (rows - first).min(TURN_ROWS);
                    for (o, line) in lines.chunks_exact_mut(TURN_LD).take(some).enumerate() {
                        let (o, line) = (outer.start + first + o, &mut line[..range.len()]);
                        self.line(batch, o, range.clone(), scaling, line);
                        // Blocks are too short for a loop of unknown length to become vector code that pays.
                        self.each_block(batch, o, range.clone(), scaling, line, |x, scale, zero| {
                            let mut vectors = x.chunks_exact_mut(I::N);
                            for x in &mut vectors {
                                let moved = I::minus(I::load(x), I::splat(zero));
                                I::store(I::times(moved, I::splat(scale)), x);
                            }
                            vectors.into_remainder().iter_mut().for_each(|x| *x = (*x - zero) * scale);
                        });
                    }
                    turn::<I, R>((&lines, TURN_LD), (some, range.len()), (&mut out[first..], width));
                }
            }
        }
    }

    /// Unpacks outer rows `outer` and at most `LINE` inner elements `inner` to `out[o][i]`, rows `ld` apart.
    #[inline(always)]
    pub(crate) fn pack_rows<I: Transpose<R>, R: Real>(
        &self,
        batch: usize,
        outer: Range<usize>,
        inner: Range<usize>,
        ld: usize,
        scaling: Scaling,
        out: &mut [R],
    ) {
        if inner.is_empty() {
            return;
        }
        if let Some((numbers, from)) = self.numbers_in_rows::<R>(batch) {
            for (o, out) in outer.zip(out.chunks_mut(ld)) {
                out[..inner.len()].copy_from_slice(&numbers[o * from..][inner.clone()]);
            }
            return;
        }
        if self.outer_is_contiguous() && self.meta.is_none() {
            let mut lines = [R::ZERO; TURN_ROWS * TURN_LD];
            for (o, first) in outer.clone().step_by(TURN).enumerate() {
                let some = first..(first + TURN).min(outer.end);
                for part in inner.clone().step_by(TURN_ROWS) {
                    let range = part..(part + TURN_ROWS).min(inner.end);
                    self.lines_across(batch, some.clone(), range.clone(), TURN_LD, &mut lines);
                    let out = &mut out[o * TURN * ld + part - inner.start..];
                    turn::<I, R>((&lines, TURN_LD), (range.len(), some.len()), (out, ld));
                }
            }
            for (o, out) in outer.zip(out.chunks_mut(ld)) {
                self.each_block(batch, o, inner.clone(), scaling, &mut out[..inner.len()], |x, scale, zero| {
                    x.iter_mut().for_each(|x| *x = (*x - zero) * scale);
                });
            }
            return;
        }
        for (o, out) in outer.zip(out.chunks_mut(ld)) {
            self.row(batch, o, inner.clone(), scaling, &mut out[..inner.len()]);
        }
    }

    /// Unpacks runs of outer rows, which lie next to each other, to lines `ld` apart; no scales.
    #[inline(always)]
    fn lines_across<R: Real>(&self, batch: usize, outer: Range<usize>, inner: Range<usize>, ld: usize, out: &mut [R]) {
        // Where lines are is linear in `inner`, but to compute it for each would take longer than to widen one of a narrow panel.
        let first = self.place(batch, outer.start, inner.start);
        let step = if inner.len() > 1 { self.place(batch, outer.start, inner.start + 1) - first } else { 0 };
        // Lines without gaps on either side are one.
        let is_one = step == outer.len() && step == ld;
        let (len, count) = if is_one { (inner.len() * ld, 1) } else { (outer.len(), inner.len()) };
        let lines = (0..count).map(|i| first + i * step).zip(out.chunks_mut(ld.max(len)));
        macro_rules! each {
            ($bytes:literal, |$x:ident| $number:expr) => {
                for (first, out) in lines {
                    let codes = &self.codes[first * $bytes..(first + len) * $bytes];
                    for (out, &$x) in out.iter_mut().zip(codes.as_chunks::<$bytes>().0) {
                        *out = $number;
                    }
                }
            };
        }
        // The types that are little work, without a call for every line.
        match self.matrix.dtype() {
            DType::F32 => each!(4, |x| R::from_f32(f32::from_le_bytes(x))),
            DType::F64 => each!(8, |x| R::from_f64(f64::from_le_bytes(x))),
            DType::Bf16 => each!(2, |x| R::from_f32(f32::from_bits(u32::from(u16::from_le_bytes(x)) << 16))),
            dtype => lines.for_each(|(first, out)| numbers::read(dtype, self.codes, first, &mut out[..len])),
        }
    }

    /// Applies scales and zero points to what `pack` has unpacked.
    #[inline(always)]
    pub(crate) fn scale_columns<R: Real>(
        &self,
        batch: usize,
        outer: Range<usize>,
        inner: Range<usize>,
        width: usize,
        scaling: Scaling,
        out: &mut [R],
    ) {
        if scaling == Scaling::Left && !self.matrix.format.has_zero() {
            return;
        }
        // As many rows as any panel has, so that none of it is allocated.
        let (mut scales, mut zeros) = ([R::ONE; LINE], [R::ZERO; LINE]);
        for first in outer.clone().step_by(LINE) {
            let some = first..(first + LINE).min(outer.end);
            let lane = first - outer.start;
            for (block, part) in self.blocks(inner.clone()) {
                if scaling == Scaling::Applied {
                    self.scales_of(batch, some.clone(), block, &mut scales[..some.len()]);
                }
                self.zeros_of(batch, some.clone(), block, &mut zeros[..some.len()]);
                let rows = &mut out[(part.start - inner.start) * width..(part.end - inner.start) * width];
                for row in rows.chunks_exact_mut(width) {
                    let row = &mut row[lane..lane + some.len()];
                    for ((x, &scale), &zero) in row.iter_mut().zip(&scales).zip(&zeros) {
                        *x = (*x - zero) * scale;
                    }
                }
            }
        }
    }

    /// Unpacks inner elements `inner` of outer row `o`; scales are applied only to sparse rows, whose zeros have none.
    #[inline(always)]
    fn line<R: Real>(&self, batch: usize, o: usize, inner: Range<usize>, scaling: Scaling, out: &mut [R]) {
        let dtype = self.matrix.dtype();
        match (self.meta, self.matrix.order) {
            (Some(meta), _) => self.sparse_line(meta, batch, o, inner, scaling, out),
            (None, Order::Panel { depth, .. }) => {
                let depth = usize::from(depth);
                let mut i = inner.start;
                while i < inner.end {
                    let end = (i / depth * depth + depth).min(inner.end);
                    let run = &mut out[i - inner.start..end - inner.start];
                    numbers::read(dtype, self.codes, self.place(batch, o, i), run);
                    i = end;
                }
            }
            _ if self.inner_is_contiguous() => {
                numbers::read(dtype, self.codes, self.place(batch, o, inner.start), out);
            }
            _ => {
                for (i, out) in inner.zip(out) {
                    *out = numbers::get(dtype, self.codes, self.place(batch, o, i));
                }
            }
        }
    }

    /// Unpacks inner elements `inner` of outer row `o` with everything that belongs to them.
    #[inline(always)]
    pub(crate) fn row<R: Real>(&self, batch: usize, o: usize, inner: Range<usize>, scaling: Scaling, out: &mut [R]) {
        self.line(batch, o, inner.clone(), scaling, out);
        self.each_block(batch, o, inner, scaling, out, |x, scale, zero| {
            x.iter_mut().for_each(|x| *x = (*x - zero) * scale);
        });
    }

    /// Gives `apply` each block's part of a line, its scale and its zero point, if there are such.
    #[inline(always)]
    fn each_block<R: Real>(
        &self,
        batch: usize,
        o: usize,
        inner: Range<usize>,
        scaling: Scaling,
        out: &mut [R],
        apply: impl Fn(&mut [R], R, R),
    ) {
        if self.meta.is_some() || self.matrix.format.scheme == Scheme::None {
            return;
        }
        let block = self.matrix.format.block().1 as usize;
        let all = inner.start / block..inner.end.div_ceil(block);
        for first in all.clone().step_by(SCALES) {
            let some = first..(first + SCALES).min(all.end);
            let (mut scales, mut zeros) = ([R::ONE; SCALES], [R::ZERO; SCALES]);
            self.scales_along(batch, o, some.clone(), scaling, &mut scales[..some.len()], &mut zeros[..some.len()]);
            for ((b, &scale), &zero) in some.zip(&scales).zip(&zeros) {
                let part = (b * block).max(inner.start)..(b + 1).saturating_mul(block).min(inner.end);
                apply(&mut out[part.start - inner.start..part.end - inner.start], scale, zero);
            }
        }
    }

    /// Scales, if they are applied, and zero points of inner blocks `blocks` of outer row `o`.
    fn scales_along<R: Real>(
        &self,
        batch: usize,
        o: usize,
        blocks: Range<usize>,
        scaling: Scaling,
        scales: &mut [R],
        zeros: &mut [R],
    ) {
        let format = self.matrix.format;
        if format.scales != ScaleLayout::Inner || format.scheme == Scheme::Tensor {
            for (b, (scale, zero)) in blocks.zip(scales.iter_mut().zip(zeros)) {
                (*scale, *zero) = self.scale_and_zero(batch, o, b, scaling);
            }
            return;
        }
        // They lie side by side.
        let first = self.scale_place(batch, o, blocks.start);
        if let (Some(dtype), Scaling::Applied) = (format.scale_dtype(), scaling) {
            numbers::read(dtype, self.scales, first, scales);
            if !self.global.is_empty() {
                let global: R = numbers::get(DType::F32, self.global, 0);
                scales.iter_mut().for_each(|scale| *scale *= global);
            }
        }
        if format.has_zero() {
            numbers::read(DType::U8, self.zeros, first, zeros);
        }
    }

    fn sparse_line<R: Real>(
        &self,
        meta: &[u8],
        batch: usize,
        o: usize,
        inner: Range<usize>,
        scaling: Scaling,
        out: &mut [R],
    ) {
        let row = &meta[(batch * self.outer as usize + o) * (self.inner as usize / 8)..];
        let block = (self.matrix.format.block().1 as usize).min(self.inner.max(1) as usize);
        let codes = self.place(batch, o, 0);
        out.fill(R::ZERO);
        for group in inner.start / 4..inner.end.div_ceil(4) {
            let positions = row[group / 2] >> (group % 2 * 4);
            for kept in 0..2 {
                let i = group * 4 + usize::from(positions >> (2 * kept) & 3);
                if !inner.contains(&i) {
                    continue;
                }
                let code: R = numbers::get(self.matrix.dtype(), self.codes, codes + 2 * group + kept);
                let (scale, zero) = self.scale_and_zero(batch, o, i / block, scaling);
                out[i - inner.start] = (code - zero) * scale;
            }
        }
    }

    /// Inner element `i` of outer rows from `first` on, which lie next to each other, without scales.
    #[inline(always)]
    pub(crate) fn codes_across<R: Real>(&self, batch: usize, first: usize, i: usize, out: &mut [R]) {
        numbers::read(self.matrix.dtype(), self.codes, self.place(batch, first, i), out);
    }

    fn scale_and_zero<R: Real>(&self, batch: usize, o: usize, block: usize, scaling: Scaling) -> (R, R) {
        let (mut scale, mut zero) = ([R::ONE], [R::ZERO]);
        if scaling == Scaling::Applied {
            self.scales_of(batch, o..o + 1, block, &mut scale);
        }
        self.zeros_of(batch, o..o + 1, block, &mut zero);
        (scale[0], zero[0])
    }

    /// The inner blocks of one scale that `inner` touches, with the part of `inner` in each.
    pub(crate) fn blocks(&self, inner: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> {
        let block = self.matrix.format.block().1 as usize;
        let count = if inner.is_empty() { 0..0 } else { inner.start / block..(inner.end - 1) / block + 1 };
        count.map(move |b| (b, (b * block).max(inner.start)..(b + 1).saturating_mul(block).min(inner.end)))
    }

    /// The scales of outer rows `outer` in inner block `block`, with the global one; 1 if there are none.
    pub(crate) fn scales_of<R: Real>(&self, batch: usize, outer: Range<usize>, block: usize, out: &mut [R]) {
        let format = self.matrix.format;
        // Nothing has no scales either.
        let Some(dtype) = format.scale_dtype().filter(|_| self.inner > 0) else { return out.fill(R::ONE) };
        let out = &mut out[..outer.len()];
        let in_a_run = match format.scales {
            ScaleLayout::Inner => format.blocks(self.outer, self.inner).1 == 1,
            ScaleLayout::Outer => true,
            ScaleLayout::Tiles => false,
        };
        if in_a_run && format.scheme != Scheme::Tensor && format.block().0 == 1 && !outer.is_empty() {
            numbers::read(dtype, self.scales, self.scale_place(batch, outer.start, block), out);
        } else {
            for (o, out) in outer.zip(&mut *out) {
                *out = numbers::get(dtype, self.scales, self.scale_place(batch, o, block));
            }
        }
        if !self.global.is_empty() {
            let global: R = numbers::get(DType::F32, self.global, 0);
            out.iter_mut().for_each(|scale| *scale *= global);
        }
    }

    /// The zero points of outer rows `outer` in inner block `block`; 0 if there are none.
    pub(crate) fn zeros_of<R: Real>(&self, batch: usize, outer: Range<usize>, block: usize, out: &mut [R]) {
        if !self.matrix.format.has_zero() {
            return out.fill(R::ZERO);
        }
        for (o, out) in outer.zip(out) {
            *out = R::from_f32(self.zeros[self.scale_place(batch, o, block)].into());
        }
    }

    fn scale_place(&self, batch: usize, o: usize, block: usize) -> usize {
        let format = self.matrix.format;
        if format.scheme == Scheme::Tensor {
            return 0;
        }
        let shape = (self.outer, self.inner);
        let place = (o as u32 / format.block().0, block as u32);
        batch * format.scale_count(shape.0, shape.1) as usize + format.scale_index(place, shape) as usize
    }

    /// Where element (`o`, `i`) lies among the codes; `i` counts kept elements if sparse.
    pub(crate) fn place(&self, batch: usize, o: usize, i: usize) -> usize {
        let (row, col, rows) = if self.columns { (i, o, self.inner) } else { (o, i, self.outer) };
        batch * self.matrix.stride as usize + self.matrix.index(row as u32, col as u32, rows) as usize
    }
}

/// Turns `rows` × `columns` numbers to `columns` × `rows`; both with the distance between their rows.
#[inline(always)]
pub(super) fn turn<I: Transpose<R>, R: Real>(
    (from, from_ld): (&[R], usize),
    (rows, columns): (usize, usize),
    (to, ld): (&mut [R], usize),
) {
    let whole = |len: usize| len / I::N * I::N;
    for j in (0..whole(columns)).step_by(I::N) {
        for i in (0..whole(rows)).step_by(I::N) {
            I::transpose(&from[i * from_ld + j..], from_ld, &mut to[j * ld + i..], ld);
        }
    }
    for i in 0..rows {
        let done = if i < whole(rows) { whole(columns) } else { 0 };
        for j in done..columns {
            to[j * ld + i] = from[i * from_ld + j];
        }
    }
}

/// Whether scales or zero points of `matrix` are applied within sums of `inner` products.
pub(crate) fn varies(matrix: &Matrix, inner: u32) -> bool {
    matrix.format.has_zero() || matrix.format.scheme != Scheme::None && matrix.format.block().1 < inner
}

/// Whether a scale of `matrix` serves less than `inner` elements of an outer row.
pub(crate) fn scales_vary(matrix: &Matrix, inner: u32) -> bool {
    matrix.format.block().1 < inner
}
