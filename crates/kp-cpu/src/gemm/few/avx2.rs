//! Dot products of few rows of numbers with columns of codes, for processors that have AVX2 and no more.
//!
//! ```text
//!   column   │ 64 elements of k │ 64 │ …    a step: 32 to 256 bytes, made eight vectors of eight numbers
//!   rows     │ 8 × 8 numbers of each │ …   beforehand put in the order in which the codes come out
//! ```
//! Sixteen registers have room for eight vectors of sums. A vector of codes becomes numbers once, is scaled, and meets every
//! row.

use super::lists::{Columns, List};
use kp_hal::DType;
use std::arch::x86_64::{
    __m256, _MM_HINT_T0, _mm_add_ps, _mm_loadl_epi64, _mm_loadu_si128, _mm_prefetch, _mm_storeu_ps, _mm256_add_ps,
    _mm256_and_si256, _mm256_broadcast_ss, _mm256_castps256_ps128, _mm256_castsi256_ps, _mm256_castsi256_si128,
    _mm256_cmpeq_epi16, _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps, _mm256_cvtepu8_epi16, _mm256_cvtepu8_epi32,
    _mm256_cvtph_ps, _mm256_extractf128_ps, _mm256_extracti128_si256, _mm256_fmadd_ps, _mm256_hadd_ps, _mm256_loadu_ps,
    _mm256_loadu_si256, _mm256_mul_ps, _mm256_or_si256, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_setzero_ps,
    _mm256_slli_epi16, _mm256_slli_epi32, _mm256_srai_epi16, _mm256_sub_ps,
};

/// Elements of a step.
pub(crate) const STEP: usize = 64;

/// Row counts that loops are compiled for, and how many columns meet each.
pub(crate) const HEIGHTS: [usize; 3] = [1, 4, 8];
pub(crate) const BREADTHS: [usize; 3] = [4, 2, 1];

/// The most sums of a loop.
const SUMS: usize = 8;

/// How stored codes become numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    F32,
    Bf16,
    F16,
    I8,
    U8,
    E4m3,
    E5m2,
}

impl Kind {
    /// That of `dtype`, if there is one.
    pub(crate) fn of(dtype: DType) -> Option<Self> {
        Some(match dtype {
            DType::F32 => Self::F32,
            DType::Bf16 => Self::Bf16,
            DType::F16 => Self::F16,
            DType::I8 => Self::I8,
            DType::U8 => Self::U8,
            DType::E4m3 => Self::E4m3,
            DType::E5m2 => Self::E5m2,
            _ => return None,
        })
    }

    /// Bytes of a step.
    pub(crate) const fn step_bytes(self) -> usize {
        match self {
            Self::F32 => 4 * STEP,
            Self::Bf16 | Self::F16 => 2 * STEP,
            Self::I8 | Self::U8 | Self::E4m3 | Self::E5m2 => STEP,
        }
    }

    /// Which element of a step lane `lane` of vector `vector` holds.
    pub(crate) const fn element(self, vector: usize, lane: usize) -> usize {
        match self {
            // The upper halves of sixteen, then the lower.
            Self::Bf16 => vector / 2 * 16 + 2 * lane + vector % 2,
            _ => 8 * vector + lane,
        }
    }

    /// What is missing in the exponents of numbers.
    pub(crate) const fn factor(self) -> f32 {
        if matches!(self, Self::E4m3) { 256.0 } else { 1.0 }
    }
}

/// A [`Kind`] as a type, so that loops are compiled for each.
pub(crate) trait Code {
    const KIND: Kind;
}

macro_rules! codes {
    ($($name:ident),*) => {$(
        pub(crate) enum $name {}
        impl Code for $name {
            const KIND: Kind = Kind::$name;
        }
    )*};
}
codes!(F32, Bf16, F16, I8, U8, E4m3, E5m2);

/// Adds to `sums` the products of `R` rows `a`, step by step, with `C` columns; column by column. Lists have an
/// entry for every 16, 32 or 64 elements.
///
/// # Panics
/// If `a` or the lists do not cover the columns' steps.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn dots<T: Code, const R: usize, const C: usize>(a: &[f32], columns: &Columns<'_>, sums: &mut [f32]) {
    // Floats of 16 bits and more have neither.
    let may_have = !matches!(T::KIND, Kind::F32 | Kind::Bf16 | Kind::F16);
    if may_have && !(columns.scales.is_empty() && columns.zeros.is_empty()) {
        dots_of::<T, R, C, true>(a, columns, sums);
    } else {
        dots_of::<T, R, C, false>(a, columns, sums);
    }
}

/// The same; columns have lists if `LISTED`.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
fn dots_of<T: Code, const R: usize, const C: usize, const LISTED: bool>(
    a: &[f32],
    columns: &Columns<'_>,
    sums: &mut [f32],
) {
    const { assert!(R * C <= SUMS, "sums have registers") };
    let &Columns { codes, share, scales, zeros, ahead, .. } = columns;
    let codes: [&[u8]; C] = codes.try_into().expect("as many columns as the loop is for");
    let bytes = T::KIND.step_bytes();
    let steps = codes[0].len().div_ceil(bytes);
    let entries = STEP / share;
    let (scaled, shifted) = (LISTED && !scales.is_empty(), LISTED && !zeros.is_empty());
    assert!(matches!(share, 16 | 32 | 64), "entries for {share}");
    columns.check(steps * entries);
    assert!(codes.iter().all(|some| some.len() == codes[0].len()), "columns of one length");
    assert!(a.len() >= steps * R * STEP, "{R} rows of {} numbers for {steps} steps", a.len());
    // A single sum is four, so that no multiply-add waits for the one before.
    let chains = const { if R * C == 1 { CHAINS } else { 1 } };
    let mut totals = [[[_mm256_setzero_ps(); C]; R]; CHAINS];
    let mut last = [[0; 4 * STEP]; C];
    for s in 0..steps {
        let mut starts = [std::ptr::null(); C];
        for c in 0..C {
            let rest = &codes[c][s * bytes..];
            starts[c] = rest.as_ptr();
            if rest.len() < bytes {
                last[c][..rest.len()].copy_from_slice(rest);
                starts[c] = last[c].as_ptr();
            } else {
                for line in 0..bytes.div_ceil(64) {
                    let at = starts[c].wrapping_add(ahead + 64 * line);
                    _mm_prefetch::<_MM_HINT_T0>(at.cast());
                }
            }
        }
        let entry = |lists: &[List], c: usize| lists[c].as_ptr().wrapping_add(s * entries);
        // SAFETY: a step of codes is there, and of A and lists, as asserted.
        unsafe {
            // Written out, so that places are constants.
            macro_rules! vectors {
                ($($j:literal)*) => {$({
                    let mut numbers = [_mm256_setzero_ps(); C];
                    for c in 0..C {
                        numbers[c] = vector(T::KIND, starts[c], $j);
                        let place = 8 * $j / share;
                        if shifted {
                            numbers[c] = _mm256_sub_ps(numbers[c], _mm256_broadcast_ss(&*entry(zeros, c).add(place)));
                        }
                        if scaled {
                            numbers[c] = _mm256_mul_ps(numbers[c], _mm256_broadcast_ss(&*entry(scales, c).add(place)));
                        }
                    }
                    for r in 0..R {
                        let a = _mm256_loadu_ps(a.as_ptr().add(((s * 8 + $j) * R + r) * 8));
                        for c in 0..C {
                            let total = &mut totals[$j % chains][r][c];
                            *total = _mm256_fmadd_ps(numbers[c], a, *total);
                        }
                    }
                })*};
            }
            vectors!(0 1 2 3 4 5 6 7);
        }
    }
    let mut vectors = [_mm256_setzero_ps(); SUMS];
    for c in 0..C {
        for r in 0..R {
            let [first, rest @ ..] = totals;
            vectors[c * R + r] =
                rest[..chains - 1].iter().fold(first[r][c], |sum, chain| _mm256_add_ps(sum, chain[r][c]));
        }
    }
    let factor = T::KIND.factor();
    for (sums, vectors) in sums[..R * C].chunks_mut(4).zip(vectors.as_chunks().0) {
        for (sum, more) in sums.iter_mut().zip(lanes(vectors)) {
            *sum += more * factor;
        }
    }
}

/// Sums of a single row and column.
const CHAINS: usize = 4;

/// The sums of the lanes of four vectors.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn lanes(&[a, b, c, d]: &[__m256; 4]) -> [f32; 4] {
    let halves = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    let sums = _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps::<1>(halves));
    let mut out = [0.0; 4];
    // SAFETY: four numbers.
    unsafe { _mm_storeu_ps(out.as_mut_ptr(), sums) };
    out
}

/// Vector `j` of the numbers of a step; see [`Kind::element`] for their order.
///
/// # Safety
/// A step of codes can be read.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn vector(kind: Kind, codes: *const u8, j: usize) -> __m256 {
    // SAFETY: the caller's promise: eight vectors of as many bytes as elements have.
    unsafe {
        match kind {
            Kind::F32 => _mm256_loadu_ps(codes.add(32 * j).cast()),
            Kind::Bf16 => {
                let pairs = _mm256_loadu_si256(codes.add(j / 2 * 32).cast());
                _mm256_castsi256_ps(match j % 2 {
                    0 => _mm256_slli_epi32::<16>(pairs),
                    _ => _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff_0000_u32 as i32)),
                })
            }
            Kind::F16 => _mm256_cvtph_ps(_mm_loadu_si128(codes.add(16 * j).cast())),
            Kind::I8 => _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(codes.add(8 * j).cast()))),
            Kind::U8 => _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(codes.add(8 * j).cast()))),
            Kind::E4m3 | Kind::E5m2 => {
                let code = _mm256_cvtepu8_epi16(_mm_loadu_si128(codes.add(j / 2 * 16).cast()));
                let upper = _mm256_slli_epi16::<8>(code);
                let halves = if kind == Kind::E5m2 {
                    upper
                } else {
                    // One more bit of exponent, which then has 8 too little; all others set are no number.
                    let number = _mm256_and_si256(_mm256_srai_epi16::<1>(upper), _mm256_set1_epi16(0xbfff_u16 as i16));
                    let magnitude = _mm256_and_si256(code, _mm256_set1_epi16(0x7f));
                    let is_nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f));
                    _mm256_or_si256(number, _mm256_and_si256(is_nan, _mm256_set1_epi16(0x7e00)))
                };
                _mm256_cvtph_ps(match j % 2 {
                    0 => _mm256_castsi256_si128(halves),
                    _ => _mm256_extracti128_si256::<1>(halves),
                })
            }
        }
    }
}
