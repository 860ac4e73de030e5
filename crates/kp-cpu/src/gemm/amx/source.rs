//! How B becomes tiles, and how long a product by tiles takes.

use super::{
    bits::{code_bits, kept, most_zero, parts_of, parts_of_codes},
    codes::ELEMENTS,
    cut::{MOST_OF_A, MOST_ROWS, MOST_SUMS},
    lines::{BLOCK, Holds, How, Lines},
};
use crate::{
    amx::{ROW_BYTES, ROWS},
    caps::pairs_rate,
    gemm::{
        across::{self, lies_across},
        few::{columns::overlapped, lists::can_list},
        finish::Panels,
        side::{Scaling, varies},
        vnni_few_rows::unit,
    },
};
use kp_hal::{
    Caps, DType, Nanos,
    op::{Acc, GemmSpec, Matrix, Order, Scheme},
};

/// What multiplies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Units {
    /// Tiles of AMX.
    Tiles,
    /// Vectors of AVX-512, of bf16 alone.
    Vectors,
}

impl Units {
    /// Operations a second that these units reach.
    fn rate(self, caps: &Caps, holds: Holds) -> f64 {
        let rate = |dtype| caps.rates.get(dtype);
        match (self, holds) {
            (Self::Tiles, Holds::Bf16) => 0.7 * rate(DType::Bf16),
            (Self::Tiles, Holds::Bytes) => 0.7 * rate(DType::I8),
            (Self::Vectors, _) => 0.9 * pairs_rate(caps),
        }
    }

    /// Rows that are multiplied together, whether there or not.
    fn rows(self) -> usize {
        if self == Self::Tiles { BLOCK } else { ROWS }
    }
}

/// How blocks of B become tiles.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// Its columns are packed as rows of the left operand.
    Left(Lines),
    /// Its rows are packed as lines of the right operand; of bytes some blocks at a time.
    Across,
    /// It lies in panels of lines of the right operand, so many columns wide.
    Panels(usize),
}

impl Source {
    pub(super) fn of(spec: &GemmSpec, panels: &Panels, holds: Holds, scaling: Scaling) -> Self {
        let elements = holds.elements();
        let plain = holds == Holds::Bf16 && spec.b.dtype() == DType::Bf16;
        let bytes = holds == Holds::Bytes && spec.b.dtype().bits() == 8;
        match spec.b.order {
            Order::Panel { width, depth }
                if (plain || bytes)
                    && usize::from(depth) == elements / ROWS
                    && usize::from(width).is_multiple_of(ROWS)
                    && (spec.k as usize).is_multiple_of(elements)
                    && panels.are_those_of_b() =>
            {
                Self::Panels(width.into())
            }
            // Several parts of A meet contiguous columns alone.
            Order::Row if plain && !is_split(spec) || bytes => Self::Across,
            Order::Panel { width, depth: 1 }
                if plain && usize::from(width).is_multiple_of(BLOCK) && panels.are_those_of_b() =>
            {
                Self::Across
            }
            _ => Self::Left(Lines::of(&spec.b, true, spec.k, holds, unit_of(&spec.b, holds), scaling)),
        }
    }

    /// Whether so many rows of so many steps are few: all of them meet a panel before the next one does, whose sums then stay in the first
    /// cache. B passes in the order in which it lies, and A comes from L2 for each panel anew. Where B is rows, neighbouring panels share its
    /// lines; and narrow panels, which need not be copied anyway, leave less of L2 to A (128 rows of 8 KB took 1.05 of the time, 64 0.93).
    pub(super) fn suits_few(&self, rows: usize, steps: usize) -> bool {
        let most_of_a = match *self {
            Self::Across => 0,
            Self::Left(lines) if lines.turned => 0,
            Self::Panels(width) if width <= BLOCK => MOST_OF_A / 2,
            _ => MOST_OF_A,
        };
        rows <= FEW * BLOCK && rows.next_multiple_of(ROWS) * steps * ROW_BYTES <= most_of_a
    }
}

/// Whether scales are for sums, since they do not change along k, or cannot be applied to what lines hold.
pub(super) fn is_late(spec: &GemmSpec, holds: Holds) -> bool {
    holds == Holds::Bytes || !varies(&spec.b, spec.k)
}

/// Whether scales that change along k wait for the sums of what shares one: codes are numbers of bf16, and with them would have several parts, each
/// of which would meet every part of A; but to one of which they are rounded if A is bf16.
pub(crate) fn waits(spec: &GemmSpec, holds: Holds, units: Units) -> bool {
    let b = &spec.b;
    let shares_lines = (b.format.block().1 as usize).is_multiple_of(ELEMENTS) && can_list(b, spec.k);
    (holds, units) == (Holds::Bf16, Units::Tiles)
        && (b.order == Order::Col || lies_across(b, true))
        && (is_split(spec) || spec.a.dtype() != DType::Bf16 && !varies(&spec.a, spec.k))
        && varies(b, spec.k)
        && shares_lines
        && parts_of(b, spec.k, 0) > 1
        && parts_of_codes(b) == 1
}

/// Whether `p` wants sums of whole numbers that [share](waits) a scale in i32, and all of these are numbers of f32.
pub(crate) fn sums_are_whole(p: &GemmSpec) -> bool {
    let is_whole = |matrix: &Matrix| matches!(matrix.dtype(), DType::I4 | DType::U4 | DType::I8 | DType::U8);
    let bits = code_bits(&p.a, 0) + code_bits(&p.b, most_zero(&p.b)) + p.b.format.block().1.ilog2() + 1;
    p.acc == Acc::I32 && is_whole(&p.a) && is_whole(&p.b) && bits <= 24 && waits(p, Holds::Bf16, Units::Tiles)
}

/// Whether A's numbers have several parts, or one to which they are rounded.
pub(crate) fn is_split(spec: &GemmSpec) -> bool {
    spec.a.format.scheme == Scheme::None && parts_of(&spec.a, spec.k, 0) > 1
}

/// The parts of A's numbers that are [kept].
pub(crate) fn parts_of_a(spec: &GemmSpec, holds: Holds) -> usize {
    if holds == Holds::Bytes { 1 } else { kept([parts_of(&spec.a, spec.k, 0), 1], spec)[0] }
}

/// What a whole step of an operand is worth.
pub(super) fn unit_of(matrix: &Matrix, holds: Holds) -> f32 {
    if holds == Holds::Bytes { unit(matrix.format) } else { 1.0 }
}

/// Cycles that an element of an operand takes to become part of a tile, as measured from cache.
fn cycles(lines: Lines) -> f64 {
    let cycles = match lines.how {
        How::Same | How::Pairs(_) => 0.1,
        How::Codes(codes) => codes.cycles(),
        How::Numbers { .. } => 2.0,
    };
    cycles + if lines.turned { across::CYCLES } else { 0.0 }
}

/// Multiplying at a measured fraction of the peak, packing, and reading in `memory`; `rows` and `items` of B in all.
pub(crate) fn estimate(
    caps: &Caps,
    spec: &GemmSpec,
    (holds, units): (Holds, Units),
    memory: Nanos,
    rows: f64,
    items: u32,
) -> Nanos {
    let panels = Panels::of(spec, BLOCK);
    let (items, k) = (f64::from(items), f64::from(spec.k));
    let whole = |n: f64, multiple: usize| (n / multiple as f64).ceil() * multiple as f64;
    let columns = (panels.count() * BLOCK) as f64;
    let multiply = 2.0 * items * whole(rows / items.max(1.0), units.rows()) * columns * whole(k, holds.elements());
    // Of one tile of rows the second half is no work.
    let multiply = if units == Units::Tiles && rows <= items * ROWS as f64 { multiply / 2.0 } else { multiply };
    let parts = parts_of_a(spec, holds);
    let multiply = match parts {
        1 if !is_split(spec) => multiply / units.rate(caps, holds),
        _ => {
            // Parts come from the second cache, or from memory, for each task that sums of so many rows leave room for.
            let (task_rows, all_rows) = (f64::from(spec.m.min(MOST_ROWS as u32)), rows / items.max(1.0));
            let bytes = all_rows * k * (parts * size_of::<u16>()) as f64;
            let tasks = (task_rows * columns * size_of::<f32>() as f64 / MOST_SUMS as f64).ceil();
            let passing = if bytes > MOST_OF_A as f64 { items * tasks * bytes / caps.bytes_per_s } else { 0.0 };
            parts as f64 * multiply / (0.6 * units.rate(caps, holds)) + passing
        }
    };
    let seconds = |cycles: f64| cycles / (caps.clock_hz.max(1e9) * f64::from(caps.units.max(1)));
    let waits = waits(spec, holds, units);
    let multiply = if waits {
        // Of each tile that shares scales, as measured on an Emerald Rapids core.
        let groups = k / f64::from(spec.b.format.block().1.max(1));
        let tiles = items * whole(rows / items.max(1.0), ROWS) * columns * groups / (ROWS * ROWS) as f64;
        multiply + seconds(SCALED_TILE * tiles)
    } else {
        multiply
    };
    let multiply = if holds == Holds::Bf16 && varies(&spec.b, spec.k) {
        multiply + seconds(LISTED * items * columns * whole(k, ELEMENTS) / ELEMENTS as f64)
    } else {
        multiply
    };
    let scaling = if waits || is_late(spec, holds) { Scaling::Left } else { Scaling::Applied };
    let source = Source::of(spec, &panels, holds, scaling);
    let of_b = match source {
        Source::Left(lines) => cycles(lines),
        Source::Across => 0.1,
        Source::Panels(_) => 0.0,
    };
    let of_a = cycles(Lines::of(&spec.a, false, spec.k, holds, 1.0, Scaling::Left)) + 0.1;
    let times = (f64::from(spec.m) / MOST_ROWS as f64).ceil();
    let secs = match few_share(spec, source, holds, rows / items.max(1.0)).filter(|_| units == Units::Tiles) {
        Some(share) => overlapped(Nanos::from_secs(memory.as_secs() / share), multiply + seconds(k * rows * of_a)),
        None => multiply + seconds(k * (rows * of_a + items * columns * of_b * times)).max(memory.as_secs() / 0.8),
    };
    Nanos::from_secs(secs + 3e-6 * items)
}

/// Cycles that it takes to scale a tile of sums.
const SCALED_TILE: f64 = 46.0;

/// Cycles that the scale of a step of a column takes to be listed, as measured on an Emerald Rapids core.
const LISTED: f64 = 10.0;

/// Which share of memory's rate a few rows reach that meet B where it lies: one row to eight by 4096×4096 read columns at 17 to 19 GB/s on an
/// Emerald Rapids core, narrow panels at 15, and wide ones, of which half a line is met at a time, at 12.
fn few_share(spec: &GemmSpec, source: Source, holds: Holds, rows: f64) -> Option<f64> {
    let steps = (spec.k as usize).div_ceil(holds.elements());
    let share = match source {
        Source::Left(lines) if lines.are_rows() && (spec.k as usize).is_multiple_of(holds.elements()) => 0.85,
        Source::Panels(width) if width > BLOCK => 0.7,
        Source::Panels(_) => 0.85,
        _ => return None,
    };
    source.suits_few(rows.ceil() as usize, steps).then_some(share)
}

/// Blocks of rows that are few.
const FEW: usize = 8;
