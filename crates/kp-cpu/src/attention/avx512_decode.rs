//! [`super::decode`] by AVX-512.
//!
//! Variant 0 reads sixteen pages at a time, 1 takes rows as they lie and asks for them ahead, for processors that read one
//! place as fast; 2 does so and multiplies pairs of bf16, where Q, K and V are exact in it; 3 multiplies these by tiles of AMX.

use super::{
    decode::{self, By, Code, DECODE},
    paired::{self, UNIT},
    plan::{floors, readying},
    tiled,
};
use crate::{
    caps, kernel,
    simd::{Avx512, Isa},
};
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Attention, AttentionProblem, Format},
    source_hash,
};
use std::sync::Arc;

/// The kernel for decoding on processors with AVX-512.
pub(crate) struct Avx512Decode;

impl Kernel<Attention> for Avx512Decode {
    fn name(&self) -> &'static str {
        "avx512_decode"
    }

    fn code(&self) -> u64 {
        const {
            DECODE
                ^ source_hash(include_bytes!("avx512_decode.rs"))
                ^ source_hash(include_bytes!("paired.rs"))
                ^ source_hash(include_bytes!("tiled.rs")).rotate_left(5)
        }
    }

    fn supports(&self, caps: &Caps, p: &AttentionProblem) -> Support {
        if let Some(need) = Avx512::FEATURES.iter().find(|feature| !caps.has(feature)) {
            return Err(Unsupported::Feature { need });
        }
        if let Some(reason) = decode::refuses(p) {
            return Err(reason);
        }
        Ok(match has_pairs(caps, p) {
            true if has_tiles(caps, p) => Variants::first(4),
            true => Variants::first(3),
            false => Variants::first(2),
        })
    }

    fn estimate(&self, caps: &Caps, p: &AttentionProblem, variant: Variant) -> Nanos {
        let (compute, memory) = floors(caps, p);
        // Each number meets so few others that taking it from memory shows most. In turn, lines of some pages are asked for side by side; of f32
        // either way is the faster one by little.
        let share = if in_turn(variant) { 0.9 } else { 0.85 };
        let by = by(variant);
        let rate = match by {
            By::Pairs => caps::pairs_rate(caps) / caps.rates.get(DType::F32),
            By::Tiles => TILES_RATE,
            _ => 1.0,
        };
        // Where all wait for memory, pairs leave more time for it, and tiles of several rows most.
        let share = match by {
            By::Tiles if p.q_heads > p.kv_heads => 0.95,
            By::Pairs => share * if rate > 1.0 { 1.05 } else { 1.01 },
            _ => share,
        };
        let widening = readying(caps, p, compute, cycles(p.kv.dtype, by));
        let compute = compute.as_secs() * 2.0 / rate + widening;
        Nanos::from_secs(compute.max(memory.as_secs()) / share)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &AttentionProblem, variant: Variant) -> Result<Plan<Attention>> {
        let code = Code { spec: *p.spec(), by: by(variant), in_turn: in_turn(variant) };
        // SAFETY: `Code` computes what the spec says, from and to the operands the spec names.
        Ok(unsafe { kernel::plan(self, device, p, variant, code.scratch_bytes(), code) })
    }
}

/// Cycles that a number of K or V takes to be widened, as measured on an Emerald Rapids core: bytes are looked up 64 at a time in pairs.
fn cycles(dtype: DType, by: By) -> f64 {
    match (dtype, by) {
        (DType::E4m3 | DType::E5m2, By::Pairs) => 0.25,
        (DType::E4m3 | DType::E5m2, By::Tiles) => 0.16,
        (DType::E4m3, _) => 0.6,
        (DType::E5m2, _) => 0.3,
        (DType::Bf16, By::Tiles) => 0.1,
        (DType::Bf16, By::Pairs) => 0.0,
        (DType::Bf16 | DType::F16, _) => 0.1,
        _ => 0.0,
    }
}

/// What a row of the query takes by multiply-adds of f32 over what it takes by tiles, its softmax with it, as measured there.
const TILES_RATE: f64 = 4.0;

fn in_turn(variant: Variant) -> bool {
    variant.0 > 0
}

fn by(variant: Variant) -> By {
    match variant {
        Variant(2) => By::Pairs,
        Variant(3) => By::Tiles,
        _ => By::Sixteen,
    }
}

/// Whether a processor has tiles besides, and heads are no larger than they are made for.
fn has_tiles(caps: &Caps, p: &AttentionProblem) -> bool {
    tiled::FEATURES.iter().all(|feature| caps.has(feature))
        && (1..=tiled::MOST_ROWS).contains(&((p.q_heads / p.kv_heads.max(1)) as usize))
        && [p.qk_dim, p.v_dim].iter().all(|&dim| dim as usize <= tiled::MOST_NUMBERS)
}

/// Whether a processor has what pairs take, and Q, K and V are exact in bf16 and of whole units.
fn has_pairs(caps: &Caps, p: &AttentionProblem) -> bool {
    paired::FEATURES.iter().all(|feature| caps.has(feature))
        && p.q == Format::from(DType::Bf16)
        && matches!(p.kv.dtype, DType::Bf16 | DType::E4m3 | DType::E5m2)
        && [p.qk_dim, p.v_dim].iter().all(|dim| dim.is_multiple_of(UNIT as u32))
}
