//! Attention in f32 by tiles of AMX that multiply bf16: O = softmax(scale · Q·Kᵀ + mask) · V, each number the sum of up to three of bf16.
//!
//! What `amx_bf16` does, with numbers of [as many parts](super::of_parts) as their type fills and weights of three, so that errors are those of
//! sums in f32 ([`crate::gemm::amx::parts`]). Limits: AMX and AVX-512; more than [`FEW`](super::chunk::FEW) rows for each key head; numbers
//! below 2⁻¹¹⁰ lose bits, and count as 0 below 2⁻¹²⁶; [values above 2¹²⁰](super::weights) may overflow; not f64; not `batch-invariant`, since
//! few rows have other kernels.

use super::{
    amx_bf16::{ByPairs, enough_rows, has, note, soften_cycles},
    of_parts::{OfParts, parts_of},
    plan::{SOURCES, readying},
};
use crate::{
    gemm::amx::{parts::PARTS, terms::terms},
    kernel,
};
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Attention, AttentionProblem, Spec},
    source_hash,
};
use std::{borrow::Cow, sync::Arc};

/// The kernel.
pub(crate) struct AmxF32;

impl Kernel<Attention> for AmxF32 {
    fn name(&self) -> &'static str {
        "amx_f32"
    }

    fn code(&self) -> u64 {
        const {
            SOURCES
                ^ source_hash(include_bytes!("amx_f32.rs"))
                ^ source_hash(include_bytes!("amx_bf16.rs")).rotate_left(1)
                ^ source_hash(include_bytes!("run.rs")).rotate_left(2)
                ^ source_hash(include_bytes!("pairs.rs")).rotate_left(3)
                ^ source_hash(include_bytes!("of_parts.rs")).rotate_left(4)
                ^ source_hash(include_bytes!("weights.rs")).rotate_left(5)
                ^ source_hash(include_bytes!("../gemm/amx/parts.rs")).rotate_left(6)
                ^ source_hash(include_bytes!("../gemm/amx/terms.rs")).rotate_left(7)
                ^ source_hash(include_bytes!("../gemm/amx/lines.rs")).rotate_left(8)
        }
    }

    fn supports(&self, caps: &Caps, p: &AttentionProblem) -> Support {
        has(caps, &["amx-tile", "amx-bf16"])?;
        enough_rows(p)?;
        let types = [("q", p.q), ("k", p.kv)];
        if let Some((operand, format)) = types.into_iter().find(|(_, format)| format.dtype == DType::F64) {
            return Err(Unsupported::DType { operand, got: format.dtype });
        }
        // What needs no parts.
        if types.iter().all(|(_, format)| *format == DType::Bf16.into()) {
            return Err(Unsupported::DType { operand: "q", got: DType::Bf16 });
        }
        Ok(Variants::ONE)
    }

    /// Products of parts at a measured share of the peak, softmax, and splitting keys and values.
    fn estimate(&self, caps: &Caps, p: &AttentionProblem, _: Variant) -> Nanos {
        let (_, memory) = Nanos::floors(caps, p);
        let [q, kv] = [p.q, p.kv].map(parts_of);
        let count = |parts| terms(parts).count() as f64;
        let (qk, v) = (f64::from(p.qk_dim), f64::from(p.v_dim));
        let products = (count([kv, q]) * qk + count([kv, PARTS]) * v) / (qk + v);
        let multiply = p.flops() * products / (0.5 * caps.rates.get(DType::Bf16));
        let in_f32 = Nanos::from_secs(p.flops() / caps.rates.get(DType::F32));
        let split = readying(caps, p, in_f32, 3.0);
        Nanos::from_secs((multiply + split + soften_cycles(caps, p, 20.0)).max(memory.as_secs()))
    }

    fn note(&self, _: &Caps, p: &AttentionProblem, _: Variant) -> Option<Cow<'static, str>> {
        note(p)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &AttentionProblem, variant: Variant) -> Result<Plan<Attention>> {
        let by_parts = ByPairs::<OfParts>::new(p);
        // SAFETY: `run` computes what the spec says, from and to the operands the spec names.
        Ok(unsafe { kernel::plan(self, device, p, variant, by_parts.shape().scratch_bytes(), by_parts) })
    }
}
