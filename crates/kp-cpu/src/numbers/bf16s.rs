//! f32 rounded to bf16 by the instruction for it.
//!
//! It takes subnormal numbers for zeros, as its definition says, so a run that has one is rounded step by step.

use super::small::encode_bf16;
use crate::caps::is_hidden;
use std::{
    arch::x86_64::{
        __m512, __m512bh, __m512i, _mm512_cvtne2ps_pbh, _mm512_fpclass_ps_mask, _mm512_loadu_ps, _mm512_storeu_ps,
        _mm512_storeu_si512,
    },
    mem::transmute,
    sync::OnceLock,
};

/// Whether the processor has it, and what functions of this module ask for beside it.
#[inline(always)]
pub(crate) fn are_here() -> bool {
    static ARE_HERE: OnceLock<bool> = OnceLock::new();
    *ARE_HERE.get_or_init(|| {
        macro_rules! all {
            ($($feature:tt),*) => { $(std::arch::is_x86_feature_detected!($feature) && !is_hidden($feature))&&* };
        }
        all!("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512bf16")
    })
}

/// Writes `x` to `dst` as [`encode_bf16`] rounds it.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(super) fn write(x: &[f32], dst: &mut [u8]) {
    let ((runs, rest), (codes, last)) = (x.as_chunks::<32>(), dst.as_chunks_mut::<64>());
    for (x, codes) in runs.iter().zip(codes) {
        // SAFETY: sixteen numbers each.
        store(unsafe { [_mm512_loadu_ps(x.as_ptr()), _mm512_loadu_ps(x[16..].as_ptr())] }, codes);
    }
    for (codes, &x) in last.as_chunks_mut().0.iter_mut().zip(rest) {
        *codes = encode_bf16(x).to_le_bytes();
    }
}

/// Stores 32 numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(crate) fn store([low, high]: [__m512; 2], codes: &mut [u8; 64]) {
    // SAFETY: 64 bytes; both types are as many plain bits.
    unsafe {
        let rounded = transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low));
        _mm512_storeu_si512(codes.as_mut_ptr().cast(), rounded);
    }
    if (_mm512_fpclass_ps_mask::<SUBNORMAL>(low) | _mm512_fpclass_ps_mask::<SUBNORMAL>(high)) != 0 {
        one_by_one([low, high], codes);
    }
}

/// What `_mm512_fpclass_ps_mask` calls subnormal numbers.
const SUBNORMAL: i32 = 1 << 5;

#[cold]
#[target_feature(enable = "avx512f")]
fn one_by_one(x: [__m512; 2], codes: &mut [u8; 64]) {
    for (x, codes) in x.into_iter().zip(codes.as_chunks_mut::<32>().0) {
        let mut numbers = [0.0; 16];
        // SAFETY: sixteen numbers.
        unsafe { _mm512_storeu_ps(numbers.as_mut_ptr(), x) };
        for (code, x) in codes.as_chunks_mut().0.iter_mut().zip(numbers) {
            *code = encode_bf16(x).to_le_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_rounded_as_step_by_step() {
        if !are_here() {
            return;
        }
        for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
            let x: Vec<f32> = (0..=u16::MAX).map(|high| f32::from_bits(u32::from(high) << 16 | low)).collect();
            // 31 are left over at the end of one of the runs.
            for x in [&x[..], &x[1..]] {
                let mut codes = vec![0; 2 * x.len()];
                // SAFETY: the features are here.
                unsafe { write(x, &mut codes) };
                for (code, x) in codes.as_chunks().0.iter().zip(x) {
                    assert_eq!(u16::from_le_bytes(*code), encode_bf16(*x), "{:#x}", x.to_bits());
                }
            }
        }
    }
}
