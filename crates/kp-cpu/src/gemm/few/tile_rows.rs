//! Rows of A as left tiles, for [products](super::tiles) with sets of columns.
//!
//! ```text
//!            pairs of elements 0 4 1 5 2 6 3 7 │ 8 12 9 13 … │ … 27 31      of each step of 32
//!   a tile   a part of each row, the next part of each, …                   as many as a tile has room for
//! ```
//! Where scales are of sixteen elements, all of that twice: first with zeros for the second half of the step, then for the first.

use super::{dots::STEP as STEP_OF_SETS, sets::Rows, tiles::STEP};
use crate::{
    amx::{ROW_BYTES, ROWS},
    gemm::{
        amx::parts::{PARTS, SPECIAL, nearest, pairs, split_plain},
        product::{Item, Product},
        side::Scaling,
    },
    kernel::Output,
    threads,
};
use std::{
    arch::x86_64::{
        __m512i, _mm512_loadu_ps, _mm512_maskz_mov_epi32, _mm512_or_si512, _mm512_permutex2var_ps, _mm512_set1_epi32,
        _mm512_setr_epi32, _mm512_setzero_si512, _mm512_storeu_si512,
    },
    ops::Range,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

/// Groups of rows, and how they lie in tiles.
#[derive(Clone, Copy)]
pub(crate) struct TileRows {
    pub(crate) rows: Rows,
    k: usize,
    scaling: Scaling,
    /// Numbers of bf16 that one of A is the sum of, or the first of them alone, to which it is rounded.
    parts: usize,
    /// Entries of scales of a step.
    pub(crate) halves: usize,
    /// Parts in a tile, and tiles of a step.
    pub(crate) joined: usize,
    pub(crate) tiles: usize,
}

impl TileRows {
    pub(crate) fn new(rows: Rows, k: usize, scaling: Scaling, parts: usize, halves: usize) -> Self {
        let joined = parts.min(ROWS / (halves * rows.height));
        Self { rows, k, scaling, parts, halves, joined, tiles: parts.div_ceil(joined) }
    }

    /// Lines of a tile.
    pub(crate) fn lines(&self) -> usize {
        self.halves * self.joined * self.rows.height
    }

    fn steps_of_sets(&self) -> usize {
        self.k.div_ceil(STEP_OF_SETS)
    }

    /// Bytes of a step of sets of a group.
    fn step_bytes(&self) -> usize {
        STEP_OF_SETS / STEP * self.tiles * self.lines() * ROW_BYTES
    }

    pub(crate) fn bytes(&self) -> usize {
        self.rows.groups * self.steps_of_sets() * self.step_bytes()
    }

    /// Steps `steps` of sets of group `group`.
    pub(crate) fn part<'a>(&self, a: &'a [u8], group: usize, steps: Range<usize>) -> &'a [u8] {
        &a[(group * self.steps_of_sets() + steps.start) * self.step_bytes()..][..steps.len() * self.step_bytes()]
    }

    /// Makes the rows of `item` ready: zeros past the last row and the last element. Answers whether a number is
    /// [special](crate::gemm::amx::parts::is_special), so that its parts are none.
    pub(crate) fn prepare(&self, product: &Product<'_>, item: Item, a: &mut [u8]) -> bool {
        let (steps, bytes) = (self.steps_of_sets(), self.step_bytes());
        let (a, special) = (Output::of(a), AtomicBool::new(false));
        threads::for_each(self.rows.groups * steps, |i| {
            // SAFETY: each step of each group once.
            let out = unsafe { a.part(i * bytes..(i + 1) * bytes) };
            let (group, step) = (i / steps, i % steps);
            let inner = step * STEP_OF_SETS..((step + 1) * STEP_OF_SETS).min(self.k);
            out.fill(0);
            for r in 0..self.rows.height {
                let row = group * self.rows.height + r;
                if row >= item.rows {
                    break;
                }
                let mut line = [0.0_f32; STEP_OF_SETS];
                let numbers = &mut line[..inner.len()];
                product.a.row(item.row_batch, item.row + row, inner.clone(), self.scaling, numbers);
                if numbers.iter().fold(false, |some, x| some | (x.to_bits() & !(1 << 31) >= SPECIAL)) {
                    special.store(true, Relaxed);
                }
                let of_tiles = out.chunks_exact_mut(self.tiles * self.lines() * ROW_BYTES);
                for (numbers, out) in line.as_chunks().0.iter().zip(of_tiles) {
                    // SAFETY: `supports` asked for the features.
                    unsafe { self.split(numbers, r, out) };
                }
            }
        });
        special.into_inner()
    }

    /// Splits a step of row `r` of a group.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    fn split(&self, numbers: &[f32; STEP], r: usize, out: &mut [u8]) {
        let places = _mm512_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
        let fourth = _mm512_or_si512(places, _mm512_set1_epi32(4));
        // SAFETY: twice sixteen numbers.
        let (low, high) = unsafe { (_mm512_loadu_ps(numbers.as_ptr()), _mm512_loadu_ps(numbers[ROWS..].as_ptr())) };
        let [first, second] = [places, fourth].map(|places| _mm512_permutex2var_ps(low, places, high));
        let all: [__m512i; PARTS] = match self.parts {
            1 => [pairs(nearest(first), nearest(second)), _mm512_setzero_si512(), _mm512_setzero_si512()],
            _ => split_plain(first, second),
        };
        for (part, line) in all.into_iter().enumerate().take(self.parts) {
            for half in 0..self.halves {
                let row = (half * self.joined + part % self.joined) * self.rows.height + r;
                let out = &mut out[(part / self.joined * self.lines() + row) * ROW_BYTES..][..ROW_BYTES];
                let there = if self.halves == 1 { 0xffff } else { 0xff << (8 * half) };
                // SAFETY: a line.
                unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), _mm512_maskz_mov_epi32(there, line)) };
            }
        }
    }

    /// The sum of row `row` over the `len` elements from `first` on.
    pub(crate) fn sum(&self, a: &[u8], row: usize, first: usize, len: usize) -> f32 {
        let (group, r) = (row / self.rows.height, row % self.rows.height);
        let a = self.part(a, group, 0..self.steps_of_sets());
        let number = |element: usize, part: usize| {
            let (step, i) = (element / STEP, element % STEP);
            let half = if self.halves == 1 { 0 } else { i / ROWS };
            let line = (half * self.joined + part % self.joined) * self.rows.height + r;
            let line = (step * self.tiles + part / self.joined) * self.lines() + line;
            // Elements 8i + s and 8i + 4 + s are pair 4i + s.
            let place = 2 * (i / 8 * 4 + i % 4) + i % 8 / 4;
            let at = line * ROW_BYTES + 2 * place;
            f32::from_bits(u32::from(u16::from_le_bytes([a[at], a[at + 1]])) << 16)
        };
        (first..first + len).map(|e| (0..self.parts).rev().map(|part| number(e, part)).sum::<f32>()).sum()
    }
}
