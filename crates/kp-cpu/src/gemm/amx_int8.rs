//! D = A·B of 8- or 4-bit codes on both sides by tiles of AMX, in exact sums of i32.
//!
//! See [`super::amx::product`] for how it is cut. Limits: as `vnni_few_rows`, but for the order of B, which may be any; no scales or zero points that
//! change along k.

use super::{
    amx::{
        lines::Holds,
        product,
        source::{Units, estimate},
    },
    amx_bf16::VECTORS,
    vnni_few_rows::{has_features, suits_whole},
};
use kp_hal::{
    Caps, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Gemm, GemmProblem},
    source_hash,
};
use std::sync::Arc;

/// The kernel.
pub(crate) struct AmxInt8;

impl Kernel<Gemm> for AmxInt8 {
    fn name(&self) -> &'static str {
        "amx_int8"
    }

    fn code(&self) -> u64 {
        const {
            source_hash(include_bytes!("amx_int8.rs"))
                ^ source_hash(include_bytes!("amx/tile.rs")).rotate_left(1)
                ^ source_hash(include_bytes!("amx/lines.rs")).rotate_left(2)
                ^ source_hash(include_bytes!("amx/source.rs")).rotate_left(3)
                ^ source_hash(include_bytes!("amx/product.rs")).rotate_left(4)
                ^ source_hash(include_bytes!("amx/cut.rs")).rotate_left(5)
                ^ source_hash(include_bytes!("amx/ends.rs")).rotate_left(6)
                ^ source_hash(include_bytes!("amx/operands.rs")).rotate_left(7)
                ^ source_hash(include_bytes!("amx/along.rs")).rotate_left(28)
                ^ source_hash(include_bytes!("amx/asks.rs")).rotate_left(29)
                ^ source_hash(include_bytes!("amx/room.rs")).rotate_left(30)
                ^ source_hash(include_bytes!("across.rs")).rotate_left(8)
                ^ source_hash(include_bytes!("interleaved.rs")).rotate_left(9)
        }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        if let Some(need) = ["amx-tile", "amx-int8"].into_iter().chain(VECTORS).find(|feature| !caps.has(feature)) {
            return Err(Unsupported::Feature { need });
        }
        has_features(caps)?;
        suits_whole(p)?;
        Ok(Variants::ONE)
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, _: Variant) -> Nanos {
        let (_, memory) = Nanos::floors(caps, p);
        estimate(caps, p, (Holds::Bytes, Units::Tiles), memory, f64::from(p.batch) * f64::from(p.m), p.batch)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        Ok(product::plan(self, device, p, variant, Holds::Bytes, Units::Tiles))
    }
}
