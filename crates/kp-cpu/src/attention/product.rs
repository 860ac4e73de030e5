//! The two products of attention on tiles, blocked so that the sums stay in registers.
//!
//! ```text
//! scores      S[key][lane] = Σ over c of K[key][c] · Qᵀ[c][lane]       a panel of L rows, KR keys at a time
//! accumulate  A[i][c] += Σ over j of W[i][j] · X[j][c]                 RR rows × VW columns at a time
//! ```
//! Every element of a result is one chain of multiply-adds in the order of the sum, whatever the blocking.

use super::arith::Arith;
use crate::simd::Isa;

/// Scores of `keys.len() / dim` keys, a multiple of `KR`, with the `L` rows of a panel.
#[inline(always)]
pub(crate) fn scores<I: Isa, R: Arith, const L: usize, const KR: usize>(
    keys: &[R],
    panel: &[R],
    dim: usize,
    out: &mut [R],
) {
    for (keys, out) in keys.chunks_exact(KR * dim).zip(out.chunks_exact_mut(KR * L)) {
        let mut sums = [[R::ZERO; L]; KR];
        let rows: [&[R]; KR] = std::array::from_fn(|j| &keys[j * dim..(j + 1) * dim]);
        for (c, lanes) in panel.chunks_exact(L).take(dim).enumerate() {
            let lanes: &[R; L] = lanes.try_into().expect("chunks of L");
            for j in 0..KR {
                let key = rows[j][c];
                for lane in 0..L {
                    sums[j][lane] = key.times_plus::<I>(lanes[lane], sums[j][lane]);
                }
            }
        }
        for (sums, out) in sums.iter().zip(out.chunks_exact_mut(L)) {
            out.copy_from_slice(sums);
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
/// Rows of X and of the sums are `width` apart, a multiple of `VW`.
#[inline(always)]
pub(crate) fn accumulate<I: Isa, R: Arith, const RR: usize, const VW: usize>(
    weights: Weights<'_, R>,
    (rows, terms): (usize, usize),
    x: &[R],
    width: usize,
    factor: impl Fn(usize) -> R,
    sums: &mut [R],
) {
    let whole = rows / RR * RR;
    for first in (0..whole).step_by(RR) {
        for column in (0..width).step_by(VW) {
            block::<I, R, RR, VW>(weights, (first, terms), x, (column, width), &factor, sums);
        }
    }
    for row in whole..rows {
        for column in (0..width).step_by(VW) {
            block::<I, R, 1, VW>(weights, (row, terms), x, (column, width), &factor, sums);
        }
    }
}

#[inline(always)]
fn block<I: Isa, R: Arith, const RR: usize, const VW: usize>(
    weights: Weights<'_, R>,
    (first, terms): (usize, usize),
    x: &[R],
    (column, width): (usize, usize),
    factor: &impl Fn(usize) -> R,
    sums: &mut [R],
) {
    let mut acc = [[R::ZERO; VW]; RR];
    for i in 0..RR {
        let factor = factor(first + i);
        let sums: &[R; VW] = sums[(first + i) * width + column..][..VW].try_into().expect("VW of them");
        for c in 0..VW {
            acc[i][c] = sums[c] * factor;
        }
    }
    let at = &weights.at[first * weights.row..];
    for j in 0..terms {
        let x: &[R; VW] = x[j * width + column..][..VW].try_into().expect("VW of them");
        for i in 0..RR {
            let weight = at[i * weights.row + j * weights.term];
            for c in 0..VW {
                acc[i][c] = weight.times_plus::<I>(x[c], acc[i][c]);
            }
        }
    }
    for i in 0..RR {
        sums[(first + i) * width + column..][..VW].copy_from_slice(&acc[i]);
    }
}

/// As [`accumulate`], but a weight of 0 keeps even NaN and infinity out: for keys that are hidden.
#[inline(always)]
pub(crate) fn accumulate_seen<I: Isa, R: Arith>(
    weights: Weights<'_, R>,
    (rows, terms): (usize, usize),
    x: &[R],
    width: usize,
    factor: impl Fn(usize) -> R,
    sums: &mut [R],
) {
    for (i, sums) in sums.chunks_exact_mut(width).take(rows).enumerate() {
        let factor = factor(i);
        sums.iter_mut().for_each(|sum| *sum = *sum * factor);
        for (j, x) in x.chunks_exact(width).take(terms).enumerate() {
            let weight = weights.at[i * weights.row + j * weights.term];
            if weight != R::ZERO {
                sums.iter_mut().zip(x).for_each(|(sum, &x)| *sum = weight.times_plus::<I>(x, *sum));
            }
        }
    }
}
