//! What room a product by tiles takes, and where what is packed lies in it.

use super::{
    along::apart,
    cut::Packs,
    lines::{BLOCK, Holds, STEP_BYTES},
    product::ByTiles,
    source::Source,
};
use crate::{
    act::Tail,
    amx::ROWS,
    gemm::{
        across::{Turned, neighbours},
        finish::{codes_bytes, finish_len, stage_len},
    },
    memory::cut,
    threads,
};

/// Sums that stay unused behind each row of a task, unless blocks are turned: lines of a tile's rows would share few places in the first
/// cache otherwise.
const APART: usize = ROWS;

/// Blocks of B that a thread packs: one is multiplied by, the next is being made.
const PACKED: usize = 2;

impl<E: Tail> ByTiles<E> {
    /// Steps of k.
    pub(super) fn steps(&self) -> usize {
        (self.spec.k as usize).div_ceil(self.holds.elements())
    }

    /// Bytes of a step of a block of A.
    pub(super) fn step_bytes(&self) -> usize {
        self.parts * STEP_BYTES
    }

    /// Blocks of rows there are, and the most that a task has.
    pub(super) fn blocks(&self) -> [usize; 2] {
        let blocks = (self.spec.m as usize).div_ceil(BLOCK);
        [blocks, blocks.div_ceil(self.cut.grid[0].max(1))]
    }

    /// Sums from a row to the next of a task of most panels.
    fn most_ld(&self) -> usize {
        self.ld(self.most_panels())
    }

    /// Sums from a row to the next of a task of so many panels.
    pub(super) fn ld(&self, panels: usize) -> usize {
        panels * BLOCK + if self.is_turned() { 0 } else { APART }
    }

    /// Bytes of A made ready for all, and by a thread for itself.
    pub(super) fn a_bytes(&self) -> [usize; 2] {
        let [all, most] = self.blocks().map(|blocks| blocks * self.steps() * self.step_bytes());
        match self.cut.packs {
            Packs::Together => [all, 0],
            Packs::Thread => [0, all],
            Packs::Task | Packs::Rows => [0, most],
        }
    }

    /// Bytes of B made ready for all.
    fn b_bytes(&self) -> usize {
        let across = self.cut.grid[1].max(1);
        let units = (self.panels.count() / self.panels.unit() * self.together).div_ceil(across);
        if self.together > 0 { self.steps() * apart(units * self.panels.unit()) } else { 0 }
    }

    /// Bytes of both.
    pub(super) fn shared_bytes(&self) -> [usize; 2] {
        [self.a_bytes()[0], self.b_bytes()]
    }

    /// Columns of B that are turned before they are packed, or packed together, if they are, and elements of a run of them.
    pub(super) fn turns(&self) -> [usize; 2] {
        let most = self.cut.deep * self.holds.elements();
        match self.b {
            Source::Left(lines) if lines.turned => [neighbours(&self.spec.b), most],
            Source::Across if self.holds == Holds::Bytes => [2 * neighbours(&self.spec.b), most],
            _ => [0, 0],
        }
    }

    /// Bytes of blocks of B that a thread packs: of a run of all its panels, or two of a panel.
    fn block_bytes(&self) -> usize {
        let step = if self.is_along() { apart(self.most_panels()) } else { PACKED * STEP_BYTES };
        self.cut.deep * step
    }

    /// Panels of a task, at most.
    pub(super) fn most_panels(&self) -> usize {
        (self.panels.count() / self.panels.unit()).div_ceil(self.cut.grid[1].max(1)) * self.panels.unit()
    }

    /// Work space of a thread: columns of B turned, blocks of it, sums, a block of rows of them turned, and the same finished, with factors of
    /// rows and columns and what finishing needs.
    pub(super) fn work_lens(&self) -> [usize; 5] {
        let ld = self.most_ld();
        let sums = self.blocks()[1] * BLOCK * ld;
        let turned = if self.is_turned() { BLOCK * ld } else { 0 };
        let [rows, most] = self.turns();
        let columns = Turned::bytes(rows, most, self.spec.b.dtype().bits() as usize);
        [columns, self.block_bytes(), sums, turned, BLOCK * ld + BLOCK + ld + finish_len(ld)]
    }

    pub(super) fn work_bytes(&self) -> usize {
        let [columns, block, sums, turned, ends] = self.work_lens();
        let bytes = |len: usize, size: usize| (len * size).next_multiple_of(64);
        self.a_bytes()[1] + bytes(columns, 1) + block + bytes(sums, 4) + bytes(turned, 4) + bytes(ends, size_of::<E>())
    }

    /// Bytes of what all threads share, and of what each has for itself.
    fn all_bytes(&self) -> usize {
        self.shared_bytes().iter().sum::<usize>() + threads::count() * self.work_bytes()
    }

    pub(crate) fn scratch_bytes(&self) -> u64 {
        let stage = (stage_len(&self.spec) * size_of::<E>()).next_multiple_of(64);
        (self.all_bytes() + stage + codes_bytes(&self.spec)) as u64
    }

    /// The scratch of [`Self::item`], the stage, and the codes to transpose.
    pub(crate) fn scratch<'s>(&self, scratch: &'s mut [u8]) -> (&'s mut [u8], &'s mut [E], &'s mut [u8]) {
        let (scratch, mut rest) = scratch.split_at_mut(self.all_bytes());
        let stage = cut::<E>(&mut rest, stage_len(&self.spec));
        (scratch, stage, &mut rest[..codes_bytes(&self.spec)])
    }
}
