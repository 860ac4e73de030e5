//! A tile of rows against a block of keys, backward: P is computed again from the log-sum-exp.
//!
//! ```text
//! S  = K · Qᵀ        P  = 2^(S − LSE)                [key][row], a panel of 64 rows
//! dP = V · dOᵀ       dS = P · (dP − D)               times 1 − tanh² if capped; D = Σ O · dO, row by row
//! keys:    dV += P · dO     dK += dS · Q             [key][c]
//! queries: dQ += Kᵀ · dS                             [c][row]
//! ```
//! `scale` multiplies dK and dQ when they are stored.

use crate::{
    attention::{
        chunk::{BLOCK, Inputs, PANEL, all_finite, multiply, shape},
        places::{Source, Token},
        product::{LANES, Product, Spread, Start, Weight, product_seen},
        sight::{Lanes, Tile},
        turn::{Turns, turn},
    },
    simd::{Isa, Work, arith::Arith},
};
use std::{marker::PhantomData, ops::Range};

/// The rows of a tile as numbers.
pub(crate) struct RowRoom<'s, R> {
    /// `[qk_width][PANEL]`, times the scale of scores, and `[v_width][PANEL]`.
    pub(crate) q: &'s mut [R],
    pub(crate) grad_o: &'s mut [R],
    /// The same row by row, Q as it is.
    pub(crate) q_rows: &'s mut [R],
    pub(crate) grad_o_rows: &'s mut [R],
    /// The log-sum-exp of each row in units of ln 2 and less by [`RAISE`], +∞ where nothing is seen; and D.
    pub(crate) lse: &'s mut [R],
    pub(crate) d: &'s mut [R],
}

/// What powers of 2 are raised by before they are taken, and what that is undone by: P is no number's largest, and what
/// multiplies it may be large, so that its subnormal numbers matter.
pub(crate) const RAISE: f32 = 24.0;
const RAISED: f32 = 1.0 / (1 << 24) as f32;

/// Scores of a block, their gradients, and what a cap makes of those: `[BLOCK][PANEL]` each.
pub(crate) struct ScoreRoom<'s, R> {
    pub(crate) p: &'s mut [R],
    pub(crate) grad: &'s mut [R],
    pub(crate) steepness: &'s mut [R],
}

/// What an instruction set is asked for.
pub(crate) struct PairJob<'w, 's, R> {
    pub(crate) inputs: &'w Inputs<'w, R>,
    pub(crate) task: Task<'w, 's, R>,
}

pub(crate) enum Task<'w, 's, R> {
    /// Compute D of the queries of one head.
    Products {
        o: [&'w Source<'w>; 2],
        tokens: &'w dyn Fn(usize) -> Token,
        head: usize,
        d: &'w mut [R],
        room: &'w mut [R],
    },
    /// Read the rows of a tile.
    Rows { tile: &'w Tile<'w>, grad_o: &'w Source<'w>, rows: &'w mut RowRoom<'s, R> },
    /// Read keys.
    Keys { tile: &'w Tile<'w>, keys: Range<usize>, k: &'w mut [R], v: &'w mut [R] },
    /// Sum over a tile and a block.
    Pair(Pair<'w, 's, R>),
    /// Turn the gradients of a tile's queries into rows.
    Finish { sums: &'w [R], out: &'w mut [R] },
}

/// One tile, one block.
pub(crate) struct Pair<'w, 's, R> {
    pub(crate) tile: &'w Tile<'w>,
    /// At most a block, and their numbers.
    pub(crate) keys: Range<usize>,
    pub(crate) k: &'w [R],
    pub(crate) v: &'w [R],
    pub(crate) rows: &'w RowRoom<'s, R>,
    pub(crate) room: &'w mut ScoreRoom<'s, R>,
    /// Gradients of the block of K and of V: `[key][qk_width]`, `[key][v_width]`.
    pub(crate) of_keys: Option<[&'w mut [R]; 2]>,
    /// Gradients of the tile of Q: `[qk_width][PANEL]`.
    pub(crate) of_queries: Option<&'w mut [R]>,
}

/// A job on an instruction set, with products blocked by `MR` and `LV`.
pub(crate) struct Backward<'w, 's, R, I, const MR: usize, const LV: usize> {
    pub(crate) job: PairJob<'w, 's, R>,
    pub(crate) isa: PhantomData<fn() -> I>,
}

impl<R: Arith, I: Turns<R>, const MR: usize, const LV: usize> Work for Backward<'_, '_, R, I, MR, LV> {
    #[inline(always)]
    fn run(self) {
        let PairJob { inputs, task } = self.job;
        match task {
            Task::Products { o: [o, grad_o], tokens, head, d, room } => {
                let (x, y) = room.split_at_mut(inputs.dims.v_width);
                for (i, d) in d.iter_mut().enumerate() {
                    o.read::<I, _>(tokens(i), head, x);
                    grad_o.read::<I, _>(tokens(i), head, y);
                    *d = dot::<I, R>(x, y);
                }
            }
            Task::Rows { tile, grad_o, rows } => load_rows::<I, R>(inputs, tile, grad_o, rows),
            Task::Keys { tile, keys, k, v } => {
                let (k_ld, v_ld) = (inputs.dims.qk_ld(), inputs.dims.v_ld());
                for (block, start) in keys.clone().step_by(BLOCK).enumerate() {
                    let keys = start..keys.end.min(start + BLOCK);
                    inputs.k.read_rows::<I, _>(tile, keys.clone(), k_ld, &mut k[block * BLOCK * k_ld..]);
                    inputs.v.read_rows::<I, _>(tile, keys, v_ld, &mut v[block * BLOCK * v_ld..]);
                }
            }
            Task::Pair(pair) => add_pair::<I, R, MR, LV>(inputs, pair),
            Task::Finish { sums, out } => {
                let (width, ld) = (inputs.dims.qk_width, inputs.dims.qk_ld());
                turn::<I, R>((sums, PANEL), (width, PANEL), inputs.score_scale, (out, ld));
            }
        }
    }
}

/// Σ x · y in as many running sums as there are lanes.
#[inline(always)]
fn dot<I: Isa, R: Arith>(x: &[R], y: &[R]) -> R {
    let mut sums = [R::ZERO; LANES];
    for (x, y) in x.as_chunks::<LANES>().0.iter().zip(y.as_chunks::<LANES>().0) {
        for lane in 0..LANES {
            sums[lane] = x[lane].times_plus::<I>(y[lane], sums[lane]);
        }
    }
    sums.into_iter().sum()
}

#[inline(always)]
fn load_rows<I: Turns<R>, R: Arith>(
    inputs: &Inputs<'_, R>,
    tile: &Tile<'_>,
    grad_o: &Source<'_>,
    rows: &mut RowRoom<'_, R>,
) {
    let (dims, lanes) = (inputs.dims, tile.rows.next_multiple_of(LANES));
    let (qk_ld, v_ld) = (dims.qk_ld(), dims.v_ld());
    let places = rows.q_rows.chunks_exact_mut(qk_ld).zip(rows.grad_o_rows.chunks_exact_mut(v_ld));
    for (i, (q, of_o)) in places.take(lanes).enumerate() {
        let (q, of_o) = (&mut q[..dims.qk_width], &mut of_o[..dims.v_width]);
        if i < tile.rows {
            let row = tile.row(i);
            let token = tile.sequence.query(row.query);
            inputs.q.read::<I, _>(token, row.head, q);
            grad_o.read::<I, _>(token, row.head, of_o);
        } else {
            q.fill(R::ZERO);
            of_o.fill(R::ZERO);
        }
    }
    turn::<I, R>((rows.q_rows, qk_ld), (lanes, dims.qk_width), inputs.scale, (rows.q, PANEL));
    turn::<I, R>((rows.grad_o_rows, v_ld), (lanes, dims.v_width), R::ONE, (rows.grad_o, PANEL));
}

#[inline(always)]
fn add_pair<I: Turns<R>, R: Arith, const MR: usize, const LV: usize>(inputs: &Inputs<'_, R>, pair: Pair<'_, '_, R>) {
    let Pair { tile, keys, k, v, rows, room, of_keys, of_queries } = pair;
    let dims = inputs.dims;
    let (qk_ld, v_ld) = (dims.qk_ld(), dims.v_ld());
    let there = tile.rows;
    let Some(panel) = tile.panel(0..there, (keys.start, keys.end)) else { return };
    let (count, lanes) = (panel.keys, there.next_multiple_of(LANES));
    multiply::<I, R, MR, LV>(Product {
        rows: count,
        terms: dims.qk,
        lanes,
        a: Spread::Rows(k, qk_ld),
        b: (rows.q, PANEL),
        start: Start::Zero,
        out: (room.p, PANEL),
        soon: None,
    });
    let [p, grad, steepness] = [&mut *room.p, &mut *room.grad, &mut *room.steepness].map(|s| &mut s[..count * PANEL]);
    shape::<I, R, PANEL>(inputs, &panel, Lanes::Rows, p, Some(steepness));
    let picks = inputs.sight.picks();
    if picks && !panel.pick::<R, PANEL>(Lanes::Rows, p) {
        return;
    }
    multiply::<I, R, MR, LV>(Product {
        rows: count,
        terms: dims.v,
        lanes,
        a: Spread::Rows(v, v_ld),
        b: (rows.grad_o, PANEL),
        start: Start::Zero,
        out: (grad, PANEL),
        soon: None,
    });
    weigh::<I, R>(p, grad, rows.lse, rows.d);
    if inputs.softcap.is_some() {
        // Not where nothing is seen: the derivative of a score that is not a number must stay out.
        for ((grad, &p), &d) in grad.iter_mut().zip(&*p).zip(&*steepness) {
            *grad = if p == R::ZERO { R::ZERO } else { *grad * d };
        }
    }
    let whole = panel.all && !picks;
    if let Some([of_k, of_v]) = of_keys {
        let terms =
            [(&*p, &*rows.grad_o_rows, v_ld, of_v, dims.v_width), (&*grad, &*rows.q_rows, qk_ld, of_k, dims.qk_width)];
        for (weights, x, ld, sums, width) in terms {
            let product = Product {
                rows: count,
                terms: there,
                lanes: width,
                a: Spread::Rows(weights, PANEL),
                b: (x, ld),
                start: Start::Sums,
                out: (sums, width),
                soon: None,
            };
            add::<I, R, MR, LV>(whole || all_finite(x, (there, width), ld), product, Weight::A);
        }
    }
    if let Some(of_q) = of_queries {
        let product = Product {
            rows: dims.qk_width,
            terms: count,
            lanes,
            a: Spread::Terms(k, qk_ld),
            b: (grad, PANEL),
            start: Start::Sums,
            out: (of_q, PANEL),
            soon: None,
        };
        add::<I, R, MR, LV>(whole || all_finite(k, (count, dims.qk_width), qk_ld), product, Weight::B);
    }
}

/// Adds a product to sums; unless it is `plain`, weights of 0 keep what is no number out.
#[inline(always)]
fn add<I: Turns<R>, R: Arith, const MR: usize, const LV: usize>(plain: bool, product: Product<'_, R>, weight: Weight) {
    if plain { multiply::<I, R, MR, LV>(product) } else { product_seen::<I, R>(product, weight) }
}

/// Replaces scores by P, and the gradients of P by those of the scores.
#[inline(always)]
fn weigh<I: Isa, R: Arith>(s: &mut [R], grad: &mut [R], lse: &[R], d: &[R]) {
    let [lse, d] = [lse, d].map(|x| x.first_chunk::<PANEL>().expect("a panel of them"));
    for (s, grad) in s.as_chunks_mut::<PANEL>().0.iter_mut().zip(grad.as_chunks_mut::<PANEL>().0) {
        for lane in 0..PANEL {
            let p = (s[lane] - lse[lane]).exp2_of::<I>() * R::from_f32(RAISED);
            s[lane] = p;
            grad[lane] = if p == R::ZERO { R::ZERO } else { p * (grad[lane] - d[lane]) };
        }
    }
}

const _: () = assert!(BLOCK.is_multiple_of(LANES));
