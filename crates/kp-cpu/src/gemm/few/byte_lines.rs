//! Products of a few rows of bytes with lines of a B of bytes whose rows are contiguous, summed exactly in i32.
//!
//! ```text
//!              64 columns, a strip
//!            ├────────────┤
//!        k   │ ────────── │ ┐
//!            │ ────────── │ │ four lines become four vectors, each of four bytes of sixteen columns, which meet all rows
//!            │ ────────── │ │
//!            │ ────────── │ ┘
//! ```
//! Instructions want one side unsigned: B, moved up until no code is negative, or rows that are.

use super::{
    fours::FOUR,
    lines::{Asks, LINES},
};
use std::arch::x86_64::{
    __m512i, _mm512_dpbusd_epi32, _mm512_loadu_si512, _mm512_set1_epi8, _mm512_set1_epi32, _mm512_setzero_si512,
    _mm512_storeu_si512, _mm512_unpackhi_epi8, _mm512_unpackhi_epi16, _mm512_unpacklo_epi8, _mm512_unpacklo_epi16,
    _mm512_xor_si512,
};

/// Columns of a strip, and vectors of their sums.
pub(crate) const STRIP: usize = 64;
const VECTORS: usize = STRIP / 16;

/// Rows whose sums registers hold.
const ROWS: usize = 4;

/// Part of some lines: their bytes, from the first one's on, and how far it is from one to the next.
#[derive(Clone, Copy)]
pub(crate) struct Strip<'a> {
    pub(crate) codes: &'a [u8],
    pub(crate) ld: usize,
    pub(crate) lines: usize,
    pub(crate) asks: Asks,
    /// Which bits of them are turned around.
    pub(crate) flip: u8,
}

/// Where the sum of a column of a strip stands: the instructions that put four lines side by side do so within sixteen columns.
pub(crate) fn place(column: usize) -> usize {
    column % 16 / 4 * 16 + column / 16 * 4 + column % 4
}

/// Adds to `sums`, a strip of each row, rows `ld` apart, the products of `R` rows `a`, four elements after the other, with a strip; sums wrap. Codes of A
/// are `A_SIGNED`, and then those of B, turned around, are not.
///
/// # Panics
/// If rows, sums or the strip are short, or there are more than [`LINES`].
#[expect(clippy::needless_range_loop, reason = "one index serves several squares of registers")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(crate) fn byte_lines<const R: usize, const A_SIGNED: bool>(
    a: &[u32],
    strip: Strip<'_>,
    (sums, ld): (&mut [i32], usize),
) {
    let Strip { codes, ld: line, lines, asks, flip } = strip;
    let fours = lines.div_ceil(FOUR);
    assert!(lines <= LINES && a.len() >= fours * R, "{R} rows of {lines} codes");
    assert!(lines == 0 || codes.len() >= (lines - 1) * line + STRIP, "{lines} lines of {STRIP} bytes");
    let sums = &mut sums[..(R - 1) * ld + STRIP];
    let flip = _mm512_set1_epi8(flip as i8);
    let mut b = [[_mm512_setzero_si512(); VECTORS]; LINES / FOUR];
    for (s, b) in b.iter_mut().enumerate().take(fours) {
        let mut four = [_mm512_setzero_si512(); FOUR];
        for i in 0..FOUR {
            let at = codes.as_ptr().wrapping_add((FOUR * s + i) * line);
            asks.ask(at, STRIP);
            if FOUR * s + i < lines {
                // SAFETY: a line of the strip, as asserted.
                four[i] = unsafe { _mm512_loadu_si512(at.cast()) };
            }
        }
        *b = side_by_side(four.map(|line| _mm512_xor_si512(line, flip)));
    }
    for first in (0..R).step_by(ROWS) {
        let rows = const { if R < ROWS { R } else { ROWS } };
        let mut totals = [[_mm512_setzero_si512(); VECTORS]; ROWS];
        // SAFETY: sums of these rows, and numbers of each row, as asserted.
        unsafe {
            for r in 0..rows {
                for v in 0..VECTORS {
                    totals[r][v] = _mm512_loadu_si512(sums.as_ptr().add((first + r) * ld + 16 * v).cast());
                }
            }
            for s in 0..fours {
                for r in 0..rows {
                    let a = _mm512_set1_epi32(*a.get_unchecked(s * R + first + r) as i32);
                    for v in 0..VECTORS {
                        totals[r][v] = match A_SIGNED {
                            true => _mm512_dpbusd_epi32(totals[r][v], b[s][v], a),
                            false => _mm512_dpbusd_epi32(totals[r][v], a, b[s][v]),
                        };
                    }
                }
            }
            for r in 0..rows {
                for v in 0..VECTORS {
                    _mm512_storeu_si512(sums.as_mut_ptr().add((first + r) * ld + 16 * v).cast(), totals[r][v]);
                }
            }
        }
    }
}

/// Four lines as vectors of four bytes of a column each, in the order of [`place`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn side_by_side([a, b, c, d]: [__m512i; FOUR]) -> [__m512i; VECTORS] {
    let [low, high] = [[a, b], [c, d]].map(|[a, b]| [_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b)]);
    [
        _mm512_unpacklo_epi16(low[0], high[0]),
        _mm512_unpackhi_epi16(low[0], high[0]),
        _mm512_unpacklo_epi16(low[1], high[1]),
        _mm512_unpackhi_epi16(low[1], high[1]),
    ]
}
