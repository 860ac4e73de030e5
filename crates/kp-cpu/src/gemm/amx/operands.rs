//! Where tiles find A and B: packed, or where they lie.

use super::{
    cut::DEEP,
    lines::{BLOCK, Holds, pack_across, turn},
    parts::{Places, left_bytes, split_rows},
    product::ByTiles,
    source::{Source, Units},
    tile::Operand,
};
use crate::{
    act::Tail,
    amx::{ROW_BYTES, ROWS},
    gemm::{
        across::Turned,
        product::{Item, Product},
        side::{LINE as LINE_OF_SIDE, Scaling, Side},
        tile::Wanted,
    },
    kernel::Output,
    simd::Avx512,
    threads,
};
use std::{
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
};

/// Bytes between rows of A, at most, if it is to be read where it lies: 512 rows have 1 KB of each run of k, in half of L2's places.
const NEAR: usize = 2 << 10;

impl<E: Tail> ByTiles<E> {
    /// Rows of an item's tasks, at most.
    fn task_rows(&self, item: Item) -> usize {
        let blocks = item.rows.div_ceil(BLOCK);
        (blocks.div_ceil(self.cut.grid[0].clamp(1, blocks.max(1))) * BLOCK).min(item.rows)
    }

    /// Whether they are few.
    pub(super) fn is_few(&self, item: Item) -> bool {
        self.units == Units::Tiles && self.b.suits_few(self.task_rows(item), self.parts * self.steps())
    }

    /// Steps of a run of k: as it was cut, or half of that where it is to stay in the half of the first cache's places that lines
    /// of a wide panel share; or as many as leave of several parts of A no more to pass than the second cache holds beside sums.
    pub(super) fn deep(&self, item: Item) -> usize {
        const MOST: usize = 512 << 10;
        const LEAST: usize = DEEP / 4;
        if self.splits {
            let of_step = self.task_rows(item) * self.parts * ROW_BYTES;
            return if of_step * DEEP <= MOST { DEEP } else { LEAST };
        }
        let is_wide = matches!(self.b, Source::Panels(width) if width > BLOCK);
        if is_wide && self.is_few(item) { DEEP / 2 } else { self.cut.deep }
    }

    /// Where steps from `first` on, the first of a run of at most `deep`, of block `block` of `blocks` lie: run after run, so that the
    /// end of one block asks for the next.
    pub(super) fn place(&self, blocks: usize, block: usize, first: usize, deep: usize) -> usize {
        let run = (self.steps() - first).min(deep);
        (first * blocks + block * run) * self.step_bytes()
    }

    /// Whether tiles can read an item's A where it lies, as left operand: lines that are whole, and so near each other that they do not
    /// share few places in L2.
    pub(super) fn a_lies(&self, product: &Product<'_>, item: Item) -> bool {
        let (a, k) = (&product.a, self.spec.k as usize);
        let ld = 2 * a.matrix.ld as usize;
        let is_left = self.units == Units::Tiles && self.holds == Holds::Bf16 && !self.is_turned();
        let is_whole = item.rows.is_multiple_of(BLOCK) && k > 0 && k.is_multiple_of(self.holds.elements());
        let at = a.codes.as_ptr().addr() + 2 * a.place(item.row_batch, item.row, 0);
        let is_near = ld <= NEAR && ld.is_multiple_of(ROW_BYTES) && at.is_multiple_of(ROW_BYTES);
        is_left && self.a.are_rows() && is_whole && is_near
    }

    /// Steps `steps` of the first of some blocks of rows where they lie, and the bytes from a block to the next.
    pub(super) fn a_lying(
        &self,
        product: &Product<'_>,
        item: Item,
        rows: &Range<usize>,
        steps: &Range<usize>,
    ) -> (Operand, usize) {
        let (a, ld) = (&product.a, 2 * product.a.matrix.ld as usize);
        let first = 2 * a.place(item.row_batch, item.row + rows.start, steps.start * self.holds.elements());
        let at = a.codes[first..][..(rows.len() - 1) * ld + steps.len() * ROW_BYTES].as_ptr();
        (Operand { at: [at, at.wrapping_add(ROWS * ld)], ld, step: ROW_BYTES }, BLOCK * ld)
    }

    /// Packs the rows of an item.
    pub(super) fn prepare(&self, product: &Product<'_>, item: Item, a: &mut [u8], special: &AtomicBool) {
        let (steps, blocks) = (self.steps(), item.rows.div_ceil(BLOCK));
        let deep = self.deep(item);
        let parts = steps.div_ceil(deep);
        let a = Output::of(a);
        threads::for_each(blocks * parts, |i| {
            let (block, first) = (i / parts, i % parts * deep);
            let at = self.place(blocks, block, first, deep);
            let run = first..(first + deep).min(steps);
            // SAFETY: each part of each block once.
            let out = unsafe { a.part(at..at + run.len() * self.step_bytes()) };
            self.pack(product, item, block, run, out, special);
        });
    }

    /// Packs blocks `blocks` of rows, by this thread alone.
    pub(super) fn prepare_own(
        &self,
        product: &Product<'_>,
        item: Item,
        blocks: Range<usize>,
        a: &mut [u8],
        special: &AtomicBool,
    ) {
        let (steps, count, deep) = (self.steps(), blocks.len(), self.deep(item));
        for (j, block) in blocks.enumerate() {
            for first in (0..steps).step_by(deep) {
                let (at, run) = (self.place(count, j, first, deep), first..(first + deep).min(steps));
                self.pack(product, item, block, run.clone(), &mut a[at..][..run.len() * self.step_bytes()], special);
            }
        }
    }

    /// Packs a run of steps of the rows of block `block`.
    fn pack(
        &self,
        product: &Product<'_>,
        item: Item,
        block: usize,
        run: Range<usize>,
        out: &mut [u8],
        special: &AtomicBool,
    ) {
        let (k, elements) = (self.spec.k as usize, self.holds.elements());
        let rows = item.row + block * BLOCK..item.row + ((block + 1) * BLOCK).min(item.rows);
        let inner = run.start * elements..(run.end * elements).min(k);
        // SAFETY: `supports` asked for the features.
        unsafe {
            if !self.splits {
                self.pack_lines(&product.a, item.row_batch, rows, inner, out);
            } else if self.split(product, item, rows, inner, out) {
                special.store(true, Ordering::Relaxed);
            }
            if self.is_turned() {
                turn(out);
            }
        }
    }

    /// Packs elements `inner` of rows `rows` of `a`.
    ///
    /// # Safety
    /// The processor has AVX-512 F, BW, DQ and VL, and so AVX2 and FMA.
    unsafe fn pack_lines(&self, a: &Side<'_>, batch: usize, rows: Range<usize>, inner: Range<usize>, out: &mut [u8]) {
        let nothing = (0..0, 0..0);
        // SAFETY: the caller's promise.
        unsafe {
            if !self.a.turned {
                return self.a.pack(a, batch, (rows, inner), nothing, &mut Turned::new(&mut [], 0, 0), out);
            }
            let mut room = [0; Turned::bytes(BLOCK, LINE_OF_SIDE, 16)];
            let mut turned = Turned::new(&mut room, BLOCK, LINE_OF_SIDE);
            self.a.pack(a, batch, (rows, inner), nothing, &mut turned, out);
        }
    }

    /// Splits them, one tile of rows after the other; whether a number is special.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    fn split(
        &self,
        product: &Product<'_>,
        item: Item,
        rows: Range<usize>,
        inner: Range<usize>,
        out: &mut [u8],
    ) -> bool {
        const LD: usize = LINE_OF_SIDE + ROWS;
        let of_tile = inner.len().div_ceil(self.holds.elements()) * left_bytes(self.parts);
        let lying = product.a.numbers_in_rows::<f32>(item.row_batch);
        let mut special = false;
        for tile in 0..BLOCK / ROWS {
            let first = (rows.start + tile * ROWS).min(rows.end);
            let some = first..(first + ROWS).min(rows.end);
            let to = (Places::left(self.parts), &mut out[tile * of_tile..]);
            special |= if let Some((numbers, ld)) = lying {
                let numbers = if some.is_empty() { &[] } else { &numbers[some.start * ld + inner.start..] };
                split_rows((numbers, ld), some.len(), inner.len(), self.parts, to)
            } else {
                let mut room = [0.0; ROWS * LD];
                let (batch, count) = (item.row_batch, some.len());
                product.a.pack_rows::<Avx512, f32>(batch, some, inner.clone(), LD, Scaling::Left, &mut room);
                split_rows((&room, LD), count, inner.len(), self.parts, to)
            };
        }
        special
    }

    /// Steps `steps` of panel `p` where they lie, if tiles can read them there.
    pub(super) fn in_panels(
        &self,
        product: &Product<'_>,
        item: Item,
        p: usize,
        steps: &Range<usize>,
    ) -> Option<Operand> {
        let (b, columns) = (&product.b, self.panels.columns(p));
        let Source::Panels(width) = self.b else { return None };
        // Where the second sixteen columns are none, those before once more.
        let second = if columns.len() > ROWS { columns.start + ROWS } else { columns.start };
        let at = [columns.start, second].map(|column| {
            let first = b.place(item.b, column, steps.start * self.holds.elements());
            b.codes[b.matrix.dtype().bytes(first as u64) as usize..].as_ptr()
        });
        Some(Operand { at, ld: 4 * width, step: 4 * width * ROWS })
    }

    /// Steps `steps` of the columns of panel `p` where they lie, as left operand, if they are lines of whole steps.
    fn in_columns(&self, product: &Product<'_>, item: Item, p: usize, steps: &Range<usize>) -> Option<Operand> {
        let (b, elements, columns) = (&product.b, self.holds.elements(), self.panels.columns(p));
        let is_whole = columns.len() == BLOCK && (self.spec.k as usize).is_multiple_of(elements);
        if !matches!(self.b, Source::Left(lines) if lines.are_rows()) || !is_whole {
            return None;
        }
        let at = |column: usize| ROW_BYTES / elements * b.place(item.b, column, steps.start * elements);
        let [first, second, third] = [0, 1, ROWS].map(|column| at(columns.start + column));
        let lines = b.codes[first..][..(BLOCK - 1) * (second - first) + steps.len() * ROW_BYTES].as_ptr();
        Some(Operand { at: [lines, lines.wrapping_add(third - first)], ld: second - first, step: ROW_BYTES })
    }

    /// Steps `steps` of panel `p` where they lie, if they need not be packed, as for several parts of A they must. In panels they stay in the
    /// first cache as they are, of wide ones where a run is short; columns, whose lines share few of its places, pass a few rows.
    fn lying(&self, product: &Product<'_>, item: Item, p: usize, steps: &Range<usize>) -> Option<Operand> {
        if self.splits {
            return None;
        }
        let stays = |of_b: &Operand| of_b.ld <= 4 * BLOCK || self.units == Units::Vectors || self.is_few(item);
        let of_b = self.in_panels(product, item, p, steps).filter(stays);
        of_b.or_else(|| self.in_columns(product, item, p, steps).filter(|_| self.is_few(item)))
    }

    /// Packs steps `steps` of panel `p` to `out`, unless they [lie](Self::lying) or are packed with others: then answers where. Meanwhile codes are
    /// asked for that will be packed next.
    pub(super) fn pack_b(
        &self,
        product: &Product<'_>,
        item: Item,
        (p, steps): (usize, Range<usize>),
        (next, of_next): (usize, Range<usize>),
        turned: &mut Turned<'_>,
        out: &mut [u8],
    ) -> Option<Operand> {
        if steps.is_empty() {
            return None;
        }
        let lying = self.lying(product, item, p, &steps);
        if lying.is_some() {
            return lying;
        }
        let (b, elements, columns) = (&product.b, self.holds.elements(), self.panels.columns(p));
        let elements_of =
            |steps: Range<usize>| steps.start * elements..(steps.end * elements).min(self.spec.k as usize);
        let inner = elements_of(steps.clone());
        // SAFETY: `supports` asked for the features.
        unsafe {
            match self.b {
                Source::Left(lines) => {
                    let soon = (self.panels.columns(next), elements_of(of_next));
                    lines.pack(b, item.b, (columns, inner), soon, turned, out);
                }
                Source::Across if self.holds == Holds::Bytes => {
                    return Some(Operand::packed(turned.fours(b, item.b, columns, inner).as_ptr()));
                }
                Source::Across => pack_across(b, item.b, columns, inner, out),
                Source::Panels(_) => {
                    if let Some(of_b) = self.in_panels(product, item, p, &steps) {
                        of_b.pack(steps.len(), out);
                    }
                }
            }
        }
        None
    }

    /// What steps `steps` of panel `p` are read or will be packed from.
    pub(super) fn wanted(&self, product: &Product<'_>, item: Item, p: usize, steps: Range<usize>) -> Option<Wanted> {
        let (b, elements, columns) = (&product.b, self.holds.elements(), self.panels.columns(p));
        let inner = steps.start * elements..(steps.end * elements).min(self.spec.k as usize);
        match self.b {
            _ if inner.is_empty() => None,
            // Each run of it begins where the processor, which fetches ahead along a panel, does not expect it.
            Source::Panels(width) if width.is_multiple_of(BLOCK) => {
                let first = b.matrix.dtype().bytes(b.place(item.b, columns.start, inner.start) as u64) as usize;
                let (at, lines) = (b.codes[first..].as_ptr(), steps.len() * ROWS);
                Some(match width {
                    BLOCK => Wanted::row(at, lines * 4 * BLOCK),
                    _ => Wanted { at, bytes: 4 * BLOCK, count: lines, step: 4 * width },
                })
            }
            Source::Panels(_) => None,
            _ => b.wanted(item.b, &columns, &inner),
        }
    }
}
