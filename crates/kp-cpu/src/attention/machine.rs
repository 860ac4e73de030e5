//! The copies of the inner loops: one per instruction set, blocked as its registers allow.

use super::chunk::{Chunk, Job};
use crate::{
    attention_backward::pair::{Pair, PairJob},
    simd::{Avx2, Avx512, Baseline, Isa, arith::Arith, vector::Vectors},
};
use kp_hal::{Caps, Nanos, Variant};
use std::marker::PhantomData;

/// How one instruction set computes.
#[derive(Clone, Copy)]
pub(crate) struct Machine<R> {
    /// Rows of a panel.
    pub(crate) lanes: usize,
    /// A tile against a chunk of keys.
    pub(crate) chunk: fn(Job<'_, '_, '_, R>),
    /// The same backward, a block at a time.
    pub(crate) pair: fn(PairJob<'_, '_, R>),
}

/// A number type that every instruction set has copies for.
pub(crate) trait Compiled: Arith {
    /// The copy of a variant; `few` if tiles have at most 16 rows.
    fn machine(variant: Variant, few: bool) -> Machine<Self>;
}

fn copy<R: Arith, I, const L: usize, const LV: usize, const KR: usize, const RR: usize, const VV: usize>() -> Machine<R>
where
    I: Vectors<R>,
{
    Machine {
        lanes: L,
        chunk: |job| I::run(Chunk::<R, I, L, LV, KR, RR, VV> { job, isa: PhantomData }),
        pair: |job| I::run(Pair::<R, I, L, LV, KR, RR, VV> { job, isa: PhantomData }),
    }
}

impl Compiled for f32 {
    fn machine(variant: Variant, few: bool) -> Machine<Self> {
        // As many sums as leave registers for a vector or two of each factor.
        match (variant.0, few) {
            (2, true) => copy::<f32, Avx512, 16, 1, 16, 8, 2>(),
            (2, false) => copy::<f32, Avx512, 32, 2, 8, 8, 2>(),
            (1, _) => copy::<f32, Avx2, 16, 2, 4, 4, 2>(),
            _ => copy::<f32, Baseline, 8, { 8 / <Baseline as Vectors<f32>>::N }, 4, 4, 2>(),
        }
    }
}

impl Compiled for f64 {
    fn machine(variant: Variant, _: bool) -> Machine<Self> {
        match variant.0 {
            2 => copy::<f64, Avx512, 16, 2, 8, 8, 2>(),
            1 => copy::<f64, Avx2, 8, 2, 4, 4, 2>(),
            _ => copy::<f64, Baseline, 8, { 8 / <Baseline as Vectors<f64>>::N }, 2, 4, 2>(),
        }
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
    // Each step down halves the vectors; half the peak is what tiles in cache reach.
    let compute = compute.as_secs() * 2.0 * f64::from(1_u32 << widest.saturating_sub(variant.0));
    let memory = memory.as_secs();
    Nanos::from_secs(compute.max(memory) + compute.min(memory) / 8.0)
}
