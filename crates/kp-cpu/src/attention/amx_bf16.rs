//! Attention in bf16 by tiles of AMX, summed in f32: O = softmax(scale · Q·Kᵀ + mask) · V.
//!
//! [`super::run`] cuts the work as for the portable kernel, [`super::tiles`] computes it; weights are rounded to bf16
//! before they meet V. Limits: AMX and AVX-512; Q, K and V of bf16; more than [`FEW`] rows for each key head, since a panel
//! is computed by 32 rows; numbers below 2⁻¹²⁶ count as 0. Few rows have other kernels, whose sums are made in another order, so
//! not `batch-invariant`, though a row's bits do not depend on other rows here either.

use super::{
    chunk::FEW,
    plan::{Code, SOURCES},
    run::{Shape, run},
    tiles,
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
                ^ source_hash(include_bytes!("tiles.rs")).rotate_left(2)
                ^ source_hash(include_bytes!("../gemm/amx/tile.rs")).rotate_left(3)
        }
    }

    fn supports(&self, caps: &Caps, p: &AttentionProblem) -> Support {
        let needs = ["amx-tile", "amx-bf16"].iter().chain(Avx512::FEATURES);
        if let Some(need) = needs.copied().find(|feature| !caps.has(feature)) {
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

    /// Products at a measured share of the peak, and as many cycles for the softmax of sixteen scores as were measured.
    fn estimate(&self, caps: &Caps, p: &AttentionProblem, _: Variant) -> Nanos {
        let (compute, memory) = Nanos::floors(caps, p);
        let scores = p.flops() / (2.0 * (f64::from(p.qk_dim) + f64::from(p.v_dim)));
        let soften = scores / 16.0 * 12.0 / (caps.clock_hz.max(1e9) * f64::from(caps.units.max(1)));
        Nanos::from_secs((compute.as_secs() / 0.6 + soften).max(memory.as_secs()))
    }

    fn note(&self, _: &Caps, p: &AttentionProblem, _: Variant) -> Option<Cow<'static, str>> {
        let rows = p.q_len as usize * (p.q_heads / p.kv_heads) as usize;
        let step = tiles::STEP;
        let (qk, v) = (p.qk_dim as usize, p.v_dim as usize);
        kernel::pads([
            ("queries of a key head", rows, tiles::BLOCK),
            ("numbers of a head", qk, step),
            ("values", v, step),
        ])
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &AttentionProblem, variant: Variant) -> Result<Plan<Attention>> {
        let by_tiles = ByTiles(code(p));
        // SAFETY: `run` computes what the spec says, from and to the operands the spec names.
        Ok(unsafe { kernel::plan(self, device, p, variant, by_tiles.shape().scratch_bytes(), by_tiles) })
    }
}

fn code(p: &AttentionProblem) -> Code {
    Code { spec: *p.spec(), variant: Variant(0) }
}

struct ByTiles(Code);

impl ByTiles {
    fn shape(&self) -> Shape<f32> {
        Shape::new(&self.0.spec, self.0.tiling(), tiles::chunk, tiles::room)
    }
}

impl Launch<Attention> for ByTiles {
    unsafe fn launch(&self, queue: &mut dyn Queue, args: &AttentionArgs<'_>) -> Result<()> {
        let scratch = kernel::own(queue).scratch();
        // SAFETY: the caller's promise.
        unsafe { run(self.shape(), &self.0.spec, scratch, args) };
        Ok(())
    }
}
