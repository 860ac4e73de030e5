//! One tile of rows against one chunk of keys by products of pairs of bf16; rows are lanes, as in [`super::chunk`].
//!
//! ```text
//!                     left, rows of pairs          right, lines of pairs             made
//!   scores            rows of K                    pairs of numbers of Q             S [key][row] = K · Qᵀ
//!   weights                                                                          P = 2^(S − m), in pairs of keys
//!   sums              columns of V                 P of several blocks               A [number][row] += Vᵀ · P
//! ```
//! An [engine](Engine) says what pairs are of, and multiplies 32 rows by 32 lanes at a time. Scores come as lanes and weights in pairs of keys
//! without any exchange of lanes; V alone is turned, once for all rows of the tile. What [weights](super::weights) are counted from seldom
//! changes, so those of some blocks wait for each other, and sums are loaded and stored once for all of them.

use super::{
    chunk::{BLOCK as KEYS, Inputs, Job, PANEL, Room, State, Task, shape},
    held::{Block, RUN, places},
    machine::Compiled,
    places::Dims,
    plan::Tiling,
    run::Loops,
    sight::{Lanes, Tile},
    soon::Soon,
    weights::{Bases, LEAST},
};
use crate::{
    amx::{ROW_BYTES, ROWS},
    gemm::{amx::parts::is_special, few::columns::bytes_mut},
    memory::fetch_ahead,
    simd::Avx512,
};
use kp_hal::{
    Variant,
    op::{AttentionSpec, Format},
};
use std::{arch::x86_64::__m512, ops::Range};

/// Rows, or keys, or values that are multiplied together: those of two tiles.
pub(super) const BLOCK: usize = 2 * ROWS;

/// Numbers of bf16 of a tile's row.
pub(super) const STEP: usize = ROW_BYTES / 2;

/// Keys of a chunk: the fewer of them, the fewer sums are to be merged.
const CHUNK: usize = 2 * RUN;

/// Bytes of what an engine makes ready.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    /// Of a panel of Q, a block of K, a run of V.
    pub(super) queries: usize,
    pub(super) keys: usize,
    pub(super) values: usize,
    /// Of a panel's weights of [`Engine::WAIT`] steps of keys.
    pub(super) weights: usize,
}

/// Rows of a tile that are made ready.
pub(super) struct Reads<'r> {
    pub(super) inputs: &'r Inputs<'r, f32>,
    pub(super) tile: &'r Tile<'r>,
    /// Room for them as they were read, [`PANEL`] at most.
    pub(super) lines: &'r mut [f32],
}

/// How Q, K, V and weights become pairs, and what multiplies them.
///
/// # Safety of all of it
/// The processor has AVX-512 and what else the engine's kernel asks for.
pub(super) trait Engine: Sized {
    /// Keys that are made ready at a time.
    const AT_ONCE: usize;

    /// Steps of keys whose weights wait for each other: their weights stay in the first cache while values pass.
    const WAIT: usize;

    /// Runs of keys that stay ready, at most.
    const PLACES: usize;

    /// The polynomial that is 2ˣ from −½ to ½, highest term first: as exact as weights are.
    const POWERS: &'static [f32];

    /// For the operands of a launch.
    ///
    /// # Safety
    /// As of all of it, and there is one of it on a thread at a time.
    unsafe fn new(inputs: &Inputs<'_, f32>) -> Self;

    fn sizes(q: Format, kv: Format, dims: Dims) -> Sizes;

    /// Makes at most a panel of rows of Q ready. Answers whether it holds them all: numbers that it does not hold count as 0.
    ///
    /// # Safety
    /// As of all of it.
    unsafe fn queries(reads: Reads<'_>, rows: Range<usize>, out: &mut [u8]) -> bool;

    /// Makes at most a block of keys ready likewise.
    ///
    /// # Safety
    /// As of all of it.
    unsafe fn keys(&self, reads: Reads<'_>, keys: Range<usize>, out: &mut [u8]) -> bool;

    /// Makes the values of at most a block of keys ready likewise, in what is of their run, from a step on.
    ///
    /// # Safety
    /// As of all of it.
    unsafe fn values(&self, reads: Reads<'_>, keys: Range<usize>, out: (usize, &mut [u8])) -> bool;

    /// Products of so many keys of a block and rows of a panel, 32 by 32 at a time, with something asked for each time.
    ///
    /// # Safety
    /// As of all of it.
    unsafe fn scores(&self, dims: Dims, k: &[u8], q: &[u8], counts: [usize; 2], s: &mut [f32], soon: &mut Soon);

    /// Stores the weights of 16 rows, from `lane` on, and of a pair of keys, of those that wait, for which `out` has [room](Sizes::weights). A
    /// pointer, since what is made between two stores would not stay there across a check.
    ///
    /// # Safety
    /// As of all of it, and there is that room.
    unsafe fn put(pair: usize, lane: usize, weights: [__m512; 2], out: *mut u8);

    /// One of them.
    fn weight(weights: &[u8], key: usize, lane: usize) -> f32;

    /// Adds values of some steps of a run, times weights, to the sums of `rows` rows.
    ///
    /// # Safety
    /// As of all of it.
    unsafe fn add(&self, dims: Dims, values: &[u8], steps: Range<usize>, weights: &[u8], rows: usize, acc: &mut [f32]);
}

/// What an engine runs, and what that wants for a problem.
pub(super) fn loops<E: Engine>(spec: &AttentionSpec, tiling: Tiling) -> Loops<f32> {
    const { assert!(E::WAIT.is_multiple_of(KEYS / STEP), "steps of a block wait together") };
    let sizes = E::sizes(spec.q, spec.kv, Dims::new(spec));
    let runs = places(spec.kv_len as usize, E::PLACES);
    let bytes = [
        tiling.tile.div_ceil(PANEL) * sizes.queries,
        runs * (RUN / KEYS) * sizes.keys,
        runs * sizes.values,
        4 * KEYS * PANEL + sizes.weights,
    ];
    Loops { run: chunk::<E>, chunk: CHUNK, room: bytes.map(|bytes| bytes / size_of::<f32>()) }
}

fn chunk<E: Engine>(job: Job<'_, '_, '_, f32>) {
    let Job { inputs, tile, room, state, task, .. } = job;
    match task {
        // SAFETY: `supports` asked for the features.
        Task::Load => unsafe { load::<E>(inputs, tile, room) },
        // SAFETY: as above.
        Task::Keys(keys) => unsafe { take::<E>(inputs, tile, keys, room, state) },
        task => {
            const AVX512: Variant = Variant(2);
            (f32::machine(AVX512).chunk)(Job { inputs, tile, few: false, room, state, task });
        }
    }
}

fn sizes<E: Engine>(inputs: &Inputs<'_, f32>) -> Sizes {
    E::sizes(inputs.q.format, inputs.k.format, inputs.dims)
}

/// Reads the rows of Q, a panel at a time.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn load<E: Engine>(inputs: &Inputs<'_, f32>, tile: &Tile<'_>, room: &mut Room<'_, f32>) {
    let sizes = sizes::<E>(inputs);
    let mut ahead = tile.rows();
    for (panel, out) in bytes_mut(room.q).chunks_exact_mut(sizes.queries).take(tile.rows.div_ceil(PANEL)).enumerate() {
        // Asked for all at once: copied row by row, few of them would be on their way.
        for row in ahead.by_ref().take(PANEL) {
            fetch_ahead(inputs.q.row_of(tile.sequence.query(row.query), row.head));
        }
        let rows = panel * PANEL..tile.rows.min((panel + 1) * PANEL);
        // SAFETY: `supports` asked for the features.
        room.held.queries[panel] = unsafe { E::queries(Reads { inputs, tile, lines: room.rows }, rows, out) };
    }
}

/// Takes in the first keys of a state.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn take<E: Engine>(
    inputs: &Inputs<'_, f32>,
    tile: &Tile<'_>,
    keys: Range<usize>,
    room: &mut Room<'_, f32>,
    state: &mut State<'_, f32>,
) {
    // SAFETY: `supports` asked for the features, here and below, and there is one of it on this thread until the end of this function.
    let engine = unsafe { E::new(inputs) };
    let (dims, sizes, picks) = (inputs.dims, sizes::<E>(inputs), inputs.sight.picks());
    // A positive factor changes nothing about what is largest; subtracted first, the largest leaves exactly 0.
    let is_factor = inputs.scale > 0.0 && (LEAST / inputs.scale).is_finite();
    let plain = inputs.softcap.is_none() && inputs.sight.slopes.is_empty() && is_factor;
    let scale = if plain { inputs.scale } else { 1.0 };
    let panels = tile.rows.div_ceil(PANEL);
    // As many as `loops` asked for.
    let run_places = size_of_val(room.v) / sizes.values;
    let mut origin = keys.start / KEYS * KEYS;
    while origin < keys.end {
        let stop = keys.end.min((origin / E::AT_ONCE + 1) * E::AT_ONCE);
        let blocks = || (origin..stop).step_by(KEYS).map(|start| (start % RUN / KEYS, (start, stop.min(start + KEYS))));
        let (place, run) = room.held.run(tile, origin, run_places);
        let k = &mut bytes_mut(room.k)[place * (RUN / KEYS) * sizes.keys..];
        let v = &mut bytes_mut(room.v)[place * sizes.values..][..sizes.values];
        for (i, (start, end)) in blocks() {
            let block = &mut run.blocks[i];
            if block.keys < end - start {
                let (out, step) = (&mut k[i * sizes.keys..][..sizes.keys], i * (KEYS / STEP));
                // SAFETY: as above.
                let (holds_keys, holds_values) = unsafe {
                    (
                        engine.keys(Reads { inputs, tile, lines: room.rows }, start..end, out),
                        engine.values(Reads { inputs, tile, lines: room.rows }, start..end, (step, &mut *v)),
                    )
                };
                *block = Block { keys: end - start, holds_keys, holds_values };
            }
        }
        let (run, k, v, queries) = (*run, &*k, &*v, room.held.queries);
        let (scores, weights) = room.s.split_at_mut(KEYS * PANEL);
        let weights = bytes_mut(weights);
        // What is made ready next is asked for a block at a time, each in as many steps, a panel by a block, as another.
        let next = stop..tile.end.min(stop + E::AT_ONCE);
        let next = if room.held.has(tile, next.clone(), run_places) { stop..stop } else { next };
        let (each, next_blocks) = ((stop - origin).div_ceil(KEYS), next.len().div_ceil(KEYS));
        let all_steps = panels * each;
        let soon_of = |block: usize| {
            let start = next.start + block * KEYS;
            let calls = all_steps * (KEYS / BLOCK) * (PANEL / BLOCK) / next_blocks.max(1);
            Soon::of([&inputs.k, &inputs.v], tile, start..next.end.min(start + KEYS), calls)
        };
        let (mut soon, mut soon_block) = (soon_of(0), 0);
        for (p, first) in (0..tile.rows).step_by(PANEL).enumerate() {
            let rows = first..(first + PANEL).min(tile.rows);
            let q = &bytes_mut(room.q)[p * sizes.queries..][..sizes.queries];
            let acc = &mut state.acc[first * dims.v_width..][..dims.v_width * PANEL];
            let (max, sum) = (&mut state.max[first..], &mut state.sum[first..]);
            let lanes = || (0..rows.len()).step_by(BLOCK);
            let add = |steps: Range<usize>, weights: &[u8], acc: &mut [f32]| {
                if !steps.is_empty() {
                    // SAFETY: as above.
                    unsafe { engine.add(dims, v, steps, weights, rows.len(), acc) };
                }
            };
            // Steps whose weights wait.
            let mut waiting = 0..0;
            for (at, (i, block)) in blocks().enumerate() {
                let wanted = (p * each + at) * next_blocks / all_steps;
                if wanted != soon_block {
                    (soon, soon_block) = (soon_of(wanted), wanted);
                }
                let Some(panel) = tile.panel(rows.clone(), block) else { continue };
                let whole = panel.keys.next_multiple_of(BLOCK);
                let k = &k[i * sizes.keys..][..sizes.keys];
                // SAFETY: as above.
                unsafe { engine.scores(dims, k, q, [whole, rows.len()], scores, &mut soon) };
                let s = &mut scores[..panel.keys * PANEL];
                let seen = block.0..block.0 + panel.keys;
                if !(queries[p] && run.blocks[i].holds_keys) {
                    add_scores(inputs, tile, rows.clone(), seen.clone(), s);
                }
                if !plain {
                    s.iter_mut().for_each(|s| *s *= inputs.scale);
                }
                shape::<Avx512, f32, PANEL>(inputs, &panel, Lanes::Rows, s, None);
                if picks && !panel.pick::<f32, PANEL>(Lanes::Rows, s) {
                    continue;
                }
                // Keys that are not there.
                scores[panel.keys * PANEL..whole * PANEL].fill(f32::NEG_INFINITY);
                let s = &scores[..whole * PANEL];
                let steps = i * (KEYS / STEP)..i * (KEYS / STEP) + whole / STEP;
                if steps.start != waiting.end {
                    add(waiting, weights, acc);
                    waiting = steps.start..steps.start;
                }
                let first = steps.start % E::WAIT * STEP;
                for lane in lanes() {
                    let bases = Bases::<E>::of(s, lane, scale, max);
                    if bases.rose() {
                        add(waiting, weights, acc);
                        waiting = steps.start..steps.start;
                        bases.rescale(lane, sum, acc);
                    }
                    // SAFETY: they are as many bytes as the engine says, which has room for the block's steps.
                    unsafe { bases.weigh(s, lane, sum, (first, weights.as_mut_ptr())) };
                }
                if !run.blocks[i].holds_values {
                    add_values::<E>(inputs, tile, seen, (first, weights), acc);
                }
                waiting.end = steps.end;
                if waiting.end % E::WAIT == 0 {
                    add(waiting, weights, acc);
                    waiting = steps.end..steps.end;
                }
            }
            add(waiting, weights, acc);
        }
        origin = stop;
    }
    state.max.iter_mut().for_each(|max| *max *= scale);
}

/// Adds products to scores that numbers take part in which count as 0.
#[cold]
fn add_scores(inputs: &Inputs<'_, f32>, tile: &Tile<'_>, rows: Range<usize>, keys: Range<usize>, s: &mut [f32]) {
    let width = inputs.dims.qk_width;
    let (mut q, mut k) = (vec![0.0; width], vec![0.0; keys.len() * width]);
    inputs.k.read_rows::<Avx512, _>(tile, keys, width, &mut k);
    for (lane, row) in rows.enumerate() {
        let row = tile.row(row);
        inputs.q.read::<Avx512, _>(tile.sequence.query(row.query), row.head, &mut q);
        for (k, s) in k.chunks_exact(width).zip(s.chunks_exact_mut(PANEL)) {
            for (&q, &k) in q.iter().zip(k) {
                if is_special(q) || is_special(k) {
                    s[lane] += q * k;
                }
            }
        }
    }
}

/// Adds values that count as 0, times weights that are not 0: one that is hidden must not show.
#[cold]
fn add_values<E: Engine>(
    inputs: &Inputs<'_, f32>,
    tile: &Tile<'_>,
    keys: Range<usize>,
    (first, weights): (usize, &[u8]),
    acc: &mut [f32],
) {
    let mut row = vec![0.0; inputs.dims.v_width];
    for (key, place) in keys.enumerate() {
        inputs.v.read::<Avx512, _>(tile.sequence.key(place), tile.kv_head, &mut row);
        for (&value, sums) in row.iter().zip(acc.chunks_exact_mut(PANEL)) {
            if !is_special(value) {
                continue;
            }
            for (lane, sum) in sums.iter_mut().enumerate() {
                let weight = E::weight(weights, first + key, lane);
                if weight != 0.0 {
                    *sum += weight * value;
                }
            }
        }
    }
}
