//! The walk of attention over tiles and chunks, whichever loops compute them.
//!
//! ```text
//!            key heads × sequences
//!          ┌──────────────────────┐    a tile: up to 512 rows, a row being a query in one head of its group
//!   rows   │ tile │ tile │ …      │    a chunk: 512 keys, or 1024
//!          └──────────────────────┘
//!   many tiles: a thread takes a tile at a time, neighbours one after the other, and walks its chunks
//!   few tiles:  a thread takes a chunk of a tile at a time; afterwards each tile takes in its chunks
//! ```
//! Either way a row's chunks are computed apart and merged first to last, so the bits are the same, but for the sign of a zero: they depend
//! neither on the number of threads nor on other rows. Scratch does not grow with the number of keys.

use super::{
    chunk::{BLOCK, Inputs, Job, PANEL, Room, State, Task},
    held::Held,
    machine::Compiled,
    places::{Dims, Places, Rows, ascending, lse_index},
    plan::Tiling,
    sight::Tile,
    soften::base,
};
use crate::{
    kernel::{Output, input, optional},
    memory::as_numbers_mut,
    numbers,
    simd::Baseline,
    threads::{self, Shares},
};
use kp_hal::{
    DType,
    op::{AttentionArgs, AttentionSpec, Overflow},
};
use std::{
    f64::consts::LOG2_E,
    ops::Range,
    sync::atomic::{AtomicUsize, Ordering},
};

/// Who computes a tile, and what for.
pub(crate) struct Loops<R> {
    pub(crate) run: fn(Job<'_, '_, '_, R>),
    /// Keys of a chunk, whose part of the result is summed by itself, so that another thread may do it.
    pub(crate) chunk: usize,
    /// Numbers there is room for, of queries, of keys, of values and of scores.
    pub(crate) room: [usize; 4],
}

/// How the work is cut, and who does it.
pub(crate) struct Shape<R> {
    loops: Loops<R>,
    tiling: Tiling,
    /// Tiles in all.
    units: usize,
    dims: Dims,
}

impl<R: Compiled> Shape<R> {
    pub(crate) fn new(spec: &AttentionSpec, tiling: Tiling, loops: Loops<R>) -> Self {
        let units = tiling.tiles * spec.kv_heads as usize * spec.batch as usize;
        Self { loops, tiling, units, dims: Dims::new(spec) }
    }

    /// Numbers of each part of a thread's [`Room`]: Q, K, V, columns of K, scores, rows.
    fn room(&self) -> [usize; 6] {
        let Tiling { few, tile, .. } = self.tiling;
        let Dims { qk_width, .. } = self.dims;
        let (qk_ld, v_ld) = (self.dims.qk_ld(), self.dims.v_ld());
        let k_columns = if few { qk_width * BLOCK } else { 0 };
        let rows = if few { tile * v_ld } else { PANEL * qk_ld.max(v_ld) };
        let [q, k, v, s] = self.loops.room;
        [q, k, v, k_columns, s, rows]
    }

    /// Numbers of a [`State`].
    fn state(&self) -> usize {
        self.tiling.tile * (self.dims.v_width + 2)
    }

    /// Whether there are too few tiles to keep the threads busy, so that chunks are handed out.
    fn by_chunk(&self) -> bool {
        self.units < 4 * threads::count()
    }

    /// Chunks handed out before their results are taken in.
    fn wave(&self) -> usize {
        (4 * threads::count()).min(MAX_WAVE)
    }

    /// Rooms, one per thread; then two states per thread, or one per tile and one per chunk of a wave.
    pub(crate) fn scratch_bytes(&self) -> u64 {
        let threads = threads::count();
        let states = if self.by_chunk() { self.units + self.wave() } else { 2 * threads };
        let bytes = |numbers: usize| numbers.saturating_mul(size_of::<R>()).next_multiple_of(64) as u64;
        bytes(self.room().iter().sum()) * threads as u64 + bytes(self.state()) * states as u64
    }
}

/// Most chunks of a wave: their tiles are listed on the stack.
const MAX_WAVE: usize = 256;

/// Shares of a launch's scratch.
struct Scratch<'a> {
    bytes: Output<'a>,
    room_bytes: usize,
    state_bytes: usize,
}

impl<'a> Scratch<'a> {
    fn new<R: Compiled>(shape: &Shape<R>, bytes: &'a mut [u8]) -> Self {
        let bytes_of = |numbers: usize| (numbers * size_of::<R>()).next_multiple_of(64);
        let room_bytes = bytes_of(shape.room().iter().sum());
        Self { bytes: Output::of(bytes), room_bytes, state_bytes: bytes_of(shape.state()) }
    }

    /// # Safety
    /// No two results that live at the same time overlap.
    unsafe fn numbers<R: Compiled>(&self, first: usize, bytes: usize) -> &'a mut [R] {
        // SAFETY: the caller's promise.
        let bytes = unsafe { self.bytes.part(first..first + bytes) };
        // SAFETY: any bits are a number.
        let (before, numbers, _) = unsafe { bytes.align_to_mut() };
        assert!(before.is_empty(), "scratch is aligned to 256 bytes and shares to 64");
        numbers
    }

    /// The room of a thread.
    ///
    /// # Safety
    /// One at a time for each `part`.
    unsafe fn room<R: Compiled>(&self, shape: &Shape<R>, part: usize) -> Room<'a, R> {
        // SAFETY: rooms lie apart.
        let mut rest = unsafe { self.numbers(part * self.room_bytes, self.room_bytes) };
        let [q, k, v, k_columns, s, rows] = shape.room().map(|count| {
            let (front, back) = std::mem::take(&mut rest).split_at_mut(count);
            rest = back;
            front
        });
        Room { q, k, v, k_columns, s, rows, held: Held::default() }
    }

    /// State `index`, behind the rooms.
    ///
    /// # Safety
    /// One at a time for each `index`.
    unsafe fn state<R: Compiled>(&self, shape: &Shape<R>, index: usize) -> State<'a, R> {
        let first = threads::count() * self.room_bytes + index * self.state_bytes;
        // SAFETY: states lie apart, behind the rooms.
        let rest = unsafe { self.numbers(first, self.state_bytes) };
        let tile = shape.tiling.tile;
        let (max, rest) = rest.split_at_mut(tile);
        let (sum, rest) = rest.split_at_mut(tile);
        State { max, sum, acc: &mut rest[..tile * shape.dims.v_width] }
    }
}

/// One launch.
struct Run<'a, R> {
    spec: &'a AttentionSpec,
    shape: Shape<R>,
    inputs: Inputs<'a, R>,
    places: Places<'a>,
    sinks: &'a [u8],
    o: Output<'a>,
    lse: Output<'a>,
    scratch: Scratch<'a>,
}

/// Computes attention.
///
/// # Safety
/// As `Launch::launch` of a plan for `spec`, cut as `shape` says, with scratch of as many bytes as it asks for.
pub(crate) unsafe fn run<R: Compiled>(
    shape: Shape<R>,
    spec: &AttentionSpec,
    scratch: &mut [u8],
    args: &AttentionArgs<'_>,
) {
    // SAFETY: within a launch, whose arguments were checked.
    let (q, k, v) = unsafe { (input(&args.q), input(&args.k), input(&args.v)) };
    // SAFETY: as above.
    let [q_scale, k_scale, v_scale, q_offsets, kv_offsets, kv_lens, page_table, slopes, sinks, blocks] = unsafe {
        [
            optional(&args.q_scale),
            optional(&args.k_scale),
            optional(&args.v_scale),
            optional(&args.q_offsets),
            optional(&args.kv_offsets),
            optional(&args.kv_lens),
            optional(&args.page_table),
            optional(&args.slopes),
            optional(&args.sinks),
            optional(&args.blocks),
        ]
    };
    let inputs = Inputs::new(spec, [q, k, v], [q_scale, k_scale, v_scale], [blocks, slopes]);
    let [q_offsets, kv_offsets] = &[q_offsets, kv_offsets].map(ascending);
    let places = Places { spec, q_offsets, kv_offsets, kv_lens, page_table };
    // SAFETY: as above.
    let (o, lse) = unsafe { (Output::new(&args.o), Output::optional(&args.lse)) };
    let scratch = Scratch::new(&shape, scratch);
    let run = Run { spec, shape, inputs, places, sinks, o, lse, scratch };
    if run.shape.by_chunk() { run.chunk_by_chunk() } else { run.tile_by_tile() }
}

impl<'a, R: Compiled> Run<'a, R> {
    /// The chunks in which a tile sees keys.
    fn chunks(&self, tile: &Tile<'_>) -> Range<usize> {
        let size = self.shape.loops.chunk;
        tile.first / size..tile.end.div_ceil(size)
    }

    /// Tile `unit`: the tiles of a key head's last queries come first, since under a causal mask they see most.
    fn tile(&self, unit: usize) -> Tile<'_> {
        let Tiling { tile, tiles, .. } = self.shape.tiling;
        let heads = self.spec.kv_heads as usize;
        let (place, rest) = (tiles - 1 - unit % tiles, unit / tiles);
        Tile::new(&self.inputs.sight, self.places.sequence(rest / heads), rest % heads, place * tile, tile)
    }

    fn run<'w, 's>(
        &'w self,
        tile: &'w Tile<'w>,
        room: &'w mut Room<'_, R>,
        state: &'w mut State<'s, R>,
        task: Task<'w, 's, R>,
    ) {
        (self.shape.loops.run)(Job { inputs: &self.inputs, tile, few: self.shape.tiling.few, room, state, task });
    }

    fn compute(&self, tile: &Tile<'_>, chunk: usize, room: &mut Room<'_, R>, state: &mut State<'_, R>) {
        let size = self.shape.loops.chunk;
        let keys = (chunk * size).max(tile.first)..((chunk + 1) * size).min(tile.end);
        state.clear(tile.rows);
        self.run(tile, room, state, Task::Keys(keys));
    }

    /// Of both products, if nothing is hidden.
    fn multiply_adds(&self) -> u64 {
        let AttentionSpec { batch, q_heads, q_len, kv_len, qk_dim, v_dim, .. } = *self.spec;
        [batch, q_heads, q_len, kv_len, qk_dim + v_dim].map(u64::from).into_iter().product()
    }

    fn tile_by_tile(&self) {
        let slots = threads::count().min(self.shape.units);
        // Tiles of a head have the same keys: a thread takes neighbours, before it helps others.
        let shares = Shares::new(self.shape.units, slots, slots).of_work(self.multiply_adds());
        threads::for_each(slots, |part| {
            // SAFETY: one thread per part.
            let (mut room, mut state, mut other) = unsafe {
                let state = |i| self.scratch.state(&self.shape, 2 * part + i);
                (self.scratch.room(&self.shape, part), state(0), state(1))
            };
            for unit in shares.of(part) {
                let tile = self.tile(unit);
                if tile.rows == 0 {
                    continue;
                }
                self.run(&tile, &mut room, &mut state, Task::Load);
                let mut chunks = self.chunks(&tile);
                // To take the first chunk into what has seen nothing changes no bit, but a zero's sign.
                match chunks.next() {
                    Some(chunk) => self.compute(&tile, chunk, &mut room, &mut state),
                    None => state.clear(tile.rows),
                }
                for chunk in chunks {
                    self.compute(&tile, chunk, &mut room, &mut other);
                    self.run(&tile, &mut room, &mut state, Task::Merge(&other));
                }
                self.store(&tile, &mut state, &mut room);
            }
        });
    }

    fn chunk_by_chunk(&self) {
        let units = self.shape.units;
        // SAFETY: of each unit and each slot of a wave there is one at a time.
        let (of_unit, of_slot) = unsafe {
            (|unit| self.scratch.state(&self.shape, unit), |slot| self.scratch.state(&self.shape, units + slot))
        };
        (0..units).for_each(|unit| of_unit(unit).clear(self.shape.tiling.tile));
        let mut work = (0..units).flat_map(|unit| self.chunks(&self.tile(unit)).map(move |chunk| (unit, chunk)));
        let mut wave = [(0, 0); MAX_WAVE];
        loop {
            let room = &mut wave[..self.shape.wave()];
            let len = room.iter_mut().zip(&mut work).map(|(slot, item)| *slot = item).count();
            let wave = &wave[..len];
            let (Some(&(first, _)), Some(&(last, _))) = (wave.first(), wave.last()) else { break };
            let next = AtomicUsize::new(0);
            threads::for_each(threads::count().min(len), |part| {
                // SAFETY: one thread per part.
                let mut room = unsafe { self.scratch.room(&self.shape, part) };
                loop {
                    let slot = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&(unit, chunk)) = wave.get(slot) else { return };
                    let tile = self.tile(unit);
                    let mut state = of_slot(slot);
                    self.run(&tile, &mut room, &mut state, Task::Load);
                    self.compute(&tile, chunk, &mut room, &mut state);
                }
            });
            let next = AtomicUsize::new(first);
            threads::for_each(threads::count().min(last - first + 1), |part| {
                // SAFETY: one thread per part.
                let mut room = unsafe { self.scratch.room(&self.shape, part) };
                loop {
                    let unit = next.fetch_add(1, Ordering::Relaxed);
                    if unit > last {
                        return;
                    }
                    let (tile, mut state) = (self.tile(unit), of_unit(unit));
                    for (slot, _) in wave.iter().enumerate().filter(|(_, (of, _))| *of == unit) {
                        self.run(&tile, &mut room, &mut state, Task::Merge(&of_slot(slot)));
                    }
                }
            });
        }
        // SAFETY: no loop runs.
        let mut room = unsafe { self.scratch.room(&self.shape, 0) };
        (0..units).for_each(|unit| self.store(&self.tile(unit), &mut of_unit(unit), &mut room));
    }

    /// Lets the sinks in, divides, and writes O and the log-sum-exp, a panel at a time.
    fn store(&self, tile: &Tile<'_>, state: &mut State<'_, R>, room: &mut Room<'_, R>) {
        let rows = Rows::o(self.spec);
        let bytes = rows.dtype.bits() as usize / 8;
        for first in (0..tile.rows).step_by(PANEL) {
            let there = first..tile.rows.min(first + PANEL);
            let mut factors = [R::ZERO; PANEL];
            for i in there.clone() {
                factors[i - first] = self.end(tile, i, state);
            }
            self.run(tile, room, state, Task::Finish(first / PANEL, &factors));
            for (i, out) in there.zip(room.rows.chunks_exact(self.shape.dims.v_ld())) {
                let row = tile.row(i);
                let first = rows.first(tile.sequence.query(row.query), row.head) * bytes;
                // SAFETY: a row of O has one owner.
                let place = unsafe { self.o.part(first..first + rows.dim * bytes) };
                let out = &out[..rows.dim];
                if rows.dtype == R::DTYPE
                    && let Some(place) = as_numbers_mut(&mut *place)
                {
                    place.copy_from_slice(out);
                } else {
                    numbers::write(rows.dtype, out, place, 0, Overflow::Saturate);
                }
            }
        }
    }

    /// Writes a row's log-sum-exp, and answers what its sums are to be multiplied by.
    fn end(&self, tile: &Tile<'_>, i: usize, state: &State<'_, R>) -> R {
        // Without a sink sums are counted from their own maximum, so that nothing shrinks.
        if self.sinks.is_empty() && !self.spec.lse && state.sum[i] != R::ZERO {
            return R::ONE / state.sum[i];
        }
        let row = tile.row(i);
        let unit = R::from_f64(LOG2_E);
        let sink: R = if self.sinks.is_empty() {
            -R::INFINITY
        } else {
            numbers::get::<R>(DType::F32, self.sinks, row.head) * unit
        };
        let base = base(if sink > state.max[i] { sink } else { state.max[i] });
        let [shrink, sink] = [state.max[i], sink].map(|x| (x - base).exp2_of::<Baseline>());
        let sum = state.sum[i] * shrink + sink;
        if self.spec.lse {
            let at = 4 * lse_index(self.spec, tile.sequence.query(row.query), row.head);
            // SAFETY: a row has one owner.
            let place = unsafe { self.lse.part(at..at + 4) };
            numbers::write(DType::F32, &[base / unit + sum.ln()], place, 0, Overflow::Saturate);
        }
        // Where nothing is seen the sums are 0, and so is the result.
        if sum == R::ZERO { R::ZERO } else { shrink / sum }
    }
}
