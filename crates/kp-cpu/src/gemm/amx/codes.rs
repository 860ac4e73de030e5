//! Codes of 4, 8 and 16 bits of a contiguous row as lines of bf16.
//!
//! The sixteen values that codes of 4 bits can have are scaled once for each scale, and looked up; others are
//! scaled one by one, floats of 8 bits after a look-up. Each becomes one number of bf16, [rounded to nearest even, or the parts](bf16) that it is the sum of.

use super::parts::{nearest, pairs as pairs_of, plain};
use crate::{
    amx::ROW_BYTES,
    gemm::{
        few::{
            columns::Codes as Columns,
            dots::SHARE,
            lists::{Lists, can_list},
        },
        side::{LINE, Side},
    },
    numbers::{
        self,
        small::{self, Small},
    },
};
use kp_hal::{
    DType,
    op::{Matrix, Scheme},
};
use std::{
    arch::x86_64::{
        __m256i, __m512, __m512i, __mmask16, _CMP_UNORD_Q, _mm_loadu_si128, _mm256_loadu_si256, _mm512_add_epi32,
        _mm512_and_si512, _mm512_castps_si512, _mm512_castsi512_ps, _mm512_cmp_ps_mask, _mm512_cvtepi32_epi16,
        _mm512_cvtepi32_ps, _mm512_cvtepu8_epi16, _mm512_cvtepu8_epi32, _mm512_cvtepu16_epi32, _mm512_cvtph_ps,
        _mm512_loadu_ps, _mm512_loadu_si512, _mm512_mask_blend_epi16, _mm512_mask_mov_epi32, _mm512_mask_mov_ps,
        _mm512_maskz_mov_epi16, _mm512_mul_ps, _mm512_or_si512, _mm512_permutex2var_epi16, _mm512_permutexvar_epi16,
        _mm512_set1_epi16, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setr_epi32, _mm512_setzero_si512,
        _mm512_slli_epi16, _mm512_slli_epi32, _mm512_srai_epi32, _mm512_srli_epi32, _mm512_sub_ps,
        _mm512_test_epi16_mask,
    },
    array,
    ops::Range,
};

/// Elements of a line.
const ELEMENTS: usize = ROW_BYTES / 2;

/// Scales of [`LINE`] elements.
pub(crate) const ENTRIES: usize = LINE / SHARE;

/// Codes of one type, and whether scales and zero points that change along k are theirs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Codes {
    kind: Kind,
    scaled: bool,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Four bits, that stand for these numbers.
    Four([f32; 16]),
    /// Eight bits of a whole number.
    Eight {
        signed: bool,
    },
    /// Eight bits, of which seven are looked up, and a sign.
    Float(&'static Floats),
    Bf16,
    F16,
}

/// Numbers of bf16 by codes without their sign.
type Floats = [u16; 128];

static E4M3: Floats = floats(small::E4M3);
static E5M2: Floats = floats(small::E5M2);

const fn floats(small: Small) -> Floats {
    let (mut all, mut code) = ([0; 128], 0);
    while code < 128 {
        all[code] = (small.decode(code as u32).to_bits() >> 16) as u16;
        code += 1;
    }
    all
}

impl Codes {
    /// The codes of `matrix`, of `inner` elements a row, if they are such and their scales, if `scaled`, can be listed.
    pub(crate) fn of(matrix: &Matrix, inner: u32, scaled: bool) -> Option<Self> {
        let dtype = matrix.dtype();
        let kind = match dtype {
            DType::I8 => Kind::Eight { signed: true },
            DType::U8 => Kind::Eight { signed: false },
            DType::E4m3 => Kind::Float(&E4M3),
            DType::E5m2 => Kind::Float(&E5M2),
            DType::Bf16 if matrix.format.scheme == Scheme::None => Kind::Bf16,
            DType::F16 if matrix.format.scheme == Scheme::None => Kind::F16,
            _ if dtype.bits() == 4 => {
                let codes: [u8; 8] = array::from_fn(|i| ((2 * i) | ((2 * i + 1) << 4)) as u8);
                let mut values = [0.0; 16];
                numbers::read(dtype, &codes, 0, &mut values);
                Kind::Four(values)
            }
            _ => return None,
        };
        (!scaled || can_list(matrix, inner)).then_some(Self { kind, scaled })
    }

    /// Cycles that a code takes to become part of a line, as measured from memory on an Emerald Rapids core.
    pub(crate) fn cycles(&self) -> f64 {
        match (self.kind, self.scaled) {
            (Kind::Float(_), false) => 0.6,
            (Kind::Four(_), _) => 0.7,
            (_, false) => 0.3,
            (_, true) => 0.6,
        }
    }

    /// The lines of elements `inner` of outer row `o`, in order, and zeros; `inner` starts at a line's first element.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    pub(crate) fn lines(
        &self,
        side: &Side<'_>,
        (batch, o): (usize, usize),
        inner: Range<usize>,
        mut store: impl FnMut(usize, __m512i),
    ) {
        let (mut scales, mut zeros) = ([1.0; ENTRIES], [0.0; ENTRIES]);
        for first in inner.clone().step_by(LINE) {
            let some = first..(first + LINE).min(inner.end);
            self.scales(side, batch, o..o + 1, some.clone(), [&mut scales, &mut zeros]);
            let line = (first - inner.start) / ELEMENTS;
            let codes = Columns::of(side, batch, some.clone()).column(o);
            self.some_lines::<1, true>(codes, [&scales, &zeros], |i, [bf16]| {
                let there = some.len() - i * ELEMENTS;
                // The last byte may hold something else's code.
                let rest = || _mm512_maskz_mov_epi16(!(u32::MAX << there), bf16);
                store(line + i, if there < ELEMENTS { rest() } else { bf16 });
            });
        }
    }

    /// Reads scales and zero points of elements `inner` of outer rows `outer`, at most [`LINE`] of each: [`ENTRIES`] for each row, 1 and 0 where there
    /// are none. `inner` starts at a multiple of [`SHARE`].
    pub(crate) fn scales(
        &self,
        side: &Side<'_>,
        batch: usize,
        outer: Range<usize>,
        inner: Range<usize>,
        [scales, zeros]: [&mut [f32]; 2],
    ) {
        if !self.scaled {
            scales.fill(1.0);
            zeros.fill(0.0);
            return;
        }
        let global = if side.global.is_empty() { 1.0 } else { numbers::get(DType::F32, side.global, 0) };
        let (lists, count) = (Lists::new(side, batch, inner.start, SHARE), inner.len().div_ceil(SHARE));
        let rows = scales.as_chunks_mut::<ENTRIES>().0.iter_mut().zip(zeros.as_chunks_mut::<ENTRIES>().0);
        for (o, (scales, zeros)) in outer.zip(rows) {
            lists.scales(o, &mut scales[..count]);
            scales[..count].iter_mut().for_each(|scale| *scale *= global);
            if side.matrix.format.has_zero() {
                lists.zeros(o, &mut zeros[..count]);
            } else {
                zeros.fill(0.0);
            }
            // Past the last, no number of an earlier part, which may be none.
            scales[count..].fill(1.0);
            zeros[count..].fill(0.0);
        }
    }

    /// The lines of some codes with such scales and zero points, in order. What is past the end are some numbers. Answers whether a number was
    /// [special](super::parts::is_special) and counts as 0, unless numbers are `ROUNDED`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    pub(crate) fn some_lines<const N: usize, const ROUNDED: bool>(
        &self,
        codes: &[u8],
        [scales, zeros]: [&[f32]; 2],
        mut store: impl FnMut(usize, [__m512i; N]),
    ) -> bool {
        let mut special = 0;
        match self.kind {
            Kind::Four(values) => {
                let by = scales.as_chunks::<2>().0.iter().zip(zeros.as_chunks::<2>().0);
                // SAFETY: sixteen numbers.
                let values = unsafe { _mm512_loadu_ps(values.as_ptr()) };
                let (mut known, mut table) = (None, [_mm512_setzero_si512(); N]);
                let (whole, rest) = codes.as_chunks::<{ ELEMENTS / 2 }>();
                let mut last = [0; ELEMENTS / 2];
                last[..rest.len()].copy_from_slice(rest);
                for (i, (&scales, &zeros)) in by.enumerate().take(codes.len().div_ceil(ELEMENTS / 2)) {
                    let codes = whole.get(i).unwrap_or(&last);
                    let wanted = [scales, zeros].map(|two| two.map(f32::to_bits));
                    if known != Some(wanted) {
                        let half = |i: usize| bf16::<N, ROUNDED>(scaled(values, scales[i], zeros[i]));
                        let (first, some) = half(0);
                        let is_both = wanted.iter().all(|[first, last]| first == last);
                        let (last, more) = if is_both { (first, some) } else { half(1) };
                        table = array::from_fn(|part| pairs_of(first[part], last[part]));
                        special |= some | more;
                        known = Some(wanted);
                    }
                    let places = places(codes);
                    store(i, table.map(|table| _mm512_permutexvar_epi16(places, table)));
                }
            }
            // A loop for each kind, so that no line asks.
            Kind::Eight { signed: true } => {
                let numbers = |codes: &_| eight::<true>(codes);
                special |= self.each_line::<N, ROUNDED, ELEMENTS>(codes, [scales, zeros], true, numbers, store);
            }
            Kind::Eight { signed: false } => {
                let numbers = |codes: &_| eight::<false>(codes);
                special |= self.each_line::<N, ROUNDED, ELEMENTS>(codes, [scales, zeros], true, numbers, store);
            }
            // bf16 holds them, if they are to be rounded; but what is infinite has no parts.
            Kind::Float(table) => {
                let numbers = |codes: &_| float(table, codes);
                special |= self.each_line::<N, ROUNDED, ELEMENTS>(codes, [scales, zeros], ROUNDED, numbers, store);
            }
            Kind::Bf16 => {
                let numbers = |codes: &_| of_bf16(load(codes));
                special |= self.each_line::<N, ROUNDED, ROW_BYTES>(codes, [scales, zeros], ROUNDED, numbers, store);
            }
            Kind::F16 => {
                let numbers = |codes: &_| half(codes);
                special |= self.each_line::<N, ROUNDED, ROW_BYTES>(codes, [scales, zeros], false, numbers, store);
            }
        }
        special != 0
    }

    /// Those of codes of 8 or 16 bits, of which a line has so many bytes: `numbers` makes numbers of a line's codes, those with an even place and
    /// those with an odd one. Without scales some `are_exact` in bf16.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    fn each_line<const N: usize, const ROUNDED: bool, const BYTES: usize>(
        &self,
        codes: &[u8],
        [scales, zeros]: [&[f32]; 2],
        are_exact: bool,
        numbers: impl Fn(&[u8; BYTES]) -> [__m512; 2],
        mut store: impl FnMut(usize, [__m512i; N]),
    ) -> __mmask16 {
        let (scales, zeros) = (scales.as_chunks::<2>().0, zeros.as_chunks::<2>().0);
        let is_exact = are_exact && !self.scaled;
        let (whole, rest) = codes.as_chunks::<BYTES>();
        let mut last = [0; BYTES];
        last[..rest.len()].copy_from_slice(rest);
        let mut special = 0;
        // What fills no line was copied, so that one loop has all, whose body is then no function.
        for i in 0..codes.len().div_ceil(BYTES) {
            let codes = whole.get(i).unwrap_or(&last);
            let [even, odd] = numbers(codes);
            if is_exact {
                let (line, none) = (pairs_of(even, odd), _mm512_setzero_si512());
                store(i, array::from_fn(|part| if part == 0 { line } else { none }));
                continue;
            }
            let scaled = |x: __m512| _mm512_mul_ps(_mm512_sub_ps(x, of_halves(zeros[i])), of_halves(scales[i]));
            let (even, odd) = if self.scaled { (scaled(even), scaled(odd)) } else { (even, odd) };
            let ((even, some), (odd, more)) = (bf16::<N, ROUNDED>(even), bf16::<N, ROUNDED>(odd));
            store(i, array::from_fn(|part| pairs_of(even[part], odd[part])));
            special |= some | more;
        }
        special
    }
}

/// Numbers of bf16, each in the upper half of a word: the nearest to each of sixteen numbers, to even, or those that these are the sums of; and
/// which numbers count as 0 then, since they have none.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn bf16<const N: usize, const ROUNDED: bool>(numbers: __m512) -> ([__m512; N], __mmask16) {
    if ROUNDED {
        return ([rounded(numbers); N], 0);
    }
    let (mut rest, special) = plain(numbers);
    let mut all = [rest; N];
    for part in &mut all {
        *part = nearest(rest);
        rest = _mm512_sub_ps(rest, *part);
    }
    (all, special)
}

/// The numbers of words of two of bf16.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn of_bf16(words: __m512i) -> [__m512; 2] {
    let odd = _mm512_and_si512(words, _mm512_set1_epi32(0xffff_0000_u32 as i32));
    [_mm512_slli_epi32::<16>(words), odd].map(|bits| _mm512_castsi512_ps(bits))
}

/// Of whole numbers of 8 bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn eight<const SIGNED: bool>(codes: &[u8; ELEMENTS]) -> [__m512; 2] {
    let pairs = _mm512_cvtepu16_epi32(load_32(codes));
    let (first, second) = (_mm512_slli_epi32::<24>(pairs), _mm512_slli_epi32::<16>(pairs));
    match SIGNED {
        true => [first, second].map(|byte| _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(byte))),
        false => [first, second].map(|byte| _mm512_cvtepi32_ps(_mm512_srli_epi32::<24>(byte))),
    }
}

/// Of floats of 8 bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn float(table: &Floats, codes: &[u8; ELEMENTS]) -> [__m512; 2] {
    let words = _mm512_cvtepu8_epi16(load_32(codes));
    // SAFETY: four times 32 numbers.
    let part = |i: usize| unsafe { _mm512_loadu_si512(table[32 * i..][..32].as_ptr().cast()) };
    let lower = _mm512_permutex2var_epi16(part(0), words, part(1));
    let upper = _mm512_permutex2var_epi16(part(2), words, part(3));
    let is_upper = _mm512_test_epi16_mask(words, _mm512_set1_epi16(0x40));
    let magnitude = _mm512_mask_blend_epi16(is_upper, lower, upper);
    let sign = _mm512_and_si512(_mm512_slli_epi16::<8>(words), _mm512_set1_epi16(i16::MIN));
    of_bf16(_mm512_or_si512(magnitude, sign))
}

/// Of f16.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn half(codes: &[u8; ROW_BYTES]) -> [__m512; 2] {
    let words = load(codes);
    [words, _mm512_srli_epi32::<16>(words)].map(|halves| _mm512_cvtph_ps(_mm512_cvtepi32_epi16(halves)))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn load_32(codes: &[u8; ELEMENTS]) -> __m256i {
    // SAFETY: 32 bytes.
    unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn load(codes: &[u8; ROW_BYTES]) -> __m512i {
    // SAFETY: 64 bytes.
    unsafe { _mm512_loadu_si512(codes.as_ptr().cast()) }
}

/// One number for the first half of the lanes, one for the other.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn of_halves([first, last]: [f32; 2]) -> __m512 {
    _mm512_mask_mov_ps(_mm512_set1_ps(first), 0xff00, _mm512_set1_ps(last))
}

/// Which of 32 numbers each of 32 codes is: one with an even place for the first 16 codes, one with an odd place for the others.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn places(codes: &[u8; ELEMENTS / 2]) -> __m512i {
    // SAFETY: sixteen bytes.
    let pairs = _mm512_cvtepu8_epi32(unsafe { _mm_loadu_si128(codes.as_ptr().cast()) });
    let each = _mm512_or_si512(_mm512_slli_epi32::<1>(pairs), _mm512_slli_epi32::<13>(pairs));
    const ODD: i32 = 0x1_0001;
    let odd = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, ODD, ODD, ODD, ODD, ODD, ODD, ODD, ODD);
    _mm512_or_si512(_mm512_and_si512(each, _mm512_set1_epi32(0x1e_001e)), odd)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn scaled(numbers: __m512, scale: f32, zero: f32) -> __m512 {
    _mm512_mul_ps(_mm512_sub_ps(numbers, _mm512_set1_ps(zero)), _mm512_set1_ps(scale))
}

/// Numbers rounded to bf16, in the upper half of each word.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn rounded(numbers: __m512) -> __m512 {
    let bits = _mm512_castps_si512(numbers);
    let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
    let rounded = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff));
    let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(numbers, numbers);
    _mm512_castsi512_ps(_mm512_mask_mov_epi32(rounded, is_nan, _mm512_set1_epi32(0x7fc0_0000)))
}
