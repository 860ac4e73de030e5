//! Products of several rows of bytes with columns of four bits, a column in each lane, on processors that have AVX2 and no more.
//!
//! ```text
//!              16 columns, and 16 more
//!            ┌────────┬────────┐
//!          k │        │        │  opened: a vector has four bytes of eight columns each, or two words
//!            └────────┴────────┘
//!   R rows, each four bytes in all lanes: R × 2 vectors of sums
//! ```
//! Codes become bytes once, for all rows. Products of bytes are added in 16 bits, which may overflow on the way: a sum of sixteen
//! products is less than 2¹⁵, so that it is right again at the end. What needs more than a byte is multiplied as words.

use super::{
    avx2_lanes::{COLUMNS, each_byte, load},
    byte_dots::Lift,
    byte_row::{FINE, LOOKED_UP, SHIFTED},
    lanes::{Each, LANES, Later, SET, VECTORS},
};
use std::arch::x86_64::{
    __m256i, _mm_loadu_si128, _mm256_add_epi8, _mm256_add_epi16, _mm256_add_epi32, _mm256_and_si256,
    _mm256_blendv_epi8, _mm256_broadcastsi128_si256, _mm256_cvtepi32_ps, _mm256_fmadd_ps, _mm256_loadu_ps,
    _mm256_loadu_si256, _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_mul_ps, _mm256_set1_epi8, _mm256_set1_epi16,
    _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_slli_epi16, _mm256_srli_epi16,
    _mm256_storeu_ps, _mm256_storeu_si256, _mm256_xor_si256,
};

/// Vectors of [`Each`] that hold eight codes of a set, as bytes and as words.
pub(crate) const BYTES: usize = 2;
pub(crate) const WORDS: usize = 4;

/// Which of eight elements each code of a row stands for: bytes four at a time, words two at a time.
pub(crate) const ORDER_OF_BYTES: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
pub(crate) const ORDER_OF_WORDS: [usize; 8] = [0, 4, 2, 6, 1, 5, 3, 7];

/// Makes turned codes, of which `shared` have an entry of shifts, [`BYTES`] in `out`, or [`WORDS`] if they are [`FINE`]; see
/// [`super::byte_row`] for how, by `HOW`. Asks meanwhile for as many codes of `later`.
///
/// # Panics
/// If shifts or `out` are short.
#[target_feature(enable = "avx2")]
pub(crate) fn open<const HOW: u8>(
    lift: &Lift,
    (codes, shared): (&[Each<u32>], usize),
    shifts: &[Each<u32>],
    later: Later<'_, '_>,
    out: &mut [Each<u32>],
) {
    // SAFETY: sixteen bytes.
    let table = |table: &[u8; 16]| _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(table.as_ptr().cast()) });
    let (table, fine) = (table(&lift.table), table(&lift.fine));
    let flip = _mm256_set1_epi8((lift.flip | lift.flip << 4) as i8);
    let (low, odd_bytes) = (_mm256_set1_epi8(15), _mm256_set1_epi16(0xff00_u16 as i16));
    let width = const { if HOW == FINE { WORDS } else { BYTES } };
    assert!(HOW != SHIFTED || shifts.len() >= codes.len().div_ceil(4 * shared), "a byte for each share");
    for (i, (codes, out)) in codes.iter().zip(out[..codes.len() * width].chunks_exact_mut(width)).enumerate() {
        later.ask(i);
        let share = i / shared;
        for at in (0..SET).step_by(COLUMNS) {
            let (vector, first) = (at / LANES, at % LANES);
            let codes = load(&codes[vector][first..]);
            let mut store = |place: usize, opened: __m256i| {
                // SAFETY: eight of four bytes.
                unsafe { _mm256_storeu_si256(out[place][vector][first..first + COLUMNS].as_mut_ptr().cast(), opened) };
            };
            let codes = if matches!(HOW, LOOKED_UP | FINE) { codes } else { _mm256_xor_si256(codes, flip) };
            let both = [_mm256_and_si256(codes, low), _mm256_and_si256(_mm256_srli_epi16::<4>(codes), low)];
            for (parity, codes) in both.into_iter().enumerate() {
                match HOW {
                    FINE => {
                        let (upper, lower) = (_mm256_shuffle_epi8(table, codes), _mm256_shuffle_epi8(fine, codes));
                        // The first and the third of the four bytes, then the others, beside their 256ths.
                        let firsts = _mm256_blendv_epi8(lower, _mm256_slli_epi16::<8>(upper), odd_bytes);
                        let others = _mm256_blendv_epi8(_mm256_srli_epi16::<8>(lower), upper, odd_bytes);
                        store(2 * parity, firsts);
                        store(2 * parity + 1, others);
                    }
                    LOOKED_UP => store(parity, _mm256_shuffle_epi8(table, codes)),
                    SHIFTED => {
                        let shift = each_byte(load(&shifts[share / 4][vector][first..]), share % 4);
                        store(parity, _mm256_add_epi8(codes, shift));
                    }
                    _ => store(parity, codes),
                }
            }
        }
    }
}

/// Some shares of R rows of A.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    /// For each opened vector, of each row four bytes or two words, in the order of [`ORDER_OF_BYTES`] or [`ORDER_OF_WORDS`].
    pub(crate) codes: &'a [u32],
    /// Of each share and row two words that sums of bytes begin with: − offset · the sum of the first two of every four codes, and
    /// of the others.
    pub(crate) taken: &'a [u32],
    /// Of each share and row its scale.
    pub(crate) scales: &'a [f32],
}

/// Adds to `sums` the products of `R` rows with opened columns, of which `shared` vectors have an entry of `scales`.
///
/// # Panics
/// If rows or scales are short.
#[expect(clippy::needless_range_loop, reason = "one index serves several squares of registers")]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn lanes<const R: usize, const WIDTH: usize>(
    a: Rows<'_>,
    (columns, shared): (&[Each<u32>], usize),
    scales: &[Each<f32>],
    sums: &mut [Each<f32>],
) {
    let shares = columns.len() / shared;
    let (rows, taken, row_scales) = (&a.codes[..columns.len() * R], &a.taken[..shares * R], &a.scales[..shares * R]);
    let (scales, sums) = (&scales[..shares], &mut sums[..R]);
    let ones = _mm256_set1_epi16(1);
    for half in 0..VECTORS {
        for g in 0..shares {
            let mut some = [[_mm256_setzero_si256(); 2]; R];
            if WIDTH == BYTES {
                for r in 0..R {
                    some[r] = [_mm256_set1_epi32(taken[g * R + r] as i32); 2];
                }
            }
            for i in g * shared..(g + 1) * shared {
                // SAFETY: sixteen columns, and four bytes of each row.
                unsafe {
                    let columns = columns.get_unchecked(i)[half].as_ptr().cast::<__m256i>();
                    let columns = [_mm256_loadu_si256(columns), _mm256_loadu_si256(columns.add(1))];
                    for r in 0..R {
                        let a = _mm256_set1_epi32(*rows.get_unchecked(i * R + r) as i32);
                        for c in 0..2 {
                            some[r][c] = if WIDTH == BYTES {
                                _mm256_add_epi16(some[r][c], _mm256_maddubs_epi16(columns[c], a))
                            } else {
                                _mm256_add_epi32(some[r][c], _mm256_madd_epi16(columns[c], a))
                            };
                        }
                    }
                }
            }
            for r in 0..R {
                let by = _mm256_set1_ps(row_scales[g * R + r]);
                for c in 0..2 {
                    // SAFETY: eight numbers each.
                    unsafe {
                        let sum = sums[r][half].as_mut_ptr().add(COLUMNS * c);
                        let scale = _mm256_mul_ps(_mm256_loadu_ps(scales[g][half].as_ptr().add(COLUMNS * c)), by);
                        let whole = if WIDTH == BYTES { _mm256_madd_epi16(some[r][c], ones) } else { some[r][c] };
                        let sums = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole), scale, _mm256_loadu_ps(sum));
                        _mm256_storeu_ps(sum, sums);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        gemm::few::byte_row::FLIPPED,
        simd::{Avx2, Isa},
    };

    /// Sums of one row, `code` everywhere, with columns that have `nibble` and `shift` everywhere, over one share.
    fn sums(how: u8, code: i8, nibble: u32, shift: u8, share: usize, offset: i32) -> Vec<f32> {
        let lift = Lift { flip: 0, table: std::array::from_fn(|i| 24 * u8::from(i == 15)), fine: [0; 16] };
        let turned = vec![[[nibble * 0x1111_1111; LANES]; VECTORS]; share / 8];
        let shifts = [[[u32::from_le_bytes([shift; 4]); LANES]; VECTORS]];
        let mut opened = vec![[[0; LANES]; VECTORS]; turned.len() * BYTES];
        let line: &[u8] = &[];
        let later = Later { lines: &[line; SET], ahead: 0, by_second: false };
        let codes = vec![u32::from_le_bytes([code as u8; 4]); opened.len()];
        let half = (-offset * i32::from(code) * share as i32 / 2) as u32 & 0xffff;
        let rows = Rows { codes: &codes, taken: &[half | half << 16], scales: &[1.0] };
        let mut sums = [[[0.0; LANES]; VECTORS]];
        // SAFETY: the caller asked for the features.
        unsafe {
            match how {
                SHIFTED => open::<SHIFTED>(&lift, (&turned, share / 8), &shifts, later, &mut opened),
                LOOKED_UP => open::<LOOKED_UP>(&lift, (&turned, share / 8), &[], later, &mut opened),
                _ => open::<FLIPPED>(&lift, (&turned, share / 8), &[], later, &mut opened),
            }
            lanes::<1, BYTES>(rows, (&opened, opened.len()), &[[[1.0; LANES]; VECTORS]], &mut sums);
        }
        sums.as_flattened().concat()
    }

    #[test]
    fn the_largest_sums_fit_in_words() {
        if !Avx2::is_here() {
            println!("skipped: this processor has no AVX2");
            return;
        }
        // Codes from −8 to 7, from −12 to 12 in halves, and less a zero point of 16 or 0.
        for (how, nibble, shift, share, offset, least, means) in [
            (FLIPPED, 0, 0, 32, 8, -128, -8),
            (FLIPPED, 15, 0, 32, 8, -128, 7),
            (LOOKED_UP, 0, 0, 32, 12, -128, -12),
            (LOOKED_UP, 15, 0, 32, 12, -128, 12),
            (SHIFTED, 0, 0, 16, 16, -128, -16),
            (SHIFTED, 0, 0, 32, 16, -127, -16),
            (SHIFTED, 15, 16, 16, 16, -128, 15),
            (SHIFTED, 15, 16, 32, 16, -127, 15),
        ] {
            for code in [least, 127] {
                let exact = (i32::from(code) * means * share as i32) as f32;
                let got = sums(how, code, nibble, shift, share, offset);
                assert_eq!(got, vec![exact; SET], "{code} by {means}, {share} at once");
            }
        }
    }
}
