//! Products by tiles, cut into tasks, runs of k and blocks of 32 by 32.
//!
//! ```text
//!            n ─▶  panels of 32 columns        a task: some rows × some panels, all of k, by one thread
//!          ┌──┬──┬──┬──┐
//!        k ├──┼──┼──┼──┤  a block of B, 16 steps of k or more, is packed in L1, or before, or read where it lies,
//!          └──┴──┴──┴──┘
//!     k          n
//!   ┌────┐ ┌──┬──┬──┬──┐
//! m ├────┤ ├──┼──┼──┼──┤  and meets all rows of the task, which were packed once for all tasks; sums stay in L2
//!   └────┘ └──┴──┴──┴──┘
//! ```
//! Where rows are [few](Source::suits_few) a task goes down a panel, all of k, before it goes on to the next.
//!
//! Columns of B that are contiguous are lines of the left operand as they are, so then A is the right one, and blocks of sums
//! are turned in the end: B need not be. Numbers of A may then have [several parts](super::parts), each of which meets the same lines of B.

use super::{
    along::{Along, suits_all},
    codes::{Codes, ENTRIES},
    cut::{Cut, DEEP, Packs, Work},
    lines::{BLOCK, Holds, Lines, STEP_BYTES},
    parts::left_bytes,
    scaled::add_scaled,
    source::{Source, Units, is_late, is_split, parts_of_a, unit_of, waits},
    terms::{Split, add_turned},
    tile::{Dot, Operand, Passes, Tile},
    vectors,
};
use crate::{
    act::Tail,
    amx::{ROWS, Tiles},
    caps::l2_ways,
    gemm::{
        across::Turned,
        few::columns::bytes_mut,
        finish::{Finish, Panels, each_item},
        product::{Item, Product, Summing, Sums, ends_wide},
        side::Scaling,
        tile::GROUP,
    },
    kernel::{self, Disjoint, Output},
    memory::{cut, numbers_mut},
    threads::{self, Shares},
};
use kp_hal::{
    DType, Device, Kernel, Launch, Plan, Queue, Result, Variant,
    op::{Gemm, GemmArgs, GemmProblem, GemmSpec, Matrix},
};
use std::{
    marker::PhantomData,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// The plan of `kernel` for `p`, for units that multiply what `holds` says.
pub(crate) fn plan(
    kernel: &dyn Kernel<Gemm>,
    device: &Arc<dyn Device>,
    p: &GemmProblem,
    variant: Variant,
    holds: Holds,
    units: Units,
) -> Plan<Gemm> {
    macro_rules! plan {
        ($end:ty) => {{
            let code = ByTiles::<$end>::new(p, holds, units);
            // SAFETY: the loops touch what the spec names, and the scratch that `scratch_bytes` counts.
            unsafe { kernel::plan(kernel, device, p, variant, code.scratch_bytes(), code) }
        }};
    }
    if ends_wide(p) { plan!(f64) } else { plan!(f32) }
}

/// A product cut into tiles.
pub(crate) struct ByTiles<E> {
    pub(super) spec: GemmSpec,
    pub(super) panels: Panels,
    summing: Summing,
    pub(super) holds: Holds,
    pub(super) units: Units,
    pub(super) dot: Dot,
    pub(super) a: Lines,
    /// Parts of A's numbers, and whether these are split to them, be it to one.
    pub(super) parts: usize,
    pub(super) splits: bool,
    pub(super) b: Source,
    /// Whether numbers of B have their scales.
    pub(super) scaling: Scaling,
    /// Whether [they wait](waits) for sums: how many steps of a run share one.
    waiting: Option<usize>,
    /// Whether sums are still to be multiplied by scales of rows and columns.
    pub(super) scaled: bool,
    pub(super) cut: Cut,
    /// Columns of tasks whose B is [packed for all](super::along) rows of tasks, or none: then each task packs what it meets.
    pub(super) together: usize,
    kind: PhantomData<E>,
}

impl<E: Tail> ByTiles<E> {
    /// For units that multiply what `holds` says.
    pub(crate) fn new(spec: &GemmSpec, holds: Holds, units: Units) -> Self {
        let panels = Panels::of(spec, BLOCK);
        let is_signed = |matrix: &Matrix| matrix.dtype() != DType::U8;
        let late = is_late(spec, holds);
        let scaling = if late { Scaling::Left } else { Scaling::Applied };
        let waits = waits(spec, holds, units);
        let b = Source::of(spec, &panels, holds, if waits { Scaling::Left } else { scaling });
        let dot = match (holds, b) {
            (Holds::Bf16, _) => Dot::Bf16,
            (Holds::Bytes, Source::Left(_)) => Dot::Bytes { left: is_signed(&spec.b), right: is_signed(&spec.a) },
            (Holds::Bytes, _) => Dot::Bytes { left: is_signed(&spec.a), right: is_signed(&spec.b) },
        };
        let has_scales = |matrix: &Matrix| matrix.format.scale_dtype().is_some();
        let scaled = has_scales(&spec.a) || late && has_scales(&spec.b);
        // Scales are applied before `Finish` sees the sums.
        let mut summing = Summing::of(spec);
        summing.sums = Sums::Added;
        let (parts, splits) = (parts_of_a(spec, holds), waits || holds == Holds::Bf16 && is_split(spec));
        // All of a run, or what divides it.
        let share = spec.b.format.block().1 as usize / holds.elements();
        let waiting = waits.then(|| 1 << share.trailing_zeros().min(DEEP.trailing_zeros()));
        let steps = parts * (spec.k as usize).div_ceil(holds.elements());
        let a = Lines::of(&spec.a, false, spec.k, holds, unit_of(&spec.a, holds), Scaling::Left);
        let work = Work {
            rows: spec.m as usize,
            steps,
            panels,
            b_lies: matches!(b, Source::Panels(_)),
            b_is_packed: match b {
                Source::Panels(_) => false,
                Source::Across => holds == Holds::Bytes || !suits_all(panels.count(), steps),
                Source::Left(_) => true,
            },
            // Tiles multiply several times as fast.
            packs_fast: units == Units::Vectors && a.are_rows(),
            tiles: units == Units::Tiles,
            spares_l2: units == Units::Vectors && l2_ways().is_some_and(|ways| ways <= 8),
        };
        let form = Self {
            spec: *spec,
            panels,
            summing,
            holds,
            units,
            dot,
            a,
            parts,
            splits,
            b,
            scaling,
            waiting,
            scaled,
            cut: work.cut(threads::count()),
            together: 0,
            kind: PhantomData,
        };
        Self { together: form.together(), ..form }
    }

    pub(super) fn is_turned(&self) -> bool {
        matches!(self.b, Source::Left(_))
    }

    /// Computes and finishes rows `rows` of an item, which begin at a block, and the columns of panels `run`.
    ///
    /// # Safety
    /// No other thread has the same elements of D.
    unsafe fn task(
        &self,
        task: &Task<'_, '_, E>,
        rows: Range<usize>,
        run: Range<usize>,
        own: &[u8],
        mut work: &mut [u8],
    ) {
        let Task { finish, a, ref b, lies, special, ref tiles } = *task;
        let (product, item) = (finish.product, finish.item);
        let [columns_len, block_len, sums_len, turned_len, ends_len] = self.work_lens();
        let [turned_rows, most] = self.turns();
        let mut columns = Turned::new(bytes_mut(cut::<i8>(&mut work, columns_len)), turned_rows, most);
        columns.until = self.panels.columns(run.end - 1).end;
        let block = cut::<i8>(&mut work, block_len);
        let sums = cut::<u32>(&mut work, sums_len);
        let turned = cut::<u32>(&mut work, turned_len);
        let ends = cut::<E>(&mut work, ends_len);
        let (all_steps, ld, blocks) = (self.steps(), self.ld(run.len()), rows.len().div_ceil(BLOCK));
        if all_steps == 0 {
            sums.fill(0);
        }
        let first_block = rows.start / BLOCK;
        let (a, a_blocks, a_first) = match self.cut.packs {
            Packs::Together => (a, item.rows.div_ceil(BLOCK), first_block),
            Packs::Thread => (own, item.rows.div_ceil(BLOCK), first_block),
            Packs::Task | Packs::Rows => (own, blocks, 0),
        };
        // Rows of B a page apart share so few places in L1 and L2 that what a whole block is made of would not stay: it is asked
        // for and packed by shares, each while a block of rows is multiplied. What tiles multiply by fills L1 as it is.
        let by_shares = tiles.is_none() && matches!(self.b, Source::Across);
        let is_along = self.is_along();
        let (mut now, mut soon) = bytes_mut(block).split_at_mut(if is_along { block_len } else { block_len / 2 });
        let (deep, by_panels) = (self.deep(item), self.is_few(item));
        let (runs, panels) = (all_steps.div_ceil(deep), run.len());
        let turn = |t: usize| {
            if t >= runs * panels {
                return (run.start, 0..0);
            }
            let (r, i) = if by_panels { (t % runs, t / runs) } else { (t / panels, t % panels) };
            (run.start + i, r * deep..((r + 1) * deep).min(all_steps))
        };
        let mut scales = [0.0; BLOCK * ENTRIES];
        let mut lying = match is_along {
            true => None,
            false => self.pack_b(product, item, turn(0), turn(1), &mut columns, now),
        };
        for t in 0..runs * panels {
            let (p, steps) = turn(t);
            let (next, of_next) = turn(t + 1);
            let each = steps.len() * self.step_bytes();
            let packed =
                if lies { &[] } else { &a[self.place(a_blocks, a_first, steps.start, deep)..][..blocks * each] };
            let (of_a, a_apart) = match lies {
                true => self.a_lying(product, item, &rows, &steps),
                false => (Operand::packed(packed.as_ptr()), each),
            };
            let along = is_along.then(|| match b {
                Some(b) => b.clone(),
                None => {
                    if t % panels == 0 {
                        self.pack_along(product, item, (&run, &steps), now);
                    }
                    Along { tiles: &*now, panels: run.clone(), first: steps.start }
                }
            });
            let of_b = match &along {
                Some(along) => along.block(p, &steps),
                None => lying.unwrap_or_else(|| Operand::packed(now.as_ptr())),
            };
            let asks = match tiles {
                // What passes once the processor asks for by itself.
                Some(_) if blocks > 1 && !self.splits => self.asks(product, item, (next, &of_next), b.as_ref()),
                _ => None,
            };
            // Columns pass where they lie, unless they meet one tile of A alone. Else B stays, and A passes.
            let b_passes = lying.is_some() && self.is_turned() && rows.len() > ROWS;
            let passes = if b_passes == self.is_turned() { Passes::Left } else { Passes::Right };
            let mut ahead = None;
            if self.waiting.is_some() {
                let elements = self.holds.elements();
                let inner = steps.start * elements..(steps.end * elements).min(self.spec.k as usize);
                Codes::waiting(&product.b, item.b, self.panels.columns(p), inner, &mut scales);
            }
            for j in 0..blocks {
                let of_a = of_a.moved(j * a_apart);
                let (left, right) = if self.is_turned() { (of_b, of_a) } else { (of_a, of_b) };
                let i = p - run.start;
                let (at, of_row) = match self.is_turned() {
                    // Turned, blocks are one after the other.
                    true => ((j * panels + i) * BLOCK * BLOCK, BLOCK),
                    false => (j * BLOCK * ld + i * BLOCK, ld),
                };
                let upper = sums[at..][..(BLOCK - 1) * of_row + BLOCK].as_mut_ptr();
                let of_rows = rows.start + j * BLOCK..rows.end.min(rows.start + (j + 1) * BLOCK);
                let there = [of_rows.len(), self.panels.columns(p).len()];
                let [high, wide] = if self.is_turned() { [there[1], there[0]] } else { there };
                if let (Some(tiles), true) = (tiles, self.splits) {
                    let left = Split { tiles: &packed[j * each..][..each], parts: self.parts };
                    let left = (left, steps.len() * left_bytes(self.parts), wide.div_ceil(ROWS));
                    let right = Split { tiles: now, parts: 1 };
                    let sums = numbers_mut(bytes_mut(&mut sums[at..][..BLOCK * BLOCK]));
                    if let Some(each) = self.waiting {
                        if steps.start == 0 {
                            sums.fill(0.0);
                        }
                        // SAFETY: as below.
                        unsafe { add_scaled(left, now, steps.len(), (&scales, each), sums, tiles) };
                        continue;
                    }
                    // SAFETY: A was split to as many steps and B packed, and `supports` asked for the features.
                    unsafe { add_turned(left, right, steps.len(), (sums, BLOCK), steps.start == 0, tiles) };
                    continue;
                }
                let tile = Tile {
                    left,
                    right,
                    ahead: asks.as_ref().map_or([None; 2], |asks| asks.of(j, blocks)),
                    passes,
                    halves: if passes == Passes::Left { high } else { wide }.div_ceil(ROWS),
                    steps: steps.len(),
                    sums: [upper, upper.wrapping_add(ROWS * of_row)],
                    sums_ld: 4 * of_row,
                    first: steps.start == 0,
                };
                let share = |j: usize| of_next.len() * j / blocks;
                let some = || of_next.start + share(j)..of_next.start + share(j + 1);
                // SAFETY: the operands are as they were packed or lie, the sums are this thread's, and `supports` asked for the features.
                unsafe {
                    match tiles {
                        Some(tiles) => tile.run(self.dot, tiles),
                        None => {
                            let times = vectors::tiles([high, wide]);
                            if by_shares {
                                let wanted = self.wanted(product, item, next, some());
                                ahead = wanted.map(|wanted| (wanted.shared(times, steps.len() * GROUP), 0));
                            } else if j == 0 {
                                let wanted = self.wanted(product, item, next, of_next.clone());
                                ahead =
                                    wanted.map(|wanted| (wanted.shared(blocks * times, steps.len() * GROUP), times));
                            }
                            vectors::run(&tile, [high, wide], ahead.as_ref().map(|(all, each)| (all, j * each)));
                        }
                    }
                }
                if by_shares {
                    let nothing = (next, 0..0);
                    self.pack_b(
                        product,
                        item,
                        (next, some()),
                        nothing,
                        &mut columns,
                        &mut soon[share(j) * STEP_BYTES..],
                    );
                }
            }
            if by_shares {
                std::mem::swap(&mut now, &mut soon);
            } else if !is_along {
                lying = self.pack_b(product, item, (next, of_next), turn(t + 2), &mut columns, now);
            }
        }
        // SAFETY: passed on.
        unsafe { self.end(finish, rows, run, special.load(Ordering::Relaxed), (sums, turned, ends)) };
    }

    /// Computes an item; sums that must wait for their rows go to `stage`.
    ///
    /// # Safety
    /// No other thread computes the same rows of D.
    pub(crate) unsafe fn item(
        &self,
        product: &Product<'_>,
        item: Item,
        scratch: &mut [u8],
        stage: Option<Disjoint<'_, E>>,
    ) {
        let [a_bytes, b_bytes] = self.shared_bytes();
        let (a, rest) = scratch.split_at_mut(a_bytes);
        let (b, work) = rest.split_at_mut(b_bytes);
        let lies = self.a_lies(product, item);
        let special = AtomicBool::new(false);
        if self.cut.packs == Packs::Together && !lies {
            self.prepare(product, item, a, &special);
        }
        let a = &*a;
        let work = Output::of(work);
        let blocks = item.rows.div_ceil(BLOCK);
        let [down, across] = [self.cut.grid[0].min(blocks), self.cut.grid[1]];
        let finish = Finish { product, item, summing: self.summing, panels: self.panels, stage };
        let together = if down > 1 { self.together } else { 0 };
        let some = if together > 0 { together } else { across.max(1) };
        for first in (0..across).step_by(some) {
            let columns = first..across.min(first + some);
            let b = (together > 0).then(|| self.pack_together(product, item, self.panels_of(columns.clone()), b));
            // SAFETY: passed on.
            unsafe { self.tasks(&finish, (down, columns), (a, b, lies), &special, work) };
        }
    }

    /// Panels of some columns of tasks.
    fn panels_of(&self, columns: Range<usize>) -> Range<usize> {
        let (unit, across) = (self.panels.unit(), self.cut.grid[1]);
        let first = |column: usize| self.panels.count() / unit * column / across * unit;
        first(columns.start)..first(columns.end)
    }

    /// Computes and finishes the tasks of so many runs of rows and of some columns of tasks, with A as it was packed, or lies, and with B if it was packed for
    /// all of them.
    ///
    /// # Safety
    /// No other thread computes the same elements of D.
    unsafe fn tasks(
        &self,
        finish: &Finish<'_, '_, E>,
        (down, columns): (usize, Range<usize>),
        (a, b, lies): (&[u8], Option<Along<'_>>, bool),
        special: &AtomicBool,
        work: Output<'_>,
    ) {
        let (product, item) = (finish.product, finish.item);
        let (blocks, across) = (item.rows.div_ceil(BLOCK), columns.len());
        let by_rows = self.cut.packs == Packs::Rows;
        let slots = threads::count().min(down * across);
        let shares = Shares::new(down * across, slots, if by_rows { slots } else { 1 });
        threads::for_each(slots, |slot| {
            let bytes = self.work_bytes();
            // SAFETY: a slot belongs to one thread.
            let work = unsafe { work.part(slot * bytes..(slot + 1) * bytes) };
            // SAFETY: `supports` asked for the feature, and what this calls has no tiles of its own.
            let tiles = (self.units == Units::Tiles).then(|| unsafe { Tiles::new() });
            let task = Task { finish, a, b: b.clone(), lies, special, tiles };
            let (own, work) = work.split_at_mut(self.a_bytes()[1]);
            let mut ready = 0..0;
            for t in shares.of(slot) {
                // Neighbouring tasks share a panel's memory, or the rows that this thread has packed.
                let (i, j) = if by_rows { (t / across, t % across) } else { (t % down, t / down) };
                let block = |i: usize| blocks * i / down;
                let needed = match self.cut.packs {
                    _ if lies => 0..0,
                    Packs::Together => 0..0,
                    Packs::Thread => 0..blocks,
                    Packs::Task | Packs::Rows => block(i)..block(i + 1),
                };
                if ready != needed {
                    self.prepare_own(product, item, needed.clone(), own, special);
                    ready = needed;
                }
                let row = |i: usize| (block(i) * BLOCK).min(item.rows);
                let panels = self.panels_of(columns.start + j..columns.start + j + 1);
                // SAFETY: tasks have their own elements of D.
                unsafe { self.task(&task, row(i)..row(i + 1), panels, own, work) };
            }
        });
    }
}

/// What tasks share.
struct Task<'t, 'p, E> {
    finish: &'t Finish<'p, 'p, E>,
    a: &'t [u8],
    /// B, if it was packed for all of them.
    b: Option<Along<'t>>,
    /// Whether A need not be packed.
    lies: bool,
    /// Whether some number of A that was packed has no parts.
    special: &'t AtomicBool,
    /// Of this thread, unless products are made in vectors.
    tiles: Option<Tiles>,
}

impl<E: Tail> Launch<Gemm> for ByTiles<E> {
    unsafe fn launch(&self, queue: &mut dyn Queue, args: &GemmArgs<'_>) -> Result<()> {
        let spec = &self.spec;
        // SAFETY: the arguments were checked, says the caller.
        let product = unsafe { Product::of(spec, args) };
        let (scratch, stage, codes) = self.scratch(kernel::own(queue).scratch());
        each_item(&product, stage, codes, |item, waiting| {
            // SAFETY: items have their own D.
            unsafe { self.item(&product, item, scratch, waiting) };
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::gemm::tests::check;

    /// One tile of rows, two, and several blocks, by columns and panels where they lie and by those that must be packed, over runs of k
    /// that end within one.
    #[test]
    fn few_rows_meet_panel_after_panel() {
        for (types, orders) in [
            ("bf16:bf16:f32", ["b=col/1100", "b=panel32x2"]),
            ("i8@row:i8@row:f32", ["b=col", "b=panel64x4"]),
            ("i4:u8:f32", ["b=col", "b=panel128x4"]),
            ("e4m3@row:e4m3@row:f32", ["b=col", "a=col"]),
            ("e5m2@tensor:e2m1:bf16", ["b=col", "b=col bias=f32 act=relu"]),
            ("i8@row:bf16:f32", ["b=col", "b=panel32x2"]),
            ("f32:i8@row:f32", ["b=col", "a=col b=col"]),
            ("f16:u4:f32", ["b=col", "b=col bias=f32 act=relu"]),
            ("f32:bf16:f32", ["b=col", "b=col/1100"]),
            ("f16:e2m1@mx:f32", ["b=col", "b=col/1120"]),
        ] {
            for order in orders {
                for size in ["1x9x70x1088", "2x20x66x1088", "1x100x40x1088", "1x270x33x1088"] {
                    check(&format!("gemm {size} {types} {order}"), (1.0, 1.0));
                }
            }
        }
    }
}
