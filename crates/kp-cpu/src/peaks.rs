//! What this machine reaches now: GEMM's register tiles from L1, reads from main memory.
//!
//! The first is what kp's best loop reaches, a lower bound of the processor's peak: a fraction of it is not a
//! fraction of what the hardware could do.

use crate::{
    gemm::blocks::multiply_block,
    numbers::Real,
    simd::{Avx2, Avx512, Baseline, Isa, Work},
    threads,
};
use kp_hal::{Caps, DType};
use std::{
    hint::black_box,
    marker::PhantomData,
    time::{Duration, Instant},
};

/// `caps` with the measured rates of f32 and f64 tiles and of reading; the rates of other types keep
/// their proportion to f32. Takes about a second.
pub(crate) fn measure(caps: &Caps) -> Caps {
    let f32s = rate(fma_f32);
    let f64s = rate(fma_f64);
    let scale = f32s / caps.rates.get(DType::F32);
    let mut measured = caps.clone();
    for &t in DType::ALL {
        measured.rates = measured.rates.with(&[t], caps.rates.get(t) * scale);
    }
    measured.rates = measured.rates.with(&[DType::F32, DType::Tf32], f32s).with(&[DType::F64], f64s);
    measured.bytes_per_s = bandwidth(caps);
    measured
}

/// How often a register tile is multiplied in one call: a tenth of a millisecond or so.
const STEPS: usize = 100;
/// Elements of k of each.
const K: usize = 256;

/// Operations done, multiplying register tiles as GEMM does, from L1.
fn fma_f32() -> f64 {
    if Avx512::is_here() {
        tiles::<Avx512, f32, 12, 32>()
    } else if Avx2::is_here() {
        tiles::<Avx2, f32, 6, 16>()
    } else {
        tiles::<Baseline, f32, 6, 8>()
    }
}

fn fma_f64() -> f64 {
    if Avx512::is_here() {
        tiles::<Avx512, f64, 12, 16>()
    } else if Avx2::is_here() {
        tiles::<Avx2, f64, 6, 8>()
    } else {
        tiles::<Baseline, f64, 6, 4>()
    }
}

fn tiles<I: Isa, R: Real, const MR: usize, const NR: usize>() -> f64 {
    let (a, b) = ([R::ONE; 12 * K], [R::ONE; 32 * K]);
    for _ in 0..STEPS {
        I::run(Product::<I, R, MR, NR> { a: black_box(&a[..MR * K]), b: black_box(&b[..NR * K]), isa: PhantomData });
    }
    (2 * MR * NR * K * STEPS) as f64
}

struct Product<'a, I, R, const MR: usize, const NR: usize> {
    a: &'a [R],
    b: &'a [R],
    isa: PhantomData<fn() -> I>,
}

impl<I: Isa, R: Real, const MR: usize, const NR: usize> Work for Product<'_, I, R, MR, NR> {
    #[inline(always)]
    fn run(self) {
        black_box(multiply_block::<R, MR, NR>(I::FUSED, self.a, self.b));
    }
}

/// Operations per second of all threads together: the best of several rounds, since others use the machine too.
fn rate(work: fn() -> f64) -> f64 {
    let threads = threads::count();
    best(Duration::from_millis(150), || {
        let start = Instant::now();
        threads::for_each(threads, |_| {
            black_box(work());
        });
        threads as f64 * work_size(work) / start.elapsed().as_secs_f64()
    })
}

/// Operations one call does; the loops are of fixed length.
fn work_size(work: fn() -> f64) -> f64 {
    work()
}

/// The best result of rounds that take `budget` in all.
fn best(budget: Duration, mut round: impl FnMut() -> f64) -> f64 {
    let end = Instant::now() + budget;
    let mut best = round();
    while Instant::now() < end {
        best = best.max(round());
    }
    best
}

/// Bytes per second that all threads together read from main memory.
fn bandwidth(caps: &Caps) -> f64 {
    let threads = threads::count();
    // Well past the last cache, but no more than a fraction of memory.
    let bytes = (4 * caps.l3_bytes.max(8 << 20)).clamp(64 << 20, 1 << 30).min(caps.memory_bytes / 8).max(1 << 20);
    let words = vec![1_u64; bytes as usize / 8];
    let part = words.len().div_ceil(threads);
    best(Duration::from_millis(300), || {
        let start = Instant::now();
        threads::for_each(threads, |i| {
            let part = &words[(i * part).min(words.len())..((i + 1) * part).min(words.len())];
            // Eight sums, so that adding is never what is waited for.
            let mut sums = [0_u64; 8];
            for chunk in part.chunks_exact(8) {
                for (sum, word) in sums.iter_mut().zip(chunk) {
                    *sum = sum.wrapping_add(*word);
                }
            }
            black_box(sums);
        });
        (words.len() * 8) as f64 / start.elapsed().as_secs_f64()
    })
}
