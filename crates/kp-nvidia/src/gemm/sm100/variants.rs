//! Tiles of `sm100.cu`, and how long they take.

use super::descriptor::Kind;
use kp_hal::{
    Caps, DType, Nanos, Variant,
    op::{Gate, GemmSpec, Spec},
};

/// Macros of the source.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tile {
    /// Blocks that multiply together, 128 rows each: 1 or 2.
    pub(super) pair: u32,
    /// Columns.
    pub(super) n: u32,
    /// Whether problems with more than a plain store have it too: each epilogue is a build of its own.
    pub(super) general: bool,
}

const fn some(pair: u32, n: u32) -> Tile {
    Tile { pair, n, general: false }
}

const fn any(pair: u32, n: u32) -> Tile {
    Tile { pair, n, general: true }
}

/// Append only, because wisdom names variants by their place.
pub(super) const TILES: [Tile; 5] = [any(2, 256), some(2, 192), some(2, 128), any(1, 128), some(1, 64)];

/// The one whose bits a row has for every m.
pub(super) const INVARIANT: Variant = Variant(3);

/// The row of a variant.
pub(super) fn tile(variant: Variant) -> &'static Tile {
    &TILES[usize::from(variant.0)]
}

/// What a block has room for, which are macros too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Room {
    /// Stages of the ring.
    pub(super) stages: u32,
    /// Tiles of sums: with one, products wait until it is stored.
    pub(super) sums: u32,
    /// Bytes of a row of D's slabs.
    pub(super) width: u32,
    /// Dynamic shared memory.
    pub(super) shared_bytes: u32,
}

impl Tile {
    /// The room for `d` gated so in `shared` bytes, if the source can store it.
    pub(super) fn room(&self, kind: Kind, d: DType, gate: Gate, shared: u32) -> Option<Room> {
        let columns = self.n / gate.columns();
        let slab_columns = columns.min(if d.bits() == 32 { 32 } else { 64 });
        let scaled = kind.scales() > 0;
        let fits = columns.is_multiple_of(slab_columns) && slab_columns.is_multiple_of(32);
        if !fits || scaled && gate == Gate::Halves {
            return None;
        }
        let width = slab_columns * d.bits() / 8;
        let sums = self.sums(kind);
        let stage = (128 + self.n / self.pair) * 128 + kind.scales() * (1 + self.n.div_ceil(128)) * 512;
        // To align the base, for slabs, for the address of tensor memory; barriers.
        let fixed = 1024 + 2 * 128 * width + 16 + 2 * sums * 8;
        let by_shared = shared.saturating_sub(fixed) / (stage + 16);
        let by_tensor = if scaled { (512 - sums * self.n) / self.scale_columns(kind) } else { MOST_STAGES };
        let stages = by_shared.min(by_tensor).min(MOST_STAGES);
        (stages >= 2).then_some(Room { stages, sums, width, shared_bytes: fixed + stages * (stage + 16) })
    }

    /// Tiles of sums in tensor memory, whose 512 columns hold scales of a few stages besides.
    const fn sums(&self, kind: Kind) -> u32 {
        if 2 * self.n + 4 * self.scale_columns(kind) <= 512 { 2 } else { 1 }
    }

    /// Columns of tensor memory for the scales of a stage.
    const fn scale_columns(&self, kind: Kind) -> u32 {
        kind.scales() * (1 + self.n.div_ceil(128)) * 4
    }

    /// Tiles of a cluster along m and n.
    pub(super) const fn tiles(&self, spec: &GemmSpec) -> (u32, u32) {
        (spec.m.div_ceil(128 * self.pair), spec.n.div_ceil(self.n))
    }
}

/// More hide no more of memory's latency.
const MOST_STAGES: u32 = 8;

/// How long a product takes: rounds of tiles, whose products or copies take longer, or what memory delivers.
///
/// Assumed from datasheets, not fitted: nothing here has been measured.
pub(super) fn estimate(caps: &Caps, spec: &GemmSpec, kind: Kind, variant: Variant) -> Nanos {
    let tile = tile(variant);
    let units = f64::from(caps.units.max(1));
    let clock = if caps.clock_hz > 0.0 { caps.clock_hz } else { 1.5e9 };
    let (m, n) = tile.tiles(spec);
    let tiles = f64::from(m) * f64::from(n) * f64::from(spec.batch);
    let rounds = (tiles * f64::from(tile.pair) / units).ceil();
    let steps = f64::from(spec.k.div_ceil(4 * kind.k()));
    let (rows, columns) = (128.0, f64::from(tile.n));

    // Cycles of one block of 128 bytes of k: its products, or copies from L2.
    let rate = caps.rates.get(spec.rate_dtype()) / units / clock;
    let narrow = if tile.n < 128 { NARROW } else { 1.0 };
    let multiply = 2.0 * rows * columns * f64::from(4 * kind.k()) / rate / REACHED / narrow;
    let copy = (rows + columns / f64::from(tile.pair)) * 128.0 / L2_PER_CYCLE;
    // With two tiles of sums, only the last is stored while nothing is multiplied.
    let store = rows * columns * 4.0 / STORE_PER_CYCLE;
    let stored = if tile.sums(kind) == 2 { 1.0 } else { rounds };
    let cycles = rounds * (steps * multiply.max(copy) + FILL) + stored * store;
    let bytes = spec.bytes() as f64 / (caps.bytes_per_s * MEMORY);
    Nanos::from_secs(START + (cycles / clock).max(bytes))
}

/// Of the matrix unit's peak.
const REACHED: f64 = 0.8;
/// Of tiles of 64 columns.
const NARROW: f64 = 0.6;
/// Bytes per unit and cycle from L2, and of sums to D.
const L2_PER_CYCLE: f64 = 60.0;
const STORE_PER_CYCLE: f64 = 64.0;
/// Cycles to fill a tile's pipeline.
const FILL: f64 = 400.0;
/// Of the memory's peak.
const MEMORY: f64 = 0.85;
/// From the launch to the first product, in seconds.
const START: f64 = 2.0e-6;

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [Kind; 6] = [Kind::Tf32, Kind::F16, Kind::F8f6f4, Kind::Mxf8f6f4, Kind::Mxf4, Kind::Mxf4nvf4];
    const SHARED: u32 = 227 << 10;

    /// What the source asserts, for all forms at once.
    #[test]
    fn what_is_chosen_fits_the_block() {
        for (tile, kind) in TILES.iter().flat_map(|tile| KINDS.map(|kind| (tile, kind))) {
            for (d, gate) in [DType::F32, DType::Bf16, DType::E4m3]
                .into_iter()
                .flat_map(|d| [Gate::None, Gate::Halves, Gate::Pairs].map(|gate| (d, gate)))
            {
                let Some(room) = tile.room(kind, d, gate, SHARED) else { continue };
                let used = room.sums * tile.n + room.stages * tile.scale_columns(kind);
                assert!(used <= 512 && room.shared_bytes <= SHARED, "{tile:?} {kind:?}: {room:?}");
                assert!((3..=MOST_STAGES).contains(&room.stages), "{tile:?} {kind:?} {d} {gate}: {room:?}");
                assert!(matches!(room.width, 32 | 64 | 128), "{room:?}");
            }
            assert!(tile.room(kind, DType::Bf16, Gate::None, SHARED).is_some(), "{tile:?} {kind:?}");
        }
    }

    #[test]
    fn one_variant_takes_rows_of_any_kind() {
        for kind in KINDS {
            assert!(tile(INVARIANT).room(kind, DType::F32, Gate::None, SHARED).is_some());
        }
    }
}
