//! [`super::decode`] by AVX2.
//!
//! Variant 0 reads sixteen pages at a time, 1 takes rows as they lie and asks for them ahead, for processors that read one
//! place as fast.

use super::{
    decode::{self, By, Code, DECODE},
    plan::{floors, readying},
};
use crate::{
    kernel,
    simd::{Avx2, Isa},
};
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Attention, AttentionProblem},
    source_hash,
};
use std::sync::Arc;

/// The kernel for decoding on processors with AVX2.
pub(crate) struct Avx2Decode;

impl Kernel<Attention> for Avx2Decode {
    fn name(&self) -> &'static str {
        "avx2_decode"
    }

    fn code(&self) -> u64 {
        const { DECODE ^ source_hash(include_bytes!("avx2_decode.rs")) }
    }

    fn supports(&self, caps: &Caps, p: &AttentionProblem) -> Support {
        if let Some(need) = Avx2::FEATURES.iter().find(|feature| !caps.has(feature)) {
            return Err(Unsupported::Feature { need });
        }
        if let Some(reason) = decode::refuses(p) {
            return Err(reason);
        }
        Ok(Variants::first(2))
    }

    fn estimate(&self, caps: &Caps, p: &AttentionProblem, variant: Variant) -> Nanos {
        let (compute, memory) = floors(caps, p);
        // A tenth more than `avx512_decode`, where both are there.
        let share = if (variant.0 > 0) == (caps.read_places <= 4) { 0.8 } else { 0.75 };
        // Widening takes twice as long as with AVX-512.
        let cycles = match p.kv.dtype {
            DType::E4m3 => 1.2,
            DType::E5m2 => 0.6,
            DType::Bf16 | DType::F16 => 0.2,
            _ => 0.0,
        };
        let compute = compute.as_secs() * 2.0 + readying(caps, p, compute, cycles);
        Nanos::from_secs(compute.max(memory.as_secs()) / share)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &AttentionProblem, variant: Variant) -> Result<Plan<Attention>> {
        let code = Code { spec: *p.spec(), by: By::Eight, in_turn: variant.0 > 0 };
        // SAFETY: `Code` computes what the spec says, from and to the operands the spec names.
        Ok(unsafe { kernel::plan(self, device, p, variant, code.scratch_bytes(), code) })
    }
}
