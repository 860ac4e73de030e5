//! The loops of [`super::byte_dots`] for processors that have AVX2 and no AVX-512: the same operands, half a line at a time.
//!
//! `vpdpbusd` is there with AVX-VNNI. Without it two products of bytes at a time are exact where one of them has four bits;
//! products of whole bytes are of words, those of even place and those of odd.

use super::{
    byte_dots::{Column, Eight, Lift, Rows, Width, alike, starts},
    dots::{Ends, SHARE, STEP},
    far::Far,
};
use std::arch::x86_64::{
    __m256, __m256i, _mm_add_epi32, _mm_add_ps, _mm_cvtsi128_si32, _mm_cvtss_f32, _mm_hadd_epi32, _mm_hadd_ps,
    _mm_loadu_si128, _mm256_add_epi32, _mm256_and_si256, _mm256_broadcastsi128_si256, _mm256_castps256_ps128,
    _mm256_castsi256_ps, _mm256_castsi256_si128, _mm256_cvtepi32_ps, _mm256_dpbusd_avx_epi32, _mm256_extractf128_ps,
    _mm256_extracti128_si256, _mm256_fmadd_ps, _mm256_fnmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256,
    _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_mul_ps, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_setr_ps,
    _mm256_setzero_ps, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_slli_epi16, _mm256_srai_epi16,
    _mm256_srli_epi16, _mm256_xor_si256,
};

/// Bytes of a vector, and lanes of all of a step of whole bytes.
const VECTOR: usize = 32;
const LANES: usize = STEP / 4;

/// Adds products of unsigned bytes with signed ones to sums of four.
pub(crate) trait Dot {
    /// # Safety
    /// The processor has AVX2, and AVX-VNNI where that is the point.
    unsafe fn dot<T: Width>(sum: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i;
}

/// With AVX-VNNI.
pub(crate) enum Vnni {}
/// With AVX2 alone.
pub(crate) enum Plain {}

impl Dot for Vnni {
    #[inline(always)]
    unsafe fn dot<T: Width>(sum: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_dpbusd_avx_epi32(sum, unsigned, signed) }
    }
}

impl Dot for Plain {
    #[inline(always)]
    unsafe fn dot<T: Width>(sum: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe {
            if T::BITS == 4 {
                // At most 24 · 128 twice: far from what 16 bits hold.
                let pairs = _mm256_maddubs_epi16(unsigned, signed);
                return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
            }
            let even = _mm256_and_si256(unsigned, _mm256_set1_epi16(0xff));
            let even = _mm256_madd_epi16(even, _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(signed)));
            let odd = _mm256_madd_epi16(_mm256_srli_epi16::<8>(unsigned), _mm256_srai_epi16::<8>(signed));
            _mm256_add_epi32(sum, _mm256_add_epi32(even, odd))
        }
    }
}

macro_rules! loops {
    ($($features:literal $dot:ident $whole:ident $scaled:ident)*) => {$(
        /// [`super::byte_dots::whole`] with half as wide vectors.
        ///
        /// # Panics
        /// If the rows do not cover the columns' steps.
        #[target_feature(enable = $features)]
        pub(crate) fn $whole<T: Width, const R: usize, const C: usize>(
            lift: &Lift,
            a: Rows<'_>,
            columns: &[Column<'_>],
            ahead: (usize, Far),
            sums: &mut [i32],
        ) {
            // SAFETY: the features are those of this function.
            unsafe { whole::<$dot, T, R, C>(lift, a, columns, ahead, sums) }
        }

        /// [`super::byte_dots::scaled`] with half as wide vectors, of whole bytes.
        ///
        /// # Panics
        /// If rows, scales or zero points do not cover the columns' steps.
        #[target_feature(enable = $features)]
        pub(crate) fn $scaled<const R: usize, const C: usize>(
            lift: &Lift,
            a: Rows<'_>,
            columns: &[Column<'_>],
            ahead: (usize, Far),
            sums: &mut [f32],
        ) {
            // SAFETY: the features are those of this function.
            unsafe { scaled::<$dot, R, C>(lift, a, columns, ahead, sums) }
        }
    )*};
}
loops! {
    "avx2,fma,avxvnni" Vnni vnni_whole vnni_scaled
    "avx2,fma" Plain plain_whole plain_scaled
}

/// # Safety
/// The processor has what `D` uses.
#[expect(clippy::needless_range_loop, reason = "one index serves several squares of registers")]
#[inline(always)]
unsafe fn whole<D: Dot, T: Width, const R: usize, const C: usize>(
    lift: &Lift,
    a: Rows<'_>,
    columns: &[Column<'_>],
    mut ahead: (usize, Far),
    sums: &mut [i32],
) {
    let (columns, count) = alike::<T, C>(columns);
    let a = &a.codes[..count * R * STEP];
    let mut last = None;
    // SAFETY: the caller's promise; a whole step of codes is there, and of each row.
    unsafe {
        let lift = Lifting::new(lift);
        let mut totals = [[_mm256_setzero_si256(); C]; R];
        for s in 0..count {
            let starts = starts::<T, C>(columns, s, ahead.0, &mut last);
            ahead.1.ask::<false>(C * T::LINES);
            for part in 0..2 * T::LINES {
                let mut codes = [[_mm256_setzero_si256(); 2]; C];
                for c in 0..C {
                    codes[c] = lift.half_line::<T>(starts[c].add(VECTOR * part));
                }
                for h in 0..2 / T::LINES {
                    for r in 0..R {
                        let row =
                            _mm256_loadu_si256(a.as_ptr().add((s * R + r) * STEP + VECTOR * part + 64 * h).cast());
                        for c in 0..C {
                            totals[r][c] = D::dot::<T>(totals[r][c], codes[c][h], row);
                        }
                    }
                }
            }
        }
        for c in 0..C {
            for r in 0..R {
                let t = totals[r][c];
                let four = _mm_add_epi32(_mm256_castsi256_si128(t), _mm256_extracti128_si256::<1>(t));
                let two = _mm_hadd_epi32(four, four);
                let sum = &mut sums[c * R + r];
                *sum = sum.wrapping_add(_mm_cvtsi128_si32(_mm_hadd_epi32(two, two)));
            }
        }
    }
}

/// # Safety
/// The processor has what `D` uses.
#[expect(clippy::needless_range_loop, reason = "one index serves several squares of registers")]
#[inline(always)]
unsafe fn scaled<D: Dot, const R: usize, const C: usize>(
    lift: &Lift,
    a: Rows<'_>,
    columns: &[Column<'_>],
    mut ahead: (usize, Far),
    sums: &mut [f32],
) {
    let (columns, count) = alike::<Eight, C>(columns);
    let lanes = count * R * LANES;
    let (rows, given) = (&a.codes[..count * R * STEP], &a.lanes[..lanes]);
    // Asked at run time, to have fewer loops.
    let (vary, shifted) = (!a.scales.is_empty(), !columns[0].zeros.is_empty());
    let row_scales = if vary { &a.scales[..lanes] } else { &[] };
    let entries = count * STEP / SHARE;
    for column in columns {
        assert!(column.scales.len() >= entries, "{entries} shares by {} scales", column.scales.len());
        assert!(!shifted || column.zeros.len() >= entries, "{entries} shares by {} zero points", column.zeros.len());
    }
    let mut last: Option<Ends<C>> = None;
    // SAFETY: the caller's promise; a whole step of codes is there, of each row, and of lists, as asserted.
    unsafe {
        let lift = Lifting::new(lift);
        let mut totals = [[_mm256_setzero_ps(); C]; R];
        for s in 0..count {
            let share = s * STEP / SHARE;
            let starts = starts::<Eight, C>(columns, s, ahead.0, &mut last);
            ahead.1.ask::<false>(C * Eight::LINES);
            for part in 0..STEP / VECTOR {
                let mut codes = [_mm256_setzero_si256(); C];
                for c in 0..C {
                    codes[c] = lift.bytes(_mm256_loadu_si256(starts[c].add(VECTOR * part).cast()));
                }
                for r in 0..R {
                    let at = (s * R + r) * LANES + 8 * part;
                    let given = _mm256_loadu_si256(given.as_ptr().add(at).cast());
                    let row = rows.as_ptr().add((s * R + r) * STEP + VECTOR * part);
                    let row = _mm256_loadu_si256(row.cast());
                    for c in 0..C {
                        let sum = if shifted { _mm256_setzero_si256() } else { given };
                        let mut number = _mm256_cvtepi32_ps(D::dot::<Eight>(sum, codes[c], row));
                        if shifted {
                            // Whole numbers below 2²⁴: exact.
                            let zero = shared(columns[c].zeros.as_ptr().add(share), part);
                            number = _mm256_fnmadd_ps(zero, _mm256_castsi256_ps(given), number);
                        }
                        if vary {
                            number = _mm256_mul_ps(number, _mm256_loadu_ps(row_scales.as_ptr().add(at)));
                        }
                        let scale = shared(columns[c].scales.as_ptr().add(share), part);
                        totals[r][c] = _mm256_fmadd_ps(number, scale, totals[r][c]);
                    }
                }
            }
        }
        for c in 0..C {
            for r in 0..R {
                let t: __m256 = totals[r][c];
                let four = _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps::<1>(t));
                let two = _mm_hadd_ps(four, four);
                sums[c * R + r] += _mm_cvtss_f32(_mm_hadd_ps(two, two));
            }
        }
    }
}

/// A [`Lift`] in registers.
#[derive(Clone, Copy)]
pub(crate) struct Lifting {
    flip: __m256i,
    table: __m256i,
}

impl Lifting {
    /// # Safety
    /// The processor has AVX2.
    #[inline(always)]
    pub(crate) unsafe fn new(lift: &Lift) -> Self {
        // SAFETY: the caller's promise; sixteen bytes.
        unsafe {
            let table = _mm_loadu_si128(lift.table.as_ptr().cast());
            Self { flip: _mm256_set1_epi8(lift.flip as i8), table: _mm256_broadcastsi128_si256(table) }
        }
    }

    /// The unsigned codes of half a line: one vector, or those of even and those of odd place.
    ///
    /// # Safety
    /// The processor has AVX2, and 32 bytes can be read.
    #[inline(always)]
    unsafe fn half_line<T: Width>(self, codes: *const u8) -> [__m256i; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let codes = _mm256_loadu_si256(codes.cast());
            if T::BITS == 8 { [self.bytes(codes); 2] } else { self.four_bits(codes) }
        }
    }

    /// Whole bytes, unsigned.
    ///
    /// # Safety
    /// The processor has AVX2.
    #[inline(always)]
    pub(crate) unsafe fn bytes(self, codes: __m256i) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_xor_si256(codes, self.flip) }
    }

    /// Codes of four bits of even and of odd place, unsigned.
    ///
    /// # Safety
    /// The processor has AVX2.
    #[inline(always)]
    pub(crate) unsafe fn four_bits(self, codes: __m256i) -> [__m256i; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let low = _mm256_set1_epi8(15);
            let (even, odd) = (_mm256_and_si256(codes, low), _mm256_and_si256(_mm256_srli_epi16::<4>(codes), low));
            [_mm256_shuffle_epi8(self.table, even), _mm256_shuffle_epi8(self.table, odd)]
        }
    }
}

/// What the lanes of vector `part` of a step share of its eight numbers.
///
/// # Safety
/// The processor has AVX2, and eight numbers can be read.
#[inline(always)]
unsafe fn shared(numbers: *const f32, part: usize) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe {
        let [first, second] = [*numbers.add(2 * part), *numbers.add(2 * part + 1)];
        _mm256_setr_ps(first, first, first, first, second, second, second, second)
    }
}
