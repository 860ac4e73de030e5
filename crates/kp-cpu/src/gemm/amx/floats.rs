//! Products of numbers of f32 by tiles, each number as [three of bf16](super::parts).
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
//! Operands of any type become numbers of f32 first, as for the kernel that multiplies those, but where they lie as such in rows.

use super::parts::{LEFT_BYTES, RIGHT_BYTES, STEP, WIDE, add_products, is_special, split_lines, split_rows};
use crate::{
    amx::{ROWS, Tiles},
    gemm::{
        finish::{Finish, Panels, codes_bytes, each_item, finish_len, stage_len},
        product::{Item, Product, Summing, Sums},
        tile::Wanted,
    },
    kernel::{self, Disjoint},
    memory::{LINE, cut, prefetch},
    simd::{Avx512, Work},
    threads::{self, Deal},
};
use kp_hal::{
    Launch, Queue, Result,
    op::{Gemm, GemmArgs, GemmSpec},
};
use std::ops::Range;

/// Elements of k that are split at a time.
const RUN: usize = 4 * STEP;

/// Columns of a panel.
pub(crate) const PANEL: usize = 2 * WIDE;

/// Most rows and columns of a chunk: 1 MB of sums and 400 KB of A are in the second cache together.
const MOST_ROWS: usize = 512;
const MOST_COLUMNS: usize = 512;

/// Sums that stay unused behind each row: lines of a tile's rows would share few places in the first cache otherwise.
const APART: usize = ROWS;

/// Bytes of a split run of 16 rows.
const TILE_BYTES: usize = RUN / STEP * LEFT_BYTES;

/// Tiles of rows that are multiplied one after the other before anything else is done.
const TOGETHER: usize = 4;

/// Numbers from a row of A to the next where it is made ready.
const A_LD: usize = RUN + ROWS;

/// The least rows that are worth a chunk, operations that are worth handing to a thread, and chunks that a thread finds.
const LEAST_ROWS: usize = 4 * ROWS;
const GRAIN: f64 = 8e6;
const CHUNKS: usize = 2;

/// A product cut into chunks.
pub(crate) struct Floats {
    spec: GemmSpec,
    panels: Panels,
    summing: Summing,
    /// Chunks along m and n.
    grid: [usize; 2],
}

/// What a thread has for itself.
struct Room<'s> {
    a: &'s mut [i8],
    b: &'s mut [i8],
    rows: &'s mut [f32],
    lines: &'s mut [f32],
    sums: &'s mut [f32],
    ends: &'s mut [f32],
}

impl Floats {
    pub(crate) fn new(spec: &GemmSpec) -> Self {
        let panels = Panels::of(spec, PANEL);
        let mut summing = Summing::of(spec);
        summing.sums = Sums::Added;
        let grid = grid(spec, threads::count());
        Self { spec: *spec, panels, summing, grid }
    }

    fn most_rows(&self) -> usize {
        (self.spec.m as usize).div_ceil(ROWS).div_ceil(self.grid[0].max(1)) * ROWS
    }

    /// Numbers from a row of sums to the next, of so many panels.
    fn ld(panels: usize) -> usize {
        panels * PANEL + APART
    }

    fn most_ld(&self) -> usize {
        let unit = self.panels.unit();
        Self::ld((self.panels.count() / unit).div_ceil(self.grid[1].max(1)) * unit)
    }

    /// Bytes of a split run of A and of a panel; numbers of rows and lines before that, of sums, and for their end.
    fn lens(&self) -> [usize; 6] {
        let (rows, ld) = (self.most_rows(), self.most_ld());
        let (left, right) = (RUN / STEP * LEFT_BYTES, RUN / STEP * RIGHT_BYTES);
        [rows / ROWS * left, PANEL / WIDE * right, ROWS * A_LD, RUN * PANEL, rows * ld, finish_len(ld)]
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
        let [a, b, rows, lines, sums, ends] = self.lens();
        Room {
            a: cut(&mut bytes, a),
            b: cut(&mut bytes, b),
            rows: cut(&mut bytes, rows),
            lines: cut(&mut bytes, lines),
            sums: cut(&mut bytes, sums),
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

    fn item(&self, finish: &Finish<'_, '_, f32>, scratch: &mut [u8]) {
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
                    unsafe { compute(finish, rows, panels, &mut room, &tiles) };
                }
            }
        });
    }
}

/// Chunks along m and n for so many threads: each splits its rows of A and its columns of B.
pub(crate) fn grid(spec: &GemmSpec, threads: usize) -> [usize; 2] {
    let panels = Panels::of(spec, PANEL);
    let (rows, unit) = (spec.m as usize, panels.unit());
    let (units, wide) = (panels.count() / unit, unit * PANEL);
    if rows == 0 || units == 0 {
        return [0, 0];
    }
    let (mut down, mut across) = (rows.div_ceil(MOST_ROWS), units.div_ceil(MOST_COLUMNS / wide));
    let operations = 2.0 * f64::from(spec.m) * f64::from(spec.n) * f64::from(spec.k);
    let wanted = if threads > 1 { ((operations / GRAIN) as usize).min(threads * CHUNKS) } else { 1 };
    while down * across < wanted {
        let (high, wide) = (rows / down, units * wide / across);
        match (high >= 2 * LEAST_ROWS && high > 2 * wide, across < units) {
            (false, true) => across += 1,
            (true, _) => down += 1,
            (false, false) if high >= 2 * LEAST_ROWS => down += 1,
            (false, false) => break,
        }
    }
    // As much for one thread as for another.
    if threads > 1 && down % threads != 0 && across > threads {
        across = across.next_multiple_of(threads).min(units);
    }
    [down, across]
}

/// Computes a chunk.
///
/// # Safety
/// - No other thread has the same elements of D.
/// - The processor has AVX-512 and tiles of bf16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn compute(
    finish: &Finish<'_, '_, f32>,
    rows: Range<usize>,
    panels: Range<usize>,
    room: &mut Room<'_>,
    tiles: &Tiles,
) {
    let (product, item) = (finish.product, finish.item);
    let (k, ld) = (product.spec.k as usize, Floats::ld(panels.len()));
    let (a, b) = (bytes_of(room.a), bytes_of(room.b));
    if k == 0 {
        room.sums.fill(0.0);
    }
    for start in (0..k).step_by(RUN) {
        let run = start..(start + RUN).min(k);
        let steps = run.len().div_ceil(STEP);
        let of_rows = |tile: usize| rows.start + tile * ROWS..rows.end.min(rows.start + (tile + 1) * ROWS);
        let count = rows.len().div_ceil(ROWS);
        let mut special_a = false;
        for (tile, out) in a.chunks_exact_mut(TILE_BYTES).take(count).enumerate() {
            special_a |= split_a(finish, of_rows(tile), run.clone(), room.rows, out);
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
            let (of_b, ld_b) = lines_of_b(finish, columns.clone(), run.clone(), room.lines);
            let mut special_b = false;
            let halves = columns.len().div_ceil(WIDE);
            for half in 0..halves {
                let some = (columns.len() - half * WIDE).min(WIDE);
                special_b |= split_lines(&of_b[half * WIDE..], ld_b, some, run.len(), b);
                for tile in (0..count).step_by(TOGETHER) {
                    let (part, parts) = (half * count + tile, halves * count);
                    if let Some(wanted) = &wanted_b {
                        ask(wanted, part..part + TOGETHER, parts);
                    }
                    if let Some(wanted) = &wanted_a {
                        let first = i * parts + part;
                        ask(wanted, first..first + TOGETHER, panels.len() * parts);
                    }
                    let at = tile * ROWS * ld + (p - panels.start) * PANEL + half * WIDE;
                    let left = (&a[tile * TILE_BYTES..], TILE_BYTES, (count - tile).min(TOGETHER));
                    // SAFETY: they were split to as many steps, and the processor has what it takes.
                    unsafe { add_products(left, b, steps, (&mut room.sums[at..], ld), start == 0, tiles) };
                }
            }
            if special_a || special_b {
                let sums = &mut room.sums[(p - panels.start) * PANEL..];
                add_specials(finish, (rows.clone(), columns), run.clone(), (room.rows, room.lines), (sums, ld));
            }
        }
    }
    // SAFETY: passed on.
    unsafe { finish.tile(rows, panels, room.sums, ld, room.ends) };
}

/// Splits a run of at most 16 rows of A; whether a number is special.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn split_a(
    finish: &Finish<'_, '_, f32>,
    rows: Range<usize>,
    run: Range<usize>,
    room: &mut [f32],
    out: &mut [u8],
) -> bool {
    let Finish { product, item, summing, .. } = finish;
    let outer = item.row + rows.start..item.row + rows.end;
    if let Some((numbers, ld)) = product.a.numbers_in_rows::<f32>(item.row_batch) {
        return split_rows(&numbers[outer.start * ld + run.start..], ld, rows.len(), run.len(), out);
    }
    product.a.pack_rows::<Avx512, f32>(item.row_batch, outer, run.clone(), A_LD, summing.scaling, room);
    split_rows(room, A_LD, rows.len(), run.len(), out)
}

/// A run of a panel of B as lines of numbers, and the distance between them: where they lie, or made in `room`.
fn lines_of_b<'s>(
    finish: &'s Finish<'_, '_, f32>,
    columns: Range<usize>,
    run: Range<usize>,
    room: &'s mut [f32],
) -> (&'s [f32], usize) {
    let lying = finish.product.b.numbers_across(finish.item.b, &columns, run.start);
    lying.unwrap_or_else(|| {
        lines(finish, columns, run, room);
        (room, PANEL)
    })
}

/// A run of a panel of B as lines of numbers.
fn lines(finish: &Finish<'_, '_, f32>, columns: Range<usize>, run: Range<usize>, out: &mut [f32]) {
    struct Pack<'p, 'a>(&'p Finish<'p, 'a, f32>, Range<usize>, Range<usize>, &'p mut [f32]);
    impl Work for Pack<'_, '_> {
        #[inline(always)]
        fn run(self) {
            let Self(Finish { product, item, summing, .. }, columns, run, out) = self;
            let out = &mut out[..run.len() * PANEL];
            product.b.pack::<Avx512, f32>(item.b, columns, run, PANEL, summing.scaling, out);
        }
    }
    <Avx512 as crate::simd::Isa>::run(Pack(finish, columns, run, out));
}

/// Asks for some parts of `parts` of what is wanted.
fn ask(wanted: &Wanted, some: Range<usize>, parts: usize) {
    let Wanted { at, bytes, count, step } = *wanted;
    let each = bytes.div_ceil(LINE);
    let of = |part: usize| count * each * part.min(parts) / parts;
    for line in of(some.start)..of(some.end) {
        prefetch::<2>(at.wrapping_add(line / each * step + line % each * LINE));
    }
}

/// Adds the products of a run that special numbers take part in, one by one.
fn add_specials(
    finish: &Finish<'_, '_, f32>,
    (rows, columns): (Range<usize>, Range<usize>),
    run: Range<usize>,
    (row, of_b): (&mut [f32], &mut [f32]),
    (sums, ld): (&mut [f32], usize),
) {
    let Finish { product, item, summing, .. } = finish;
    let count = columns.len();
    lines(finish, columns, run.clone(), of_b);
    let of_b = &of_b.as_chunks::<PANEL>().0[..run.len()];
    let some: Vec<bool> = of_b.iter().map(|b| b[..count].iter().any(|&b| is_special(b))).collect();
    for (r, sums) in rows.zip(sums.chunks_mut(ld)) {
        let row = &mut row[..run.len()];
        product.a.row(item.row_batch, item.row + r, run.clone(), summing.scaling, row);
        for ((&a, b), &some) in row.iter().zip(of_b).zip(&some) {
            let each = sums[..count].iter_mut().zip(b);
            if is_special(a) {
                each.for_each(|(sum, b)| *sum += a * b);
            } else if some {
                each.filter(|(_, b)| is_special(**b)).for_each(|(sum, b)| *sum += a * b);
            }
        }
    }
}

fn bytes_of(codes: &mut [i8]) -> &mut [u8] {
    crate::gemm::few::columns::bytes_mut(codes)
}

impl Launch<Gemm> for Floats {
    unsafe fn launch(&self, queue: &mut dyn Queue, args: &GemmArgs<'_>) -> Result<()> {
        let spec = &self.spec;
        // SAFETY: the arguments were checked, says the caller.
        let product = unsafe { Product::of(spec, args) };
        let (rooms, mut rest) = kernel::own(queue).scratch().split_at_mut(threads::count() * self.room_bytes());
        let stage = cut::<f32>(&mut rest, stage_len(spec));
        let codes = &mut rest[..codes_bytes(spec)];
        each_item(&product, stage, codes, |item: Item, stage| {
            let (product, panels, summing) = (&product, self.panels, self.summing);
            self.item(&Finish { product, item, summing, panels, stage }, rooms);
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
            ("1x70x130x257", ["bias=f32 act=silu gate=halves", "gate=pairs b=col", "d=col"]),
        ] {
            for form in forms {
                check(&format!("gemm {size} f32:f32:f32 {form}"), (1.0, 1.0));
            }
        }
        for types in ["f16:f16:f16", "f32:bf16:f32", "f32:i4@g32/f16:f32", "bf16:f32:bf16", "f32:e4m3@row:f32"] {
            check(&format!("gemm 1x33x65x192 {types} b=col"), (0.5, 1.0));
        }
    }
}
