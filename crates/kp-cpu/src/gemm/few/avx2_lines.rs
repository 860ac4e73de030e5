//! The loop of [`super::lines`] for processors that have AVX2 and no AVX-512.

use super::{avx2::Code, avx2_panels::vector, lines::Strip};
use crate::memory::prefetch;
use std::arch::x86_64::{
    _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_set1_ps, _mm256_setzero_ps, _mm256_storeu_ps, _mm256_sub_ps,
};

/// Numbers of a vector.
const LANES: usize = 8;

/// Adds to `sums`, rows `ld` apart, the products of `R` rows `a`, `a_ld` apart, with the numbers of a strip of `V` vectors.
///
/// # Panics
/// If rows, sums or the strip are short.
#[expect(clippy::needless_range_loop, reason = "one index serves several squares of registers")]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn lines<T: Code, const R: usize, const V: usize>(
    (a, a_ld): (&[f32], usize),
    strip: Strip<'_>,
    (sums, ld): (&mut [f32], usize),
) {
    let bytes = V * LANES * T::KIND.step_bytes() / super::avx2::STEP;
    let Strip { codes, ld: line, lines, ahead, scales, zeros, .. } = strip;
    assert!(a.len() >= (R - 1) * a_ld + lines, "{R} rows of {lines} numbers");
    assert!(lines == 0 || codes.len() >= (lines - 1) * line + bytes, "{lines} lines of {bytes} bytes");
    assert!([scales, zeros].iter().all(|list| list.is_empty() || list.len() >= V * LANES), "a number of each column");
    let sums = &mut sums[..(R - 1) * ld + V * LANES];
    let mut totals = [[_mm256_setzero_ps(); V]; R];
    if scales.is_empty() {
        for r in 0..R {
            for v in 0..V {
                // SAFETY: eight sums.
                totals[r][v] = unsafe { _mm256_loadu_ps(sums.as_ptr().add(r * ld + LANES * v)) };
            }
        }
    }
    for s in 0..lines {
        let codes = codes.as_ptr().wrapping_add(s * line);
        for at in (0..bytes).step_by(64) {
            prefetch::<2>(codes.wrapping_add(ahead + at));
        }
        let mut b = [_mm256_setzero_ps(); V];
        for v in 0..V {
            // SAFETY: a line of the strip, as asserted: numbers of these types lie one after the other.
            b[v] = unsafe { vector::<T>(codes, v) };
            if !zeros.is_empty() {
                // SAFETY: as many as columns, as asserted.
                b[v] = _mm256_sub_ps(b[v], unsafe { _mm256_loadu_ps(zeros.as_ptr().add(LANES * v)) });
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
                let sums = sums.as_mut_ptr().add(r * ld + LANES * v);
                if !scales.is_empty() {
                    let scales = _mm256_loadu_ps(scales.as_ptr().add(LANES * v));
                    totals[r][v] = _mm256_fmadd_ps(totals[r][v], scales, _mm256_loadu_ps(sums));
                }
                _mm256_storeu_ps(sums, totals[r][v]);
            }
        }
    }
}
