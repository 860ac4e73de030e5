//! One tile of rows against one chunk of keys by products of pairs of bf16; rows are lanes, as in [`super::chunk`].
//!
//! ```text
//!                     left, rows of pairs               right, lines of 64 words       made
//!   scores            rows of K as they were copied     pairs of numbers of Q          S [key][row] = K · Qᵀ
//!   weights                                                                            P = 2^(S − m), in pairs of keys
//!   sums              columns of V                      P of several blocks            A [number][row] += Vᵀ · P
//! ```
//! Either engine multiplies 32 rows by 32 lanes at a time. Scores come as lanes and weights in pairs of keys without any
//! exchange of lanes; V alone is turned, once for all rows of the tile. What [weights](super::weights) are counted from seldom changes, so
//! those of some blocks wait for each other, and sums are loaded and stored once for all of them.

use super::{
    chunk::{BLOCK as KEYS, Inputs, Job, PANEL, Room, State, Task, shape},
    dots,
    held::{Block, RUN, places},
    machine::Compiled,
    places::{Dims, Source},
    run::Loops,
    sight::{Lanes, Row, Tile as Rows},
    soon::Soon,
    turn::Turns,
    weights::{Bases, LEAST},
};
use crate::{
    amx::{ROW_BYTES, ROWS, Tiles},
    gemm::{
        amx::tile::{Dot, Operand, Passes, Tile},
        few::columns::bytes_mut,
        vnni::pack::transposed,
    },
    memory::{fetch_ahead, numbers_mut},
    simd::Avx512,
};
use kp_hal::{Variant, op::AttentionSpec};
use std::{
    arch::x86_64::{
        __m512i, __mmask32, _mm512_and_si512, _mm512_cmpge_epu16_mask, _mm512_mask_blend_epi16,
        _mm512_maskz_loadu_epi16, _mm512_max_epu16, _mm512_set1_epi16, _mm512_setzero_si512, _mm512_storeu_si512,
        _mm512_unpackhi_epi16, _mm512_unpacklo_epi16,
    },
    ops::Range,
};

/// Rows, or keys, or values that are multiplied together: those of two tiles.
pub(super) const BLOCK: usize = 2 * ROWS;

/// Numbers of bf16 of a tile's row.
pub(super) const STEP: usize = ROW_BYTES / 2;

/// Keys of a chunk: the fewer of them, the fewer sums are to be merged.
const CHUNK: usize = 2 * RUN;

/// Words of a row of scores, of Q and of sums, in bytes.
const LD: usize = 4 * PANEL;

/// Steps of keys whose weights wait for each other: 32 KB, which stay in the first cache while values pass.
const WAIT: usize = 8;

const _: () = assert!(WAIT.is_multiple_of(KEYS / STEP), "steps of a block wait together");

/// What multiplies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Engine {
    /// Tiles of AMX.
    Tiles,
    /// Dot products of AVX-512.
    Dots,
}

impl Engine {
    /// Keys that are made ready at a time. For tiles all of a run, so that a panel's rows and sums stay in the first cache
    /// meanwhile; dot products take long enough to bring near what comes next, of which the second cache holds no more where rows
    /// lie a power of two apart.
    const fn at_once(self) -> usize {
        match self {
            Self::Tiles => RUN,
            Self::Dots => KEYS,
        }
    }
}

/// What an engine runs, and what that wants for a problem.
pub(super) fn loops(spec: &AttentionSpec, engine: Engine) -> Loops<f32> {
    let run = match engine {
        Engine::Tiles => |job: Job<'_, '_, '_, f32>| chunk(job, Engine::Tiles),
        Engine::Dots => |job: Job<'_, '_, '_, f32>| chunk(job, Engine::Dots),
    };
    let (dims, keys) = (Dims::new(spec), RUN * places(spec.kv_len as usize));
    let [k, v] = [dims.qk, dims.v].map(|dim| keys * dim.next_multiple_of(BLOCK) / 2);
    Loops { run, chunk: CHUNK, room: [k, v, (KEYS + WAIT * ROWS) * PANEL] }
}

fn chunk(job: Job<'_, '_, '_, f32>, engine: Engine) {
    let Job { inputs, tile, room, state, task, .. } = job;
    match task {
        // SAFETY: `supports` asked for the features.
        Task::Load => unsafe { load(inputs, tile, room) },
        // SAFETY: as above.
        Task::Keys(keys) => unsafe { take(engine, inputs, tile, keys, room, state) },
        task => {
            const AVX512: Variant = Variant(2);
            (f32::machine(AVX512).chunk)(Job { inputs, tile, few: false, room, state, task });
        }
    }
}

/// Words of a row of Q or K: pairs of numbers, filled up with zeros to whole steps.
fn words(inputs: &Inputs<'_, f32>) -> usize {
    inputs.dims.qk.next_multiple_of(STEP) / 2
}

/// Reads the rows of Q: of each panel, `[pair of numbers][row]`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn load(inputs: &Inputs<'_, f32>, tile: &Rows<'_>, room: &mut Room<'_, f32>) {
    let words = words(inputs);
    let (mut rows, mut ahead) = (tile.rows(), tile.rows());
    let first = |row: Row| inputs.q.rows.first(tile.sequence.query(row.query), row.head);
    let out = words_of(room.q).as_chunks_mut::<PANEL>().0;
    let lines = bytes_mut(room.rows);
    for out in out.chunks_exact_mut(words).take(tile.rows.div_ceil(PANEL)) {
        // Asked for all at once: copied row by row, few of them would be on their way.
        ahead.by_ref().take(PANEL).for_each(|row| fetch_ahead(inputs.q.bytes(first(row))));
        for line in lines.chunks_exact_mut(4 * words).take(PANEL) {
            match rows.next() {
                Some(row) => {
                    for (at, codes) in row_of(&inputs.q, first(row)) {
                        store(codes, &mut line[at..]);
                    }
                }
                None => line.fill(0),
            }
        }
        for lane in (0..PANEL).step_by(ROWS) {
            for word in (0..words).step_by(ROWS) {
                let places = std::array::from_fn(|i| 4 * ((lane + i) * words + word));
                let mut turned = [[0; ROWS]; ROWS];
                <Avx512 as Turns<f32>>::words(lines, &places, &mut turned);
                for (out, turned) in out[word..].iter_mut().zip(&turned) {
                    out[lane..lane + ROWS].copy_from_slice(turned);
                }
            }
        }
    }
}

/// Takes in the first keys of a state.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn take(
    engine: Engine,
    inputs: &Inputs<'_, f32>,
    tile: &Rows<'_>,
    keys: Range<usize>,
    room: &mut Room<'_, f32>,
    state: &mut State<'_, f32>,
) {
    // SAFETY: `supports` asked for the features, and there is one of it on this thread until the end of this function.
    let tiles = (engine == Engine::Tiles).then(|| unsafe { Tiles::new() });
    let (words, v_width) = (words(inputs), inputs.dims.v_width);
    let picks = inputs.sight.picks();
    // A positive factor changes nothing about what is largest; subtracted first, the largest leaves exactly 0.
    let is_factor = inputs.scale > 0.0 && (LEAST / inputs.scale).is_finite();
    let plain = inputs.softcap.is_none() && inputs.sight.slopes.is_empty() && is_factor;
    let scale = if plain { inputs.scale } else { 1.0 };
    let at_once = engine.at_once();
    let (k_bytes, v_step) = (4 * words * KEYS, ROW_BYTES * v_width.next_multiple_of(BLOCK));
    let v_bytes = KEYS / STEP * v_step;
    let panels = tile.rows.div_ceil(PANEL);
    // As many as `loops` asked for.
    let run_places = size_of_val(room.k) / (RUN / KEYS * k_bytes);
    let mut origin = keys.start / KEYS * KEYS;
    while origin < keys.end {
        let stop = keys.end.min((origin / at_once + 1) * at_once);
        let blocks = || (origin..stop).step_by(KEYS).map(|start| (start % RUN / KEYS, (start, stop.min(start + KEYS))));
        let (place, run) = room.held.run(tile, origin, run_places);
        let k = &mut bytes_mut(room.k)[place * (RUN / KEYS) * k_bytes..];
        let v = &mut bytes_mut(room.v)[place * (RUN / KEYS) * v_bytes..];
        for (i, (start, end)) in blocks() {
            let block = &mut run.blocks[i];
            if block.keys < end - start {
                copy_rows(&inputs.k, tile, start..end, 4 * words, &mut k[i * k_bytes..]);
                let bounded = turn_rows(&inputs.v, tile, start..end, v_step, &mut v[i * v_bytes..]);
                *block = Block { keys: end - start, bounded };
            }
        }
        let run = *run;
        let (k, values) = (&*k, Values { codes: v, step_bytes: v_step, width: v_width, tiles: tiles.as_ref() });
        let (scores, weights) = room.s.split_at_mut(KEYS * PANEL);
        let weights = words_of(weights).as_chunks_mut::<{ ROWS * PANEL }>().0;
        // What is made ready next is asked for a block at a time, each in as many steps, a panel by a block, as another.
        let next = stop..tile.end.min(stop + at_once);
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
            let q = &words_of(room.q)[first * words..][..words * PANEL];
            let acc = &mut state.acc[first * v_width..][..v_width * PANEL];
            let (max, sum) = (&mut state.max[first..], &mut state.sum[first..]);
            let lanes = || (0..rows.len()).step_by(BLOCK);
            // Steps whose weights wait.
            let mut waiting = 0..0;
            for (at, (i, block)) in blocks().enumerate() {
                let wanted = (p * each + at) * next_blocks / all_steps;
                if wanted != soon_block {
                    (soon, soon_block) = (soon_of(wanted), wanted);
                }
                let Some(panel) = tile.panel(rows.clone(), block) else { continue };
                let whole = panel.keys.next_multiple_of(BLOCK);
                for key in (0..whole).step_by(BLOCK) {
                    let k = k[i * k_bytes + 4 * words * key..][..4 * words * BLOCK].as_ptr();
                    let left = Operand { at: [k, k.wrapping_add(4 * words * ROWS)], ld: 4 * words, step: ROW_BYTES };
                    let sums = &mut words_of(scores)[key * PANEL..][..BLOCK * PANEL];
                    for lane in lanes() {
                        soon.ask();
                        // SAFETY: rows of K, pairs of Q and room for scores are there, and `supports` asked for the features.
                        unsafe { product(left, right(q, lane), words / ROWS, sums, lane, true, tiles.as_ref()) };
                    }
                }
                let s = &mut scores[..panel.keys * PANEL];
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
                    values.add(waiting, rows.len(), weights, acc);
                    waiting = steps.start..steps.start;
                }
                for lane in lanes() {
                    let bases = Bases::of(s, lane, scale, max);
                    if bases.rose() {
                        values.add(waiting, rows.len(), weights, acc);
                        waiting = steps.start..steps.start;
                        bases.rescale(lane, sum, acc);
                    }
                    bases.weigh(s, lane, sum, weights[steps.start % WAIT..].as_flattened_mut());
                }
                if !run.blocks[i].bounded {
                    let weights = weights[steps.start % WAIT..].as_flattened();
                    add_unbounded(&inputs.v, tile, block.0..block.0 + panel.keys, weights, acc);
                }
                waiting.end = steps.end;
                if waiting.end % WAIT == 0 {
                    values.add(waiting, rows.len(), weights, acc);
                    waiting = steps.end..steps.end;
                }
            }
            values.add(waiting, rows.len(), weights, acc);
        }
        origin = stop;
    }
    state.max.iter_mut().for_each(|max| *max *= scale);
}

/// Values of a chunk as they were turned.
struct Values<'a> {
    codes: &'a [u8],
    step_bytes: usize,
    width: usize,
    tiles: Option<&'a Tiles>,
}

impl Values<'_> {
    /// Adds those of some steps, times weights, to the sums of `rows` rows.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    fn add(&self, steps: Range<usize>, rows: usize, weights: &[[u32; ROWS * PANEL]], acc: &mut [f32]) {
        if steps.is_empty() {
            return;
        }
        let weights = weights[steps.start % WAIT..].as_flattened();
        let codes = &self.codes[steps.start * self.step_bytes..steps.end * self.step_bytes];
        for value in (0..self.width).step_by(BLOCK) {
            let first = codes[value * ROW_BYTES..].as_ptr();
            // Where a second tile of values is none, the first one once more.
            let second = if value + ROWS < self.width { ROWS } else { 0 };
            let at = [first, first.wrapping_add(ROW_BYTES * second)];
            let left = Operand { at, ld: ROW_BYTES, step: self.step_bytes };
            let sums = &mut words_of(acc)[value * PANEL..][..(ROWS + second) * PANEL];
            for lane in (0..rows).step_by(BLOCK) {
                // SAFETY: columns of V, pairs of weights and sums are there, and `supports` asked for the features.
                unsafe { product(left, right(weights, lane), steps.len(), sums, lane, false, self.tiles) };
            }
        }
    }
}

fn words_of(numbers: &mut [f32]) -> &mut [u32] {
    numbers_mut(bytes_mut(numbers))
}

/// Words of the block of rows that begins at `lane` as right operand, 16 lines a step.
fn right(words: &[u32], lane: usize) -> Operand {
    let at = words[lane..].as_ptr().cast::<u8>();
    Operand { at: [at, at.wrapping_add(ROW_BYTES)], ld: LD, step: ROWS * LD }
}

/// A product by tiles, or if there are none by dot products, to columns `lane` and after, of 16 or 32 rows of sums.
///
/// # Safety
/// - The operands have `steps` steps.
/// - The processor has the instructions.
unsafe fn product(
    left: Operand,
    right: Operand,
    steps: usize,
    sums: &mut [u32],
    lane: usize,
    first: bool,
    tiles: Option<&Tiles>,
) {
    let upper = sums[lane..].as_mut_ptr();
    let (lower, halves) = (upper.wrapping_add(ROWS * PANEL), sums.len() / (ROWS * PANEL));
    let sums = [upper, lower];
    let tile = Tile { left, right, passes: Passes::Left, halves, ahead: None, steps, sums, sums_ld: LD, first };
    match tiles {
        // SAFETY: passed on.
        Some(tiles) => unsafe { tile.run(Dot::Bf16, tiles) },
        // SAFETY: as above.
        None => unsafe { dots::product(&tile) },
    }
}

/// The codes of a row from number `first` on, 64 bytes at a time, and the byte of the row at which they stand.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn row_of(source: &Source<'_>, first: usize) -> impl Iterator<Item = (usize, __m512i)> {
    let (dim, codes) = (source.rows.dim, source.bytes(first));
    (0..dim).step_by(STEP).map(move |at| {
        let mask = u32::MAX >> (STEP - (dim - at).min(STEP));
        // SAFETY: of 32 codes, those that are there.
        (2 * at, unsafe { _mm512_maskz_loadu_epi16(mask, codes[2 * at..].as_ptr().cast()) })
    })
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn store(codes: __m512i, out: &mut [u8]) {
    let out = &mut out[..ROW_BYTES];
    // SAFETY: there is room.
    unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), codes) };
}

/// Copies at most a block of a tile's keys as rows of `ld` bytes, filled up with zeros; rows of no key keep what they had.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn copy_rows(source: &Source<'_>, tile: &Rows<'_>, keys: Range<usize>, ld: usize, out: &mut [u8]) {
    for (at, token, count) in tile.sequence.stretches(keys) {
        let first = source.rows.first(token, tile.kv_head);
        for (i, out) in out[at * ld..].chunks_exact_mut(ld).take(count).enumerate() {
            for (at, codes) in row_of(source, first + i * source.rows.ld) {
                store(codes, &mut out[at..]);
            }
        }
    }
}

/// Turns at most a block of a tile's values: steps of so many bytes, `[number][key]` of 32 keys, zeros where there is none. Answers whether
/// all are finite; those that are not become zeros.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn turn_rows(source: &Source<'_>, tile: &Rows<'_>, keys: Range<usize>, step_bytes: usize, out: &mut [u8]) -> bool {
    let dim = source.rows.dim;
    let mut firsts = [usize::MAX; KEYS];
    for (at, token, count) in tile.sequence.stretches(keys.clone()) {
        let first = source.rows.first(token, tile.kv_head);
        firsts[at..at + count].iter_mut().enumerate().for_each(|(i, place)| *place = first + i * source.rows.ld);
    }
    let (magnitude, infinity) = (_mm512_set1_epi16(0x7fff), _mm512_set1_epi16(0x7f80));
    let mut bounded = true;
    for (step, firsts) in firsts.chunks_exact(STEP).take(keys.len().div_ceil(STEP)).enumerate() {
        for at in (0..dim).step_by(STEP) {
            let mask: __mmask32 = u32::MAX >> (STEP - (dim - at).min(STEP));
            let mut largest = _mm512_setzero_si512();
            let mut read = |first: usize| {
                if first == usize::MAX {
                    return _mm512_setzero_si512();
                }
                let codes = &source.codes[2 * (first + at)..2 * (first + (at + STEP).min(dim))];
                // SAFETY: of 32 codes, those that are there.
                let codes = unsafe { _mm512_maskz_loadu_epi16(mask, codes.as_ptr().cast()) };
                largest = _mm512_max_epu16(largest, _mm512_and_si512(codes, magnitude));
                codes
            };
            // Of each 128 bits the lower and the upper four numbers, in pairs of keys.
            let (mut low, mut high) = ([_mm512_setzero_si512(); ROWS], [_mm512_setzero_si512(); ROWS]);
            for (pair, firsts) in firsts.as_chunks::<2>().0.iter().enumerate() {
                let (even, odd) = (read(firsts[0]), read(firsts[1]));
                (low[pair], high[pair]) = (_mm512_unpacklo_epi16(even, odd), _mm512_unpackhi_epi16(even, odd));
            }
            let is_bounded = _mm512_cmpge_epu16_mask(largest, infinity) == 0;
            bounded &= is_bounded;
            for (first, pairs) in [(at, &low), (at + 4, &high)] {
                let out = &mut out[step_bytes * step + ROW_BYTES * first..];
                for (i, codes) in transposed(*pairs).into_iter().enumerate() {
                    let codes = if is_bounded { codes } else { bounded_only(codes) };
                    store(codes, &mut out[ROW_BYTES * (i / 4 * 8 + i % 4)..]);
                }
            }
        }
    }
    bounded
}

/// Codes, but 0 for those of NaN and infinity.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn bounded_only(codes: __m512i) -> __m512i {
    let magnitude = _mm512_and_si512(codes, _mm512_set1_epi16(0x7fff));
    let unbounded = _mm512_cmpge_epu16_mask(magnitude, _mm512_set1_epi16(0x7f80));
    _mm512_mask_blend_epi16(unbounded, codes, _mm512_setzero_si512())
}

/// Adds values that are not finite, times weights that are not 0: one that is hidden must not show.
fn add_unbounded(source: &Source<'_>, tile: &Rows<'_>, keys: Range<usize>, weights: &[u32], acc: &mut [f32]) {
    for (at, token, count) in tile.sequence.stretches(keys) {
        for i in 0..count {
            let first = source.rows.first((token.0, token.1 + i), tile.kv_head);
            let (pair, shift) = ((at + i) / 2, 16 - (at + i) % 2 * 16);
            for (number, code) in source.codes[2 * first..].as_chunks::<2>().0[..source.rows.dim].iter().enumerate() {
                let value = f32::from_bits(u32::from(u16::from_le_bytes(*code)) << 16);
                if value.is_finite() {
                    continue;
                }
                for (sum, &word) in acc[number * PANEL..][..PANEL].iter_mut().zip(&weights[pair * PANEL..]) {
                    let weight = f32::from_bits((word << shift) & 0xffff_0000);
                    if weight != 0.0 {
                        *sum += weight * value;
                    }
                }
            }
        }
    }
}
