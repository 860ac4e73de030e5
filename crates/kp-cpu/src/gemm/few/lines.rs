//! Products of a few rows of numbers with lines of a B whose rows are contiguous.
//!
//! ```text
//!                 V vectors, a strip
//!            ├────────────┤
//!        k   │ ────────── │ ─────────   lines, each far from the next
//!            │ ────────── │ ─────────
//!   R rows, each number in all lanes: R × V vectors of sums, from memory and back to it for some lines
//! ```

use super::dots::{Code, vector};
use crate::memory::prefetch;
use std::arch::x86_64::{
    _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_storeu_ps,
};

/// Numbers of a vector.
const LANES: usize = 16;

/// Most lines that meet all rows at once.
pub(crate) const LINES: usize = 32;

/// Part of some lines: their bytes, from the first one's on, and how far it is from one to the next.
#[derive(Clone, Copy)]
pub(crate) struct Strip<'a> {
    pub(crate) codes: &'a [u8],
    pub(crate) ld: usize,
    pub(crate) lines: usize,
    /// How many bytes further what is read later begins, which is asked for meanwhile.
    pub(crate) ahead: usize,
}

/// Adds to `sums`, rows `ld` apart, the products of `R` rows `a`, `a_ld` apart, with the numbers of a strip of `V` vectors.
///
/// # Panics
/// If rows, sums or the strip are short.
#[expect(clippy::needless_range_loop, reason = "one index serves several squares of registers")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
pub(crate) fn lines<T: Code, const R: usize, const V: usize>(
    (a, a_ld): (&[f32], usize),
    strip: Strip<'_>,
    (sums, ld): (&mut [f32], usize),
) {
    let bytes = V * LANES * T::KIND.step_bytes() / super::dots::STEP;
    let Strip { codes, ld: line, lines, ahead } = strip;
    assert!(a.len() >= (R - 1) * a_ld + lines, "{R} rows of {lines} numbers");
    assert!(lines == 0 || codes.len() >= (lines - 1) * line + bytes, "{lines} lines of {bytes} bytes");
    let sums = &mut sums[..(R - 1) * ld + V * LANES];
    let none = [_mm512_setzero_si512(); 4];
    let mut totals = [[_mm512_setzero_ps(); V]; R];
    for r in 0..R {
        for v in 0..V {
            // SAFETY: sixteen sums.
            totals[r][v] = unsafe { _mm512_loadu_ps(sums.as_ptr().add(r * ld + LANES * v)) };
        }
    }
    for s in 0..lines {
        let codes = codes.as_ptr().wrapping_add(s * line);
        for at in (0..bytes).step_by(64) {
            prefetch::<2>(codes.wrapping_add(ahead + at));
        }
        let mut b = [_mm512_setzero_ps(); V];
        for v in 0..V {
            // SAFETY: a line of the strip, as asserted: numbers of these types lie one after the other.
            b[v] = unsafe { vector::<T>(&none, codes, 0, v) };
        }
        for r in 0..R {
            // SAFETY: a number of each row, as asserted.
            let number = _mm512_set1_ps(unsafe { *a.get_unchecked(r * a_ld + s) });
            for v in 0..V {
                totals[r][v] = _mm512_fmadd_ps(b[v], number, totals[r][v]);
            }
        }
    }
    for r in 0..R {
        for v in 0..V {
            // SAFETY: as above.
            unsafe { _mm512_storeu_ps(sums.as_mut_ptr().add(r * ld + LANES * v), totals[r][v]) };
        }
    }
}
