//! The two products of attention on tiles, blocked so that the sums stay in registers.
//!
//! ```text
//! scores      S[key][lane] = Σ over c of K[key][c] · Qᵀ[c][lane]       a panel of LV vectors, KR keys at a time
//! accumulate  A[i][c] += Σ over j of W[i][j] · X[j][c]                 RR rows × VV vectors at a time
//! ```
//! Every element of a result is one chain of multiply-adds in the order of the sum, whatever the blocking.

use crate::simd::{arith::Arith, vector::Vectors};

/// Scores of keys that are `stride` apart, a multiple of `KR` of them, with the rows of a panel, which is `[dim][lanes]`.
#[inline(always)]
pub(crate) fn scores<I: Vectors<R>, R: Arith, const LV: usize, const KR: usize>(
    keys: &[R],
    (dim, stride): (usize, usize),
    panel: &[R],
    out: &mut [R],
) {
    let lanes = LV * I::N;
    for (keys, out) in keys.chunks_exact(KR * stride).zip(out.chunks_exact_mut(KR * lanes)) {
        let mut sums = [[I::splat(R::ZERO); LV]; KR];
        let rows: [&[R]; KR] = std::array::from_fn(|j| &keys[j * stride..][..dim]);
        for (c, column) in (0..dim).zip(panel.chunks_exact(lanes)) {
            let column: [I::V; LV] = std::array::from_fn(|v| I::load(&column[v * I::N..]));
            for j in 0..KR {
                let key = I::splat(rows[j][c]);
                for v in 0..LV {
                    sums[j][v] = I::times_plus(key, column[v], sums[j][v]);
                }
            }
        }
        for (sums, out) in sums.iter().zip(out.chunks_exact_mut(lanes)) {
            for (&sum, out) in sums.iter().zip(out.chunks_exact_mut(I::N)) {
                I::store(sum, out);
            }
        }
    }
}

/// The weights of a product: the one of row `i` and term `j` is at `i · row + j · term`.
#[derive(Clone, Copy)]
pub(crate) struct Weights<'a, R> {
    pub(crate) at: &'a [R],
    pub(crate) row: usize,
    pub(crate) term: usize,
}

/// Multiplies row `i` of the sums by `factor(i)`, then adds the product of `rows` × `terms` weights with X.
/// Rows of X and of the sums are `width` apart, a multiple of `VV` vectors.
#[inline(always)]
pub(crate) fn accumulate<I: Vectors<R>, R: Arith, const RR: usize, const VV: usize>(
    weights: Weights<'_, R>,
    (rows, terms): (usize, usize),
    x: &[R],
    width: usize,
    factor: impl Fn(usize) -> R,
    sums: &mut [R],
) {
    if rows == 0 || terms == 0 {
        return;
    }
    assert!((rows - 1) * weights.row + (terms - 1) * weights.term < weights.at.len(), "a weight for each row and term");
    let whole = rows / RR * RR;
    for first in (0..whole).step_by(RR) {
        for column in (0..width).step_by(VV * I::N) {
            block::<I, R, RR, VV>(weights, (first, terms), x, (column, width), &factor, sums);
        }
    }
    for row in whole..rows {
        for column in (0..width).step_by(VV * I::N) {
            block::<I, R, 1, VV>(weights, (row, terms), x, (column, width), &factor, sums);
        }
    }
}

#[inline(always)]
fn block<I: Vectors<R>, R: Arith, const RR: usize, const VV: usize>(
    weights: Weights<'_, R>,
    (first, terms): (usize, usize),
    x: &[R],
    (column, width): (usize, usize),
    factor: &impl Fn(usize) -> R,
    sums: &mut [R],
) {
    let mut acc = [[I::splat(R::ZERO); VV]; RR];
    for (i, acc) in acc.iter_mut().enumerate() {
        let factor = I::splat(factor(first + i));
        let sums = &sums[(first + i) * width + column..];
        for v in 0..VV {
            acc[v] = I::times(I::load(&sums[v * I::N..]), factor);
        }
    }
    for (j, x) in x.chunks_exact(width).take(terms).enumerate() {
        let x: [I::V; VV] = std::array::from_fn(|v| I::load(&x[column + v * I::N..]));
        for (i, acc) in acc.iter_mut().enumerate() {
            // SAFETY: `accumulate` looked at the last weight of all.
            let weight = unsafe { *weights.at.get_unchecked((first + i) * weights.row + j * weights.term) };
            let weight = I::splat(weight);
            for v in 0..VV {
                acc[v] = I::times_plus(weight, x[v], acc[v]);
            }
        }
    }
    for (i, acc) in acc.iter().enumerate() {
        let sums = &mut sums[(first + i) * width + column..];
        for v in 0..VV {
            I::store(acc[v], &mut sums[v * I::N..]);
        }
    }
}

/// As [`accumulate`], but a weight of 0 keeps even NaN and infinity out: for keys that are hidden.
#[inline(always)]
pub(crate) fn accumulate_seen<I: Vectors<R>, R: Arith>(
    weights: Weights<'_, R>,
    (rows, terms): (usize, usize),
    x: &[R],
    width: usize,
    factor: impl Fn(usize) -> R,
    sums: &mut [R],
) {
    for (i, sums) in sums.chunks_exact_mut(width).take(rows).enumerate() {
        let factor = factor(i);
        sums.iter_mut().for_each(|sum| *sum *= factor);
        for (j, x) in x.chunks_exact(width).take(terms).enumerate() {
            let weight = weights.at[i * weights.row + j * weights.term];
            if weight != R::ZERO {
                sums.iter_mut().zip(x).for_each(|(sum, &x)| *sum = weight.times_plus::<I>(x, *sum));
            }
        }
    }
}
