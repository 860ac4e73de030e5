//! Sixteen floats as f32: where an instruction set converts f16, smaller ones are shifted to where f16 has their bits.

use crate::{
    numbers::small::{E4M3, E5M2, F16, Small},
    simd::{Avx2, Avx512, Baseline},
};

/// An instruction set's way to widen floats.
pub(crate) trait Widen {
    /// Sixteen f32, lowest byte first.
    #[inline(always)]
    fn f32(codes: &[u8; 64]) -> [f32; 16] {
        let mut out = [0.0; 16];
        for (out, &code) in out.iter_mut().zip(codes.as_chunks().0) {
            *out = f32::from_le_bytes(code);
        }
        out
    }

    /// Sixteen bf16: the upper halves of f32.
    #[inline(always)]
    fn bf16(codes: &[u8; 32]) -> [f32; 16] {
        let mut out = [0.0; 16];
        for (out, &code) in out.iter_mut().zip(codes.as_chunks().0) {
            *out = f32::from_bits(u32::from(u16::from_le_bytes(code)) << 16);
        }
        out
    }

    /// Sixteen f16, lowest byte first.
    #[inline(always)]
    fn f16(codes: &[u8; 32]) -> [f32; 16] {
        let mut out = [0.0; 16];
        for (out, &code) in out.iter_mut().zip(codes.as_chunks().0) {
            *out = F16.decode(u16::from_le_bytes(code).into());
        }
        out
    }

    /// Sixteen E4M3.
    #[inline(always)]
    fn e4m3(codes: &[u8; 16]) -> [f32; 16] {
        bytes(E4M3, codes)
    }

    /// Sixteen E5M2.
    #[inline(always)]
    fn e5m2(codes: &[u8; 16]) -> [f32; 16] {
        bytes(E5M2, codes)
    }
}

#[inline(always)]
fn bytes(small: Small, codes: &[u8; 16]) -> [f32; 16] {
    let mut out = [0.0; 16];
    for (out, &code) in out.iter_mut().zip(codes) {
        *out = small.decode(code.into());
    }
    out
}

impl Widen for Baseline {}

#[cfg(not(target_arch = "x86_64"))]
impl Widen for Avx2 {}
#[cfg(not(target_arch = "x86_64"))]
impl Widen for Avx512 {}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Avx2, Avx512, Widen};
    use std::arch::x86_64::{
        __m256i, _mm_loadu_si128, _mm256_and_si256, _mm256_castsi256_si128, _mm256_cmpeq_epi16, _mm256_cvtepu8_epi16,
        _mm256_cvtph_ps, _mm256_extracti128_si256, _mm256_loadu_si256, _mm256_mul_ps, _mm256_or_si256,
        _mm256_set1_epi16, _mm256_set1_ps, _mm256_slli_epi16, _mm256_srai_epi16, _mm256_storeu_ps,
        _mm512_cvtepu16_epi32, _mm512_cvtph_ps, _mm512_mul_ps, _mm512_set1_ps, _mm512_slli_epi32, _mm512_storeu_ps,
        _mm512_storeu_si512,
    };

    /// Sixteen bytes, each in the upper half of a lane.
    ///
    /// # Safety
    /// The processor has AVX2.
    #[inline(always)]
    unsafe fn upper(codes: &[u8; 16]) -> __m256i {
        // SAFETY: sixteen bytes are there; the instructions are the caller's promise.
        unsafe { _mm256_slli_epi16::<8>(_mm256_cvtepu8_epi16(_mm_loadu_si128(codes.as_ptr().cast()))) }
    }

    /// Sixteen E4M3 as f16, 256 times too small: the exponent has one bit less, and a bias 8 lower.
    ///
    /// # Safety
    /// The processor has AVX2.
    #[inline(always)]
    unsafe fn e4m3(codes: &[u8; 16]) -> __m256i {
        // SAFETY: the instructions are the caller's promise.
        unsafe {
            let upper = upper(codes);
            let magnitude = _mm256_set1_epi16(0x7f00);
            let nan = _mm256_cmpeq_epi16(_mm256_and_si256(upper, magnitude), magnitude);
            // The sign moves too, but its copy stays; what it left behind is cleared.
            let shifted = _mm256_and_si256(_mm256_srai_epi16::<1>(upper), _mm256_set1_epi16(!0x4000));
            _mm256_or_si256(shifted, _mm256_and_si256(nan, magnitude))
        }
    }

    /// Sixteen f16 times a power of two.
    ///
    /// # Safety
    /// The processor has AVX2 and F16C.
    #[inline(always)]
    unsafe fn halves_by_eights(halves: __m256i, power: f32) -> [f32; 16] {
        let mut out = [0.0; 16];
        // SAFETY: there is room for sixteen; the instructions are the caller's promise.
        unsafe {
            for (out, eight) in out
                .as_chunks_mut::<8>()
                .0
                .iter_mut()
                .zip([_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves)])
            {
                let numbers = _mm256_cvtph_ps(eight);
                let numbers = if power == 1.0 { numbers } else { _mm256_mul_ps(numbers, _mm256_set1_ps(power)) };
                _mm256_storeu_ps(out.as_mut_ptr(), numbers);
            }
        }
        out
    }

    impl Widen for Avx2 {
        #[inline(always)]
        fn f16(codes: &[u8; 32]) -> [f32; 16] {
            // SAFETY: only `Isa::run` of this instruction set calls this, on processors that have it; sixteen are there.
            unsafe { halves_by_eights(_mm256_loadu_si256(codes.as_ptr().cast()), 1.0) }
        }

        #[inline(always)]
        fn e4m3(codes: &[u8; 16]) -> [f32; 16] {
            // SAFETY: as above.
            unsafe { halves_by_eights(e4m3(codes), 256.0) }
        }

        #[inline(always)]
        fn e5m2(codes: &[u8; 16]) -> [f32; 16] {
            // SAFETY: as above.
            unsafe { halves_by_eights(upper(codes), 1.0) }
        }
    }

    /// Sixteen f16 times a power of two.
    ///
    /// # Safety
    /// The processor has AVX-512.
    #[inline(always)]
    unsafe fn halves(halves: __m256i, power: f32) -> [f32; 16] {
        let mut out = [0.0; 16];
        // SAFETY: there is room for sixteen; the instructions are the caller's promise.
        unsafe {
            let numbers = _mm512_cvtph_ps(halves);
            let numbers = if power == 1.0 { numbers } else { _mm512_mul_ps(numbers, _mm512_set1_ps(power)) };
            _mm512_storeu_ps(out.as_mut_ptr(), numbers);
        }
        out
    }

    impl Widen for Avx512 {
        #[inline(always)]
        fn bf16(codes: &[u8; 32]) -> [f32; 16] {
            let mut out = [0.0; 16];
            // SAFETY: only `Isa::run` of this instruction set calls this, on processors that have it; sixteen are there.
            unsafe {
                let words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(codes.as_ptr().cast()));
                _mm512_storeu_si512(out.as_mut_ptr().cast(), _mm512_slli_epi32::<16>(words));
            }
            out
        }

        #[inline(always)]
        fn f16(codes: &[u8; 32]) -> [f32; 16] {
            // SAFETY: as above.
            unsafe { halves(_mm256_loadu_si256(codes.as_ptr().cast()), 1.0) }
        }

        #[inline(always)]
        fn e4m3(codes: &[u8; 16]) -> [f32; 16] {
            // SAFETY: as above.
            unsafe { halves(e4m3(codes), 256.0) }
        }

        #[inline(always)]
        fn e5m2(codes: &[u8; 16]) -> [f32; 16] {
            // SAFETY: as above.
            unsafe { halves(upper(codes), 1.0) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Isa, Work};
    use std::marker::PhantomData;

    struct All<I>(PhantomData<fn() -> I>);

    impl<I: Isa> Work for All<I> {
        #[inline(always)]
        fn run(self) {
            let same = |got: f32, want: f32, code: u32| {
                assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{code:#x}: {got} {want}");
            };
            for first in (0..=0xffff_u16).step_by(16) {
                let mut codes = [0; 32];
                for (i, code) in codes.as_chunks_mut().0.iter_mut().enumerate() {
                    *code = (first + i as u16).to_le_bytes();
                }
                for (code, (half, bf16)) in (u32::from(first)..).zip(I::f16(&codes).into_iter().zip(I::bf16(&codes))) {
                    same(half, F16.decode(code), code);
                    same(bf16, f32::from_bits(code << 16), code);
                }
            }
            for first in (0..=0xff_u8).step_by(16) {
                let mut codes = [first; 16];
                codes.iter_mut().zip(0..).for_each(|(code, i)| *code += i);
                for (i, code) in codes.into_iter().map(u32::from).enumerate() {
                    same(I::e4m3(&codes)[i], E4M3.decode(code), code);
                    same(I::e5m2(&codes)[i], E5M2.decode(code), code);
                }
            }
        }
    }

    #[test]
    fn every_code_is_its_number() {
        let caps = crate::caps::info().caps;
        fn check<I: Isa>(caps: &kp_hal::Caps) {
            if I::is_in(caps) {
                I::run(All::<I>(PhantomData));
            }
        }
        check::<Baseline>(&caps);
        check::<Avx2>(&caps);
        check::<Avx512>(&caps);
    }
}
