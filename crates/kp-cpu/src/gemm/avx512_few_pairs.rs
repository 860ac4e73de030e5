//! D = A·B for at most eight rows of bf16, whose B has contiguous columns, of bf16 or of bytes that become such, or was packed
//! ahead by pairs of k: dot products of bf16, summed in f32.
//!
//! ```text
//!                 n ─▶ columns or panels, each thread a run of them
//!   A, as bf16  ┌──────┐      ┌─┬─┬─┬─┐
//!   and in L1   └──────┘    k │ │ │ │ │  two of k an instruction and lane
//!                             └─┴─┴─┴─┘
//! ```
//! See [`super::few::pairs`] for the loops. Limits: no scales but those of whole columns of B; AVX-512 with BF16, whose sums take
//! numbers below 2⁻¹²⁶ as 0; sums are in another order than `packed` has, so not `batch-invariant`. Where the instruction is slow,
//! as on Intel's processors, estimates say so, and one row by columns is `avx512_few_rows`', which memory keeps waiting in any case.

use super::{
    few::{
        columns::{self, Codes, Dots, HEIGHTS, MOST, Reading, Task, overlapped},
        dots::{self, Kind, SUMS, Table},
        far::Far,
        pairs::{self, LINE, PANEL, STEP_LINES},
    },
    product::{Item, Product},
    side::{Scaling, Side, varies},
};
use crate::{
    act::Tail,
    caps::{fetches_runs_of, pairs_rate, streams_by_second_cache},
    kernel::Disjoint,
    memory::numbers_mut,
    threads,
};
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Gate, Gemm, GemmProblem, GemmSpec, Order, Scheme},
    source_hash,
};
use std::{ops::Range, sync::Arc};

/// The kernel for few rows of bf16.
pub(crate) struct Avx512FewPairs;

/// How B is arranged for it.
const PANELS: Order = Order::Panel { width: PANEL as u16, depth: 2 };

impl Kernel<Gemm> for Avx512FewPairs {
    fn name(&self) -> &'static str {
        "avx512_few_pairs"
    }

    fn code(&self) -> u64 {
        const {
            source_hash(include_bytes!("avx512_few_pairs.rs"))
                ^ source_hash(include_bytes!("few/pairs.rs")).rotate_left(1)
                ^ source_hash(include_bytes!("few/dots.rs")).rotate_left(2)
                ^ source_hash(include_bytes!("few/columns.rs")).rotate_left(3)
        }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        if !caps.has("avx512bf16") {
            return Err(Unsupported::Feature { need: "avx512bf16" });
        }
        columns::suits(caps, &columns::FEATURES, p, MOST, if p.b.order == Order::Col { Order::Col } else { PANELS })?;
        let of_columns = Kind::of(p.b.dtype()).and_then(of_columns).filter(|_| p.b.order == Order::Col);
        for (operand, format) in [("a", p.a.format), ("b", p.b.format)] {
            if format.dtype != DType::Bf16 && !(operand == "b" && of_columns.is_some()) {
                return Err(Unsupported::DType { operand, got: format.dtype });
            }
        }
        for (operand, matrix, scales) in [("a", &p.a, false), ("b", &p.b, of_columns.is_some())] {
            if matrix.format.scheme != Scheme::None && !scales || varies(matrix, p.k) {
                return Err(Unsupported::Scheme { operand, got: matrix.format.to_string() });
            }
        }
        if p.b.order == Order::Col && p.m < 2 {
            return Err(Unsupported::TooSmall { dim: "m", min: 2, got: p.m.into() });
        }
        // Each half begins with a panel.
        let multiple = 2 * PANEL as u32;
        if p.b.order == PANELS && p.epilogue.gate == Gate::Halves && !p.n.is_multiple_of(multiple) {
            return Err(Unsupported::Align { dim: "n", multiple: multiple.into(), got: p.n.into() });
        }
        Ok(Variants::ONE)
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, _: Variant) -> Nanos {
        let (_, memory) = Nanos::floors(caps, p);
        let rows = HEIGHTS[columns::height((p.m as usize).max(1))] as f64;
        let products = f64::from(p.batch) * f64::from(p.n) * f64::from(p.k) * rows;
        // A byte becomes a number in as many instructions as two rows take.
        let made = if p.b.dtype().bits() == 8 { products / rows * 2.0 } else { 0.0 };
        let compute = 2.0 * (products + made) / pairs_rate(caps);
        let share = match p.b.order {
            Order::Col => Reading::InTurn.share(caps),
            // Several panels at once, as below.
            _ if caps.read_places > 1 && p.m <= 4 => 1.05,
            _ => 0.95,
        };
        Nanos::from_secs(
            overlapped(Nanos::from_secs(memory.as_secs() / share), compute / 0.7) + 1e-6 * f64::from(p.batch.max(1)),
        )
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        Ok(columns::plan(self, device, p, variant, PANEL, Numbers::new(p, fetches_runs_of(&device.info().caps))))
    }
}

/// Numbers of a step.
const STEP: usize = STEP_LINES * LINE;

/// Columns that meet rows at once.
const BREADTH: usize = 2;

/// What of A is in L1 at a time, in bytes: a third, so that the columns that are read next have room there, too.
const NEAR: usize = 16 << 10;

type OfColumns = unsafe fn(&Table, &[u32], &[&[u8]], (usize, Far), &mut [f32]);
type OfPanels = unsafe fn(&[u32], &[&[u8]], bool, &mut [[f32; PANEL]]);

/// For each of [`HEIGHTS`]; one row does not meet columns.
fn of_columns(kind: Kind) -> Option<[OfColumns; 4]> {
    macro_rules! heights {
        ($kind:ident) => {{
            let two: OfColumns = pairs::columns::<dots::$kind, 2, BREADTH>;
            [two, two, pairs::columns::<dots::$kind, 4, BREADTH>, pairs::columns::<dots::$kind, 8, BREADTH>]
        }};
    }
    Some(match kind {
        Kind::Bf16 => heights!(Bf16),
        Kind::I8 => heights!(I8),
        Kind::U8 => heights!(U8),
        Kind::Bytes => heights!(Bytes),
        Kind::F32 | Kind::F16 | Kind::Nibbles => return None,
    })
}

const OF_PANEL: [OfPanels; 4] =
    [pairs::panels::<1, 1>, pairs::panels::<2, 1>, pairs::panels::<4, 1>, pairs::panels::<8, 1>];

/// One, two and four rows by several panels at once, for processors that read faster so.
const BESIDE: [OfPanels; 3] = [pairs::panels::<1, MOST_PANELS>, pairs::panels::<2, MOST_PANELS>, pairs::panels::<4, 2>];
const BREADTHS: [usize; 3] = [MOST_PANELS, MOST_PANELS, 2];
const MOST_PANELS: usize = 4;

/// Sums of numbers.
struct Numbers {
    spec: GemmSpec,
    /// The place in [`HEIGHTS`].
    height: usize,
    kind: Kind,
    table: Box<Table>,
    of_columns: OfColumns,
    /// Whether few rows meet several panels at once.
    beside: bool,
}

impl Numbers {
    fn new(spec: &GemmSpec, beside: bool) -> Self {
        let height = columns::height((spec.m as usize).max(1)).max(usize::from(spec.b.order == Order::Col));
        let kind = Kind::of(spec.b.dtype()).expect("a supported type");
        let table = Box::new(Table::of(kind, spec.b.format));
        let of_columns = of_columns(kind).expect("a supported type")[height];
        Self { spec: *spec, height, kind, table, of_columns, beside }
    }

    fn rows(&self) -> usize {
        HEIGHTS[self.height]
    }

    fn lines(&self) -> usize {
        (self.spec.k as usize).div_ceil(STEP) * STEP_LINES
    }

    /// Pairs of all rows.
    fn pairs(&self) -> usize {
        self.lines() * self.rows() * LINE / 2
    }
}

impl<E: Tail> Dots<E> for Numbers {
    fn a_bytes(&self) -> usize {
        self.pairs() * size_of::<u32>()
    }

    fn work_bytes(&self) -> usize {
        0
    }

    fn prepare(&self, product: &Product<'_>, item: Item, a: &mut [u8]) {
        let (rows, k) = (self.rows(), self.spec.k as usize);
        let each = STEP_LINES * rows * LINE / 2;
        let by_lines = self.spec.b.order == Order::Col;
        let a = Disjoint::of(&mut numbers_mut::<u32>(a)[..self.pairs()]);
        let steps = self.lines() / STEP_LINES;
        threads::for_each(steps, |step| {
            // SAFETY: each step once.
            let out = unsafe { a.part(step * each..(step + 1) * each) };
            let inner = step * STEP..((step + 1) * STEP).min(k);
            for row in 0..rows {
                let mut of_row = [0; STEP / 2];
                if row < item.rows {
                    read_pairs(&product.a, (item.row_batch, item.row + row), inner.clone(), &mut of_row);
                }
                if by_lines {
                    for line in 0..STEP_LINES {
                        let out = &mut out[(line * rows + row) * LINE / 2..][..LINE / 2];
                        for (i, out) in out.iter_mut().enumerate() {
                            *out = of_row[pairs::pair(self.kind, line, i)];
                        }
                    }
                } else {
                    out[row..].iter_mut().step_by(rows).zip(of_row).for_each(|(out, pair)| *out = pair);
                }
            }
        });
    }

    fn sums(&self, task: Task<'_, '_>, sums: &mut [E], ld: usize, _: &mut [u8]) {
        let a = &columns::numbers::<u32>(task.a)[..self.pairs()];
        if self.spec.b.order == Order::Col {
            self.by_columns(&task, a, sums, ld);
        } else {
            self.by_panels(&task, a, sums, ld);
        }
    }
}

/// Reads elements `inner` of a row of bf16 in pairs, the first of each in the lower half.
fn read_pairs(a: &Side<'_>, (batch, row): (usize, usize), inner: Range<usize>, out: &mut [u32; STEP / 2]) {
    if a.matrix.order == Order::Row && a.meta.is_none() {
        let codes = Codes::of(a, batch, inner).column(row);
        columns::bytes_mut(out.as_mut_slice())[..codes.len()].copy_from_slice(codes);
        return;
    }
    let mut numbers = [0.0_f32; STEP];
    a.row(batch, row, inner.clone(), Scaling::Applied, &mut numbers[..inner.len()]);
    for (out, [low, high]) in out.iter_mut().zip(numbers.as_chunks().0) {
        // Exact: they were bf16.
        *out = low.to_bits() >> 16 | high.to_bits() & 0xffff_0000;
    }
}

impl Numbers {
    fn by_columns<E: Tail>(&self, task: &Task<'_, '_>, a: &[u32], sums: &mut [E], ld: usize) {
        let Task { product, item, ref columns, .. } = *task;
        let (rows, k) = (self.rows(), self.spec.k as usize);
        for sums in sums.chunks_mut(ld).take(item.rows) {
            sums[..columns.len()].fill(E::ZERO);
        }
        // Eight rows, and bytes, are limited by arithmetic, where that order was slower.
        let in_order = self.kind == Kind::Bf16 && rows < MOST && streams_by_second_cache();
        let reading = if in_order { Reading::InOrder } else { Reading::InTurn };
        let near = NEAR / (rows * LINE * size_of::<u16>());
        for first in (0..self.lines()).step_by(near) {
            let inner = first * LINE..((first + near) * LINE).min(k);
            let a = &a[first * rows * LINE / 2..];
            let codes = Codes::of(&product.b, item.b, inner.clone());
            for o in columns.clone().step_by(BREADTH) {
                // Past the last column, that one again.
                let some: [&[u8]; BREADTH] = std::array::from_fn(|c| codes.column((o + c).min(columns.end - 1)));
                let ahead = codes.ahead(reading, o, BREADTH, inner.len() == k);
                let mut of_rows = [0.0; SUMS];
                // SAFETY: `supports` asked for the features.
                unsafe { (self.of_columns)(&self.table, a, &some, ahead, &mut of_rows) };
                let places = o - columns.start..columns.len().min(o - columns.start + BREADTH);
                columns::add(sums, ld, places, &of_rows, (rows, item.rows));
            }
        }
        columns::scale(&product.b, item, columns.clone(), false, &|_| E::ONE, sums, ld);
    }

    fn by_panels<E: Tail>(&self, task: &Task<'_, '_>, a: &[u32], sums: &mut [E], ld: usize) {
        let Task { product, item, ref columns, .. } = *task;
        let matrix = &product.b.matrix;
        let bytes = self.spec.k.div_ceil(2) as usize * 4 * PANEL;
        // With fewer rows memory keeps it waiting, and then what is asked of the first cache comes sooner.
        let by_second = self.rows() == MOST && streams_by_second_cache();
        let (multiply, breadth) = match BREADTHS.get(self.height) {
            Some(&breadth) if self.beside => (BESIDE[self.height], breadth),
            _ => (OF_PANEL[self.height], 1),
        };
        let panel = |column: usize| {
            let at = item.b as u64 * matrix.stride + matrix.index(0, column as u32, product.b.inner);
            &product.b.codes[2 * at as usize..][..bytes]
        };
        for first in columns.clone().step_by(breadth * PANEL) {
            // Past the last panel, that one again.
            let last = (columns.end - 1) / PANEL * PANEL;
            let some: [&[u8]; MOST_PANELS] = std::array::from_fn(|p| panel((first + p * PANEL).min(last)));
            let mut totals = [[0.0; PANEL]; MOST];
            // SAFETY: `supports` asked for the features.
            unsafe { multiply(a, &some[..breadth], by_second, &mut totals) };
            for (p, totals) in totals.chunks_exact(self.rows()).enumerate().take(breadth) {
                let column = (first + p * PANEL).min(columns.end);
                let there = column - columns.start..(column + PANEL).min(columns.end) - columns.start;
                for (sums, totals) in sums.chunks_mut(ld).zip(&totals[..item.rows]) {
                    for (sum, &total) in sums[there.clone()].iter_mut().zip(totals) {
                        *sum = E::from_f32(total);
                    }
                }
            }
        }
    }
}
