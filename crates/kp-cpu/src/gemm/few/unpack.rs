//! Products of several rows: codes become numbers once, in cache, and then meet every row.
//!
//! ```text
//!   numbers of C columns   │ 8 × 16 │ … │    some steps, in the order in which the codes come out
//!   R rows                 │ 8 × 16 │ … │    R × C vectors of sums
//! ```
//! In one loop with the conversion, whose questions the compiler answers between multiply-adds, sums leave their registers:
//! that took twice as long.

use super::{
    dots::{Code, Ends, STEP, SUMS, Table, add_lanes, ask, ends, shared, spread, vector},
    far::Far,
    lists::{Columns, LIST, List},
};
use std::arch::x86_64::{
    _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_mul_ps, _mm512_setzero_ps, _mm512_storeu_ps, _mm512_sub_ps,
};

/// Makes numbers of the codes of column `c`, scaled as its lists say.
///
/// # Panics
/// If the column has more steps than `out` or the lists.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
pub(crate) fn unpack<T: Code>(table: &Table, columns: &Columns<'_>, c: usize, out: &mut [f32]) {
    let &Columns { codes, share, scales, zeros, ahead, .. } = columns;
    let codes = codes[c];
    let (bytes, entries) = (T::KIND.step_bytes(), STEP / share);
    let (scaled, shifted) = (!scales.is_empty(), !zeros.is_empty());
    let steps = codes.len().div_ceil(bytes);
    columns.check(steps * entries);
    let (tables, spread) = (table.load(), spread(entries));
    let mut last: Ends<1>;
    for (s, out) in out[..steps * STEP].as_chunks_mut::<STEP>().0.iter_mut().enumerate() {
        let start = match codes.get(s * bytes..(s + 1) * bytes) {
            Some(step) => {
                ask(step.as_ptr(), ahead, bytes);
                step.as_ptr()
            }
            None => {
                last = ends([codes], s * bytes);
                last[0].as_ptr()
            }
        };
        let part = |lists: &[List]| lists.as_ptr().cast::<f32>().wrapping_add(c * LIST + s * entries);
        for half in 0..2 {
            // Written out, so that places are constants.
            macro_rules! vectors {
                ($($j:literal)*) => {$({
                    // SAFETY: a whole step of codes is there, and of lists, as asserted; sixteen numbers.
                    unsafe {
                        let mut numbers = vector::<T>(&tables, start, half, $j);
                        if shifted {
                            numbers = _mm512_sub_ps(numbers, shared::<T>(part(zeros), spread, half, $j));
                        }
                        if scaled {
                            numbers = _mm512_mul_ps(numbers, shared::<T>(part(scales), spread, half, $j));
                        }
                        _mm512_storeu_ps(out.as_mut_ptr().add((4 * half + $j) * 16), numbers);
                    }
                })*};
            }
            vectors!(0 1 2 3);
        }
    }
}

/// Adds to `sums` the products of `R` rows `a`, step by step, with `C` columns of `numbers`; column by column. Asks for what lies
/// `ahead` bytes behind them, if any, and for one that is read later.
///
/// # Panics
/// If there are fewer columns, or fewer numbers than rows have steps.
#[expect(clippy::needless_range_loop, reason = "one index serves several squares of registers")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
pub(crate) fn multiply<const R: usize, const C: usize>(
    a: &[f32],
    numbers: &[&[f32]],
    (ahead, mut far): (usize, Far),
    sums: &mut [f32],
) {
    let steps = a.len() / (R * STEP);
    let numbers: [&[f32]; C] = std::array::from_fn(|c| &numbers[c][..steps * STEP]);
    let mut totals = [[_mm512_setzero_ps(); C]; R];
    for s in 0..steps {
        for j in 0..STEP / 16 {
            // SAFETY: a step of each row and column, which are there.
            unsafe {
                let mut b = [_mm512_setzero_ps(); C];
                for c in 0..C {
                    let vector = numbers[c].as_ptr().add(s * STEP + 16 * j);
                    if ahead > 0 {
                        ask(vector.cast::<u8>(), ahead, 64);
                    }
                    b[c] = _mm512_loadu_ps(vector);
                }
                for r in 0..R {
                    far.ask_in_turn::<false>(r, R, C);
                    let a = _mm512_loadu_ps(a.as_ptr().add((s * R + r) * STEP + 16 * j));
                    for c in 0..C {
                        totals[r][c] = _mm512_fmadd_ps(b[c], a, totals[r][c]);
                    }
                }
            }
        }
    }
    for (some, sums) in sums[..R * C].chunks_mut(SUMS).enumerate() {
        let mut vectors = [_mm512_setzero_ps(); SUMS];
        for i in 0..sums.len() {
            let at = some * SUMS + i;
            vectors[i] = totals[at % R][at / R];
        }
        add_lanes(&vectors, sums);
    }
}
