//! Products in blocks, from packed panels.
//!
//! ```text
//!            n ─▶  panels of NR columns            a tile: some panels × some rows
//!          ┌──┬──┬──┬──┐                         ┌──┬──┬──┐
//!        k │  │  │  │  │  B, packed once          │  │  │  │  sums, in L2
//!          └──┴──┴──┴──┘                         ├──┼──┼──┤
//!     k          n                               │  │  │  │  MR × NR of them at a time in registers:
//!   ┌────┐ ┌──┬──┬──┬──┐                         └──┴──┴──┘  one block of k, then added to the tile
//! m ├────┤ ├──┼──┼──┼──┤
//!   ├────┤ ├──┼──┼──┼──┤  tiles go to whichever thread is free
//!   └────┘ └──┴──┴──┴──┘
//! ```
//! Operands become numbers when they are packed: f32, or f64 if they are f64. Each element of D is the sum over
//! blocks of k in order, each block summed in order: neither m, n, the tile nor the thread changes its bits.

use super::{
    finish::{Finish, Panels, finish_len},
    product::{Item, Product, Summing, Sums, add},
};
use crate::{
    kernel::Disjoint,
    memory::{Number, cut},
    numbers::Real,
    simd::{Isa, Work, run_widest},
    threads,
};
use std::{
    marker::PhantomData,
    ops::Range,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Most rows, columns and elements of k that are packed at a time: 8 MB of each operand, packed for at least 2048
/// multiply-adds an element.
const MOST_ROWS: usize = 2048;
const MOST_COLS: usize = 2048;
const MOST_K: usize = 1024;

/// The largest tile: its sums stay in L2.
const TILE_ROWS: usize = 192;
const TILE_COLS: usize = 256;

/// How one item is cut.
#[derive(Clone, Copy, Debug)]
struct Cuts {
    /// Rows, panels and elements of k that are packed at a time.
    rows: usize,
    panels: usize,
    k: usize,
    /// Rows and panels of a tile.
    tile_rows: usize,
    tile_panels: usize,
}

impl Cuts {
    fn of(mr: usize, panels: &Panels, rows: usize, k: usize, threads: usize) -> Self {
        let nr = panels.width;
        let (unit, count) = (panels.unit(), panels.count());
        let most_panels = (MOST_COLS / nr).max(unit);
        let (packed_rows, packed_panels) = (rows.next_multiple_of(mr).min(MOST_ROWS / mr * mr), count.min(most_panels));
        let mut tile_rows = packed_rows.min(TILE_ROWS / mr * mr);
        let mut tile_panels = packed_panels.min(TILE_COLS / nr);
        // Enough tiles to keep every thread busy to the end.
        let wanted = if threads == 1 { 1 } else { 4 * threads };
        while packed_rows.div_ceil(tile_rows.max(1)) * packed_panels.div_ceil(tile_panels.max(1)) < wanted {
            let (can_rows, can_panels) = (tile_rows >= 2 * mr, tile_panels >= 2 * unit);
            match (can_rows, can_panels) {
                (false, false) => break,
                (true, false) => tile_rows = (tile_rows / 2).next_multiple_of(mr),
                (true, true) if tile_rows > tile_panels * nr => tile_rows = (tile_rows / 2).next_multiple_of(mr),
                _ => tile_panels = (tile_panels / 2).next_multiple_of(unit),
            }
        }
        Self { rows: packed_rows, panels: packed_panels, k: k.min(MOST_K), tile_rows, tile_panels }
    }
}

/// Scratch of one item, in numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    a: usize,
    b: usize,
    sums: usize,
    work: usize,
    threads: usize,
    bytes: usize,
}

impl Room {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// The loops for one instruction set, operands as `R`, what follows as `E`, and register tiles of `MR` × `NR`.
pub(crate) struct Blocks<I, R, E, const MR: usize, const NR: usize>(PhantomData<(I, R, E)>);

impl<I: Isa, R: Real + Number, E: Real + Number, const MR: usize, const NR: usize> Blocks<I, R, E, MR, NR> {
    /// The panels of a product.
    pub(crate) fn panels(spec: &kp_hal::op::GemmSpec) -> Panels {
        Panels::of(spec, NR)
    }

    /// What an item of at most `rows` rows needs when `threads` threads share it.
    pub(crate) fn room(panels: &Panels, rows: usize, k: usize, threads: usize) -> Room {
        const { assert!(MR.is_multiple_of(2) && NR.is_multiple_of(2), "4-bit codes of D share bytes") };
        let cuts = Cuts::of(MR, panels, rows, k, threads);
        let tile = TILE_ROWS.next_multiple_of(MR) * TILE_COLS.next_multiple_of(NR);
        let sums = if k > cuts.k { (cuts.rows + TILE_ROWS) * (cuts.panels * NR + TILE_COLS) } else { threads * tile };
        let work = threads * Self::work_len();
        let (a, b) = (cuts.rows * cuts.k, cuts.panels * NR * cuts.k);
        let bytes = |len: usize, size: usize| (len * size).next_multiple_of(64);
        let bytes = bytes(a, size_of::<R>())
            + bytes(b, size_of::<R>())
            + bytes(sums, size_of::<E>())
            + bytes(work, size_of::<E>());
        Room { a, b, sums, work, threads, bytes }
    }

    /// Work space of a thread: finishing, and the scales of a tile's rows and columns.
    fn work_len() -> usize {
        finish_len(TILE_COLS) + TILE_ROWS + TILE_COLS
    }

    /// Computes an item.
    ///
    /// # Safety
    /// No other thread computes the same rows of D.
    pub(crate) unsafe fn item(
        product: &Product<'_>,
        item: Item,
        summing: Summing,
        room: &Room,
        scratch: &mut [u8],
        stage: Option<Disjoint<'_, E>>,
    ) {
        let panels = Self::panels(product.spec);
        let k = product.spec.k as usize;
        let count = panels.count();
        if item.rows == 0 || count == 0 {
            return;
        }
        let cuts = Cuts::of(MR, &panels, item.rows, k, room.threads);
        let mut rest = &mut scratch[..room.bytes];
        let a = cut::<R>(&mut rest, room.a);
        let b = cut::<R>(&mut rest, room.b);
        let sums = Disjoint::of(cut::<E>(&mut rest, room.sums));
        let work = Disjoint::of(cut::<E>(&mut rest, room.work));
        let finish = Finish { product, item, summing, panels, stage };
        for first_panel in (0..count).step_by(cuts.panels) {
            let some_panels = first_panel..(first_panel + cuts.panels).min(count);
            for first_row in (0..item.rows).step_by(cuts.rows) {
                let some_rows = first_row..(first_row + cuts.rows).min(item.rows);
                let mut first_k = 0;
                loop {
                    let some_k = first_k..(first_k + cuts.k).min(k);
                    let part = Part {
                        finish: &finish,
                        cuts,
                        rows: some_rows.clone(),
                        panels: some_panels.clone(),
                        k: some_k.clone(),
                    };
                    // What of B was packed last time still stands, unless k is packed in pieces.
                    let b_stands = first_row > 0 && some_k.len() == k;
                    Self::pack(&part, a, b, b_stands);
                    // SAFETY: passed on; parts of an item have their own rows and columns.
                    unsafe { Self::multiply(&part, a, b, sums, work, room.threads) };
                    first_k = some_k.end;
                    if first_k == k {
                        break;
                    }
                }
            }
        }
    }

    /// Packs a part of A and of B, panel by panel.
    fn pack(part: &Part<'_, '_, E>, a: &mut [R], b: &mut [R], b_stands: bool) {
        let product = part.finish.product;
        let item = part.finish.item;
        let scaling = part.finish.summing.scaling;
        let k = part.k.len();
        let (a, b) = (Disjoint::of(a), Disjoint::of(b));
        let a_panels = part.rows.len().div_ceil(MR);
        let b_panels = if b_stands { 0 } else { part.panels.len() };
        threads::for_each(a_panels + b_panels, |i| {
            if i < a_panels {
                let first = part.rows.start + i * MR;
                let outer = item.row + first..item.row + (first + MR).min(part.rows.end);
                // SAFETY: each panel once.
                let out = unsafe { a.part(i * k * MR..(i + 1) * k * MR) };
                let (side, batch) = (&product.a, item.row_batch);
                run_widest(k, Pack { side, batch, outer, inner: part.k.clone(), width: MR, scaling, out });
            } else {
                let i = i - a_panels;
                let outer = part.finish.panels.columns(part.panels.start + i);
                // SAFETY: each panel once.
                let out = unsafe { b.part(i * k * NR..(i + 1) * k * NR) };
                let (side, batch) = (&product.b, item.b);
                run_widest(k, Pack { side, batch, outer, inner: part.k.clone(), width: NR, scaling, out });
            }
        });
    }

    /// Multiplies what is packed, tile by tile, and finishes tiles whose sums are complete.
    ///
    /// # Safety
    /// No other thread computes the same elements of D.
    unsafe fn multiply(
        part: &Part<'_, '_, E>,
        a: &[R],
        b: &[R],
        sums: Disjoint<'_, E>,
        work: Disjoint<'_, E>,
        threads: usize,
    ) {
        let cuts = part.cuts;
        let (rows, panels) = (part.rows.len(), part.panels.len());
        let (down, across) = (rows.div_ceil(cuts.tile_rows), panels.div_ceil(cuts.tile_panels));
        let ld = cuts.tile_panels * NR;
        let region = cuts.tile_rows * ld;
        let tiles = down * across;
        let keeps = part.finish.product.spec.k as usize > cuts.k;
        let next = AtomicUsize::new(0);
        threads::for_each(threads.min(tiles), |slot| {
            loop {
                let t = next.fetch_add(1, Relaxed);
                if t >= tiles {
                    return;
                }
                let (i, j) = (t % down, t / down);
                let at = if keeps { t } else { slot };
                // SAFETY: a slot belongs to one thread, a tile to one slot at a time.
                let (sums, work) = unsafe {
                    let len = Self::work_len();
                    (sums.part(at * region..(at + 1) * region), work.part(slot * len..(slot + 1) * len))
                };
                I::run(Tile::<I, R, E, MR, NR> {
                    part,
                    rows: i * cuts.tile_rows..((i + 1) * cuts.tile_rows).min(rows),
                    panels: j * cuts.tile_panels..((j + 1) * cuts.tile_panels).min(panels),
                    a,
                    b,
                    sums,
                    work,
                    ld,
                    isa: PhantomData,
                });
            }
        });
    }
}

/// What is packed at a time.
struct Part<'p, 'a, E> {
    finish: &'p Finish<'p, 'a, E>,
    cuts: Cuts,
    rows: Range<usize>,
    panels: Range<usize>,
    k: Range<usize>,
}

/// Packs one panel.
struct Pack<'p, 'a, R> {
    side: &'p super::side::Side<'a>,
    batch: usize,
    outer: Range<usize>,
    inner: Range<usize>,
    width: usize,
    scaling: super::side::Scaling,
    out: &'p mut [R],
}

impl<R: Real> Work for Pack<'_, '_, R> {
    #[inline(always)]
    fn run(self) {
        self.side.pack(self.batch, self.outer, self.inner, self.width, self.scaling, self.out);
    }
}

/// Multiplies one tile; `rows` and `panels` count from the part's first.
struct Tile<'t, 'p, 'a, I, R, E, const MR: usize, const NR: usize> {
    part: &'t Part<'p, 'a, E>,
    rows: Range<usize>,
    panels: Range<usize>,
    a: &'t [R],
    b: &'t [R],
    sums: &'t mut [E],
    work: &'t mut [E],
    ld: usize,
    isa: PhantomData<fn() -> I>,
}

impl<I: Isa, R: Real, E: Real, const MR: usize, const NR: usize> Work for Tile<'_, '_, '_, I, R, E, MR, NR> {
    #[inline(always)]
    fn run(self) {
        let Self { part, rows, panels, a, b, sums, work, ld, .. } = self;
        let Finish { product, item, summing, .. } = part.finish;
        let k = part.k.clone();
        let (row_scales, work) = work.split_at_mut(TILE_ROWS);
        let (column_scales, work) = work.split_at_mut(TILE_COLS);
        if k.start == 0 {
            sums.fill(E::ZERO);
        }
        let mut start = k.start;
        while start < k.end {
            let end = summing.end(start, k.end);
            if summing.sums == Sums::Scaled {
                let row = item.row + part.rows.start;
                let block = |side: &super::side::Side<'_>| start / side.matrix.format.block().1 as usize;
                let some = row + rows.start..row + rows.end;
                product.a.scales_of(item.row_batch, some, block(&product.a), &mut row_scales[..rows.len()]);
                for (p, out) in panels.clone().zip(column_scales.chunks_exact_mut(NR)) {
                    let columns = part.finish.panels.columns(part.panels.start + p);
                    let out = &mut out[..columns.len()];
                    product.b.scales_of(item.b, columns, block(&product.b), out);
                }
            }
            for (jp, p) in panels.clone().enumerate() {
                let b = &b[p * k.len() * NR..(p + 1) * k.len() * NR][(start - k.start) * NR..(end - k.start) * NR];
                for ip in 0..rows.len().div_ceil(MR) {
                    let q = rows.start / MR + ip;
                    let a = &a[q * k.len() * MR..(q + 1) * k.len() * MR];
                    let a = &a[(start - k.start) * MR..(end - k.start) * MR];
                    let block = multiply_block::<R, MR, NR>(I::FUSED, a, b);
                    let corner = ip * MR * ld + jp * NR;
                    let scales = (&row_scales[ip * MR..][..MR], &column_scales[jp * NR..][..NR]);
                    add_block(summing.sums, &block, &mut sums[corner..], ld, scales);
                }
            }
            start = end;
        }
        if k.end == product.spec.k as usize {
            let rows = part.rows.start + rows.start..part.rows.start + rows.end;
            let run = part.panels.start + panels.start..part.panels.start + panels.end;
            // SAFETY: a tile has its own elements of D.
            unsafe { part.finish.tile(rows, run, sums, ld, work) };
        }
    }
}

/// The product of a panel of A and a panel of B: what registers hold.
#[inline(always)]
pub(crate) fn multiply_block<R: Real, const MR: usize, const NR: usize>(
    fused: bool,
    a: &[R],
    b: &[R],
) -> [[R; NR]; MR] {
    let mut sums = [[R::ZERO; NR]; MR];
    for (a, b) in a.as_chunks::<MR>().0.iter().zip(b.as_chunks::<NR>().0) {
        for i in 0..MR {
            for j in 0..NR {
                sums[i][j] = if fused { a[i].mul_add(b[j], sums[i][j]) } else { sums[i][j] + a[i] * b[j] };
            }
        }
    }
    sums
}

#[inline(always)]
fn add_block<R: Real, E: Real, const MR: usize, const NR: usize>(
    sums: Sums,
    block: &[[R; NR]; MR],
    totals: &mut [E],
    ld: usize,
    (row_scales, column_scales): (&[E], &[E]),
) {
    macro_rules! each {
        ($sums:expr, |$i:ident, $j:ident| $scale:expr) => {
            for $i in 0..MR {
                let totals = &mut totals[$i * ld..$i * ld + NR];
                for $j in 0..NR {
                    add($sums, &mut totals[$j], block[$i][$j], $scale);
                }
            }
        };
    }
    match sums {
        Sums::Added | Sums::Whole => each!(Sums::Added, |i, j| E::ONE),
        Sums::Half => each!(Sums::Half, |i, j| E::ONE),
        Sums::Scaled => each!(Sums::Scaled, |i, j| row_scales[i] * column_scales[j]),
    }
}
