//! The copies of the inner loops: one per instruction set, blocked as its registers allow.

use super::{
    chunk::{Chunk, Job},
    turn::Turns,
};
use crate::{
    attention_backward::pair::{Backward, PairJob},
    simd::{Avx2, Avx512, Baseline, Isa, arith::Arith},
};
use kp_hal::{Caps, Nanos, Variant};
use std::marker::PhantomData;

/// How one instruction set computes.
#[derive(Clone, Copy)]
pub(crate) struct Machine<R> {
    /// A tile against a chunk of keys, and what comes before and after.
    pub(crate) chunk: fn(Job<'_, '_, '_, R>),
    /// A tile against a block of keys, backward.
    pub(crate) pair: fn(PairJob<'_, '_, R>),
}

/// A number type that attention is computed in: f32 by every variant, f64 by the first.
pub(crate) trait Compiled: Arith {
    /// The copy of a variant.
    fn machine(variant: Variant) -> Machine<Self>;
}

fn copy<R: Arith, I: Turns<R>, const MR: usize, const LV: usize, const W: usize>() -> Machine<R> {
    Machine {
        chunk: |job| I::run(Chunk::<R, I, MR, LV, W> { job, isa: PhantomData }),
        pair: |job| I::run(Backward::<R, I, MR, LV> { job, isa: PhantomData }),
    }
}

// Products keep MR × LV sums in registers: as many as two units of four cycles need, better more, while they leave room for LV
// vectors of the one factor and a number of the other. Six rows take up to 5 % less time than four with AVX2 (Zen 3), up to 4 with AVX-512
// (Sapphire Rapids). Panels are as wide as LV vectors, or the least there may be.

impl Compiled for f32 {
    fn machine(variant: Variant) -> Machine<Self> {
        match variant.0 {
            2 => copy::<f32, Avx512, 6, 4, 64>(),
            1 => copy::<f32, Avx2, 6, 2, 16>(),
            _ => copy::<f32, Baseline, 4, 2, 16>(),
        }
    }
}

impl Compiled for f64 {
    // For checking other results: not worth what two more copies would add to everybody's build.
    fn machine(_: Variant) -> Machine<Self> {
        copy::<f64, Baseline, 4, 2, 16>()
    }
}

/// How many variants there are: every processor's, AVX2's, AVX-512's.
pub(crate) const VARIANTS: u8 = 3;

/// Whether a device has what a variant needs.
pub(crate) fn is_in(caps: &Caps, variant: Variant) -> bool {
    match variant.0 {
        2 => Avx512::is_in(caps),
        1 => Avx2::is_in(caps),
        _ => Baseline::is_in(caps),
    }
}

/// The roofline, compute at the share of the peak that a variant's loops reach. The two overlap, but not wholly: an
/// eighth of the shorter shows, so that of variants that all wait for memory the widest wins.
pub(crate) fn estimate((compute, memory): (Nanos, Nanos), caps: &Caps, variant: Variant) -> Nanos {
    let widest = (0..VARIANTS).rev().find(|&v| is_in(caps, Variant(v))).unwrap_or(0);
    // Each step down halves the vectors; the exponentials take a fifth of the time.
    let compute = compute.as_secs() * 1.25 * f64::from(1_u32 << widest.saturating_sub(variant.0));
    let memory = memory.as_secs();
    Nanos::from_secs(compute.max(memory) + compute.min(memory) / 8.0)
}
