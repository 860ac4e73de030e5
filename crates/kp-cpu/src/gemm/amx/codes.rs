//! Codes of 4, 8 and 16 bits of a contiguous row as lines of bf16.
//!
//! The sixteen values that codes of 4 bits can have are scaled once for each scale, and looked up; others are
//! scaled one by one, floats of 8 bits after a look-up. Each becomes one number of bf16, [rounded] to nearest even, or the [parts] that it is the sum of.

use super::{
    convert::{
        E4M3, E5M2, Floats, all_pairs, by_turns, eight, eight_apart, f16, f16_apart, float, in_halves, load, nibbles,
        of_bf16, of_halves, parts, rounded,
    },
    lines::BLOCK,
    parts::pairs as pairs_of,
};
use crate::{
    amx::ROW_BYTES,
    gemm::{
        few::{
            columns::Codes as Columns,
            dots::SHARE,
            lists::{Lists, can_list},
        },
        side::{LINE, Side},
    },
    numbers,
};
use kp_hal::{
    DType,
    op::{Matrix, Scheme},
};
use std::{
    arch::x86_64::{
        __m512, __m512i, __mmask16, _mm512_loadu_ps, _mm512_maskz_mov_epi16, _mm512_mul_ps, _mm512_permutexvar_epi16,
        _mm512_set1_ps, _mm512_setzero_si512, _mm512_sub_ps,
    },
    array,
    ops::Range,
};

/// Elements of a line.
pub(crate) const ELEMENTS: usize = ROW_BYTES / 2;

/// Scales of [`LINE`] elements.
pub(crate) const ENTRIES: usize = LINE / SHARE;

/// Codes of one type, and whether scales and zero points that change along k are theirs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Codes {
    kind: Kind,
    scaled: bool,
    has_zeros: bool,
    /// Whether the one f32 for everything is a part of scales.
    takes_global: bool,
    /// Elements that share a scale.
    share: usize,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Four bits, that stand for these numbers.
    Four([f32; 16]),
    /// Eight bits of a whole number.
    Eight {
        signed: bool,
    },
    /// Eight bits, of which seven are looked up, and a sign.
    Float(&'static Floats),
    Bf16,
    F16,
}

impl Codes {
    /// The codes of `matrix`, of `inner` elements a row, if they are such and their scales, if they are `scaled`, or less zero points, can be listed.
    pub(crate) fn of(matrix: &Matrix, inner: u32, scaled: bool) -> Option<Self> {
        let dtype = matrix.dtype();
        let kind = match dtype {
            DType::I8 => Kind::Eight { signed: true },
            DType::U8 => Kind::Eight { signed: false },
            DType::E4m3 => Kind::Float(&E4M3),
            DType::E5m2 => Kind::Float(&E5M2),
            DType::Bf16 if matrix.format.scheme == Scheme::None => Kind::Bf16,
            DType::F16 if matrix.format.scheme == Scheme::None => Kind::F16,
            _ if dtype.bits() == 4 => {
                let codes: [u8; 8] = array::from_fn(|i| ((2 * i) | ((2 * i + 1) << 4)) as u8);
                let mut values = [0.0; 16];
                numbers::read(dtype, &codes, 0, &mut values);
                Kind::Four(values)
            }
            _ => return None,
        };
        let has_zeros = matrix.format.has_zero();
        (!(scaled || has_zeros) || can_list(matrix, inner)).then_some(Self {
            kind,
            scaled,
            has_zeros,
            takes_global: true,
            share: matrix.format.block().1 as usize,
        })
    }

    /// The same, but the one f32 for everything is left to sums, since it fills all bits of a number.
    pub(super) fn without_global(self) -> Self {
        Self { takes_global: false, ..self }
    }

    /// Whether there are lists.
    fn is_listed(&self) -> bool {
        self.scaled || self.has_zeros
    }

    /// Reads the scales that wait for sums, of elements `inner` of outer rows `outer`, a [block](BLOCK) and [`LINE`] at most: [`ENTRIES`] for each row, an
    /// entry for each line. `inner` starts at a line's first element.
    pub(super) fn waiting(side: &Side<'_>, batch: usize, outer: Range<usize>, inner: Range<usize>, out: &mut [f32]) {
        let (lists, count) = (Lists::new(side, batch, inner.start, ELEMENTS), inner.len().div_ceil(ELEMENTS));
        let of_outer = side.matrix.format.block().0 as usize;
        let out = out.as_chunks_mut::<ENTRIES>().0;
        for (row, o) in outer.enumerate() {
            match row {
                // Those of the row before.
                1.. if !o.is_multiple_of(of_outer) => out[row] = out[row - 1],
                _ => lists.scales(o, &mut out[row][..count]),
            }
        }
    }

    /// Elements that share an entry of the lists of scales and zero points.
    pub(crate) fn entry(&self) -> usize {
        if matches!(self.kind, Kind::Four(_)) && self.share.is_multiple_of(ELEMENTS) { ELEMENTS } else { SHARE }
    }

    /// Cycles that a code takes to become part of a line, as measured from memory on an Emerald Rapids core.
    pub(crate) fn cycles(&self) -> f64 {
        let of_zeros = if self.has_zeros { 0.1 } else { 0.0 };
        match (self.kind, self.scaled) {
            (Kind::Four(_), false) => 0.2 + of_zeros,
            (Kind::Four(_), true) => 0.4 + of_zeros,
            (Kind::Float(_), false) => 0.3,
            (_, false) => 0.25,
            (_, true) => 0.4,
        }
    }

    /// The lines of elements `inner` of outer rows `outer`, a block at most, whose codes are `columns`, with the number of the row among them and of the line, and zeros;
    /// `inner` starts at a line's first element. `before` is called before each row.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    pub(crate) fn lines(
        &self,
        side: &Side<'_>,
        (batch, columns): (usize, Columns<'_>),
        (outer, inner): (Range<usize>, Range<usize>),
        mut before: impl FnMut(),
        mut store: impl FnMut(usize, usize, __m512i),
    ) {
        const ONE: [[f32; ENTRIES]; 2] = [[1.0; ENTRIES], [0.0; ENTRIES]];
        // Filling them takes as long as a row of lines.
        let mut of_rows = if self.is_listed() { Some([[0.0; BLOCK * ENTRIES]; 2]) } else { None };
        for first in inner.clone().step_by(LINE) {
            let some = first..(first + LINE).min(inner.end);
            if let Some([scales, zeros]) = &mut of_rows {
                self.scales(side, batch, outer.clone(), some.clone(), [scales, zeros]);
            }
            let line = (first - inner.start) / ELEMENTS;
            let bytes = |elements: usize| side.matrix.dtype().bytes(elements as u64) as usize;
            let columns = columns.part(bytes(first - inner.start)..bytes(some.end - inner.start));
            for (row, o) in outer.clone().enumerate() {
                before();
                let by = match &of_rows {
                    Some([scales, zeros]) => [&scales[row * ENTRIES..], &zeros[row * ENTRIES..]],
                    None => [&ONE[0][..], &ONE[1]],
                };
                self.some_lines::<1, true>(columns.column(o), by, |i, [bf16]| {
                    // The last byte may hold something else's code.
                    let rest = || _mm512_maskz_mov_epi16(!(u32::MAX << (some.len() % ELEMENTS)), bf16);
                    store(row, line + i, if i < some.len() / ELEMENTS { bf16 } else { rest() });
                });
            }
        }
    }

    /// Reads scales and zero points of elements `inner` of outer rows `outer`, at most [`LINE`] of each, an [entry](Self::entry) after the other:
    /// [`ENTRIES`] for each row, 1 and 0 where there are none. `inner` starts at an entry's first element.
    pub(crate) fn scales(
        &self,
        side: &Side<'_>,
        batch: usize,
        outer: Range<usize>,
        inner: Range<usize>,
        [scales, zeros]: [&mut [f32]; 2],
    ) {
        if !self.is_listed() {
            scales.fill(1.0);
            zeros.fill(0.0);
            return;
        }
        let has_global = self.takes_global && !side.global.is_empty();
        let global = if has_global { numbers::get(DType::F32, side.global, 0) } else { 1.0 };
        let entry = self.entry();
        let (lists, count) = (Lists::new(side, batch, inner.start, entry), inner.len().div_ceil(entry));
        let (scales, zeros) = (scales.as_chunks_mut::<ENTRIES>().0, zeros.as_chunks_mut::<ENTRIES>().0);
        for (row, o) in outer.enumerate() {
            if row > 0 && !o.is_multiple_of(side.matrix.format.block().0 as usize) {
                // Those of the row before.
                (scales[row], zeros[row]) = (scales[row - 1], zeros[row - 1]);
                continue;
            }
            let (scales, zeros) = (&mut scales[row], &mut zeros[row]);
            if self.scaled {
                lists.scales(o, &mut scales[..count]);
                if global != 1.0 {
                    scales[..count].iter_mut().for_each(|scale| *scale *= global);
                }
            }
            if self.has_zeros {
                lists.zeros(o, &mut zeros[..count]);
            } else {
                zeros.fill(0.0);
            }
            // Past the last, no number of an earlier part, which may be none.
            scales[count..].fill(1.0);
            zeros[count..].fill(0.0);
        }
    }

    /// The lines of some codes with such scales and zero points, in order. What is past the end are some numbers. Answers whether a number was
    /// [special](super::parts::is_special) and counts as 0, unless numbers are `ROUNDED`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    pub(crate) fn some_lines<const N: usize, const ROUNDED: bool>(
        &self,
        codes: &[u8],
        by: [&[f32]; 2],
        mut store: impl FnMut(usize, [__m512i; N]),
    ) -> bool {
        let mut special = 0;
        match self.kind {
            Kind::Four(values) => {
                // SAFETY: sixteen numbers.
                let values = unsafe { _mm512_loadu_ps(values.as_ptr()) };
                special |= match self.entry() {
                    ELEMENTS => self.looked_up::<N, ROUNDED, 1>(codes, values, by, store),
                    _ => self.looked_up::<N, ROUNDED, 2>(codes, values, by, store),
                };
            }
            // A loop for each kind, so that no line asks.
            Kind::Eight { signed: true } if ROUNDED && !self.is_listed() => {
                each(codes, |i, codes| {
                    let [first, last] = eight::<true>(codes);
                    store(i, [rounded(first, last); N]);
                });
            }
            Kind::Eight { signed: true } if ROUNDED => {
                self.rounded_lines::<N, _, true>(codes, by, |codes: &_| eight::<true>(codes), store);
            }
            Kind::Eight { signed: false } if ROUNDED => {
                self.rounded_lines::<N, _, true>(codes, by, |codes: &_| eight::<false>(codes), store);
            }
            Kind::F16 if ROUNDED => self.rounded_lines::<N, _, true>(codes, by, |codes: &_| f16(codes), store),
            Kind::Bf16 if ROUNDED => {
                self.rounded_lines::<N, _, false>(codes, by, |codes: &_| of_bf16(load(codes)), store);
            }
            Kind::Float(table) if ROUNDED && !self.is_listed() => {
                each(codes, |i, codes| store(i, [float(table, codes); N]));
            }
            Kind::Float(table) if ROUNDED => {
                self.rounded_lines::<N, _, false>(codes, by, |codes: &_| of_bf16(float(table, codes)), store);
            }
            Kind::Eight { signed: true } => {
                special |= self.lines_of_parts(codes, by, true, |codes: &_| eight_apart::<true>(codes), store);
            }
            Kind::Eight { signed: false } => {
                special |= self.lines_of_parts(codes, by, true, |codes: &_| eight_apart::<false>(codes), store);
            }
            Kind::F16 => special |= self.lines_of_parts(codes, by, false, |codes: &_| f16_apart(codes), store),
            // What is infinite has no parts.
            Kind::Bf16 => {
                special |= self.lines_of_parts(codes, by, false, |codes: &_| of_bf16(load(codes)), store);
            }
            Kind::Float(table) => {
                special |= self.lines_of_parts(codes, by, false, |codes: &_| of_bf16(float(table, codes)), store);
            }
        }
        special != 0
    }

    /// Those of codes of 4 bits, looked up among `values` by the `SCALES` of each line.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    fn looked_up<const N: usize, const ROUNDED: bool, const SCALES: usize>(
        &self,
        codes: &[u8],
        values: __m512,
        by: [&[f32]; 2],
        mut store: impl FnMut(usize, [__m512i; N]),
    ) -> __mmask16 {
        let (scales, zeros) = (by[0].as_chunks::<SCALES>().0, by[1].as_chunks::<SCALES>().0);
        // Whether each line has its own: asked of it, that is seldom foreseen.
        let is_new = self.share <= ELEMENTS;
        let (mut known, mut table, mut special) = (None, [_mm512_setzero_si512(); N], 0);
        let (whole, rest) = codes.as_chunks::<{ ELEMENTS / 2 }>();
        let mut end = [0; ELEMENTS / 2];
        if !rest.is_empty() {
            end[..rest.len()].copy_from_slice(rest);
        }
        // No closure has the body, in which the table stays in registers.
        for (i, (scales, zeros)) in scales.iter().zip(zeros).enumerate().take(codes.len().div_ceil(ELEMENTS / 2)) {
            let codes = whole.get(i).unwrap_or(&end);
            let wanted = (scales[0].to_bits(), zeros[0].to_bits());
            if is_new || SCALES > 1 || known != Some(wanted) {
                let (first, some) = self.scaled_parts::<N, ROUNDED>(values, scales[0], zeros[0]);
                let (last, more) = match SCALES {
                    1 => (first, some),
                    _ => self.scaled_parts::<N, ROUNDED>(values, scales[1], zeros[1]),
                };
                for (part, table) in table.iter_mut().enumerate() {
                    // What are parts, is not rounded any more.
                    *table = rounded(first[part], last[part]);
                }
                special |= some | more;
                known = Some(wanted);
            }
            let places = if SCALES == 1 { nibbles(codes) } else { in_halves(nibbles(codes)) };
            let mut line = table;
            for part in &mut line {
                *part = _mm512_permutexvar_epi16(places, *part);
            }
            store(i, line);
        }
        special
    }

    /// What codes of 4 bits stand for with a scale and a zero point, as it is to be rounded, or as parts, and which of it is special.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    fn scaled_parts<const N: usize, const ROUNDED: bool>(
        &self,
        values: __m512,
        scale: f32,
        zero: f32,
    ) -> ([__m512; N], __mmask16) {
        let values = self.scaled_by(values, scale, zero);
        if ROUNDED { ([values; N], 0) } else { parts::<N>(values) }
    }

    /// Numbers less a zero point, if there are any, times a scale, if there is one.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    fn scaled_by(&self, numbers: __m512, scale: f32, zero: f32) -> __m512 {
        let numbers = if self.has_zeros { _mm512_sub_ps(numbers, _mm512_set1_ps(zero)) } else { numbers };
        if self.scaled { _mm512_mul_ps(numbers, _mm512_set1_ps(scale)) } else { numbers }
    }

    /// Those of codes of 8 or 16 bits, rounded. `numbers` makes numbers of a line's codes: the first and the last sixteen, if they come in `HALVES`,
    /// or those with an even place and those with an odd one.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    fn rounded_lines<const N: usize, const BYTES: usize, const HALVES: bool>(
        &self,
        codes: &[u8],
        by: [&[f32]; 2],
        numbers: impl Fn(&[u8; BYTES]) -> [__m512; 2],
        mut store: impl FnMut(usize, [__m512i; N]),
    ) {
        let (scales, zeros) = (by[0].as_chunks::<2>().0, by[1].as_chunks::<2>().0);
        each(codes, |i, codes| {
            let mut both = numbers(codes);
            let spread = |[first, last]: [f32; 2]| match HALVES {
                true => [_mm512_set1_ps(first), _mm512_set1_ps(last)],
                false => [of_halves([first, last]); 2],
            };
            if self.has_zeros {
                let zeros = spread(zeros[i]);
                both = [_mm512_sub_ps(both[0], zeros[0]), _mm512_sub_ps(both[1], zeros[1])];
            }
            if self.scaled {
                let scales = spread(scales[i]);
                both = [_mm512_mul_ps(both[0], scales[0]), _mm512_mul_ps(both[1], scales[1])];
            }
            let line = rounded(both[0], both[1]);
            store(i, [if HALVES { line } else { by_turns(line) }; N]);
        });
    }

    /// Those of codes of 8 or 16 bits as parts; `numbers` makes numbers of a line's codes, those with an even place and those with an odd one. Without
    /// scales some `are_exact` in bf16.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    fn lines_of_parts<const N: usize, const BYTES: usize>(
        &self,
        codes: &[u8],
        by: [&[f32]; 2],
        are_exact: bool,
        numbers: impl Fn(&[u8; BYTES]) -> [__m512; 2],
        mut store: impl FnMut(usize, [__m512i; N]),
    ) -> __mmask16 {
        let (scales, zeros) = (by[0].as_chunks::<2>().0, by[1].as_chunks::<2>().0);
        let is_exact = are_exact && !self.is_listed();
        let mut special = 0;
        each(codes, |i, codes| {
            let [even, odd] = numbers(codes);
            if is_exact {
                let mut line = [_mm512_setzero_si512(); N];
                line[0] = pairs_of(even, odd);
                return store(i, line);
            }
            let scaled = |x: __m512| _mm512_mul_ps(_mm512_sub_ps(x, of_halves(zeros[i])), of_halves(scales[i]));
            let (even, odd) = if self.scaled { (scaled(even), scaled(odd)) } else { (even, odd) };
            let ((even, some), (odd, more)) = (parts::<N>(even), parts::<N>(odd));
            store(i, all_pairs(even, odd));
            special |= some | more;
        });
        special
    }
}

/// Runs `make` with the number and the codes of each line, of so many bytes. What fills no line is copied first, so that there is one loop, whose body
/// is then no function.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn each<const BYTES: usize>(codes: &[u8], mut make: impl FnMut(usize, &[u8; BYTES])) {
    let (whole, rest) = codes.as_chunks::<BYTES>();
    let mut last = [0; BYTES];
    if !rest.is_empty() {
        last[..rest.len()].copy_from_slice(rest);
    }
    for i in 0..codes.len().div_ceil(BYTES) {
        make(i, whole.get(i).unwrap_or(&last));
    }
}
