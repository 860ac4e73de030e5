//! What this machine reaches now: multiply-adds that never leave registers, reads from main memory.
//!
//! The first is the roof that instruction set and clock allow, under the clock that wide vectors really run at and on
//! the cores that are really there, two of which may share one set of units.

use crate::{
    memory::Host,
    numbers::Real,
    simd::{Avx2, Avx512, Baseline, Isa, Work, vector::Vectors},
    threads,
};
use kp_hal::{Caps, DType};
use std::{
    hint::black_box,
    marker::PhantomData,
    time::{Duration, Instant},
};

/// `caps` with the measured rates of f32, f64 and, where there are instructions for them, bf16 and bytes, and the
/// measured rate of reading; types without an instruction of their own keep their proportion to f32. Takes less than
/// half a second, and what the system needs to bring memory.
pub(crate) fn measure(caps: &Caps) -> Caps {
    let f32s = chains::<f32>();
    let scale = f32s / caps.rates.get(DType::F32);
    let mut measured = caps.clone();
    for &t in DType::ALL {
        measured.rates = measured.rates.with(&[t], caps.rates.get(t) * scale);
    }
    let rates = measured.rates.with(&[DType::F64], chains::<f64>());
    let bytes = [DType::I8, DType::U8, DType::I4, DType::U4];
    let rates = dot::bf16(caps).map_or(rates, |bf16s| rates.with(&[DType::Bf16], bf16s));
    measured.rates = dot::int8(caps).map_or(rates, |int8s| rates.with(&bytes, int8s));
    measured.bytes_per_s = bandwidth(caps);
    measured
}

/// Chains of multiply-adds that do not wait for each other: more than latency times units of any processor, no more
/// than registers.
const CHAINS: usize = 12;

/// Steps of each chain in one call: a tenth of a millisecond or so.
const STEPS: usize = 10_000;

/// Multiply-adds that stay in registers: what the units can do, whatever feeds them.
struct Chains<I, R>(PhantomData<fn() -> (I, R)>);

impl<I: Vectors<R>, R: Real> Work for Chains<I, R> {
    #[inline(always)]
    fn run(self) {
        // Towards 2: neither infinite nor subnormal, however long it goes on.
        let (half, one) = (I::splat(black_box(R::from_f32(0.5))), I::splat(black_box(R::ONE)));
        let mut sums = [one; CHAINS];
        for _ in 0..STEPS {
            for sum in &mut sums {
                *sum = I::times_plus(*sum, half, one);
            }
        }
        black_box(sums);
    }
}

/// Multiply-adds of `R` a second, counted as two operations each, of all threads together.
fn chains<R: Real>() -> f64
where
    Avx512: Vectors<R>,
    Avx2: Vectors<R>,
    Baseline: Vectors<R>,
{
    fn of<I: Vectors<R>, R: Real>() -> f64 {
        rate(2 * I::N * CHAINS * STEPS, || I::run(Chains::<I, R>(PhantomData)))
    }
    if Avx512::is_here() {
        of::<Avx512, R>()
    } else if Avx2::is_here() {
        of::<Avx2, R>()
    } else {
        of::<Baseline, R>()
    }
}

/// Dot products of bf16 and of bytes, where the processor has an instruction for them.
#[cfg(target_arch = "x86_64")]
mod dot {
    use super::{CHAINS, STEPS, black_box, rate};
    use crate::amx::Tiles;
    use kp_hal::Caps;
    use std::arch::{
        asm, is_x86_feature_detected,
        x86_64::{
            _mm256_dpbusd_avx_epi32, _mm256_set1_epi8, _mm512_dpbf16_ps, _mm512_dpbusd_epi32, _mm512_set1_epi8,
            _mm512_set1_epi16, _mm512_set1_ps,
        },
    };

    /// Chains of pairs of bf16, which take six cycles on Zen 5: twelve of them reach 0.93 of what sixteen do.
    const PAIRS: usize = 16;

    /// One chain of instructions on registers, in a function for its features.
    macro_rules! chains {
        ($name:ident, $feature:literal, $step:ident, $chains:expr, $zero:expr, $ones:expr) => {
            #[target_feature(enable = $feature)]
            fn $name() {
                let ones = black_box($ones);
                let mut sums = [$zero; $chains];
                for _ in 0..STEPS {
                    for sum in &mut sums {
                        *sum = $step(*sum, ones, ones);
                    }
                }
                black_box(sums);
            }
        };
    }
    chains!(bf16_512, "avx512f,avx512bf16", _mm512_dpbf16_ps, PAIRS, _mm512_set1_ps(0.0), {
        // SAFETY: both are 64 bytes of plain bits.
        unsafe { std::mem::transmute::<std::arch::x86_64::__m512i, std::arch::x86_64::__m512bh>(_mm512_set1_epi16(0)) }
    });
    chains!(i8_512, "avx512f,avx512vnni", _mm512_dpbusd_epi32, CHAINS, _mm512_set1_epi8(0), _mm512_set1_epi8(1));
    chains!(i8_256, "avx2,avxvnni", _mm256_dpbusd_avx_epi32, CHAINS, _mm256_set1_epi8(0), _mm256_set1_epi8(1));

    /// Products of tiles, two sums at a time.
    macro_rules! tiles {
        ($name:ident, $dot:literal) => {
            fn $name() {
                // SAFETY: the caller saw the features, and has no tiles.
                unsafe {
                    let _tiles = Tiles::new();
                    asm!(
                        "2:",
                        concat!($dot, " tmm0, tmm2, tmm3"),
                        concat!($dot, " tmm1, tmm2, tmm3"),
                        "dec {steps}",
                        "jnz 2b",
                        steps = inout(reg) STEPS => _,
                        out("tmm0") _,
                        out("tmm1") _,
                        options(nomem, nostack),
                    );
                }
            }
        };
    }
    tiles!(bf16_tiles, "tdpbf16ps");
    tiles!(i8_tiles, "tdpbssd");

    /// Multiply-adds of a product of two tiles, for each element of a step of four bytes.
    const OF_TILES: usize = 16 * 16 * 16;

    pub(super) fn bf16(caps: &Caps) -> Option<f64> {
        if caps.has("amx-bf16") {
            return Some(rate(2 * 2 * OF_TILES * 2 * STEPS, bf16_tiles));
        }
        (is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16")).then(|| {
            // SAFETY: the features were just detected.
            rate(2 * 32 * PAIRS * STEPS, || unsafe { bf16_512() })
        })
    }

    pub(super) fn int8(caps: &Caps) -> Option<f64> {
        if caps.has("amx-int8") {
            return Some(rate(2 * 4 * OF_TILES * 2 * STEPS, i8_tiles));
        }
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vnni") {
            // SAFETY: the features were just detected.
            return Some(rate(2 * 64 * CHAINS * STEPS, || unsafe { i8_512() }));
        }
        is_x86_feature_detected!("avxvnni").then(|| {
            // SAFETY: the feature was just detected, and includes AVX2.
            rate(2 * 32 * CHAINS * STEPS, || unsafe { i8_256() })
        })
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod dot {
    use kp_hal::Caps;

    pub(super) fn bf16(_: &Caps) -> Option<f64> {
        None
    }

    pub(super) fn int8(_: &Caps) -> Option<f64> {
        None
    }
}

/// Operations per second of all threads together, `operations` in each call of `work`: the best of several rounds,
/// since others use the machine too.
fn rate(operations: usize, work: impl Fn() + Sync) -> f64 {
    let threads = threads::count();
    best(Duration::from_millis(50), || {
        let start = Instant::now();
        threads::for_each(threads, |_| work());
        (threads * operations) as f64 / start.elapsed().as_secs_f64()
    })
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

/// Bytes per second that all threads together read from main memory, in pages such as operands lie in: each of them one run, or parts of it
/// side by side, whichever is faster.
fn bandwidth(caps: &Caps) -> f64 {
    let threads = threads::count();
    // Well past the last cache, but no more than a fraction of memory.
    let bytes = (4 * caps.l3_bytes.max(8 << 20)).clamp(64 << 20, 512 << 20).min(caps.memory_bytes / 8).max(1 << 20);
    let Some(mut host) = Host::new(bytes as usize) else { return caps.bytes_per_s };
    let memory = host.as_mut_slice();
    // Pages that nobody has written may all be one.
    memory.fill(1);
    let memory = &*memory;
    let part = memory.len().div_ceil(threads);
    let mut runs = [1, 4].into_iter().cycle();
    best(Duration::from_millis(150), || {
        let start = Instant::now();
        let runs = runs.next().unwrap_or(1);
        threads::for_each(threads, |i| {
            black_box(sum(memory.chunks(part).nth(i).unwrap_or(&[]), runs));
        });
        memory.len() as f64 / start.elapsed().as_secs_f64()
    })
}

/// The sum of the words of a multiple of `runs` lines, of equal parts side by side.
fn sum(bytes: &[u8], runs: usize) -> u64 {
    let lines = bytes.as_chunks::<64>().0;
    let run = lines.len() / runs;
    // Eight sums, so that adding is never what is waited for.
    let mut sums = [0_u64; 8];
    for i in 0..run {
        for line in lines[i..].iter().step_by(run).take(runs) {
            for (sum, word) in sums.iter_mut().zip(line.as_chunks().0) {
                *sum = sum.wrapping_add(u64::from_ne_bytes(*word));
            }
        }
    }
    sums.into_iter().fold(0, u64::wrapping_add)
}
