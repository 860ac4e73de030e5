//! Tiles of `sm90.cu`, how they are handed to blocks, and how long that takes.

use kp_hal::{
    Caps, DType, Nanos, Variant,
    op::{Gate, GemmSpec, Scheme, Spec},
};

/// One variant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    pub(super) tile: Tile,
    pub(super) stream: Stream,
    /// Whether problems with more than a plain store have it too: each epilogue is a build of its own.
    pub(super) general: bool,
}

/// Macros of the source.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tile {
    pub(super) m: u32,
    pub(super) n: u32,
    pub(super) stages: u32,
    pub(super) buffers: u32,
    pub(super) warpgroups: u32,
    pub(super) ping_pong: bool,
    pub(super) cluster: (u32, u32),
    /// Blocks that part the k of one tile; if more than one, a cluster is nothing else.
    pub(super) cluster_k: u32,
    /// Blocks that a unit holds at a time.
    pub(super) resident: u32,
}

/// How tiles become the work of clusters; see `kernels/gemm/README.md`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stream {
    /// Whole tiles.
    No,
    /// Each tile in so many parts.
    Split(u32),
    /// All tiles in equal parts for all clusters.
    All,
    /// What is left of whole rounds, and one round more.
    Rest,
}

/// A tile whose warpgroups share it.
const fn shared(m: u32, n: u32, stages: u32, buffers: u32, cluster: (u32, u32)) -> Tile {
    Tile { m, n, stages, buffers, warpgroups: 2, ping_pong: false, cluster, cluster_k: 1, resident: 1 }
}

/// A tile of each of two warpgroups, which take turns.
const fn in_turn(m: u32, n: u32, stages: u32, buffers: u32, cluster: (u32, u32)) -> Tile {
    Tile { ping_pong: true, ..shared(m, n, stages, buffers, cluster) }
}

/// Small tiles of one warpgroup, two blocks to a unit.
const fn twice(m: u32, n: u32, stages: u32) -> Tile {
    Tile { warpgroups: 1, resident: 2, ..shared(m, n, stages, 2, (1, 1)) }
}

/// Tiles of 64 rows of one warpgroup, with a unit to themselves.
const fn alone(n: u32, stages: u32, buffers: u32, cluster: (u32, u32)) -> Tile {
    Tile { warpgroups: 1, ..shared(64, n, stages, buffers, cluster) }
}

const fn parted(tile: Tile, cluster_k: u32) -> Tile {
    Tile { cluster_k, ..tile }
}

const fn some(tile: Tile, stream: Stream) -> Choice {
    Choice { tile, stream, general: false }
}

const fn any(tile: Tile, stream: Stream) -> Choice {
    Choice { tile, stream, general: true }
}

/// Append only, because wisdom names variants by their place.
pub(super) const VARIANTS: [Choice; 44] = [
    any(in_turn(128, 128, 6, 2, (2, 1)), Stream::No),
    some(in_turn(128, 192, 4, 2, (1, 1)), Stream::No),
    any(in_turn(128, 192, 4, 2, (2, 1)), Stream::No),
    some(in_turn(128, 160, 5, 2, (2, 1)), Stream::No),
    some(in_turn(128, 176, 4, 4, (1, 1)), Stream::No),
    some(in_turn(128, 128, 6, 2, (1, 1)), Stream::No),
    some(shared(128, 256, 4, 2, (2, 1)), Stream::No),
    any(shared(128, 256, 4, 2, (1, 1)), Stream::No),
    some(shared(128, 256, 4, 2, (2, 1)), Stream::Rest),
    some(shared(256, 128, 4, 2, (1, 2)), Stream::No),
    some(shared(256, 192, 3, 3, (1, 1)), Stream::Rest),
    some(shared(128, 192, 4, 3, (1, 1)), Stream::No),
    some(shared(128, 160, 5, 4, (1, 1)), Stream::No),
    any(shared(128, 224, 4, 2, (1, 1)), Stream::No),
    any(shared(128, 128, 6, 2, (1, 1)), Stream::No),
    some(shared(128, 128, 6, 2, (2, 1)), Stream::No),
    some(shared(128, 128, 6, 2, (1, 2)), Stream::No),
    some(shared(128, 128, 6, 2, (1, 2)), Stream::Split(2)),
    some(shared(128, 96, 7, 3, (1, 2)), Stream::No),
    any(shared(128, 64, 8, 2, (1, 1)), Stream::No),
    some(shared(128, 64, 8, 2, (1, 4)), Stream::No),
    some(shared(128, 64, 8, 2, (1, 2)), Stream::All),
    any(shared(64, 128, 8, 2, (1, 1)), Stream::No),
    some(parted(shared(128, 128, 5, 2, (1, 1)), 2), Stream::No),
    some(parted(shared(128, 160, 4, 3, (1, 1)), 2), Stream::No),
    some(parted(shared(128, 96, 6, 3, (1, 1)), 2), Stream::No),
    some(parted(shared(128, 64, 7, 2, (1, 1)), 2), Stream::No),
    some(parted(shared(64, 128, 7, 2, (1, 1)), 2), Stream::No),
    any(twice(64, 64, 5), Stream::No),
    some(twice(64, 32, 8), Stream::No),
    some(parted(twice(64, 64, 5), 2), Stream::No),
    some(alone(64, 12, 2, (2, 1)), Stream::No),
    any(alone(96, 10, 3, (2, 1)), Stream::No),
    some(alone(112, 9, 7, (2, 1)), Stream::No),
    any(alone(128, 8, 3, (2, 1)), Stream::No),
    some(alone(160, 6, 3, (2, 1)), Stream::No),
    some(alone(192, 6, 3, (2, 1)), Stream::No),
    some(parted(alone(64, 11, 2, (1, 1)), 2), Stream::No),
    some(alone(64, 12, 2, (2, 1)), Stream::Split(2)),
    any(in_turn(128, 176, 5, 4, (1, 1)), Stream::No),
    some(alone(32, 16, 2, (1, 1)), Stream::No),
    any(alone(64, 12, 2, (1, 1)), Stream::No),
    some(shared(256, 128, 4, 2, (1, 1)), Stream::No),
    some(Tile { warpgroups: 3, ..shared(192, 128, 4, 2, (1, 1)) }, Stream::No),
];

/// The row of a variant.
pub(super) fn choice(variant: Variant) -> &'static Choice {
    &VARIANTS[usize::from(variant.0)]
}

impl Tile {
    /// Blocks of a cluster.
    pub(super) const fn cluster_blocks(&self) -> u32 {
        self.cluster.0 * self.cluster.1 * self.cluster_k
    }

    pub(super) const fn threads(&self) -> u32 {
        128 * (1 + self.warpgroups)
    }

    /// Warpgroups along m and n that share one tile.
    pub(super) const fn team(&self) -> (u32, u32) {
        let team = if self.ping_pong { 1 } else { self.warpgroups };
        let along_m = if self.m / 64 < team { self.m / 64 } else { team };
        (along_m, team / along_m)
    }

    /// Boxes of B in a tile, if its columns are contiguous.
    pub(super) const fn b_boxes(&self, gate: Gate) -> u32 {
        match gate {
            Gate::Halves if self.cluster.0 == 1 => 2,
            _ => self.cluster.0,
        }
    }

    /// Bytes of a row of the slabs in which D is stored, or 0 if this tile cannot store `d` gated so.
    pub(super) const fn slab_width(&self, d: DType, gate: Gate) -> u32 {
        let columns = self.n / self.team().1 / self.cluster_k / gate.columns();
        let row = columns * d.bits() / 8;
        let width = if row.is_multiple_of(128) {
            128
        } else if row.is_multiple_of(64) {
            64
        } else if row.is_multiple_of(32) {
            32
        } else {
            return 0;
        };
        // Pairs of 8 columns are stored at once, and both halves of a gate are one warpgroup's.
        let split = matches!(gate, Gate::Halves) && self.team().1 * self.cluster_k > 1;
        if (width * 8 / d.bits()).is_multiple_of(16) && !split { width } else { 0 }
    }

    /// Whether a thread has registers for its sums and those of 64 rows besides.
    pub(super) const fn holds_two_sums(&self) -> bool {
        let (along_m, along_n) = self.team();
        let (rows, columns) = (self.m / along_m, self.n / along_n);
        (rows / 64 + 1) * columns / 2 <= 200
    }

    /// Whether a thread has registers for what C or a residual adds, beside its sums.
    pub(super) const fn holds_addends(&self) -> bool {
        let (along_m, along_n) = self.team();
        self.m / along_m * (self.n / along_n) <= 128 * 128
    }

    /// Whether a thread has registers for two blocks' sums beside its own, so that the next block's products run while one's are added.
    const fn promotes_ahead(&self) -> bool {
        let (along_m, along_n) = self.team();
        self.m / along_m == 64 && self.n / along_n <= 128 && self.warpgroups <= 2
    }

    /// Dynamic shared memory for problems like `spec`.
    pub(super) fn shared_bytes(&self, spec: &GemmSpec) -> u32 {
        let slab_width = self.slab_width(spec.d.dtype(), spec.epilogue.gate);
        let stage = (self.m + self.n) * 128;
        let (rows, columns) = (self.m / self.team().0, self.n / self.team().1 / self.cluster_k);
        let exchange = (self.cluster_k - 1) * self.warpgroups * rows * columns * 4;
        let staging = self.warpgroups * self.buffers * 64 * slab_width;
        // Of a tile's rows and columns.
        let scales = if spec.a.format.scheme == Scheme::Row { (rows + columns) * 4 } else { 0 };
        let bias = spec.epilogue.bias.map_or(0, |t| columns * t.bits() / 8);
        let fetched = self.warpgroups * (scales + bias);
        self.stages * stage + staging + fetched + exchange + (2 * self.stages + 1) * 8
    }
}

/// How a product is cut: what the source calls `Tiles`, and how many clusters there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cut {
    /// Tiles of a cluster along m and n, and in all.
    pub(super) m: u32,
    pub(super) n: u32,
    pub(super) tiles: u64,
    /// Blocks of 128 bytes along k.
    pub(super) k: u32,
    pub(super) clusters: u32,
    pub(super) streamed: u32,
}

impl Choice {
    /// The cut of `spec` for a device that holds `resident` clusters at a time; `None` if there is too little to stream.
    pub(super) fn cut(&self, spec: &GemmSpec, resident: u32) -> Option<Cut> {
        let (cm, cn) = self.tile.cluster;
        let (m, n) = (spec.m.div_ceil(self.tile.m * cm), spec.n.div_ceil(self.tile.n * cn));
        let tiles = u64::from(m) * u64::from(n) * u64::from(spec.batch);
        let k = spec.k.div_ceil(1024 / spec.a.dtype().bits());
        let full = resident.max(1);
        let up_to = |most: u64| most.min(full.into()) as u32;
        let (clusters, streamed) = match self.stream {
            // Clusters that part k are not persistent: each has one tile.
            Stream::No if self.tile.cluster_k > 1 => (tiles.min(u32::MAX.into()) as u32, 0),
            Stream::No => (up_to(tiles), 0),
            Stream::Split(parts) => (up_to(tiles * u64::from(parts)), tiles),
            Stream::All => (full, tiles),
            Stream::Rest if tiles < 2 * u64::from(full) => (full, tiles),
            Stream::Rest => {
                let rest = tiles % u64::from(full);
                (full, if rest > 0 { rest + u64::from(full) } else { 0 })
            }
        };
        let blocks = streamed * u64::from(k);
        let fits = blocks == 0 || blocks >= clusters.into() && blocks < 1 << 32;
        let fits = fits && k >= self.tile.cluster_k && tiles * u64::from(self.tile.cluster_blocks()) < 1 << 31;
        fits.then_some(Cut { m, n, tiles, k, clusters, streamed: streamed as u32 })
    }
}

/// Clusters of a variant that a device of `units` holds: a guess where the driver has not been asked.
///
/// Groups of units that share no cluster leave some idle: an H200 holds 30 clusters of 4.
pub(super) fn resident(units: u32, tile: &Tile) -> u32 {
    let whole = units * tile.resident / tile.cluster_blocks();
    if tile.cluster_blocks() > 2 { whole - whole / 11 } else { whole }
}

/// How long a product takes: what its blocks do one after the other, what all of it takes of the power that the card has,
/// and what memory delivers, of which the longest counts, and the others a little.
pub(super) fn estimate(caps: &Caps, spec: &GemmSpec, variant: Variant) -> Nanos {
    let choice = choice(variant);
    let tile = &choice.tile;
    let full = resident(caps.units, tile);
    let Some(cut) = choice.cut(spec, full) else { return Nanos(u64::MAX - 1) };
    let units = f64::from(caps.units.max(1));
    let clock = if caps.clock_hz > 0.0 { caps.clock_hz } else { 1.5e9 };
    let (m, n, k) = (f64::from(tile.m), f64::from(tile.n), f64::from(cut.k));
    let (cm, cn, ck) = (f64::from(tile.cluster.0), f64::from(tile.cluster.1), f64::from(tile.cluster_k));
    let (tiles, clusters, streamed) = (cut.tiles as f64, f64::from(cut.clusters), f64::from(cut.streamed));
    let step_k = f64::from(1024 / spec.a.dtype().bits());
    let promoted = super::promotes(spec);

    // Cycles of one k block: its products, or copies; what neighbours share still comes into each unit.
    let rate = caps.rates.get(spec.rate_dtype());
    let promotion = match promoted {
        true if tile.promotes_ahead() => PROMOTED_AHEAD,
        true => PROMOTED,
        false => 1.0,
    };
    let multiply = 2.0 * m * n * step_k * units * clock / rate * promotion;
    let at_work = if cut.streamed > 0 { clusters } else { clusters.min(tiles) };
    let busy = at_work * f64::from(tile.cluster_blocks()) / units / f64::from(tile.resident);
    let copy = (m + n) * 128.0 / COPIED_PER_CYCLE;
    let step = multiply.max(copy) + if tile.ping_pong { 0.5 * STEP } else { STEP };

    // Cycles of one cluster's tiles.
    let whole = (tiles - streamed) / if tile.cluster_k > 1 { f64::from(full.max(1)) } else { clusters };
    let end = TILE + m * n * 2.0 / STORE_PER_CYCLE;
    // Ping-pong ends one tile while it multiplies the next.
    let ends = if tile.ping_pong { 1.0 } else { whole.ceil() };
    let mut cycles = whole.ceil() * k / ck * step + ends * end;
    if tile.resident > 1 {
        cycles *= RESIDENT;
    }
    if cut.streamed > 0 {
        // Clusters at different k of many tiles share little of A and B in L2.
        let apart = if streamed > clusters { APART } else { 1.0 };
        let ends = (streamed / clusters).max(if whole > 0.0 { 0.0 } else { 1.0 });
        cycles += streamed * k / clusters * step * apart + ends * end + FIX_UP + m * n * FIX_UP_SUM;
    }
    if tile.cluster_k > 1 {
        cycles += PARTED;
    }

    let padded = 2.0 * tiles * cm * m * cn * n * k * step_k;
    let energy = padded / (rate * POWER) * if promoted { PROMOTED_POWER } else { 1.0 };
    let bytes = spec.bytes() as f64 / (caps.bytes_per_s * MEMORY * (busy / ENOUGH).min(1.0));
    let parts = [cycles / clock, energy, bytes + TILE / clock];
    let longest = parts.iter().map(|t| t.powf(SHARPNESS)).sum::<f64>().powf(1.0 / SHARPNESS);
    Nanos::from_secs(START + longest)
}

// Fitted on an H200 to the times of 42 problems of 64 rows and more in 42 variants, and of 122 more in the few that records have: with these,
// the variant chosen takes 1.012 times as long as the best on average, 1.15 times at worst. `START` and `PARTED` also decide between these
// kernels and those for few rows. In cycles unless said.

/// Cycles, and power, of sums that leave the matrix unit after every block: of 34 long problems in 5 to 7 variants, the choice takes 1.02 times
/// as long as the best on average, 1.18 times at worst.
const PROMOTED: f64 = 1.26;
const PROMOTED_AHEAD: f64 = 1.14;
const PROMOTED_POWER: f64 = 1.0;
/// Bytes into a unit per cycle.
const COPIED_PER_CYCLE: f64 = 95.0;
/// Of one k block.
const STEP: f64 = 60.0;
/// Filling and draining a tile's pipeline.
const TILE: f64 = 300.0;
/// Bytes per unit and cycle of D.
const STORE_PER_CYCLE: f64 = 9.2;
/// Of streams of more than one tile for each cluster. 4096³ in bf16 took 1.06 times as long when all of it was streamed; where no time is
/// known, tiles whose times are come first.
const APART: f64 = 1.12;
/// Leaving and gathering parts of a tile, once and for each element.
const FIX_UP: f64 = 1000.0;
const FIX_UP_SUM: f64 = 0.5;
/// Exchanging sums within a cluster.
const PARTED: f64 = 2000.0;
/// Of two blocks on a unit.
const RESIDENT: f64 = 1.67;
/// Of the peak, what the card's power sustains.
const POWER: f64 = 0.805;
/// Of the memory's peak, and the share of units that reaches it.
const MEMORY: f64 = 0.839;
const ENOUGH: f64 = 0.0328;
/// The power mean's exponent.
const SHARPNESS: f64 = 4.0;
/// From the launch to the first copy, in seconds.
const START: f64 = 1.2e-6;
