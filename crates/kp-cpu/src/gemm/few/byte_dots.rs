//! Dot products of a few rows of 8-bit codes with one column of 8- or 4-bit codes, summed exactly in i32.
//!
//! ```text
//!   column   │ 64 bytes │ 64 bytes │ …    a line: 64 codes, or 128 of four bits, those of even place first
//!   rows   r │ 64 codes │ …             i8, in the same order
//! ```
//! `vpdpbusd` multiplies unsigned by signed bytes and adds four products to each lane. So the column's codes are moved
//! up until none is negative, by an *offset* that is taken off again: offset · sum of the row. Scales that change along
//! k multiply the sums of a line, lane by lane.

use super::dots::{SHARE, STEP, Steps};
use std::arch::x86_64::{
    __m512, __m512i, _mm_loadu_ps, _mm256_loadu_ps, _mm512_add_epi32, _mm512_and_si512, _mm512_castps128_ps512,
    _mm512_castps256_ps512, _mm512_cvtepi32_ps, _mm512_dpbusd_epi32, _mm512_fmadd_ps, _mm512_fnmadd_ps,
    _mm512_loadu_ps, _mm512_loadu_si512, _mm512_mul_ps, _mm512_permutexvar_ps, _mm512_reduce_add_epi32,
    _mm512_reduce_add_ps, _mm512_set1_epi8, _mm512_setr_epi32, _mm512_setzero_ps, _mm512_setzero_si512,
    _mm512_shuffle_epi8, _mm512_srli_epi16, _mm512_xor_si512,
};

/// Width of the column's codes.
pub(crate) trait Width {
    const BITS: usize;
    /// Lines of a step.
    const LINES: usize = Self::BITS / 4;
}

/// A byte each.
pub(crate) enum Eight {}
/// Two to a byte.
pub(crate) enum Four {}

impl Width for Eight {
    const BITS: usize = 8;
}
impl Width for Four {
    const BITS: usize = 4;
}

/// Which element of a line byte `byte` of its codes is, when four bits have become a byte each.
pub(crate) const fn place(bits: usize, byte: usize) -> usize {
    match bits {
        4 => byte % 64 * 2 + byte / 64,
        _ => byte,
    }
}

/// How codes become unsigned bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lift {
    /// Bits of a whole byte that are turned around.
    pub(crate) flip: u8,
    /// What each code of four bits becomes.
    pub(crate) table: [u8; 16],
}

/// One column, from some step on.
#[derive(Clone, Copy)]
pub(crate) struct Column<'a> {
    /// Its codes, up to the last one.
    pub(crate) codes: &'a [u8],
    /// A scale for every 16 elements of whole steps.
    pub(crate) scales: &'a [f32],
    /// Zero points alike, of codes as they are when lifted; empty if there are none.
    pub(crate) zeros: &'a [f32],
    /// How many bytes ahead memory is asked for.
    pub(crate) ahead: usize,
}

/// Rows of A from the same step on. Each part holds for each step and row as much as is said.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    /// 128 codes, zeros past the end.
    pub(crate) codes: &'a [i8],
    /// A vector for each line: − offset · the sum of each lane's codes; where zero points are given, that sum as f32.
    pub(crate) lanes: &'a [u32],
    /// A vector for each line: the scale of each lane. Empty if scales do not change along k.
    pub(crate) scales: &'a [f32],
}

/// Adds to `sums` the products of lifted codes, which wrap.
///
/// # Panics
/// If the rows do not cover the column's steps.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(crate) fn whole<T: Width, const R: usize, const N: usize>(
    lift: &Lift,
    a: Rows<'_>,
    column: Column<'_>,
    sums: &mut [i32],
) {
    let mut totals = [[_mm512_setzero_si512(); N]; R];
    let lift = Lifting::new(lift);
    let steps = Steps::new(column.codes, T::LINES * 64, column.ahead);
    for s in 0..column.codes.len().div_ceil(T::LINES * 64) {
        let codes = steps.at(s);
        let a = &a.codes[s * R * STEP..(s + 1) * R * STEP];
        for line in 0..T::LINES {
            // SAFETY: a whole step of codes is there.
            let parts = unsafe { lift.line::<T>(codes.add(64 * line)) };
            for r in 0..R {
                for (h, part) in parts.iter().enumerate().take(2 / T::LINES) {
                    let i = 2 * line / T::LINES + h;
                    // SAFETY: half a step of row `r`, which is there.
                    let row = unsafe { _mm512_loadu_si512(a.as_ptr().add(r * STEP + i * 64).cast()) };
                    totals[r][i % N] = _mm512_dpbusd_epi32(totals[r][i % N], *part, row);
                }
            }
        }
    }
    for (sum, totals) in sums.iter_mut().zip(totals) {
        let total = totals[1..].iter().fold(totals[0], |a, &b| _mm512_add_epi32(a, b));
        *sum = sum.wrapping_add(_mm512_reduce_add_epi32(total));
    }
}

/// Adds to `sums` the products, with scales that change along k: those of the column, and of rows if they `VARY`; and
/// zero points if it is `SHIFTED`.
///
/// # Panics
/// If rows, scales or zero points do not cover the column's steps.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(crate) fn scaled<T: Width, const R: usize, const VARY: bool, const SHIFTED: bool>(
    lift: &Lift,
    a: Rows<'_>,
    column: Column<'_>,
    sums: &mut [f32],
) {
    let mut totals = [_mm512_setzero_ps(); R];
    let lift = Lifting::new(lift);
    let steps = Steps::new(column.codes, T::LINES * 64, column.ahead);
    for s in 0..column.codes.len().div_ceil(T::LINES * 64) {
        let codes = steps.at(s);
        let rows = &a.codes[s * R * STEP..(s + 1) * R * STEP];
        let lanes = &a.lanes[s * R * T::LINES * 16..(s + 1) * R * T::LINES * 16];
        let row_scales = if VARY { &a.scales[s * R * T::LINES * 16..(s + 1) * R * T::LINES * 16] } else { &[] };
        let share = s * STEP / SHARE..(s + 1) * STEP / SHARE;
        let scales = &column.scales[share.clone()];
        let zeros = if SHIFTED { &column.zeros[share] } else { &[] };
        for line in 0..T::LINES {
            // SAFETY: a whole step of codes is there.
            let parts = unsafe { lift.line::<T>(codes.add(64 * line)) };
            let scale = shared::<T>(scales, line);
            let zero = if SHIFTED { shared::<T>(zeros, line) } else { _mm512_setzero_ps() };
            for r in 0..R {
                let at = (r * T::LINES + line) * 16;
                // SAFETY: a vector of this line and row, which is there.
                let given = unsafe { _mm512_loadu_si512(lanes.as_ptr().add(at).cast()) };
                let mut sum = if SHIFTED { _mm512_setzero_si512() } else { given };
                for (h, part) in parts.iter().enumerate().take(2 / T::LINES) {
                    let i = 2 * line / T::LINES + h;
                    // SAFETY: half a step of row `r`, which is there.
                    let row = unsafe { _mm512_loadu_si512(rows.as_ptr().add(r * STEP + i * 64).cast()) };
                    sum = _mm512_dpbusd_epi32(sum, *part, row);
                }
                let mut sum = _mm512_cvtepi32_ps(sum);
                if SHIFTED {
                    // Whole numbers below 2²⁴: exact.
                    sum = _mm512_fnmadd_ps(zero, std::arch::x86_64::_mm512_castsi512_ps(given), sum);
                }
                let scale = match VARY {
                    // SAFETY: a vector of this line and row, which is there.
                    true => _mm512_mul_ps(scale, unsafe { _mm512_loadu_ps(row_scales.as_ptr().add(at)) }),
                    false => scale,
                };
                totals[r] = _mm512_fmadd_ps(sum, scale, totals[r]);
            }
        }
    }
    for (sum, total) in sums.iter_mut().zip(totals) {
        *sum += _mm512_reduce_add_ps(total);
    }
}

/// A [`Lift`] in registers.
#[derive(Clone, Copy)]
struct Lifting {
    flip: __m512i,
    table: __m512i,
}

impl Lifting {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn new(lift: &Lift) -> Self {
        // SAFETY: sixteen bytes.
        let table = unsafe { std::arch::x86_64::_mm_loadu_si128(lift.table.as_ptr().cast()) };
        Self { flip: _mm512_set1_epi8(lift.flip as i8), table: std::arch::x86_64::_mm512_broadcast_i32x4(table) }
    }

    /// The unsigned codes of a line: one vector, or those of even and those of odd place.
    ///
    /// # Safety
    /// 64 bytes can be read.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn line<T: Width>(self, codes: *const u8) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        let codes = unsafe { _mm512_loadu_si512(codes.cast()) };
        if T::BITS == 8 {
            return [_mm512_xor_si512(codes, self.flip); 2];
        }
        let low = _mm512_set1_epi8(15);
        [codes, _mm512_srli_epi16::<4>(codes)].map(|c| _mm512_shuffle_epi8(self.table, _mm512_and_si512(c, low)))
    }
}

/// What the lanes of line `line` share of the eight numbers of a step.
///
/// # Panics
/// If there are fewer than eight.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn shared<T: Width>(numbers: &[f32], line: usize) -> __m512 {
    let numbers = &numbers[..8];
    // SAFETY: eight numbers.
    unsafe {
        if T::BITS == 4 {
            let pairs = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
            _mm512_permutexvar_ps(pairs, _mm512_castps256_ps512(_mm256_loadu_ps(numbers.as_ptr())))
        } else {
            let fours = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
            _mm512_permutexvar_ps(fours, _mm512_castps128_ps512(_mm_loadu_ps(numbers.as_ptr().add(4 * line))))
        }
    }
}
