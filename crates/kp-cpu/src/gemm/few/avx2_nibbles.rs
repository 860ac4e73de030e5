//! Dot products of few rows of numbers with a column of four bits, in f32, on processors that have AVX2 and no more.
//!
//! ```text
//!   column   │ 32 bytes │ …    a step: 64 elements, made eight vectors of eight numbers
//!   rows     │ 8 × 8 numbers of each │ …   beforehand put in the order in which the codes come out
//! ```
//! Bytes of numbers are looked up, each kind of byte of 32 numbers at once, and put together: of what bf16 holds too the upper two
//! suffice, 2.4 instructions for eight numbers, where codes that are moved to digits of an f32 are four, and two look-ups of
//! whole numbers with a choice between them six.

use super::{
    avx2::lanes,
    avx2_opened::{BREADTH, tiles},
    dots::ask,
    lists::{Columns, List},
};
use std::arch::x86_64::{
    __m256, __m256i, _mm_castsi128_ps, _mm_loadl_epi64, _mm_loadu_ps, _mm_loadu_si128, _mm256_add_ps, _mm256_and_si256,
    _mm256_broadcastsi128_si256, _mm256_castps128_ps256, _mm256_castsi256_ps, _mm256_fmadd_ps, _mm256_loadu_ps,
    _mm256_loadu_si256, _mm256_mul_ps, _mm256_permutevar8x32_ps, _mm256_set1_epi8, _mm256_set1_epi32,
    _mm256_setr_epi32, _mm256_setzero_ps, _mm256_shuffle_epi8, _mm256_slli_epi32, _mm256_srli_epi16, _mm256_storeu_ps,
    _mm256_sub_ps, _mm256_unpackhi_epi8, _mm256_unpackhi_epi16, _mm256_unpacklo_epi8, _mm256_unpacklo_epi16,
};

/// Elements of a step, and its bytes.
pub(crate) const STEP: usize = 64;
const BYTES: usize = STEP / 2;

/// Which element of a step lane `lane` of vector `vector` holds, of numbers whose bytes are `whole` or whose upper two are.
pub(crate) const fn element(whole: bool, vector: usize, lane: usize) -> usize {
    let (parity, part, which) = (vector / 4, part(vector), vector % 2);
    let (half, i) = (lane / 4, lane % 4);
    // Vectors of one part are of the same eight bytes of each half.
    let byte = if whole { 4 * which + i } else { 2 * i + which };
    2 * (16 * half + 8 * part + byte) + parity
}

/// Byte by byte what the sixteen codes stand for, the lowest first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table([[u8; 16]; 4]);

impl Table {
    pub(crate) fn of(values: &[f32; 16]) -> Self {
        Self(std::array::from_fn(|byte| values.map(|value| value.to_le_bytes()[byte])))
    }

    /// In registers, each twice.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn load(&self) -> [__m256i; 4] {
        // SAFETY: sixteen bytes.
        self.0.each_ref().map(|table| _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(table.as_ptr().cast()) }))
    }

    /// Whether some number has more than its upper two bytes.
    pub(crate) fn is_whole(&self) -> bool {
        self.0[..2].as_flattened().iter().any(|&byte| byte != 0)
    }
}

/// Calls `make` with each step of column `c`: its place, its eight vectors of numbers, not scaled, and the scales of those of the first
/// part and of the second. If `SHIFTED`, zero points are subtracted. Lists have an entry for every 32 or 64 elements, or 16 if `FINE`.
///
/// # Panics
/// If the lists do not cover the column's steps.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(super) fn each_step<const WHOLE: bool, const SHIFTED: bool, const FINE: bool>(
    table: &Table,
    columns: &Columns<'_>,
    c: usize,
    mut make: impl FnMut(usize, [__m256; 8], [__m256; 2]),
) {
    let &Columns { codes, share, scales, zeros, ahead, .. } = columns;
    let codes = codes[c];
    let (whole, rest) = codes.as_chunks::<BYTES>();
    let entries = STEP / share;
    columns.check(codes.len().div_ceil(BYTES) * entries);
    assert!(if FINE { share == 16 } else { matches!(share, 32 | 64) }, "entries for {share}");
    assert!(!scales.is_empty() && SHIFTED != zeros.is_empty(), "lists of what four bits have");
    let tables = table.load();
    let spread = spread(entries);
    let mut last = [[0; BYTES]];
    let mut ends = &last[..0];
    if !rest.is_empty() {
        last[0][..rest.len()].copy_from_slice(rest);
        ends = &last;
    }
    for (first, steps) in [(0, whole), (whole.len(), ends)] {
        for (s, codes) in (first..).zip(steps) {
            ask(codes.as_ptr(), ahead, 64);
            let shared = |lists: &[List]| {
                let entry = lists[c].as_ptr().wrapping_add(s * entries);
                // SAFETY: the list goes on for so long. No more is read, since what was written in parts a moment ago would be waited for.
                let entries =
                    unsafe { if FINE { _mm_loadu_ps(entry) } else { _mm_castsi128_ps(_mm_loadl_epi64(entry.cast())) } };
                let entries = _mm256_castps128_ps256(entries);
                let first = _mm256_permutevar8x32_ps(entries, spread[0]);
                [first, if FINE { _mm256_permutevar8x32_ps(entries, spread[1]) } else { first }]
            };
            let low = _mm256_set1_epi8(15);
            // SAFETY: as many bytes.
            let codes = unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) };
            let even = numbers::<WHOLE>(&tables, _mm256_and_si256(codes, low));
            let odd = numbers::<WHOLE>(&tables, _mm256_and_si256(_mm256_srli_epi16::<4>(codes), low));
            let mut numbers = [even[0], even[1], even[2], even[3], odd[0], odd[1], odd[2], odd[3]];
            if SHIFTED {
                let zero = shared(zeros);
                for (v, number) in numbers.iter_mut().enumerate() {
                    *number = _mm256_sub_ps(*number, zero[part(v)]);
                }
            }
            make(s, numbers, shared(scales));
        }
    }
}

/// Which part of each half of a step vector `vector` is of.
pub(super) const fn part(vector: usize) -> usize {
    vector / 2 % 2
}

/// Adds to `sums` the products of `R` rows `a`, step by step, with one column, whose numbers are as [`each_step`] makes them.
///
/// # Panics
/// If `a` or the lists do not cover the column's steps.
#[target_feature(enable = "avx2,fma")]
pub(crate) fn nibbles<const WHOLE: bool, const SHIFTED: bool, const FINE: bool, const R: usize>(
    table: &Table,
    a: &[f32],
    columns: &Columns<'_>,
    _: &mut [f32],
    sums: &mut [f32],
) {
    let a = &a[..columns.codes[0].len().div_ceil(BYTES) * R * STEP];
    let mut totals = [[_mm256_setzero_ps(); 2]; R];
    each_step::<WHOLE, SHIFTED, FINE>(table, columns, 0, |s, numbers, scale| {
        for (r, totals) in totals.iter_mut().enumerate() {
            // SAFETY: A has the step, as asserted.
            let a = |v: usize| unsafe { _mm256_loadu_ps(a.as_ptr().add(((s * 8 + v) * R + r) * 8)) };
            // One row's sums are scaled instead of the numbers.
            let mut some = [_mm256_mul_ps(numbers[0], a(0)), _mm256_mul_ps(numbers[2], a(2))];
            for v in [1, 3, 4, 5, 6, 7] {
                some[part(v)] = _mm256_fmadd_ps(numbers[v], a(v), some[part(v)]);
            }
            if FINE {
                for part in 0..2 {
                    totals[part] = _mm256_fmadd_ps(some[part], scale[part], totals[part]);
                }
            } else {
                totals[0] = _mm256_fmadd_ps(_mm256_add_ps(some[0], some[1]), scale[0], totals[0]);
            }
        }
    });
    for (sum, totals) in sums[..R].iter_mut().zip(totals) {
        let zero = _mm256_setzero_ps();
        *sum += lanes(&[_mm256_add_ps(totals[0], totals[1]), zero, zero, zero])[0];
    }
}

/// The same with [`BREADTH`] columns, whose numbers are put into `room` before they are multiplied.
///
/// # Panics
/// If `a`, `room` or the lists do not cover the columns' steps, or columns differ in length.
#[target_feature(enable = "avx2,fma")]
pub(crate) fn opened<const WHOLE: bool, const SHIFTED: bool, const FINE: bool, const R: usize>(
    table: &Table,
    a: &[f32],
    columns: &Columns<'_>,
    room: &mut [f32],
    sums: &mut [f32],
) {
    let len = columns.codes[0].len().div_ceil(BYTES) * STEP;
    let room = &mut room[..BREADTH * len];
    for c in 0..BREADTH {
        let room = &mut room[c * len..(c + 1) * len];
        each_step::<WHOLE, SHIFTED, FINE>(table, columns, c, |s, numbers, scale| {
            let out = &mut room[s * STEP..(s + 1) * STEP];
            for (v, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                // SAFETY: eight numbers.
                unsafe { _mm256_storeu_ps(out.as_mut_ptr(), _mm256_mul_ps(numbers[v], scale[part(v)])) };
            }
        });
    }
    tiles::<R>(a, room, 1.0, sums);
}

/// The 32 numbers of as many codes, a byte each.
#[inline]
#[target_feature(enable = "avx2")]
fn numbers<const WHOLE: bool>(tables: &[__m256i; 4], codes: __m256i) -> [__m256; 4] {
    let byte = |byte: usize| _mm256_shuffle_epi8(tables[byte], codes);
    let halves = |first: usize| {
        let (lower, upper) = (byte(first), byte(first + 1));
        [_mm256_unpacklo_epi8(lower, upper), _mm256_unpackhi_epi8(lower, upper)]
    };
    let upper = halves(2);
    let lower = if WHOLE { halves(0) } else { upper };
    let pair = |part: usize| {
        let (lower, upper) = (lower[part], upper[part]);
        if WHOLE {
            [_mm256_unpacklo_epi16(lower, upper), _mm256_unpackhi_epi16(lower, upper)]
        } else {
            let second = _mm256_and_si256(upper, _mm256_set1_epi32(0xffff_0000_u32 as i32));
            [_mm256_slli_epi32::<16>(upper), second]
        }
    };
    let ([n0, n1], [n2, n3]) = (pair(0), pair(1));
    [_mm256_castsi256_ps(n0), _mm256_castsi256_ps(n1), _mm256_castsi256_ps(n2), _mm256_castsi256_ps(n3)]
}

/// Which entry of a step, of `entries`, each lane of the vectors of one part has, and of those of the other.
#[inline]
#[target_feature(enable = "avx2")]
fn spread(entries: usize) -> [__m256i; 2] {
    let halves =
        |first: i32, second: i32| _mm256_setr_epi32(first, first, first, first, second, second, second, second);
    match entries {
        1 => [halves(0, 0); 2],
        2 => [halves(0, 1); 2],
        _ => [halves(0, 2), halves(1, 3)],
    }
}
