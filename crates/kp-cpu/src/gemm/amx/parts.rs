//! Numbers of f32 as sums of three of bf16, which [tiles multiply](super::terms).
//!
//! ```text
//!   x = h + m + l      each the nearest to what is left, of which nothing is: three times 8 bits are the 24 of f32
//!   a·b ≈ hH + (hM + mH) + (hL + mM + lH)      what is left out is at most 2⁻²⁴ |a·b|, as much as rounding a product would lose
//! ```
//! An instruction adds up 32 products from zero before it adds them to a sum, which is rounded six times for 32 elements of k so, not 32 times
//! as by multiply-adds of f32. Six products by tiles take less than half of the time of one of those, on a core that no other thread shares.
//! Numbers of [fewer bits](super::bits) have one part or two, and products fewer terms.
//!
//! Infinity has no such parts, nor has NaN or what rounds to infinity: they count as 0 here, and are [told](split). Parts below 2⁻¹²⁶
//! count as 0, as for all tiles.

use crate::{
    amx::{ROW_BYTES, ROWS, TILE_BYTES},
    simd::{Avx512, vector::Vectors},
};
use std::arch::x86_64::{
    __m512, __m512i, __mmask16, _mm512_add_epi32, _mm512_and_si512, _mm512_castps_si512, _mm512_castsi512_ps,
    _mm512_cmpeq_epi16_mask, _mm512_cmpge_epu32_mask, _mm512_mask_blend_epi16, _mm512_maskz_loadu_ps,
    _mm512_maskz_mov_ps, _mm512_or_si512, _mm512_permutex2var_ps, _mm512_set1_epi16, _mm512_set1_epi32,
    _mm512_setr_epi32, _mm512_srli_epi32, _mm512_storeu_si512, _mm512_sub_ps,
};

/// Numbers of bf16, at most, that a number is the sum of.
pub(crate) const PARTS: usize = 3;

/// Elements of k of a step.
pub(crate) const STEP: usize = 2 * ROWS;

/// Columns that are multiplied together: those of two tiles.
pub(crate) const WIDE: usize = 2 * ROWS;

/// Bytes of a step of 16 rows whose numbers have so many parts.
pub(crate) const fn left_bytes(parts: usize) -> usize {
    parts * TILE_BYTES
}

/// Bytes of a step of 32 columns.
pub(crate) const fn right_bytes(parts: usize) -> usize {
    2 * parts * TILE_BYTES
}

/// Where tiles of a split operand lie: bytes from a step to the next, from a part to the next, and from the first 16 rows or columns to the
/// other ones.
#[derive(Clone, Copy)]
pub(crate) struct Places {
    pub(crate) step: usize,
    pub(crate) part: usize,
    pub(crate) tile: usize,
    /// Whether the numbers of a pair are 16 elements of k apart, not neighbours: of rows no number changes its lane then.
    pub(crate) is_apart: bool,
}

impl Places {
    /// Of 16 rows whose numbers have so many parts.
    pub(crate) const fn left(parts: usize) -> Self {
        Self { step: left_bytes(parts), part: TILE_BYTES, tile: 0, is_apart: false }
    }

    /// Of 32 columns.
    pub(crate) const fn right(parts: usize) -> Self {
        Self { step: right_bytes(parts), part: 2 * TILE_BYTES, tile: TILE_BYTES, is_apart: false }
    }

    /// The same with other pairs, as both operands must have them.
    pub(crate) const fn apart(self) -> Self {
        Self { is_apart: true, ..self }
    }
}

/// Whether a number has no parts: it is not finite, or rounds to what is not.
pub(crate) fn is_special(x: f32) -> bool {
    x.to_bits() & MAGNITUDE >= SPECIAL
}

const MAGNITUDE: u32 = 0x7fff_ffff;

/// Halfway between the largest number of bf16 and infinity.
pub(crate) const SPECIAL: u32 = 0x7f7f_8000;

/// The parts of 16 numbers and of 16 others, in pairs; and which of either are special, and count as 0.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn split(first: __m512, second: __m512) -> ([__m512i; PARTS], __mmask16) {
    let (first, special) = plain(first);
    let (second, also) = plain(second);
    (split_plain(first, second), special | also)
}

/// The parts of 16 numbers and of 16 others, none of them [special](is_special) but NaN, of which one part at least is NaN.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn split_plain(first: __m512, second: __m512) -> [__m512i; PARTS] {
    let (h, rest) = (nearest(first), nearest(second));
    let (first, second) = (_mm512_sub_ps(first, h), _mm512_sub_ps(second, rest));
    let upper = pairs(h, rest);
    let (m, rest) = (nearest(first), nearest(second));
    let (first, second) = (_mm512_sub_ps(first, m), _mm512_sub_ps(second, rest));
    // Of what is left then, nothing is to be rounded.
    [upper, pairs(m, rest), pairs(first, second)]
}

/// Numbers, 0 for those that are special, and which are.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn plain(x: __m512) -> (__m512, __mmask16) {
    let magnitude = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(MAGNITUDE as i32));
    let special = _mm512_cmpge_epu32_mask(magnitude, _mm512_set1_epi32(SPECIAL as i32));
    (_mm512_maskz_mov_ps(!special, x), special)
}

/// The nearest numbers of bf16, those further from 0 of two that are as near.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn nearest(x: __m512) -> __m512 {
    let rounded = _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
    _mm512_castsi512_ps(_mm512_and_si512(rounded, _mm512_set1_epi32(0xffff_0000_u32 as i32)))
}

/// Numbers of bf16, two a word.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn pairs(first: __m512, second: __m512) -> __m512i {
    let low = _mm512_srli_epi32::<16>(_mm512_castps_si512(first));
    _mm512_mask_blend_epi16(0xaaaa_aaaa, low, _mm512_castps_si512(second))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn store(line: __m512i, out: &mut [u8]) {
    let out = &mut out[..ROW_BYTES];
    // SAFETY: 64 bytes.
    unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), line) };
}

/// Sixteen numbers, of which `count` are there; 0 for others.
///
/// # Safety
/// Those are there.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn load(at: *const f32, count: usize) -> __m512 {
    let mask = ((1_u32 << count.min(ROWS)) - 1) as u16;
    // SAFETY: the caller's promise.
    unsafe { _mm512_maskz_loadu_ps(mask, at) }
}

/// The first numbers of the pairs of 32, and the second: numbers 0, 2, 4 and so on and those between, unless they are 16 apart.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn by_turns(low: __m512, high: __m512, is_apart: bool) -> [__m512; 2] {
    if is_apart {
        return [low, high];
    }
    let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    let odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
    [even, odd].map(|places| _mm512_permutex2var_ps(low, places, high))
}

/// Splits a run of at most 16 rows of A, `ld` apart, to left tiles: of each step one for each part. Answers whether a number is special.
///
/// # Panics
/// If `numbers` or `out` is short.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn split_rows(
    (numbers, ld): (&[f32], usize),
    rows: usize,
    run: usize,
    parts: usize,
    (places, out): (Places, &mut [u8]),
) -> bool {
    let mut special = false;
    for row in 0..ROWS {
        let numbers = if row < rows { &numbers[row * ld..][..run] } else { &[] };
        let (out, steps) = (&mut out[row * ROW_BYTES..], run.div_ceil(STEP));
        let (whole, _) = numbers.as_chunks();
        let is_plain = match parts {
            1 => split_whole::<1>(whole, places, out),
            2 => split_whole::<2>(whole, places, out),
            _ => split_whole::<PARTS>(whole, places, out),
        };
        for step in if is_plain { whole.len() } else { 0 }..steps {
            let out = &mut out[step * places.step..];
            let first = numbers.as_ptr().wrapping_add(step * STEP);
            let left = numbers.len().saturating_sub(step * STEP);
            // SAFETY: those that are left.
            let (low, high) = unsafe { (load(first, left), load(first.wrapping_add(ROWS), left.saturating_sub(ROWS))) };
            let [first, second] = by_turns(low, high, places.is_apart);
            let (lines, some) = split(first, second);
            special |= some != 0;
            for (part, line) in lines.into_iter().take(parts).enumerate() {
                store(line, &mut out[part * places.part..]);
            }
        }
    }
    special
}

/// Splits whole steps of a row to its lines of tiles; false if a number is special, so that they are none of its parts.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn split_whole<const N: usize>(steps: &[[f32; STEP]], places: Places, out: &mut [u8]) -> bool {
    // The exponent of NaN, which is what is left of a special number in the end: of infinity, infinity is.
    let nan = _mm512_set1_epi16(0x7f80);
    let mut special = 0;
    for (step, numbers) in steps.iter().enumerate() {
        let [low, high] = [0, ROWS].map(|at| <Avx512 as Vectors<f32>>::load(&numbers[at..]));
        let [first, second] = by_turns(low, high, places.is_apart);
        let lines = split_plain(first, second);
        special |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(lines[PARTS - 1], nan), nan);
        for (part, line) in lines.into_iter().take(N).enumerate() {
            store(line, &mut out[step * places.step + part * places.part..]);
        }
    }
    special == 0
}

/// Splits a run of rows of at most 32 columns of B, `ld` apart, to right tiles: of each step two for each part. Answers whether a number is
/// special.
///
/// # Panics
/// If `numbers` or `out` is short.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn split_lines(
    (numbers, ld): (&[f32], usize),
    columns: usize,
    run: usize,
    parts: usize,
    (places, out): (Places, &mut [u8]),
) -> bool {
    let numbers = &numbers[..(run - 1) * ld + columns];
    let mut special = 0;
    for step in 0..run.div_ceil(STEP) {
        let out = &mut out[step * places.step..];
        for line in 0..ROWS {
            for tile in 0..2 {
                let columns = columns.saturating_sub(tile * ROWS);
                let of = |k: usize| {
                    let columns = if k < run { columns } else { 0 };
                    // SAFETY: the columns that are there, of a row that is.
                    unsafe { load(numbers.as_ptr().wrapping_add(k * ld + tile * ROWS), columns) }
                };
                let [first, second] = if places.is_apart { [line, line + ROWS] } else { [2 * line, 2 * line + 1] };
                let (lines, some) = split(of(step * STEP + first), of(step * STEP + second));
                special |= some;
                for (part, codes) in lines.into_iter().take(parts).enumerate() {
                    store(codes, &mut out[part * places.part + tile * places.tile + line * ROW_BYTES..]);
                }
            }
        }
    }
    special != 0
}

/// Numbers of 24 bits between ±2, or of as many as `parts` hold, and one that is special.
#[cfg(test)]
pub(super) fn numbers(count: usize, parts: usize, special: Option<(usize, f32)>) -> Vec<f32> {
    let mut state = 11_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let kept = !0_i32 << (8 * (PARTS - parts) + 1);
        (((state >> 38) as i32 - (1 << 25)) & kept) as f32 / (1 << 24) as f32
    };
    let mut numbers: Vec<f32> = (0..count).map(|_| next()).collect();
    if let Some((at, x)) = special {
        numbers[at] = x;
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number whose parts lie at `at` and every `apart` bytes after.
    fn whole(codes: &[u8], at: usize, (parts, apart): (usize, usize)) -> f64 {
        let code = |at: usize| u32::from(u16::from_le_bytes([codes[at], codes[at + 1]])) << 16;
        (0..parts).map(|i| f64::from(f32::from_bits(code(at + i * apart)))).sum()
    }

    /// Of 5 rows of 70 elements, and of 70 lines of 21 columns: three steps, of which the last is short.
    #[test]
    fn parts_add_up_to_numbers() {
        const RUN: usize = 70;
        if !crate::caps::with_tiles().has("avx512bw") {
            println!("skipped: the processor has no AVX-512");
            return;
        }
        let pair = |k: usize| (k % STEP / 2, k % 2);
        let specials = [None, Some((3, f32::INFINITY)), Some((69, f32::NAN)), Some((60, -3.4e38))];
        for (special, parts) in specials.into_iter().flat_map(|special| (1..=PARTS).map(move |parts| (special, parts)))
        {
            let expected = |x: f32| if is_special(x) { 0.0 } else { f64::from(x) };
            let (rows, lines) = (numbers(5 * RUN, parts, special), numbers(RUN * 21, parts, special));
            let (mut left, mut right) = (vec![0xff; 3 * left_bytes(parts)], vec![0xff; 3 * right_bytes(parts)]);
            // SAFETY: the processor has AVX-512.
            let told = unsafe {
                [
                    split_rows((&rows, RUN), 5, RUN, parts, (Places::left(parts), &mut left)),
                    split_lines((&lines, 21), 21, RUN, parts, (Places::right(parts), &mut right)),
                ]
            };
            assert_eq!(told, [special.is_some(); 2], "{special:?}");
            for (row, k) in (0..ROWS).flat_map(|row| (0..3 * STEP).map(move |k| (row, k))) {
                let want = if row < 5 && k < RUN { expected(rows[row * RUN + k]) } else { 0.0 };
                let (pair, half) = pair(k);
                let at = k / STEP * left_bytes(parts) + row * ROW_BYTES + 4 * pair + 2 * half;
                assert_eq!(whole(&left, at, (parts, TILE_BYTES)), want, "{parts} parts: row {row}, element {k}");
            }
            for (column, k) in (0..WIDE).flat_map(|column| (0..3 * STEP).map(move |k| (column, k))) {
                let want = if column < 21 && k < RUN { expected(lines[k * 21 + column]) } else { 0.0 };
                let (pair, half) = pair(k);
                let at = k / STEP * right_bytes(parts) + column / ROWS * TILE_BYTES + pair * ROW_BYTES;
                let at = at + 4 * (column % ROWS) + 2 * half;
                let got = whole(&right, at, (parts, 2 * TILE_BYTES));
                assert_eq!(got, want, "{parts} parts: column {column}, element {k}");
            }
        }
    }
}
