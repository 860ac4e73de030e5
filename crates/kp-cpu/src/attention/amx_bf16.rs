//! Attention in bf16 by tiles of AMX, summed in f32: O = softmax(scale · Q·Kᵀ + mask) · V.
//!
//! [`super::run`] cuts the work as for the portable kernel, [`super::pairs`] computes it; weights are rounded to bf16
//! before they meet V. Limits: AMX and AVX-512; Q, K and V of bf16; more than [`FEW`] rows for each key head, since a panel
//! is computed by 32 rows; numbers below 2⁻¹²⁶ count as 0. Few rows have other kernels, whose sums are made in another order, so
//! not `batch-invariant`, though a row's bits do not depend on other rows here either.

use super::{
    chunk::FEW,
    pairs::{self, Engine},
    plan::{Code, SOURCES},
    run::{Shape, run},
};
use crate::{
    kernel,
    simd::{Avx512, Isa},
};
use kp_hal::{
    Caps, DType, Device, Kernel, Launch, Nanos, Plan, Queue, Result, Support, Unsupported, Variant, Variants,
    op::{Attention, AttentionArgs, AttentionProblem, Repro, Scheme, Spec},
    source_hash,
};
use std::{borrow::Cow, sync::Arc};

/// The kernel.
pub(crate) struct AmxBf16;

impl Kernel<Attention> for AmxBf16 {
    fn name(&self) -> &'static str {
        "amx_bf16"
    }

    fn code(&self) -> u64 {
        const {
            SOURCES
                ^ source_hash(include_bytes!("amx_bf16.rs"))
                ^ source_hash(include_bytes!("run.rs")).rotate_left(1)
                ^ source_hash(include_bytes!("pairs.rs")).rotate_left(2)
                ^ source_hash(include_bytes!("../gemm/amx/tile.rs")).rotate_left(3)
                ^ source_hash(include_bytes!("weights.rs")).rotate_left(4)
        }
    }

    fn supports(&self, caps: &Caps, p: &AttentionProblem) -> Support {
        supports(caps, p, &["amx-tile", "amx-bf16"])
    }

    /// Products at a measured share of the peak, and as many cycles for the softmax of sixteen scores as were measured.
    fn estimate(&self, caps: &Caps, p: &AttentionProblem, _: Variant) -> Nanos {
        estimate(caps, p, caps.rates.get(DType::Bf16), 0.6, 12.0)
    }

    fn note(&self, _: &Caps, p: &AttentionProblem, _: Variant) -> Option<Cow<'static, str>> {
        note(p)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &AttentionProblem, variant: Variant) -> Result<Plan<Attention>> {
        let by_tiles = ByPairs(code(p), Engine::Tiles);
        // SAFETY: `run` computes what the spec says, from and to the operands the spec names.
        Ok(unsafe { kernel::plan(self, device, p, variant, by_tiles.shape().scratch_bytes(), by_tiles) })
    }
}

/// Whether `caps` have what an engine and the loops around it need, and `p` suits them.
pub(super) fn supports(caps: &Caps, p: &AttentionProblem, engine: &[&'static str]) -> Support {
    if let Some(need) = engine.iter().chain(Avx512::FEATURES).copied().find(|feature| !caps.has(feature)) {
        return Err(Unsupported::Feature { need });
    }
    if p.repro() == Repro::BatchInvariant {
        return Err(Unsupported::Repro { asked: p.repro() });
    }
    let types = [("q", p.q.dtype), ("k", p.kv.dtype)];
    if let Some((operand, got)) = types.into_iter().find(|(_, dtype)| *dtype != DType::Bf16) {
        return Err(Unsupported::DType { operand, got });
    }
    for (operand, format) in [("q", p.q), ("k", p.kv)] {
        if format.scheme != Scheme::None {
            return Err(Unsupported::Scheme { operand, got: format.to_string() });
        }
    }
    if code(p).tiling().few {
        let min = (FEW as u64 + 1).div_ceil(u64::from(p.q_heads / p.kv_heads));
        return Err(Unsupported::TooSmall { dim: "q_len", min, got: p.q_len.into() });
    }
    Ok(Variants::ONE)
}

/// The time of products at a share of a rate, and of the softmax of sixteen scores in some cycles.
pub(super) fn estimate(caps: &Caps, p: &AttentionProblem, rate: f64, share: f64, cycles: f64) -> Nanos {
    let (_, memory) = Nanos::floors(caps, p);
    let scores = p.flops() / (2.0 * (f64::from(p.qk_dim) + f64::from(p.v_dim)));
    let soften = scores / 16.0 * cycles / (caps.clock_hz.max(1e9) * f64::from(caps.units.max(1)));
    Nanos::from_secs((p.flops() / (rate * share) + soften).max(memory.as_secs()))
}

/// What is computed beyond what was asked for.
pub(super) fn note(p: &AttentionProblem) -> Option<Cow<'static, str>> {
    let rows = p.q_len as usize * (p.q_heads / p.kv_heads) as usize;
    let (qk, v) = (p.qk_dim as usize, p.v_dim as usize);
    kernel::pads([
        ("queries of a key head", rows, pairs::BLOCK),
        ("numbers of a head", qk, pairs::STEP),
        ("values", v, pairs::STEP),
    ])
}

pub(super) fn code(p: &AttentionProblem) -> Code {
    Code { spec: *p.spec(), variant: Variant(0) }
}

/// What is launched, by either engine.
pub(super) struct ByPairs(pub(super) Code, pub(super) Engine);

impl ByPairs {
    pub(super) fn shape(&self) -> Shape<f32> {
        Shape::new(&self.0.spec, self.0.tiling(), pairs::loops(&self.0.spec, self.1))
    }
}

impl Launch<Attention> for ByPairs {
    unsafe fn launch(&self, queue: &mut dyn Queue, args: &AttentionArgs<'_>) -> Result<()> {
        let scratch = kernel::own(queue).scratch();
        // SAFETY: the caller's promise.
        unsafe { run(self.shape(), &self.0.spec, scratch, args) };
        Ok(())
    }
}
