//! Scales and zero points of part of an outer row as numbers, one for each so many inner elements.

use super::dots::SHARE;
use crate::{gemm::side::Side, numbers};
use kp_hal::{
    DType,
    op::{Matrix, ScaleLayout},
};
use std::arch::x86_64::{
    _MM_HINT_T0, _mm_cmpge_epu8_mask, _mm_loadu_si128, _mm_prefetch, _mm_set1_epi8, _mm256_cvtepu8_epi16,
    _mm256_loadu_ps, _mm256_loadu_si256, _mm256_slli_epi16, _mm512_castps256_ps512, _mm512_castsi512_ps,
    _mm512_cmpeq_epi32_mask, _mm512_cvtepu8_epi32, _mm512_cvtph_ps, _mm512_mask_mov_ps, _mm512_mask_or_epi32,
    _mm512_mul_ps, _mm512_permutexvar_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setr_epi32, _mm512_slli_epi32,
    _mm512_storeu_ps, _mm512_testn_epi32_mask,
};

/// Whether lists can tell the scales of `matrix`, of `inner` elements a row, that change along them.
pub(crate) fn can_list(matrix: &Matrix, inner: u32) -> bool {
    (matrix.format.block().1 as usize).is_multiple_of(SHARE) && (inner as usize).is_multiple_of(SHARE)
}

/// The scales, without the global one, of outer row `o` from inner element `first` on, one for each `share` elements,
/// which divides both `first` and what a scale is for; 1 past the end.
///
/// # Safety
/// The processor has AVX-512 F, BW and VL.
pub(crate) unsafe fn scales(side: &Side<'_>, batch: usize, o: usize, first: usize, share: usize, out: &mut [f32]) {
    let dtype = side.matrix.format.scale_dtype().expect("it has scales");
    // SAFETY: the caller's promise.
    unsafe { list(side, (dtype, side.scales), (batch, o, first), share, 1.0, out) }
}

/// The zero points alike; 0 past the end.
///
/// # Safety
/// The processor has AVX-512 F, BW and VL.
pub(crate) unsafe fn zeros(side: &Side<'_>, batch: usize, o: usize, first: usize, share: usize, out: &mut [f32]) {
    // SAFETY: the caller's promise.
    unsafe { list(side, (DType::U8, side.zeros), (batch, o, first), share, 0.0, out) }
}

/// # Safety
/// The processor has AVX-512 F, BW and VL.
unsafe fn list(
    side: &Side<'_>,
    (dtype, src): (DType, &[u8]),
    (batch, o, first): (usize, usize, usize),
    share: usize,
    past: f32,
    out: &mut [f32],
) {
    let format = side.matrix.format;
    let (outer, inner) = format.block();
    let inner = inner as usize;
    let shape = (side.outer, side.inner);
    let there = (side.inner as usize).saturating_sub(first).div_ceil(share).min(out.len());
    let (out, rest) = out.split_at_mut(there);
    rest.fill(past);
    if out.is_empty() {
        return;
    }
    let blocks = first / inner..(first + there * share - 1) / inner + 1;
    let whole = batch * format.scale_count(shape.0, shape.1) as usize;
    let place = |block: usize| whole + format.scale_index((o as u32 / outer, block as u32), shape) as usize;
    if format.scales == ScaleLayout::Inner {
        let numbers = &mut out[..blocks.len()];
        // SAFETY: the caller's promise.
        unsafe { read(dtype, src, place(blocks.start), numbers) };
    } else {
        for (block, out) in blocks.clone().zip(&mut *out) {
            *out = numbers::get(dtype, src, place(block));
        }
    }
    if inner > share {
        // SAFETY: the caller's promise.
        unsafe { spread(out, first / share, inner / share) };
    }
}

/// How far ahead lists are asked for, in bytes: some columns' worth.
const AHEAD: usize = 2048;

/// Element `start` of `src` and those after it.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn read(dtype: DType, src: &[u8], start: usize, out: &mut [f32]) {
    let (vectors, rest) = out.as_chunks_mut::<16>();
    let done = 16 * vectors.len();
    // What some other column will read soon.
    let bytes = dtype.bytes(start as u64) as usize..dtype.bytes((start + done) as u64) as usize;
    for at in bytes.step_by(64) {
        _mm_prefetch::<_MM_HINT_T0>(src.as_ptr().wrapping_add(at + AHEAD).cast());
    }
    match dtype {
        DType::F16 => {
            let src = &src[2 * start..2 * (start + done)];
            for (out, codes) in vectors.iter_mut().zip(src.as_chunks::<32>().0) {
                // SAFETY: sixteen codes, sixteen numbers.
                unsafe {
                    _mm512_storeu_ps(out.as_mut_ptr(), _mm512_cvtph_ps(_mm256_loadu_si256(codes.as_ptr().cast())))
                };
            }
        }
        DType::E8m0 => {
            for (out, codes) in vectors.iter_mut().zip(src[start..start + done].as_chunks::<16>().0) {
                // SAFETY: sixteen codes.
                let code = _mm512_cvtepu8_epi32(unsafe { _mm_loadu_si128(codes.as_ptr().cast()) });
                let bits = _mm512_slli_epi32::<23>(code);
                // The bit below makes 2⁻¹²⁷ of the first code, and of the last, which is infinity so far, NaN.
                let ends = _mm512_testn_epi32_mask(code, code) | _mm512_cmpeq_epi32_mask(code, _mm512_set1_epi32(255));
                let bits = _mm512_mask_or_epi32(bits, ends, bits, _mm512_set1_epi32(1 << 22));
                // SAFETY: sixteen numbers.
                unsafe { _mm512_storeu_ps(out.as_mut_ptr(), _mm512_castsi512_ps(bits)) };
            }
        }
        DType::Ue4m3 => {
            for (out, codes) in vectors.iter_mut().zip(src[start..start + done].as_chunks::<16>().0) {
                // SAFETY: sixteen codes.
                let code = unsafe { _mm_loadu_si128(codes.as_ptr().cast()) };
                let no_number = _mm_cmpge_epu8_mask(code, _mm_set1_epi8(0x7f));
                // As an f16 it has 8 too little in its exponent.
                let small = _mm512_cvtph_ps(_mm256_slli_epi16::<7>(_mm256_cvtepu8_epi16(code)));
                let number = _mm512_mul_ps(small, _mm512_set1_ps(256.0));
                let number = _mm512_mask_mov_ps(number, no_number, _mm512_set1_ps(f32::NAN));
                // SAFETY: sixteen numbers.
                unsafe { _mm512_storeu_ps(out.as_mut_ptr(), number) };
            }
        }
        _ => return numbers::read(dtype, src, start, out),
    }
    for (i, out) in rest.iter_mut().enumerate() {
        *out = numbers::get(dtype, src, start + done + i);
    }
}

/// Gives each of the numbers at the front of `out` its `times` places; the first of all has been served for `first` of
/// its own and earlier ones.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn spread(out: &mut [f32], first: usize, times: usize) {
    let from = |i: usize| (first + i) / times - first / times;
    let mut end = out.len();
    if times.is_power_of_two() && first.is_multiple_of(times) {
        let count = _mm512_set1_epi32(times.trailing_zeros() as i32);
        let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let source = std::arch::x86_64::_mm512_srlv_epi32(lanes, count);
        // From the back, so that no number is overwritten before it has been read.
        let vectors = out.len() / 16;
        for i in (vectors * 16..out.len()).rev() {
            out[i] = out[from(i)];
        }
        for v in (0..vectors).rev() {
            let at = 16 * v / times;
            let vector = if times >= 16 {
                _mm512_set1_ps(out[at])
            } else {
                // SAFETY: eight numbers; of `out` there are at least sixteen more than `at`.
                let numbers = unsafe { _mm256_loadu_ps(out[at..at + 8].as_ptr()) };
                _mm512_permutexvar_ps(source, _mm512_castps256_ps512(numbers))
            };
            // SAFETY: sixteen numbers.
            unsafe { _mm512_storeu_ps(out[16 * v..16 * v + 16].as_mut_ptr(), vector) };
        }
        end = 0;
    }
    for i in (0..end).rev() {
        out[i] = out[from(i)];
    }
}
