//! A tile of rows against a block of keys, backward: P is computed again from the log-sum-exp.
//!
//! ```text
//! S  = K · Qᵀ        P  = exp(S − LSE)               [key][lane], a panel of rows at a time
//! dP = V · dOᵀ       dS = P · (dP − D)               times 1 − tanh² if capped; D = Σ O · dO, row by row
//! keys:    dV += P · dO     dK += dS · Q
//! queries: dQ += dSᵀ · K
//! ```
//! `scale` multiplies dK and dQ when they are stored.

use crate::{
    attention::{
        chunk::{BLOCK, Inputs, shape},
        product::{Weights, accumulate, accumulate_seen, scores},
        sight::{Panel, Tile},
    },
    simd::{Work, arith::Arith, vector::Vectors},
};
use std::{marker::PhantomData, ops::Range};

/// The rows of a tile as numbers.
pub(crate) struct RowRoom<'s, R> {
    /// Panels of `[qk_dim][L]` and of `[v_dim][L]`.
    pub(crate) q: &'s mut [R],
    pub(crate) grad_o: &'s mut [R],
    /// The same row by row, as wide as the sums.
    pub(crate) q_rows: &'s mut [R],
    pub(crate) grad_o_rows: &'s mut [R],
    /// The log-sum-exp of each row, +∞ where nothing is seen; and D.
    pub(crate) lse: &'s mut [R],
    pub(crate) d: &'s mut [R],
}

/// Scores of a block and a panel, their gradients, and what a cap makes of those: `[BLOCK][L]` each.
pub(crate) struct ScoreRoom<'s, R> {
    pub(crate) p: &'s mut [R],
    pub(crate) grad: &'s mut [R],
    pub(crate) steepness: &'s mut [R],
}

/// What is summed.
pub(crate) enum Sums<'s, R> {
    /// Gradients of a block of K and of V.
    Keys {
        /// `[key][qk_width]`.
        k: &'s mut [R],
        /// `[key][v_width]`.
        v: &'s mut [R],
    },
    /// Gradients of a tile of Q: `[row][qk_width]`.
    Queries(&'s mut [R]),
}

/// One tile, one block.
pub(crate) struct PairJob<'w, 's, R> {
    pub(crate) inputs: &'w Inputs<'w, R>,
    pub(crate) tile: &'w Tile<'w, R>,
    /// At most a block.
    pub(crate) keys: Range<usize>,
    /// Those of K and of V, as wide as the sums, with room up to a multiple of 16.
    pub(crate) k: &'w [R],
    pub(crate) v: &'w [R],
    pub(crate) rows: &'w RowRoom<'s, R>,
    pub(crate) room: &'w mut ScoreRoom<'s, R>,
    pub(crate) sums: Sums<'w, R>,
    /// What `qk_dim` and `v_dim` were rounded up to.
    pub(crate) widths: (usize, usize),
}

/// The work on a pair, blocked as [`crate::attention::chunk::Chunk`] is.
pub(crate) struct Pair<'w, 's, R, I, const L: usize, const LV: usize, const KR: usize, const RR: usize, const VV: usize>
{
    pub(crate) job: PairJob<'w, 's, R>,
    pub(crate) isa: PhantomData<fn() -> I>,
}

impl<R: Arith, I: Vectors<R>, const L: usize, const LV: usize, const KR: usize, const RR: usize, const VV: usize> Work
    for Pair<'_, '_, R, I, L, LV, KR, RR, VV>
{
    #[inline(always)]
    fn run(self) {
        let PairJob { inputs, tile, keys, k, v, rows, room, mut sums, widths: (qk_width, v_width) } = self.job;
        let (qk_dim, v_dim) = (inputs.q.rows.dim, inputs.v.rows.dim);
        let count = keys.len();
        let padded = count.next_multiple_of(KR);
        for index in 0..tile.rows.div_ceil(L) {
            let panel = Panel::<R, L>::new(tile, index, keys.start, count);
            if !panel.any {
                continue;
            }
            let lanes = |dim: usize| index * dim * L..(index + 1) * dim * L;
            let q = &rows.q[lanes(qk_dim)];
            scores::<I, R, LV, KR>(&k[..padded * qk_width], (qk_dim, qk_width), q, room.p);
            let p = &mut room.p[..count * L];
            shape::<I, R, L>(inputs, &panel, p, Some(&mut room.steepness[..count * L]));
            let picks = inputs.sight.picks();
            if picks && !panel.pick(&inputs.sight, tile.sequence.b, keys.start, count, p) {
                continue;
            }
            let grad_o = &rows.grad_o[lanes(v_dim)];
            scores::<I, R, LV, KR>(&v[..padded * v_width], (v_dim, v_width), grad_o, room.grad);
            let grad = &mut room.grad[..count * L];
            let first = index * L;
            weigh::<I, R, L>(p, grad, &rows.lse[first..first + L], &rows.d[first..first + L]);
            if inputs.softcap.is_some() {
                // Not where nothing is seen: the derivative of a score that is not a number must stay out.
                let steepness = &room.steepness[..count * L];
                for ((grad, &p), &d) in grad.iter_mut().zip(&*p).zip(steepness) {
                    *grad = if p == R::ZERO { R::ZERO } else { *grad * d };
                }
            }
            let there = first..first + (tile.rows - first).min(L);
            let whole = panel.all && !picks;
            let by_key = |at| Weights { at, row: L, term: 1 };
            match &mut sums {
                Sums::Keys { k, v } => {
                    let shape = (count, there.len());
                    add::<I, R, RR, VV>(
                        whole,
                        by_key(p),
                        shape,
                        &rows.grad_o_rows[there.start * v_width..],
                        v_width,
                        v,
                    );
                    add::<I, R, RR, VV>(
                        whole,
                        by_key(grad),
                        shape,
                        &rows.q_rows[there.start * qk_width..],
                        qk_width,
                        k,
                    );
                }
                Sums::Queries(q) => {
                    let weights = Weights { at: grad, row: 1, term: L };
                    let q = &mut q[there.start * qk_width..];
                    add::<I, R, RR, VV>(whole, weights, (there.len(), count), k, qk_width, q);
                }
            }
        }
    }
}

/// Adds a product to sums. Unless the `whole` block is seen, weights of 0 keep what is no number out.
#[inline(always)]
fn add<I: Vectors<R>, R: Arith, const RR: usize, const VV: usize>(
    whole: bool,
    weights: Weights<'_, R>,
    (rows, terms): (usize, usize),
    x: &[R],
    width: usize,
    sums: &mut [R],
) {
    if whole || x[..terms * width].iter().all(|x| x.is_finite()) {
        accumulate::<I, R, RR, VV>(weights, (rows, terms), x, width, |_| R::ONE, sums);
    } else {
        accumulate_seen::<I, R>(weights, (rows, terms), x, width, |_| R::ONE, sums);
    }
}

/// Replaces scores by P, and the gradients of P by those of the scores.
#[inline(always)]
fn weigh<I: Vectors<R>, R: Arith, const L: usize>(s: &mut [R], grad: &mut [R], lse: &[R], d: &[R]) {
    let lse: &[R; L] = lse.try_into().expect("L of them");
    let d: &[R; L] = d.try_into().expect("L of them");
    for (s, grad) in s.chunks_exact_mut(L).zip(grad.chunks_exact_mut(L)) {
        for lane in 0..L {
            let p = (s[lane] - lse[lane]).exp_of::<I>();
            s[lane] = p;
            grad[lane] = if p == R::ZERO { R::ZERO } else { p * (grad[lane] - d[lane]) };
        }
    }
}

const _: () = assert!(BLOCK.is_multiple_of(16));
