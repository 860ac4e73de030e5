//! Dot products of one row of bytes with columns of four bits, as the columns lie in memory, summed exactly in i32.
//!
//! ```text
//!   column   │ 64 bytes │ …     a step: 128 codes, those of even place first
//!   row      │ 128 codes │ …    i8, in the same order
//! ```
//! Every lane holds eight neighbours, whose sum one scale multiplies: the column's, which has been multiplied by the row's.
//! Codes are moved up until none is negative, see [`super::byte_dots`]; zero points move each by its own. Where a byte is too coarse
//! for what a code means, a second product has 256ths.

use super::{
    byte_dots::Lift,
    dots::{BROAD_SHARE, Ends, SHARE, STEP, SUMS, add_lanes, ask, ends, five_bits, shared, spread},
    lists::{Columns, LIST, List},
};
use std::arch::x86_64::{
    __m512i, _mm_loadu_si128, _mm512_add_epi32, _mm512_broadcast_i32x4, _mm512_cvtepi32_ps, _mm512_dpbusd_epi32,
    _mm512_fmadd_ps, _mm512_loadu_si512, _mm512_permutexvar_epi8, _mm512_set1_epi8, _mm512_set1_epi64,
    _mm512_setzero_ps, _mm512_setzero_si512, _mm512_shuffle_epi8, _mm512_slli_epi32, _mm512_srli_epi32,
};

/// How codes become unsigned bytes.
pub(crate) const FLIPPED: u8 = 0;
pub(crate) const SHIFTED: u8 = 1;
pub(crate) const LOOKED_UP: u8 = 2;
/// Looked up, and their 256ths too.
pub(crate) const FINE: u8 = 3;

/// Bytes of a step of columns.
const BYTES: usize = STEP / 2;

/// Adds to `sums` the products of a row `a`, zeros past the end, with each of `C` columns. Of the row, `taken` has for each lane of a
/// step − offset · the sum of its codes. Bits of `lift.flip` are turned around, and shifts added if codes are `SHIFTED`; or codes are
/// looked up: see `HOW`.
///
/// # Panics
/// If `a` or the lists do not cover the columns' steps.
#[expect(clippy::needless_range_loop, reason = "one index serves several squares of registers")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(crate) fn byte_row<const HOW: u8, const C: usize>(
    lift: &Lift,
    (a, taken): (&[i8], &[i32]),
    columns: &Columns<'_>,
    sums: &mut [f32],
) {
    let &Columns { codes, share, scales, zeros, ahead, mut far } = columns;
    let codes: &[&[u8]; C] = codes.try_into().expect("as many columns as the loop is for");
    let steps = codes[0].len().div_ceil(BYTES);
    let entries = STEP / share;
    columns.check(steps * entries);
    assert!(scales.len() >= C && (HOW != SHIFTED || zeros.len() >= C), "lists of {C} columns");
    assert!(codes.iter().all(|some| some.len() == codes[0].len()), "columns of one length");
    assert!(a.len() >= steps * STEP && taken.len() >= steps * 16, "a row of {} codes for {steps} steps", a.len());
    // SAFETY: sixteen bytes, and 64.
    let (table, fine, each) = unsafe {
        let each = if share == SHARE { &EIGHTHS } else { &QUARTERS };
        // Sixteen bytes four times, so that of a look-up's six bits the upper two, which are another code's, say nothing.
        let table = |table: &[u8; 16]| _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
        (table(&lift.table), table(&lift.fine), _mm512_loadu_si512(each.as_ptr().cast()))
    };
    let flip: [__m512i; 4] = [table, table, _mm512_set1_epi8(lift.flip as i8), table];
    let spread = spread(entries);
    let mut totals = [_mm512_setzero_ps(); C];
    let mut last: Ends<C>;
    for s in 0..steps {
        let mut starts = [std::ptr::null(); C];
        if (s + 1) * BYTES <= codes[0].len() {
            for c in 0..C {
                starts[c] = codes[c][s * BYTES..].as_ptr();
                ask(starts[c], ahead, BYTES);
            }
        } else {
            last = ends(*codes, s * BYTES);
            for c in 0..C {
                starts[c] = last[c].as_ptr();
            }
        }
        // SAFETY: a whole step of codes is there, and of all else, as asserted.
        unsafe {
            let taken = _mm512_loadu_si512(taken.as_ptr().add(s * 16).cast());
            let row = [0, 1].map(|half| a.as_ptr().add(s * STEP + 64 * half));
            let row = [_mm512_loadu_si512(row[0].cast()), _mm512_loadu_si512(row[1].cast())];
            for c in 0..C {
                far.ask::<true>(BYTES / 64);
                let codes = _mm512_loadu_si512(starts[c].cast());
                let mut shift = _mm512_setzero_si512();
                if HOW == SHIFTED {
                    let place = zeros.as_ptr().cast::<u8>().wrapping_add(c * size_of::<List>() + s * entries);
                    shift = _mm512_shuffle_epi8(_mm512_set1_epi64(place.cast::<i64>().read_unaligned()), each);
                }
                let (mut sum, mut parts) = (taken, _mm512_setzero_si512());
                for parity in 0..2 {
                    let bytes = if matches!(HOW, LOOKED_UP | FINE) {
                        let codes = if parity == 0 { codes } else { _mm512_srli_epi32::<4>(codes) };
                        if HOW == FINE {
                            parts = _mm512_dpbusd_epi32(parts, _mm512_permutexvar_epi8(codes, fine), row[parity]);
                        }
                        _mm512_permutexvar_epi8(codes, table)
                    } else {
                        five_bits(flip[2], codes, parity, shift)
                    };
                    sum = _mm512_dpbusd_epi32(sum, bytes, row[parity]);
                }
                if HOW == FINE {
                    sum = _mm512_add_epi32(_mm512_slli_epi32::<8>(sum), parts);
                }
                let scales = scales.as_ptr().cast::<f32>().wrapping_add(c * LIST + s * entries);
                let scale = shared::<super::dots::Nibbles>(scales, spread, 0, 0);
                totals[c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, totals[c]);
            }
        }
    }
    let mut vectors = [_mm512_setzero_ps(); SUMS];
    vectors[..C].copy_from_slice(&totals);
    add_lanes(&vectors, &mut sums[..C]);
}

/// Which of eight shifts, or four, each byte of a step has.
const EIGHTHS: [u8; 64] = places(SHARE);
const QUARTERS: [u8; 64] = places(BROAD_SHARE);

const fn places(share: usize) -> [u8; 64] {
    let mut places = [0; 64];
    let mut i = 0;
    while i < 64 {
        places[i] = (2 * i / share) as u8;
        i += 1;
    }
    places
}
