//! D = A·B of 8- or 4-bit codes on both sides, in register tiles of exact sums in i32.
//!
//! See [`super::vnni::product`] for how it is cut. Limits: as `vnni_few_rows`, but for the order of B, which may be any, of panels if those are of
//! whole vectors.

use super::{
    across,
    few::{codes::Set, columns::overlapped},
    finish::Panels,
    side::varies,
    vnni::{self, pack::can_pack, place::Way, product::ROWS},
    vnni_few_rows::{a_varies, has_features, suits_unsigned_too},
};
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Gemm, GemmProblem, Order},
    source_hash,
};
use std::sync::Arc;

/// The kernel.
pub(crate) struct VnniTiles;

/// Operations a second of dot products of bytes in vectors: four times those of f32, also where tiles do more.
fn vnni_rate(caps: &Caps) -> f64 {
    caps.rates.get(DType::I8).min(4.0 * caps.rates.get(DType::F32))
}

/// Cycles that the scale of 32 elements of a column takes to be listed, as measured on an Emerald Rapids core.
const LISTED: f64 = 6.0;

impl Kernel<Gemm> for VnniTiles {
    fn name(&self) -> &'static str {
        "vnni_tiles"
    }

    fn code(&self) -> u64 {
        const {
            source_hash(include_bytes!("vnni_tiles.rs"))
                ^ source_hash(include_bytes!("vnni/tile.rs")).rotate_left(1)
                ^ source_hash(include_bytes!("vnni/pack.rs")).rotate_left(2)
                ^ source_hash(include_bytes!("vnni/rows.rs")).rotate_left(3)
                ^ source_hash(include_bytes!("vnni/product.rs")).rotate_left(4)
                ^ source_hash(include_bytes!("vnni/place.rs")).rotate_left(5)
                ^ source_hash(include_bytes!("rounded.rs")).rotate_left(6)
                ^ source_hash(include_bytes!("across.rs")).rotate_left(7)
                ^ source_hash(include_bytes!("few/list_rows.rs")).rotate_left(8)
                ^ source_hash(include_bytes!("interleaved.rs")).rotate_left(9)
        }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        // Halves of panels may begin within sixteen columns.
        let is_panel = matches!(p.b.order, Order::Panel { .. });
        if !can_pack(&p.b) || is_panel && !Panels::of(p, 16).are_those_of_b() {
            return Err(Unsupported::Layout { operand: "b", got: p.b.order.to_string() });
        }
        has_features(caps)?;
        suits_unsigned_too(p)?;
        Ok(Variants::ONE)
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, _: Variant) -> Nanos {
        let (_, memory) = Nanos::floors(caps, p);
        let efficiency = if a_varies(p) || varies(&p.b, p.k) { 0.55 } else { 0.85 };
        let multiply = 2.0 * f64::from(p.batch) * f64::from(p.m) * f64::from(p.n) * f64::from(p.k)
            / (vnni_rate(caps) * efficiency);
        // Sixteen bytes are packed in a cycle and a half, for each chunk of rows; none of what is read in place.
        let bytes = f64::from(p.batch) * f64::from(p.n) * f64::from(p.k) * f64::from(p.b.dtype().bits()) / 8.0;
        let chunks = if Way::of(p) == Way::Packed { (f64::from(p.m) / ROWS as f64).ceil() } else { 0.0 };
        let turn = if p.b.dtype().bits() == 8 { 0.0 } else { across::cycles(&p.b, true) };
        let pack = bytes * chunks * (0.1 + turn);
        let entries = if varies(&p.b, p.k) { f64::from(p.n) * f64::from(p.k.div_ceil(32)) } else { 0.0 };
        let pack = pack + LISTED * f64::from(p.batch) * entries;
        let pack = pack / (caps.clock_hz.max(1e9) * f64::from(caps.units.max(1)));
        // Panels pass while rows stay: on Emerald Rapids three to sixteen of them take as long as memory.
        let secs = match Way::of(p) {
            Way::Panels if caps.read_places > 1 => overlapped(Nanos::from_secs(memory.as_secs() / 0.95), multiply),
            _ => multiply + pack.max(memory.as_secs() / 0.7),
        };
        Nanos::from_secs(secs + 4e-6 * f64::from(p.batch.max(1)))
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        Ok(vnni::plan(self, device, p, variant, Set::Avx512))
    }
}
