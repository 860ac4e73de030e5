//! What this machine reaches now: multiply-adds in registers, reads from main memory.

use crate::threads;
use kp_hal::{Caps, DType};
use std::{
    hint::black_box,
    time::{Duration, Instant},
};

/// `caps` with the measured peaks of f32 and f64 multiply-adds and of reading; the rates of other types keep
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

/// Vectors of the widest kind that stay in registers: enough chains to hide the latency of two units.
const CHAINS: usize = 12;
const STEPS: usize = 20_000;

macro_rules! fma {
    ($name:ident, $inner:ident, $t:ty, $lanes:literal) => {
        /// Operations done.
        fn $name() -> f64 {
            #[inline(always)]
            fn $inner() -> $t {
                let mut sums = [[1.0 as $t; $lanes]; CHAINS];
                let (x, y) = (black_box([0.999 as $t; $lanes]), black_box([1e-3 as $t; $lanes]));
                for _ in 0..STEPS {
                    for chain in &mut sums {
                        for i in 0..$lanes {
                            chain[i] = chain[i].mul_add(x[i], y[i]);
                        }
                    }
                }
                sums.iter().flatten().sum()
            }
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,fma")]
                fn avx512() -> $t {
                    $inner()
                }
                #[target_feature(enable = "avx2,fma")]
                fn avx2() -> $t {
                    $inner()
                }
                if std::arch::is_x86_feature_detected!("avx512f") && std::arch::is_x86_feature_detected!("fma") {
                    // SAFETY: the features were just detected.
                    black_box(unsafe { avx512() });
                } else if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
                    // SAFETY: the features were just detected.
                    black_box(unsafe { avx2() });
                } else {
                    black_box($inner());
                }
            }
            #[cfg(not(target_arch = "x86_64"))]
            black_box($inner());
            (2 * $lanes * CHAINS * STEPS) as f64
        }
    };
}
fma!(fma_f32, chains_f32, f32, 16);
fma!(fma_f64, chains_f64, f64, 8);

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
