//! Numbers of 4-bit codes: the table of a type is a vector, and its codes permute it.

use crate::simd::{Avx2, Avx512, Baseline};

/// An instruction set's way to look up 4-bit codes.
pub(crate) trait Lookup {
    /// What the codes of eight bytes mean by `table`, the low halves' codes before the high ones'.
    fn lookup(table: &[f32; 16], bytes: [u8; 8]) -> [f32; 16];
}

/// One by one.
#[inline(always)]
fn each(table: &[f32; 16], bytes: [u8; 8]) -> [f32; 16] {
    std::array::from_fn(|i| table[usize::from(bytes[i / 2] >> (i % 2 * 4) & 15)])
}

impl Lookup for Baseline {
    #[inline(always)]
    fn lookup(table: &[f32; 16], bytes: [u8; 8]) -> [f32; 16] {
        each(table, bytes)
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Avx2, Avx512, Lookup};
    use std::arch::x86_64::{
        __m128i, _mm_and_si128, _mm_bsrli_si128, _mm_cvtsi64_si128, _mm_set1_epi8, _mm_srli_epi16, _mm_unpacklo_epi8,
        _mm256_blendv_ps, _mm256_castsi256_ps, _mm256_cvtepu8_epi32, _mm256_loadu_ps, _mm256_permutevar8x32_ps,
        _mm256_slli_epi32, _mm256_storeu_ps, _mm512_cvtepu8_epi32, _mm512_loadu_ps, _mm512_permutexvar_ps,
        _mm512_storeu_ps,
    };

    /// The sixteen codes of eight bytes, a byte each.
    #[inline(always)]
    fn codes(bytes: [u8; 8]) -> __m128i {
        // SAFETY: every x86-64 has SSE2.
        unsafe {
            let bytes = _mm_cvtsi64_si128(i64::from_le_bytes(bytes));
            let half = _mm_set1_epi8(15);
            _mm_unpacklo_epi8(_mm_and_si128(bytes, half), _mm_and_si128(_mm_srli_epi16(bytes, 4), half))
        }
    }

    impl Lookup for Avx512 {
        #[inline(always)]
        fn lookup(table: &[f32; 16], bytes: [u8; 8]) -> [f32; 16] {
            let mut out = [0.0; 16];
            // SAFETY: only `Isa::run` of this instruction set calls this, on processors that have it; both arrays are
            // one vector long.
            unsafe {
                let numbers =
                    _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(codes(bytes)), _mm512_loadu_ps(table.as_ptr()));
                _mm512_storeu_ps(out.as_mut_ptr(), numbers);
            }
            out
        }
    }

    impl Lookup for Avx2 {
        #[inline(always)]
        fn lookup(table: &[f32; 16], bytes: [u8; 8]) -> [f32; 16] {
            let mut out = [0.0; 16];
            // SAFETY: only `Isa::run` of this instruction set calls this, on processors that have it; both arrays are
            // two vectors long.
            unsafe {
                let (low, high) = (_mm256_loadu_ps(table.as_ptr()), _mm256_loadu_ps(table.as_ptr().add(8)));
                let codes = codes(bytes);
                for (codes, out) in [codes, _mm_bsrli_si128(codes, 8)].into_iter().zip(out.chunks_exact_mut(8)) {
                    let at = _mm256_cvtepu8_epi32(codes);
                    // The permutation looks at three bits of an index, the blend at its sign.
                    let fourth = _mm256_castsi256_ps(_mm256_slli_epi32(at, 28));
                    let (low, high) = (_mm256_permutevar8x32_ps(low, at), _mm256_permutevar8x32_ps(high, at));
                    _mm256_storeu_ps(out.as_mut_ptr(), _mm256_blendv_ps(low, high, fourth));
                }
            }
            out
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod other {
    use super::{Avx2, Avx512, Lookup, each};

    // Never run here, but there.
    impl Lookup for Avx2 {
        fn lookup(table: &[f32; 16], bytes: [u8; 8]) -> [f32; 16] {
            each(table, bytes)
        }
    }
    impl Lookup for Avx512 {
        fn lookup(table: &[f32; 16], bytes: [u8; 8]) -> [f32; 16] {
            each(table, bytes)
        }
    }
}
