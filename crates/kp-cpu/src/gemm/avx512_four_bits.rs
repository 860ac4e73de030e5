//! D = A·B for several rows whose B has contiguous columns of 4-bit codes, in f32: these become numbers in registers, for
//! eight rows at a time.
//!
//! ```text
//!                n ─▶ sets of 32 columns, each thread a run of them
//!            ┌────┬────┬────┐
//!          k │    │    │    │  a step of k at a time turned, so that lanes are columns, in L1
//!            └────┴────┴────┘
//!   A  ┌─────┐
//!    m ├─────┤  eight rows side by side for each k, a block of k in L2
//!      └─────┘
//! ```
//! See [`super::few::lanes`] for the loops. Limits: AVX-512 with VBMI; scales that change along k do so at multiples of 16;
//! sums are in another order than `packed` has, so not `batch-invariant`.

use super::{
    avx512_few_rows::{table, varies},
    few::{
        columns::{self, Codes, Dots, Few, Task},
        dots::{BROAD_SHARE, Kind, SHARE, STEP, Table, ends},
        lanes::{EIGHT, Each, LANES, Later, SET, SQUARE, VECTORS, lanes, turn},
        lists::{self, Lists},
    },
    product::{Item, Product, finishes_in_f64},
    side::Scaling,
};
use crate::{
    act::Tail,
    kernel::{self, Disjoint},
    memory::{Number, numbers_mut},
    threads,
};
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Gemm, GemmProblem, GemmSpec, Order},
    source_hash,
};
use std::{marker::PhantomData, sync::Arc};

/// The kernel for several rows by weights of four bits.
pub(crate) struct Avx512FourBits;

impl Kernel<Gemm> for Avx512FourBits {
    fn name(&self) -> &'static str {
        "avx512_four_bits"
    }

    fn code(&self) -> u64 {
        const {
            source_hash(include_bytes!("avx512_four_bits.rs"))
                ^ source_hash(include_bytes!("few/lanes.rs")).rotate_left(1)
                ^ source_hash(include_bytes!("few/lists.rs")).rotate_left(2)
                ^ source_hash(include_bytes!("few/columns.rs")).rotate_left(3)
        }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        columns::suits(caps, p, usize::MAX, Order::Col)?;
        if !matches!(p.b.dtype(), DType::I4 | DType::U4 | DType::Nf4 | DType::E2m1) {
            return Err(Unsupported::DType { operand: "b", got: p.b.dtype() });
        }
        if varies(p) && !lists::can_list(&p.b, p.k) {
            return Err(Unsupported::Scheme { operand: "b", got: p.b.format.to_string() });
        }
        Ok(Variants::ONE)
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, _: Variant) -> Nanos {
        let (_, memory) = Nanos::floors(caps, p);
        // For each sixteen elements two instructions to make them numbers and one for each row, two at a time; turning them.
        let vectors = f64::from(p.batch) * f64::from(p.n.next_multiple_of(SET as u32)) * f64::from(p.k) / 16.0;
        let rows = Rows::of(p.m as usize);
        let cycles = 1.5 + rows.groups as f64 * (2.5 + rows.height as f64) / 1.8;
        let compute = vectors * cycles / (caps.clock_hz.max(1e9) * f64::from(caps.units.max(1)));
        Nanos::from_secs(memory.as_secs().max(compute) / 0.9 + 2e-6 * f64::from(p.batch.max(1)))
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        macro_rules! plan {
            ($end:ty) => {{
                let code = Few::new(p, SET, Numbers::<$end>::new(p));
                // SAFETY: the loops touch what the spec names, and the scratch that `scratch_bytes` counts.
                Ok(unsafe { kernel::plan(self, device, p, variant, code.scratch_bytes(), code) })
            }};
        }
        if finishes_in_f64(p) { plan!(f64) } else { plan!(f32) }
    }
}

/// Rows in groups of one height, the last filled up with zeros.
#[derive(Clone, Copy)]
struct Rows {
    height: usize,
    groups: usize,
}

impl Rows {
    fn of(rows: usize) -> Self {
        let height = rows.next_power_of_two().clamp(2, 8);
        Self { height, groups: rows.div_ceil(height) }
    }

    fn all(self) -> usize {
        self.height * self.groups
    }
}

/// Bytes of A that meet all columns of a task before the rest does: half of L2.
const NEAR: usize = 512 << 10;

/// Steps that are turned at once, whose lists are whole squares too.
const UNIT: usize = LANES * BROAD_SHARE / STEP;

type Loop = unsafe fn(
    &Table,
    &[f32],
    (&[Each<u32>], usize),
    (&[Each<f32>], &[Each<u32>]),
    Option<Later<'_, '_>>,
    &mut [Each<f32>],
);

/// Sums of numbers.
struct Numbers<E> {
    spec: GemmSpec,
    rows: Rows,
    table: Box<Table>,
    multiply: Loop,
    varies: bool,
    /// Elements that share an entry of the lists.
    share: usize,
    kind_of_end: PhantomData<E>,
}

impl<E> Numbers<E> {
    fn new(spec: &GemmSpec) -> Self {
        let rows = Rows::of(spec.m as usize);
        let multiply = match rows.height {
            2 => lanes::<2> as Loop,
            4 => lanes::<4>,
            _ => lanes::<8>,
        };
        let varies = varies(spec);
        let is_broad = !varies || (spec.b.format.block().1 as usize).is_multiple_of(BROAD_SHARE);
        let share = if is_broad { BROAD_SHARE } else { SHARE };
        let table = Box::new(table(Kind::Nibbles, spec.b.format));
        Self { spec: *spec, rows, table, multiply, varies, share, kind_of_end: PhantomData }
    }

    fn steps(&self) -> usize {
        (self.spec.k as usize).div_ceil(STEP)
    }

    /// Steps of a block of k.
    fn near(&self) -> usize {
        let most = NEAR / (self.rows.all().max(1) * STEP * size_of::<f32>());
        most.min(self.steps()).next_multiple_of(UNIT).max(UNIT)
    }

    /// Entries of a column's list.
    fn list(&self) -> usize {
        self.near() * STEP / self.share
    }
}

impl<E: Tail> Dots for Numbers<E> {
    type End = E;

    fn a_bytes(&self) -> usize {
        self.rows.all() * self.steps() * STEP * size_of::<f32>()
    }

    fn work_bytes(&self) -> usize {
        let (list, sums) = (self.list(), self.rows.all() * SET);
        // The lists of a set before they are turned, and after that of both scales and shifts; sums.
        (3 * list * SET + sums) * size_of::<f32>()
    }

    fn prepare(&self, product: &Product<'_>, item: Item, a: &mut [u8]) {
        let Rows { height, groups } = self.rows;
        let (steps, k) = (self.steps(), self.spec.k as usize);
        let a = Disjoint::of(&mut numbers_mut::<f32>(a)[..groups * height * steps * STEP]);
        threads::for_each(groups * steps, |i| {
            // SAFETY: each step of each group once.
            let out = unsafe { a.part(i * height * STEP..(i + 1) * height * STEP) };
            let (group, step) = (i / steps, i % steps);
            let inner = step * STEP..((step + 1) * STEP).min(k);
            for r in 0..height {
                let row = group * height + r;
                let mut line = [0.0; STEP];
                if row < item.rows {
                    let line = &mut line[..inner.len()];
                    product.a.row(item.row_batch, item.row + row, inner.clone(), Scaling::Applied, line);
                }
                for (out, x) in out.chunks_exact_mut(height).zip(line) {
                    out[r] = x;
                }
            }
        });
    }

    fn sums(&self, task: Task<'_, '_>, sums: &mut [E], ld: usize, work: &mut [u8]) {
        let Task { product, item, columns, a } = task;
        let (b, k, all_steps) = (&product.b, self.spec.k as usize, self.steps());
        let Rows { height, groups } = self.rows;
        let a = columns::numbers::<f32>(a);
        let list = self.list();
        let (rows, rest) = columns::take::<f32>(work, list * SET);
        let (scales, rest) = columns::take::<f32>(rest, list * SET);
        let (shifts, rest) = columns::take::<u32>(rest, list * SET);
        let (totals, _) = columns::take::<f32>(rest, groups * height * SET);
        let (scales, totals) = (each_mut(scales), each_mut(totals));
        let shifts: &mut [Each<u32>] = shifts.as_chunks_mut().0.as_chunks_mut().0;
        let has_zero = b.matrix.format.has_zero();
        if !self.varies {
            scales.as_flattened_mut().as_flattened_mut().fill(1.0);
        }
        for sums in sums.chunks_mut(ld).take(item.rows) {
            sums[..columns.len()].fill(E::ZERO);
        }
        let mut turned = [[[[0_u32; LANES]; VECTORS]; LANES]; UNIT];
        for first in (0..all_steps).step_by(self.near()) {
            let steps = first..(first + self.near()).min(all_steps);
            let inner = steps.start * STEP..(steps.end * STEP).min(k);
            let lists = Lists::new(b, item.b, inner.start, self.share);
            let codes = Codes::of(b, item.b, inner.clone());
            for o in columns.clone().step_by(SET) {
                // Past the last column, that one again.
                let place = |c: usize| (o + c).min(columns.end - 1);
                let mut is_beyond = [false; SET];
                // SAFETY: `supports` asked for the features.
                unsafe {
                    if self.varies {
                        turn_lists(|c, out| lists.scales(place(c), out), rows, scales);
                    }
                    if has_zero {
                        // Bytes take less room.
                        let rows = &mut columns::bytes_mut(rows)[..list.next_multiple_of(SQUARE) * SET];
                        turn_lists(|c, out| is_beyond[c] = lists.shifts(place(c), out), rows, shifts);
                    }
                }
                let mut lines: [&[u8]; SET] = [&[]; SET];
                for (c, line) in lines.iter_mut().enumerate() {
                    *line = codes.column(place(c));
                }
                totals.as_flattened_mut().as_flattened_mut().fill(0.0);
                for some in (0..steps.len()).step_by(UNIT) {
                    let some = some..(some + UNIT).min(steps.len());
                    for (s, turned) in some.clone().zip(&mut turned) {
                        // SAFETY: as above.
                        unsafe {
                            if (s + 1) * SQUARE <= lines[0].len() {
                                turn(&lines, s * SQUARE, turned);
                            } else {
                                let last = ends(lines, s * SQUARE);
                                turn(&last.each_ref().map(|end| &end[..SQUARE]), 0, turned);
                            }
                        }
                    }
                    let turned = (turned[..some.len()].as_flattened(), self.share / EIGHT);
                    let shares = some.start * STEP / self.share..some.end * STEP / self.share;
                    let scales = &scales[shares.clone()];
                    let shifts = if has_zero { &shifts[shares.start / 4..] } else { &[] };
                    let later = (&lines, SET * codes.step() + some.start * SQUARE);
                    for (group, totals) in totals.chunks_exact_mut(height).enumerate() {
                        let a = &a[(group * all_steps + steps.start + some.start) * height * STEP..]
                            [..some.len() * height * STEP];
                        let later = (group == 0).then_some(later);
                        // SAFETY: as above.
                        unsafe { (self.multiply)(&self.table, a, turned, (scales, shifts), later, totals) };
                    }
                }
                for c in (0..SET).filter(|&c| is_beyond[c]) {
                    for (row, totals) in totals.iter_mut().enumerate() {
                        let group = row / height * all_steps + steps.start;
                        let numbers = &a[group * height * STEP + row % height..];
                        let share =
                            |i: usize| numbers[i * self.share * height..].iter().step_by(height).take(self.share);
                        let entries = steps.len() * STEP / self.share;
                        let beyond = lists.beyond(place(c), entries, |i| share(i).sum());
                        totals.as_flattened_mut()[c] -= beyond;
                    }
                }
                let places = o - columns.start..(o + SET).min(columns.end) - columns.start;
                for (sums, totals) in sums.chunks_mut(ld).take(item.rows).zip(&*totals) {
                    for (sum, &more) in sums[places.clone()].iter_mut().zip(totals.as_flattened()) {
                        *sum += E::from_f32(more);
                    }
                }
            }
        }
        columns::scale(b, item, columns, self.varies, |_| E::ONE, sums, ld);
    }
}

/// Numbers as those of sets of columns.
fn each_mut(numbers: &mut [f32]) -> &mut [Each<f32>] {
    numbers.as_chunks_mut().0.as_chunks_mut().0
}

/// Makes the lists of a set's columns in `rows`, and turns them to `out`, four bytes to a lane.
///
/// # Safety
/// The processor has [`columns::FEATURES`].
unsafe fn turn_lists<T: Number, U: Number>(mut list: impl FnMut(usize, &mut [T]), rows: &mut [T], out: &mut [Each<U>]) {
    let len = rows.len() / SET;
    for (c, row) in rows.chunks_exact_mut(len).enumerate() {
        list(c, row);
    }
    let bytes = len * size_of::<T>();
    let mut lines: [&[u8]; SET] = [&[]; SET];
    for (line, row) in lines.iter_mut().zip(columns::bytes_mut(rows).chunks_exact(bytes)) {
        *line = row;
    }
    for (i, out) in out.as_chunks_mut().0.iter_mut().enumerate().take(bytes / SQUARE) {
        // SAFETY: the caller's promise.
        unsafe { turn(&lines, i * SQUARE, out) };
    }
}
