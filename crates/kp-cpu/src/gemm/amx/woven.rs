//! Chunks of products of numbers of f32 on both sides: those of B that come next are split [while others are multiplied](super::weave).
//!
//! ```text
//!            n ─▶  32 columns, run after run of a block of k
//!          ┌──┬──┬──┬──┐
//!        k ├┄┄┼┄┄┼┄┄┼┄┄┤  a run of 32 columns is split to 12 or 24 KB, which stay in the first cache beside those of the run before,
//!          ├──┼──┼──┼──┤
//!          └──┴──┴──┴──┘
//!     k          n
//!   ┌────┐ ┌──┬──┬──┬──┐
//! m ├────┤ ├──┼──┼──┼──┤  that meet all rows of the chunk: a block of them was split before, and stays in the second cache
//!   └────┘ └──┴──┴──┴──┘
//! ```
//! So contiguous columns are read in stretches as long as a block, which the processor asks for by itself. 128 rows by 4096×4096 of a lab, one thread, ms: by
//! stretches of 512 bytes 16.0, of 1 KB 14.7, of 2 KB 13.8; without reading 12.1.

use super::{
    floats::{Floats, Job, PANEL, RUN, Room, bytes_of},
    lines::turn,
    parts::{PARTS, Places, STEP, WIDE, left_bytes, right_bytes, split_lines},
    weave::{Lie, Soon, weave},
};
use crate::{
    amx::{ROWS, Tiles},
    gemm::finish::Finish,
};
use kp_hal::{
    DType,
    op::{GemmSpec, Scheme},
};
use std::{mem::swap, ops::Range};

/// Most rows of a chunk, and its sums, which take a megabyte. B, which is split meanwhile, may be so more often than A. One thread, ms, 512 rows and 256: 2048³
/// by columns 71.4 and 65.1, in panels 73.2 and 68.7, in rows 76.9 and 76.6; sixteen, in rows 10.0 and 9.4. By 128 rows 67.2, 68.3, 80.4; 11.1.
pub(super) const MOST_ROWS: usize = 256;
pub(super) const MOST_SUMS: usize = 256 << 10;

/// Elements of k of A's rows that stay in the second cache, in 768 KB at most.
pub(super) const BLOCK: usize = 4 * RUN;

/// Rows of which runs are half as long, since little is computed for what is split.
const FEW_ROWS: usize = 128;

/// Whether both operands are numbers of f32.
pub(crate) fn suits(spec: &GemmSpec) -> bool {
    [&spec.a, &spec.b].iter().all(|matrix| matrix.dtype() == DType::F32 && matrix.format.scheme == Scheme::None)
}

/// Cycles that an element of B takes besides what products by so many rows hide: of those by few most lines are split after the last product.
pub(crate) fn cycles(rows: usize) -> f64 {
    0.6 * (1.3 - rows as f64 / FEW_ROWS as f64).max(0.3)
}

/// What is split of B at a time: some columns, whose sums have their place in a chunk, of a run of k.
struct Unit {
    columns: Range<usize>,
    place: usize,
    run: Range<usize>,
    /// The block that it is a run of.
    block: Range<usize>,
}

impl Floats {
    /// Elements of k that are split of B at a time.
    pub(super) fn run(&self) -> usize {
        if self.most_rows() <= FEW_ROWS { RUN / 2 } else { RUN }
    }
}

impl Job<'_, '_> {
    /// Computes the sums of a chunk.
    ///
    /// # Safety
    /// The processor has AVX-512 and tiles of bf16.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    pub(super) unsafe fn add_woven(
        &self,
        rows: Range<usize>,
        panels: Range<usize>,
        room: &mut Room<'_>,
        tiles: &Tiles,
    ) {
        let floats = self.floats;
        let (places, count) = (floats.sums(rows.len(), panels.len()), rows.len().div_ceil(ROWS));
        let left_len = floats.run() / STEP * left_bytes(PARTS);
        let (a, b) = (bytes_of(room.a), bytes_of(room.b));
        let (mut now, mut next) = b.split_at_mut(b.len() / 2);
        let (mut special_a, mut is_split) = (false, false);
        let mut units = self.units(panels).peekable();
        if units.peek().is_none() {
            room.sums.fill(0.0);
        }
        while let Some(unit) = units.next() {
            let Unit { columns, place, run, block } = unit;
            if place == 0 && run.start == block.start {
                special_a = self.split_block(rows.clone(), block.clone(), room.rows, a);
            }
            let special_b = !is_split && self.split_unit(columns.clone(), run.clone(), (room.rows, room.lines), now);
            let soon = units.peek().and_then(|unit| self.soon(unit, next));
            is_split = soon.is_some();
            let a = &a[(run.start - block.start) / floats.run() * count * left_len..];
            let sums = &mut room.sums[place * places.column..];
            let ld = if floats.turned { places.column } else { places.row };
            let (steps, is_first) = (run.len().div_ceil(STEP), run.start == 0);
            let soon = soon.unwrap_or_else(|| Soon::new((&[], 0), Lie::Rows, 0, &mut []));
            // SAFETY: operands were split to as many steps, and the processor has what it takes.
            is_split &=
                unsafe { !weave((a, left_len, count), now, steps, (sums, ld, floats.turned), is_first, soon, tiles) };
            if special_a || special_b {
                self.add_specials((rows.clone(), columns), run, (room.rows, room.lines), (sums, places));
            }
            swap(&mut now, &mut next);
        }
    }

    /// All units of a chunk's panels, in order.
    fn units(&self, panels: Range<usize>) -> impl Iterator<Item = Unit> {
        let (floats, all, k) = (self.floats, &self.finish.panels, self.finish.product.spec.k as usize);
        let halves = panels.clone().flat_map(move |p| {
            let (columns, first) = (all.columns(p), (p - panels.start) * PANEL);
            let half = move |start: usize| (start..columns.end.min(start + WIDE), first + start - columns.start);
            all.columns(p).step_by(WIDE).map(half)
        });
        let cut = |all: Range<usize>, len: usize| all.clone().step_by(len).map(move |at| at..all.end.min(at + len));
        cut(0..k, BLOCK).flat_map(move |block| {
            halves.clone().flat_map(move |(columns, place)| {
                let of_block = block.clone();
                cut(block.clone(), floats.run()).map(move |run| Unit {
                    columns: columns.clone(),
                    place,
                    run,
                    block: of_block.clone(),
                })
            })
        })
    }

    /// Splits a block of rows of A, a run after the other; whether a number is special.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    fn split_block(&self, rows: Range<usize>, block: Range<usize>, room: &mut [f32], out: &mut [u8]) -> bool {
        let run = self.floats.run();
        let (left_len, mut special) = (run / STEP * left_bytes(PARTS), false);
        let mut out = out.chunks_exact_mut(left_len);
        for start in block.clone().step_by(run) {
            for (first, out) in rows.clone().step_by(ROWS).zip(&mut out) {
                let (some, run) = (first..rows.end.min(first + ROWS), start..block.end.min(start + run));
                special |= self.split_a(some, run, room, out);
                if self.floats.turned {
                    turn(out);
                }
            }
        }
        special
    }

    /// Splits a unit's numbers; whether one is special.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    fn split_unit(
        &self,
        columns: Range<usize>,
        run: Range<usize>,
        (rows, lines): (&mut [f32], &mut [f32]),
        out: &mut [u8],
    ) -> bool {
        if self.floats.turned {
            return self.split_columns(columns, run, rows, out);
        }
        let places = self.floats.places(Places::right(PARTS));
        let (count, len) = (columns.len(), run.len());
        split_lines(self.lines_of_b(columns, run, lines), count, len, PARTS, (places, out))
    }

    /// A unit's numbers, to be split to `out`, if they are whole steps where they lie.
    fn soon<'s>(&'s self, unit: &Unit, out: &'s mut [u8]) -> Option<Soon<'s>> {
        let (Finish { product, item, .. }, Unit { columns, run, .. }) = (self.finish, unit);
        if columns.len() != WIDE || !run.len().is_multiple_of(STEP) {
            return None;
        }
        let out = &mut out[..run.len() / STEP * right_bytes(PARTS)];
        if self.floats.turned {
            let (numbers, ld) = product.b.numbers_in_rows::<f32>(item.b)?;
            return Some(Soon::new((&numbers[columns.start * ld + run.start..], ld), Lie::Columns, STEP, out));
        }
        let (numbers, ld) = product.b.numbers_across(item.b, columns, run.start)?;
        Some(Soon::new((numbers, ld), Lie::Rows, STEP * ld, out))
    }
}
