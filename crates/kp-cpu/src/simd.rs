//! Loops compiled once more for each instruction set the processor may have.
//!
//! The loops are ordinary Rust. Inlined into a function that may use wider vectors, the compiler uses them; which
//! copy runs is chosen when a kernel is planned. So one source serves every processor, and every copy is tested.

pub(crate) mod arith;
mod lookup;
pub(crate) mod vector;
pub(crate) mod widen;

use kp_hal::Caps;
use lookup::Lookup;
use std::{marker::PhantomData, sync::OnceLock};
use widen::Widen;

/// A loop worth compiling for each instruction set.
///
/// Copies are never inlined, so that work that is done in several places is compiled once. They are methods, since a method's code is compiled beside its type's: spread over as many units as there are
/// loops' modules, and so by all cores at once.
pub(crate) trait Work: Sized {
    /// Does it. Mark implementations, and what they call in their inner loops, `#[inline(always)]`: only what
    /// is inlined gains.
    fn run(self);

    /// The copy for every processor.
    #[inline(never)]
    fn run_baseline(self) {
        self.run();
    }

    /// The copy for [`Avx2`].
    ///
    /// # Safety
    /// The processor has it.
    #[cfg(target_arch = "x86_64")]
    #[inline(never)]
    #[target_feature(enable = "avx2,fma,bmi2,f16c")]
    unsafe fn run_avx2(self) {
        self.run();
    }

    /// The copy for [`Avx512`].
    ///
    /// # Safety
    /// The processor has it.
    #[cfg(target_arch = "x86_64")]
    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2,f16c")]
    unsafe fn run_avx512(self) {
        self.run();
    }
}

/// An instruction set.
pub(crate) trait Isa: Lookup + Widen + Send + Sync + 'static {
    /// Features a device must name.
    const FEATURES: &'static [&'static str];

    /// Whether a multiply-add is one instruction, rounded once. Where it is not, it is two, since emulating it is slow.
    const FUSED: bool;

    /// Runs `work` compiled for this instruction set.
    ///
    /// # Panics
    /// If the processor lacks it.
    fn run(work: impl Work);

    /// Whether this processor has it, and `KP_CPU_WITHOUT` does not hide it.
    fn is_here() -> bool;

    /// Whether `caps` describe a device that has it.
    fn is_in(caps: &Caps) -> bool {
        Self::FEATURES.iter().all(|feature| caps.has(feature))
    }
}

/// What every processor of the architecture has.
pub(crate) enum Baseline {}

impl Isa for Baseline {
    const FEATURES: &'static [&'static str] = &[];
    const FUSED: bool = cfg!(any(target_feature = "fma", target_arch = "aarch64"));

    #[inline(always)]
    fn run(work: impl Work) {
        work.run_baseline();
    }

    fn is_here() -> bool {
        true
    }
}

/// AVX2 with fused multiply-adds.
pub(crate) enum Avx2 {}

/// AVX-512 as every server processor since 2017 has it.
pub(crate) enum Avx512 {}

macro_rules! isa {
    ($isa:ident, $level:expr, $run:ident, $($feature:tt),*) => {
        impl Isa for $isa {
            const FEATURES: &'static [&'static str] = &[$($feature),*];
            const FUSED: bool = true;

            #[cfg(target_arch = "x86_64")]
            #[inline(always)]
            fn run(work: impl Work) {
                assert!(level() >= $level, "planned for {:?}", Self::FEATURES);
                // SAFETY: the features were detected.
                unsafe { work.$run() }
            }

            #[cfg(not(target_arch = "x86_64"))]
            fn run(_: impl Work) {
                unreachable!("no device of this architecture names {:?}", Self::FEATURES);
            }

            fn is_here() -> bool {
                #[cfg(target_arch = "x86_64")]
                return $(std::arch::is_x86_feature_detected!($feature) && !crate::caps::is_hidden($feature))&&*;
                #[cfg(not(target_arch = "x86_64"))]
                false
            }
        }
    };
}
isa!(Avx2, Level::Avx2, run_avx2, "avx2", "fma", "bmi2", "f16c");
isa!(Avx512, Level::Avx512, run_avx512, "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma", "bmi2", "f16c");

/// What this processor has; each includes those before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Baseline,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

#[inline(always)]
pub(crate) fn level() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(|| {
        #[cfg(target_arch = "x86_64")]
        if Avx512::is_here() {
            return Level::Avx512;
        } else if Avx2::is_here() {
            return Level::Avx2;
        }
        Level::Baseline
    })
}

/// Whether the widest instruction set there is, is AVX-512.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn has_avx512() -> bool {
    level() == Level::Avx512
}

/// A loop that knows for which instruction set it is compiled, since some of its steps cost less there. Its result does
/// not depend on it.
pub(crate) trait WorkIn {
    /// Does it; as [`Work::run`].
    fn run_in<I: Isa>(self);
}

/// Such a loop for one instruction set.
pub(crate) struct In<I, W>(W, PhantomData<fn() -> I>);

impl<I: Isa, W: WorkIn> In<I, W> {
    /// `work`, for `I`.
    #[inline(always)]
    pub(crate) fn new(work: W) -> Self {
        Self(work, PhantomData)
    }
}

impl<I: Isa, W: WorkIn> Work for In<I, W> {
    #[inline(always)]
    fn run(self) {
        self.0.run_in::<I>();
    }
}

/// Below this many elements, wide vectors are not worth waking their units.
const FEW: usize = 8;

/// Runs `work` on `elements` elements on the widest instruction set there is. For work whose result does not depend
/// on which that is.
#[inline(always)]
pub(crate) fn run_widest(elements: usize, work: impl Work) {
    match level() {
        _ if elements < FEW => Baseline::run(work),
        Level::Baseline => Baseline::run(work),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => Avx2::run(work),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => Avx512::run(work),
    }
}

/// Runs `work` on `elements` elements as [`run_widest`] does.
#[inline(always)]
pub(crate) fn run_widest_in(elements: usize, work: impl WorkIn) {
    if elements < FEW { Baseline::run(In::<Baseline, _>::new(work)) } else { run_same_in(work) }
}

/// Runs `work` on the widest instruction set there is, whatever its elements. For work whose result depends on which that is,
/// but must not depend on how many are computed together.
#[inline(always)]
pub(crate) fn run_same_in(work: impl WorkIn) {
    match level() {
        Level::Baseline => Baseline::run(In::<Baseline, _>::new(work)),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => Avx2::run(In::<Avx2, _>::new(work)),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => Avx512::run(In::<Avx512, _>::new(work)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sum<'a>(&'a [f32], &'a mut f32);

    impl Work for Sum<'_> {
        #[inline(always)]
        fn run(self) {
            *self.1 = self.0.iter().sum();
        }
    }

    #[test]
    fn every_copy_does_the_same_work() {
        let caps = crate::caps::info().caps;
        let x = [1.0, 2.0, 3.5];
        fn sum<I: Isa>(caps: &Caps, x: &[f32]) -> Option<f32> {
            let mut sum = 0.0;
            I::is_in(caps).then(|| I::run(Sum(x, &mut sum)))?;
            Some(sum)
        }
        let sums = [sum::<Baseline>(&caps, &x), sum::<Avx2>(&caps, &x), sum::<Avx512>(&caps, &x)];
        assert_eq!(sums[0], Some(6.5));
        assert!(sums.iter().flatten().all(|&sum| sum == 6.5), "{sums:?}");
    }
}
