//! Products of a few rows of bf16 with a B of bf16 as it lies in memory, two of k at a time in each lane.
//!
//! ```text
//!   columns   │ 32 numbers │ …   C at once, each line with the same of R rows: R × C vectors of sums, whose lanes are
//!                               added in the end
//!   panel     │ 32 columns │    two vectors, with a pair of each row in all lanes: R × 2 vectors of sums
//!   k, k + 1  │  × 2 of k  │
//! ```

use super::dots::{SUMS, add_lanes, ask};
use std::arch::x86_64::{
    __m512bh, __m512i, _mm512_dpbf16_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_set1_epi32, _mm512_setzero_ps,
    _mm512_setzero_si512, _mm512_storeu_ps,
};

/// Numbers of a line of a column, and bytes.
pub(crate) const LINE: usize = 32;
pub(crate) const LINE_BYTES: usize = 2 * LINE;

/// Columns of a panel, and bytes of a pair of k of all of them.
pub(crate) const PANEL: usize = 32;
const PAIR_BYTES: usize = 4 * PANEL;

/// How far ahead of its use a panel is asked for, in bytes.
const AHEAD: usize = 4 << 10;

/// Adds to `sums` the products of `R` rows `a`, line by line, with `C` columns of one length; column by column. Asks for what
/// lies `ahead` bytes behind them.
///
/// # Panics
/// If the rows have fewer lines.
#[expect(clippy::needless_range_loop, reason = "one index serves several squares of registers")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(crate) fn columns<const R: usize, const C: usize>(a: &[u32], columns: &[&[u8]], ahead: usize, sums: &mut [f32]) {
    const { assert!(R * C <= SUMS, "sums of a loop") };
    let columns: &[&[u8]; C] = columns.try_into().expect("as many columns as the loop is for");
    let len = columns[0].len();
    assert!(columns.iter().all(|column| column.len() == len), "columns of one length");
    let a = &a[..len.div_ceil(LINE_BYTES) * R * LINE / 2];
    let mut totals = [[_mm512_setzero_ps(); C]; R];
    // SAFETY: lines of columns that are there, and of each row.
    unsafe {
        let row = |line: usize, r: usize| bf16(_mm512_loadu_si512(a.as_ptr().add((line * R + r) * LINE / 2).cast()));
        for line in 0..len / LINE_BYTES {
            let mut b = [_mm512_setzero_si512(); C];
            for c in 0..C {
                let at = columns[c].as_ptr().add(line * LINE_BYTES);
                ask(at.wrapping_add(ahead), LINE_BYTES);
                b[c] = _mm512_loadu_si512(at.cast());
            }
            for r in 0..R {
                let a = row(line, r);
                for c in 0..C {
                    totals[r][c] = _mm512_dpbf16_ps(totals[r][c], bf16(b[c]), a);
                }
            }
        }
        if !len.is_multiple_of(LINE_BYTES) {
            let line = len / LINE_BYTES;
            for c in 0..C {
                let mut last = [0_u8; LINE_BYTES];
                last[..len % LINE_BYTES].copy_from_slice(&columns[c][line * LINE_BYTES..]);
                let b = bf16(_mm512_loadu_si512(last.as_ptr().cast()));
                for r in 0..R {
                    totals[r][c] = _mm512_dpbf16_ps(totals[r][c], b, row(line, r));
                }
            }
        }
    }
    let mut vectors = [_mm512_setzero_ps(); SUMS];
    for r in 0..R {
        for c in 0..C {
            vectors[c * R + r] = totals[r][c];
        }
    }
    add_lanes(&vectors, &mut sums[..R * C]);
}

/// Adds to `sums` the products of `R` rows `a`, pair by pair, with a panel.
///
/// # Panics
/// If there are fewer rows of sums, or of pairs.
#[expect(clippy::needless_range_loop, reason = "one index serves several squares of registers")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(crate) fn panel<const R: usize>(a: &[u32], panel: &[u8], sums: &mut [[f32; PANEL]]) {
    let pairs = panel.len() / PAIR_BYTES;
    let (a, sums) = (&a[..pairs * R], &mut sums[..R]);
    let mut totals = [[_mm512_setzero_ps(); 2]; R];
    // SAFETY: vectors of sums, pairs of the panel and of each row that are there.
    unsafe {
        for r in 0..R {
            for v in 0..2 {
                totals[r][v] = _mm512_loadu_ps(sums[r].as_ptr().add(16 * v));
            }
        }
        for pair in 0..pairs {
            let at = panel.as_ptr().add(pair * PAIR_BYTES);
            ask(at.wrapping_add(AHEAD), PAIR_BYTES);
            let b = [bf16(_mm512_loadu_si512(at.cast())), bf16(_mm512_loadu_si512(at.add(64).cast()))];
            for r in 0..R {
                let a = bf16(_mm512_set1_epi32(*a.get_unchecked(pair * R + r) as i32));
                for v in 0..2 {
                    totals[r][v] = _mm512_dpbf16_ps(totals[r][v], b[v], a);
                }
            }
        }
        for r in 0..R {
            for v in 0..2 {
                _mm512_storeu_ps(sums[r].as_mut_ptr().add(16 * v), totals[r][v]);
            }
        }
    }
}

#[inline(always)]
fn bf16(bits: __m512i) -> __m512bh {
    // SAFETY: both are 64 bytes of plain bits.
    unsafe { std::mem::transmute(bits) }
}
