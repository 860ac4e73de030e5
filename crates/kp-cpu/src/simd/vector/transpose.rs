//! Squares of numbers turned over their diagonal: what packing does where an operand runs the other way.

use super::Vectors;
use crate::numbers::Real;

/// An instruction set's way to turn squares of as many rows as its vectors have places.
pub(crate) trait Transpose<R: Real>: Vectors<R> {
    /// Writes `from[i · from_ld + j]` to `to[j · to_ld + i]` for `i` and `j` below `N`.
    ///
    /// # Panics
    /// If they leave `from` or `to`.
    #[inline(always)]
    fn transpose(from: &[R], from_ld: usize, to: &mut [R], to_ld: usize) {
        for i in 0..Self::N {
            for (j, &x) in from[i * from_ld..i * from_ld + Self::N].iter().enumerate() {
                to[j * to_ld + i] = x;
            }
        }
    }
}

mod scalar {
    use super::Transpose;
    use crate::simd::{Avx2, Avx512, Baseline};

    impl Transpose<f32> for Baseline {}
    impl Transpose<f64> for Baseline {}
    impl Transpose<f64> for Avx2 {}
    impl Transpose<f64> for Avx512 {}
    #[cfg(not(target_arch = "x86_64"))]
    impl Transpose<f32> for Avx2 {}
    #[cfg(not(target_arch = "x86_64"))]
    impl Transpose<f32> for Avx512 {}
}

/// Rows four by four: first the squares of four within the vectors' quarters, then the quarters themselves.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Transpose, Vectors};
    use crate::simd::{Avx2, Avx512};
    use std::arch::x86_64::{
        _mm256_castpd_ps, _mm256_castps_pd, _mm256_permute2f128_ps, _mm256_unpackhi_pd, _mm256_unpackhi_ps,
        _mm256_unpacklo_pd, _mm256_unpacklo_ps, _mm512_castpd_ps, _mm512_castps_pd, _mm512_shuffle_f32x4,
        _mm512_unpackhi_pd, _mm512_unpackhi_ps, _mm512_unpacklo_pd, _mm512_unpacklo_ps,
    };

    // No closures here: one that is not inlined is compiled without the instruction set, and calls every intrinsic.

    /// The squares of four in each quarter of four vectors: number `c` of what it gives holds column `c` of every quarter.
    macro_rules! quarters {
        ($rows:expr, $lo:ident $hi:ident $lo2:ident $hi2:ident $wide:ident $narrow:ident) => {{
            let [a, b, c, d] = $rows;
            let (ab, cd) = ([$wide($lo(a, b)), $wide($hi(a, b))], [$wide($lo(c, d)), $wide($hi(c, d))]);
            [
                $narrow($lo2(ab[0], cd[0])),
                $narrow($hi2(ab[0], cd[0])),
                $narrow($lo2(ab[1], cd[1])),
                $narrow($hi2(ab[1], cd[1])),
            ]
        }};
    }

    impl Transpose<f32> for Avx512 {
        #[inline(always)]
        fn transpose(from: &[f32], from_ld: usize, to: &mut [f32], to_ld: usize) {
            let mut q = [[<Self as Vectors<f32>>::splat(0.0); 4]; 4];
            for (g, q) in q.iter_mut().enumerate() {
                let mut four = *q;
                for (i, row) in four.iter_mut().enumerate() {
                    *row = Self::load(&from[(4 * g + i) * from_ld..]);
                }
                // SAFETY: only `Isa::run` of this instruction set calls this, on processors that have it.
                *q = unsafe {
                    quarters!(four, _mm512_unpacklo_ps _mm512_unpackhi_ps _mm512_unpacklo_pd _mm512_unpackhi_pd
                        _mm512_castps_pd _mm512_castpd_ps)
                };
            }
            for c in 0..4 {
                // SAFETY: as above.
                let columns = unsafe {
                    let even = [
                        _mm512_shuffle_f32x4::<0x88>(q[0][c], q[1][c]),
                        _mm512_shuffle_f32x4::<0x88>(q[2][c], q[3][c]),
                    ];
                    let odd = [
                        _mm512_shuffle_f32x4::<0xdd>(q[0][c], q[1][c]),
                        _mm512_shuffle_f32x4::<0xdd>(q[2][c], q[3][c]),
                    ];
                    [
                        _mm512_shuffle_f32x4::<0x88>(even[0], even[1]),
                        _mm512_shuffle_f32x4::<0x88>(odd[0], odd[1]),
                        _mm512_shuffle_f32x4::<0xdd>(even[0], even[1]),
                        _mm512_shuffle_f32x4::<0xdd>(odd[0], odd[1]),
                    ]
                };
                for (quarter, column) in columns.into_iter().enumerate() {
                    Self::store(column, &mut to[(4 * quarter + c) * to_ld..]);
                }
            }
        }
    }

    impl Transpose<f32> for Avx2 {
        #[inline(always)]
        fn transpose(from: &[f32], from_ld: usize, to: &mut [f32], to_ld: usize) {
            let mut q = [[<Self as Vectors<f32>>::splat(0.0); 4]; 2];
            for (g, q) in q.iter_mut().enumerate() {
                let mut four = *q;
                for (i, row) in four.iter_mut().enumerate() {
                    *row = Self::load(&from[(4 * g + i) * from_ld..]);
                }
                // SAFETY: as above.
                *q = unsafe {
                    quarters!(four, _mm256_unpacklo_ps _mm256_unpackhi_ps _mm256_unpacklo_pd _mm256_unpackhi_pd
                        _mm256_castps_pd _mm256_castpd_ps)
                };
            }
            for c in 0..4 {
                // SAFETY: as above.
                let columns = unsafe {
                    [_mm256_permute2f128_ps::<0x20>(q[0][c], q[1][c]), _mm256_permute2f128_ps::<0x31>(q[0][c], q[1][c])]
                };
                for (half, column) in columns.into_iter().enumerate() {
                    Self::store(column, &mut to[(4 * half + c) * to_ld..]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Avx2, Avx512, Baseline, Work};

    struct Turn<'a, I, R>(&'a [R], &'a mut [R], std::marker::PhantomData<fn() -> I>);

    impl<I: Transpose<R>, R: Real> Work for Turn<'_, I, R> {
        #[inline(always)]
        fn run(self) {
            I::transpose(self.0, I::N + 3, self.1, I::N + 1);
        }
    }

    #[test]
    fn squares_are_turned() {
        fn turn<I: Transpose<R>, R: Real>() {
            if !I::is_in(&crate::caps::info().caps) {
                return;
            }
            let from: Vec<R> = (0..I::N * (I::N + 3)).map(|i| R::from_f64(i as f64)).collect();
            let mut to = vec![R::NAN; I::N * (I::N + 1)];
            I::run(Turn::<I, R>(&from, &mut to, std::marker::PhantomData));
            for (i, row) in from.chunks(I::N + 3).enumerate() {
                for (j, x) in row[..I::N].iter().enumerate() {
                    assert_eq!(to[j * (I::N + 1) + i], *x, "{i} {j}");
                }
            }
            assert!(to.chunks(I::N + 1).all(|column| column[I::N].is_nan()), "nothing else is written");
        }
        turn::<Baseline, f32>();
        turn::<Baseline, f64>();
        turn::<Avx2, f32>();
        turn::<Avx2, f64>();
        turn::<Avx512, f32>();
        turn::<Avx512, f64>();
    }
}
