//! One tile of rows against one chunk of keys: softmax block by block, never looking back.
//!
//! Rows are the lanes of the scores, so that maximum, sum and exponential of a row need no sums across a vector.
//!
//! ```text
//!              BLOCK keys                     per block:  S  = K · Qᵀ              [key][lane]
//!   Qᵀ  [c][lane] ─┐   K [key][c]                         m' = max(m, S)
//!                  └── S [key][lane]                      P  = exp(S − m')
//!   A [row][c] ◂────── P · V [key][c]                     l  = l · exp(m − m') + Σ P
//!                                                         A  = A · exp(m − m') + P · V
//! ```
//! Blocks start at multiples of `BLOCK` and chunks at multiples of `CHUNK` wherever a row's keys begin, and a hidden
//! key adds exactly nothing: a row's bits depend on its own sequence only.

use super::{
    places::Source,
    product::{Weights, accumulate, accumulate_seen, scores},
    sight::{MAX_ROWS, Panel, Sight, Tile},
};
use crate::simd::{
    Isa, Work,
    arith::{Arith, larger},
    vector::Vectors,
};
use kp_hal::op::AttentionSpec;
use std::{marker::PhantomData, ops::Range};

/// Keys whose scores are in cache at one time.
pub(crate) const BLOCK: usize = 64;

/// Keys whose part of the result is summed by itself, so that another thread may do it.
pub(crate) const CHUNK: usize = 8 * BLOCK;

/// Columns of V and of the sums come in multiples of this; the last ones are zeros.
pub(crate) const COLUMNS: usize = 32;

/// What all tiles of a launch share.
pub(crate) struct Inputs<'a, R> {
    pub(crate) q: Source<'a>,
    pub(crate) k: Source<'a>,
    pub(crate) v: Source<'a>,
    pub(crate) sight: Sight<'a>,
    pub(crate) scale: R,
    pub(crate) softcap: Option<R>,
    /// Columns of V, rounded up.
    pub(crate) width: usize,
}

impl<'a, R: Arith> Inputs<'a, R> {
    /// Q, K and V with their scales, empty where there are none; `blocks` and `slopes` of the mask likewise.
    pub(crate) fn new(
        spec: &'a AttentionSpec,
        [q, k, v]: [&'a [u8]; 3],
        [q_scale, k_scale, v_scale]: [&'a [u8]; 3],
        [blocks, slopes]: [&'a [u8]; 2],
    ) -> Self {
        Self {
            q: Source::q(spec, q, q_scale),
            k: Source::k(spec, k, k_scale),
            v: Source::v(spec, v, v_scale),
            sight: Sight::new(spec, blocks, slopes),
            scale: R::from_f32(spec.score_scale()),
            softcap: spec.softcap.map(|cap| R::from_f32(cap.get())),
            width: (spec.v_dim as usize).next_multiple_of(COLUMNS),
        }
    }
}

/// The operands of a block, as numbers.
pub(crate) struct Room<'s, R> {
    /// Panels of `[qk_dim][L]`.
    pub(crate) q: &'s mut [R],
    /// `[BLOCK][qk_dim]`.
    pub(crate) k: &'s mut [R],
    /// `[BLOCK][width]`.
    pub(crate) v: &'s mut [R],
    /// Panels of `[BLOCK][L]`.
    pub(crate) s: &'s mut [R],
}

/// What is known of a tile's rows after some keys.
pub(crate) struct State<'s, R> {
    /// Largest score of each row.
    pub(crate) max: &'s mut [R],
    /// Sum of exp(score − max).
    pub(crate) sum: &'s mut [R],
    /// The same sum with each term times its value: `[row][width]`.
    pub(crate) acc: &'s mut [R],
}

impl<R: Arith> State<'_, R> {
    /// Forgets all keys.
    pub(crate) fn clear(&mut self) {
        self.max.fill(-R::INFINITY);
        self.sum.fill(R::ZERO);
        self.acc.fill(R::ZERO);
    }

    /// Takes in what is known after other keys.
    pub(crate) fn merge(&mut self, other: &State<'_, R>, rows: usize, width: usize) {
        for row in 0..rows {
            let max = larger(self.max[row], other.max[row]);
            let base = if max == -R::INFINITY { R::ZERO } else { max };
            let (mine, theirs) = ((self.max[row] - base).exp(), (other.max[row] - base).exp());
            self.max[row] = max;
            self.sum[row] = self.sum[row] * mine + other.sum[row] * theirs;
            let range = row * width..(row + 1) * width;
            for (a, &b) in self.acc[range.clone()].iter_mut().zip(&other.acc[range]) {
                *a = *a * mine + b * theirs;
            }
        }
    }
}

/// The work on one chunk. `L` rows, which are `LV` vectors, are a panel; `KR`, `RR` and `VV` block the products.
pub(crate) struct Chunk<
    'w,
    'r,
    's,
    R,
    I,
    const L: usize,
    const LV: usize,
    const KR: usize,
    const RR: usize,
    const VV: usize,
> {
    pub(crate) job: Job<'w, 'r, 's, R>,
    pub(crate) isa: PhantomData<fn() -> I>,
}

/// A tile, its keys, and where the result goes.
pub(crate) struct Job<'w, 'r, 's, R> {
    pub(crate) inputs: &'w Inputs<'w, R>,
    pub(crate) tile: &'w Tile<'w, R>,
    /// Within one chunk.
    pub(crate) keys: Range<usize>,
    pub(crate) room: &'w mut Room<'r, R>,
    pub(crate) state: &'w mut State<'s, R>,
}

impl<R: Arith, I: Vectors<R>, const L: usize, const LV: usize, const KR: usize, const RR: usize, const VV: usize> Work
    for Chunk<'_, '_, '_, R, I, L, LV, KR, RR, VV>
{
    #[inline(always)]
    fn run(self) {
        let Job { inputs, tile, keys, room, state } = self.job;
        const { assert!(L == LV * I::N && COLUMNS.is_multiple_of(VV * I::N) && BLOCK.is_multiple_of(KR)) };
        let panels = tile.rows.div_ceil(L);
        let (dim, width) = (inputs.q.rows.dim, inputs.width);
        let mut start = keys.start / BLOCK * BLOCK;
        while start < keys.end {
            let count = BLOCK.min(keys.end - start);
            load(&inputs.k, tile, (start, count), dim, room.k);
            // Keys that fill up a group of KR are computed with the others and then ignored.
            room.k[count * dim..count.next_multiple_of(KR) * dim].fill(R::ZERO);
            let (mut loaded, mut finite) = (false, None);
            for index in 0..panels {
                let panel = Panel::<R, L>::new(tile, index, start, count);
                if !panel.any {
                    continue;
                }
                let s = &mut room.s[index * BLOCK * L..(index + 1) * BLOCK * L];
                let lanes = &room.q[index * dim * L..(index + 1) * dim * L];
                scores::<I, R, LV, KR>(&room.k[..count.next_multiple_of(KR) * dim], (dim, dim), lanes, s);
                let s = &mut s[..count * L];
                shape::<I, R, L>(inputs, &panel, s, None);
                let picks = inputs.sight.picks();
                if picks && !panel.pick(&inputs.sight, tile.sequence.b, start, count, s) {
                    continue;
                }
                let first = index * L;
                let factors = soften::<I, R, L>(s, &mut state.max[first..first + L], &mut state.sum[first..first + L]);
                if !loaded {
                    load(&inputs.v, tile, (start, count), width, room.v);
                    loaded = true;
                }
                let values = &room.v[..count * width];
                let weights = Weights { at: s, row: 1, term: L };
                let rows = (tile.rows - first).min(L);
                let sums = &mut state.acc[first * width..(first + rows) * width];
                let factor = |row: usize| factors[row];
                // 0 times NaN would let a hidden key show.
                if (panel.all && !picks) || *finite.get_or_insert_with(|| values.iter().all(|x| x.is_finite())) {
                    accumulate::<I, R, RR, VV>(weights, (rows, count), values, width, factor, sums);
                } else {
                    accumulate_seen::<I, R>(weights, (rows, count), values, width, factor, sums);
                }
            }
            start += BLOCK;
        }
    }
}

/// Reads keys `start .. start + count` of the tile's head as rows of `width`, and asks for those a block later.
#[inline(always)]
pub(crate) fn load<R: Arith>(
    from: &Source<'_>,
    tile: &Tile<'_, R>,
    (start, count): (usize, usize),
    width: usize,
    out: &mut [R],
) {
    for (key, row) in (start..start + count).zip(out.chunks_exact_mut(width)) {
        from.read(tile.sequence.key(key), tile.kv_head, row);
        // Otherwise memory would rest while the block is computed.
        if key + BLOCK < tile.end {
            from.expect(tile.sequence.key(key + BLOCK), tile.kv_head);
        }
    }
}

/// Puts row `i` of a tile into its lane of its panel.
pub(crate) fn to_panel<R: Copy>(i: usize, row: &[R], lanes: usize, panels: &mut [R]) {
    let panel = &mut panels[i / lanes * lanes * row.len()..][..lanes * row.len()];
    for (column, &x) in panel.chunks_exact_mut(lanes).zip(row) {
        column[i % lanes] = x;
    }
}

/// Turns dot products into scores: scaled, capped, by distance, −∞ outside the interval. Where a cap bends them,
/// `steepness` gets the derivative.
#[inline(always)]
pub(crate) fn shape<I: Isa, R: Arith, const L: usize>(
    inputs: &Inputs<'_, R>,
    panel: &Panel<'_, R, L>,
    s: &mut [R],
    steepness: Option<&mut [R]>,
) {
    s.iter_mut().for_each(|s| *s *= inputs.scale);
    if let Some(cap) = inputs.softcap {
        let share = R::ONE / cap;
        s.iter_mut().for_each(|s| *s = (*s * share).tanh_of::<I>());
        if let Some(steepness) = steepness {
            steepness.iter_mut().zip(&*s).for_each(|(d, &t)| *d = R::ONE - t * t);
        }
        s.iter_mut().for_each(|s| *s = cap * *s);
    }
    if !inputs.sight.slopes.is_empty() {
        for (key, s) in s.chunks_exact_mut(L).enumerate() {
            panel.bias(key, s.try_into().expect("chunks of L"));
        }
    }
    if !panel.all {
        for (key, s) in s.chunks_exact_mut(L).enumerate() {
            panel.cut(key, s.try_into().expect("chunks of L"));
        }
    }
}

/// Replaces scores by exp(score − maximum), renews maximum and sum, and answers what earlier sums shrink by.
#[inline(always)]
fn soften<I: Isa, R: Arith, const L: usize>(s: &mut [R], max: &mut [R], sum: &mut [R]) -> [R; L] {
    let old: [R; L] = (&*max).try_into().expect("L of them");
    let mut new = old;
    for s in s.chunks_exact(L) {
        for lane in 0..L {
            new[lane] = larger(new[lane], s[lane]);
        }
    }
    let (mut base, mut factors) = ([R::ZERO; L], [R::ZERO; L]);
    for lane in 0..L {
        // A row that has seen nothing yet has nothing to subtract from −∞.
        base[lane] = if new[lane] == -R::INFINITY { R::ZERO } else { new[lane] };
        factors[lane] = (old[lane] - base[lane]).exp_of::<I>();
    }
    let mut sums = [R::ZERO; L];
    for s in s.chunks_exact_mut(L) {
        for lane in 0..L {
            let p = (s[lane] - base[lane]).exp_of::<I>();
            s[lane] = p;
            sums[lane] += p;
        }
    }
    max.copy_from_slice(&new);
    for lane in 0..L {
        sum[lane] = sum[lane].times_plus::<I>(factors[lane], sums[lane]);
    }
    factors
}

const _: () = assert!(MAX_ROWS.is_multiple_of(32) && BLOCK.is_multiple_of(16) && CHUNK.is_multiple_of(BLOCK));
