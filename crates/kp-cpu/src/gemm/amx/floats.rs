//! Products of numbers of f32 by tiles, each number as [up to three of bf16](super::parts).
//!
//! ```text
//!            n ─▶  panels of 64 columns        a chunk: some rows × some panels, all of k, by one thread
//!          ┌──┬──┬──┬──┐
//!        k ├──┼──┼──┼──┤  a run of k of a panel is split, each half of it to 24 KB that stay in the first cache
//!          └──┴──┴──┴──┘
//!     k          n
//!   ┌────┐ ┌──┬──┬──┬──┐
//! m ├────┤ ├──┼──┼──┼──┤  and meets the chunk's rows of that run, which were split once and pass from the second cache; sums stay there
//!   └────┘ └──┴──┴──┴──┘
//! ```
//! Where B's columns are contiguous, A is turned instead of B, as often as it is split, and a chunk's sums are turned in the end.
//!
//! Numbers of f32 on both sides are split [while others are multiplied](super::woven), in another order.
//!
//! Columns of codes of 4, 8 and 16 bits are [looked up](super::codes) as parts. Operands of other types become numbers of f32 first, as for the kernel
//! that multiplies those, but where they lie as such in rows.

use super::{
    bits::{is_late, kept, parts, scaling, without_digits},
    chunks::grid,
    codes::{Codes, ENTRIES},
    lines::{BLOCK, turn, turn_sums},
    parts::{PARTS, Places, STEP, WIDE, left_bytes, right_bytes, split_lines},
    splits::codes_of,
    terms::{Split, add_products, add_turned},
    woven,
};
use crate::{
    amx::{ROWS, Tiles},
    gemm::{
        few::columns::bytes_mut,
        finish::{Finish, Panels, codes_bytes, each_item, finish_len, stage_len},
        product::{Item, Product, Summing, Sums},
        side::{LINE, Scaling},
        tile::Wanted,
    },
    kernel::{self, Disjoint},
    memory::{LINE as CACHE_LINE, cut, numbers_mut, prefetch},
    numbers,
    threads::{self, Deal},
};
use kp_hal::{
    DType, Launch, Queue, Result,
    op::{Gemm, GemmArgs, GemmSpec, Order},
};
use std::ops::Range;

/// Elements of k that are split at a time.
pub(super) const RUN: usize = 4 * STEP;

/// Columns of a panel.
pub(crate) const PANEL: usize = 2 * WIDE;

/// Sums that stay unused behind each row, or column: lines of a tile would share few places in the first cache otherwise.
const APART: usize = ROWS;

/// Tiles of rows that are multiplied one after the other before anything else is done.
const TOGETHER: usize = 4;

/// Numbers from a row of A to the next where it is made ready.
pub(super) const A_LD: usize = RUN + ROWS;

/// A product cut into chunks.
pub(crate) struct Floats {
    spec: GemmSpec,
    panels: Panels,
    summing: Summing,
    /// Chunks along m and n.
    grid: [usize; 2],
    /// How A and B are unpacked.
    pub(super) scaling: [Scaling; 2],
    /// B's columns, if they are codes to look up.
    codes: Option<Codes>,
    /// Whether B's columns are contiguous: A is turned, and so are sums.
    pub(super) turned: bool,
    /// Whether numbers of B are split while others are multiplied.
    weaves: bool,
}

/// One launch: what is multiplied, and of how many parts its numbers are.
pub(super) struct Job<'j, 'p> {
    pub(super) floats: &'j Floats,
    pub(super) finish: &'j Finish<'p, 'p, f32>,
    pub(super) parts: [usize; 2],
}

/// What a panel of B is split from: codes to look up, columns, or lines of numbers with the distance between them.
enum OfB<'s> {
    Codes(Codes),
    Columns,
    Lines((&'s [f32], usize)),
}

/// What a thread has for itself.
pub(super) struct Room<'s> {
    pub(super) a: &'s mut [i8],
    pub(super) b: &'s mut [i8],
    pub(super) rows: &'s mut [f32],
    pub(super) lines: &'s mut [f32],
    pub(super) sums: &'s mut [f32],
    turned: &'s mut [f32],
    scales: &'s mut [f32],
    factors: &'s mut [f32],
    ends: &'s mut [f32],
}

impl Floats {
    pub(crate) fn new(spec: &GemmSpec) -> Self {
        let panels = Panels::of(spec, PANEL);
        let mut summing = Summing::of(spec);
        summing.sums = Sums::Added;
        let grid = grid(spec, threads::count());
        let scaling = [&spec.a, &spec.b].map(|matrix| scaling(matrix, spec.k));
        let turned = spec.b.order == Order::Col;
        Self { spec: *spec, panels, summing, grid, scaling, codes: codes_of(spec), turned, weaves: woven::suits(spec) }
    }

    /// The same places for pairs as products want them.
    pub(super) fn places(&self, places: Places) -> Places {
        if self.weaves { places.apart() } else { places }
    }

    pub(super) fn most_rows(&self) -> usize {
        (self.spec.m as usize).div_ceil(ROWS).div_ceil(self.grid[0].max(1)) * ROWS
    }

    fn most_panels(&self) -> usize {
        let unit = self.panels.unit();
        (self.panels.count() / unit).div_ceil(self.grid[1].max(1)) * unit
    }

    /// Where a chunk of so many rows and panels has its sums.
    pub(super) fn sums(&self, rows: usize, panels: usize) -> SumPlaces {
        let (rows, columns) = (rows.next_multiple_of(BLOCK), panels * PANEL);
        match self.turned {
            true => SumPlaces { row: 1, column: rows + APART, len: columns * (rows + APART) },
            false => SumPlaces { row: columns + APART, column: 1, len: rows * (columns + APART) },
        }
    }

    /// Bytes of what is split of A and of half a panel; numbers of rows and lines before that, of sums, of some rows of them turned, of scales and zero
    /// points of codes, of scales of rows and columns, and for the end.
    fn lens(&self) -> [usize; 9] {
        let (rows, panels) = (self.most_rows(), self.most_panels());
        let ld = ld(panels);
        let [of_a, of_b] = if self.weaves { [woven::BLOCK, 2 * self.run()] } else { [RUN; 2] };
        let (left, right) = (of_a / STEP * left_bytes(PARTS), of_b / STEP * right_bytes(PARTS));
        let turned = if self.turned { BLOCK * ld } else { 0 };
        let scales = if self.codes.is_some() { 2 * ld * ENTRIES } else { 0 };
        let sums = self.sums(rows, panels).len;
        [rows / ROWS * left, right, ROWS * A_LD, RUN * PANEL, sums, turned, scales, rows + ld, finish_len(ld)]
    }

    fn room_bytes(&self) -> usize {
        let [a, b, numbers @ ..] = self.lens();
        a + b + numbers.into_iter().map(|len| (4 * len).next_multiple_of(64)).sum::<usize>()
    }

    pub(crate) fn scratch_bytes(&self) -> u64 {
        let stage = (4 * stage_len(&self.spec)).next_multiple_of(64);
        (threads::count() * self.room_bytes() + stage + codes_bytes(&self.spec)) as u64
    }

    fn room<'s>(&self, mut bytes: &'s mut [u8]) -> Room<'s> {
        let [a, b, rows, lines, sums, turned, scales, factors, ends] = self.lens();
        Room {
            a: cut(&mut bytes, a),
            b: cut(&mut bytes, b),
            rows: cut(&mut bytes, rows),
            lines: cut(&mut bytes, lines),
            sums: cut(&mut bytes, sums),
            turned: cut(&mut bytes, turned),
            scales: cut(&mut bytes, scales),
            factors: cut(&mut bytes, factors),
            ends: cut(&mut bytes, ends),
        }
    }

    /// The rows and panels of chunk `i` of an item of `rows` rows.
    fn chunk(&self, i: usize, rows: usize) -> (Range<usize>, Range<usize>) {
        let [down, across] = self.grid;
        let (tiles, unit) = (rows.div_ceil(ROWS), self.panels.unit());
        let row = |i: usize| (i * tiles / down * ROWS).min(rows);
        let panel = |j: usize| j * (self.panels.count() / unit) / across * unit;
        let (i, j) = (i % down, i / down);
        (row(i)..row(i + 1), panel(j)..panel(j + 1))
    }

    fn item(&self, finish: &Finish<'_, '_, f32>, parts: [usize; 2], scratch: &mut [u8]) {
        let job = Job { floats: self, finish, parts };
        let (rows, bytes) = (finish.item.rows, self.room_bytes());
        let chunks = self.grid.into_iter().product();
        let slots = threads::count().min(chunks);
        let work = rows as u64 * u64::from(self.spec.n) * u64::from(self.spec.k);
        let deal = Deal::new(chunks, slots, work);
        let scratch = Disjoint::of(scratch);
        threads::for_each(slots, |slot| {
            // SAFETY: a slot belongs to one thread.
            let mut room = self.room(unsafe { scratch.part(slot * bytes..(slot + 1) * bytes) });
            // SAFETY: `supports` asked for the features, and there are no others on this thread until the end of the loop.
            let tiles = unsafe { Tiles::new() };
            for i in deal.of(slot) {
                let (rows, panels) = self.chunk(i, rows);
                if !rows.is_empty() && !panels.is_empty() {
                    // SAFETY: chunks have their own elements of D, and `supports` asked for the features.
                    unsafe { job.compute(rows, panels, &mut room, &tiles) };
                }
            }
        });
    }
}

/// Where a chunk has its sums: how far from a row to the next, and from a column, and how many there are.
#[derive(Clone, Copy)]
pub(super) struct SumPlaces {
    pub(super) row: usize,
    pub(super) column: usize,
    len: usize,
}

/// Numbers from a row to the next of so many panels.
fn ld(panels: usize) -> usize {
    panels * PANEL + APART
}

impl Job<'_, '_> {
    /// Computes a chunk.
    ///
    /// # Safety
    /// - No other thread has the same elements of D.
    /// - The processor has AVX-512 and tiles of bf16.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    unsafe fn compute(&self, rows: Range<usize>, panels: Range<usize>, room: &mut Room<'_>, tiles: &Tiles) {
        if self.floats.weaves {
            // SAFETY: passed on.
            unsafe { self.add_woven(rows.clone(), panels.clone(), room, tiles) };
        } else {
            // SAFETY: passed on.
            unsafe { self.add(rows.clone(), panels.clone(), room, tiles) };
        }
        // SAFETY: passed on.
        unsafe { self.end(rows, panels, room) };
    }

    /// Computes the sums of a chunk.
    ///
    /// # Safety
    /// As [`Self::compute`].
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    unsafe fn add(&self, rows: Range<usize>, panels: Range<usize>, room: &mut Room<'_>, tiles: &Tiles) {
        let Self { floats, finish, parts } = *self;
        let (product, item) = (finish.product, finish.item);
        let (k, places) = (product.spec.k as usize, floats.sums(rows.len(), panels.len()));
        let (a, b) = (bytes_of(room.a), bytes_of(room.b));
        let tile_bytes = RUN / STEP * left_bytes(parts[0]);
        let (scales, zeros) = room.scales.split_at_mut(room.scales.len() / 2);
        if k == 0 {
            room.sums.fill(0.0);
        }
        for start in (0..k).step_by(RUN) {
            let run = start..(start + RUN).min(k);
            let steps = run.len().div_ceil(STEP);
            if let Some(codes) = floats.codes.filter(|_| start % LINE == 0) {
                let inner = start..(start + LINE).min(k);
                let each = scales.chunks_exact_mut(PANEL * ENTRIES).zip(zeros.chunks_exact_mut(PANEL * ENTRIES));
                for (p, (scales, zeros)) in panels.clone().zip(each) {
                    codes.scales(&product.b, item.b, finish.panels.columns(p), inner.clone(), [scales, zeros]);
                }
            }
            let of_rows = |tile: usize| rows.start + tile * ROWS..rows.end.min(rows.start + (tile + 1) * ROWS);
            let count = rows.len().div_ceil(ROWS);
            let mut special_a = false;
            for (tile, out) in a.chunks_exact_mut(tile_bytes).take(count).enumerate() {
                special_a |= self.split_a(of_rows(tile), run.clone(), room.rows, out);
                if floats.turned {
                    turn(&mut out[..steps * left_bytes(parts[0])]);
                }
            }
            let later = run.end..(run.end + RUN).min(k);
            let outer = item.row + rows.start..item.row + rows.end;
            let wanted_a = product.a.wanted(item.row_batch, &outer, &later).filter(|_| !later.is_empty());
            for (i, p) in panels.clone().enumerate() {
                let columns = finish.panels.columns(p);
                let next = match p + 1 < panels.end {
                    true => (p + 1, run.clone()),
                    false => (panels.start, later.clone()),
                };
                let wanted_b = product.b.wanted(item.b, &finish.panels.columns(next.0), &next.1);
                let of_b = match floats.codes {
                    Some(codes) => OfB::Codes(codes),
                    None if floats.turned => OfB::Columns,
                    None => OfB::Lines(self.lines_of_b(columns.clone(), run.clone(), room.lines)),
                };
                let mut special_b = false;
                let halves = columns.len().div_ceil(WIDE);
                for half in 0..halves {
                    let some = columns.start + half * WIDE..columns.end.min(columns.start + (half + 1) * WIDE);
                    special_b |= match of_b {
                        OfB::Codes(codes) => {
                            let first =
                                ((p - panels.start) * PANEL + half * WIDE) * ENTRIES + start % LINE / codes.entry();
                            self.split_codes(codes, some, run.clone(), [&scales[first..], &zeros[first..]], b)
                        }
                        OfB::Columns => self.split_columns(some, run.clone(), room.rows, b),
                        OfB::Lines((lines, ld)) => split_lines(
                            (&lines[half * WIDE..], ld),
                            some.len(),
                            run.len(),
                            parts[1],
                            (Places::right(parts[1]), b),
                        ),
                    };
                    for tile in (0..count).step_by(TOGETHER) {
                        let (part, all) = (half * count + tile, halves * count);
                        if let Some(wanted) = &wanted_b {
                            ask(wanted, part..part + TOGETHER, all);
                        }
                        if let Some(wanted) = &wanted_a {
                            let first = i * all + part;
                            ask(wanted, first..first + TOGETHER, panels.len() * all);
                        }
                        let column = (p - panels.start) * PANEL + half * WIDE;
                        let sums = &mut room.sums[tile * ROWS * places.row + column * places.column..];
                        let [left, right] = [(&a[tile * tile_bytes..], parts[0]), (&*b, parts[1])]
                            .map(|(tiles, parts)| Split { tiles, parts });
                        let left = (left, tile_bytes, (count - tile).min(TOGETHER));
                        // SAFETY: they were split to as many steps, and the processor has what it takes.
                        unsafe {
                            match floats.turned {
                                true => add_turned(left, right, steps, (sums, places.column), start == 0, tiles),
                                false => add_products(left, right, steps, (sums, places.row), start == 0, tiles),
                            }
                        }
                    }
                }
                if special_a || special_b {
                    let sums = &mut room.sums[(p - panels.start) * PANEL * places.column..];
                    self.add_specials((rows.clone(), columns), run.clone(), (room.rows, room.lines), (sums, places));
                }
            }
        }
    }

    /// Finishes the sums of a chunk.
    ///
    /// # Safety
    /// As [`Self::compute`].
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    unsafe fn end(&self, rows: Range<usize>, panels: Range<usize>, room: &mut Room<'_>) {
        let Self { floats, finish, .. } = *self;
        let places = floats.sums(rows.len(), panels.len());
        let (ld, by) = (ld(panels.len()), self.factors(rows.clone(), panels.clone(), room.factors));
        let scale = |rows: Range<usize>, sums: &mut [f32]| {
            if let Some((of_rows, of_columns)) = by {
                for (sums, row) in sums.chunks_mut(ld).zip(&of_rows[rows]) {
                    sums.iter_mut().zip(of_columns).for_each(|(sum, column)| *sum *= row * column);
                }
            }
        };
        if !floats.turned {
            scale(0..rows.len(), room.sums);
            // SAFETY: passed on.
            return unsafe { finish.tile(rows, panels, room.sums, ld, room.ends) };
        }
        let sums = &*numbers_mut::<u32>(bytes_mut(room.sums));
        for first in (0..rows.len()).step_by(BLOCK) {
            for column in (0..panels.len() * PANEL).step_by(BLOCK) {
                let out = numbers_mut::<u32>(bytes_mut(&mut room.turned[column..][..(BLOCK - 1) * ld + BLOCK]));
                // SAFETY: there are as many rows.
                unsafe { turn_sums((&sums[column * places.column + first..], places.column), (out.as_mut_ptr(), ld)) };
            }
            let some = first..(first + BLOCK).min(rows.len());
            scale(some.clone(), room.turned);
            let some = rows.start + some.start..rows.start + some.end;
            // SAFETY: passed on.
            unsafe { finish.tile(some, panels.clone(), room.turned, ld, room.ends) };
        }
    }

    /// What is left to multiply the sums of rows and columns of a chunk by, if anything.
    fn factors<'f>(
        &self,
        rows: Range<usize>,
        panels: Range<usize>,
        room: &'f mut [f32],
    ) -> Option<(&'f [f32], &'f [f32])> {
        let (product, item, spec) = (self.finish.product, self.finish.item, self.finish.product.spec);
        if ![&spec.a, &spec.b].into_iter().any(|matrix| is_late(matrix, spec.k)) {
            return None;
        }
        let (of_columns, of_rows) = room.split_at_mut(ld(panels.len()));
        of_columns.fill(1.0);
        of_rows.fill(1.0);
        if is_late(&spec.b, spec.k) {
            for (p, out) in panels.zip(of_columns.chunks_exact_mut(PANEL)) {
                product.b.scales_of(item.b, self.finish.panels.columns(p), 0, out);
            }
        }
        if is_late(&spec.a, spec.k) {
            product.a.scales_of(item.row_batch, item.row + rows.start..item.row + rows.end, 0, of_rows);
        }
        Some((of_rows, of_columns))
    }
}

/// Asks for some parts of `parts` of what is wanted.
fn ask(wanted: &Wanted, some: Range<usize>, parts: usize) {
    let Wanted { at, bytes, count, step } = *wanted;
    let each = bytes.div_ceil(CACHE_LINE);
    let of = |part: usize| count * each * part.min(parts) / parts;
    let (mut line, end) = (of(some.start), of(some.end));
    // Of nothing there are no lines.
    let (mut run, mut i) = (line / each.max(1), line % each.max(1));
    while line < end {
        prefetch::<2>(at.wrapping_add(run * step + i * CACHE_LINE));
        (line, i) = (line + 1, i + 1);
        if i == each {
            (run, i) = (run + 1, 0);
        }
    }
}

pub(super) fn bytes_of(codes: &mut [i8]) -> &mut [u8] {
    crate::gemm::few::columns::bytes_mut(codes)
}

impl Launch<Gemm> for Floats {
    unsafe fn launch(&self, queue: &mut dyn Queue, args: &GemmArgs<'_>) -> Result<()> {
        let spec = &self.spec;
        // SAFETY: the arguments were checked, says the caller.
        let mut product = unsafe { Product::of(spec, args) };
        let mut powers = [[0; 4]; 2];
        for (side, power) in [&mut product.a, &mut product.b].into_iter().zip(&mut powers) {
            if !side.global.is_empty() {
                let (of_all, rest) = without_digits(numbers::get(DType::F32, side.global, 0));
                *power = of_all.to_le_bytes();
                side.global = power;
                product.alpha *= rest;
            }
        }
        let parts = kept([&product.a, &product.b].map(parts), spec);
        let (rooms, mut rest) = kernel::own(queue).scratch().split_at_mut(threads::count() * self.room_bytes());
        let stage = cut::<f32>(&mut rest, stage_len(spec));
        let codes = &mut rest[..codes_bytes(spec)];
        each_item(&product, stage, codes, |item: Item, stage| {
            let (product, panels, summing) = (&product, self.panels, self.summing);
            self.item(&Finish { product, item, summing, panels, stage }, parts, rooms);
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::gemm::tests::check;

    /// Rows and columns that end within a tile, a panel and a chunk, over runs of k that end within a step.
    #[test]
    fn numbers_of_f32_by_tiles() {
        for (size, forms) in [
            ("1x17x70x300", ["", "b=col", "a=col b=col/310"]),
            ("1x530x33x140", ["", "b=panel64x1", "b=col"]),
            ("2x40x600x129", ["", "b=panel64x1", "a=col"]),
            ("1x40x100x1100", ["", "b=panel64x1", "b=col"]),
            ("1x300x70x600", ["", "b=panel64x1", "b=col"]),
            ("1x70x130x257", ["bias=f32 act=silu gate=halves", "gate=pairs b=col", "d=col"]),
        ] {
            for form in forms {
                check(&format!("gemm {size} f32:f32:f32 {form}"), (1.0, 1.0));
            }
        }
    }

    /// Parts of any number on both sides, of numbers and of codes with scales and zero points, over k that ends within what scales are read for.
    #[test]
    fn operands_of_fewer_parts() {
        let types = "f16:f16:f16 bf16:f32:bf16 f16:f32:f32 f32:bf16:f32 f32:i4@g32/f16:f32 f32:u4@g32/f16z:f32 f16:u4@g16/bf16z:f32 \
                     f32:nf4@g64/f32:f32 f32:e2m1@mx:f32 f32:e2m1@nv:f32 f16:e2m1@nv:f16 f32:i8@g64/f32:f32 f32:e4m3@row:f32 \
                     e4m3@row:e4m3@row:f32 i8@row:f32:f32 f16:i8@row:f16 f32:i4:f32 f32:u8:f32 e4m3@1x128:e4m3@128x128:f32";
        for types in types.split_whitespace() {
            for form in ["1x33x70x640 {} b=col", "1x40x46x192 {} b=col gate=halves act=silu"] {
                check(&format!("gemm {}", form.replace("{}", types)), (0.5, 1.0));
            }
        }
    }
}
