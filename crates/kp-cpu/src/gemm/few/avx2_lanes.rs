//! Products of several rows of numbers with columns of four bits, a column in each lane, on processors that have AVX2 and no more;
//! and how columns get into lanes there.
//!
//! ```text
//!              16 columns, and 16 more
//!            ┌────────┬────────┐
//!          k │        │        │  opened: a vector has a number of eight columns each, scaled
//!            └────────┴────────┘
//!   R rows, each number in all lanes: R × 2 vectors of sums
//! ```
//! Codes become numbers once, for all rows, the bytes of each looked up as [`super::avx2_nibbles`] does.

use super::{
    avx2_nibbles::Table,
    dots::MOST_SHIFT,
    lanes::{EIGHT, Each, LANES, Later, SET, SQUARE, VECTORS},
};
use crate::memory::Number;
use std::arch::x86_64::{
    __m256, __m256i, _mm_loadu_si128, _mm256_add_epi8, _mm256_and_si256, _mm256_blendv_epi8, _mm256_castsi128_si256,
    _mm256_castsi256_ps, _mm256_cvtepi32_ps, _mm256_fmadd_ps, _mm256_inserti128_si256, _mm256_loadu_ps,
    _mm256_loadu_si256, _mm256_mul_ps, _mm256_or_si256, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_epi32,
    _mm256_set1_ps, _mm256_setr_epi8, _mm256_setzero_ps, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_slli_epi16,
    _mm256_slli_epi32, _mm256_srli_epi16, _mm256_srli_epi32, _mm256_storeu_ps, _mm256_storeu_si256, _mm256_sub_epi32,
    _mm256_sub_ps, _mm256_unpackhi_epi32, _mm256_unpackhi_epi64, _mm256_unpacklo_epi32, _mm256_unpacklo_epi64,
};

/// Most rows whose sums registers hold.
pub(crate) const MOST_ROWS: usize = 6;

/// Columns of a vector.
pub(super) const COLUMNS: usize = 8;

/// [`super::lanes::turn`] without AVX-512.
///
/// # Panics
/// As that.
#[target_feature(enable = "avx2")]
pub(crate) fn turn<T: Number>(lines: &[&[u8]; SET], at: usize, out: &mut [Each<T>; LANES]) {
    const { assert!(size_of::<T>() == 4, "four bytes") };
    let lines = lines.each_ref().map(|line| &line[at..at + SQUARE]);
    for (part, lines) in lines.as_chunks::<COLUMNS>().0.iter().enumerate() {
        let (vector, first) = (part * COLUMNS / LANES, part * COLUMNS % LANES);
        for (quarter, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let mut rows = [_mm256_setzero_si256(); 4];
            for (i, row) in rows.iter_mut().enumerate() {
                // SAFETY: sixteen bytes each.
                let [low, high] = [lines[i], lines[i + 4]]
                    .map(|line| unsafe { _mm_loadu_si128(line[quarter * 16..quarter * 16 + 16].as_ptr().cast()) });
                *row = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high);
            }
            let [a, b, c, d] = rows;
            let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
            let (more_ab, more_cd) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
            let turned = [
                _mm256_unpacklo_epi64(ab, cd),
                _mm256_unpackhi_epi64(ab, cd),
                _mm256_unpacklo_epi64(more_ab, more_cd),
                _mm256_unpackhi_epi64(more_ab, more_cd),
            ];
            for (out, turned) in out.iter_mut().zip(turned) {
                // SAFETY: eight of four bytes.
                unsafe { _mm256_storeu_si256(out[vector][first..first + COLUMNS].as_mut_ptr().cast(), turned) };
            }
        }
    }
}

/// Eight lanes.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load(lanes: &[u32]) -> __m256i {
    // SAFETY: as many bytes.
    unsafe { _mm256_loadu_si256(lanes[..COLUMNS].as_ptr().cast()) }
}

/// Byte `i` of each lane in all of its bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn each_byte(lanes: __m256i, i: usize) -> __m256i {
    // Places within 16 bytes.
    let first = _mm256_setr_epi8(
        0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12, 0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12,
    );
    _mm256_shuffle_epi8(lanes, _mm256_add_epi8(first, _mm256_set1_epi8(i as i8)))
}

/// Makes turned codes, of which `shared` have an entry of `scales`, and four times as many one of `shifts` if they are `SHIFTED`: a
/// byte each, see [`super::lists::Lists::shifts`], eight numbers each in `out`. Asks meanwhile for as many codes of `later`.
///
/// # Panics
/// If scales, shifts or `out` are short.
#[target_feature(enable = "avx2")]
pub(crate) fn open<const WHOLE: bool, const SHIFTED: bool>(
    table: &Table,
    (codes, shared): (&[Each<u32>], usize),
    (scales, shifts): (&[Each<f32>], &[Each<u32>]),
    later: Later<'_, '_>,
    out: &mut [Each<u32>],
) {
    let tables = table.load();
    let out = &mut out[..codes.len() * EIGHT];
    assert!(!SHIFTED || shifts.len() >= codes.len().div_ceil(4 * shared), "a byte for each share");
    for (i, (codes, out)) in codes.iter().zip(out.as_chunks_mut::<EIGHT>().0).enumerate() {
        later.ask(i);
        let share = i / shared;
        for at in (0..SET).step_by(COLUMNS) {
            let (vector, first) = (at / LANES, at % LANES);
            // SAFETY: eight numbers.
            let scale = unsafe { _mm256_loadu_ps(scales[share][vector][first..first + COLUMNS].as_ptr()) };
            let mut zero = _mm256_setzero_ps();
            if SHIFTED {
                let shift = each_byte(load(&shifts[share / 4][vector][first..]), share % 4);
                let shift = _mm256_srli_epi32::<24>(shift);
                zero = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_set1_epi32(MOST_SHIFT.into()), shift));
            }
            let codes = load(&codes[vector][first..]);
            for (parity, codes) in [codes, _mm256_srli_epi16::<4>(codes)].into_iter().enumerate() {
                let codes = _mm256_and_si256(codes, _mm256_set1_epi8(15));
                for (i, mut number) in numbers::<WHOLE>(&tables, codes).into_iter().enumerate() {
                    if SHIFTED {
                        number = _mm256_sub_ps(number, zero);
                    }
                    let out = &mut out[2 * i + parity][vector][first..first + COLUMNS];
                    // SAFETY: as many.
                    unsafe { _mm256_storeu_ps(out.as_mut_ptr().cast(), _mm256_mul_ps(number, scale)) };
                }
            }
        }
    }
}

/// The numbers of the four codes of each lane.
#[inline]
#[target_feature(enable = "avx2")]
fn numbers<const WHOLE: bool>(tables: &[__m256i; 4], codes: __m256i) -> [__m256; 4] {
    let odd_bytes = _mm256_set1_epi16(0xff00_u16 as i16);
    let upper_word = _mm256_set1_epi32(0xffff_0000_u32 as i32);
    // Two bytes of the first number and of the third, and of the others.
    let words = |byte: usize| {
        let (lower, upper) = (_mm256_shuffle_epi8(tables[byte], codes), _mm256_shuffle_epi8(tables[byte + 1], codes));
        [
            _mm256_blendv_epi8(lower, _mm256_slli_epi16::<8>(upper), odd_bytes),
            _mm256_blendv_epi8(_mm256_srli_epi16::<8>(lower), upper, odd_bytes),
        ]
    };
    let pair = |words: __m256i| [_mm256_slli_epi32::<16>(words), _mm256_and_si256(words, upper_word)];
    let [first, second] = words(2);
    let mut pairs = [pair(first), pair(second)];
    if WHOLE {
        for (pair, lower) in pairs.iter_mut().zip(words(0)) {
            pair[0] = _mm256_or_si256(pair[0], _mm256_srli_epi32::<16>(_mm256_slli_epi32::<16>(lower)));
            pair[1] = _mm256_or_si256(pair[1], _mm256_srli_epi32::<16>(lower));
        }
    }
    let [[n0, n2], [n1, n3]] = pairs;
    [_mm256_castsi256_ps(n0), _mm256_castsi256_ps(n1), _mm256_castsi256_ps(n2), _mm256_castsi256_ps(n3)]
}

/// Adds to `sums` the products of `R` rows `a`, number by number of k, with opened columns.
///
/// # Panics
/// If rows are short.
#[expect(clippy::needless_range_loop, reason = "one index serves several squares of registers")]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn lanes<const R: usize>(a: &[f32], columns: &[Each<u32>], sums: &mut [Each<f32>]) {
    let (a, sums) = (&a[..columns.len() * R], &mut sums[..R]);
    for half in 0..VECTORS {
        let mut some = [[_mm256_setzero_ps(); 2]; R];
        for r in 0..R {
            for c in 0..2 {
                // SAFETY: eight numbers.
                some[r][c] = unsafe { _mm256_loadu_ps(sums[r][half].as_ptr().add(COLUMNS * c)) };
            }
        }
        for (i, columns) in columns.iter().enumerate() {
            // SAFETY: sixteen columns, and a number of each row.
            unsafe {
                let columns = columns[half].as_ptr().cast::<f32>();
                let columns = [_mm256_loadu_ps(columns), _mm256_loadu_ps(columns.add(COLUMNS))];
                for r in 0..R {
                    let a = _mm256_set1_ps(*a.get_unchecked(i * R + r));
                    for c in 0..2 {
                        some[r][c] = _mm256_fmadd_ps(columns[c], a, some[r][c]);
                    }
                }
            }
        }
        for r in 0..R {
            for c in 0..2 {
                // SAFETY: as above.
                unsafe { _mm256_storeu_ps(sums[r][half].as_mut_ptr().add(COLUMNS * c), some[r][c]) };
            }
        }
    }
}
