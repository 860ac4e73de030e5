//! What four tiles of AMX compute, by dot products of AVX-512: 32 rows of pairs of bf16 by 32 lanes.
//!
//! ```text
//!                     right: 2 vectors of pairs
//!   left: 8 rows, a   ─────────
//!   pair of each in   8 × 2 sums
//!   all lanes
//! ```
//! Sixteen sums are more than two units of six cycles have on their way; ten vectors are loaded for sixteen products.
//! Numbers below 2⁻¹²⁶ count as 0, as they do in tiles.

use crate::{
    amx::ROWS,
    gemm::amx::tile::{Operand, Tile},
};
use std::arch::x86_64::{
    __m512bh, __m512i, _mm512_dpbf16_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_set1_epi32, _mm512_setzero_ps,
    _mm512_storeu_ps,
};

/// Rows whose sums are in registers.
const TALL: usize = 8;

/// Computes `tile`, of bf16, whose left operand passes.
///
/// # Safety
/// - The pointers name what they say, of which nothing else writes operands or accesses sums.
/// - The processor has the instructions.
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) unsafe fn product(tile: &Tile) {
    let Tile { left, right, halves, steps, sums, sums_ld, first, .. } = *tile;
    for half in 0..halves {
        for row in (0..ROWS).step_by(TALL) {
            let left = Operand { at: [left.at[half].wrapping_add(row * left.ld); 2], ..left };
            let sums = sums[half].wrapping_byte_add(row * sums_ld).cast();
            // SAFETY: passed on.
            unsafe { rows(left, right, steps, (sums, sums_ld), first) };
        }
    }
}

/// Eight rows of it.
///
/// # Safety
/// As [`product`].
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
#[expect(clippy::needless_range_loop, reason = "what iterates over the sums keeps them in memory")]
unsafe fn rows(left: Operand, right: Operand, steps: usize, (out, ld): (*mut f32, usize), first: bool) {
    let place = |row: usize, half: usize| out.wrapping_byte_add(row * ld).wrapping_add(half * ROWS);
    let mut sums = [[_mm512_setzero_ps(); 2]; TALL];
    if !first {
        for row in 0..TALL {
            for half in 0..2 {
                // SAFETY: the caller's promise.
                sums[row][half] = unsafe { _mm512_loadu_ps(place(row, half)) };
            }
        }
    }
    for step in 0..steps {
        let at = left.at[0].wrapping_add(step * left.step);
        let lanes = right.at.map(|at| at.wrapping_add(step * right.step));
        for pair in 0..ROWS {
            let load = |half: usize| {
                // SAFETY: as above.
                pairs(unsafe { _mm512_loadu_si512(lanes[half].wrapping_add(pair * right.ld).cast()) })
            };
            let b = [load(0), load(1)];
            for row in 0..TALL {
                let at = at.wrapping_add(row * left.ld + 4 * pair).cast::<i32>();
                // SAFETY: as above.
                let a = pairs(_mm512_set1_epi32(unsafe { at.read_unaligned() }));
                for half in 0..2 {
                    sums[row][half] = _mm512_dpbf16_ps(sums[row][half], a, b[half]);
                }
            }
        }
    }
    for row in 0..TALL {
        for half in 0..2 {
            // SAFETY: as above.
            unsafe { _mm512_storeu_ps(place(row, half), sums[row][half]) };
        }
    }
}

/// Words as pairs of bf16.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn pairs(words: __m512i) -> __m512bh {
    // SAFETY: both are 64 bytes of plain bits.
    unsafe { std::mem::transmute::<__m512i, __m512bh>(words) }
}
