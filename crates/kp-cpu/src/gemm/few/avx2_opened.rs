//! Products of four or eight rows with a few columns whose numbers have been made, in f32, on processors that have AVX2 and no more.
//!
//! ```text
//!   3 columns    │ numbers of some steps, scaled │   opened: made of codes once, into the first cache
//!   4 rows each  │ 8 numbers of each │ …           4 × 3 vectors of sums, which the registers hold
//! ```
//! Where a column's numbers meet all rows as they are made, each multiply-add wants a load of its own: a sixth longer by 4 bits.
//! Two columns at a time and half of the rows would have numbers made twice.

use super::avx2::lanes;
use std::arch::x86_64::{_mm256_fmadd_ps, _mm256_loadu_ps, _mm256_setzero_ps};

/// Columns whose sums a tile has, and its rows.
pub(crate) const BREADTH: usize = 3;
const HEIGHT: usize = 4;

/// Adds to `sums`, column by column, `factor` times the products of `R` rows `a`, eight numbers of each in turn, with [`BREADTH`]
/// columns of `opened`, one after the other.
///
/// # Panics
/// If `a` does not cover the columns, or `sums` are few.
#[expect(clippy::needless_range_loop, reason = "one index serves several arrays of registers")]
#[target_feature(enable = "avx2,fma")]
pub(super) fn tiles<const R: usize>(a: &[f32], opened: &[f32], factor: f32, sums: &mut [f32]) {
    const { assert!(R.is_multiple_of(HEIGHT), "whole tiles") };
    let len = opened.len() / BREADTH;
    let (a, sums) = (&a[..len * R], &mut sums[..BREADTH * R]);
    for first in (0..R).step_by(HEIGHT) {
        let mut totals = [[_mm256_setzero_ps(); HEIGHT]; BREADTH];
        for v in 0..len / 8 {
            // SAFETY: as many numbers of each column and row.
            unsafe {
                let numbers: [_; BREADTH] =
                    std::array::from_fn(|c| _mm256_loadu_ps(opened.as_ptr().add(c * len + v * 8)));
                for r in 0..HEIGHT {
                    let a = _mm256_loadu_ps(a.as_ptr().add((v * R + first + r) * 8));
                    for c in 0..BREADTH {
                        totals[c][r] = _mm256_fmadd_ps(numbers[c], a, totals[c][r]);
                    }
                }
            }
        }
        for (sums, totals) in sums.chunks_exact_mut(R).zip(&totals) {
            let sums = &mut sums[first..first + HEIGHT];
            sums.iter_mut().zip(lanes(totals)).for_each(|(sum, more)| *sum += more * factor);
        }
    }
}
