//! Products of bytes cut into tasks, panels and tiles.
//!
//! ```text
//!            n ─▶ panels of 64 columns, packed by the thread that needs them, 1024 of k at a time
//!          ┌──┬──┬──┐
//!        k │  │  │  │
//!          └──┴──┴──┘
//!   ┌────┐ ┌──┬──┬──┐
//! m │    │ ├──┼──┼──┤  256 rows of A, in tiles of up to six
//!   └────┘ └──┴──┴──┘
//! ```
//! Scales that change along k multiply sums of a segment, on their way from i32 to f32. Without such scales signed bytes are
//! read where they lie: see [`super::place`].

use super::{
    end::End,
    pack::ask,
    place::{InPlace, SIDE, Way, lift_of_a},
    rows::Row,
    tile::{self, Loops, Rows, Segments},
};
use crate::{
    act::Tail,
    gemm::{
        across::Turned,
        few::{
            codes::Set,
            columns::{Codes, bytes_mut},
            list_rows::lists_as_rows,
            lists::Lists,
        },
        finish::{Finish, Panels, codes_bytes, each_item, finish_len, stage_len},
        product::{Item, Product, Summing, Sums},
        rounded::{RUN, is_rounded},
        side::varies,
        tile::Ahead,
        vnni_few_rows::{a_varies, lift_for, unit},
    },
    kernel::{self, Disjoint, Output},
    memory::{cut, numbers_mut},
    numbers,
    simd::run_widest,
    threads::{self, Deal},
};
use kp_hal::{
    DType, Launch, Queue, Result,
    op::{Gemm, GemmArgs, GemmSpec, Order},
};
use std::{marker::PhantomData, ops::Range};

/// Most rows of a task: their codes and sums stay in L2 beside a panel.
pub(crate) const ROWS: usize = 256;

/// Elements of k that are packed at a time: a panel of them stays near while memory is asked for what the next is made of.
const DEEP: usize = 1024;
const SHALLOW: usize = 512;

/// Elements of k that are read in place at a time.
const DEEPER: usize = 4096;

/// Rows that are finished together.
const GROUP: usize = 8;

/// A product cut into tiles.
pub(super) struct Tiles<E> {
    spec: GemmSpec,
    set: Set,
    panels: Panels,
    summing: Summing,
    loops: Loops,
    way: Way,
    a_varies: bool,
    b_varies: bool,
    /// Elements of k whose sum is scaled at once.
    segment: usize,
    /// Elements of k that are packed at a time.
    depth: usize,
    kind: PhantomData<E>,
}

/// What of A was made ready.
struct Ready<'a> {
    codes: &'a [u8],
    taken: &'a [u32],
    scales: &'a [f32],
}

impl<E: Tail> Tiles<E> {
    pub(super) fn new(spec: &GemmSpec, set: Set) -> Self {
        let (a_varies, b_varies) = (a_varies(spec), varies(&spec.b, spec.k));
        let way = if set == Set::Avx512 { Way::of(spec) } else { Way::Packed };
        let panel_signed = way == Way::Panels || way == Way::Packed && spec.a.dtype() == DType::U8;
        let loops = Loops::of(set, spec.b.dtype().bits() as usize, a_varies || b_varies, panel_signed);
        let segment = match loops {
            Loops::Whole(_) => usize::MAX,
            Loops::Scaled(_) => {
                // The largest power of two that ends wherever scales do, and with what is packed.
                let ends = |block: u32, varies: bool| match varies {
                    true => 1_usize << (block | SHALLOW as u32).trailing_zeros(),
                    false => SHALLOW,
                };
                let of_a = if is_rounded(spec) { RUN as u32 } else { spec.a.format.block().1 };
                ends(of_a, a_varies).min(ends(spec.b.format.block().1, b_varies))
            }
        };
        // Scales are applied before `Finish` sees the sums.
        let mut summing = Summing::of(spec);
        summing.sums = Sums::Added;
        let depth = match way {
            // A quarter of the lines of a panel, which half as wide vectors read at a time, has a quarter of the places in L1.
            _ if spec.m as usize <= 4 * tile::MOST || set != Set::Avx512 => SHALLOW,
            Way::Packed => DEEP,
            Way::Columns | Way::Panels => DEEPER,
        };
        Self {
            spec: *spec,
            set,
            panels: Panels::of(spec, SIDE),
            summing,
            loops,
            way,
            a_varies,
            b_varies,
            segment,
            depth,
            kind: PhantomData,
        }
    }

    /// Bytes of a code in rows of A made ready.
    fn code(&self) -> usize {
        self.set.code(self.spec.b.dtype().bits() as usize)
    }

    /// Bytes of a code in panels.
    fn panel_code(&self) -> usize {
        if self.set == Set::Avx512 { 1 } else { self.code() }
    }

    /// Bytes of a row of codes: whole steps of 128, and a line more, so that rows do not meet in one set of the cache.
    fn ld(&self) -> usize {
        (self.spec.k as usize).next_multiple_of(128) * self.code() + 64
    }

    /// Segments of a row.
    fn segments(&self) -> usize {
        if self.segment == usize::MAX { 1 } else { (self.spec.k as usize).next_multiple_of(128).div_ceil(self.segment) }
    }

    /// Numbers of A made ready: codes, sums and scales.
    fn a_lens(&self) -> [usize; 3] {
        let m = self.spec.m as usize;
        [self.way.all_held(m) * self.ld(), m * self.segments(), if self.a_varies { m * self.segments() } else { 0 }]
    }

    /// Segments of what is packed at a time.
    fn deep_segments(&self) -> usize {
        if self.segment == usize::MAX { 0 } else { self.depth / self.segment }
    }

    /// Work space of a thread: a panel, its columns turned if they lie across, sums of a task, scales and zero points of a panel and a column, factors of rows
    /// and columns, and what finishing needs.
    fn work_lens(&self) -> [usize; 6] {
        let (width, unit) = (self.panels.width, self.panels.unit());
        let ld = width * unit;
        let finish = GROUP * ld + finish_len(ld) + ROWS + ld;
        let panel = if self.way == Way::Packed { self.depth * width * self.panel_code() } else { 0 };
        let columns = Turned::bytes_of(&self.spec.b, true, SIDE, self.depth);
        [panel, columns, self.way.held(ROWS) * ld, self.deep_segments() * width, 16 * self.deep_segments(), finish]
    }

    fn work_bytes(&self) -> usize {
        let [panel, columns, sums, scales, list, finish] = self.work_lens();
        let bytes = |len: usize, size: usize| (len * size).next_multiple_of(64);
        panel
            + bytes(columns, 1)
            + bytes(sums, 4)
            + 2 * bytes(scales, 4)
            + bytes(list, 4)
            + bytes(finish, size_of::<E>())
    }

    pub(super) fn scratch_bytes(&self) -> u64 {
        let [codes, taken, scales] = self.a_lens();
        let bytes = |len: usize, size: usize| (len * size).next_multiple_of(64);
        let a = bytes(codes, 1) + bytes(taken, 4) + bytes(scales, 4);
        let stage = bytes(stage_len(&self.spec), size_of::<E>());
        (a + threads::count() * self.work_bytes() + stage + codes_bytes(&self.spec)) as u64
    }

    /// Makes the rows of an item ready.
    fn prepare(&self, product: &Product<'_>, item: Item, codes: &mut [u8], taken: &mut [u32], scales: &mut [f32]) {
        let (k, ld, segments) = (self.spec.k as usize, self.ld(), self.segments());
        let (_, offset) = lift_for(self.spec.a.dtype(), self.spec.b.dtype());
        let bits = self.spec.b.dtype().bits() as usize;
        let of_a = Codes::of(&product.a, item.row_batch, 0..k);
        if self.way != Way::Packed {
            // SAFETY: `supports` asked for the features.
            return unsafe {
                self.way.prepare(item.rows, (|r| of_a.column(item.row + r), lift_of_a(&self.spec)), codes, ld)
            };
        }
        let (codes, taken, scales) = (Disjoint::of(codes), Disjoint::of(taken), Disjoint::of(scales));
        threads::for_each_of(item.rows, item.rows * ld, |row| {
            let of_row = row * segments..(row + 1) * segments;
            // SAFETY: each row once.
            let (codes, taken) = unsafe { (codes.part(row * ld..(row + 1) * ld), taken.part(of_row.clone())) };
            codes[k * self.code()..].fill(0);
            taken.fill(0);
            let sums = numbers_mut::<i32>(bytes_mut(taken));
            let is_plain = self.spec.a.order == Order::Row && matches!(self.spec.a.dtype(), DType::I8 | DType::U8);
            if is_plain {
                let row = of_a.column(item.row + row);
                // SAFETY: `supports` asked for the features.
                unsafe { self.set.ready(row, bits, codes, self.segment, sums) };
            } else {
                let row = Row { product, item, row, bits, segment: self.segment, set: self.set };
                match is_rounded(&self.spec) {
                    // SAFETY: each row once.
                    true => row.round(codes, sums, unsafe { scales.part(of_row.clone()) }),
                    false => row.unpack(codes, sums),
                }
            }
            if lift_of_a(&self.spec) == 0 {
                sums.fill(codes.iter().fold(0, |sum: i32, &code| sum.wrapping_add(code.into())));
            }
            for sum in taken {
                let sum_of_codes = *sum as i32;
                *sum = if self.spec.b.format.has_zero() {
                    (sum_of_codes as f32).to_bits()
                } else {
                    offset.wrapping_neg().wrapping_mul(sum_of_codes) as u32
                };
            }
            if self.a_varies && !is_rounded(&self.spec) {
                // SAFETY: each row once.
                let scales = unsafe { scales.part(of_row) };
                let mut list = [0.0; 16];
                for (s, scale) in scales.iter_mut().enumerate() {
                    let lists = Lists::new(&product.a, item.row_batch, s * self.segment, self.segment);
                    lists.scales(item.row + row, &mut list[..1]);
                    *scale = list[0];
                }
            }
        });
    }

    /// The sums of rows `rows` of an item and panel `p`, in `sums`, rows of a panel's width of i32 or f32.
    fn sums(&self, task: &Task<'_, '_>, (rows, p): (Range<usize>, usize), sums: &mut [u8], room: Room<'_>) {
        let Task { product, item, a, .. } = *task;
        let Room { panel, turned, scales, zeros, list } = room;
        let (b, k, width) = (&product.b, self.spec.k as usize, self.panels.width);
        let columns = self.panels.columns(p);
        let (lift, offset) = lift_for(self.spec.a.dtype(), self.spec.b.dtype());
        let (segments, ld) = (self.segments(), self.ld());
        match self.loops {
            Loops::Whole(_) => {
                for (sums, row) in numbers_mut::<i32>(sums).chunks_exact_mut(width).zip(rows.clone()) {
                    sums.fill(a.taken[row] as i32);
                }
            }
            Loops::Scaled(_) => sums.fill(0),
        }
        for first in (0..k).step_by(self.depth) {
            let inner = first..(first + self.depth).min(k);
            // Rows hold zeros past their end.
            let len = inner.len().next_multiple_of(128);
            let panel = &mut panel[..len * width * self.panel_code()];
            let form = (width, self.panel_code());
            // SAFETY: `supports` asked for the features.
            unsafe { self.set.pack(b, item.b, (columns.clone(), inner.clone()), form, (&lift, turned), panel) };
            let count = len.div_ceil(self.segment);
            if let Loops::Scaled(_) = self.loops {
                let lists = Lists::new(b, item.b, inner.start, self.segment);
                if self.b_varies {
                    lists_as_rows(columns.clone(), count, list, (scales, width), &|o, list| lists.scales(o, list));
                } else {
                    scales[..count * width].fill(1.0);
                }
                if b.matrix.format.has_zero() {
                    lists_as_rows(columns.clone(), count, list, (zeros, width), &|o, list| {
                        lists.zeros(o, list);
                        list.iter_mut().for_each(|zero| *zero += offset as f32);
                    });
                }
            }
            // Tiles of nearly equal height.
            let tiles = rows.len().div_ceil(tile::MOST);
            let next = match inner.end < k {
                true => (columns.clone(), inner.end..(inner.end + self.depth).min(k)),
                false if p + 1 < self.panels.count() => (self.panels.columns(p + 1), 0..self.depth.min(k)),
                false => (0..0, 0..0),
            };
            for t in 0..tiles {
                ask(b, item.b, next.0.clone(), next.1.clone(), t, tiles);
                let some = rows.len() * t / tiles..rows.len() * (t + 1) / tiles;
                let row = rows.start + some.start;
                let codes = Rows { codes: &a.codes[row * ld + first * self.code()..], ld };
                let sums = &mut sums[4 * some.start * width..4 * some.end * width];
                match &self.loops {
                    // SAFETY: as above.
                    Loops::Whole(loops) => unsafe {
                        loops[some.len() - 1](codes, panel, Ahead::NONE, false, numbers_mut(sums), &mut [])
                    },
                    Loops::Scaled(loops) => {
                        let from = row * segments + first / self.segment;
                        let by = Segments {
                            steps: self.segment / 4,
                            taken: &a.taken[from..],
                            row_scales: if self.a_varies { &a.scales[from..] } else { &[] },
                            ld: segments,
                            scales,
                            zeros: if b.matrix.format.has_zero() { zeros } else { &[] },
                        };
                        // SAFETY: as above.
                        unsafe { loops[some.len() - 1](codes, panel, by, numbers_mut(sums)) };
                    }
                }
            }
        }
    }

    /// Computes and finishes rows `rows` of an item and the columns of panels `run`.
    ///
    /// # Safety
    /// No other thread has the same elements of D.
    unsafe fn task(
        &self,
        task: &Task<'_, '_>,
        finish: &Finish<'_, '_, E>,
        rows: Range<usize>,
        run: Range<usize>,
        mut work: &mut [u8],
    ) {
        let Task { product, item, .. } = *task;
        let [panel_len, columns_len, sums_len, scales_len, list_len, finish_len] = self.work_lens();
        let width = self.panels.width;
        let ld = run.len() * width;
        let panel = cut::<u8>(&mut work, panel_len);
        let columns = cut::<u8>(&mut work, columns_len);
        let all_sums = cut::<u32>(&mut work, sums_len);
        let held = self.way.held(rows.len());
        let scales = cut::<f32>(&mut work, scales_len);
        let zeros = cut::<f32>(&mut work, scales_len);
        let list = cut::<f32>(&mut work, list_len);
        let ends = cut::<E>(&mut work, finish_len);
        let (factors, ends) = ends.split_at_mut(ROWS);
        let (column_factors, ends) = ends.split_at_mut(ld);
        let (ends, rest) = ends.split_at_mut(GROUP * ld);
        let unit = E::from_f32(unit(self.spec.a.format) * unit(self.spec.b.format));
        factors.fill(E::ONE);
        if !self.a_varies {
            let of = item.row + rows.start..item.row + rows.end;
            product.a.scales_of(item.row_batch, of, 0, &mut factors[..rows.len()]);
        } else if !product.a.global.is_empty() {
            factors.fill(numbers::get(DType::F32, product.a.global, 0));
        }
        column_factors.fill(unit);
        // Tasks are taken in turn, those of one panel first.
        let others = (threads::count() / item.rows.div_ceil(ROWS)).saturating_sub(1);
        let next = run.end + others * run.len();
        for (i, p) in run.clone().enumerate() {
            let sums = &mut all_sums[i * held * width..(i + 1) * held * width];
            match (&self.loops, self.way) {
                (Loops::Whole(loops), Way::Columns | Way::Panels) => {
                    let in_place = InPlace {
                        way: self.way,
                        rows: item.rows,
                        loops,
                        panels: &self.panels,
                        next: if p + 1 < run.end { p + 1 } else { next },
                        depth: self.depth,
                        k: self.spec.k as usize,
                        b: &product.b,
                        batch: item.b,
                        a: task.a.codes,
                        lifted: lift_of_a(&self.spec).into(),
                        ld: self.ld(),
                    };
                    in_place.sums(rows.clone(), p, numbers_mut(bytes_mut(sums)));
                }
                _ => {
                    let mut turned = Turned::new(columns, SIDE, self.depth);
                    let room = Room { panel, turned: &mut turned, scales, zeros, list };
                    self.sums(task, (rows.clone(), p), bytes_mut(sums), room);
                }
            }
            let columns = self.panels.columns(p);
            let factors = &mut column_factors[i * width..][..columns.len()];
            if !self.b_varies {
                product.b.scales_of(item.b, columns, 0, factors);
            } else {
                let global = &product.b.global;
                factors.fill(if global.is_empty() { E::ONE } else { numbers::get(DType::F32, global, 0) });
            }
            factors.iter_mut().for_each(|factor| *factor *= unit);
        }
        let is_whole = matches!(self.loops, Loops::Whole(_));
        let excess = |i: usize| match self.way {
            Way::Panels if lift_of_a(&self.spec) != 0 => Some(&all_sums[(i * held + rows.len()) * width..][..width]),
            _ => None,
        };
        if let Some((d, d_ld)) = finish.d_as_sums() {
            for (i, p) in run.clone().enumerate() {
                let columns = self.panels.columns(p);
                let sums = &all_sums[i * held * width..];
                let by = &column_factors[i * width..][..columns.len()];
                let ends = |r: usize| {
                    let first = (rows.start + r) * d_ld + columns.start;
                    // SAFETY: this task's elements of D, by the caller's promise.
                    unsafe { std::slice::from_raw_parts_mut(d.add(first), columns.len()) }
                };
                let (excess, rows) = (excess(i), &factors[..rows.len()]);
                run_widest(width, End { sums, ld: width, is_whole, excess, rows, by, ends });
            }
            return;
        }
        for first in (0..rows.len()).step_by(GROUP) {
            let group = first..(first + GROUP).min(rows.len());
            for i in 0..run.len() {
                let sums = &all_sums[(i * held + group.start) * width..];
                let by = &column_factors[i * width..][..width];
                let mut all = ends.chunks_exact_mut(ld);
                let ends = |_| &mut all.next().expect("as many as rows")[i * width..];
                let (excess, rows) = (excess(i), &factors[group.clone()]);
                run_widest(width, End { sums, ld: width, is_whole, excess, rows, by, ends });
            }
            let group = rows.start + group.start..rows.start + group.end;
            // SAFETY: passed on.
            unsafe { finish.tile(group, run.clone(), ends, ld, rest) };
        }
    }

    /// Computes an item; sums that must wait for their rows go to `stage`.
    ///
    /// # Safety
    /// No other thread computes the same rows of D.
    unsafe fn item(&self, product: &Product<'_>, item: Item, scratch: &mut [u8], stage: Option<Disjoint<'_, E>>) {
        let lens = self.a_lens();
        let mut rest = scratch;
        let codes = cut::<u8>(&mut rest, lens[0]);
        let taken = cut::<u32>(&mut rest, lens[1]);
        let scales = cut::<f32>(&mut rest, lens[2]);
        self.prepare(product, item, codes, taken, scales);
        let work = Output::of(rest);
        let unit = self.panels.unit();
        let (down, across) = (item.rows.div_ceil(ROWS), self.panels.count().div_ceil(unit));
        let finish = Finish { product, item, summing: self.summing, panels: self.panels, stage };
        let slots = threads::count().min(down * across);
        let deal = Deal::new(down * across, slots, item.rows as u64 * self.spec.n as u64 * self.spec.k as u64);
        let task = Task { product, item, a: &Ready { codes, taken, scales } };
        threads::for_each(slots, |slot| {
            let bytes = self.work_bytes();
            // SAFETY: a slot belongs to one thread.
            let work = unsafe { work.part(slot * bytes..(slot + 1) * bytes) };
            for t in deal.of(slot) {
                // Neighbouring tasks share a panel's memory.
                let (i, j) = (t % down, t / down);
                let rows = self.way.chunk(item.rows, i);
                // SAFETY: tasks have their own elements of D.
                unsafe { self.task(&task, &finish, rows, j * unit..(j + 1) * unit, work) };
            }
        });
    }
}

/// What tasks share.
#[derive(Clone, Copy)]
struct Task<'t, 'p> {
    product: &'t Product<'p>,
    item: Item,
    a: &'t Ready<'t>,
}

/// Work space of sums.
struct Room<'w> {
    panel: &'w mut [u8],
    turned: &'w mut Turned<'w>,
    scales: &'w mut [f32],
    zeros: &'w mut [f32],
    list: &'w mut [f32],
}

impl<E: Tail> Launch<Gemm> for Tiles<E> {
    unsafe fn launch(&self, queue: &mut dyn Queue, args: &GemmArgs<'_>) -> Result<()> {
        let spec = &self.spec;
        // SAFETY: the arguments were checked, says the caller.
        let product = unsafe { Product::of(spec, args) };
        let scratch = kernel::own(queue).scratch();
        let stage_bytes = (stage_len(&self.spec) * size_of::<E>()).next_multiple_of(64);
        let (scratch, mut rest) = scratch.split_at_mut(self.scratch_bytes() as usize - stage_bytes - codes_bytes(spec));
        let stage = cut::<E>(&mut rest, stage_len(&self.spec));
        let codes = &mut rest[..codes_bytes(spec)];
        each_item(&product, stage, codes, |item, waiting| {
            // SAFETY: items have their own D.
            unsafe { self.item(&product, item, scratch, waiting) };
        });
        Ok(())
    }
}
