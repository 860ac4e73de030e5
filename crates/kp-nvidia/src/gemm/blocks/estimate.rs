//! How long a product takes in a tile of `sm90_blocks.cuh`.

use super::Family;
use kp_hal::{
    Caps, Nanos, Variant,
    op::{GemmSpec, Grouping, Spec},
};

impl Family {
    /// What blocks do one after the other, what the card's power allows, and what memory delivers, of which the longest counts,
    /// and the others a little; groups are taken to be equally large.
    pub(super) fn time(&self, caps: &Caps, spec: &GemmSpec, grouping: Option<Grouping>, variant: Variant) -> Nanos {
        let tile = &self.tiles[usize::from(variant.0)];
        let units = f64::from(caps.units.max(1));
        let clock = if caps.clock_hz > 0.0 { caps.clock_hz } else { 1.5e9 };
        let (groups, rows) = super::groups(spec, grouping);
        let (cm, cn) = (f64::from(tile.cluster_m), f64::from(tile.cluster_n));
        let (m, n) = (f64::from(tile.m), f64::from(tile.n));
        let clusters = groups * (rows / (m * cm)).ceil() * (f64::from(spec.n) / (n * cn)).ceil();
        let full = (units / f64::from(tile.cluster())).floor();
        let (step_k, rate) = (f64::from(self.step()), caps.rates.get(self.dtype));
        let k = (f64::from(spec.k) / step_k / f64::from(tile.cluster_k)).ceil();

        // Cycles of one k block: its products, or copies from L2.
        let narrow = if n < 128.0 { NARROW.powf((128.0 / n).log2()) } else { 1.0 };
        // A product of one warpgroup waits for its scaling unless the next is issued ahead; several take turns.
        let scaling = match (self.scales, tile.m) {
            (None, _) => 1.0,
            (Some(_), 64) if tile.ahead => 1.0,
            (Some(_), 64) => ALONE,
            (Some(_), 128) if tile.ahead => AHEAD,
            (Some(_), 192) => OF_THREE,
            (Some(_), _) if tile.n > 128 => IN_LONG_TURNS,
            (Some(_), _) => IN_TURN,
        };
        let multiply = 2.0 * m * n * step_k * units * clock / rate / narrow * scaling;
        let busy = clusters.min(full) * f64::from(tile.cluster()) / units;
        let l2 = if busy > 0.5 { L2_PER_CYCLE } else { 1.3 * L2_PER_CYCLE };
        let copy = (m / cn + n / cm) * 128.0 / l2;
        // Each warpgroup's boxes of D, as many at a time as there is shared memory for.
        let (parts, store) = (f64::from(tile.cluster_k), tile.store(spec.d.dtype().bits() / 8));
        let boxes = tile.m / 64 / tile.consumers() * (tile.n / tile.cluster_k / store);
        let exchange = if tile.cluster_k > 1 { EXCHANGE } else { 0.0 };
        let store = m * n * 2.0 / parts / STORE_PER_CYCLE + f64::from(boxes.div_ceil(tile.boxes) - 1) * ROUND;
        let end = TILE + exchange + store;
        let cycles = (clusters / full).ceil() * (k * (multiply.max(copy) + STEP) + end);

        let padded = 2.0 * clusters * cm * m * cn * n * k * step_k * parts;
        let bytes = spec.bytes() as f64 / (caps.bytes_per_s * MEMORY * (busy / ENOUGH).min(1.0));
        let limits = [cycles / clock, padded / (rate * POWER), bytes + TILE / clock];
        let longest = limits.iter().map(|t| t.powf(SHARPNESS)).sum::<f64>().powf(1.0 / SHARPNESS);
        Nanos::from_secs(START + longest)
    }
}

// Fitted to the times of 48 block-scaled problems in 16 variants on an H200: with these, the variant chosen takes 1.011 times
// as long as the best on average, 1.08 times at worst. In cycles unless said.

/// Efficiency of tiles for each halving below 128 columns.
const NARROW: f64 = 0.83;
/// What scaling adds where nothing else runs meanwhile, where another warpgroup's products do, longer ones, and where those of two do; the
/// latter two from 13 problems beside `torch._scaled_mm`, for 9 of which these tiles were taken to be 5 to 10% slower than they are.
const ALONE: f64 = 1.48;
const IN_TURN: f64 = 1.09;
const IN_LONG_TURNS: f64 = 1.06;
const OF_THREE: f64 = 1.0;
/// Where warpgroups do not wait for each other, or for their own scaling: not fitted, but 128 rows are faster so.
const AHEAD: f64 = 1.06;
/// Bytes per unit and cycle from L2, with all units at work.
const L2_PER_CYCLE: f64 = 67.9;
/// Of one k block.
const STEP: f64 = 92.5;
/// Filling and draining a tile's pipeline.
const TILE: f64 = 1003.0;
/// Of sums that blocks of a cluster send each other: with it, of 19 problems of 64 to 1024 rows in 19 tiles, the one chosen takes 1.013 times as
/// long as the best on average, 1.08 times at worst.
const EXCHANGE: f64 = 2600.0;
/// Of boxes of D that wait for those before to be read; not fitted: 256×128 with one box and with four, k = 512.
const ROUND: f64 = 330.0;
/// Bytes per unit and cycle of D.
const STORE_PER_CYCLE: f64 = 23.3;
/// Of the peak, what the card's power sustains.
const POWER: f64 = 0.82;
/// Of the memory's peak, and the share of units that reaches it.
const MEMORY: f64 = 0.846;
const ENOUGH: f64 = 0.113;
/// The power mean's exponent.
const SHARPNESS: f64 = 3.0;
/// From the launch to the first copy, in seconds; with it and `MEMORY` fitted to replays of a recording, as `sm90_swap`'s were.
const START: f64 = 0.5e-6;
