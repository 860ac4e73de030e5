//! Tiles of `sm90.cu`, how they are handed to blocks, and how long that takes.

use kp_hal::{
    Caps, DType, Nanos, Variant,
    op::{Gate, GemmSpec, Order, Spec},
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
    Tile { m, n, stages, buffers, warpgroups: 2, ping_pong: false, cluster }
}

const fn single(m: u32, n: u32, stages: u32) -> Tile {
    Tile { m, n, stages, buffers: 2, warpgroups: 1, ping_pong: false, cluster: (1, 1) }
}

const fn some(tile: Tile, stream: Stream) -> Choice {
    Choice { tile, stream, general: false }
}

const fn any(tile: Tile, stream: Stream) -> Choice {
    Choice { tile, stream, general: true }
}

const PING_PONG: Tile = Tile { ping_pong: true, ..shared(128, 128, 6, 2, (2, 1)) };

/// Append only, because wisdom names variants by their place.
pub(super) const VARIANTS: [Choice; 26] = [
    any(shared(128, 256, 4, 2, (2, 1)), Stream::No),
    some(shared(128, 256, 4, 2, (2, 1)), Stream::Rest),
    some(shared(128, 256, 4, 2, (1, 1)), Stream::No),
    some(shared(256, 128, 4, 2, (1, 2)), Stream::No),
    any(PING_PONG, Stream::No),
    some(shared(128, 192, 4, 3, (2, 1)), Stream::No),
    some(shared(128, 176, 4, 4, (1, 1)), Stream::No),
    some(shared(128, 224, 4, 2, (1, 1)), Stream::No),
    some(shared(128, 192, 4, 3, (1, 2)), Stream::No),
    some(shared(128, 256, 4, 2, (1, 1)), Stream::All),
    any(shared(128, 128, 6, 2, (1, 1)), Stream::No),
    some(shared(128, 128, 6, 2, (2, 1)), Stream::No),
    some(shared(128, 128, 6, 2, (1, 2)), Stream::No),
    any(shared(128, 128, 6, 2, (1, 2)), Stream::Split(2)),
    some(shared(128, 128, 6, 2, (1, 2)), Stream::Split(4)),
    some(shared(128, 128, 6, 2, (1, 2)), Stream::All),
    some(shared(128, 96, 7, 3, (1, 2)), Stream::No),
    any(shared(128, 64, 8, 2, (1, 1)), Stream::No),
    some(shared(128, 64, 8, 2, (1, 2)), Stream::No),
    some(shared(128, 64, 8, 2, (1, 4)), Stream::No),
    some(shared(128, 64, 8, 2, (1, 2)), Stream::Split(2)),
    some(shared(128, 64, 8, 2, (1, 2)), Stream::Split(4)),
    some(shared(128, 64, 8, 2, (1, 2)), Stream::All),
    any(single(64, 64, 12), Stream::No),
    some(shared(64, 128, 8, 2, (1, 1)), Stream::No),
    some(shared(64, 128, 8, 2, (1, 1)), Stream::Split(4)),
];

/// The row of a variant.
pub(super) fn choice(variant: Variant) -> &'static Choice {
    &VARIANTS[usize::from(variant.0)]
}

impl Tile {
    /// Blocks of a cluster.
    pub(super) const fn cluster_blocks(&self) -> u32 {
        self.cluster.0 * self.cluster.1
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
        let columns = self.n / self.team().1 / gate.columns();
        let row = columns * d.bits() / 8;
        let width = if row % 128 == 0 {
            128
        } else if row % 64 == 0 {
            64
        } else if row % 32 == 0 {
            32
        } else {
            return 0;
        };
        // Pairs of 8 columns are stored at once, and both halves of a gate are one warpgroup's.
        let split = matches!(gate, Gate::Halves) && self.team().1 > 1;
        if width * 8 / d.bits() % 16 == 0 && !split { width } else { 0 }
    }

    /// Whether a thread has registers for its sums and those of 64 rows besides.
    pub(super) const fn holds_two_sums(&self) -> bool {
        let (along_m, along_n) = self.team();
        let (rows, columns) = (self.m / along_m, self.n / along_n);
        (rows / 64 + 1) * columns / 2 <= 200
    }

    /// Dynamic shared memory.
    pub(super) const fn shared_bytes(&self, slab_width: u32) -> u32 {
        let stage = (self.m + self.n) * 128;
        1024 + self.stages * stage + self.warpgroups * self.buffers * 64 * slab_width + 2 * self.stages * 8
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
        (fits && tiles < 1 << 31).then_some(Cut { m, n, tiles, k, clusters, streamed: streamed as u32 })
    }
}

/// Clusters of `blocks` that a device of `units` holds: a guess where the driver has not been asked.
///
/// Groups of units that share no cluster leave some idle: an H200 holds 30 clusters of 4.
pub(super) fn resident(units: u32, blocks: u32) -> u32 {
    let whole = units / blocks.max(1);
    if blocks > 2 { whole - whole / 11 } else { whole }
}

/// Rounds of tiles at the pace of the slowest of matrix unit, L2 and memory, and what a tile costs besides.
pub(super) fn estimate(caps: &Caps, spec: &GemmSpec, variant: Variant) -> Nanos {
    let choice = choice(variant);
    let tile = &choice.tile;
    let Some(cut) = choice.cut(spec, resident(caps.units, tile.cluster_blocks())) else { return Nanos(u64::MAX - 1) };
    let units = f64::from(caps.units.max(1));
    let clock = if caps.clock_hz > 0.0 { caps.clock_hz } else { 1.5e9 };
    let (m, n, k) = (f64::from(tile.m), f64::from(tile.n), f64::from(cut.k));
    let (cm, cn) = (f64::from(tile.cluster.0), f64::from(tile.cluster.1));
    // Cycles of one k block: products at the rate that the power allows, copies at what L2 gives all units at once.
    let step_k = f64::from(1024 / spec.a.dtype().bits());
    let per_cycle = caps.rates.get(spec.rate_dtype()) / units / clock;
    let narrow = if n * cn < 128.0 { NARROW } else { 1.0 };
    let multiply = 2.0 * m * n * step_k / (per_cycle * POWER) * narrow;
    let copy = (m / cn + n / cm) * 128.0 / L2_PER_CYCLE;
    let step = multiply.max(copy) + STEP;
    let per_cluster = (cut.tiles - u64::from(cut.streamed)) as f64 / f64::from(cut.clusters);
    let streamed = f64::from(cut.streamed) * k / f64::from(cut.clusters);
    let parts = if cut.streamed > 0 { 1.0 } else { 0.0 };
    let store = m * n * f64::from(spec.d.dtype().bits()) / 8.0 / STORE_PER_CYCLE;
    // Ping-pong stores one tile while it multiplies the next.
    let hidden = if tile.ping_pong { 0.3 } else { 1.0 };
    let rounds = per_cluster.ceil();
    let cycles = rounds * (k * step + (TILE + store) * hidden) + streamed * step + parts * (FIX_UP + m * n / 16.0);
    let busy = cut.clusters.min(cut.tiles.max(u64::from(cut.clusters) * parts as u64) as u32);
    let share = f64::from(busy * tile.cluster_blocks()) / units;
    let bytes = spec.bytes() as f64 / (caps.bytes_per_s * MEMORY * share.min(0.75) / 0.75);
    let transposed = if spec.a.order == Order::Col || spec.b.order == Order::Row { 1.02 } else { 1.0 };
    Nanos::from_secs(START + (cycles / clock * transposed).max(bytes + TILE / clock))
}

// Fitted to an H200's times of `benches/record`, in cycles unless said.

/// Of the peak, what large products sustain at the card's power.
const POWER: f64 = 0.78;
/// Bytes per unit and cycle from L2.
const L2_PER_CYCLE: f64 = 46.0;
/// Of one k block.
const STEP: f64 = 40.0;
/// Of a tile narrower than the matrix unit likes.
const NARROW: f64 = 1.25;
/// Filling and draining a tile's pipeline.
const TILE: f64 = 1500.0;
/// Bytes per unit and cycle of D.
const STORE_PER_CYCLE: f64 = 40.0;
/// Leaving and gathering parts of a tile.
const FIX_UP: f64 = 2000.0;
/// Of the memory's peak.
const MEMORY: f64 = 0.87;
/// From the launch to the first copy, in seconds.
const START: f64 = 2.0e-6;
