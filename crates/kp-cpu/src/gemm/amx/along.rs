//! B in rows of bf16, packed along them: blocks of several panels together, 32 rows of one and then of the next.
//!
//! ```text
//!            n ─▶  panels                      packed, a unit of two tiles after the other
//!          ┌──┬──┬──┬──┐
//!    32 of │ 0│ 1│ 2│ 3│                       ┌──┬──┬──┬──┬──┬──┬──┬──┐
//!        k ├──┼──┼──┼──┤           ─▶          │ 0│ 1│ 2│ 3│  │ 4│ 5│ …
//!          │ 4│ 5│ …                           └──┴──┴──┴──┴──┴──┴──┴──┘
//! ```
//! A panel alone would be lines a page apart, of which memory gives fewer, and for which caches have few places; and so would be what is packed, panel by
//! panel. (One core of Granite Rapids, 4096² from memory: units of a panel after each other 570 ns each, along rows 220, and to where they follow
//! each other 180.) A task packs a run of k of its panels for itself; tasks of several runs of rows share what all threads pack for them.

use super::{
    lines::{Holds, STEP_BYTES, pack_across},
    product::ByTiles,
    source::{Source, Units},
    tile::Operand,
};
use crate::{
    act::Tail,
    gemm::product::{Item, Product},
    kernel::Output,
    threads,
};
use std::ops::Range;

/// Panels that are packed by one task of a loop: lines of a page.
const PANELS: usize = 64;

/// Bytes of B, at least, and panels of a task, if tasks pack it: what is in L2 is packed as fast a panel at a time, and stays in L1.
const LEAST_BYTES: usize = if cfg!(test) { 64 << 10 } else { 4 << 20 };
const LEAST_PANELS: usize = 8;

/// Threads that pack B for each other, at most, and bytes of it, at least: what another core has just written takes longer to fetch than to pack.
const MOST_THREADS: usize = if cfg!(test) { 64 } else { 2 };
const LEAST_OF_ALL: usize = if cfg!(test) { 32 << 10 } else { 1 << 20 };

/// Bytes of B that are packed for all, at most, unless threads would find little to do.
const MOST_OF_ALL: usize = if cfg!(test) { 64 << 10 } else { 32 << 20 };

/// Bytes from a step of so many panels to the next: the steps of a block share few places of the first cache otherwise.
pub(super) const fn apart(panels: usize) -> usize {
    (panels | 1) * STEP_BYTES
}

/// Where a step of panel `p` of `panels` begins, the one with number `step` of those that are packed.
fn place(panels: &Range<usize>, p: usize, step: usize) -> usize {
    step * apart(panels.len()) + (p - panels.start) * STEP_BYTES
}

/// Whether so many panels and steps are rather packed for all.
pub(super) fn suits_all(panels: usize, steps: usize) -> bool {
    threads::count() <= MOST_THREADS && steps * apart(panels) >= LEAST_OF_ALL
}

/// Steps from `first` on of panels `panels`, packed along.
#[derive(Clone)]
pub(super) struct Along<'b> {
    pub(super) tiles: &'b [u8],
    pub(super) panels: Range<usize>,
    pub(super) first: usize,
}

impl Along<'_> {
    /// Bytes from a step to the next.
    pub(super) fn apart(&self) -> usize {
        apart(self.panels.len())
    }

    /// Steps `steps` of panel `p`.
    pub(super) fn block(&self, p: usize, steps: &Range<usize>) -> Operand {
        let at = place(&self.panels, p, steps.start - self.first);
        let bytes = steps.len().saturating_sub(1) * self.apart() + STEP_BYTES;
        Operand { step: self.apart(), ..Operand::packed(self.tiles[at..][..bytes].as_ptr()) }
    }
}

impl<E: Tail> ByTiles<E> {
    /// Whether B is packed along its rows. What vectors multiply by is [packed by shares](ByTiles::task) instead.
    pub(super) fn is_along(&self) -> bool {
        let is_large = self.steps() * apart(self.panels.count()) >= LEAST_BYTES && self.most_panels() >= LEAST_PANELS;
        self.lies_across() && (self.together > 0 || is_large)
    }

    /// Whether it might be.
    fn lies_across(&self) -> bool {
        self.units == Units::Tiles && self.holds == Holds::Bf16 && matches!(self.b, Source::Across)
    }

    /// Columns of tasks whose B is packed for all rows of tasks, or none.
    pub(super) fn together(&self) -> usize {
        let ([down, across], threads) = (self.cut.grid, threads::count());
        if !self.lies_across() || down < 2 || !suits_all(self.panels.count(), self.steps()) {
            return 0;
        }
        let of_tasks = self.steps() * apart(self.most_panels());
        (MOST_OF_ALL / of_tasks).max(threads.div_ceil(down)).min(across)
    }

    /// Packs steps `steps` of panels `panels`, by this thread alone.
    pub(super) fn pack_along(
        &self,
        product: &Product<'_>,
        item: Item,
        (panels, steps): (&Range<usize>, &Range<usize>),
        out: &mut [u8],
    ) {
        for step in steps.clone() {
            for p in panels.clone() {
                let at = place(panels, p, step - steps.start);
                self.pack_unit(product, item, (p, step), &mut out[at..][..STEP_BYTES]);
            }
        }
    }

    /// Packs all steps of panels `panels`, by all threads.
    pub(super) fn pack_together<'b>(
        &self,
        product: &Product<'_>,
        item: Item,
        panels: Range<usize>,
        out: &'b mut [u8],
    ) -> Along<'b> {
        let some = panels.len().div_ceil(PANELS).max(1);
        let bytes = self.steps() * apart(panels.len());
        let shared = Output::of(&mut out[..bytes]);
        threads::for_each_of(self.steps() * some, bytes, |t| {
            let (step, first) = (t / some, panels.start + t % some * PANELS);
            for p in first..(first + PANELS).min(panels.end) {
                let at = place(&panels, p, step);
                // SAFETY: each unit once.
                let out = unsafe { shared.part(at..at + STEP_BYTES) };
                self.pack_unit(product, item, (p, step), out);
            }
        });
        Along { tiles: out, panels, first: 0 }
    }

    /// Packs a step of a panel.
    fn pack_unit(&self, product: &Product<'_>, item: Item, (p, step): (usize, usize), out: &mut [u8]) {
        let elements = Holds::Bf16.elements();
        let inner = step * elements..((step + 1) * elements).min(self.spec.k as usize);
        // SAFETY: `supports` asked for the features.
        unsafe { pack_across(&product.b, item.b, self.panels.columns(p), inner, out) };
    }
}

#[cfg(test)]
mod tests {
    use crate::gemm::tests::check;

    /// One run of rows, whose task packs a run of k for itself, and several, for which threads pack some columns of tasks after the other; within a
    /// panel, a step and a run of k.
    #[test]
    fn rows_are_packed_along_them() {
        for size in ["2x40x310x130", "1x20x600x1090", "1x300x270x100", "2x600x400x70", "1x270x1100x31", "1x270x260x530"]
        {
            for options in
                ["", "b=row/1107", "act=silu gate=halves bias=f32", "act=silu gate=pairs", "b=panel64x1", "a=col c=f32"]
            {
                check(&format!("gemm {size} bf16:bf16:f32 {options}"), (0.5, -2.0));
            }
        }
    }
}
