//! Softmax of a block: scores become powers of two of what they are below the greatest that their row has seen.

use super::{
    chunk::{BLOCK, FEW},
    product::LANES,
};
use crate::simd::{
    Avx2, Avx512, Baseline, Isa,
    arith::{Arith, larger},
    vector::Vectors,
};

/// An instruction set that makes powers of two.
pub(crate) trait Powers<R: Arith>: Vectors<R> + Sized {
    /// 2ˣ, place by place, to the bit what [`Arith::exp2_of`] makes.
    #[inline(always)]
    fn exp2(x: Self::V) -> Self::V {
        let mut numbers = [R::ZERO; LANES];
        Self::store(x, &mut numbers);
        numbers[..Self::N].iter_mut().for_each(|x| *x = x.exp2_of::<Self>());
        Self::load(&numbers)
    }
}

impl Powers<f32> for Baseline {}
impl Powers<f64> for Baseline {}
impl Powers<f64> for Avx2 {}
impl Powers<f64> for Avx512 {}
#[cfg(not(target_arch = "x86_64"))]
impl Powers<f32> for Avx2 {}
#[cfg(not(target_arch = "x86_64"))]
impl Powers<f32> for Avx512 {}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Avx2, Avx512, Powers, Vectors};
    use crate::simd::arith::exp2::{LEAST, ROUND, TERMS};
    use std::arch::x86_64::{
        _mm256_castps_si256, _mm256_castsi256_ps, _mm256_slli_epi32, _mm512_castps_si512, _mm512_castsi512_ps,
        _mm512_slli_epi32,
    };

    macro_rules! powers {
        ($isa:ident, $to_words:ident, $shift:ident, $to_numbers:ident) => {
            impl Powers<f32> for $isa {
                #[inline(always)]
                fn exp2(x: Self::V) -> Self::V {
                    let of = <Self as Vectors<f32>>::splat;
                    let x = <Self as Vectors<f32>>::larger(of(LEAST), x);
                    let rounded = <Self as Vectors<f32>>::plus(x, of(ROUND));
                    let whole = <Self as Vectors<f32>>::minus(rounded, of(ROUND));
                    let r = <Self as Vectors<f32>>::minus(x, whole);
                    let mut p = of(TERMS[4]);
                    for term in [TERMS[3], TERMS[2], TERMS[1], TERMS[0], 1.0] {
                        p = <Self as Vectors<f32>>::times_plus(p, r, of(term));
                    }
                    // SAFETY: only `Isa::run` of this instruction set leads here, on processors that have it.
                    let power = unsafe { $to_numbers($shift::<23>($to_words(rounded))) };
                    // A product, so that NaN is not mistaken for the number its bits would be with another exponent.
                    <Self as Vectors<f32>>::times(p, power)
                }
            }
        };
    }
    powers!(Avx2, _mm256_castps_si256, _mm256_slli_epi32, _mm256_castsi256_ps);
    powers!(Avx512, _mm512_castps_si512, _mm512_slli_epi32, _mm512_castsi512_ps);
}

/// What a row's scores are counted from: one that has seen nothing yet has nothing to subtract from −∞.
#[inline(always)]
pub(crate) fn base<R: Arith>(max: R) -> R {
    if max == -R::INFINITY { R::ZERO } else { max }
}

/// Keys whose sum is taken apart, so that the next need not wait for it.
const STEP: usize = 16;

/// Vectors that are softened together, so that neither waits for its own last result.
const TWO: usize = 2;

/// Replaces scores of a panel by 2^(score − maximum), renews maximum and sum, and answers what earlier sums shrink by.
///
/// In vectors by name: written for lanes, sums of keys stayed in memory, where each addition waits for the store of the last.
#[inline(always)]
pub(super) fn soften<I: Powers<R>, R: Arith, const W: usize>(
    s: &mut [R],
    lanes: usize,
    max: &mut [R],
    sum: &mut [R],
    factors: &mut [R; W],
) {
    const { assert!(W.is_multiple_of(TWO * I::N)) };
    for at in (0..lanes).step_by(TWO * I::N) {
        let places = [at, at + I::N];
        let mut old = [I::splat(R::ZERO); TWO];
        for v in 0..TWO {
            old[v] = I::load(&max[places[v]..]);
        }
        let mut new = old;
        for s in s.chunks_exact(W) {
            for v in 0..TWO {
                new[v] = I::larger(I::load(&s[places[v]..]), new[v]);
            }
        }
        for v in 0..TWO {
            I::store(new[v], &mut max[places[v]..]);
        }
        let mut bases = old;
        for v in 0..TWO {
            let mut numbers = [R::ZERO; LANES];
            numbers.iter_mut().zip(&max[places[v]..][..I::N]).for_each(|(number, &max)| *number = base(max));
            bases[v] = I::load(&numbers);
        }
        let mut sums = [I::splat(R::ZERO); TWO];
        for s in s.chunks_mut(STEP * W) {
            let mut part = [I::splat(R::ZERO); TWO];
            for s in s.chunks_exact_mut(W) {
                for v in 0..TWO {
                    let s = &mut s[places[v]..];
                    let p = I::exp2(I::minus(I::load(s), bases[v]));
                    I::store(p, s);
                    part[v] = I::plus(part[v], p);
                }
            }
            for v in 0..TWO {
                sums[v] = I::plus(sums[v], part[v]);
            }
        }
        for v in 0..TWO {
            let factor = I::exp2(I::minus(old[v], bases[v]));
            I::store(factor, &mut factors[places[v]..]);
            let sum = &mut sum[places[v]..];
            I::store(I::times_plus(I::load(sum), factor, sums[v]), sum);
        }
    }
}

/// The same for scores whose lanes are keys, of which `keys` are there.
#[inline(always)]
pub(super) fn soften_few<I: Isa, R: Arith>(
    s: &mut [R],
    keys: usize,
    max: &mut [R],
    sum: &mut [R],
    factors: &mut [R; FEW],
) {
    for (i, s) in s.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
        let mut new = [max[i]; LANES];
        for s in s.as_chunks::<LANES>().0 {
            for lane in 0..LANES {
                new[lane] = larger(new[lane], s[lane]);
            }
        }
        let new = new.into_iter().fold(max[i], larger);
        let base = base(new);
        s.iter_mut().for_each(|s| *s = (*s - base).exp2_of::<I>());
        factors[i] = (max[i] - base).exp2_of::<I>();
        let parts = s[..keys].chunks(STEP).map(|s| s.iter().fold(R::ZERO, |part, &p| part + p));
        let sums = parts.fold(R::ZERO, |sum, part| sum + part);
        sum[i] = sum[i].times_plus::<I>(factors[i], sums);
        max[i] = new;
    }
}
