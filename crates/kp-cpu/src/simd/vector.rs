//! Vectors of each instruction set: written out, because the compiler does not keep a square of
//! sums in registers by itself.

pub(crate) mod transpose;

use crate::{
    numbers::Real,
    simd::{Avx2, Avx512, Baseline, FEW, Isa, Level, Work, level},
};
use std::marker::PhantomData;

/// An instruction set's vectors of `R`.
pub(crate) trait Vectors<R: Real>: Isa {
    /// Some numbers side by side.
    type V: Copy;

    /// How many.
    const N: usize;

    /// The same number in every place.
    fn splat(x: R) -> Self::V;

    /// The first numbers of `x`.
    ///
    /// # Panics
    /// If there are fewer than `N`.
    fn load(x: &[R]) -> Self::V;

    /// Writes to the front of `out`.
    ///
    /// # Panics
    /// If there is no room for `N`.
    fn store(v: Self::V, out: &mut [R]);

    /// `a + b`.
    fn plus(a: Self::V, b: Self::V) -> Self::V;

    /// `a − b`.
    fn minus(a: Self::V, b: Self::V) -> Self::V;

    /// The larger, place by place; of `b` if either is NaN.
    fn larger(a: Self::V, b: Self::V) -> Self::V;

    /// `a · b`.
    fn times(a: Self::V, b: Self::V) -> Self::V;

    /// `a · b + c`, rounded as `Arith::times_plus` rounds.
    fn times_plus(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
}

/// Vectors as arrays.
#[cfg(any(not(target_arch = "x86_64"), target_feature = "fma"))]
macro_rules! arrays {
    ($isa:ident, $r:ident, $n:literal) => {
        impl Vectors<$r> for $isa {
            type V = [$r; $n];
            const N: usize = $n;

            #[inline(always)]
            fn splat(x: $r) -> Self::V {
                [x; $n]
            }

            #[inline(always)]
            fn load(x: &[$r]) -> Self::V {
                x[..$n].try_into().expect("N of them")
            }

            #[inline(always)]
            fn store(v: Self::V, out: &mut [$r]) {
                out[..$n].copy_from_slice(&v);
            }

            #[inline(always)]
            fn plus(a: Self::V, b: Self::V) -> Self::V {
                std::array::from_fn(|i| a[i] + b[i])
            }

            #[inline(always)]
            fn minus(a: Self::V, b: Self::V) -> Self::V {
                std::array::from_fn(|i| a[i] - b[i])
            }

            #[inline(always)]
            fn larger(a: Self::V, b: Self::V) -> Self::V {
                std::array::from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
            }

            #[inline(always)]
            fn times(a: Self::V, b: Self::V) -> Self::V {
                std::array::from_fn(|i| a[i] * b[i])
            }

            #[inline(always)]
            fn times_plus(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
                std::array::from_fn(|i| crate::simd::arith::Arith::times_plus::<$isa>(a[i], b[i], c[i]))
            }
        }
    };
}

/// Vectors as the processor's registers.
#[cfg(target_arch = "x86_64")]
macro_rules! registers {
    ($isa:ident, $r:ident, $n:literal, $v:ident, $set:ident $load:ident $store:ident
     $add:ident $sub:ident $max:ident $mul:ident, $fma:expr) => {
        impl Vectors<$r> for $isa {
            type V = std::arch::x86_64::$v;
            const N: usize = $n;

            #[inline(always)]
            fn splat(x: $r) -> Self::V {
                // SAFETY: only `Isa::run` of this instruction set calls this, on processors that have it.
                unsafe { std::arch::x86_64::$set(x) }
            }

            #[inline(always)]
            fn load(x: &[$r]) -> Self::V {
                let x = &x[..$n];
                // SAFETY: as above; N numbers are there.
                unsafe { std::arch::x86_64::$load(x.as_ptr()) }
            }

            #[inline(always)]
            fn store(v: Self::V, out: &mut [$r]) {
                let out = &mut out[..$n];
                // SAFETY: as above; there is room for N numbers.
                unsafe { std::arch::x86_64::$store(out.as_mut_ptr(), v) }
            }

            #[inline(always)]
            fn plus(a: Self::V, b: Self::V) -> Self::V {
                // SAFETY: as above.
                unsafe { std::arch::x86_64::$add(a, b) }
            }

            #[inline(always)]
            fn minus(a: Self::V, b: Self::V) -> Self::V {
                // SAFETY: as above.
                unsafe { std::arch::x86_64::$sub(a, b) }
            }

            #[inline(always)]
            fn larger(a: Self::V, b: Self::V) -> Self::V {
                // SAFETY: as above.
                unsafe { std::arch::x86_64::$max(a, b) }
            }

            #[inline(always)]
            fn times(a: Self::V, b: Self::V) -> Self::V {
                // SAFETY: as above.
                unsafe { std::arch::x86_64::$mul(a, b) }
            }

            #[inline(always)]
            fn times_plus(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
                // SAFETY: as above.
                unsafe { $fma(a, b, c) }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Avx2, Avx512, Baseline, Vectors};
    use std::arch::x86_64::{
        _mm_add_pd, _mm_add_ps, _mm_mul_pd, _mm_mul_ps, _mm256_fmadd_pd, _mm256_fmadd_ps, _mm512_fmadd_pd,
        _mm512_fmadd_ps,
    };

    registers!(Avx512, f32, 16, __m512, _mm512_set1_ps _mm512_loadu_ps _mm512_storeu_ps
        _mm512_add_ps _mm512_sub_ps _mm512_max_ps _mm512_mul_ps, _mm512_fmadd_ps);
    registers!(Avx512, f64, 8, __m512d, _mm512_set1_pd _mm512_loadu_pd _mm512_storeu_pd
        _mm512_add_pd _mm512_sub_pd _mm512_max_pd _mm512_mul_pd, _mm512_fmadd_pd);
    registers!(Avx2, f32, 8, __m256, _mm256_set1_ps _mm256_loadu_ps _mm256_storeu_ps
        _mm256_add_ps _mm256_sub_ps _mm256_max_ps _mm256_mul_ps, _mm256_fmadd_ps);
    registers!(Avx2, f64, 4, __m256d, _mm256_set1_pd _mm256_loadu_pd _mm256_storeu_pd
        _mm256_add_pd _mm256_sub_pd _mm256_max_pd _mm256_mul_pd, _mm256_fmadd_pd);

    // A processor whose baseline has fused multiply-adds was asked for by name: let the compiler use them.
    #[cfg(target_feature = "fma")]
    mod baseline {
        use super::{Baseline, Vectors};
        arrays!(Baseline, f32, 8);
        arrays!(Baseline, f64, 4);
    }
    #[cfg(not(target_feature = "fma"))]
    mod baseline {
        use super::{_mm_add_pd, _mm_add_ps, _mm_mul_pd, _mm_mul_ps, Baseline, Vectors};
        registers!(Baseline, f32, 4, __m128, _mm_set1_ps _mm_loadu_ps _mm_storeu_ps
        _mm_add_ps _mm_sub_ps _mm_max_ps _mm_mul_ps,
            |a, b, c| _mm_add_ps(_mm_mul_ps(a, b), c));
        registers!(Baseline, f64, 2, __m128d, _mm_set1_pd _mm_loadu_pd _mm_storeu_pd
        _mm_add_pd _mm_sub_pd _mm_max_pd _mm_mul_pd,
            |a, b, c| _mm_add_pd(_mm_mul_pd(a, b), c));
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod other {
    use super::{Avx2, Avx512, Baseline, Vectors};

    arrays!(Baseline, f32, 4);
    arrays!(Baseline, f64, 2);
    // Never run here, but there.
    arrays!(Avx2, f32, 8);
    arrays!(Avx2, f64, 4);
    arrays!(Avx512, f32, 16);
    arrays!(Avx512, f64, 8);
}

/// A loop written in vectors of numbers of `R`. Its result depends on the instruction set in nothing but whether
/// multiply-adds are fused, and only where it has any.
pub(crate) trait WorkOn<R: Real> {
    /// Does it; as `Work::run`.
    fn run_on<I: Vectors<R>>(self);
}

/// Such a loop for one instruction set.
struct On<I, R, W>(W, PhantomData<fn() -> (I, R)>);

impl<I: Vectors<R>, R: Real, W: WorkOn<R>> Work for On<I, R, W> {
    #[inline(always)]
    fn run(self) {
        self.0.run_on::<I>();
    }
}

/// Numbers of which every instruction set has vectors.
pub(crate) trait Wide: Real {
    /// Runs `work` on `elements` elements as `simd::run_widest` does.
    fn run_widest(elements: usize, work: impl WorkOn<Self>);
}

macro_rules! wide {
    ($($r:ident)*) => {$(
        impl Wide for $r {
            #[inline(always)]
            fn run_widest(elements: usize, work: impl WorkOn<Self>) {
                fn on<I: Vectors<$r>>(work: impl WorkOn<$r>) {
                    I::run(On::<I, $r, _>(work, PhantomData));
                }
                match level() {
                    _ if elements < FEW => on::<Baseline>(work),
                    Level::Baseline => on::<Baseline>(work),
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx2 => on::<Avx2>(work),
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx512 => on::<Avx512>(work),
                }
            }
        }
    )*};
}
wide!(f32 f64);
