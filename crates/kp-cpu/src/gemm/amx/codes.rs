//! Codes of 4, 8 and 16 bits of a contiguous row as lines of bf16.
//!
//! The sixteen values that codes of 4 bits can have are scaled once for each scale, and looked up; others are
//! scaled one by one, floats of 8 bits after a look-up. Each becomes one number of bf16, [rounded to nearest even, or the parts](bf16) that it is the sum of.

use super::{
    lines::BLOCK,
    parts::{nearest, pairs as pairs_of, plain},
};
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
    arch::{
        asm,
        x86_64::{
            __m128i, __m256i, __m512, __m512i, __mmask16, _mm_loadu_si128, _mm256_loadu_si256, _mm512_and_si512,
            _mm512_castsi512_ps, _mm512_cvtepi8_epi32, _mm512_cvtepi32_epi16, _mm512_cvtepi32_ps, _mm512_cvtepu8_epi16,
            _mm512_cvtepu8_epi32, _mm512_cvtepu16_epi32, _mm512_cvtph_ps, _mm512_loadu_ps, _mm512_loadu_si512,
            _mm512_mask_blend_epi16, _mm512_mask_mov_ps, _mm512_maskz_mov_epi16, _mm512_maskz_set1_epi32,
            _mm512_mul_ps, _mm512_or_si512, _mm512_permutex2var_epi16, _mm512_permutexvar_epi16, _mm512_set1_epi16,
            _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_si512, _mm512_slli_epi16, _mm512_slli_epi32,
            _mm512_srai_epi32, _mm512_srli_epi32, _mm512_sub_ps, _mm512_test_epi16_mask,
        },
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
    has_zeros: bool,
    /// Elements that share a scale.
    share: usize,
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
        let has_zeros = scaled && matrix.format.has_zero();
        (!scaled || can_list(matrix, inner)).then_some(Self {
            kind,
            scaled,
            has_zeros,
            share: matrix.format.block().1 as usize,
        })
    }

    /// Cycles that a code takes to become part of a line, as measured from memory on an Emerald Rapids core.
    pub(crate) fn cycles(&self) -> f64 {
        match (self.kind, self.scaled) {
            (Kind::Float(_), false) => 0.6,
            (Kind::Four(_), _) => 0.6,
            (_, false) => 0.3,
            (_, true) => 0.5,
        }
    }

    /// The lines of elements `inner` of outer rows `outer`, a block at most, with the number of the row among them and of the line, and zeros;
    /// `inner` starts at a line's first element. `before` is called before each row.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    pub(crate) fn lines(
        &self,
        side: &Side<'_>,
        batch: usize,
        (outer, inner): (Range<usize>, Range<usize>),
        mut before: impl FnMut(),
        mut store: impl FnMut(usize, usize, __m512i),
    ) {
        let (mut scales, mut zeros) = ([1.0; BLOCK * ENTRIES], [0.0; BLOCK * ENTRIES]);
        for first in inner.clone().step_by(LINE) {
            let some = first..(first + LINE).min(inner.end);
            self.scales(side, batch, outer.clone(), some.clone(), [&mut scales, &mut zeros]);
            let line = (first - inner.start) / ELEMENTS;
            let columns = Columns::of(side, batch, some.clone());
            for (row, o) in outer.clone().enumerate() {
                before();
                let by = [&scales[row * ENTRIES..], &zeros[row * ENTRIES..]];
                self.some_lines::<1, true>(columns.column(o), by, |i, [bf16]| {
                    let there = some.len() - i * ELEMENTS;
                    // The last byte may hold something else's code.
                    let rest = || _mm512_maskz_mov_epi16(!(u32::MAX << there), bf16);
                    store(row, line + i, if there < ELEMENTS { rest() } else { bf16 });
                });
            }
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
        let (scales, zeros) = (scales.as_chunks_mut::<ENTRIES>().0, zeros.as_chunks_mut::<ENTRIES>().0);
        for (row, o) in outer.enumerate() {
            if row > 0 && !o.is_multiple_of(side.matrix.format.block().0 as usize) {
                // Those of the row before.
                (scales[row], zeros[row]) = (scales[row - 1], zeros[row - 1]);
                continue;
            }
            let (scales, zeros) = (&mut scales[row], &mut zeros[row]);
            lists.scales(o, &mut scales[..count]);
            if global != 1.0 {
                scales[..count].iter_mut().for_each(|scale| *scale *= global);
            }
            if self.has_zeros {
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
        by: [&[f32]; 2],
        mut store: impl FnMut(usize, [__m512i; N]),
    ) -> bool {
        let mut special = 0;
        match self.kind {
            Kind::Four(values) => {
                let (scales, zeros) = (by[0].as_chunks::<2>().0, by[1].as_chunks::<2>().0);
                // SAFETY: sixteen numbers.
                let values = unsafe { _mm512_loadu_ps(values.as_ptr()) };
                let (mut known, mut table) = (None, [_mm512_setzero_si512(); N]);
                // Whether both halves of a line have one scale, and each line its own: asked of each line, that is seldom foreseen.
                let is_one = !self.scaled || self.share.is_multiple_of(ELEMENTS);
                let is_new = self.scaled && self.share <= ELEMENTS;
                let (whole, rest) = codes.as_chunks::<{ ELEMENTS / 2 }>();
                let mut end = [0; ELEMENTS / 2];
                end[..rest.len()].copy_from_slice(rest);
                // No closure has the body, in which the table stays in registers.
                let by = scales.iter().zip(zeros).enumerate().take(codes.len().div_ceil(ELEMENTS / 2));
                for (i, (&scales, &zeros)) in by {
                    let codes = whole.get(i).unwrap_or(&end);
                    let wanted = [scales, zeros].map(|two| two.map(f32::to_bits));
                    if is_new || known != Some(wanted) {
                        let first = self.scaled_by(values, scales[0], zeros[0]);
                        let last = if is_one { first } else { self.scaled_by(values, scales[1], zeros[1]) };
                        if ROUNDED {
                            table = [rounded(first, last); N];
                        } else {
                            let (first, some) = parts::<N>(first);
                            let (last, more) = if is_one { (first, some) } else { parts::<N>(last) };
                            table = all_pairs(first, last);
                            special |= some | more;
                        }
                        known = Some(wanted);
                    }
                    let places = places::<ROUNDED>(codes);
                    let mut line = table;
                    for part in &mut line {
                        *part = _mm512_permutexvar_epi16(places, *part);
                    }
                    store(i, line);
                }
            }
            // A loop for each kind, so that no line asks.
            Kind::Eight { signed: true } if ROUNDED => {
                self.rounded_lines::<N, _, true>(codes, by, |codes: &_| eight::<true>(codes), store);
            }
            Kind::Eight { signed: false } if ROUNDED => {
                self.rounded_lines::<N, _, true>(codes, by, |codes: &_| eight::<false>(codes), store);
            }
            Kind::F16 if ROUNDED => self.rounded_lines::<N, _, true>(codes, by, |codes: &_| f16(codes), store),
            Kind::Bf16 if ROUNDED => {
                self.rounded_lines::<N, _, false>(codes, by, |codes: &_| of_bf16(load(codes)), store);
            }
            Kind::Float(table) if ROUNDED && !self.scaled => {
                each(codes, |i, codes| store(i, [float(table, codes); N]));
            }
            Kind::Float(table) if ROUNDED => {
                self.rounded_lines::<N, _, false>(codes, by, |codes: &_| of_bf16(float(table, codes)), store);
            }
            Kind::Eight { signed: true } => {
                special |= self.lines_of_parts(codes, by, true, |codes: &_| eight_apart::<true>(codes), store);
            }
            Kind::Eight { signed: false } => {
                special |= self.lines_of_parts(codes, by, true, |codes: &_| eight_apart::<false>(codes), store);
            }
            Kind::F16 => special |= self.lines_of_parts(codes, by, false, |codes: &_| f16_apart(codes), store),
            // What is infinite has no parts.
            Kind::Bf16 => {
                special |= self.lines_of_parts(codes, by, false, |codes: &_| of_bf16(load(codes)), store);
            }
            Kind::Float(table) => {
                special |= self.lines_of_parts(codes, by, false, |codes: &_| of_bf16(float(table, codes)), store);
            }
        }
        special != 0
    }

    /// Numbers less a zero point, if there are any, times a scale.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    fn scaled_by(&self, numbers: __m512, scale: f32, zero: f32) -> __m512 {
        let numbers = if self.has_zeros { _mm512_sub_ps(numbers, _mm512_set1_ps(zero)) } else { numbers };
        _mm512_mul_ps(numbers, _mm512_set1_ps(scale))
    }

    /// Those of codes of 8 or 16 bits, rounded. `numbers` makes numbers of a line's codes: the first and the last sixteen, if they come in `HALVES`,
    /// or those with an even place and those with an odd one.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    fn rounded_lines<const N: usize, const BYTES: usize, const HALVES: bool>(
        &self,
        codes: &[u8],
        by: [&[f32]; 2],
        numbers: impl Fn(&[u8; BYTES]) -> [__m512; 2],
        mut store: impl FnMut(usize, [__m512i; N]),
    ) {
        let (scales, zeros) = (by[0].as_chunks::<2>().0, by[1].as_chunks::<2>().0);
        each(codes, |i, codes| {
            let mut both = numbers(codes);
            let spread = |[first, last]: [f32; 2]| match HALVES {
                true => [_mm512_set1_ps(first), _mm512_set1_ps(last)],
                false => [of_halves([first, last]); 2],
            };
            if self.has_zeros {
                let zeros = spread(zeros[i]);
                both = [_mm512_sub_ps(both[0], zeros[0]), _mm512_sub_ps(both[1], zeros[1])];
            }
            if self.scaled {
                let scales = spread(scales[i]);
                both = [_mm512_mul_ps(both[0], scales[0]), _mm512_mul_ps(both[1], scales[1])];
            }
            let line = rounded(both[0], both[1]);
            store(i, [if HALVES { line } else { by_turns(line) }; N]);
        });
    }

    /// Those of codes of 8 or 16 bits as parts; `numbers` makes numbers of a line's codes, those with an even place and those with an odd one. Without
    /// scales some `are_exact` in bf16.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    fn lines_of_parts<const N: usize, const BYTES: usize>(
        &self,
        codes: &[u8],
        by: [&[f32]; 2],
        are_exact: bool,
        numbers: impl Fn(&[u8; BYTES]) -> [__m512; 2],
        mut store: impl FnMut(usize, [__m512i; N]),
    ) -> __mmask16 {
        let (scales, zeros) = (by[0].as_chunks::<2>().0, by[1].as_chunks::<2>().0);
        let is_exact = are_exact && !self.scaled;
        let mut special = 0;
        each(codes, |i, codes| {
            let [even, odd] = numbers(codes);
            if is_exact {
                let mut line = [_mm512_setzero_si512(); N];
                line[0] = pairs_of(even, odd);
                return store(i, line);
            }
            let scaled = |x: __m512| _mm512_mul_ps(_mm512_sub_ps(x, of_halves(zeros[i])), of_halves(scales[i]));
            let (even, odd) = if self.scaled { (scaled(even), scaled(odd)) } else { (even, odd) };
            let ((even, some), (odd, more)) = (parts::<N>(even), parts::<N>(odd));
            store(i, all_pairs(even, odd));
            special |= some | more;
        });
        special
    }
}

/// Runs `make` with the number and the codes of each line, of so many bytes. What fills no line is copied first, so that there is one loop, whose body
/// is then no function.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn each<const BYTES: usize>(codes: &[u8], mut make: impl FnMut(usize, &[u8; BYTES])) {
    let (whole, rest) = codes.as_chunks::<BYTES>();
    let mut last = [0; BYTES];
    last[..rest.len()].copy_from_slice(rest);
    for i in 0..codes.len().div_ceil(BYTES) {
        make(i, whole.get(i).unwrap_or(&last));
    }
}

/// Numbers of bf16 whose sums are sixteen numbers, each in the upper half of a word; and which numbers count as 0, since there are none.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn parts<const N: usize>(numbers: __m512) -> ([__m512; N], __mmask16) {
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
fn all_pairs<const N: usize>(first: [__m512; N], second: [__m512; N]) -> [__m512i; N] {
    let mut all = [_mm512_setzero_si512(); N];
    for (part, pairs) in all.iter_mut().enumerate() {
        *pairs = pairs_of(first[part], second[part]);
    }
    all
}

/// Numbers rounded to nearest even, to bf16: `first`, then `last`. Numbers below 2⁻¹²⁶ become 0.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn rounded(first: __m512, last: __m512) -> __m512i {
    #[cfg(test)]
    if !std::arch::is_x86_feature_detected!("avx512bf16") {
        return rounded_elsewhere(first, last);
    }
    let both;
    // SAFETY: processors that have tiles, or multiply numbers of bf16, have it. The intrinsic would not be compiled into functions for more of them.
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
fn by_turns(line: __m512i) -> __m512i {
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
fn of_bf16(words: __m512i) -> [__m512; 2] {
    let odd = _mm512_and_si512(words, _mm512_set1_epi32(0xffff_0000_u32 as i32));
    [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(words)), _mm512_castsi512_ps(odd)]
}

/// Of whole numbers of 8 bits, the first and the last.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn eight<const SIGNED: bool>(codes: &[u8; ELEMENTS]) -> [__m512; 2] {
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
fn eight_apart<const SIGNED: bool>(codes: &[u8; ELEMENTS]) -> [__m512; 2] {
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
fn float(table: &Floats, codes: &[u8; ELEMENTS]) -> __m512i {
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
fn f16(codes: &[u8; ROW_BYTES]) -> [__m512; 2] {
    let (both, _) = codes.as_chunks::<ELEMENTS>();
    [_mm512_cvtph_ps(load_32(&both[0])), _mm512_cvtph_ps(load_32(&both[1]))]
}

/// Those with an even place, and with an odd one.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn f16_apart(codes: &[u8; ROW_BYTES]) -> [__m512; 2] {
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

/// Which of 32 numbers each of 32 codes is: one of the first sixteen for the first 16 codes, one of the last for the others, if numbers come in
/// `HALVES`, or else one with an even place and one with an odd one.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn places<const HALVES: bool>(codes: &[u8; ELEMENTS / 2]) -> __m512i {
    let pairs = _mm512_cvtepu8_epi32(load_16(codes));
    let (each, mask, step) = match HALVES {
        true => (_mm512_or_si512(pairs, _mm512_slli_epi32::<12>(pairs)), 0xf_000f, 0x10_0010),
        false => (_mm512_or_si512(_mm512_slli_epi32::<1>(pairs), _mm512_slli_epi32::<13>(pairs)), 0x1e_001e, 0x1_0001),
    };
    let steps = _mm512_maskz_set1_epi32(0xff00, step);
    _mm512_or_si512(_mm512_and_si512(each, _mm512_set1_epi32(mask)), steps)
}
