//! Rows of floats as bytes, as [`Acc::F32Q8`] permits: a scale for each run of 32 elements.
//!
//! ```text
//!   scale = largest magnitude / 127        code = nearest whole number to a / scale
//! ```
//! A run with a NaN or an infinity has such a scale, and so spoils every sum that it is part of. Its codes may be any.

use crate::simd::{Work, has_avx512, run_widest};
use kp_hal::op::{Acc, GemmSpec};
use std::arch::x86_64::{
    __m512, _mm_storeu_si128, _mm512_and_si512, _mm512_castps_si512, _mm512_cvtps_epi32, _mm512_cvtsepi32_epi8,
    _mm512_loadu_ps, _mm512_max_epu32, _mm512_mul_ps, _mm512_reduce_max_epu32, _mm512_set1_epi32, _mm512_set1_ps,
};

/// Elements of a run.
pub(crate) const RUN: usize = Acc::RUN as usize;

/// Runs of smaller numbers become zeros: the scale's inverse would overflow.
const LEAST: f32 = f32::from_bits((127 - 118) << 23);

/// Whether A may be rounded.
pub(crate) fn is_rounded(spec: &GemmSpec) -> bool {
    spec.acc == Acc::F32Q8
}

/// [`round`] on any processor, with the same results.
pub(crate) fn round_anywhere(numbers: &[[f32; RUN]], codes: &mut [[i8; RUN]], scales: &mut [f32]) {
    if has_avx512() {
        // SAFETY: it was just asked for.
        unsafe { round(numbers, codes, scales) }
    } else {
        run_widest(numbers.len() * RUN, Round { numbers, codes, scales });
    }
}

/// What [`round`] does, in ordinary Rust.
struct Round<'r> {
    numbers: &'r [[f32; RUN]],
    codes: &'r mut [[i8; RUN]],
    scales: &'r mut [f32],
}

impl Work for Round<'_> {
    #[inline(always)]
    fn run(self) {
        // Added to a number that is not far from 0, it leaves the nearest whole number in the lowest bits.
        const WHOLE: f32 = (3 << 22) as f32;
        for ((run, codes), scale) in self.numbers.iter().zip(self.codes).zip(self.scales) {
            let most = run.iter().fold(0, |most, x| most.max(x.to_bits() & i32::MAX as u32));
            *scale = scale_of(f32::from_bits(most));
            let by = 1.0 / *scale;
            for (code, x) in codes.iter_mut().zip(run) {
                *code = (x * by + WHOLE).to_bits() as i8;
            }
        }
    }
}

/// The scale of a run whose largest magnitude is `most`.
#[inline(always)]
fn scale_of(most: f32) -> f32 {
    if most < LEAST { 0.0 } else { most / 127.0 }
}

/// Rounds runs of `numbers` to `codes`, and tells the scale of each.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(crate) fn round(numbers: &[[f32; RUN]], codes: &mut [[i8; RUN]], scales: &mut [f32]) {
    let magnitudes = |x: __m512| _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(i32::MAX));
    for ((run, codes), scale) in numbers.iter().zip(codes).zip(scales) {
        // SAFETY: two vectors of numbers, as many codes.
        unsafe {
            let halves = [_mm512_loadu_ps(run.as_ptr()), _mm512_loadu_ps(run.as_ptr().add(RUN / 2))];
            // As whole numbers NaN is the largest of all.
            let most = _mm512_reduce_max_epu32(_mm512_max_epu32(magnitudes(halves[0]), magnitudes(halves[1])));
            let most = f32::from_bits(most);
            *scale = scale_of(most);
            let by = _mm512_set1_ps(1.0 / *scale);
            for (half, codes) in halves.into_iter().zip(codes.as_chunks_mut::<{ RUN / 2 }>().0) {
                let code = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(half, by)));
                _mm_storeu_si128(codes.as_mut_ptr().cast(), code);
            }
        }
    }
}
