//! Gradients of attention with no buffer of scores, each element summed by one thread in one order.
//!
//! ```text
//! 1. D = Σ O · dO           every row; scratch of one number per query and head
//! 2. dK, dV                 a thread takes 128 keys of a key head and walks the rows of its group that see them
//! 3. dQ                     a thread takes up to 64 rows and walks the keys they see
//! 4. dsink = −Σ exp(sink − LSE) · D        a thread takes a head
//! ```
//! P is computed in 2 and again in 3: cheaper than sharing sums between threads, which would lose their order.

use super::pair::{PairJob, RowRoom, ScoreRoom, Sums};
use crate::{
    attention::{
        chunk::{BLOCK, COLUMNS, Inputs, load, to_panel},
        machine::{self, Compiled, Machine},
        places::{Places, Rows, Sequence, Source, lse_index},
        plan::{self, Code, SOURCES, Tiling},
        sight::Tile,
    },
    kernel::{self, Output, input, optional},
    numbers,
    rows::with_real,
    threads,
};
use kp_hal::{
    Caps, DType, Device, Kernel, Launch, Nanos, Plan, Queue, Result, Support, Variant,
    op::{AttentionBackward, AttentionBackwardArgs, AttentionBackwardProblem, AttentionSpec, Lens, Overflow},
    source_hash,
};
use std::{
    borrow::Cow,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// The kernel.
pub(crate) struct Portable;

impl Kernel<AttentionBackward> for Portable {
    fn name(&self) -> &'static str {
        "portable"
    }

    fn code(&self) -> u64 {
        const { SOURCES ^ source_hash(include_bytes!("portable.rs")) ^ source_hash(include_bytes!("pair.rs")) }
    }

    fn supports(&self, caps: &Caps, _: &AttentionBackwardProblem) -> Support {
        plan::supports(caps)
    }

    fn estimate(&self, caps: &Caps, problem: &AttentionBackwardProblem, variant: Variant) -> Nanos {
        machine::estimate(Nanos::floors(caps, problem), caps, variant)
    }

    fn note(&self, _: &Caps, problem: &AttentionBackwardProblem, variant: Variant) -> Option<Cow<'static, str>> {
        Code { spec: problem.forward, variant }.note()
    }

    fn plan(
        &self,
        device: &Arc<dyn Device>,
        problem: &AttentionBackwardProblem,
        variant: Variant,
    ) -> Result<Plan<AttentionBackward>> {
        let code = Code { spec: problem.forward, variant };
        let scratch = with_real!(code.is_wide(), R => Shape::<R>::new(&code).scratch_bytes());
        // SAFETY: `run` computes what the spec says, from and to the operands the spec names.
        Ok(unsafe { kernel::plan(self, device, problem, variant, scratch, code) })
    }
}

impl Launch<AttentionBackward> for Code {
    unsafe fn launch(&self, queue: &mut dyn Queue, args: &AttentionBackwardArgs<'_>) -> Result<()> {
        let scratch = kernel::own(queue).scratch();
        // SAFETY: the caller's promise.
        with_real!(self.is_wide(), R => unsafe { run::<R>(self, scratch, args) });
        Ok(())
    }
}

/// Keys of a unit of step 2: two blocks, so that rows are loaded half as often.
const KEYS: usize = 2 * BLOCK;

/// How the work is cut.
struct Shape<R> {
    machine: Machine<R>,
    /// Rows of a tile.
    tile: usize,
    /// Tiles, and units of keys, of a sequence and key head.
    tiles: usize,
    key_units: usize,
    /// Sequences times key heads.
    groups: usize,
    /// `qk_dim` and `v_dim`, and both rounded up.
    dims: (usize, usize),
    widths: (usize, usize),
    /// Rows that have a D.
    rows: usize,
}

impl<R: Compiled> Shape<R> {
    fn new(code: &Code) -> Self {
        let (spec, Tiling { machine, tile, tiles }) = (&code.spec, code.tiling());
        let (batch, len) = spec.q_extent();
        let dims = (spec.qk_dim as usize, spec.v_dim as usize);
        Self {
            machine,
            tile,
            tiles,
            key_units: (spec.kv_len as usize).div_ceil(KEYS),
            groups: spec.batch as usize * spec.kv_heads as usize,
            dims,
            widths: (dims.0.next_multiple_of(COLUMNS), dims.1.next_multiple_of(COLUMNS)),
            rows: batch as usize * len as usize * spec.q_heads as usize,
        }
    }

    /// Numbers that a thread needs.
    fn room(&self) -> usize {
        let (dims, widths) = (self.dims.0 + self.dims.1, self.widths.0 + self.widths.1);
        // Rows both ways, with two numbers each; keys, and their sums or those of the rows; scores three times.
        self.tile * (dims + widths + 2) + 2 * KEYS.max(self.tile) * widths + 3 * BLOCK * self.machine.lanes
    }

    fn room_bytes(&self) -> usize {
        (self.room() * size_of::<R>()).next_multiple_of(64)
    }

    fn scratch_bytes(&self) -> u64 {
        let d = self.rows.saturating_mul(size_of::<R>()) as u64;
        (self.room_bytes() * threads::count()) as u64 + d
    }
}

/// What a thread works in.
struct Room<'s, R> {
    rows: RowRoom<'s, R>,
    scores: ScoreRoom<'s, R>,
    k: &'s mut [R],
    v: &'s mut [R],
    /// Sums of width `qk_width`, and of width `v_width`.
    qk_sums: &'s mut [R],
    v_sums: &'s mut [R],
}

impl<'s, R: Compiled> Room<'s, R> {
    fn new(shape: &Shape<R>, numbers: &'s mut [R]) -> Self {
        let mut rest = numbers;
        let mut take = |count: usize| {
            let (front, back) = std::mem::take(&mut rest).split_at_mut(count);
            rest = back;
            front
        };
        let (tile, (qk_dim, v_dim), (qk_width, v_width)) = (shape.tile, shape.dims, shape.widths);
        let (scores, most) = (BLOCK * shape.machine.lanes, KEYS.max(tile));
        Self {
            rows: RowRoom {
                q: take(tile * qk_dim),
                grad_o: take(tile * v_dim),
                q_rows: take(tile * qk_width),
                grad_o_rows: take(tile * v_width),
                lse: take(tile),
                d: take(tile),
            },
            scores: ScoreRoom { p: take(scores), grad: take(scores), steepness: take(scores) },
            k: take(KEYS * qk_width),
            v: take(KEYS * v_width),
            qk_sums: take(most * qk_width),
            v_sums: take(most * v_width),
        }
    }
}

/// One launch.
struct Run<'a, R> {
    spec: &'a AttentionSpec,
    shape: Shape<R>,
    inputs: Inputs<'a, R>,
    o: Source<'a>,
    grad_o: Source<'a>,
    lse: &'a [u8],
    sinks: &'a [u8],
    places: Places<'a>,
    grad_q: Output<'a>,
    grad_k: Output<'a>,
    grad_v: Output<'a>,
    grad_sinks: Output<'a>,
    /// Rooms of the threads, then every row's D.
    scratch: Output<'a>,
}

/// # Safety
/// As `Launch::launch`.
unsafe fn run<R: Compiled>(code: &Code, scratch: &mut [u8], args: &AttentionBackwardArgs<'_>) {
    let (spec, shape) = (&code.spec, Shape::<R>::new(code));
    // SAFETY: within a launch, whose arguments were checked.
    let [q, k, v, o, lse, grad_o] =
        unsafe { [&args.q, &args.k, &args.v, &args.o, &args.lse, &args.grad_o].map(|view| input(view)) };
    // SAFETY: as above.
    let [q_offsets, kv_offsets, kv_lens, slopes, sinks, blocks] = unsafe {
        [&args.q_offsets, &args.kv_offsets, &args.kv_lens, &args.slopes, &args.sinks, &args.blocks]
            .map(|view| optional(view))
    };
    let inputs = Inputs::new(spec, [q, k, v], [&[]; 3], [blocks, slopes]);
    let places = Places { spec, q_offsets, kv_offsets, kv_lens, page_table: &[] };
    // SAFETY: as above.
    let [grad_q, grad_k, grad_v] = unsafe { [&args.grad_q, &args.grad_k, &args.grad_v].map(|view| Output::new(view)) };
    // SAFETY: as above.
    let grad_sinks = unsafe { Output::optional(&args.grad_sinks) };
    let (o, grad_o) = (Source::o(spec, o), Source::o(spec, grad_o));
    let scratch = Output::of(scratch);
    let run = Run { spec, shape, inputs, o, grad_o, lse, sinks, places, grad_q, grad_k, grad_v, grad_sinks, scratch };
    run.products_of_rows();
    run.keys();
    run.queries();
    run.sinks();
}

impl<'a, R: Compiled> Run<'a, R> {
    /// Runs `work(room, unit)` for every unit, each on whichever thread is free.
    fn each(&self, units: usize, work: impl Fn(&mut Room<'_, R>, usize) + Sync) {
        let next = AtomicUsize::new(0);
        threads::for_each(threads::count().min(units), |part| {
            let bytes = self.shape.room_bytes();
            // SAFETY: one thread per part.
            let bytes = unsafe { self.scratch.part(part * bytes..(part + 1) * bytes) };
            let mut room = Room::new(&self.shape, numbers_of(bytes));
            loop {
                let unit = next.fetch_add(1, Ordering::Relaxed);
                if unit >= units {
                    return;
                }
                work(&mut room, unit);
            }
        });
    }

    /// Where the D of some rows are.
    ///
    /// # Safety
    /// Nobody writes them for as long as the result lives.
    unsafe fn d(&self, rows: Range<usize>) -> &'a mut [R] {
        let first = threads::count() * self.shape.room_bytes();
        // SAFETY: the caller's promise.
        numbers_of(unsafe { self.scratch.part(first + rows.start * size_of::<R>()..first + rows.end * size_of::<R>()) })
    }

    /// Sequence and key head number `group`.
    fn group(&self, group: usize) -> (Sequence<'a>, usize) {
        let heads = self.spec.kv_heads as usize;
        (self.places.sequence(group / heads), group % heads)
    }

    fn lse(&self, at: usize) -> R {
        numbers::get(DType::F32, self.lse, at)
    }

    /// Step 1.
    fn products_of_rows(&self) {
        let heads = self.spec.q_heads as usize;
        let width = self.shape.widths.1;
        self.each(self.spec.batch as usize * heads, |room, unit| {
            let (sequence, head) = (self.places.sequence(unit / heads), unit % heads);
            for i in 0..sequence.q_len {
                let token = sequence.query(i);
                self.o.read(token, head, &mut room.v[..width]);
                self.grad_o.read(token, head, &mut room.v_sums[..width]);
                let product = dot(&room.v[..width], &room.v_sums[..width]);
                let at = lse_index(self.spec, token, head);
                // SAFETY: a row has one thread.
                let place = unsafe { self.d(at..at + 1) };
                place[0] = product;
            }
        });
    }

    /// Reads a tile's rows.
    fn load(&self, tile: &Tile<'_, R>, room: &mut RowRoom<'_, R>) {
        let Shape { machine: Machine { lanes, .. }, dims: (qk_dim, v_dim), widths: (qk_width, v_width), .. } =
            self.shape;
        let there = tile.rows.next_multiple_of(lanes);
        room.q[..there * qk_dim].fill(R::ZERO);
        room.grad_o[..there * v_dim].fill(R::ZERO);
        room.lse[..there].fill(R::INFINITY);
        room.d[..there].fill(R::ZERO);
        for (i, row) in tile.rows().iter().enumerate() {
            let token = tile.sequence.query(row.query);
            let q = &mut room.q_rows[i * qk_width..(i + 1) * qk_width];
            self.inputs.q.read(token, row.head, q);
            to_panel(i, &q[..qk_dim], lanes, room.q);
            let grad_o = &mut room.grad_o_rows[i * v_width..(i + 1) * v_width];
            self.grad_o.read(token, row.head, grad_o);
            to_panel(i, &grad_o[..v_dim], lanes, room.grad_o);
            let at = lse_index(self.spec, token, row.head);
            let lse = self.lse(at);
            // exp(S − LSE) must be 0 where nothing is seen.
            room.lse[i] = if lse == -R::INFINITY { R::INFINITY } else { lse };
            // SAFETY: step 1 is over.
            room.d[i] = unsafe { self.d(at..at + 1) }[0];
        }
    }

    /// Step 2.
    fn keys(&self) {
        let Shape { machine, tile: most, tiles, key_units, groups, dims, widths, .. } = &self.shape;
        self.each(groups * key_units, |room, unit| {
            let (sequence, kv_head) = self.group(unit / key_units);
            let first = unit % key_units * KEYS;
            // Padding has gradients too: zeros. What lies between packed sequences belongs to nobody.
            let len = if self.spec.lens == Lens::Padded { self.spec.kv_len as usize } else { sequence.kv_len };
            if first >= len {
                return;
            }
            let there = first..(first + KEYS).min(sequence.kv_len).max(first);
            room.qk_sums[..KEYS * widths.0].fill(R::ZERO);
            room.v_sums[..KEYS * widths.1].fill(R::ZERO);
            let mut loaded = false;
            for tile in 0..*tiles {
                let tile = Tile::new(&self.inputs.sight, sequence, kv_head, tile * most, *most);
                if tile.first.max(there.start) >= tile.end.min(there.end) {
                    continue;
                }
                if !loaded {
                    let range = (there.start, there.len());
                    load(&self.inputs.k, &tile, range, widths.0, room.k);
                    load(&self.inputs.v, &tile, range, widths.1, room.v);
                    loaded = true;
                }
                self.load(&tile, &mut room.rows);
                for (block, start) in there.clone().step_by(BLOCK).enumerate() {
                    let of = |width: usize| block * BLOCK * width..(block + 1) * BLOCK * width;
                    (machine.pair)(PairJob {
                        inputs: &self.inputs,
                        tile: &tile,
                        keys: start..(start + BLOCK).min(there.end),
                        k: &room.k[of(widths.0)],
                        v: &room.v[of(widths.1)],
                        rows: &room.rows,
                        room: &mut room.scores,
                        sums: Sums::Keys { k: &mut room.qk_sums[of(widths.0)], v: &mut room.v_sums[of(widths.1)] },
                        widths: *widths,
                    });
                }
            }
            for (i, key) in (first..(first + KEYS).min(len)).enumerate() {
                let token = sequence.key(key);
                let k = &mut room.qk_sums[i * widths.0..][..dims.0];
                k.iter_mut().for_each(|x| *x *= self.inputs.scale);
                // SAFETY: a key has one thread.
                unsafe {
                    store(&Rows::k(self.spec), &self.grad_k, (token, kv_head), k);
                    store(&Rows::v(self.spec), &self.grad_v, (token, kv_head), &room.v_sums[i * widths.1..][..dims.1]);
                }
            }
        });
    }

    /// Step 3.
    fn queries(&self) {
        let Shape { machine, tile: most, tiles, groups, dims, widths, .. } = &self.shape;
        self.each(groups * tiles, |room, unit| {
            let (sequence, kv_head) = self.group(unit / tiles);
            // Under a causal mask the last queries see most.
            let from = (tiles - 1 - unit % tiles) * most;
            let tile = Tile::new(&self.inputs.sight, sequence, kv_head, from, *most);
            if tile.rows == 0 {
                return;
            }
            self.load(&tile, &mut room.rows);
            room.qk_sums[..tile.rows * widths.0].fill(R::ZERO);
            let mut start = tile.first / BLOCK * BLOCK;
            while start < tile.end {
                let keys = start..(start + BLOCK).min(tile.end);
                load(&self.inputs.k, &tile, (start, keys.len()), widths.0, room.k);
                load(&self.inputs.v, &tile, (start, keys.len()), widths.1, room.v);
                (machine.pair)(PairJob {
                    inputs: &self.inputs,
                    tile: &tile,
                    keys,
                    k: &room.k[..BLOCK * widths.0],
                    v: &room.v[..BLOCK * widths.1],
                    rows: &room.rows,
                    room: &mut room.scores,
                    sums: Sums::Queries(&mut room.qk_sums[..tile.rows * widths.0]),
                    widths: *widths,
                });
                start += BLOCK;
            }
            for (row, sums) in tile.rows().iter().zip(room.qk_sums.chunks_exact_mut(widths.0)) {
                let sums = &mut sums[..dims.0];
                sums.iter_mut().for_each(|x| *x *= self.inputs.scale);
                let token = sequence.query(row.query);
                // SAFETY: a row has one thread.
                unsafe { store(&Rows::q(self.spec), &self.grad_q, (token, row.head), sums) };
            }
        });
    }

    /// Step 4.
    fn sinks(&self) {
        if !self.spec.sinks {
            return;
        }
        threads::for_each(self.spec.q_heads as usize, |head| {
            let sink: R = numbers::get(DType::F32, self.sinks, head);
            let mut sum = 0.0;
            for sequence in (0..self.spec.batch as usize).map(|b| self.places.sequence(b)) {
                for i in 0..sequence.q_len {
                    let at = lse_index(self.spec, sequence.query(i), head);
                    let lse = self.lse(at);
                    if lse != -R::INFINITY {
                        // SAFETY: step 1 is over.
                        let d = unsafe { self.d(at..at + 1) }[0];
                        sum -= ((sink - lse).exp() * d).to_f64();
                    }
                }
            }
            // SAFETY: a head has one thread.
            let place = unsafe { self.grad_sinks.part(4 * head..4 * head + 4) };
            numbers::write(DType::F32, &[sum], place, 0, Overflow::Saturate);
        });
    }
}

/// Scratch as numbers.
fn numbers_of<R: Compiled>(bytes: &mut [u8]) -> &mut [R] {
    // SAFETY: any bits are a number.
    let (before, numbers, after) = unsafe { bytes.align_to_mut() };
    assert!(before.is_empty() && after.len() < size_of::<R>(), "scratch is aligned to 256 bytes and rooms to 64");
    numbers
}

/// Writes one row of a gradient.
///
/// # Safety
/// Nobody else accesses it meanwhile.
unsafe fn store<R: Compiled>(rows: &Rows, out: &Output<'_>, (token, head): ((usize, usize), usize), x: &[R]) {
    let bits = rows.dtype.bits() as usize;
    let first = rows.first(token, head) * bits / 8;
    // SAFETY: the caller's promise.
    let place = unsafe { out.part(first..first + (rows.dim * bits).div_ceil(8)) };
    numbers::write(rows.dtype, x, place, 0, Overflow::Saturate);
}

/// Σ x · y in sixteen running sums.
fn dot<R: Compiled>(x: &[R], y: &[R]) -> R {
    let mut sums = [R::ZERO; 16];
    for (x, y) in x.chunks(16).zip(y.chunks(16)) {
        sums.iter_mut().zip(x.iter().zip(y)).for_each(|(sum, (&x, &y))| *sum += x * y);
    }
    sums.into_iter().sum()
}
