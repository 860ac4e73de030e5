//! The loop of [`super::lines`] for processors that have AVX2 and no AVX-512.

use super::lines::{Code, Halves, Kind, Strip, Table};
use std::arch::x86_64::{
    __m256, _mm_and_si128, _mm_cmpeq_epi16, _mm_cvtepu8_epi16, _mm_loadl_epi64, _mm_loadu_si128, _mm_or_si128,
    _mm_set1_epi16, _mm_slli_epi16, _mm256_blendv_ps, _mm256_castsi256_ps, _mm256_cvtepi8_epi32, _mm256_cvtepi16_epi32,
    _mm256_cvtepi32_ps, _mm256_cvtepu8_epi32, _mm256_cvtepu16_epi32, _mm256_cvtph_ps, _mm256_fmadd_ps, _mm256_loadu_ps,
    _mm256_mul_ps, _mm256_or_ps, _mm256_permutevar8x32_ps, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setr_epi32,
    _mm256_setzero_ps, _mm256_slli_epi32, _mm256_srlv_epi32, _mm256_storeu_ps, _mm256_sub_ps,
};

/// Numbers of a vector.
const LANES: usize = 8;

/// Adds to `sums`, rows `ld` apart, the products of `R` rows `a`, `a_ld` apart, with the numbers of strips, `V` vectors at a time.
///
/// # Panics
/// If rows, sums or lines are short, or columns no whole vectors.
#[expect(clippy::needless_range_loop, reason = "one index serves several squares of registers")]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn lines<T: Code, const R: usize, const V: usize>(
    (a, a_ld): (&[f32], usize),
    strip: Strip<'_>,
    (sums, ld): (&mut [f32], usize),
) {
    let strip_bytes = V * LANES * T::KIND.bits() / 8;
    let Strip { codes, ld: line, lines, columns, asks, scales, zeros, table } = strip;
    let bytes = columns * T::KIND.bits() / 8;
    assert!(columns.is_multiple_of(V * LANES), "{columns} columns by {V} vectors");
    assert!(a.len() >= (R - 1) * a_ld + lines, "{R} rows of {lines} numbers");
    assert!(lines == 0 || codes.len() >= (lines - 1) * line + bytes, "{lines} lines of {bytes} bytes");
    assert!([scales, zeros].iter().all(|list| list.is_empty() || list.len() >= columns), "a number of each column");
    let sums = &mut sums[..(R - 1) * ld + columns];
    for first in (0..columns).step_by(V * LANES) {
        let codes = codes.as_ptr().wrapping_add(first * T::KIND.bits() / 8);
        let place = |r: usize, v: usize| r * ld + first + LANES * v;
        let mut totals = [[_mm256_setzero_ps(); V]; R];
        if scales.is_empty() {
            for r in 0..R {
                for v in 0..V {
                    // SAFETY: eight sums.
                    totals[r][v] = unsafe { _mm256_loadu_ps(sums.as_ptr().add(place(r, v))) };
                }
            }
        }
        for s in 0..lines {
            let codes = codes.wrapping_add(s * line);
            asks.ask(codes, strip_bytes);
            let mut b = [_mm256_setzero_ps(); V];
            for v in 0..V {
                // SAFETY: a line of the strip, as asserted.
                b[v] = unsafe { vector::<T>(codes.wrapping_add(v * LANES * T::KIND.bits() / 8), table) };
                if !zeros.is_empty() {
                    // SAFETY: as many as columns, as asserted.
                    b[v] = _mm256_sub_ps(b[v], unsafe { _mm256_loadu_ps(zeros.as_ptr().add(first + LANES * v)) });
                }
            }
            for r in 0..R {
                // SAFETY: a number of each row, as asserted.
                let number = _mm256_set1_ps(unsafe { *a.get_unchecked(r * a_ld + s) });
                for v in 0..V {
                    totals[r][v] = _mm256_fmadd_ps(b[v], number, totals[r][v]);
                }
            }
        }
        for r in 0..R {
            for v in 0..V {
                // SAFETY: as above.
                unsafe {
                    let sums = sums.as_mut_ptr().add(place(r, v));
                    if !scales.is_empty() {
                        let scales = _mm256_loadu_ps(scales.as_ptr().add(first + LANES * v));
                        totals[r][v] = _mm256_fmadd_ps(totals[r][v], scales, _mm256_loadu_ps(sums));
                    }
                    _mm256_storeu_ps(sums, totals[r][v]);
                }
            }
        }
    }
}

/// Eight numbers.
///
/// # Safety
/// Their codes can be read.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn vector<T: Code>(codes: *const u8, table: &Table) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe {
        match T::KIND {
            Kind::F32 => _mm256_loadu_ps(codes.cast()),
            Kind::Bf16 => {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(codes.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            }
            Kind::F16 => _mm256_cvtph_ps(_mm_loadu_si128(codes.cast())),
            Kind::I8 => _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(codes.cast()))),
            Kind::U8 => _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(codes.cast()))),
            Kind::Float => {
                let Halves { by_eight, by_seven, factor, no_number } = table.halves;
                let words = _mm_cvtepu8_epi16(_mm_loadl_epi64(codes.cast()));
                let high = _mm_and_si128(_mm_slli_epi16::<8>(words), _mm_set1_epi16(by_eight));
                let low = _mm_and_si128(_mm_slli_epi16::<7>(words), _mm_set1_epi16(by_seven));
                let numbers = _mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(high, low)), _mm256_set1_ps(factor));
                let bits = _mm_and_si128(words, _mm_set1_epi16(0x7f));
                let none = _mm256_cvtepi16_epi32(_mm_cmpeq_epi16(bits, _mm_set1_epi16(no_number)));
                // All bits set are no number.
                _mm256_or_ps(numbers, _mm256_castsi256_ps(none))
            }
            Kind::Four => {
                // Eight codes of a word: three bits are a place in half of the table, the fourth is moved to where it says which.
                let words = _mm256_set1_epi32(codes.cast::<i32>().read_unaligned());
                let places = _mm256_srlv_epi32(words, _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
                let [low, high] = [0, 8].map(|at| _mm256_loadu_ps(table.four[at..at + 8].as_ptr()));
                let half = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(places));
                let [low, high] = [low, high].map(|half| _mm256_permutevar8x32_ps(half, places));
                _mm256_blendv_ps(low, high, half)
            }
        }
    }
}
