//! D = A·B for at most eight rows of 8- or 4-bit codes whose B, of such codes too, has contiguous columns, on processors that have
//! AVX2 and no AVX-512: exact sums in i32.
//!
//! See [`super::few::codes`] for the frame and [`super::few::avx2_bytes`] for the loops. Limits: as `vnni_few_rows`; 4 bits only without
//! scales that change along k, which are [`super::avx2_four_bit_codes`]'s.

use super::{
    few::{
        codes::{Codes, Set},
        columns::{self, HEIGHTS, MOST, Reading, overlapped},
    },
    side::varies,
    vnni_few_rows::{a_varies, suits},
};
use crate::simd::{Avx2, Isa};
use kp_hal::{
    Caps, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Gemm, GemmProblem, Order},
    source_hash,
};
use std::sync::Arc;

/// The kernel for decoding with codes on both sides without AVX-512.
pub(crate) struct Avx2FewCodes;

/// The variants: with AVX-VNNI, and without.
const SETS: [Set; 2] = [Set::Vnni, Set::Plain];

/// Those that `caps` run.
pub(super) fn variants(caps: &Caps) -> Support {
    if let Some(need) = Avx2::FEATURES.iter().find(|feature| !caps.has(feature)) {
        return Err(Unsupported::Feature { need });
    }
    let otherwise = Unsupported::Feature { need: "avxvnni" };
    Variants::filter(SETS.len() as u8, otherwise, |v| set(v) == Set::Plain || caps.has("avxvnni"))
}

/// What the loops of a variant are made of.
pub(super) fn set(variant: Variant) -> Set {
    SETS[usize::from(variant.0)]
}

impl Kernel<Gemm> for Avx2FewCodes {
    fn name(&self) -> &'static str {
        "avx2_few_codes"
    }

    fn code(&self) -> u64 {
        const {
            source_hash(include_bytes!("avx2_few_codes.rs"))
                ^ source_hash(include_bytes!("few/avx2_bytes.rs")).rotate_left(1)
                ^ source_hash(include_bytes!("few/codes.rs")).rotate_left(2)
                ^ source_hash(include_bytes!("few/columns.rs")).rotate_left(3)
                ^ source_hash(include_bytes!("rounded.rs")).rotate_left(4)
                ^ source_hash(include_bytes!("few/apart.rs")).rotate_left(5)
        }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        if p.m as usize > MOST {
            return Err(Unsupported::TooLarge { dim: "m", max: MOST as u64, got: p.m.into() });
        }
        if p.b.order != Order::Col {
            return Err(Unsupported::Layout { operand: "b", got: p.b.order.to_string() });
        }
        if p.b.dtype().bits() == 4 && (a_varies(p) || varies(&p.b, p.k)) {
            return Err(Unsupported::Scheme { operand: "b", got: p.b.format.to_string() });
        }
        suits(p)?;
        variants(caps)
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, variant: Variant) -> Nanos {
        let (_, memory) = Nanos::floors(caps, p);
        let rows = HEIGHTS[columns::height((p.m as usize).max(1))] as f64;
        // For 32 codes: what brings them and makes them bytes, and their lists, and for each row what multiplies and scales them.
        let halves = f64::from(p.batch) * f64::from(p.n) * f64::from(p.k) / 32.0;
        let dot = match (set(variant), p.b.dtype().bits()) {
            (Set::Plain, 8) => 3.5,
            (Set::Plain, _) => 4.0,
            _ => 2.0,
        };
        let (lists, scale) = if a_varies(p) || varies(&p.b, p.k) { (8.0, 4.0) } else { (0.0, 0.0) };
        let instructions = halves * (6.0 + lists + rows * (dot + scale));
        let compute = instructions / (2.4 * caps.clock_hz.max(1e9) * f64::from(caps.units.max(1)));
        // A little less than wider loops reach, where there are both.
        Nanos::from_secs(overlapped(memory, compute) / 0.8 + 2e-6 * f64::from(p.batch.max(1)))
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        // Zen 3, which reads four columns of numbers at once fastest, took a tenth longer by those of codes, which are short.
        let reading = if device.info().caps.read_places > 4 { Reading::Beside } else { Reading::InTurn };
        let codes = Codes::new(p, reading, set(variant));
        Ok(columns::plan(self, device, p, variant, 16, codes))
    }
}
