//! D = A·B in bf16 by dot products of pairs in vectors, summed in f32; B of bf16, or of 8 or 4 bits, which become bf16 as they
//! are packed.
//!
//! All of it is `amx_bf16`'s but what multiplies: see `amx/vectors.rs`. Limits: AVX-512 with BF16, and those of
//! `amx_bf16`. Where the instruction is slow, as on Intel's processors, estimates say so.

use super::{
    amx::{
        lines::Holds,
        product,
        source::{Units, estimate},
    },
    amx_bf16::{VECTORS, suits},
};
use crate::caps::pairs_rate;
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant,
    op::{Gemm, GemmProblem, GemmSpec, Repro},
    source_hash,
};
use std::sync::Arc;

/// The kernel.
pub(crate) struct Avx512Bf16;

impl Kernel<Gemm> for Avx512Bf16 {
    fn name(&self) -> &'static str {
        "avx512_bf16"
    }

    fn code(&self) -> u64 {
        const {
            source_hash(include_bytes!("avx512_bf16.rs"))
                ^ source_hash(include_bytes!("amx/vectors.rs")).rotate_left(1)
                ^ source_hash(include_bytes!("amx/lines.rs")).rotate_left(2)
                ^ source_hash(include_bytes!("amx/codes.rs")).rotate_left(3)
                ^ source_hash(include_bytes!("amx/convert.rs")).rotate_left(27)
                ^ source_hash(include_bytes!("amx/source.rs")).rotate_left(4)
                ^ source_hash(include_bytes!("amx/product.rs")).rotate_left(5)
                ^ source_hash(include_bytes!("amx/cut.rs")).rotate_left(6)
                ^ source_hash(include_bytes!("amx/ends.rs")).rotate_left(7)
                ^ source_hash(include_bytes!("amx/operands.rs")).rotate_left(8)
                ^ source_hash(include_bytes!("amx/along.rs")).rotate_left(28)
                ^ source_hash(include_bytes!("amx/asks.rs")).rotate_left(29)
                ^ source_hash(include_bytes!("amx/room.rs")).rotate_left(30)
                ^ source_hash(include_bytes!("amx/bits.rs")).rotate_left(9)
                ^ source_hash(include_bytes!("amx/parts.rs")).rotate_left(10)
                ^ source_hash(include_bytes!("across.rs")).rotate_left(12)
        }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        supports(caps, p, p.repro())
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, _: Variant) -> Nanos {
        let (_, memory) = Nanos::floors(caps, p);
        estimate(caps, p, (Holds::Bf16, Units::Vectors), memory, f64::from(p.batch) * f64::from(p.m), p.batch)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        Ok(product::plan(self, device, p, variant, Holds::Bf16, Units::Vectors))
    }
}

/// Whether `caps` and `p` suit products of bf16 in vectors.
pub(crate) fn supports(caps: &Caps, p: &GemmSpec, repro: Repro) -> Support {
    if let Some(need) = VECTORS.into_iter().chain(["avx512bf16"]).find(|feature| !caps.has(feature)) {
        return Err(Unsupported::Feature { need });
    }
    suits(p, repro, Units::Vectors)
}

/// Whether dot products of pairs take less time than multiply-adds of f32, so that B is best packed for them.
pub(super) fn is_fast(caps: &Caps) -> bool {
    caps.has("avx512bf16") && pairs_rate(caps) > caps.rates.get(DType::F32)
}
