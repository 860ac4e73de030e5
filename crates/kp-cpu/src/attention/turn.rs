//! Rows become columns, in registers where an instruction set has the shuffles for it.

use super::soften::Powers;
#[cfg(target_arch = "x86_64")]
use crate::simd::vector::Vectors;
use crate::simd::{Avx2, Avx512, Baseline, arith::Arith};

/// An instruction set that turns squares of numbers.
pub(crate) trait Turns<R: Arith>: Powers<R> {
    /// Side of a square; divides 16.
    const SIDE: usize;

    /// `out[j][i] = factor · x[i][j]` for a square; rows are `ld` and `out_ld` apart.
    ///
    /// # Panics
    /// If a square leaves its slice.
    fn square(x: &[R], ld: usize, factor: R, out: &mut [R], out_ld: usize);

    /// The sum of each vector.
    #[inline(always)]
    fn four_sums(x: [Self::V; 4]) -> [R; 4] {
        let mut sums = [R::ZERO; 4];
        for (sum, x) in sums.iter_mut().zip(x) {
            let mut numbers = [R::ZERO; 16];
            Self::store(x, &mut numbers);
            *sum = numbers.iter().fold(R::ZERO, |sum, &x| sum + x);
        }
        sums
    }

    /// Whether `words` is there.
    const WORDS: bool = false;

    /// Turns rows of 32-bit words, each of which begins at a byte of `x`: `out[j][i]` is word `j` of row `i`.
    ///
    /// # Panics
    /// If a row leaves `x`, or if it is not there.
    fn words(_x: &[u8], _rows: &[usize; 16], _out: &mut [[u32; 16]; 16]) {
        unreachable!("not asked for where `WORDS` is false");
    }
}

/// `out[j][i] = factor · x[i][j]` for `rows` × `columns` numbers, both multiples of 16.
#[inline(always)]
pub(crate) fn turn<I: Turns<R>, R: Arith>(
    (x, ld): (&[R], usize),
    (rows, columns): (usize, usize),
    factor: R,
    (out, out_ld): (&mut [R], usize),
) {
    for i in (0..rows).step_by(I::SIDE) {
        for j in (0..columns).step_by(I::SIDE) {
            I::square(&x[i * ld + j..], ld, factor, &mut out[j * out_ld + i..], out_ld);
        }
    }
}

/// Squares number by number.
macro_rules! numbers {
    ($($isa:ident $r:ident)*) => {$(
        impl Turns<$r> for $isa {
            const SIDE: usize = 8;

            #[inline(always)]
            fn square(x: &[$r], ld: usize, factor: $r, out: &mut [$r], out_ld: usize) {
                for (i, x) in x.chunks(ld).take(8).enumerate() {
                    for (j, &x) in x[..8].iter().enumerate() {
                        out[j * out_ld + i] = factor * x;
                    }
                }
            }
        }
    )*};
}
numbers!(Baseline f32 Baseline f64 Avx2 f64 Avx512 f64);
#[cfg(not(target_arch = "x86_64"))]
numbers!(Avx2 f32 Avx512 f32);

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Avx2, Avx512, Turns, Vectors};
    use std::arch::x86_64::{
        _mm_add_ps, _mm_storeu_ps, _mm256_add_ps, _mm256_castps256_ps128, _mm256_extractf128_ps, _mm256_hadd_ps,
        _mm256_permute2f128_ps, _mm256_shuffle_ps, _mm256_unpackhi_ps, _mm256_unpacklo_ps, _mm512_add_ps,
        _mm512_castps512_ps256, _mm512_extractf32x8_ps, _mm512_loadu_ps, _mm512_shuffle_f32x4, _mm512_shuffle_ps,
        _mm512_storeu_ps, _mm512_unpackhi_ps, _mm512_unpacklo_ps,
    };

    /// Turns each 4 × 4 of every 128-bit part.
    macro_rules! quads {
        ($rows:ident, $low:ident, $high:ident, $shuffle:ident) => {
            for q in (0..$rows.len()).step_by(4) {
                let [a, b, c, d] = [$rows[q], $rows[q + 1], $rows[q + 2], $rows[q + 3]];
                let (ab_low, ab_high, cd_low, cd_high) = ($low(a, b), $high(a, b), $low(c, d), $high(c, d));
                $rows[q] = $shuffle::<0x44>(ab_low, cd_low);
                $rows[q + 1] = $shuffle::<0xee>(ab_low, cd_low);
                $rows[q + 2] = $shuffle::<0x44>(ab_high, cd_high);
                $rows[q + 3] = $shuffle::<0xee>(ab_high, cd_high);
            }
        };
    }

    /// Turns the 4 × 4 parts, each of which `quads` turned in itself: row 4 g + i has column i of each part.
    macro_rules! parts {
        ($rows:ident) => {
            for i in 0..4 {
                let [a, b, c, d] = [$rows[i], $rows[4 + i], $rows[8 + i], $rows[12 + i]];
                let (ab_even, ab_odd) = (_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
                let (cd_even, cd_odd) = (_mm512_shuffle_f32x4::<0x88>(c, d), _mm512_shuffle_f32x4::<0xdd>(c, d));
                $rows[i] = _mm512_shuffle_f32x4::<0x88>(ab_even, cd_even);
                $rows[4 + i] = _mm512_shuffle_f32x4::<0x88>(ab_odd, cd_odd);
                $rows[8 + i] = _mm512_shuffle_f32x4::<0xdd>(ab_even, cd_even);
                $rows[12 + i] = _mm512_shuffle_f32x4::<0xdd>(ab_odd, cd_odd);
            }
        };
    }

    impl Turns<f32> for Avx512 {
        const SIDE: usize = 16;
        const WORDS: bool = true;

        #[inline(always)]
        fn square(x: &[f32], ld: usize, factor: f32, out: &mut [f32], out_ld: usize) {
            let factor = Self::splat(factor);
            let mut rows = [factor; 16];
            for i in 0..16 {
                rows[i] = <Self as Vectors<f32>>::times(Self::load(&x[i * ld..]), factor);
            }
            // SAFETY: only `Isa::run` of this instruction set leads here, on processors that have it.
            unsafe {
                quads!(rows, _mm512_unpacklo_ps, _mm512_unpackhi_ps, _mm512_shuffle_ps);
                parts!(rows);
            }
            for j in 0..16 {
                Self::store(rows[j], &mut out[j * out_ld..]);
            }
        }

        /// Half to half: the four of each 128-bit part, then the parts.
        #[inline(always)]
        fn four_sums([a, b, c, d]: [Self::V; 4]) -> [f32; 4] {
            let mut sums = [0.0; 4];
            // SAFETY: as above; there is room for four.
            unsafe {
                let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
                let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
                let parts = _mm512_add_ps(_mm512_shuffle_ps::<0x44>(ab, cd), _mm512_shuffle_ps::<0xee>(ab, cd));
                let halves = _mm256_add_ps(_mm512_castps512_ps256(parts), _mm512_extractf32x8_ps::<1>(parts));
                let all = _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps::<1>(halves));
                _mm_storeu_ps(sums.as_mut_ptr(), all);
            }
            sums
        }

        #[inline(always)]
        fn words(x: &[u8], places: &[usize; 16], out: &mut [[u32; 16]; 16]) {
            let mut rows = [<Self as Vectors<f32>>::splat(0.0); 16];
            for i in 0..16 {
                let row = &x[places[i]..][..64];
                // SAFETY: as above; a vector is there. Shuffles leave bits as they are.
                rows[i] = unsafe { _mm512_loadu_ps(row.as_ptr().cast()) };
            }
            // SAFETY: as above.
            unsafe {
                quads!(rows, _mm512_unpacklo_ps, _mm512_unpackhi_ps, _mm512_shuffle_ps);
                parts!(rows);
                for j in 0..16 {
                    _mm512_storeu_ps(out[j].as_mut_ptr().cast(), rows[j]);
                }
            }
        }
    }

    impl Turns<f32> for Avx2 {
        const SIDE: usize = 8;

        /// Neighbour to neighbour, twice, then the halves.
        #[inline(always)]
        fn four_sums([a, b, c, d]: [Self::V; 4]) -> [f32; 4] {
            let mut sums = [0.0; 4];
            // SAFETY: as above; there is room for four.
            unsafe {
                let parts = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
                let all = _mm_add_ps(_mm256_castps256_ps128(parts), _mm256_extractf128_ps::<1>(parts));
                _mm_storeu_ps(sums.as_mut_ptr(), all);
            }
            sums
        }

        #[inline(always)]
        fn square(x: &[f32], ld: usize, factor: f32, out: &mut [f32], out_ld: usize) {
            let factor = Self::splat(factor);
            let mut rows = [factor; 8];
            for i in 0..8 {
                rows[i] = <Self as Vectors<f32>>::times(Self::load(&x[i * ld..]), factor);
            }
            // SAFETY: as above.
            unsafe {
                quads!(rows, _mm256_unpacklo_ps, _mm256_unpackhi_ps, _mm256_shuffle_ps);
                for i in 0..4 {
                    let (a, b) = (rows[i], rows[4 + i]);
                    rows[i] = _mm256_permute2f128_ps::<0x20>(a, b);
                    rows[4 + i] = _mm256_permute2f128_ps::<0x31>(a, b);
                }
            }
            for j in 0..rows.len() {
                Self::store(rows[j], &mut out[j * out_ld..]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Work;
    use std::marker::PhantomData;

    struct Turned<'a, I>(&'a mut [f32], PhantomData<fn() -> I>);

    impl<I: Turns<f32>> Work for Turned<'_, I> {
        #[inline(always)]
        fn run(self) {
            let x: Vec<f32> = (0..35 * 48).map(|i| i as f32).collect();
            turn::<I, f32>((&x, 35), (48, 32), 2.0, (self.0, 50));
        }
    }

    fn check<I: Turns<f32>>() {
        if !I::is_in(&crate::caps::info().caps) {
            return;
        }
        let mut out = vec![-1.0; 32 * 50];
        I::run(Turned::<I>(&mut out, PhantomData));
        for (at, &got) in out.iter().enumerate() {
            let (j, i) = (at / 50, at % 50);
            assert_eq!(got, if i < 48 { 2.0 * (i * 35 + j) as f32 } else { -1.0 }, "row {j}, column {i}");
        }
    }

    #[test]
    fn rows_become_columns() {
        check::<Baseline>();
        check::<Avx2>();
        check::<Avx512>();
    }
}
