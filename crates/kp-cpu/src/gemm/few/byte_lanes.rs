//! Products of several rows of bytes with columns of four bits, a column in each lane, summed exactly in i32.
//!
//! ```text
//!                 32 columns
//!            ┌────────┬────────┐
//!          k │        │        │  turned: a vector has the same eight codes of sixteen columns, four of even place, four of odd
//!            └────────┴────────┘
//!   R rows, each four bytes in all lanes: R × 2 vectors of sums
//! ```
//! `vpdpbusd` adds four products to each lane, so a scale costs a conversion and two multiplications for eight of these; with
//! lanes along k it would be for two. Codes are moved up until none is negative, see [`super::byte_dots`]; zero points
//! move each by its own, so that they cost an addition of bytes.

use super::{
    byte_dots::Lift,
    byte_row::{FINE, LOOKED_UP, SHIFTED},
    dots::five_bits,
    lanes::{Each, Later, VECTORS, each_byte},
};
use std::arch::x86_64::{
    __m512i, _mm_loadu_si128, _mm512_add_epi32, _mm512_broadcast_i32x4, _mm512_cvtepi32_ps, _mm512_dpbusd_epi32,
    _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_mul_ps, _mm512_permutexvar_epi8, _mm512_set1_epi8, _mm512_set1_epi32,
    _mm512_set1_ps, _mm512_setzero_si512, _mm512_slli_epi32, _mm512_srli_epi32, _mm512_storeu_ps,
};

/// Some steps of rows of A.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    /// For each eight elements, of each row four bytes of even place, then of each row those of odd place.
    pub(crate) codes: &'a [u32],
    /// Of each share and row what its sums begin with, − offset · the sum of its codes, and its scale.
    pub(crate) taken: &'a [i32],
    pub(crate) scales: &'a [f32],
}

/// Adds to `sums` the products of `R` rows with the columns of `codes`, of which `shared` have an entry of `scales`, and four
/// times as many one of `shifts` if there are any: a byte each, which is added to codes. See [`super::byte_row`] for how,
/// by `HOW`, codes become bytes. Asks meanwhile for as many codes of `later`.
///
/// # Panics
/// If rows, scales or shifts are short.
#[expect(clippy::needless_range_loop, reason = "one index serves several squares of registers")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn byte_lanes<const R: usize, const HOW: u8>(
    lift: &Lift,
    a: Rows<'_>,
    (codes, shared): (&[Each<u32>], usize),
    (scales, shifts): (&[Each<f32>], &[Each<u32>]),
    later: Option<Later<'_, '_>>,
    sums: &mut [Each<f32>],
) {
    let shares = codes.len() / shared;
    let (rows, taken, row_scales) = (&a.codes[..codes.len() * 2 * R], &a.taken[..shares * R], &a.scales[..shares * R]);
    let (scales, sums) = (&scales[..shares], &mut sums[..R]);
    assert!(HOW != SHIFTED || shifts.len() >= shares.div_ceil(4), "{shares} shares by {} shifts", shifts.len());
    // Four times, as `byte_row` has them. SAFETY: sixteen bytes.
    let table = |table: &[u8; 16]| _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(table.as_ptr().cast()) });
    let (table, fine) = (table(&lift.table), table(&lift.fine));
    let flip = [_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_set1_epi8(lift.flip as i8), table];
    for (g, scale) in scales.iter().enumerate() {
        let mut some = [[_mm512_setzero_si512(); VECTORS]; R];
        let mut parts = [[_mm512_setzero_si512(); VECTORS]; R];
        for r in 0..R {
            // SAFETY: a number for each share and row.
            some[r] = [_mm512_set1_epi32(unsafe { *taken.as_ptr().add(g * R + r) }); VECTORS];
        }
        let mut shift = [_mm512_setzero_si512(); VECTORS];
        if HOW == SHIFTED {
            for c in 0..VECTORS {
                shift[c] = each_byte(&shifts[g / 4][c], g % 4);
            }
        }
        for i in g * shared..(g + 1) * shared {
            // SAFETY: a vector of codes, and twice R times four bytes.
            unsafe {
                let codes = codes.as_ptr().add(i).cast::<__m512i>();
                let a = rows.as_ptr().add(i * 2 * R);
                if let Some(later) = later {
                    later.ask(i);
                }
                for parity in 0..2 {
                    let (mut bytes, mut more) = ([_mm512_setzero_si512(); VECTORS], [_mm512_setzero_si512(); VECTORS]);
                    for c in 0..VECTORS {
                        let codes = codes.add(c).read_unaligned();
                        bytes[c] = if matches!(HOW, LOOKED_UP | FINE) {
                            let codes = if parity == 0 { codes } else { _mm512_srli_epi32::<4>(codes) };
                            more[c] = _mm512_permutexvar_epi8(codes, fine);
                            _mm512_permutexvar_epi8(codes, table)
                        } else {
                            five_bits(flip[2], codes, parity, shift[c])
                        };
                    }
                    for r in 0..R {
                        let a = _mm512_set1_epi32(*a.add(parity * R + r) as i32);
                        for c in 0..VECTORS {
                            some[r][c] = _mm512_dpbusd_epi32(some[r][c], bytes[c], a);
                            if HOW == FINE {
                                parts[r][c] = _mm512_dpbusd_epi32(parts[r][c], more[c], a);
                            }
                        }
                    }
                }
            }
        }
        for r in 0..R {
            // SAFETY: as above.
            let by = _mm512_set1_ps(unsafe { *row_scales.as_ptr().add(g * R + r) });
            for c in 0..VECTORS {
                // SAFETY: sixteen numbers each.
                unsafe {
                    let (sum, scale) = (sums[r][c].as_mut_ptr(), _mm512_loadu_ps(scale[c].as_ptr()));
                    let mut whole = some[r][c];
                    if HOW == FINE {
                        whole = _mm512_add_epi32(_mm512_slli_epi32::<8>(whole), parts[r][c]);
                    }
                    let number = _mm512_cvtepi32_ps(whole);
                    let sums = _mm512_fmadd_ps(number, _mm512_mul_ps(scale, by), _mm512_loadu_ps(sum));
                    _mm512_storeu_ps(sum, sums);
                }
            }
        }
    }
}
