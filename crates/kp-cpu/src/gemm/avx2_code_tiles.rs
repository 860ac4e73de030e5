//! D = A·B of 8- or 4-bit codes on both sides, on processors that have AVX2 and no AVX-512: register tiles of exact
//! sums in i32.
//!
//! See [`super::vnni::product`] for how it is cut and [`super::vnni::avx2`] for the loops. Limits: as `vnni_tiles`.

use super::{
    across::{self, lies_across},
    avx2_few_codes::{set, variants},
    few::codes::Set,
    side::varies,
    vnni::{self, product::ROWS},
    vnni_few_rows::{a_varies, suits},
};
use kp_hal::{
    Caps, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant,
    op::{Gemm, GemmProblem, Order},
    source_hash,
};
use std::sync::Arc;

/// The kernel.
pub(crate) struct Avx2CodeTiles;

impl Kernel<Gemm> for Avx2CodeTiles {
    fn name(&self) -> &'static str {
        "avx2_code_tiles"
    }

    fn code(&self) -> u64 {
        const {
            source_hash(include_bytes!("avx2_code_tiles.rs"))
                ^ source_hash(include_bytes!("vnni/avx2.rs")).rotate_left(1)
                ^ source_hash(include_bytes!("vnni/rows.rs")).rotate_left(2)
                ^ source_hash(include_bytes!("vnni/product.rs")).rotate_left(3)
                ^ source_hash(include_bytes!("rounded.rs")).rotate_left(4)
                ^ source_hash(include_bytes!("across.rs")).rotate_left(5)
                ^ source_hash(include_bytes!("few/list_rows.rs")).rotate_left(6)
                ^ source_hash(include_bytes!("vnni/pack.rs")).rotate_left(7)
        }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        if p.b.order != Order::Col && !lies_across(&p.b, true) {
            return Err(Unsupported::Layout { operand: "b", got: p.b.order.to_string() });
        }
        suits(p)?;
        variants(caps)
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, variant: Variant) -> Nanos {
        let (_, memory) = Nanos::floors(caps, p);
        // Bytes that are packed in a cycle, with their lists.
        let (efficiency, packed) = if a_varies(p) || varies(&p.b, p.k) { (0.5, 1.0) } else { (0.8, 1.7) };
        // Two vectors a cycle: of 32 products, or of 16, which are added by another instruction; by four bits of 32, added likewise.
        let cycle = match (set(variant), p.b.dtype().bits()) {
            (Set::Vnni, _) => 64.0,
            (_, 4) => 40.0,
            _ => 27.0,
        };
        let clock = caps.clock_hz.max(1e9) * f64::from(caps.units.max(1));
        let products = f64::from(p.batch) * f64::from(p.m) * f64::from(p.n) * f64::from(p.k);
        let multiply = products / (cycle * clock * efficiency);
        let chunks = (f64::from(p.m) / ROWS as f64).ceil();
        let bytes = f64::from(p.batch) * f64::from(p.n) * f64::from(p.k) * f64::from(p.b.dtype().bits()) / 8.0;
        let pack = bytes * chunks * (1.0 / packed + across::cycles(&p.b, true)) / clock;
        Nanos::from_secs(multiply + pack.max(memory.as_secs() / 0.7) + 4e-6 * f64::from(p.batch.max(1)))
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        Ok(vnni::plan(self, device, p, variant, set(variant)))
    }
}
