//! Rows of bf16 in registers: f32 rounded to them by the instruction for it.
//!
//! It takes subnormal numbers for zeros, as its definition says, so a run that has one is rounded step by step.

use super::small::encode_bf16;
use crate::{
    caps::is_hidden,
    memory::{LINE, stream},
};
use std::{
    arch::x86_64::{
        __m512, __m512bh, __m512i, _mm256_loadu_si256, _mm512_castsi512_ps, _mm512_cvtepu16_epi32, _mm512_cvtne2ps_pbh,
        _mm512_fpclass_ps_mask, _mm512_loadu_ps, _mm512_slli_epi32, _mm512_storeu_ps, _mm512_storeu_si512,
    },
    mem::transmute,
    sync::OnceLock,
};

/// Numbers of a run, two vectors of them, whose codes are a line.
pub(crate) const RUN: usize = 32;

/// A run as codes.
pub(crate) type Codes = [u8; LINE];

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
    let ((runs, rest), (codes, last)) = (x.as_chunks(), dst.as_chunks_mut());
    for (x, codes) in runs.iter().zip(codes) {
        store(vectors(x), codes);
    }
    for (codes, &x) in last.as_chunks_mut().0.iter_mut().zip(rest) {
        *codes = encode_bf16(x).to_le_bytes();
    }
}

/// A row of codes to write.
pub(crate) struct Row<'a> {
    pub(crate) codes: &'a mut [u8],
    /// Past the caches.
    pub(crate) streams: bool,
}

impl Row<'_> {
    /// Writes run after run what `of` makes of its number, and of what `last` makes as much as is left.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    pub(crate) fn write(self, of: impl Fn(usize) -> [__m512; 2], last: impl FnOnce() -> [__m512; 2]) {
        let (runs, rest) = self.codes.as_chunks_mut();
        if self.streams {
            let mut some = [[0; LINE]; SOME];
            for (t, past) in runs.chunks_mut(SOME).enumerate() {
                let some = &mut some[..past.len()];
                some.iter_mut().enumerate().for_each(|(i, codes)| store(of(SOME * t + i), codes));
                stream(some.as_flattened(), past.as_flattened_mut());
            }
        } else {
            runs.iter_mut().enumerate().for_each(|(i, codes)| store(of(i), codes));
        }
        if !rest.is_empty() {
            let mut codes = [0; LINE];
            store(last(), &mut codes);
            rest.copy_from_slice(&codes[..rest.len()]);
        }
    }
}

/// Runs that are streamed together.
const SOME: usize = 8;

/// Stores a run.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn store([low, high]: [__m512; 2], codes: &mut Codes) {
    // SAFETY: 64 bytes; both types are as many plain bits.
    unsafe {
        let rounded = transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low));
        _mm512_storeu_si512(codes.as_mut_ptr().cast(), rounded);
    }
    if (_mm512_fpclass_ps_mask::<SUBNORMAL>(low) | _mm512_fpclass_ps_mask::<SUBNORMAL>(high)) != 0 {
        one_by_one([low, high], codes);
    }
}

/// The numbers that codes stand for.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn widened(codes: &Codes) -> [__m512; 2] {
    let (low, high) = codes.split_at(LINE / 2);
    [half(low), half(high)]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn half(codes: &[u8]) -> __m512 {
    assert_eq!(codes.len(), LINE / 2);
    // SAFETY: sixteen codes.
    let codes = unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) };
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(codes)))
}

/// The number that a code stands for.
#[inline(always)]
pub(crate) fn number(code: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(code)) << 16)
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn vectors(x: &[f32; RUN]) -> [__m512; 2] {
    // SAFETY: sixteen numbers each.
    unsafe { [_mm512_loadu_ps(x.as_ptr()), _mm512_loadu_ps(x[RUN / 2..].as_ptr())] }
}

/// What there is of a run, and `pad`.
pub(crate) fn filled<T: Copy, const N: usize>(there: &[T], pad: T) -> [T; N] {
    let mut all = [pad; N];
    all[..there.len()].copy_from_slice(there);
    all
}

/// What `_mm512_fpclass_ps_mask` calls subnormal numbers.
const SUBNORMAL: i32 = 1 << 5;

#[cold]
#[target_feature(enable = "avx512f")]
fn one_by_one(x: [__m512; 2], codes: &mut Codes) {
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
