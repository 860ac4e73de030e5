//! What attention and its backward twin plan alike: who runs it, in which numbers, and how rows are cut into tiles.

use super::{
    chunk::{FEW, PANEL},
    machine::{VARIANTS, is_in},
    product::LANES,
};
use crate::{kernel, threads};
use kp_hal::{
    Caps, DType, Nanos, Support, Unsupported, Variant, Variants,
    op::{AttentionProblem, AttentionSpec, Repro, Spec},
    source_hash,
};
use std::borrow::Cow;

/// Hash of the sources that both passes are made of.
pub(crate) const SOURCES: u64 = source_hash(include_bytes!("plan.rs"))
    ^ source_hash(include_bytes!("chunk.rs"))
    ^ source_hash(include_bytes!("product.rs"))
    ^ source_hash(include_bytes!("machine.rs"))
    ^ source_hash(include_bytes!("../simd/arith.rs"))
    ^ source_hash(include_bytes!("held.rs"))
    ^ source_hash(include_bytes!("places.rs"))
    ^ source_hash(include_bytes!("read.rs"))
    ^ source_hash(include_bytes!("sight.rs"))
    ^ source_hash(include_bytes!("soften.rs"))
    ^ source_hash(include_bytes!("soon.rs"))
    ^ source_hash(include_bytes!("turn.rs"))
    ^ source_hash(include_bytes!("../simd/vector.rs"));

/// The variants that `caps` run. Those that promise batch invariance must agree to the bit, whichever ranks first for how
/// many rows: then only those that add products without rounding them, if there are such.
pub(crate) fn supports(caps: &Caps, spec: &AttentionSpec, repro: Repro) -> Support {
    let otherwise = Unsupported::Kind { got: caps.kind };
    let is_wide = Code { spec: *spec, variant: Variant(0) }.is_wide();
    let runs = |variant: Variant| is_in(caps, variant) && (variant.0 == 0 || !is_wide);
    let fused = |variant: Variant| variant.0 > 0;
    let any_fused = (0..VARIANTS).map(Variant).any(|variant| runs(variant) && fused(variant));
    Variants::filter(VARIANTS, otherwise, |variant| {
        runs(variant) && (repro != Repro::BatchInvariant || fused(variant) == any_fused)
    })
}

/// Time at the peak of the numbers that loops compute in, f32 unless an operand is f64, and at peak bandwidth.
pub(crate) fn floors(caps: &Caps, problem: &AttentionProblem) -> (Nanos, Nanos) {
    let (compute, memory) = Nanos::floors(caps, problem);
    let stored = problem.rate_dtype();
    let computed = if stored == DType::F64 { DType::F64 } else { DType::F32 };
    (Nanos::from_secs(compute.as_secs() * caps.rates.get(stored) / caps.rates.get(computed)), memory)
}

/// Seconds that it takes to make the numbers of K and V ready, so many cycles each: they are as many as `compute`, the time of the products in
/// f32, says.
pub(crate) fn readying(caps: &Caps, p: &AttentionProblem, compute: Nanos, cycles: f64) -> f64 {
    let rows = f64::from(p.q_heads) * f64::from(p.q_len) / f64::from(p.kv_heads.max(1));
    let numbers = compute.as_secs() * caps.rates.get(DType::F32) / (2.0 * rows.max(1.0));
    numbers * cycles / (caps.clock_hz.max(1e9) * f64::from(caps.units.max(1)))
}

/// One of the two passes, planned; a row is a query in one head of its group.
#[derive(Clone, Copy)]
pub(crate) struct Code {
    pub(crate) spec: AttentionSpec,
    pub(crate) variant: Variant,
}

/// How the rows of one sequence and key head are cut.
#[derive(Clone, Copy)]
pub(crate) struct Tiling {
    /// Whether keys are lanes, since rows are too few for that.
    pub(crate) few: bool,
    /// Rows of a tile.
    pub(crate) tile: usize,
    /// How many tiles there are.
    pub(crate) tiles: usize,
}

/// Panels that share keys as they were read: where rows of a head lie a page apart, waiting for them from the last cache
/// took a tenth of the time of the products of four panels on Zen 4, of 128 numbers in bf16. Eight are as fast with 512 numbers.
pub(super) const PANELS: usize = 8;

/// Tiles per thread that even out what masks make uneven.
const TILES_PER_THREAD: usize = 8;

impl Code {
    /// Whether f64 is needed.
    pub(crate) fn is_wide(&self) -> bool {
        [self.spec.q.dtype, self.spec.kv.dtype].contains(&DType::F64)
    }

    fn rows(&self) -> usize {
        self.spec.q_len as usize * (self.spec.q_heads / self.spec.kv_heads) as usize
    }

    pub(crate) fn tiling(&self) -> Tiling {
        let (rows, groups) = (self.rows(), self.spec.batch as usize * self.spec.kv_heads as usize);
        let few = rows <= FEW;
        let enough =
            |tile: &usize| *tile <= PANEL || groups * rows.div_ceil(*tile) >= TILES_PER_THREAD * threads::count();
        let sizes = std::iter::successors(Some(PANELS * PANEL), |tile| Some(tile / 2));
        let tile = if few { FEW } else { sizes.into_iter().find(enough).unwrap_or(PANEL) };
        Tiling { few, tile, tiles: rows.div_ceil(tile) }
    }

    /// The last vector of rows is computed whole.
    pub(crate) fn note(&self) -> Option<Cow<'static, str>> {
        let lanes = if self.rows() <= FEW { 1 } else { LANES };
        kernel::pads([("queries of a key head", self.rows(), lanes)])
    }
}
