//! Products of several rows with columns of four bits, a column in each lane.
//!
//! ```text
//!                 32 columns
//!            ┌────────┬────────┐
//!          k │        │        │  turned: a vector has the same eight codes of sixteen columns
//!            └────────┴────────┘
//!   R rows, each number in all lanes: R × 2 vectors of sums
//! ```
//! For each sixteen weights a shift and a look-up beside R multiply-adds, and half a load a row. A scale multiplies the sums
//! of the elements that share it instead of these. With lanes along k it would be a multiplication more for each vector,
//! loads of whole vectors of A, and sums of lanes at the end: a fifth longer. Numbers of A spread by the multiply-adds
//! themselves would be two loads where this is one: a quarter longer.

use super::dots::{Table, five_bit_numbers, five_bits};
use crate::memory::{Number, prefetch};
use std::arch::x86_64::{
    __m512i, _mm512_add_epi8, _mm512_castsi512_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_permutexvar_ps, _mm512_set1_epi8, _mm512_set1_ps, _mm512_set4_epi32, _mm512_setzero_ps,
    _mm512_setzero_si512, _mm512_shuffle_epi8, _mm512_shuffle_i32x4, _mm512_srli_epi32, _mm512_storeu_ps,
    _mm512_storeu_si512, _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
};

/// Columns of a vector.
pub(crate) const LANES: usize = 16;

/// Vectors of them.
pub(crate) const VECTORS: usize = 2;

/// Columns of a set.
pub(crate) const SET: usize = VECTORS * LANES;

/// Elements whose codes are a lane's.
pub(crate) const EIGHT: usize = 8;

/// Something of each column of a set.
pub(crate) type Each<T> = [[T; LANES]; VECTORS];

/// Bytes of each line that are turned at once: what memory brings at once, too.
pub(crate) const SQUARE: usize = 4 * LANES;

/// Writes four bytes of each of `lines`, from byte `at` on, beside each other, then the next four, and so on.
///
/// # Panics
/// If lines end before [`SQUARE`] bytes.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
pub(crate) fn turn<T: Number>(lines: &[&[u8]; SET], at: usize, out: &mut [Each<T>; LANES]) {
    const { assert!(size_of::<T>() == 4, "four bytes") };
    for (v, lines) in lines.as_chunks::<LANES>().0.iter().enumerate() {
        turn_square(lines, at, out, v);
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
fn turn_square<T: Number>(lines: &[&[u8]; LANES], at: usize, out: &mut [Each<T>; LANES], vector: usize) {
    // The squares of four in each quarter: vector `c` of a four holds their column `c` of every quarter.
    let mut fours = [[_mm512_setzero_si512(); 4]; 4];
    for (four, lines) in fours.iter_mut().zip(lines.as_chunks::<4>().0) {
        let mut rows = [_mm512_setzero_si512(); 4];
        for (row, line) in rows.iter_mut().zip(lines) {
            // SAFETY: as many bytes.
            *row = unsafe { _mm512_loadu_si512(line[at..at + SQUARE].as_ptr().cast()) };
        }
        let [a, b, c, d] = rows;
        let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
        (four[0], four[1]) = (_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
        let (ab, cd) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
        (four[2], four[3]) = (_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    }
    for c in 0..4 {
        let [p, q, r, s] = [fours[0][c], fours[1][c], fours[2][c], fours[3][c]];
        let (pq, rs) = (_mm512_shuffle_i32x4::<0x88>(p, q), _mm512_shuffle_i32x4::<0x88>(r, s));
        store(_mm512_shuffle_i32x4::<0x88>(pq, rs), &mut out[c][vector]);
        store(_mm512_shuffle_i32x4::<0xdd>(pq, rs), &mut out[8 + c][vector]);
        let (pq, rs) = (_mm512_shuffle_i32x4::<0xdd>(p, q), _mm512_shuffle_i32x4::<0xdd>(r, s));
        store(_mm512_shuffle_i32x4::<0x88>(pq, rs), &mut out[4 + c][vector]);
        store(_mm512_shuffle_i32x4::<0xdd>(pq, rs), &mut out[12 + c][vector]);
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store<T: Number>(v: __m512i, out: &mut [T; LANES]) {
    // SAFETY: sixteen of four bytes.
    unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), v) }
}

/// Memory that is needed later: the line of each column that lies so many bytes from there.
#[derive(Clone, Copy)]
pub(crate) struct Later<'l, 'a> {
    pub(crate) lines: &'l [&'a [u8]; SET],
    pub(crate) ahead: usize,
    /// Whether the second cache alone is asked: on Emerald Rapids that takes 0.93 to 0.99 of the time.
    pub(crate) by_second: bool,
}

impl Later<'_, '_> {
    /// Asks for as much as vector `i` of the turned columns at hand has.
    #[inline(always)]
    pub(super) fn ask(&self, i: usize) {
        for line in &self.lines.as_chunks::<VECTORS>().0[i % LANES] {
            let at = line.as_ptr().wrapping_add(self.ahead + i / LANES * SQUARE);
            if self.by_second {
                prefetch::<2>(at);
            } else {
                prefetch::<1>(at);
            }
        }
    }
}

/// Adds to `sums` the products of `R` rows `a`, number by number of k, with the columns of `codes`, of which `shared` have an
/// entry of `scales`, and four times as many one of `shifts` if there are any, see [`Table::shifted`]: a byte each. Asks
/// meanwhile for as many codes of `later`: all at once would keep those waiting that are turned next.
///
/// # Panics
/// If rows, scales or shifts are short.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
pub(crate) fn lanes<const R: usize>(
    table: &Table,
    a: &[f32],
    (codes, shared): (&[Each<u32>], usize),
    (scales, shifts): (&[Each<f32>], &[Each<u32>]),
    later: Option<Later<'_, '_>>,
    sums: &mut [Each<f32>],
) {
    let shares = codes.len() / shared;
    let (a, scales, sums) = (&a[..codes.len() * EIGHT * R], &scales[..shares], &mut sums[..R]);
    let tables = table.load();
    // Written out, so that shifts are by constants.
    macro_rules! loops {
        ($shifts:expr, $shifted:literal, $($j:literal)*) => {
            for (g, scale) in scales.iter().enumerate() {
                let mut some = [[_mm512_setzero_ps(); VECTORS]; R];
                let mut shift = [_mm512_setzero_si512(); VECTORS];
                if $shifted {
                    for c in 0..VECTORS {
                        shift[c] = each_byte(&$shifts[g / 4][c], g % 4);
                    }
                }
                for i in g * shared..(g + 1) * shared {
                    // SAFETY: a vector of codes, and R numbers for each of its eight elements.
                    unsafe {
                        let codes = codes.as_ptr().add(i).cast::<__m512i>();
                        let a = a.as_ptr().add(i * EIGHT * R);
                        if let Some(later) = later {
                            later.ask(i);
                        }
                        let mut five = [[_mm512_setzero_si512(); VECTORS]; 2];
                        if $shifted {
                            for (parity, five) in five.iter_mut().enumerate() {
                                for c in 0..VECTORS {
                                    five[c] = five_bits(tables[2], codes.add(c).read_unaligned(), parity, shift[c]);
                                }
                            }
                        }
                        $({
                            let mut numbers = [_mm512_setzero_ps(); VECTORS];
                            for c in 0..VECTORS {
                                numbers[c] = if $shifted {
                                    five_bit_numbers(&tables, _mm512_srli_epi32::<{ $j / 2 * 8 }>(five[$j % 2][c]))
                                } else {
                                    // The look-up ignores all but four bits.
                                    let code = _mm512_srli_epi32::<{ 4 * $j }>(codes.add(c).read_unaligned());
                                    _mm512_permutexvar_ps(code, _mm512_castsi512_ps(tables[0]))
                                };
                            }
                            for r in 0..R {
                                let a = _mm512_set1_ps(*a.add($j * R + r));
                                for c in 0..VECTORS {
                                    some[r][c] = _mm512_fmadd_ps(numbers[c], a, some[r][c]);
                                }
                            }
                        })*
                    }
                }
                for r in 0..R {
                    for c in 0..VECTORS {
                        // SAFETY: sixteen numbers each.
                        unsafe {
                            let (sum, scale) = (sums[r][c].as_mut_ptr(), _mm512_loadu_ps(scale[c].as_ptr()));
                            _mm512_storeu_ps(sum, _mm512_fmadd_ps(some[r][c], scale, _mm512_loadu_ps(sum)));
                        }
                    }
                }
            }
        };
    }
    if shifts.is_empty() {
        loops!(shifts, false, 0 1 2 3 4 5 6 7);
    } else {
        let shifts = &shifts[..shares.div_ceil(4)];
        // Those that need no shift of bits last, in place.
        loops!(shifts, true, 2 4 6 0 3 5 7 1);
    }
}

/// Byte `i` of each lane in all of its bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn each_byte(lanes: &[u32; LANES], i: usize) -> __m512i {
    // Places within 16 bytes.
    let first = _mm512_set4_epi32(0x0c0c_0c0c, 0x0808_0808, 0x0404_0404, 0);
    // SAFETY: 64 bytes.
    let lanes = unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) };
    _mm512_shuffle_epi8(lanes, _mm512_add_epi8(first, _mm512_set1_epi8(i as i8)))
}
