//! Gradients of attention with no buffer of scores, each element summed by one thread in one order.
//!
//! ```text
//! 1. D = Σ O · dO           every row; scratch of one number per query and head
//! 2. dK, dV                 a thread takes 256 keys of a key head and walks the rows of its group that see them
//! 3. dQ                     a thread takes 64 rows and walks the keys they see
//! 4. dsink = −Σ exp(sink − LSE) · D        a thread takes a head
//! ```
//! Where there are key heads enough for the threads, one takes a key head at a time and does 2 and 3 at once, keeping
//! the sums of all its queries; otherwise P is computed in 2 and again in 3: cheaper than sharing sums between
//! threads, which would lose their order. The order is the same either way, keys and rows ascending, and so are the bits.

use super::pair::{Pair, PairJob, RAISE, RowRoom, ScoreRoom, Task};
use crate::{
    attention::{
        chunk::{BLOCK, Inputs, PANEL},
        machine::{self, Compiled, Machine},
        places::{Dims, Places, Rows, Sequence, Source, ascending, lse_index},
        plan::{self, Code, SOURCES},
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
    f64::consts::LOG2_E,
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

    fn supports(&self, caps: &Caps, problem: &AttentionBackwardProblem) -> Support {
        plan::supports(caps, &problem.forward, problem.repro())
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

/// Keys of a unit of step 2: so many that reading the rows again for each is a twentieth of their products, and so few
/// that K, V and their gradients stay in the second-level cache.
const KEYS: usize = 4 * BLOCK;

/// Most bytes of gradients of queries that a thread keeps.
const MOST_KEPT: usize = 32 << 20;

/// How the work is cut.
struct Shape<R> {
    machine: Machine<R>,
    /// Panels of rows, and units of keys, of a sequence and key head.
    tiles: usize,
    key_units: usize,
    /// Sequences times key heads.
    groups: usize,
    dims: Dims,
    /// Rows that have a D.
    rows: usize,
    /// Whether a thread takes a key head at a time.
    by_head: bool,
}

impl<R: Compiled> Shape<R> {
    fn new(code: &Code) -> Self {
        let spec = &code.spec;
        let (batch, len) = spec.q_extent();
        let (dims, groups, threads) = (Dims::new(spec), spec.batch as usize * spec.kv_heads as usize, threads::count());
        let tiles = (spec.q_len as usize * (spec.q_heads / spec.kv_heads) as usize).div_ceil(PANEL);
        let kept = tiles.saturating_mul(PANEL * dims.qk_width * size_of::<R>());
        let even = groups >= 4 * threads || groups.is_multiple_of(threads);
        Self {
            machine: R::machine(code.variant),
            tiles,
            key_units: (spec.kv_len as usize).div_ceil(KEYS),
            groups,
            dims,
            rows: batch as usize * len as usize * spec.q_heads as usize,
            by_head: even && kept <= MOST_KEPT,
        }
    }

    /// Numbers of the parts of a thread's [`Room`], in its order.
    fn room(&self) -> [usize; 14] {
        let Dims { qk_width, v_width, .. } = self.dims;
        let (qk_ld, v_ld) = (self.dims.qk_ld(), self.dims.v_ld());
        let scores = BLOCK * PANEL;
        let kept = if self.by_head { self.tiles } else { 1 };
        [
            PANEL * qk_width,
            PANEL * v_width,
            PANEL * qk_ld,
            PANEL * v_ld,
            PANEL,
            PANEL,
            scores,
            scores,
            scores,
            KEYS * qk_ld,
            KEYS * v_ld,
            KEYS * qk_width,
            KEYS * v_width,
            kept * PANEL * qk_width,
        ]
    }

    fn room_bytes(&self) -> usize {
        (self.room().iter().sum::<usize>() * size_of::<R>()).next_multiple_of(64)
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
    /// Gradients of a unit of keys.
    k_sums: &'s mut [R],
    v_sums: &'s mut [R],
    /// Gradients of one panel of queries, or of all those of a key head.
    q_sums: &'s mut [R],
}

impl<'s, R: Compiled> Room<'s, R> {
    fn new(shape: &Shape<R>, numbers: &'s mut [R]) -> Self {
        let mut rest = numbers;
        let [q, grad_o, q_rows, grad_o_rows, lse, d, p, grad, steepness, k, v, k_sums, v_sums, q_sums] =
            shape.room().map(|count| {
                let (front, back) = std::mem::take(&mut rest).split_at_mut(count);
                rest = back;
                front
            });
        let rows = RowRoom { q, grad_o, q_rows, grad_o_rows, lse, d };
        Self { rows, scores: ScoreRoom { p, grad, steepness }, k, v, k_sums, v_sums, q_sums }
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
    let [q_offsets, kv_offsets] = &[q_offsets, kv_offsets].map(ascending);
    let places = Places { spec, q_offsets, kv_offsets, kv_lens, page_table: &[] };
    // SAFETY: as above.
    let [grad_q, grad_k, grad_v] = unsafe { [&args.grad_q, &args.grad_k, &args.grad_v].map(|view| Output::new(view)) };
    // SAFETY: as above.
    let grad_sinks = unsafe { Output::optional(&args.grad_sinks) };
    let (o, grad_o) = (Source::o(spec, o), Source::o(spec, grad_o));
    let scratch = Output::of(scratch);
    let run = Run { spec, shape, inputs, o, grad_o, lse, sinks, places, grad_q, grad_k, grad_v, grad_sinks, scratch };
    run.products_of_rows();
    if run.shape.by_head {
        run.heads();
    } else {
        run.keys();
        run.queries();
    }
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

    fn run(&self, task: Task<'_, '_, R>) {
        (self.shape.machine.pair)(PairJob { inputs: &self.inputs, task });
    }

    /// Step 1.
    fn products_of_rows(&self) {
        let heads = self.spec.q_heads as usize;
        self.each(self.spec.batch as usize * heads, |room, unit| {
            let (sequence, head) = (self.places.sequence(unit / heads), unit % heads);
            if sequence.q_len == 0 {
                return;
            }
            let first = lse_index(self.spec, sequence.query(0), head);
            // SAFETY: a row has one thread.
            let d = unsafe { self.d(first..first + sequence.q_len) };
            let room = &mut room.rows.grad_o[..2 * self.shape.dims.v_width];
            self.run(Task::Products { o: [&self.o, &self.grad_o], tokens: &|i| sequence.query(i), head, d, room });
        });
    }

    /// Reads a tile's rows.
    fn load(&self, tile: &Tile<'_>, rows: &mut RowRoom<'_, R>) {
        self.run(Task::Rows { tile, grad_o: &self.grad_o, rows });
        rows.lse.fill(R::INFINITY);
        rows.d.fill(R::ZERO);
        for (i, row) in tile.rows().enumerate() {
            let at = lse_index(self.spec, tile.sequence.query(row.query), row.head);
            let lse = self.lse(at);
            // The power of S − LSE must be 0 where nothing is seen.
            rows.lse[i] =
                if lse == -R::INFINITY { R::INFINITY } else { lse * R::from_f64(LOG2_E) - R::from_f32(RAISE) };
            // SAFETY: step 1 is over.
            rows.d[i] = unsafe { self.d(at..at + 1) }[0];
        }
    }

    /// Panel `place` of a sequence's rows.
    fn tile(&self, (sequence, kv_head): (Sequence<'a>, usize), place: usize) -> Tile<'_> {
        Tile::new(&self.inputs.sight, sequence, kv_head, place * PANEL, PANEL)
    }

    /// Steps 2 and 3 at once.
    fn heads(&self) {
        let Shape { tiles, key_units, groups, .. } = self.shape;
        self.each(groups, |room, group| {
            let group = self.group(group);
            room.q_sums.fill(R::ZERO);
            for unit in 0..key_units {
                self.unit(room, group, unit, true);
            }
            for place in 0..tiles {
                self.store_queries(room, &self.tile(group, place), place);
            }
        });
    }

    /// Step 2.
    fn keys(&self) {
        let Shape { key_units, groups, .. } = self.shape;
        self.each(groups * key_units, |room, unit| {
            self.unit(room, self.group(unit / key_units), unit % key_units, false);
        });
    }

    /// Gradients of a unit of keys; `queries` if those of the queries are summed with them.
    fn unit(&self, room: &mut Room<'_, R>, group: (Sequence<'a>, usize), unit: usize, queries: bool) {
        let (sequence, kv_head) = group;
        let Dims { qk, v, qk_width, v_width } = self.shape.dims;
        let first = unit * KEYS;
        // Padding has gradients too: zeros. What lies between packed sequences belongs to nobody.
        let len = if self.spec.lens == Lens::Padded { self.spec.kv_len as usize } else { sequence.kv_len };
        if first >= len {
            return;
        }
        let there = first..(first + KEYS).min(sequence.kv_len).max(first);
        room.k_sums.fill(R::ZERO);
        room.v_sums.fill(R::ZERO);
        let mut loaded = false;
        for place in 0..self.shape.tiles {
            let tile = self.tile(group, place);
            if tile.first.max(there.start) >= tile.end.min(there.end) {
                continue;
            }
            if !loaded {
                self.run(Task::Keys { tile: &tile, keys: there.clone(), k: room.k, v: room.v });
                loaded = true;
            }
            self.load(&tile, &mut room.rows);
            for (block, start) in there.clone().step_by(BLOCK).enumerate() {
                let of = |width: usize| block * BLOCK * width..(block + 1) * BLOCK * width;
                let kept = place * PANEL * qk_width..(place + 1) * PANEL * qk_width;
                self.run(Task::Pair(Pair {
                    tile: &tile,
                    keys: start..(start + BLOCK).min(there.end),
                    k: &room.k[of(self.shape.dims.qk_ld())],
                    v: &room.v[of(self.shape.dims.v_ld())],
                    rows: &room.rows,
                    room: &mut room.scores,
                    of_keys: Some([&mut room.k_sums[of(qk_width)], &mut room.v_sums[of(v_width)]]),
                    of_queries: queries.then(|| &mut room.q_sums[kept]),
                }));
            }
        }
        for (i, key) in (first..(first + KEYS).min(len)).enumerate() {
            let place = (sequence.key(key), kv_head);
            let k = &mut room.k_sums[i * qk_width..][..qk];
            k.iter_mut().for_each(|x| *x *= self.inputs.score_scale);
            // SAFETY: a key has one thread.
            unsafe {
                store(&Rows::k(self.spec), &self.grad_k, place, k);
                store(&Rows::v(self.spec), &self.grad_v, place, &room.v_sums[i * v_width..][..v]);
            }
        }
    }

    /// Step 3.
    fn queries(&self) {
        let Shape { tiles, groups, .. } = self.shape;
        self.each(groups * tiles, |room, unit| {
            // Under a causal mask the last queries see most.
            let tile = self.tile(self.group(unit / tiles), tiles - 1 - unit % tiles);
            if tile.rows == 0 {
                return;
            }
            self.load(&tile, &mut room.rows);
            room.q_sums.fill(R::ZERO);
            for start in (tile.first / BLOCK * BLOCK..tile.end).step_by(BLOCK) {
                let keys = start..(start + BLOCK).min(tile.end);
                self.run(Task::Keys { tile: &tile, keys: keys.clone(), k: room.k, v: room.v });
                self.run(Task::Pair(Pair {
                    tile: &tile,
                    keys,
                    k: room.k,
                    v: room.v,
                    rows: &room.rows,
                    room: &mut room.scores,
                    of_keys: None,
                    of_queries: Some(&mut *room.q_sums),
                }));
            }
            self.store_queries(room, &tile, 0);
        });
    }

    /// Writes the gradients of a tile, which are at panel `place` of those kept.
    fn store_queries(&self, room: &mut Room<'_, R>, tile: &Tile<'_>, place: usize) {
        let Dims { qk, qk_width, .. } = self.shape.dims;
        let sums = &room.q_sums[place * PANEL * qk_width..(place + 1) * PANEL * qk_width];
        self.run(Task::Finish { sums, out: room.k });
        for (row, sums) in tile.rows().zip(room.k.chunks_exact(self.shape.dims.qk_ld())) {
            let place = (tile.sequence.query(row.query), row.head);
            // SAFETY: a row has one thread.
            unsafe { store(&Rows::q(self.spec), &self.grad_q, place, &sums[..qk]) };
        }
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
