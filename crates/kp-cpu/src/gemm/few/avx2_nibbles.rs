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
    dots::ask,
    lists::{Columns, List},
};
use std::arch::x86_64::{
    __m256, __m256i, _mm_loadu_si128, _mm256_add_ps, _mm256_and_si256, _mm256_broadcastsi128_si256,
    _mm256_castsi256_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_mul_ps, _mm256_permutevar8x32_ps,
    _mm256_set1_epi8, _mm256_set1_epi32, _mm256_setr_epi32, _mm256_setzero_ps, _mm256_shuffle_epi8, _mm256_slli_epi32,
    _mm256_srli_epi16, _mm256_sub_ps, _mm256_unpackhi_epi8, _mm256_unpackhi_epi16, _mm256_unpacklo_epi8,
    _mm256_unpacklo_epi16,
};

/// Elements of a step, and its bytes.
pub(crate) const STEP: usize = 64;
const BYTES: usize = STEP / 2;

/// Which element of a step lane `lane` of vector `vector` holds, of numbers whose bytes are `whole` or whose upper two are.
pub(crate) const fn element(whole: bool, vector: usize, lane: usize) -> usize {
    let (parity, part, which) = (vector / 4, vector / 2 % 2, vector % 2);
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

/// Adds to `sums` the products of `R` rows `a`, step by step, with one column. It has scales, and if `SHIFTED` zero points: an
/// entry of the lists for every 16, 32 or 64 elements.
///
/// # Panics
/// If `a` or the lists do not cover the column's steps.
#[expect(clippy::needless_range_loop, reason = "one index serves several arrays of registers")]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn nibbles<const WHOLE: bool, const SHIFTED: bool, const R: usize>(
    table: &Table,
    a: &[f32],
    columns: &Columns<'_>,
    sums: &mut [f32],
) {
    let &Columns { codes, share, scales, zeros, ahead, .. } = columns;
    let codes = codes[0];
    let steps = codes.len().div_ceil(BYTES);
    let entries = STEP / share;
    columns.check(steps * entries);
    assert!(matches!(share, 16 | 32 | 64), "entries for {share}");
    assert!(!scales.is_empty() && SHIFTED != zeros.is_empty(), "lists of what four bits have");
    let a = &a[..steps * R * STEP];
    let tables = table.load();
    let spread = spread(entries);
    // A row or four have twice as many sums, so that fewer multiply-adds wait for the one before.
    let chains = const { if R == 8 { 1 } else { 2 } };
    let mut totals = [[_mm256_setzero_ps(); R]; 2];
    let mut last = [0; BYTES];
    for s in 0..steps {
        let rest = &codes[s * BYTES..];
        let mut start = rest.as_ptr();
        if rest.len() < BYTES {
            last[..rest.len()].copy_from_slice(rest);
            start = last.as_ptr();
        } else if s % 2 == 0 {
            ask(start.wrapping_add(ahead), 64);
        }
        let entry = |lists: &[List]| lists[0].as_ptr().wrapping_add(s * entries);
        // SAFETY: a step of codes is there, of A and of lists, as asserted.
        unsafe {
            let shared = |lists: &[List]| {
                let entries = _mm256_loadu_ps(entry(lists));
                spread.map(|spread| _mm256_permutevar8x32_ps(entries, spread))
            };
            let scale = shared(scales);
            let zero = if SHIFTED { shared(zeros) } else { [_mm256_setzero_ps(); 2] };
            let mut of_step = if R == 1 { [[_mm256_setzero_ps(); R]; 2] } else { totals };
            let low = _mm256_set1_epi8(15);
            let codes = _mm256_loadu_si256(start.cast());
            for parity in 0..2 {
                let codes = _mm256_and_si256(if parity == 0 { codes } else { _mm256_srli_epi16::<4>(codes) }, low);
                let numbers = numbers::<WHOLE>(&tables, codes);
                for i in 0..4 {
                    let part = i / 2;
                    let mut number = numbers[i];
                    if SHIFTED {
                        number = _mm256_sub_ps(number, zero[part]);
                    }
                    // One row's sums are scaled instead.
                    if R > 1 {
                        number = _mm256_mul_ps(number, scale[part]);
                    }
                    for r in 0..R {
                        let a = _mm256_loadu_ps(a.as_ptr().add(((s * 8 + 4 * parity + i) * R + r) * 8));
                        let sum = &mut of_step[part % chains][r];
                        *sum = _mm256_fmadd_ps(number, a, *sum);
                    }
                }
            }
            if R == 1 {
                for part in 0..2 {
                    totals[part][0] = _mm256_fmadd_ps(of_step[part][0], scale[part], totals[part][0]);
                }
            } else {
                totals = of_step;
            }
        }
    }
    for (first, sums) in sums[..R].chunks_mut(4).enumerate() {
        let four = std::array::from_fn(|i| {
            let r = 4 * first + i;
            if r < R { _mm256_add_ps(totals[0][r], totals[1][r]) } else { _mm256_setzero_ps() }
        });
        sums.iter_mut().zip(lanes(&four)).for_each(|(sum, more)| *sum += more);
    }
}

/// The 32 numbers of as many codes, a byte each.
#[inline]
#[target_feature(enable = "avx2")]
fn numbers<const WHOLE: bool>(tables: &[__m256i; 4], codes: __m256i) -> [__m256; 4] {
    let [b0, b1, b2, b3] = [0, 1, 2, 3].map(|byte| _mm256_shuffle_epi8(tables[byte], codes));
    let upper = [_mm256_unpacklo_epi8(b2, b3), _mm256_unpackhi_epi8(b2, b3)];
    let [[n0, n1], [n2, n3]] = if WHOLE {
        let lower = [_mm256_unpacklo_epi8(b0, b1), _mm256_unpackhi_epi8(b0, b1)];
        [0, 1].map(|part| {
            let (lower, upper) = (lower[part], upper[part]);
            [_mm256_unpacklo_epi16(lower, upper), _mm256_unpackhi_epi16(lower, upper)]
        })
    } else {
        upper.map(|pairs| {
            let second = _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff_0000_u32 as i32));
            [_mm256_slli_epi32::<16>(pairs), second]
        })
    };
    [n0, n1, n2, n3].map(|numbers| _mm256_castsi256_ps(numbers))
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
