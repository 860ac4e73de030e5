//! Attention in bf16 by dot products of AVX-512, summed in f32: O = softmax(scale · Q·Kᵀ + mask) · V.
//!
//! What `amx_bf16` does, with another engine: its limits are this kernel's, too. Where pairs of bf16 are multiplied slower than
//! numbers of f32, the portable kernel, which widens them, is estimated to be faster.

use super::{
    amx_bf16::{ByPairs, estimate, note, supports},
    of_bf16::OfBf16,
    plan::SOURCES,
};
use crate::{caps, kernel};
use kp_hal::{
    Caps, Device, Kernel, Nanos, Plan, Result, Support, Variant,
    op::{Attention, AttentionProblem},
    source_hash,
};
use std::{borrow::Cow, sync::Arc};

/// The kernel.
pub(crate) struct Avx512Bf16;

impl Kernel<Attention> for Avx512Bf16 {
    fn name(&self) -> &'static str {
        "avx512_bf16"
    }

    fn code(&self) -> u64 {
        const {
            SOURCES
                ^ source_hash(include_bytes!("avx512_bf16.rs"))
                ^ source_hash(include_bytes!("amx_bf16.rs")).rotate_left(1)
                ^ source_hash(include_bytes!("run.rs")).rotate_left(2)
                ^ source_hash(include_bytes!("pairs.rs")).rotate_left(3)
                ^ source_hash(include_bytes!("weights.rs")).rotate_left(5)
                ^ source_hash(include_bytes!("of_bf16.rs")).rotate_left(6)
                ^ source_hash(include_bytes!("dots.rs")).rotate_left(4)
        }
    }

    fn supports(&self, caps: &Caps, p: &AttentionProblem) -> Support {
        supports(caps, p, &["avx512bf16"])
    }

    /// As of tiles, with what was measured here.
    fn estimate(&self, caps: &Caps, p: &AttentionProblem, _: Variant) -> Nanos {
        estimate(caps, p, caps::pairs_rate(caps), 0.95, 6.0)
    }

    fn note(&self, _: &Caps, p: &AttentionProblem, _: Variant) -> Option<Cow<'static, str>> {
        note(p)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &AttentionProblem, variant: Variant) -> Result<Plan<Attention>> {
        let by_dots = ByPairs::<OfBf16<false>>::new(p);
        // SAFETY: `run` computes what the spec says, from and to the operands the spec names.
        Ok(unsafe { kernel::plan(self, device, p, variant, by_dots.shape().scratch_bytes(), by_dots) })
    }
}
