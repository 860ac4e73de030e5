//! One query a sequence: keys and values are read once, where they lie, as fast as memory gives them.
//!
//! ```text
//!   keys ─▶  │ chunk │ chunk │ …     a split: some chunks of 256 keys, one thread's, for all heads whose rows lie
//!   heads    │       │       │       side by side in memory
//!
//!   four keys at a time:  scores = q · kᵀ      then, of the chunk:  m' = max(m, scores)    w = 2^(scores − m')
//!   four keys at a time:  sums = 2^(m − m') sums + w · v            afterwards splits are taken together, in order
//! ```
//! Intel's processors fetch ahead within a page, and again have to learn where they are read in the next; so sixteen rows
//! of sixteen pages come after each other, which keeps more of memory busy. Others take rows as they lie and ask for them
//! ahead. Limits: masks that leave an interval. Splits depend on how many sequences there are, so not `batch-invariant`.

use super::{
    chunk::Inputs,
    fours::{CHUNK, Chunk, FOUR, LD, Numbers, STEP, arrange, settle, together},
    order::Order,
    places::{Dims, Places, Rows, ascending, lse_index},
    plan::SOURCES,
    product::LANES,
    sight::Tile,
    soften::base,
    tiled::{self, Tiled},
};
use crate::{
    kernel::{self, Output, input, optional},
    memory::{cut, numbers_mut, numbers_of},
    numbers,
    rows::{largest, sum},
    simd::{Avx2, Avx512, Baseline, Isa, Work, arith::Arith},
    threads::{self, Shares},
};
use kp_hal::{
    DType, Launch, Queue, Result, Unsupported,
    op::{Attention, AttentionArgs, AttentionProblem, AttentionSpec, HeadLayout, Mask, Overflow, Repro},
    source_hash,
};
use std::{f64::consts::LOG2_E, marker::PhantomData, ops::Range};

/// Hash of the sources that its kernels share.
pub(super) const DECODE: u64 = SOURCES
    ^ source_hash(include_bytes!("decode.rs"))
    ^ source_hash(include_bytes!("fours.rs")).rotate_left(1)
    ^ source_hash(include_bytes!("widened.rs")).rotate_left(2)
    ^ source_hash(include_bytes!("order.rs")).rotate_left(3)
    ^ source_hash(include_bytes!("ahead.rs")).rotate_left(4)
    ^ source_hash(include_bytes!("meets.rs")).rotate_left(6);

/// Splits there are at least, if there are so many chunks: enough to keep the threads of a large machine busy to the end.
const SPLITS: usize = 64;

/// Why a problem is not computed here, if it is not.
pub(super) fn refuses(p: &AttentionProblem) -> Option<Unsupported> {
    if p.q_len > 1 {
        return Some(Unsupported::TooLarge { dim: "q_len", max: 1, got: p.q_len.into() });
    }
    if let Some((operand, _)) = [("q", p.q.dtype), ("k", p.kv.dtype)].into_iter().find(|(_, t)| *t == DType::F64) {
        return Some(Unsupported::DType { operand, got: DType::F64 });
    }
    if matches!(p.mask, Mask::Blocks { .. } | Mask::Expr(_)) {
        return Some(Unsupported::Option { option: "mask", got: p.mask.to_string() });
    }
    (p.repro() == Repro::BatchInvariant).then(|| Unsupported::Repro { asked: p.repro() })
}

/// In what is computed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// f32, in vectors of eight or of sixteen.
    Eight,
    Sixteen,
    /// Pairs of bf16; the processor has `paired::FEATURES`.
    Pairs,
    /// The same by tiles; the processor has `tiled::FEATURES` besides.
    Tiles,
}

impl By {
    /// Whether Q and weights are rounded to bf16, and sums have an order of their own.
    fn rounds(self) -> bool {
        matches!(self, Self::Pairs | Self::Tiles)
    }
}

/// Decoding, planned.
pub(super) struct Code {
    pub(super) spec: AttentionSpec,
    pub(super) by: By,
    /// Whether keys are read one after the other, and asked for ahead, instead of from sixteen pages at a time.
    pub(super) in_turn: bool,
}

impl Code {
    pub(super) fn scratch_bytes(&self) -> u64 {
        Shape::new(self).scratch_bytes()
    }
}

impl Launch<Attention> for Code {
    unsafe fn launch(&self, queue: &mut dyn Queue, args: &AttentionArgs<'_>) -> Result<()> {
        let (spec, shape) = (&self.spec, Shape::new(self));
        // SAFETY: within a launch, whose arguments were checked.
        let (operands, scales, options, places) = unsafe {
            (
                [input(&args.q), input(&args.k), input(&args.v)],
                [optional(&args.q_scale), optional(&args.k_scale), optional(&args.v_scale)],
                [optional(&args.blocks), optional(&args.slopes), optional(&args.sinks)],
                [&args.q_offsets, &args.kv_offsets, &args.kv_lens, &args.page_table].map(|view| optional(view)),
            )
        };
        let [blocks, slopes, sinks] = options;
        let [q_offsets, kv_offsets, kv_lens, page_table] = places;
        let [q_offsets, kv_offsets] = &[q_offsets, kv_offsets].map(ascending);
        // SAFETY: as above.
        let (o, lse) = unsafe { (Output::new(&args.o), Output::optional(&args.lse)) };
        let run = Run {
            spec,
            in_turn: self.in_turn,
            by: self.by,
            shape,
            inputs: Inputs::new(spec, operands, scales, [blocks, slopes]),
            places: Places { spec, q_offsets, kv_offsets, kv_lens, page_table },
            sinks,
            o,
            lse,
            scratch: Output::of(kernel::own(queue).scratch()),
        };
        run.each(Round::Split, shape.units());
        run.each(Round::Finish, spec.batch as usize * spec.kv_heads as usize);
        Ok(())
    }
}

/// How the work is cut.
#[derive(Clone, Copy)]
struct Shape {
    by: By,
    dims: Dims,
    /// Rows of K or V that meet those of the query at once, where keys are read in turn.
    together: usize,
    /// Query heads to each head of K and V, and heads of K and V that are read together.
    group: usize,
    heads: usize,
    /// Of the sequences and such sets of heads there are.
    sets: usize,
    /// Parts of the keys of each.
    splits: usize,
}

impl Shape {
    fn new(Code { spec, by, in_turn }: &Code) -> Self {
        let (kv_heads, dims) = (spec.kv_heads as usize, Dims::new(spec));
        // In turn the rows of a step, and as many that were asked for, are what the first cache has room for, unless it is the second that is asked.
        let in_a_row = if spec.layout == HeadLayout::Bshd { kv_heads } else { 1 };
        let together = together(spec.kv.dtype, (&dims, in_a_row), *by);
        let step_bits = together * spec.qk_dim as usize * spec.kv.dtype.bits() as usize;
        let most = if *in_turn && *by != By::Tiles { (8 * STEP / step_bits.max(1)).max(1) } else { kv_heads };
        let heads = match spec.layout {
            HeadLayout::Bshd => (1..=most.min(kv_heads)).rfind(|heads| kv_heads.is_multiple_of(*heads)).unwrap_or(1),
            HeadLayout::Bhsd => 1,
        };
        let sets = spec.batch as usize * kv_heads / heads.max(1);
        let chunks = (spec.kv_len as usize).div_ceil(CHUNK).max(1);
        Self {
            by: *by,
            dims,
            together,
            group: (spec.q_heads / spec.kv_heads.max(1)) as usize,
            heads,
            sets,
            splits: SPLITS.div_ceil(sets.max(1)).min(chunks),
        }
    }

    /// Rows that a split has: a query head each.
    fn rows(&self) -> usize {
        self.heads * self.group
    }

    fn units(&self) -> usize {
        self.sets * self.splits
    }

    /// Numbers of a row of K or V, or of O, in cache.
    fn width(&self) -> usize {
        self.dims.qk_width.max(self.dims.v_width)
    }

    /// Numbers of the room in which rows of K and V are made ready.
    fn ready(&self) -> usize {
        match self.by {
            By::Tiles => tiled::room(self.heads, self.group),
            _ => FOUR * self.width(),
        }
    }

    /// Numbers of a [`Room`], and of a split's results: maximum, sum, and sums of values of each row.
    fn numbers(&self) -> [usize; 2] {
        let room = self.rows() * (self.dims.qk_width + LD) + self.ready() + self.width();
        [room, (2 * self.rows()).next_multiple_of(LANES) + self.rows() * self.dims.v_width]
    }

    fn scratch_bytes(&self) -> u64 {
        let [room, state] = self.numbers().map(|numbers| 4 * numbers as u64);
        room * threads::count() as u64 + state * self.units() as u64
    }
}

/// What a thread needs: rows of Q times their scale and of which set of heads they are, a chunk's scores of each, bytes for rows of K
/// or V that are made ready, and for one of zeros.
struct Room<'s> {
    q: &'s mut [f32],
    set: Option<usize>,
    s: &'s mut [f32],
    rows: &'s mut [u8],
    zeros: &'s mut [u8],
}

/// What a split found: as `chunk::State`, rows of sums `v_width` apart.
struct State<'s> {
    max: &'s mut [f32],
    sum: &'s mut [f32],
    acc: &'s mut [f32],
}

struct Run<'a> {
    spec: &'a AttentionSpec,
    in_turn: bool,
    by: By,
    shape: Shape,
    inputs: Inputs<'a, f32>,
    places: Places<'a>,
    sinks: &'a [u8],
    o: Output<'a>,
    lse: Output<'a>,
    scratch: Output<'a>,
}

/// The two rounds of a launch.
#[derive(Clone, Copy)]
enum Round {
    /// A unit is a split.
    Split,
    /// A unit is a head of K and V of a sequence.
    Finish,
}

/// A unit of a round, for the instruction set.
struct Unit<'w, 'a, 's, I> {
    of: &'w Run<'a>,
    round: Round,
    index: usize,
    room: &'w mut Room<'s>,
    isa: PhantomData<fn() -> I>,
}

impl<I: Numbers> Work for Unit<'_, '_, '_, I> {
    #[inline(always)]
    fn run(self) {
        match self.round {
            Round::Split => self.of.split::<I, false>(self.index, self.room, None),
            Round::Finish => self.of.finish(self.index, self.room),
        }
    }
}

impl Run<'_> {
    /// Runs the units of a round in parallel, each with a thread's room.
    fn each(&self, round: Round, units: usize) {
        let bytes = 4 * self.shape.numbers()[0];
        let parts = threads::count().min(units);
        // Splits beside each other are one thread's: what it asks for ahead is of the next one.
        let shares = Shares::new(units, parts, parts);
        threads::for_each(parts, |part| {
            // SAFETY: rooms lie apart, and one thread has each.
            let mut rest = unsafe { self.scratch.part(part * bytes..(part + 1) * bytes) };
            let Shape { dims, .. } = self.shape;
            let rows = self.shape.rows();
            let mut room = Room {
                q: cut(&mut rest, rows * dims.qk_width),
                set: None,
                s: cut(&mut rest, rows * LD),
                rows: cut(&mut rest, 4 * self.shape.ready()),
                zeros: cut(&mut rest, 4 * self.shape.width()),
            };
            room.zeros.fill(0);
            shares.of(part).for_each(|index| self.unit(round, index, &mut room));
        });
    }

    fn unit(&self, round: Round, index: usize, room: &mut Room<'_>) {
        match (self.by, round) {
            (By::Eight, _) => Avx2::run(Unit { of: self, round, index, room, isa: PhantomData::<fn() -> Avx2> }),
            (By::Pairs | By::Tiles, Round::Split) => {
                // SAFETY: planned where the processor has them, and nothing but products with K and V uses any until the end of the split.
                let tiles = (self.by == By::Tiles).then(|| unsafe { Tiled::new() });
                // SAFETY: planned where the processor has the instructions.
                unsafe { self.split_by_pairs(index, room, tiles) };
            }
            _ => Avx512::run(Unit { of: self, round, index, room, isa: PhantomData::<fn() -> Avx512> }),
        }
    }

    /// Takes a split by pairs of bf16, in tiles if there are any.
    ///
    /// # Safety
    /// The processor has the instructions.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bf16,avx2,fma,bmi2,f16c")]
    unsafe fn split_by_pairs(&self, index: usize, room: &mut Room<'_>, tiles: Option<Tiled>) {
        self.split::<Avx512, true>(index, room, tiles);
    }

    /// The bytes for what split `unit` finds: they lie apart, behind the rooms.
    fn place(&self, unit: usize) -> Range<usize> {
        let [room, numbers] = self.shape.numbers();
        let first = 4 * (threads::count() * room + unit * numbers);
        first..first + 4 * numbers
    }

    /// What split `unit` finds.
    ///
    /// # Safety
    /// One at a time for each.
    unsafe fn state(&self, unit: usize) -> State<'_> {
        let (rows, v_width) = (self.shape.rows(), self.shape.dims.v_width);
        // SAFETY: the caller's promise.
        let state = numbers_mut(unsafe { self.scratch.part(self.place(unit)) });
        let (ends, acc) = state.split_at_mut((2 * rows).next_multiple_of(LANES));
        let (max, sum) = ends.split_at_mut(rows);
        State { max, sum: &mut sum[..rows], acc: &mut acc[..rows * v_width] }
    }

    /// What split `unit` found of a row: its largest score, the sum of its shares and that of V by them.
    ///
    /// # Safety
    /// The splits have been taken.
    unsafe fn found(&self, unit: usize, row: usize) -> (f32, f32, &[f32]) {
        let (rows, v_width) = (self.shape.rows(), self.shape.dims.v_width);
        // SAFETY: nothing writes what was found any more.
        let state = numbers_of::<f32>(unsafe { self.scratch.shared(self.place(unit)) });
        (state[row], state[rows + row], &state[(2 * rows).next_multiple_of(LANES) + row * v_width..][..v_width])
    }

    /// The query of sequence `b` in the heads of key head `head`.
    fn tile(&self, b: usize, head: usize) -> Tile<'_> {
        Tile::new(&self.inputs.sight, self.places.sequence(b), head, 0, self.shape.group)
    }

    /// Takes in the keys of a split.
    #[inline(always)]
    fn split<I: Numbers, const PAIRS: bool>(&self, unit: usize, room: &mut Room<'_>, tiles: Option<Tiled>) {
        let Shape { heads, splits, .. } = self.shape;
        // SAFETY: a unit comes once.
        let mut state = unsafe { self.state(unit) };
        state.max.fill(f32::NEG_INFINITY);
        state.sum.fill(0.0);
        state.acc.fill(0.0);
        let (set, split) = (unit / splits, unit % splits);
        let sets = self.spec.kv_heads as usize / heads;
        let first_head = set % sets * heads;
        let tile = self.tile(set / sets, first_head);
        let each = tile.end.saturating_sub(tile.first).div_ceil(splits).next_multiple_of(CHUNK);
        let keys = (tile.first + split * each).min(tile.end)..(tile.first + (split + 1) * each).min(tile.end);
        if tile.rows == 0 || keys.is_empty() {
            return;
        }
        if room.set.replace(set) != Some(set) {
            self.read_query::<I, PAIRS>(&tile, first_head, room, tiles);
        }
        for start in keys.clone().step_by(CHUNK) {
            let some = start..keys.end.min(start + CHUNK);
            self.chunk::<I, PAIRS>((&tile, some), first_head, room, &mut state, tiles);
        }
    }

    /// Reads the rows of the query that a set of heads shares.
    #[inline(always)]
    fn read_query<I: Numbers, const PAIRS: bool>(
        &self,
        tile: &Tile<'_>,
        first_head: usize,
        room: &mut Room<'_>,
        tiles: Option<Tiled>,
    ) {
        let (Shape { group, dims, .. }, query) = (self.shape, tile.sequence.query(0));
        for (row, q) in room.q.chunks_exact_mut(dims.qk_width).enumerate() {
            self.inputs.q.read::<I, _>(query, first_head * group + row, q);
            if PAIRS {
                arrange(&self.inputs.k, q);
            } else {
                q.iter_mut().for_each(|x| *x *= self.inputs.scale);
            }
        }
        if tiles.is_some() {
            room.q.chunks_exact_mut(group * dims.qk_width).for_each(|q| tiled::arrange(q, group, room.s));
        }
    }

    #[inline(always)]
    fn chunk<I: Numbers, const PAIRS: bool>(
        &self,
        (tile, keys): (&Tile<'_>, Range<usize>),
        first_head: usize,
        room: &mut Room<'_>,
        state: &mut State<'_>,
        tiles: Option<Tiled>,
    ) {
        let Shape { heads, group, dims, together, .. } = self.shape;
        let (k, v, start) = (&self.inputs.k, &self.inputs.v, keys.start);
        let order = if self.in_turn {
            Order::in_turn(keys.len(), together)
        } else {
            Order::of_pages(keys.len(), k.row_bytes())
        };
        let chunk = Chunk::new(tile, keys, [k, v], (first_head, heads, group), order, room.zeros);
        // Rounded numbers of Q are not multiplied by anything before they meet K.
        let factor = if PAIRS { self.inputs.scale } else { 1.0 };
        chunk.scores::<I, PAIRS>((room.q, factor), room.rows, room.s, tiles);
        for (row, s) in room.s.as_chunks_mut::<LD>().0.iter_mut().enumerate() {
            let s = &mut s[..order.all()];
            self.shape::<I>(tile, &order, start, first_head * group + row, s);
            let max = largest::<I, f32>(s);
            let new = if max > state.max[row] { max } else { state.max[row] };
            let base = base(new);
            s.iter_mut().for_each(|s| *s = (*s - base).exp2_of::<I>());
            let shrink = (state.max[row] - base).exp2_of::<I>();
            state.sum[row] = state.sum[row] * shrink + sum::<I, f32>(s);
            state.max[row] = new;
            if shrink != 1.0 {
                state.acc[row * dims.v_width..][..dims.v_width].iter_mut().for_each(|x| *x *= shrink);
            }
        }
        chunk.add_values::<I, PAIRS>(room.s, room.rows, state.acc, tiles);
    }

    /// Turns a row's products into scores: capped, by distance, −∞ where there is no key.
    #[inline(always)]
    fn shape<I: Numbers>(&self, tile: &Tile<'_>, order: &Order, start: usize, head: usize, s: &mut [f32]) {
        if let Some((share, cap)) = self.inputs.softcap {
            s.iter_mut().for_each(|s| *s = cap * (*s * share).tanh_of::<I>());
        }
        let slope = self.inputs.sight.slope(head) * std::f32::consts::LOG2_E;
        if slope != 0.0 {
            let distance = (start as i64 - tile.sequence.position(0)) as f32;
            for (place, s) in s.iter_mut().enumerate() {
                *s += slope * (distance + order.key(place) as f32);
            }
        }
        for (i, s) in s.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            s[order.count(i * LANES).min(LANES)..].fill(f32::NEG_INFINITY);
        }
    }

    /// Takes the splits of key head `unit` of all sequences together and writes its rows of O.
    #[inline(always)]
    fn finish(&self, unit: usize, room: &mut Room<'_>) {
        let Shape { heads, group, splits, dims, .. } = self.shape;
        let kv_heads = self.spec.kv_heads as usize;
        let tile = self.tile(unit / kv_heads, unit % kv_heads);
        let rows = Rows::o(self.spec);
        let bytes = rows.dtype.bits() as usize;
        for i in 0..tile.rows {
            let (head, row) = (tile.kv_head * group + i, unit % heads * group + i);
            // SAFETY: this is the round after that of the splits.
            let found = (0..splits).map(|split| unsafe { self.found(unit / heads * splits + split, row) });
            let sink = if self.sinks.is_empty() { f32::NEG_INFINITY } else { self.sink(head) };
            let most = found.clone().fold(sink, |most, (max, ..)| if max > most { max } else { most });
            let base = base(most);
            let mut sum = (sink - base).exp2_of::<Baseline>();
            let out = &mut numbers_mut::<f32>(room.rows)[..dims.v_width];
            out.fill(0.0);
            for (max, of_split, acc) in found {
                let share = (max - base).exp2_of::<Baseline>();
                sum += of_split * share;
                out.iter_mut().zip(acc).for_each(|(out, &x)| *out += x * share);
            }
            if self.by.rounds() {
                settle(&self.inputs.v, out);
            }
            let query = tile.sequence.query(0);
            if self.spec.lse {
                let at = 4 * lse_index(self.spec, query, head);
                // SAFETY: a row has one owner.
                let place = unsafe { self.lse.part(at..at + 4) };
                numbers::write(DType::F32, &[base / LOG2_E as f32 + sum.ln()], place, 0, Overflow::Saturate);
            }
            // Where nothing is seen the sums are 0, and so is the result.
            let share = if sum == 0.0 { 0.0 } else { 1.0 / sum };
            out.iter_mut().for_each(|x| *x *= share);
            let first = rows.first(query, head) * bytes / 8;
            // SAFETY: as above.
            let place = unsafe { self.o.part(first..first + rows.dim * bytes / 8) };
            numbers::write(rows.dtype, &out[..rows.dim], place, 0, Overflow::Saturate);
        }
    }

    fn sink(&self, head: usize) -> f32 {
        numbers::get::<f32>(DType::F32, self.sinks, head) * LOG2_E as f32
    }
}
