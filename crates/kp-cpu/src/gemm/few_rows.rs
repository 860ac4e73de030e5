//! D = A·B for at most eight rows: B is read once, as it lies, and nothing is packed.
//!
//! ```text
//!        k ─▶                              n ─▶
//!   A  ┌──────┐ numbers, in L1/L2     B  ┌──────────────┐
//!      └──────┘                          │   ▲ a run of B becomes numbers in L1 and meets
//!                                        │   │ every row of A before the next is read
//!                                        └──────────────┘
//! ```
//! Where columns of B are contiguous, runs lie along k and sums are kept in lanes; where rows are, runs lie along n
//! and each sum is built element by element, as `packed` does it. Limits: panels are for `packed`, which wants them;
//! contiguous columns sum in another order than `packed`, so not `batch-invariant`.

use super::{
    finish::{Finish, Panels, codes_bytes, each_item, finish_len, stage_len},
    packed,
    product::{Item, Product, Summing, Sums, add, finishes_in_f64},
    side::{LINE, Scaling, varies},
};
use crate::{
    act::Tail,
    kernel::{self, Disjoint},
    memory::{Number, cut},
    numbers::Real,
    simd::{Avx2, Avx512, Baseline, Isa, Work},
    threads,
};
use kp_hal::{
    Caps, DType, Device, Kernel, Launch, Nanos, Plan, Queue, Result, Support, Unsupported, Variant,
    op::{Acc, Gemm, GemmArgs, GemmProblem, GemmSpec, Order, Repro, Scheme},
    source_hash,
};
use std::{
    marker::PhantomData,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

/// The kernel for decoding: one token, or a few.
pub(crate) struct FewRows;

/// Beyond this, B is worth packing.
const MOST: u32 = 8;

impl Kernel<Gemm> for FewRows {
    fn name(&self) -> &'static str {
        "few_rows"
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("few_rows.rs")) }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        if p.m > MOST {
            return Err(Unsupported::TooLarge { dim: "m", max: MOST.into(), got: p.m.into() });
        }
        match p.b.order {
            Order::Panel { .. } => return Err(Unsupported::Layout { operand: "b", got: p.b.order.to_string() }),
            Order::Col if p.repro() == Repro::BatchInvariant => {
                return Err(Unsupported::Repro { asked: p.repro() });
            }
            Order::Col | Order::Row => {}
        }
        packed::supports(caps, p.repro())
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, variant: Variant) -> Nanos {
        let (_, memory) = Nanos::floors(caps, p);
        // Elements of B that a core turns into numbers and multiplies, a cycle, and what a row takes beside that: columns are turned one at
        // a time.
        let (per_cycle, of_row) =
            if p.b.order == Order::Col { ([4.0, 3.8, 3.2], 1.0) } else { ([6.0, 4.0, 1.0], 0.25) };
        let per_cycle = per_cycle[usize::from(variant.0).min(2)];
        let elements = f64::from(p.batch) * f64::from(p.n) * f64::from(p.k);
        let rows = 1.0 + of_row * f64::from(p.m);
        // Codes become numbers one by one, and scales are read for each line of a block.
        let of_codes = match p.b.dtype() {
            DType::I8 | DType::U8 => 0.2,
            dtype if dtype.bits() <= 8 => 0.9,
            _ => 0.0,
        };
        let of_scales = if varies(&p.b, p.k) { 40.0 / f64::from(p.b.format.block().1) } else { 0.0 };
        let made = if p.b.order == Order::Col { 0.0 } else { of_codes + of_scales };
        let compute = elements * (rows / per_cycle + made) / (caps.clock_hz.max(1e9) * f64::from(caps.units.max(1)));
        Nanos::from_secs(memory.as_secs().max(compute) / 0.8 + 2e-6 * f64::from(p.batch.max(1)))
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        macro_rules! plan {
            ($isa:ty) => {
                match (p.acc == Acc::F64, finishes_in_f64(p)) {
                    (true, _) => plan!($isa, f64, f64),
                    (false, true) => plan!($isa, f32, f64),
                    (false, false) => plan!($isa, f32, f32),
                }
            };
            ($isa:ty, $real:ty, $end:ty) => {{
                let code = Rows::<$isa, $real, $end>::new(p);
                // SAFETY: the loops touch what the spec names, and the scratch that `scratch_bytes` counts.
                Ok(unsafe { kernel::plan(self, device, p, variant, code.scratch_bytes(), code) })
            }};
        }
        match variant.0 {
            0 => plan!(Avx512),
            1 => plan!(Avx2),
            _ => plan!(Baseline),
        }
    }
}

/// Most columns of a panel where runs lie along n: long enough to read memory in order, short enough for sums to stay
/// in L1; and columns of a panel where runs lie along k.
const WIDE: usize = 1024;
const NARROW: usize = 32;

/// A product of few rows.
struct Rows<I, R, E> {
    spec: GemmSpec,
    summing: Summing,
    panels: Panels,
    kind: PhantomData<(I, R, E)>,
}

impl<I: Isa, R: Real + Number, E: Tail> Rows<I, R, E> {
    fn new(spec: &GemmSpec) -> Self {
        let cols = spec.d_cols() as usize;
        let width = match spec.b.order {
            Order::Col => NARROW,
            _ => (cols / (2 * threads::count())).next_multiple_of(NARROW).clamp(NARROW, WIDE),
        };
        let panels = Panels::of(spec, width);
        Self { spec: *spec, summing: Summing::of(spec), panels, kind: PhantomData }
    }

    /// Columns that a task computes.
    fn ld(&self) -> usize {
        self.panels.width * self.panels.unit()
    }

    /// Numbers of a thread: sums of a task, scales of columns and what finishing needs; sums of a block, a run of B,
    /// and its scales and zero points.
    fn thread_len(&self) -> (usize, usize) {
        let (m, ld) = (self.spec.m as usize, self.ld());
        (m * ld + finish_len(ld) + self.panels.width, m * self.panels.width + (3 * self.panels.width).max(LINE))
    }

    fn lens(&self) -> [usize; 3] {
        let threads = threads::count();
        let (ends, reals) = self.thread_len();
        [self.spec.m as usize * self.spec.k as usize + threads * reals, threads * ends, stage_len(&self.spec)]
    }

    fn scratch_bytes(&self) -> u64 {
        let [reals, ends, stage] = self.lens();
        let bytes = |len: usize, size: usize| (len * size).next_multiple_of(64);
        let numbers = bytes(reals, size_of::<R>()) + bytes(ends, size_of::<E>()) + bytes(stage, size_of::<E>());
        (numbers + codes_bytes(&self.spec)) as u64
    }
}

impl<I: Isa, R: Real + Number, E: Tail> Launch<Gemm> for Rows<I, R, E> {
    unsafe fn launch(&self, queue: &mut dyn Queue, args: &GemmArgs<'_>) -> Result<()> {
        let spec = &self.spec;
        // SAFETY: the arguments were checked, says the caller.
        let product = unsafe { Product::of(spec, args) };
        let [reals, ends, stage] = self.lens();
        let mut rest = kernel::own(queue).scratch();
        let (reals, ends, stage) = (cut::<R>(&mut rest, reals), cut::<E>(&mut rest, ends), cut::<E>(&mut rest, stage));
        let codes = &mut rest[..codes_bytes(spec)];
        let (a, reals) = reals.split_at_mut(spec.m as usize * spec.k as usize);
        let (reals, ends) = (Disjoint::of(reals), Disjoint::of(ends));
        let (tasks, unit) = (self.panels.count().div_ceil(self.panels.unit()), self.panels.unit());
        let slots = threads::count().min(tasks);
        each_item(&product, stage, codes, |item, waiting| {
            self.unpack_a(&product, item, a);
            let a = &*a;
            let finish = Finish { product: &product, item, summing: self.summing, panels: self.panels, stage: waiting };
            let next = AtomicUsize::new(0);
            threads::for_each(slots, |slot| {
                let (end_len, real_len) = self.thread_len();
                // SAFETY: a slot belongs to one thread.
                let (ends, reals) = unsafe {
                    (
                        ends.part(slot * end_len..(slot + 1) * end_len),
                        reals.part(slot * real_len..(slot + 1) * real_len),
                    )
                };
                loop {
                    let task = next.fetch_add(1, Relaxed);
                    if task >= tasks {
                        return;
                    }
                    let run = task * unit..(task + 1) * unit;
                    I::run(Task::<I, R, E> { finish: &finish, a, run: run.clone(), reals, ends, isa: PhantomData });
                    let (sums, work) = ends.split_at_mut(spec.m as usize * self.ld());
                    // SAFETY: a task has its own columns of D.
                    unsafe { finish.tile(0..spec.m as usize, run, sums, self.ld(), work) };
                }
            });
        });
        Ok(())
    }
}

impl<I: Isa, R: Real + Number, E: Tail> Rows<I, R, E> {
    /// A as numbers, row by row.
    fn unpack_a(&self, product: &Product<'_>, item: Item, a: &mut [R]) {
        let k = self.spec.k as usize;
        for (row, out) in a.chunks_exact_mut(k.max(1)).enumerate() {
            for first in (0..k).step_by(LINE) {
                let inner = first..(first + LINE).min(k);
                product.a.row(item.row_batch, row, inner.clone(), self.summing.scaling, &mut out[inner]);
            }
        }
    }
}

/// The sums of one task.
struct Task<'t, 'p, 'a, I, R, E> {
    finish: &'t Finish<'p, 'a, E>,
    a: &'t [R],
    run: Range<usize>,
    reals: &'t mut [R],
    ends: &'t mut [E],
    isa: PhantomData<fn() -> I>,
}

impl<I: Isa, R: Real, E: Real> Work for Task<'_, '_, '_, I, R, E> {
    #[inline(always)]
    fn run(self) {
        let Self { finish, a, run, reals, ends, .. } = self;
        let Finish { product, item, summing, panels, .. } = finish;
        let (m, k, width) = (item.rows, product.spec.k as usize, panels.width);
        let ld = run.len() * width;
        let (totals, rest) = ends.split_at_mut(m * ld);
        let scales = &mut rest[..width];
        let (sums, line) = reals.split_at_mut(m * width);
        totals.fill(E::ZERO);
        let along_k = product.b.inner_is_contiguous();
        for (t, p) in run.enumerate() {
            let columns = panels.columns(p);
            let count = columns.len();
            let mut start = 0;
            while start < k {
                let end = summing.end(start, k);
                if along_k {
                    let line = &mut line[..end - start];
                    for (j, column) in columns.clone().enumerate() {
                        product.b.row(item.b, column, start..end, summing.scaling, line);
                        for r in 0..m {
                            sums[r * width + j] = dot::<R>(I::FUSED, &a[r * k + start..r * k + end], line);
                        }
                    }
                } else {
                    sums.fill(R::ZERO);
                    let (line, rest) = line.split_at_mut(width);
                    let (scales, zeros) = rest.split_at_mut(width);
                    let (line, scales, zeros) = (&mut line[..count], &mut scales[..count], &mut zeros[..count]);
                    let applies = summing.scaling == Scaling::Applied && product.b.matrix.format.scheme != Scheme::None;
                    let shifts = product.b.matrix.format.has_zero();
                    for (block, part) in product.b.blocks(start..end) {
                        scales.fill(R::ONE);
                        if applies {
                            product.b.scales_of(item.b, columns.clone(), block, scales);
                        }
                        product.b.zeros_of(item.b, columns.clone(), block, zeros);
                        for i in part {
                            product.b.codes_across(item.b, columns.start, i, line);
                            if applies || shifts {
                                for ((x, &scale), &zero) in line.iter_mut().zip(&*scales).zip(&*zeros) {
                                    *x = (*x - zero) * scale;
                                }
                            }
                            for (r, sums) in sums.chunks_exact_mut(width).enumerate() {
                                let a = a[r * k + i];
                                for (sum, &b) in sums.iter_mut().zip(&*line) {
                                    *sum = if I::FUSED { a.mul_add(b, *sum) } else { *sum + a * b };
                                }
                            }
                        }
                    }
                }
                let scaled = summing.sums == Sums::Scaled;
                for r in 0..m {
                    let mut row_scale = [E::ONE];
                    if scaled {
                        let block = |side: &super::side::Side<'_>| start / side.matrix.format.block().1 as usize;
                        product.a.scales_of(item.row_batch, r..r + 1, block(&product.a), &mut row_scale);
                        product.b.scales_of(item.b, columns.clone(), block(&product.b), &mut scales[..count]);
                    }
                    let totals = &mut totals[r * ld + t * width..][..count];
                    for ((total, &sum), &scale) in totals.iter_mut().zip(&sums[r * width..]).zip(&*scales) {
                        let scale = if scaled { row_scale[0] * scale } else { E::ONE };
                        add(summing.sums, total, sum, scale);
                    }
                }
                start = end;
            }
        }
    }
}

/// Partial sums that a dot product is kept in: four of the widest vectors, so that none waits for the other.
const LANES: usize = 64;

#[inline(always)]
fn dot<R: Real>(fused: bool, a: &[R], b: &[R]) -> R {
    let mut lanes = [R::ZERO; LANES];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for i in 0..LANES {
            lanes[i] = if fused { a[i].mul_add(b[i], lanes[i]) } else { lanes[i] + a[i] * b[i] };
        }
    }
    for ((lane, &a), &b) in lanes.iter_mut().zip(a_rest).zip(b_rest) {
        *lane = if fused { a.mul_add(b, *lane) } else { *lane + a * b };
    }
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}
