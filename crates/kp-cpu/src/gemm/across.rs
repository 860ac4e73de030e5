//! Codes of outer rows that are neighbours, element by element, turned so that those of each lie side by side.
//!
//! ```text
//!            outer ─▶ 32 bytes                          inner ─▶ 16 bytes
//!          ┌──────────┐                               ┌────────┐
//!    inner │ a line   │  16 of them           outer   │ a row  │  32 of them
//!          └──────────┘                               └────────┘
//! ```
//! Whatever is made of contiguous columns is then made of these: a square of bytes is turned by 64 instructions, a quarter of one a byte. Of 4 bits two
//! lines become one of bytes first.

use super::{few::columns::Codes, side::Side};
use crate::{
    memory::{LINE as CACHE_LINE, prefetch},
    simd::has_avx512,
};
use kp_hal::{
    DType,
    op::{Matrix, Order},
};
use std::{
    arch::x86_64::{
        __m256i, _mm_loadu_si128, _mm_storeu_si128, _mm256_and_si256, _mm256_castsi256_si128, _mm256_cvtepu8_epi16,
        _mm256_extracti128_si256, _mm256_loadu_si256, _mm256_or_si256, _mm256_set1_epi8, _mm256_setzero_si256,
        _mm256_slli_epi16, _mm256_unpackhi_epi8, _mm256_unpackhi_epi16, _mm256_unpacklo_epi8, _mm256_unpacklo_epi16,
    },
    array, mem,
    ops::Range,
};

/// Bytes of a line, and of a row that lines become.
const LINE: usize = 32;
const ROW: usize = 16;

/// How many lines ahead of their use lines are asked for: few caches have room for all of them, which are often some power of two apart.
pub(super) const AHEAD: usize = 64;

/// Whether rows of `matrix`, of B's columns if it `is_b`, are neighbours, of codes that can be turned.
pub(crate) fn lies_across(matrix: &Matrix, is_b: bool) -> bool {
    let order = if is_b { Order::Row } else { Order::Col };
    matrix.order == order && matches!(matrix.dtype().bits(), 4 | 8 | 16) && matrix.dtype() != DType::E8m0
}

/// Cycles that a byte takes to be turned, as measured on an Emerald Rapids core.
pub(crate) const CYCLES: f64 = 0.35;

/// The same of `matrix`, if it [lies across](lies_across).
pub(crate) fn cycles(matrix: &Matrix, is_b: bool) -> f64 {
    if lies_across(matrix, is_b) { CYCLES } else { 0.0 }
}

/// Outer rows whose codes share lines of the cache.
pub(crate) fn neighbours(matrix: &Matrix) -> usize {
    8 * CACHE_LINE / matrix.dtype().bits() as usize
}

/// Room for `rows` turned rows of `most` elements of a matrix, and the rows that were turned last: neighbours are turned together, since each line that is
/// read has their codes.
pub(crate) struct Turned<'r> {
    pub(super) room: &'r mut [u8],
    rows: usize,
    most: usize,
    /// Rows from here on are not wanted.
    pub(super) until: usize,
    batch: usize,
    pub(super) outer: Range<usize>,
    pub(super) inner: Range<usize>,
}

impl<'r> Turned<'r> {
    /// Bytes that it takes, of at most `bits` bits an element.
    pub(crate) const fn bytes(rows: usize, most: usize, bits: usize) -> usize {
        rows * Self::ld(most, bits)
    }

    /// The same for rows of `matrix`, if they [lie across](lies_across); else nothing.
    pub(crate) fn bytes_of(matrix: &Matrix, is_b: bool, rows: usize, most: usize) -> usize {
        if lies_across(matrix, is_b) { Self::bytes(rows, most, matrix.dtype().bits() as usize) } else { 0 }
    }

    /// From a row to the next: rows share few places of a cache otherwise.
    const fn ld(most: usize, bits: usize) -> usize {
        most * bits / 8 + CACHE_LINE
    }

    /// In a `room` of so many [`bytes`](Self::bytes).
    pub(crate) fn new(room: &'r mut [u8], rows: usize, most: usize) -> Self {
        Self { room, rows, most, until: usize::MAX, batch: 0, outer: 0..0, inner: 0..0 }
    }

    /// Elements that rows have at most.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Elements `inner` of outer rows `outer` of a `side`, always the same one, that [lies across](lies_across). `inner` starts at a whole byte.
    ///
    /// # Safety
    /// The processor has AVX2.
    ///
    /// # Panics
    /// If there are more of them than there is room for.
    pub(crate) unsafe fn columns(
        &mut self,
        side: &Side<'_>,
        batch: usize,
        outer: Range<usize>,
        inner: Range<usize>,
    ) -> Codes<'_> {
        let bits = side.matrix.dtype().bits() as usize;
        let ld = Self::ld(self.most, bits);
        if self.is_to_be_made(side, batch, (&outer, 1), &inner) {
            let lines = Lines::of(side, batch, &self.outer, &self.inner);
            let room = &mut self.room[..self.outer.len() * ld];
            // SAFETY: the caller's promise, or it was just asked for.
            unsafe {
                match (bits, has_avx512()) {
                    (4, true) => turn_in_more_registers::<4>(lines, (room, ld)),
                    (8, true) => turn_in_more_registers::<8>(lines, (room, ld)),
                    (_, true) => turn_in_more_registers::<16>(lines, (room, ld)),
                    (4, _) => turn::<4>(lines, (room, ld)),
                    (8, _) => turn::<8>(lines, (room, ld)),
                    _ => turn::<16>(lines, (room, ld)),
                }
            }
        }
        Codes::turned(self.room, self.outer.start, (self.inner.len() * bits).div_ceil(8), ld)
    }

    /// Whether elements `inner` of outer rows `outer` are not yet there, at a multiple of `unit` of rows: then takes down that they will be, and as
    /// many rows after them as are wanted up to where lines end.
    ///
    /// # Panics
    /// If there are more of them than there is room for.
    pub(super) fn is_to_be_made(
        &mut self,
        side: &Side<'_>,
        batch: usize,
        (outer, unit): (&Range<usize>, usize),
        inner: &Range<usize>,
    ) -> bool {
        let before = &self.outer;
        let is_there = outer.start >= before.start && outer.end <= before.end && *inner == self.inner;
        if is_there && batch == self.batch && (outer.start - before.start).is_multiple_of(unit) {
            return false;
        }
        assert!(outer.len() <= self.rows && inner.len() <= self.most, "{outer:?} of {inner:?}");
        let end = (outer.start / self.rows + 1) * self.rows;
        let end = if end < outer.end { outer.start + self.rows } else { end };
        self.outer = outer.start..end.min(self.until).min(side.outer as usize).max(outer.end);
        (self.batch, self.inner) = (batch, inner.clone());
        true
    }
}

/// Lines of `width` codes each.
#[derive(Clone, Copy)]
pub(super) struct Lines<'a> {
    codes: &'a [u8],
    /// The element that begins the first, and how far it is to the next.
    first: usize,
    step: usize,
    pub(super) width: usize,
    pub(super) count: usize,
}

impl<'a> Lines<'a> {
    pub(super) fn of(side: &Side<'a>, batch: usize, outer: &Range<usize>, inner: &Range<usize>) -> Self {
        let (width, count) = (outer.len(), if outer.is_empty() { 0 } else { inner.len() });
        // What is empty has no place.
        let first = if count == 0 { 0 } else { side.place(batch, outer.start, inner.start) };
        Self { codes: side.codes, first, step: side.matrix.ld as usize, width, count }
    }

    /// Where codes of `BITS` bits of line `i` from the one with number `from` on lie.
    #[inline(always)]
    pub(super) fn at<const BITS: usize>(&self, i: usize, from: usize) -> *const u8 {
        self.codes.as_ptr().wrapping_add((self.first + i * self.step + from) * BITS / 8)
    }

    /// Asks for the code with number `from` of `count` lines from `first` on; past the last, for that of the rows after these.
    #[inline(always)]
    pub(super) fn ask<const BITS: usize>(&self, first: usize, from: usize, count: usize) {
        let (i, after) = if first < self.count { (first, 0) } else { (first - self.count, self.width) };
        let mut at = self.at::<BITS>(i, after + from);
        for _ in 0..count {
            prefetch::<2>(at);
            at = at.wrapping_add(self.step * BITS / 8);
        }
    }

    /// Whether a vector can be read of each of `count` lines from `first` on.
    fn are_whole<const BITS: usize>(&self, (first, count): (usize, usize), (from, wide): (usize, usize)) -> bool {
        let is_aligned = |element: usize| (element * BITS).is_multiple_of(8);
        let is_whole = first + count <= self.count && from + wide <= self.width;
        let end = self.first + (first + count - 1) * self.step + from + wide;
        is_whole && is_aligned(self.first) && is_aligned(self.step) && end * BITS / 8 <= self.codes.len()
    }

    /// A line's codes from one on, a byte or more each, one after the other; what is missing is 0.
    fn codes<const BITS: usize>(&self, i: usize, from: usize, out: &mut [u8; LINE]) {
        out.fill(0);
        if i >= self.count {
            return;
        }
        let at = self.first + i * self.step + from;
        let some = self.width - from;
        if BITS == 4 {
            for (code, at) in out.iter_mut().zip(at..at + some) {
                *code = self.codes[at / 2] >> (at % 2 * 4) & 15;
            }
        } else {
            let size = BITS / 8;
            let there = (some * size).min(LINE);
            out[..there].copy_from_slice(&self.codes[at * size..][..there]);
        }
    }
}

/// The two codes of each word's lower byte, a byte each.
#[inline]
#[target_feature(enable = "avx2")]
fn apart(words: __m256i) -> __m256i {
    _mm256_and_si256(_mm256_or_si256(words, _mm256_slli_epi16::<4>(words)), _mm256_set1_epi8(15))
}

/// A function that turns lines of codes of `BITS` bits to rows, `ld` apart. It is made twice, since AVX-512 has registers for all of a square and more.
macro_rules! turning {
    ($name:ident, $features:literal) => {
        #[target_feature(enable = $features)]
        fn $name<const BITS: usize>(lines: Lines<'_>, (out, ld): (&mut [u8], usize)) {
            // Lines that become sixteen bytes of each row, and codes of 32 bytes of a line.
            let (high, wide) = (8 * ROW / BITS, if BITS == 16 { LINE / 2 } else { LINE });
            for first in (0..lines.count).step_by(high) {
                lines.ask::<BITS>(first + AHEAD, 0, high);
                for from in (0..lines.width).step_by(wide) {
                    let out = &mut out[from * ld + first * BITS / 8..];
                    let rows = wide.min(lines.width - from);
                    let square = match lines.are_whole::<BITS>((first, high), (from, wide)) {
                        // SAFETY: so many lines lie there.
                        true => unsafe { whole_square::<BITS>(lines.at::<BITS>(first, from), lines.step * BITS / 8) },
                        false => some_square::<BITS>(&lines, first, from),
                    };
                    if BITS == 16 {
                        let (square, _) = square.split_first_chunk().expect("eight lines");
                        store(&turned_words(*square), rows, (out, ld));
                    } else {
                        store(&turned_bytes(square), rows, (out, ld));
                    }
                }
            }
        }
    };
}
turning!(turn, "avx2");
turning!(turn_in_more_registers, "avx512f,avx512bw,avx512vl,avx2");

/// Lines of 32 bytes from `at` on, `step` bytes apart: of codes of 4 bits, two lines of 16 bytes each; of 16 bits, eight lines and zeros.
///
/// # Safety
/// So many bytes lie there.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn whole_square<const BITS: usize>(mut at: *const u8, step: usize) -> [__m256i; ROW] {
    let mut square = [_mm256_setzero_si256(); ROW];
    for line in square.iter_mut().take(if BITS == 16 { ROW / 2 } else { ROW }) {
        // SAFETY: as promised.
        *line = unsafe {
            if BITS == 4 {
                let [even, odd] = [at, at.wrapping_add(step)].map(|at| _mm_loadu_si128(at.cast()));
                at = at.wrapping_add(step);
                together(apart(_mm256_cvtepu8_epi16(even)), apart(_mm256_cvtepu8_epi16(odd)))
            } else {
                _mm256_loadu_si256(at.cast())
            }
        };
        at = at.wrapping_add(step);
    }
    square
}

/// The same of what is there of lines from `first` on and their codes from the one with number `from` on, and zeros.
fn some_square<const BITS: usize>(lines: &Lines<'_>, first: usize, from: usize) -> [__m256i; ROW] {
    let line = |i: usize| {
        let mut codes = [0; LINE];
        lines.codes::<BITS>(first + i, from, &mut codes);
        codes
    };
    let square: [[u8; LINE]; ROW] = array::from_fn(|i| match BITS {
        4 => {
            let (even, odd) = (line(2 * i), line(2 * i + 1));
            array::from_fn(|j| even[j] | odd[j] << 4)
        }
        16 if i >= ROW / 2 => [0; LINE],
        _ => line(i),
    });
    // SAFETY: any 32 bytes are a vector.
    unsafe { mem::transmute(square) }
}

/// Codes of 4 bits, a byte each, of two lines as codes of bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn together(even: __m256i, odd: __m256i) -> __m256i {
    _mm256_or_si256(even, _mm256_slli_epi16::<4>(odd))
}

/// Writes the lower halves, then the upper ones, to as many rows as there are, `ld` apart.
#[inline]
#[target_feature(enable = "avx2")]
fn store<const N: usize>(square: &[__m256i; N], rows: usize, (out, ld): (&mut [u8], usize)) {
    let out = &mut out[..(rows - 1) * ld + ROW];
    for (i, &both) in square.iter().enumerate() {
        for (i, half) in [(i, _mm256_castsi256_si128(both)), (N + i, _mm256_extracti128_si256::<1>(both))] {
            if i < rows {
                // SAFETY: sixteen bytes of one of these rows.
                unsafe { _mm_storeu_si128(out.as_mut_ptr().add(i * ld).cast(), half) };
            }
        }
    }
}

/// Sixteen lines of 32 bytes, each half a square of its own, turned: each round shuffles the first eight lines with the last, so that four of them
/// exchange the number of a line and of its byte.
#[inline]
#[target_feature(enable = "avx2")]
fn turned_bytes(mut lines: [__m256i; ROW]) -> [__m256i; ROW] {
    for _ in 0..4 {
        let before = lines;
        for i in 0..ROW / 2 {
            lines[2 * i] = _mm256_unpacklo_epi8(before[i], before[ROW / 2 + i]);
            lines[2 * i + 1] = _mm256_unpackhi_epi8(before[i], before[ROW / 2 + i]);
        }
    }
    lines
}

/// Eight lines of sixteen words alike.
#[inline]
#[target_feature(enable = "avx2")]
fn turned_words(mut lines: [__m256i; ROW / 2]) -> [__m256i; ROW / 2] {
    for _ in 0..3 {
        let before = lines;
        for i in 0..ROW / 4 {
            lines[2 * i] = _mm256_unpacklo_epi16(before[i], before[ROW / 4 + i]);
            lines[2 * i + 1] = _mm256_unpackhi_epi16(before[i], before[ROW / 4 + i]);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::{side::Scaling, tests::check};
    use kp_hal::op::GemmProblem;

    /// Rows of every width, from any row on, whose lines begin within a byte, or end before the last.
    #[test]
    fn turned_rows_are_rows() {
        if !std::arch::is_x86_feature_detected!("avx2") {
            println!("skipped: no AVX2");
            return;
        }
        for (b, ld) in [("i4", 150), ("u4", 132), ("i8", 133), ("e4m3", 200), ("bf16", 129)] {
            let text = format!("gemm 2x1x129x300 f32:{b}:f32 b=row/{ld}");
            let p: GemmProblem = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
            let matrix = p.b;
            let codes: Vec<u8> = (0..2 * 310 * ld * 2).map(|i: usize| (i * i * 7 + i / 3) as u8 & 0x77).collect();
            let none = &[][..];
            let side = Side {
                matrix,
                columns: true,
                outer: p.n,
                inner: p.k,
                codes: &codes,
                scales: none,
                zeros: none,
                global: none,
                meta: None,
            };
            let rows = neighbours(&matrix);
            let bits = matrix.dtype().bits() as usize;
            let mut room = vec![0xff; Turned::bytes(rows, 160, bits)];
            let mut turned = Turned::new(&mut room, rows, 160);
            for (outer, inner) in
                [(0..32, 0..160), (32..64, 0..160), (96..129, 160..300), (7..30, 2..33), (128..129, 0..1)]
            {
                let outer = outer.start..outer.end.min(outer.start + rows);
                for batch in 0..2 {
                    // SAFETY: the processor has what it takes.
                    let columns = unsafe { turned.columns(&side, batch, outer.clone(), inner.clone()) };
                    for o in outer.clone() {
                        let (mut got, mut wanted) = (vec![0.0_f32; inner.len()], vec![0.0_f32; inner.len()]);
                        crate::numbers::read(matrix.dtype(), columns.column(o), 0, &mut got);
                        side.row(batch, o, inner.clone(), Scaling::Left, &mut wanted);
                        assert_eq!(got, wanted, "{text}: row {o} of {inner:?}");
                    }
                }
            }
        }
    }

    /// All that becomes of codes, of either operand, where rows are neighbours.
    #[test]
    fn products_of_what_lies_across() {
        for types in [
            "i8@row:i8@row:f32",
            "i8:u8:i32",
            "u8:i8:i32",
            "u8:i4@row:f32",
            "u8:u8:i32",
            "i4:i8:i32",
            "i8@row:e2m1:f32",
            "e4m3@row:e5m2@row:f32",
            "bf16:i8@row:bf16",
            "bf16:u8@g32/f32z:bf16",
            "bf16:i4@g32/f16:f32",
            "bf16:nf4@g64/f32:f32",
            "bf16:e2m1@nv:f32",
            "f32:i4@g32/f16:f32",
            "f32:i8@row:f32",
            "f32:e2m1@nv:f32",
            "f16:e2m1@mx:f32",
            "f32:bf16:f32",
            "bf16:bf16:bf16",
        ] {
            for orders in ["1x18x70x288 a=col b=row", "1x34x33x288 a=col b=col", "2x17x34x1056 b=row/160"] {
                let (size, orders) = orders.split_once(' ').expect("a size and orders");
                check(&format!("gemm {size} {types} {orders}"), (1.0, 1.0));
            }
            // A scale of which the last elements have less than others.
            if types.contains("@g32") || types.contains("@nv") || types.contains("@mx") {
                check(&format!("gemm 1x18x70x300 {types} b=row"), (1.0, 1.0));
                check(&format!("gemm 1x18x70x300 {types} b=col"), (1.0, 1.0));
            }
            check(&format!("gemm 1x18x130x64 {types} b=row gate=halves act=silu"), (1.0, 1.0));
        }
    }
}
