//! What becomes of the codes of a line in vectors: numbers, the first and the last sixteen or those with even and odd places, and of numbers bf16.

use super::{
    codes::ELEMENTS,
    parts::{nearest, pairs as pairs_of, plain},
};
#[cfg(test)]
use crate::numbers;
use crate::{
    amx::ROW_BYTES,
    numbers::small::{self, Small},
};
#[cfg(test)]
use kp_hal::DType;
use std::arch::{
    asm,
    x86_64::{
        __m128i, __m256i, __m512, __m512i, __mmask16, _mm_loadu_si128, _mm256_loadu_si256, _mm512_and_si512,
        _mm512_broadcast_i32x4, _mm512_castsi512_ps, _mm512_cvtepi8_epi32, _mm512_cvtepi32_epi16, _mm512_cvtepi32_ps,
        _mm512_cvtepu8_epi16, _mm512_cvtepu8_epi32, _mm512_cvtepu16_epi32, _mm512_cvtph_ps, _mm512_loadu_si512,
        _mm512_mask_blend_epi16, _mm512_mask_mov_ps, _mm512_maskz_set1_epi32, _mm512_or_si512,
        _mm512_permutex2var_epi16, _mm512_permutexvar_epi16, _mm512_set1_epi16, _mm512_set1_epi32, _mm512_set1_ps,
        _mm512_setzero_si512, _mm512_shuffle_epi8, _mm512_slli_epi16, _mm512_slli_epi32, _mm512_srai_epi32,
        _mm512_srli_epi32, _mm512_srlv_epi16, _mm512_sub_ps, _mm512_test_epi16_mask,
    },
};

/// Numbers of bf16 by codes without their sign.
pub(crate) type Floats = [u16; 128];

pub(crate) static E4M3: Floats = floats(small::E4M3);
pub(crate) static E5M2: Floats = floats(small::E5M2);

const fn floats(small: Small) -> Floats {
    let (mut all, mut code) = ([0; 128], 0);
    while code < 128 {
        all[code] = (small.decode(code as u32).to_bits() >> 16) as u16;
        code += 1;
    }
    all
}

/// Numbers of bf16 whose sums are sixteen numbers, each in the upper half of a word; and which numbers count as 0, since there are none.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn parts<const N: usize>(numbers: __m512) -> ([__m512; N], __mmask16) {
    let (mut rest, special) = plain(numbers);
    let mut all = [rest; N];
    for part in &mut all {
        *part = nearest(rest);
        rest = _mm512_sub_ps(rest, *part);
    }
    (all, special)
}

/// Pairs of each part of two vectors. Not by a closure for each, which may become a function.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn all_pairs<const N: usize>(first: [__m512; N], second: [__m512; N]) -> [__m512i; N] {
    let mut all = [_mm512_setzero_si512(); N];
    for (part, pairs) in all.iter_mut().enumerate() {
        *pairs = pairs_of(first[part], second[part]);
    }
    all
}

/// Numbers rounded to nearest even, to bf16: `first`, then `last`. Numbers below 2⁻¹²⁶ become 0.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn rounded(first: __m512, last: __m512) -> __m512i {
    #[cfg(test)]
    if !std::arch::is_x86_feature_detected!("avx512bf16") {
        return rounded_elsewhere(first, last);
    }
    let both;
    // SAFETY: `amx::features` names none where the processor lacks it, and kernels that multiply in vectors need it. The intrinsic would not be compiled into functions for more of them.
    unsafe {
        asm!(
            "vcvtne2ps2bf16 {both}, {last}, {first}",
            both = lateout(zmm_reg) both,
            first = in(zmm_reg) first,
            last = in(zmm_reg) last,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    both
}

/// The same for tests where tiles are imitated.
#[cfg(test)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn rounded_elsewhere(first: __m512, last: __m512) -> __m512i {
    use std::arch::x86_64::_mm512_storeu_ps;
    let (mut numbers, mut line) = ([0.0_f32; ELEMENTS], [0_u8; ROW_BYTES]);
    // SAFETY: sixteen numbers each.
    unsafe {
        _mm512_storeu_ps(numbers.as_mut_ptr(), first);
        _mm512_storeu_ps(numbers[ELEMENTS / 2..].as_mut_ptr(), last);
    }
    numbers::write(DType::Bf16, &numbers, &mut line, 0, kp_hal::op::Overflow::Propagate);
    load(&line)
}

/// Numbers of the first half and of the last by turns.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn by_turns(line: __m512i) -> __m512i {
    const PLACES: [u16; ELEMENTS] = {
        let (mut places, mut i) = ([0; ELEMENTS], 0);
        while i < ELEMENTS {
            places[i] = (i / 2 + i % 2 * (ELEMENTS / 2)) as u16;
            i += 1;
        }
        places
    };
    // SAFETY: 64 bytes.
    _mm512_permutexvar_epi16(unsafe { _mm512_loadu_si512(PLACES.as_ptr().cast()) }, line)
}

/// The numbers of words of two of bf16.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn of_bf16(words: __m512i) -> [__m512; 2] {
    let odd = _mm512_and_si512(words, _mm512_set1_epi32(0xffff_0000_u32 as i32));
    [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(words)), _mm512_castsi512_ps(odd)]
}

/// Of whole numbers of 8 bits, the first and the last.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn eight<const SIGNED: bool>(codes: &[u8; ELEMENTS]) -> [__m512; 2] {
    let (first, last) = (load_16(&codes[..ELEMENTS / 2]), load_16(&codes[ELEMENTS / 2..]));
    let (first, last) = match SIGNED {
        true => (_mm512_cvtepi8_epi32(first), _mm512_cvtepi8_epi32(last)),
        false => (_mm512_cvtepu8_epi32(first), _mm512_cvtepu8_epi32(last)),
    };
    [_mm512_cvtepi32_ps(first), _mm512_cvtepi32_ps(last)]
}

/// Those with an even place, and with an odd one.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn eight_apart<const SIGNED: bool>(codes: &[u8; ELEMENTS]) -> [__m512; 2] {
    let pairs = _mm512_cvtepu16_epi32(load_32(codes));
    let (first, second) = (_mm512_slli_epi32::<24>(pairs), _mm512_slli_epi32::<16>(pairs));
    let (even, odd) = match SIGNED {
        true => (_mm512_srai_epi32::<24>(first), _mm512_srai_epi32::<24>(second)),
        false => (_mm512_srli_epi32::<24>(first), _mm512_srli_epi32::<24>(second)),
    };
    [_mm512_cvtepi32_ps(even), _mm512_cvtepi32_ps(odd)]
}

/// Numbers of bf16 of floats of 8 bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn float(table: &Floats, codes: &[u8; ELEMENTS]) -> __m512i {
    let words = _mm512_cvtepu8_epi16(load_32(codes));
    // SAFETY: four times 32 numbers.
    let part = |i: usize| unsafe { _mm512_loadu_si512(table[32 * i..][..32].as_ptr().cast()) };
    let lower = _mm512_permutex2var_epi16(part(0), words, part(1));
    let upper = _mm512_permutex2var_epi16(part(2), words, part(3));
    let is_upper = _mm512_test_epi16_mask(words, _mm512_set1_epi16(0x40));
    let magnitude = _mm512_mask_blend_epi16(is_upper, lower, upper);
    let sign = _mm512_and_si512(_mm512_slli_epi16::<8>(words), _mm512_set1_epi16(i16::MIN));
    _mm512_or_si512(magnitude, sign)
}

/// Of f16, the first and the last.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn f16(codes: &[u8; ROW_BYTES]) -> [__m512; 2] {
    let (both, _) = codes.as_chunks::<ELEMENTS>();
    [_mm512_cvtph_ps(load_32(&both[0])), _mm512_cvtph_ps(load_32(&both[1]))]
}

/// Those with an even place, and with an odd one.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn f16_apart(codes: &[u8; ROW_BYTES]) -> [__m512; 2] {
    let words = load(codes);
    let (even, odd) = (_mm512_cvtepi32_epi16(words), _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(words)));
    [_mm512_cvtph_ps(even), _mm512_cvtph_ps(odd)]
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn load_16(codes: &[u8]) -> __m128i {
    let codes = &codes[..ELEMENTS / 2];
    // SAFETY: sixteen bytes.
    unsafe { _mm_loadu_si128(codes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn load_32(codes: &[u8; ELEMENTS]) -> __m256i {
    // SAFETY: 32 bytes.
    unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn load(codes: &[u8; ROW_BYTES]) -> __m512i {
    // SAFETY: 64 bytes.
    unsafe { _mm512_loadu_si512(codes.as_ptr().cast()) }
}

/// One number for the first half of the lanes, one for the other.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn of_halves([first, last]: [f32; 2]) -> __m512 {
    _mm512_mask_mov_ps(_mm512_set1_ps(first), 0xff00, _mm512_set1_ps(last))
}

/// Words of which the lowest four bits are a code each, in order, and others are some bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn nibbles(codes: &[u8; ELEMENTS / 2]) -> __m512i {
    // Each byte twice, as the lower byte of a word.
    const TWICE: [u8; ROW_BYTES] = {
        let (mut places, mut i) = ([0x80; ROW_BYTES], 0);
        while i < ELEMENTS {
            places[2 * i] = (i / 2) as u8;
            i += 1;
        }
        places
    };
    let all = _mm512_broadcast_i32x4(load_16(codes));
    // SAFETY: 64 bytes.
    let twice = _mm512_shuffle_epi8(all, unsafe { _mm512_loadu_si512(TWICE.as_ptr().cast()) });
    // The upper code of the second of two.
    _mm512_srlv_epi16(twice, _mm512_set1_epi32(4 << 16))
}

/// Those codes as places among 32 numbers: the first half of the codes among the first sixteen, the others among the last.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn in_halves(nibbles: __m512i) -> __m512i {
    let last = _mm512_maskz_set1_epi32(0xff00, 0x10_0010);
    _mm512_or_si512(_mm512_and_si512(nibbles, _mm512_set1_epi32(0xf_000f)), last)
}
