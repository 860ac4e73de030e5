//! What [`super::tile`] computes, of bf16 and in vectors, for processors without tiles.
//!
//! A pair of a left row is spread over a vector and meets the pairs of sixteen right rows. Eight left rows by two vectors are
//! 16 sums and ten loads a pair, and sixteen by one, for the last few right rows, as many sums and 17 loads. Left rows are
//! packed, so that where each lies is part of an instruction: with a distance known only at run time the same loop took 1.35
//! times as long (Zen 5), and 12 rows by two vectors or six by four are no faster.

use super::tile::Tile;
use crate::{
    amx::{ROW_BYTES, ROWS},
    gemm::tile::{Ahead, Shared},
};
use std::{
    arch::x86_64::{
        __m512, __m512bh, __m512i, _MM_HINT_T0, _mm_prefetch, _mm512_add_ps, _mm512_dpbf16_ps, _mm512_loadu_ps,
        _mm512_loadu_si512, _mm512_set1_epi32, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_storeu_ps,
    },
    mem::transmute,
};

/// Left rows that meet two vectors at a time.
const FEW: usize = ROWS / 2;

/// Pairs whose places are part of instructions: a loop over single pairs has four instructions more for each, and takes 2 % longer,
/// 2048³ beside busy neighbours a tenth.
const UNROLLED: usize = 4;

/// Steps before the end when sums are asked for: asked for at the beginning they are gone again, since a block of the right
/// operand passes meanwhile, which with the left rows is more than L1 holds.
const LATE: usize = 2;

/// Rows and vectors of a tile for sums of so many columns.
fn shape(columns: usize) -> (usize, usize) {
    if columns > ROWS { (FEW, 2) } else { (ROWS, 1) }
}

/// Tiles that [`run`] computes.
pub(super) fn tiles([rows, columns]: [usize; 2]) -> usize {
    rows.div_ceil(shape(columns).0)
}

/// Computes the sums of at least `rows` left rows by `columns` right ones, while the parts of what is wanted `next`, from the
/// one that is named on, are asked for, a little each step: as many lines at once would be waited for.
///
/// # Safety
/// As [`Tile::run`], for a left operand that was packed.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(super) unsafe fn run(tile: &Tile, [rows, columns]: [usize; 2], next: Option<(&Shared, usize)>) {
    let (height, width) = shape(columns);
    for (i, first) in (0..rows).step_by(height).enumerate() {
        let ahead = next.map_or(Ahead::NONE, |(next, part)| next.part(part + i));
        let (half, row) = (first / ROWS, first % ROWS);
        let left = tile.left.at[half].wrapping_add(row * ROW_BYTES);
        let sums = tile.sums[half].wrapping_byte_add(row * tile.sums_ld).cast();
        // SAFETY: passed on.
        unsafe {
            match width {
                2 => rows_by::<FEW, 2>(tile, left, sums, ahead),
                _ => rows_by::<ROWS, 1>(tile, left, sums, ahead),
            }
        }
    }
}

/// Computes `R` rows of sums from `sums` on, of the left rows from `left` on.
///
/// # Safety
/// As [`run`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn rows_by<const R: usize, const V: usize>(tile: &Tile, left: *const u8, sums: *mut f32, mut ahead: Ahead) {
    let of = |row: usize, v: usize| sums.wrapping_byte_add(row * tile.sums_ld + v * ROW_BYTES);
    let mut all = [[_mm512_setzero_ps(); V]; R];
    let (mut left, mut right) = (left, tile.right.at);
    // SAFETY: operands and sums are where the caller says; prefetching may name anything.
    unsafe {
        let late = LATE.min(tile.steps.saturating_sub(1));
        for to_go in (0..tile.steps).rev() {
            if to_go == late {
                for row in 0..R {
                    for v in 0..V {
                        _mm_prefetch::<_MM_HINT_T0>(of(row, v).cast());
                    }
                }
            }
            ahead.ask();
            let (mut pairs, mut lines) = (left, right);
            for _ in 0..ROWS / UNROLLED {
                for pair in 0..UNROLLED {
                    let mut there = [bf16s(_mm512_setzero_si512()); V];
                    for (there, line) in there.iter_mut().zip(lines) {
                        *there = bf16s(_mm512_loadu_si512(line.wrapping_add(pair * tile.right.ld).cast()));
                    }
                    for (row, sums) in all.iter_mut().enumerate() {
                        let two = pairs.wrapping_add(row * ROW_BYTES + 4 * pair).cast::<i32>().read_unaligned();
                        let two = bf16s(_mm512_set1_epi32(two));
                        sums.iter_mut().zip(there).for_each(|(sum, there)| *sum = _mm512_dpbf16_ps(*sum, two, there));
                    }
                }
                pairs = pairs.wrapping_add(4 * UNROLLED);
                lines = lines.map(|line| line.wrapping_add(UNROLLED * tile.right.ld));
            }
            left = left.wrapping_add(tile.left.step);
            right = right.map(|at| at.wrapping_add(tile.right.step));
        }
        for (row, sums) in all.into_iter().enumerate() {
            for (v, sum) in sums.into_iter().enumerate() {
                let total = if tile.first { sum } else { _mm512_add_ps(_mm512_loadu_ps(of(row, v)), sum) };
                _mm512_storeu_ps(of(row, v), total);
            }
        }
    }
}

/// The same bits as pairs of bf16.
#[inline]
#[target_feature(enable = "avx512f")]
fn bf16s(bits: __m512i) -> __m512bh {
    // SAFETY: both are 64 bytes of plain bits.
    unsafe { transmute(bits) }
}

/// Sums of a vector are those of a line.
const _: () = assert!(size_of::<__m512>() == ROW_BYTES);
