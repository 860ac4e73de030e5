//! Attention in bf16 by tiles of AMX, summed in f32: O = softmax(scale · Q·Kᵀ + mask) · V.
//!
//! [`super::run`] cuts the work as for the portable kernel, [`super::pairs`] computes it; weights are rounded to bf16
//! before they meet V. Limits: AMX and AVX-512; Q, K and V of bf16; more than [`FEW`] rows for each key head, since a panel
//! is computed by 32 rows; numbers below 2⁻¹²⁶ count as 0. Few rows have other kernels, whose sums are made in another order, so
//! not `batch-invariant`, though a row's bits do not depend on other rows here either.

use super::{
    chunk::FEW,
    of_bf16::OfBf16,
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
    op::{Attention, AttentionArgs, AttentionProblem, AttentionSpec, Repro, Scheme, Spec},
    source_hash,
};
use std::{borrow::Cow, marker::PhantomData, sync::Arc};

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
                ^ source_hash(include_bytes!("of_bf16.rs")).rotate_left(5)
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
        let by_tiles = ByPairs::<OfBf16<true>>::new(p);
        // SAFETY: `run` computes what the spec says, from and to the operands the spec names.
        Ok(unsafe { kernel::plan(self, device, p, variant, by_tiles.shape().scratch_bytes(), by_tiles) })
    }
}

/// Whether `caps` have what an engine and the loops around it need, and `p` suits them.
pub(super) fn supports(caps: &Caps, p: &AttentionProblem, engine: &[&'static str]) -> Support {
    has(caps, engine)?;
    let types = [("q", p.q.dtype), ("k", p.kv.dtype)];
    if let Some((operand, got)) = types.into_iter().find(|(_, dtype)| *dtype != DType::Bf16) {
        return Err(Unsupported::DType { operand, got });
    }
    for (operand, format) in [("q", p.q), ("k", p.kv)] {
        if format.scheme != Scheme::None {
            return Err(Unsupported::Scheme { operand, got: format.to_string() });
        }
    }
    enough_rows(p)
}

/// Whether `caps` have what an engine and the loops around it need.
pub(super) fn has(caps: &Caps, engine: &[&'static str]) -> Support {
    match engine.iter().chain(Avx512::FEATURES).copied().find(|feature| !caps.has(feature)) {
        Some(need) => Err(Unsupported::Feature { need }),
        None => Ok(Variants::ONE),
    }
}

/// Whether rows are enough for a panel, and may be computed otherwise where they are not.
pub(super) fn enough_rows(p: &AttentionProblem) -> Support {
    if p.repro() == Repro::BatchInvariant {
        return Err(Unsupported::Repro { asked: p.repro() });
    }
    if (Code { spec: *p.spec(), variant: Variant(0) }).tiling().few {
        let min = (FEW as u64 + 1).div_ceil(u64::from(p.q_heads / p.kv_heads));
        return Err(Unsupported::TooSmall { dim: "q_len", min, got: p.q_len.into() });
    }
    Ok(Variants::ONE)
}

/// The time of products at a share of a rate, and of the softmax of sixteen scores in some cycles.
pub(super) fn estimate(caps: &Caps, p: &AttentionProblem, rate: f64, share: f64, cycles: f64) -> Nanos {
    let (_, memory) = Nanos::floors(caps, p);
    Nanos::from_secs((p.flops() / (rate * share) + soften_cycles(caps, p, cycles)).max(memory.as_secs()))
}

/// Seconds that softmax takes, of sixteen scores so many cycles.
pub(super) fn soften_cycles(caps: &Caps, p: &AttentionProblem, cycles: f64) -> f64 {
    let scores = p.flops() / (2.0 * (f64::from(p.qk_dim) + f64::from(p.v_dim)));
    scores / 16.0 * cycles / (caps.clock_hz.max(1e9) * f64::from(caps.units.max(1)))
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

/// What is launched, by an engine.
pub(super) struct ByPairs<E> {
    spec: AttentionSpec,
    engine: PhantomData<fn() -> E>,
}

impl<E: Engine> ByPairs<E> {
    pub(super) fn new(p: &AttentionProblem) -> Self {
        Self { spec: *p.spec(), engine: PhantomData }
    }

    pub(super) fn shape(&self) -> Shape<f32> {
        let tiling = Code { spec: self.spec, variant: Variant(0) }.tiling();
        Shape::new(&self.spec, tiling, pairs::loops::<E>(&self.spec, tiling))
    }
}

impl<E: Engine + 'static> Launch<Attention> for ByPairs<E> {
    unsafe fn launch(&self, queue: &mut dyn Queue, args: &AttentionArgs<'_>) -> Result<()> {
        let scratch = kernel::own(queue).scratch();
        // SAFETY: the caller's promise.
        unsafe { run(self.shape(), &self.spec, scratch, args) };
        Ok(())
    }
}
