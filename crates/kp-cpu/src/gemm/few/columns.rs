//! What products of few rows have in common when columns of B are contiguous: threads take runs of columns, each
//! column's sums with all rows are made in one pass over it, and finished while they are warm.

use super::far::Far;
use crate::{
    act::Tail,
    caps::fetches_columns,
    gemm::{
        finish::{Finish, Panels, codes_bytes, each_item, finish_len, stage_len},
        product::{Item, Product, Summing, Sums, ends_wide},
        side::Side,
    },
    kernel::{self, Disjoint, Output},
    memory::{Number, cut, numbers_mut},
    numbers::Real,
    threads,
};
use kp_hal::{
    Caps, DType, Device, Kernel, Launch, Nanos, Plan, Queue, Result, Unsupported, Variant, Variants,
    op::{Gemm, GemmArgs, GemmProblem, GemmSpec, Order, Repro},
};
use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

/// What is put aside, as it is read.
pub(crate) use crate::memory::numbers_of as numbers;

/// Most rows: what registers hold the sums of.
pub(crate) const MOST: usize = 8;

/// What the loops in f32 use; VBMI for 8-bit floats and codes of 4 bits.
pub(crate) const FEATURES: [&str; 5] = ["avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vbmi"];

/// Whether `p` suits loops in f32 of `features`, whatever B's type and scales are: at most `most` rows, and B in `order`.
///
/// # Errors
/// The first part that does not.
pub(crate) fn suits(
    caps: &Caps,
    features: &[&'static str],
    p: &GemmProblem,
    most: usize,
    order: Order,
) -> std::result::Result<(), Unsupported> {
    if let Some(&need) = features.iter().find(|feature| !caps.has(feature)) {
        return Err(Unsupported::Feature { need });
    }
    if p.m as usize > most {
        return Err(Unsupported::TooLarge { dim: "m", max: most as u64, got: p.m.into() });
    }
    if p.b.order != order {
        return Err(Unsupported::Layout { operand: "b", got: p.b.order.to_string() });
    }
    if p.repro() == Repro::BatchInvariant {
        return Err(Unsupported::Repro { asked: p.repro() });
    }
    if !p.acc.is_f32() {
        return Err(Unsupported::Option { option: "acc", got: p.acc.to_string() });
    }
    Ok(())
}

/// Row counts that loops are compiled for.
pub(crate) const HEIGHTS: [usize; 4] = [1, 2, 4, 8];

/// Most columns that loops take at once: where rows are few, as many, if memory is fastest when it is read in several
/// places.
pub(crate) const BROAD: usize = 8;

/// In which order memory is read: the variants of kernels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reading {
    /// Several columns at once.
    Beside,
    /// One column after the other, or two where rows are many.
    InTurn,
    /// A few columns at once, asked for in the order of memory and of the second cache alone.
    InOrder,
}

impl Reading {
    /// Of a variant, of [`Self::VARIANTS`] or [`Self::IN_ORDER_TOO`].
    pub(crate) fn of(variant: Variant) -> Self {
        match variant {
            Variant(0) => Self::Beside,
            Variant(1) => Self::InTurn,
            _ => Self::InOrder,
        }
    }

    pub(crate) const VARIANTS: Variants = Variants::first(2);

    /// Of kernels that ask in order, too.
    pub(crate) const IN_ORDER_TOO: Variants = Variants::first(3);

    /// The one in which memory is fastest, of [`Self::VARIANTS`].
    pub(crate) fn fastest(caps: &Caps) -> Self {
        if caps.read_places > 1 { Self::Beside } else { Self::InTurn }
    }

    /// The one in which several columns at once are fastest.
    pub(crate) fn of_several(caps: &Caps) -> Self {
        if likes_order(caps) { Self::InOrder } else { Self::Beside }
    }

    /// Which share of memory's rate loops reach that read so.
    pub(crate) fn share(self, caps: &Caps) -> f64 {
        match self {
            Self::InOrder if likes_order(caps) => 0.95,
            Self::InOrder => 0.8,
            _ if self == Self::fastest(caps) => 0.9,
            _ => 0.85,
        }
    }
}

/// Whether a first cache that holds little more than a row of A loses what is asked of it too early, so that lines are best asked for
/// in the order of memory and of the second cache alone: as Zen 4, which took 0.72 to 0.80 of the time for 4-bit weights so.
fn likes_order(caps: &Caps) -> bool {
    caps.read_places == 1 && caps.l1_bytes <= SMALL_L1
}

/// Seconds that reading and computing take together: they overlap, but not wholly.
pub(crate) fn overlapped(memory: Nanos, compute: f64) -> f64 {
    let memory = memory.as_secs();
    memory.max(compute) + 0.2 * memory.min(compute)
}

/// The place in [`HEIGHTS`] of the least that has room for `rows`.
pub(crate) fn height(rows: usize) -> usize {
    HEIGHTS.iter().position(|&h| h >= rows).expect("few rows")
}

/// How far ahead of its use memory is asked for, in bytes: farther, lines are lost again before they are read.
pub(crate) const AHEAD: usize = 512;

/// The same of one column after the other, if they are not longer.
const AHEAD_IN_TURN: usize = 8 << 10;

/// A way to compute the sums, which become `E`.
pub(crate) trait Dots<E>: Send + Sync + 'static {
    /// Bytes of A made ready, for as many rows as the problem has.
    fn a_bytes(&self) -> usize;

    /// Bytes of work space of a thread.
    fn work_bytes(&self) -> usize;

    /// Columns that a task of `all` best has, but for what they are a multiple of.
    fn columns(&self, all: usize) -> usize {
        (all / (8 * threads::count())).min(WIDE)
    }

    /// Makes the rows of `item` ready.
    fn prepare(&self, product: &Product<'_>, item: Item, a: &mut [u8]);

    /// Writes the sums of row r and column `columns.start + j`, scales applied, to `sums[r * ld + j]`.
    fn sums(&self, task: Task<'_, '_>, sums: &mut [E], ld: usize, work: &mut [u8]);
}

/// Some columns of an item.
pub(crate) struct Task<'t, 'p> {
    pub(crate) product: &'t Product<'p>,
    pub(crate) item: Item,
    pub(crate) columns: Range<usize>,
    /// What `prepare` made.
    pub(crate) a: &'t [u8],
}

/// The plan of `kernel` for `p`, whose sums `dots` make: in tasks whose columns begin at multiples of `unit`, which divides
/// [`WIDE`].
pub(crate) fn plan(
    kernel: &dyn Kernel<Gemm>,
    device: &Arc<dyn Device>,
    p: &GemmProblem,
    variant: Variant,
    unit: usize,
    dots: impl Dots<f32> + Dots<f64>,
) -> Plan<Gemm> {
    if ends_wide(p) {
        Few::<f64>::new(p, unit, Box::new(dots)).plan(kernel, device, p, variant)
    } else {
        Few::<f32>::new(p, unit, Box::new(dots)).plan(kernel, device, p, variant)
    }
}

/// A product of few rows, whose sums become `E`.
struct Few<E> {
    spec: GemmSpec,
    panels: Panels,
    summing: Summing,
    dots: Box<dyn Dots<E>>,
}

/// Most columns of a panel: some hundred kilobytes in a row are read nearly as fast as all of B, and threads that
/// finish early find more.
pub(crate) const WIDE: usize = 256;

impl<E: Tail> Few<E> {
    fn new(spec: &GemmSpec, unit: usize, dots: Box<dyn Dots<E>>) -> Self {
        let width = dots.columns(spec.n as usize).next_multiple_of(unit).max(unit);
        // Scales are applied by whoever makes the sums.
        let mut summing = Summing::of(spec);
        summing.sums = Sums::Added;
        Self { spec: *spec, panels: Panels::of(spec, width), summing, dots }
    }

    fn plan(
        self,
        kernel: &dyn Kernel<Gemm>,
        device: &Arc<dyn Device>,
        p: &GemmProblem,
        variant: Variant,
    ) -> Plan<Gemm> {
        // SAFETY: loops touch what the spec names, and the scratch that `scratch_bytes` counts.
        unsafe { kernel::plan(kernel, device, p, variant, self.scratch_bytes(), self) }
    }

    /// Columns of a task.
    fn ld(&self) -> usize {
        self.panels.width * self.panels.unit()
    }

    fn ends(&self) -> usize {
        self.spec.m as usize * self.ld() + finish_len(self.ld())
    }

    fn scratch_bytes(&self) -> u64 {
        let threads = threads::count();
        let ends = |len: usize| (len * size_of::<E>()).next_multiple_of(64);
        let a = self.dots.a_bytes().next_multiple_of(64);
        let work = threads * self.dots.work_bytes().next_multiple_of(64);
        (a + work + ends(threads * self.ends()) + ends(stage_len(&self.spec)) + codes_bytes(&self.spec)) as u64
    }

    /// Computes an item; sums that must wait for their rows go to `stage`.
    ///
    /// # Safety
    /// No other thread computes the same rows of D.
    unsafe fn item(
        &self,
        product: &Product<'_>,
        item: Item,
        a: &mut [u8],
        (work, ends): (Output<'_>, Disjoint<'_, E>),
        stage: Option<Disjoint<'_, E>>,
    ) {
        // Of no rows there are no sums, where the panels of a unit would have their places.
        if item.rows == 0 {
            return;
        }
        let unit = self.panels.unit();
        let tasks = self.panels.count().div_ceil(unit);
        self.dots.prepare(product, item, a);
        let a = &*a;
        let finish = Finish { product, item, summing: self.summing, panels: self.panels, stage };
        let next = AtomicUsize::new(0);
        let (work_len, ends_len) = (self.dots.work_bytes().next_multiple_of(64), self.ends());
        threads::for_each(threads::count().min(tasks), |slot| {
            // SAFETY: a slot belongs to one thread.
            let (work, ends) = unsafe {
                (work.part(slot * work_len..(slot + 1) * work_len), ends.part(slot * ends_len..(slot + 1) * ends_len))
            };
            let (sums, rest) = ends.split_at_mut(self.spec.m as usize * self.ld());
            loop {
                let t = next.fetch_add(1, Relaxed);
                if t >= tasks {
                    return;
                }
                let run = t * unit..(t + 1) * unit;
                for (i, p) in run.clone().enumerate() {
                    let columns = self.panels.columns(p);
                    let task = Task { product, item, columns, a };
                    self.dots.sums(task, &mut sums[i * self.panels.width..], self.ld(), work);
                }
                // SAFETY: a task has its own columns of D.
                unsafe { finish.tile(0..item.rows, run, sums, self.ld(), rest) };
            }
        });
    }
}

impl<E: Tail> Launch<Gemm> for Few<E> {
    unsafe fn launch(&self, queue: &mut dyn Queue, args: &GemmArgs<'_>) -> Result<()> {
        let spec = &self.spec;
        // SAFETY: the arguments were checked, says the caller.
        let product = unsafe { Product::of(spec, args) };
        let threads = threads::count();
        let (a, rest) = kernel::own(queue).scratch().split_at_mut(self.dots.a_bytes().next_multiple_of(64));
        let (work, mut rest) = rest.split_at_mut(threads * self.dots.work_bytes().next_multiple_of(64));
        let ends = Disjoint::of(cut::<E>(&mut rest, threads * self.ends()));
        let stage = cut::<E>(&mut rest, stage_len(spec));
        let codes = &mut rest[..codes_bytes(spec)];
        let work = Output::of(work);
        each_item(&product, stage, codes, |item, waiting| {
            // SAFETY: items have their own D.
            unsafe { self.item(&product, item, a, (work, ends), waiting) };
        });
        Ok(())
    }
}

/// The first `len` numbers of work space and what is left of it, which starts at a multiple of 64 bytes.
pub(crate) fn take<T: Number>(work: &mut [u8], len: usize) -> (&mut [T], &mut [u8]) {
    let (front, rest) = work.split_at_mut((len * size_of::<T>()).next_multiple_of(64));
    (&mut numbers_mut(front)[..len], rest)
}

/// Numbers as bytes.
pub(crate) fn bytes_mut<T: Number>(numbers: &mut [T]) -> &mut [u8] {
    let bytes = size_of_val(numbers);
    // SAFETY: numbers have no padding, any bytes are numbers, and the borrow is passed on.
    unsafe { std::slice::from_raw_parts_mut(numbers.as_mut_ptr().cast(), bytes) }
}

/// Numbers as bytes, to be read.
pub(crate) fn bytes<T: Number>(numbers: &[T]) -> &[u8] {
    // SAFETY: numbers have no padding, and the borrow is passed on.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}

// SAFETY: any four bytes are an i32.
unsafe impl Number for i32 {}
// SAFETY: any byte is a u8.
unsafe impl Number for u8 {}
// SAFETY: any byte is an i8.
unsafe impl Number for i8 {}
// SAFETY: any four bytes are a u32.
unsafe impl Number for u32 {}

/// Multiplies the sums of the item's rows and `columns` by what a whole column shares, its scale unless that `varies`
/// along it, the global one, and by `row(r)`.
pub(crate) fn scale<E: Real>(
    b: &Side<'_>,
    item: Item,
    columns: Range<usize>,
    varies: bool,
    row: &dyn Fn(usize) -> E,
    sums: &mut [E],
    ld: usize,
) {
    const SOME: usize = 64;
    for first in columns.clone().step_by(SOME) {
        let some = first..(first + SOME).min(columns.end);
        let mut factors = [E::ONE; SOME];
        let factors = &mut factors[..some.len()];
        if !varies {
            b.scales_of(item.b, some.clone(), 0, factors);
        } else if !b.global.is_empty() {
            factors.fill(crate::numbers::get(DType::F32, b.global, 0));
        }
        let at = first - columns.start;
        for (r, sums) in sums.chunks_mut(ld).take(item.rows).enumerate() {
            let row = row(r);
            for (sum, &factor) in sums[at..at + some.len()].iter_mut().zip(&*factors) {
                *sum *= row * factor;
            }
        }
    }
}

/// Adds the sums of some columns with `rows` rows, column by column, to those of the first `there` rows at `places`.
pub(crate) fn add<E: Real>(
    sums: &mut [E],
    ld: usize,
    places: impl Iterator<Item = usize>,
    of_rows: &[f32],
    (rows, there): (usize, usize),
) {
    for (place, of_rows) in places.zip(of_rows.chunks_exact(rows)) {
        for (sums, &more) in sums.chunks_mut(ld).zip(&of_rows[..there]) {
            sums[place] += E::from_f32(more);
        }
    }
}

/// What the sixteen codes of a type of four bits stand for.
pub(crate) fn sixteen(dtype: DType) -> [f32; 16] {
    let codes: [u8; 8] = std::array::from_fn(|i| (2 * i) as u8 | (2 * i as u8 + 1) << 4);
    let mut values = [0.0; 16];
    crate::numbers::read(dtype, &codes, 0, &mut values);
    values
}

/// The same elements of many columns.
#[derive(Clone, Copy)]
pub(crate) struct Codes<'a> {
    codes: &'a [u8],
    /// Where the first column's begin, how many bytes they are, and how far it is to the next column's.
    first: usize,
    len: usize,
    step: usize,
}

impl<'a> Codes<'a> {
    /// Elements `inner` of the columns of an item of `side`, and those that follow in the last byte.
    pub(crate) fn of(side: &Side<'a>, batch: usize, inner: Range<usize>) -> Self {
        let matrix = &side.matrix;
        let byte = |element: u64| matrix.dtype().bytes(element) as usize;
        let len = byte(inner.end as u64) - byte(inner.start as u64);
        // Columns without elements need no memory, wherever they would begin.
        let (first, step) = match len {
            0 => (0, 0),
            _ => (byte(batch as u64 * matrix.stride + inner.start as u64), byte(matrix.ld.into())),
        };
        Self { codes: side.codes, first, len, step }
    }

    /// Columns from `outer` on that lie at the beginning of `codes`, of so many bytes each, `step` apart.
    pub(crate) fn turned(codes: &'a [u8], outer: usize, len: usize, step: usize) -> Self {
        Self { codes, first: 0_usize.wrapping_sub(outer * step), len, step }
    }

    /// The same columns, of the codes of each these bytes, or what is there of them.
    pub(crate) fn part(&self, bytes: Range<usize>) -> Self {
        let end = bytes.end.min(self.len);
        Self { first: self.first.wrapping_add(bytes.start), len: end.saturating_sub(bytes.start), ..*self }
    }

    /// The codes of column `o`.
    pub(crate) fn column(&self, o: usize) -> &'a [u8] {
        &self.codes[self.first.wrapping_add(o * self.step)..][..self.len]
    }

    /// The codes of column `o` and all that follow.
    pub(crate) fn from(&self, o: usize) -> &'a [u8] {
        &self.codes[self.first + o * self.step..]
    }

    /// What is asked for while `breadth` columns from `o` on are read, `whole` or not: how far ahead of each line, as [`ahead`]
    /// says, and if several columns are read in turn as much again in the order of memory; that alone if they are read in order.
    pub(crate) fn ahead(&self, reading: Reading, o: usize, breadth: usize, whole: bool) -> (usize, Far) {
        let far = |columns: usize| {
            let first = self.first + (o + columns) * self.step;
            Far::new(self.codes.as_ptr().wrapping_add(first), self.len, self.step)
        };
        match reading {
            Reading::InOrder => (0, far(breadth * FAR_IN_ORDER.div_ceil(self.len.max(1)))),
            Reading::InTurn if breadth > 1 => (breadth * self.step, far(FAR_SETS * breadth)),
            _ => (ahead(reading, breadth, self.step, whole), Far::NONE),
        }
    }

    /// Bytes from one column to the next.
    pub(crate) fn step(&self) -> usize {
        self.step
    }
}

/// How far ahead memory is asked for in each of `breadth` columns that lie `ld` bytes apart: more of the columns, or the same
/// part of the next ones, if they are short or not read as a `whole`. (The processor fetches ahead by itself, but finds
/// columns of two kilobytes too late: 4-bit weights took 1.6 times as long.) What is read in turn is asked for while others are
/// read, too; long columns alone are left to the processor, several of them if it [`fetches_columns`].
pub(crate) fn ahead(reading: Reading, breadth: usize, ld: usize, whole: bool) -> usize {
    match reading {
        Reading::InTurn if whole && breadth == 1 => {
            if ld <= AHEAD_IN_TURN {
                AHEAD_IN_TURN
            } else {
                0
            }
        }
        Reading::InTurn => 2 * breadth * ld,
        Reading::InOrder => 0,
        Reading::Beside if whole && breadth * ld > SHORT => {
            if fetches_columns() {
                0
            } else {
                AHEAD
            }
        }
        _ => breadth * ld,
    }
}

/// A first cache of which a row of 4096 numbers takes half.
const SMALL_L1: u64 = 32 << 10;

/// How many sets of columns ahead of their use lines are on their way to L2. Where they are asked for in the order of memory alone,
/// as many as have so many bytes of each column.
const FAR_SETS: usize = 4;
const FAR_IN_ORDER: usize = 16 << 10;

/// Columns that are read at once are short if they have so many bytes: then the next ones find room in L1 beside them.
const SHORT: usize = 16 << 10;
