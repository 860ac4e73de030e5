//! Products of a few rows of bf16 with a B of bf16, or of bytes that become such, as it lies in memory: two of k at a time in each
//! lane.
//!
//! ```text
//!   columns   │ 64 codes   │ …   C at once, each line with the same of R rows: R × C vectors of sums, whose lanes are
//!                               added in the end
//!   panel     │ 32 columns │    two vectors, with a pair of each row in all lanes: R × 2 vectors of sums
//!   k, k + 1  │  × 2 of k  │
//! ```

use super::{
    dots::{Code, Ends, Kind, SUMS, Table, add_lanes, ask, byte_halves, ends, vector},
    far::Far,
};
use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm512_cvtne2ps_pbh, _mm512_dpbf16_ps, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_set1_epi32, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_storeu_ps, _mm512_unpackhi_epi8,
    _mm512_unpacklo_epi8,
};

/// Numbers of a line of A, and lines of a step.
pub(crate) const LINE: usize = 32;
pub(crate) const STEP_LINES: usize = 2;

/// Columns of a panel, and bytes of a pair of k of all of them.
pub(crate) const PANEL: usize = 32;
const PAIR_BYTES: usize = 4 * PANEL;

/// How far ahead of its use a panel is asked for, in bytes.
const AHEAD: usize = 4 << 10;

/// Rows for which a line is multiplied much faster than read.
const FAST: usize = 2;

/// Adds to `sums` the products of `R` rows `a`, line by line, with `C` columns of one length; column by column. Each line asks for
/// another `ahead` bytes behind it, and for one that is read later.
///
/// # Panics
/// If the rows have fewer lines.
#[expect(clippy::needless_range_loop, reason = "one index serves several squares of registers")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bf16")]
pub(crate) fn columns<T: Code, const R: usize, const C: usize>(
    table: &Table,
    a: &[u32],
    columns: &[&[u8]],
    (near, mut far): (usize, Far),
    sums: &mut [f32],
) {
    const { assert!(R * C <= SUMS, "sums of a loop") };
    let columns: &[&[u8]; C] = columns.try_into().expect("as many columns as the loop is for");
    let len = columns[0].len();
    assert!(columns.iter().all(|column| column.len() == len), "columns of one length");
    let bytes = const { T::KIND.step_bytes() * STEP_LINES * LINE / super::dots::STEP };
    let steps = len.div_ceil(bytes);
    let a = &a[..steps * STEP_LINES * R * LINE / 2];
    let tables = table.load();
    let mut totals = [[_mm512_setzero_ps(); C]; R];
    let mut last: Ends<C>;
    for s in 0..steps {
        let mut starts = [std::ptr::null(); C];
        if (s + 1) * bytes <= len {
            for c in 0..C {
                starts[c] = columns[c][s * bytes..].as_ptr();
                ask(starts[c], near, bytes);
            }
        } else {
            last = ends(*columns, s * bytes);
            for c in 0..C {
                starts[c] = last[c].as_ptr();
            }
        }
        // SAFETY: a step of columns is there, and of each row.
        unsafe {
            let mut b = [[_mm512_setzero_si512(); STEP_LINES]; C];
            for c in 0..C {
                b[c] = lines::<T>(&tables, starts[c]);
            }
            for line in 0..STEP_LINES {
                for r in 0..R {
                    let (turn, turns, lines) = (line * R + r, STEP_LINES * R, C * bytes / 64);
                    if R <= FAST {
                        far.ask_in_turn::<true>(turn, turns, lines);
                    } else {
                        far.ask_in_turn::<false>(turn, turns, lines);
                    }
                    let row = a.as_ptr().add(((s * STEP_LINES + line) * R + r) * LINE / 2);
                    let row = bf16(_mm512_loadu_si512(row.cast()));
                    for c in 0..C {
                        totals[r][c] = _mm512_dpbf16_ps(totals[r][c], bf16(b[c][line]), row);
                    }
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

/// Which pair of a step pair `i` of line `line` is.
pub(crate) const fn pair(kind: Kind, line: usize, i: usize) -> usize {
    match kind {
        // Halves of each eight, as unpacking leaves them.
        Kind::Bytes => i / 4 * 8 + 4 * line + i % 4,
        _ => line * LINE / 2 + i,
    }
}

/// The codes of a step as bf16, which has all of them.
///
/// # Safety
/// A step of codes can be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bf16")]
unsafe fn lines<T: Code>(tables: &[__m512i; 4], codes: *const u8) -> [__m512i; STEP_LINES] {
    // SAFETY: the caller's promise: vectors of numbers in the order in which they lie, or all bytes at once.
    unsafe {
        match T::KIND {
            Kind::Bf16 => [_mm512_loadu_si512(codes.cast()), _mm512_loadu_si512(codes.add(64).cast())],
            Kind::Bytes => {
                let [low, high] = byte_halves(tables, codes);
                [_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)]
            }
            _ => {
                let number = |i: usize| vector::<T>(tables, codes, 0, i);
                let line = |low: __m512, high: __m512| bits(_mm512_cvtne2ps_pbh(high, low));
                [line(number(0), number(1)), line(number(2), number(3))]
            }
        }
    }
}

/// Adds to `sums` the products of `R` rows `a`, pair by pair, with `P` panels; panel by panel. A single panel is asked of the second cache alone if it
/// streams `by_second`.
///
/// # Panics
/// If there are fewer rows of sums, or of pairs, or panels are not of one length.
#[expect(clippy::needless_range_loop, reason = "one index serves several squares of registers")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(crate) fn panels<const R: usize, const P: usize>(
    a: &[u32],
    panels: &[&[u8]],
    by_second: bool,
    sums: &mut [[f32; PANEL]],
) {
    let panels: &[&[u8]; P] = panels.try_into().expect("as many panels as the loop is for");
    let bytes = panels[0].len();
    assert!(panels.iter().all(|panel| panel.len() == bytes), "panels of one length");
    let pairs = bytes / PAIR_BYTES;
    let (a, sums) = (&a[..pairs * R], &mut sums[..R * P]);
    let mut far = if by_second { Far::behind(panels[0].as_ptr(), bytes) } else { Far::NONE };
    let mut totals = [[[_mm512_setzero_ps(); 2]; P]; R];
    // SAFETY: vectors of sums, pairs of each panel and of each row that are there.
    unsafe {
        for r in 0..R {
            for p in 0..P {
                for v in 0..2 {
                    totals[r][p][v] = _mm512_loadu_ps(sums[p * R + r].as_ptr().add(16 * v));
                }
            }
        }
        for pair in 0..pairs {
            for p in 0..P {
                let at = panels[p].as_ptr().add(pair * PAIR_BYTES);
                if by_second {
                    far.ask::<true>(PAIR_BYTES / 64);
                } else {
                    ask(at, AHEAD, PAIR_BYTES);
                }
                let b = [bf16(_mm512_loadu_si512(at.cast())), bf16(_mm512_loadu_si512(at.add(64).cast()))];
                for r in 0..R {
                    let a = bf16(_mm512_set1_epi32(*a.get_unchecked(pair * R + r) as i32));
                    for v in 0..2 {
                        totals[r][p][v] = _mm512_dpbf16_ps(totals[r][p][v], b[v], a);
                    }
                }
            }
        }
        for r in 0..R {
            for p in 0..P {
                for v in 0..2 {
                    _mm512_storeu_ps(sums[p * R + r].as_mut_ptr().add(16 * v), totals[r][p][v]);
                }
            }
        }
    }
}

#[inline(always)]
fn bf16(bits: __m512i) -> __m512bh {
    // SAFETY: both are 64 bytes of plain bits.
    unsafe { std::mem::transmute(bits) }
}

#[inline(always)]
fn bits(numbers: __m512bh) -> __m512i {
    // SAFETY: as above.
    unsafe { std::mem::transmute(numbers) }
}
