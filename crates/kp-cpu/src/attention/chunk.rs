//! One tile of rows against one chunk of keys: softmax block by block, never looking back.
//!
//! Many rows are the lanes of the scores, so that maximum, sum and exponential of a row need no sums across a vector;
//! for few rows the keys are. Either way it is the same numbers that are computed, and the same product that does it:
//!
//! ```text
//!           many rows: panels of W               few rows
//!   scores  S [key][row]  = K · Qᵀ               S [row][key] = Q · Kᵀ
//!           m' = max(m, S)     P = 2^(S − m')    l = l · 2^(m − m') + Σ P      f = 2^(m − m')
//!   sums    A [c][row]    = f A + Vᵀ · P         A [row][c]   = f A + P · V
//! ```
//! Blocks start at multiples of `BLOCK` and chunks at multiples of their size wherever a row's keys begin, and a hidden
//! key adds exactly nothing: a row's bits depend on its own sequence only. Scores are in units of ln 2.

use super::{
    held::Held,
    places::{Dims, Source},
    product::{LANES, Multiply, Product, Spread, Start, Weight, product_seen},
    sight::{Lanes, Panel, Sight, Tile},
    soften::{base, soften, soften_few},
    soon::Soon,
    turn::{Turns, turn},
};
use crate::{
    memory::fetch_ahead,
    simd::{
        Isa, Work,
        arith::{Arith, larger},
        vector::Vectors,
    },
};
use kp_hal::op::AttentionSpec;
use std::{f64::consts::LOG2_E, marker::PhantomData, ops::Range};

/// Keys whose scores are in cache at one time.
pub(crate) const BLOCK: usize = 64;

/// Rows of the widest panel, whose scores are in cache at one time where rows are lanes; those of O end so many at a time.
pub(crate) const PANEL: usize = 64;

/// Most rows of a tile whose lanes are keys.
pub(crate) const FEW: usize = 16;

/// Keys whose part of the result is summed by itself, so that another thread may do it.
pub(crate) const CHUNK: usize = 8 * BLOCK;

/// What all tiles of a launch share.
pub(crate) struct Inputs<'a, R> {
    pub(crate) q: Source<'a>,
    pub(crate) k: Source<'a>,
    pub(crate) v: Source<'a>,
    pub(crate) sight: Sight<'a>,
    /// What the products of Q and K are multiplied by; the same in the unit of scores, unless a cap comes between.
    pub(crate) score_scale: R,
    pub(crate) scale: R,
    /// One over the cap, and the cap in units of ln 2.
    pub(crate) softcap: Option<(R, R)>,
    pub(crate) dims: Dims,
}

impl<'a, R: Arith> Inputs<'a, R> {
    /// Q, K and V with their scales, empty where there are none; `blocks` and `slopes` of the mask likewise.
    pub(crate) fn new(
        spec: &'a AttentionSpec,
        [q, k, v]: [&'a [u8]; 3],
        [q_scale, k_scale, v_scale]: [&'a [u8]; 3],
        [blocks, slopes]: [&'a [u8]; 2],
    ) -> Self {
        let (scale, unit) = (R::from_f32(spec.score_scale()), R::from_f64(LOG2_E));
        let softcap = spec.softcap.map(|cap| R::from_f32(cap.get())).map(|cap| (R::ONE / cap, cap * unit));
        Self {
            q: Source::q(spec, q, q_scale),
            k: Source::k(spec, k, k_scale),
            v: Source::v(spec, v, v_scale),
            sight: Sight::new(spec, blocks, slopes),
            // A cap bends scores before their unit changes.
            score_scale: scale,
            scale: if softcap.is_some() { scale } else { scale * unit },
            softcap,
            dims: Dims::new(spec),
        }
    }
}

/// The operands of a block, as numbers.
pub(crate) struct Room<'s, R> {
    /// Q times the scale: panels of `[qk_width][W]`, or few rows.
    pub(crate) q: &'s mut [R],
    /// Rows of K, and of V.
    pub(crate) k: &'s mut [R],
    pub(crate) v: &'s mut [R],
    /// Kᵀ, `[qk_width][BLOCK]`, if rows are few.
    pub(crate) k_columns: &'s mut [R],
    /// Scores of a panel.
    pub(crate) s: &'s mut [R],
    /// Rows of Q before they are turned, and of O when they are done, [`PANEL`] at a time.
    pub(crate) rows: &'s mut [R],
    /// What `k` and `v` hold, where loops keep that.
    pub(crate) held: Held,
}

/// What is known of a tile's rows after some keys.
pub(crate) struct State<'s, R> {
    /// Largest score of each row.
    pub(crate) max: &'s mut [R],
    /// Sum of 2^(score − max).
    pub(crate) sum: &'s mut [R],
    /// The same sum with each term times its value: panels of `[v_width][W]`, or few rows.
    pub(crate) acc: &'s mut [R],
}

impl<R: Arith> State<'_, R> {
    /// Forgets all keys that `rows` rows have seen.
    pub(crate) fn clear(&mut self, rows: usize) {
        let (all, width) = (self.max.len(), self.acc.len() / self.max.len());
        let rows = rows.next_multiple_of(PANEL).min(all);
        self.max[..rows].fill(-R::INFINITY);
        self.sum[..rows].fill(R::ZERO);
        self.acc[..rows * width].fill(R::ZERO);
    }
}

/// What a tile needs done.
pub(crate) struct Job<'w, 'r, 's, R> {
    pub(crate) inputs: &'w Inputs<'w, R>,
    pub(crate) tile: &'w Tile<'w>,
    pub(crate) few: bool,
    pub(crate) room: &'w mut Room<'r, R>,
    pub(crate) state: &'w mut State<'s, R>,
    pub(crate) task: Task<'w, 's, R>,
}

pub(crate) enum Task<'w, 's, R> {
    /// Read the rows of Q.
    Load,
    /// Take in keys, within one chunk.
    Keys(Range<usize>),
    /// Take in what is known after other keys.
    Merge(&'w State<'s, R>),
    /// Leave rows of sums, [`PANEL`] at a time, each times its factor, in `room.rows`.
    Finish(usize, &'w [R; PANEL]),
}

/// A job on an instruction set, with products blocked by `MR` and `LV`, and panels of `W` rows.
///
/// Panels as wide as a block of a product lie in cache line behind line. In wider ones the lines of a block's columns are a power of two
/// apart: Q, scores and sums of 64 rows met in a quarter of the first cache, and products by AVX2 took 1 to 4 % longer.
pub(crate) struct Chunk<'w, 'r, 's, R, I, const MR: usize, const LV: usize, const W: usize> {
    pub(crate) job: Job<'w, 'r, 's, R>,
    pub(crate) isa: PhantomData<fn() -> I>,
}

impl<R: Arith, I: Turns<R>, const MR: usize, const LV: usize, const W: usize> Work
    for Chunk<'_, '_, '_, R, I, MR, LV, W>
{
    #[inline(always)]
    fn run(self) {
        const { assert!(W.is_multiple_of(LANES) && PANEL.is_multiple_of(W) && W >= FEW) };
        let Job { inputs, tile, few, room, state, task } = self.job;
        match task {
            Task::Load => load_rows::<I, R, W>(inputs, tile, few, room),
            Task::Keys(keys) if few => few_rows::<I, R, MR, LV>(inputs, tile, keys, room, state),
            Task::Keys(keys) => many_rows::<I, R, MR, LV, W>(inputs, tile, keys, room, state),
            Task::Merge(other) => merge::<I, R, W>(state, other, tile.rows, few, inputs.dims.v_width),
            Task::Finish(panel, factors) => {
                let rows = (tile.rows - panel * PANEL).min(PANEL);
                finish::<I, R, W>(inputs.dims, (few, rows), room, state, panel, factors);
            }
        }
    }
}

/// Lanes of a panel of `W` that has the first of `rows` rows.
#[inline(always)]
fn lanes<const W: usize>(rows: usize) -> usize {
    rows.min(W).next_multiple_of(LANES)
}

/// One product, not inlined: every one of a kernel is the same code.
#[inline(always)]
pub(crate) fn multiply<I: Vectors<R>, R: Arith, const MR: usize, const LV: usize>(product: Product<'_, R>) {
    I::run(Multiply::<R, I, MR, LV> { product, isa: PhantomData });
}

#[inline(always)]
fn load_rows<I: Turns<R>, R: Arith, const W: usize>(
    inputs: &Inputs<'_, R>,
    tile: &Tile<'_>,
    few: bool,
    room: &mut Room<'_, R>,
) {
    let Dims { qk_width, .. } = inputs.dims;
    let ld = inputs.dims.qk_ld();
    let mut rows = tile.rows();
    if few {
        for (row, out) in rows.zip(room.q.chunks_exact_mut(ld)) {
            inputs.q.read::<I, _>(tile.sequence.query(row.query), row.head, &mut out[..qk_width]);
            out.iter_mut().for_each(|x| *x *= inputs.scale);
        }
        return;
    }
    let mut ahead = tile.rows();
    for first in (0..tile.rows).step_by(W) {
        if first % PANEL == 0 {
            // Asked for all at once: rows of a head may lie a page apart.
            for row in ahead.by_ref().take(PANEL) {
                fetch_ahead(inputs.q.row_of(tile.sequence.query(row.query), row.head));
            }
        }
        let lanes = lanes::<W>(tile.rows - first);
        for out in room.rows.chunks_exact_mut(ld).take(lanes) {
            match rows.next() {
                Some(row) => inputs.q.read::<I, _>(tile.sequence.query(row.query), row.head, &mut out[..qk_width]),
                None => out.fill(R::ZERO),
            }
        }
        let out = &mut room.q[first * qk_width..];
        turn::<I, R>((room.rows, ld), (lanes, qk_width), inputs.scale, (out, W));
    }
}

#[inline(always)]
fn many_rows<I: Turns<R>, R: Arith, const MR: usize, const LV: usize, const W: usize>(
    inputs: &Inputs<'_, R>,
    tile: &Tile<'_>,
    keys: Range<usize>,
    room: &mut Room<'_, R>,
    state: &mut State<'_, R>,
) {
    let Dims { qk, qk_width, v_width, .. } = inputs.dims;
    let (k_ld, v_ld) = (inputs.dims.qk_ld(), inputs.dims.v_ld());
    let mut start = keys.start / BLOCK * BLOCK;
    while start < keys.end {
        let end = keys.end.min(start + BLOCK);
        inputs.k.read_rows::<I, _>(tile, start..end, k_ld, room.k);
        inputs.v.read_rows::<I, _>(tile, start..end, v_ld, room.v);
        let next = end..tile.end.min(end + BLOCK);
        let blocks = tile.rows.div_ceil(W) * (end - start + v_width).div_ceil(MR);
        let mut soon = Soon::of([&inputs.k, &inputs.v], tile, next, blocks);
        let mut finite = None;
        for first in (0..tile.rows).step_by(W) {
            let Some(panel) = tile.panel(first..(first + W).min(tile.rows), (start, end)) else { continue };
            let lanes = lanes::<W>(panel.rows.len());
            multiply::<I, R, MR, LV>(Product {
                rows: panel.keys,
                terms: qk,
                lanes,
                a: Spread::Rows(room.k, k_ld),
                b: (&room.q[first * qk_width..], W),
                start: Start::Zero,
                out: (room.s, W),
                soon: Some(&mut soon),
            });
            let s = &mut room.s[..panel.keys * W];
            shape::<I, R, W>(inputs, &panel, Lanes::Rows, s, None);
            let picks = inputs.sight.picks();
            if picks && !panel.pick::<R, W>(Lanes::Rows, s) {
                continue;
            }
            let mut factors = [R::ZERO; W];
            soften::<I, R, W>(s, lanes, &mut state.max[first..], &mut state.sum[first..], &mut factors);
            let product = Product {
                rows: v_width,
                terms: panel.keys,
                lanes,
                a: Spread::Terms(room.v, v_ld),
                b: (s, W),
                start: Start::ByLane(&factors),
                out: (&mut state.acc[first * v_width..], W),
                soon: Some(&mut soon),
            };
            // 0 times NaN would let a hidden key show.
            if (panel.all && !picks) || *finite.get_or_insert_with(|| all_finite(room.v, (end - start, v_width), v_ld))
            {
                multiply::<I, R, MR, LV>(product);
            } else {
                product_seen::<I, R>(product, Weight::B);
            }
        }
        start += BLOCK;
    }
}

#[inline(always)]
fn few_rows<I: Turns<R>, R: Arith, const MR: usize, const LV: usize>(
    inputs: &Inputs<'_, R>,
    tile: &Tile<'_>,
    keys: Range<usize>,
    room: &mut Room<'_, R>,
    state: &mut State<'_, R>,
) {
    let Dims { qk, v_width, .. } = inputs.dims;
    let (k_ld, v_ld) = (inputs.dims.qk_ld(), inputs.dims.v_ld());
    let rows = tile.rows;
    let mut start = keys.start / BLOCK * BLOCK;
    while start < keys.end {
        let end = keys.end.min(start + BLOCK);
        let block = (start, end);
        start += BLOCK;
        let Some(panel) = tile.panel(0..rows, block) else { continue };
        let seen = block.0..block.0 + panel.keys;
        inputs.k.expect(tile, seen.clone());
        inputs.k.read_columns::<I, R>(tile, seen.clone(), (room.k, k_ld), room.k_columns);
        multiply::<I, R, MR, LV>(Product {
            rows,
            terms: qk,
            lanes: BLOCK,
            a: Spread::Rows(room.q, k_ld),
            b: (room.k_columns, BLOCK),
            start: Start::Zero,
            out: (room.s, BLOCK),
            soon: None,
        });
        let s = &mut room.s[..rows * BLOCK];
        shape::<I, R, FEW>(inputs, &panel, Lanes::Keys, s, None);
        let picks = inputs.sight.picks();
        if picks && !panel.pick::<R, FEW>(Lanes::Keys, s) {
            continue;
        }
        let mut factors = [R::ZERO; FEW];
        soften_few::<I, R>(s, panel.keys, state.max, state.sum, &mut factors);
        inputs.v.expect(tile, seen.clone());
        inputs.v.read_rows::<I, _>(tile, seen, v_ld, room.v);
        let product = Product {
            rows,
            terms: panel.keys,
            lanes: v_width,
            a: Spread::Rows(s, BLOCK),
            b: (room.v, v_ld),
            start: Start::ByRow(&factors),
            out: (state.acc, v_width),
            soon: None,
        };
        if (panel.all && !picks) || all_finite(room.v, (panel.keys, v_width), v_ld) {
            multiply::<I, R, MR, LV>(product);
        } else {
            product_seen::<I, R>(product, Weight::A);
        }
    }
}

#[inline(always)]
pub(crate) fn all_finite<R: Arith>(x: &[R], (rows, width): (usize, usize), ld: usize) -> bool {
    let finite = |x: &[R; LANES]| x.iter().fold(true, |finite, x| finite & x.is_finite());
    x.chunks(ld).take(rows).all(|x| x[..width].as_chunks().0.iter().all(finite))
}

/// Turns products of at most `W` rows into scores: capped, by distance, −∞ outside the interval. Where a cap bends them, `steepness`
/// gets the derivative.
#[inline(always)]
pub(crate) fn shape<I: Isa, R: Arith, const W: usize>(
    inputs: &Inputs<'_, R>,
    panel: &Panel<'_>,
    lanes: Lanes,
    s: &mut [R],
    steepness: Option<&mut [R]>,
) {
    if let Some((share, cap)) = inputs.softcap {
        I::run(Bend::<R, I> { s, share, cap, steepness, isa: PhantomData });
    }
    panel.bias::<R, W>(lanes, R::from_f64(LOG2_E), s);
    panel.cut::<R, W>(lanes, s);
}

/// The part of [`shape`] that caps scores.
struct Bend<'a, R, I> {
    s: &'a mut [R],
    share: R,
    cap: R,
    steepness: Option<&'a mut [R]>,
    isa: PhantomData<fn() -> I>,
}

impl<R: Arith, I: Isa> Work for Bend<'_, R, I> {
    #[inline(always)]
    fn run(self) {
        let Self { s, share, cap, steepness, .. } = self;
        s.iter_mut().for_each(|s| *s = (*s * share).tanh_of::<I>());
        if let Some(steepness) = steepness {
            steepness.iter_mut().zip(&*s).for_each(|(d, &t)| *d = R::ONE - t * t);
        }
        s.iter_mut().for_each(|s| *s = cap * *s);
    }
}

/// Takes in what is known after other keys.
#[inline(always)]
fn merge<I: Isa, R: Arith, const W: usize>(
    state: &mut State<'_, R>,
    other: &State<'_, R>,
    rows: usize,
    few: bool,
    width: usize,
) {
    for first in (0..rows).step_by(W) {
        let (mut mine, mut theirs) = ([R::ZERO; W], [R::ZERO; W]);
        for (i, row) in (first..rows.min(first + W)).enumerate() {
            let max = larger(state.max[row], other.max[row]);
            let base = base(max);
            (mine[i], theirs[i]) = ((state.max[row] - base).exp2_of::<I>(), (other.max[row] - base).exp2_of::<I>());
            state.max[row] = max;
            state.sum[row] = state.sum[row] * mine[i] + other.sum[row] * theirs[i];
        }
        if few {
            for (i, (a, b)) in state.acc.chunks_exact_mut(width).zip(other.acc.chunks_exact(width)).enumerate() {
                a.iter_mut().zip(b).for_each(|(a, &b)| *a = *a * mine[i] + b * theirs[i]);
            }
        } else {
            let panel = first * width..(first + W) * width;
            let (a, b) = (&mut state.acc[panel.clone()], &other.acc[panel]);
            for (a, b) in a.as_chunks_mut::<W>().0.iter_mut().zip(b.as_chunks::<W>().0) {
                for lane in 0..W {
                    a[lane] = a[lane] * mine[lane] + b[lane] * theirs[lane];
                }
            }
        }
    }
}

#[inline(always)]
fn finish<I: Turns<R>, R: Arith, const W: usize>(
    dims: Dims,
    (few, rows): (bool, usize),
    room: &mut Room<'_, R>,
    state: &mut State<'_, R>,
    panel: usize,
    factors: &[R; PANEL],
) {
    let (width, ld) = (dims.v_width, dims.v_ld());
    if few {
        for ((out, acc), &factor) in room.rows.chunks_exact_mut(ld).zip(state.acc.chunks_exact(width)).zip(factors) {
            out.iter_mut().zip(acc).for_each(|(out, &x)| *out = x * factor);
        }
        return;
    }
    for first in (0..rows).step_by(W) {
        let (lanes, factors) = (lanes::<W>(rows - first), &factors[first..first + W]);
        let acc = &mut state.acc[(panel * PANEL + first) * width..][..W * width];
        for acc in acc.as_chunks_mut::<W>().0 {
            acc[..lanes].iter_mut().zip(factors).for_each(|(acc, &factor)| *acc *= factor);
        }
        turn::<I, R>((acc, W), (width, lanes), R::ONE, (&mut room.rows[first * ld..], ld));
    }
}

const _: () = assert!(PANEL == BLOCK && CHUNK.is_multiple_of(BLOCK));
