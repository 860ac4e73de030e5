//! Rows of bytes as products of bytes take a B: of four rows, the four bytes of each column side by side.
//!
//! ```text
//!                  outer ─▶ 64 bytes                    a line of each of four tiles, or of a panel
//!          ┌────────────────────────────┐            ┌──────┬──────┬──────┬──────┐
//!    inner │ four rows                  │     ─▶     │ 4×16 │ 4×16 │ 4×16 │ 4×16 │
//!          └────────────────────────────┘            └──────┴──────┴──────┴──────┘
//! ```
//! That is a third of the work of making them rows of columns. For tiles, blocks of two lines of the cache are made together: lines some power of two apart share
//! so few places of a cache that they would not be there again, and neighbours come together. (One thread, 16 and 128×4096×4096: blocks of one line
//! took 0.50 and 0.75 of the time of rows of columns, of two 0.87 and 0.91 of that.)

use super::{
    across::{AHEAD, Lines, Turned},
    amx::lines::{BLOCK, STEP_BYTES},
    side::Side,
};
use crate::amx::{ROW_BYTES, ROWS, TILE_BYTES};
use std::{
    arch::x86_64::{
        __m512i, _mm512_maskz_loadu_epi8, _mm512_setzero_si512, _mm512_shuffle_i32x4, _mm512_storeu_si512,
        _mm512_unpackhi_epi8, _mm512_unpackhi_epi16, _mm512_unpacklo_epi8, _mm512_unpacklo_epi16,
    },
    ops::Range,
};

/// Rows whose bytes become neighbours, and columns that do at a time.
pub(crate) const FOUR: usize = 4;
const COLUMNS: usize = 64;

impl Turned<'_> {
    /// Elements `inner` of columns `outer`, a block at most that begins at one, of bytes in rows, as lines of two tiles a step. What is missing is 0.
    ///
    /// # Safety
    /// The processor has AVX-512 F and BW.
    ///
    /// # Panics
    /// If there are more of them than there is room for.
    pub(super) unsafe fn fours(
        &mut self,
        side: &Side<'_>,
        batch: usize,
        outer: Range<usize>,
        inner: Range<usize>,
    ) -> &[u8] {
        let bytes = inner.len().div_ceil(FOUR * ROWS) * STEP_BYTES;
        if self.is_to_be_made(side, batch, (&outer, BLOCK), &inner) {
            let lines = Lines::of(side, batch, &self.outer, &self.inner);
            // SAFETY: the caller's promise.
            unsafe { to_tiles(lines, &mut self.room[..self.outer.len().div_ceil(BLOCK) * bytes], bytes) };
        }
        &self.room[(outer.start - self.outer.start) / BLOCK * bytes..][..bytes]
    }
}

/// Makes lines of some blocks of columns tiles, those of each block so many bytes.
#[target_feature(enable = "avx512f,avx512bw")]
fn to_tiles(lines: Lines<'_>, out: &mut [u8], bytes: usize) {
    for line in 0..bytes / STEP_BYTES * ROWS {
        let at = line / ROWS * STEP_BYTES + line % ROWS * ROW_BYTES;
        for (pair, blocks) in out.chunks_mut(2 * bytes).enumerate() {
            let tiles = interleaved(&lines, FOUR * line, pair * COLUMNS);
            for (block, tiles) in blocks.chunks_exact_mut(bytes).zip(tiles.as_chunks::<2>().0) {
                for (tile, &codes) in tiles.iter().enumerate() {
                    let line = &mut block[at + tile * TILE_BYTES..][..ROW_BYTES];
                    // SAFETY: 64 bytes.
                    unsafe { _mm512_storeu_si512(line.as_mut_ptr().cast(), codes) };
                }
            }
        }
    }
}

/// Of four lines from `first` on, the 64 columns from `from` on, sixteen a vector. What is missing is 0. Others are asked for, that come later.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn interleaved(lines: &Lines<'_>, first: usize, from: usize) -> [__m512i; 4] {
    let mask = u64::MAX >> COLUMNS.saturating_sub(lines.width - from);
    let row = |i: usize| match i < lines.count {
        // SAFETY: those of 64 bytes that are there.
        true => unsafe { _mm512_maskz_loadu_epi8(mask, lines.at::<8>(i, from).cast()) },
        false => _mm512_setzero_si512(),
    };
    lines.ask::<8>(first + AHEAD, from, FOUR);
    woven([row(first), row(first + 1), row(first + 2), row(first + 3)])
}

/// Sixteen columns of each quarter.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn woven([a, b, c, d]: [__m512i; FOUR]) -> [__m512i; 4] {
    let (low, high) = (_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b));
    let (low_after, high_after) = (_mm512_unpacklo_epi8(c, d), _mm512_unpackhi_epi8(c, d));
    // Of each 128 bits four columns.
    let [a, b] = [_mm512_unpacklo_epi16(low, low_after), _mm512_unpackhi_epi16(low, low_after)];
    let [c, d] = [_mm512_unpacklo_epi16(high, high_after), _mm512_unpackhi_epi16(high, high_after)];
    let front = [_mm512_shuffle_i32x4::<0x44>(a, b), _mm512_shuffle_i32x4::<0x44>(c, d)];
    let back = [_mm512_shuffle_i32x4::<0xee>(a, b), _mm512_shuffle_i32x4::<0xee>(c, d)];
    [
        _mm512_shuffle_i32x4::<0x88>(front[0], front[1]),
        _mm512_shuffle_i32x4::<0xdd>(front[0], front[1]),
        _mm512_shuffle_i32x4::<0x88>(back[0], back[1]),
        _mm512_shuffle_i32x4::<0xdd>(back[0], back[1]),
    ]
}
