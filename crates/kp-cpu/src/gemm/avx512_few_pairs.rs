//! D = A·B for at most eight rows of bf16, whose B has contiguous columns or was packed ahead by pairs of k: dot products of
//! bf16 as they lie, summed in f32.
//!
//! ```text
//!                 n ─▶ columns or panels, each thread a run of them
//!   A, as bf16  ┌──────┐      ┌─┬─┬─┬─┐
//!   and in L1   └──────┘    k │ │ │ │ │  two of k an instruction and lane
//!                             └─┴─┴─┴─┘
//! ```
//! See [`super::few::pairs`] for the loops. Limits: no scales; AVX-512 with BF16, whose sums take numbers below 2⁻¹²⁶ as 0;
//! sums are in another order than `packed` has, so not `batch-invariant`. Where the instruction is slow, as on Intel's
//! processors, estimates say so, and one row by columns is `avx512_few_rows`', which memory keeps waiting in any case.

use super::{
    few::{
        columns::{self, Codes, Dots, Few, HEIGHTS, MOST, Reading, Task},
        dots::SUMS,
        pairs::{self, LINE, LINE_BYTES, PANEL},
    },
    product::{Item, Product, finishes_in_f64},
    side::Scaling,
};
use crate::{
    act::Tail,
    caps::pairs_rate,
    kernel::{self, Disjoint},
    memory::numbers_mut,
    threads,
};
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Gate, Gemm, GemmProblem, GemmSpec, Order, Scheme},
    source_hash,
};
use std::{marker::PhantomData, sync::Arc};

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
        for (operand, format) in [("a", p.a.format), ("b", p.b.format)] {
            if format.dtype != DType::Bf16 {
                return Err(Unsupported::DType { operand, got: format.dtype });
            }
            if format.scheme != Scheme::None {
                return Err(Unsupported::Scheme { operand, got: format.to_string() });
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
        let compute = 2.0 * products / pairs_rate(caps);
        let share = if p.b.order == Order::Col { Reading::InTurn.share(caps) } else { 0.95 };
        Nanos::from_secs((memory.as_secs() / share).max(compute / 0.7) + 1e-6 * f64::from(p.batch.max(1)))
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        macro_rules! plan {
            ($end:ty) => {{
                let code = Few::new(p, PANEL, Numbers::<$end>::new(p));
                // SAFETY: the loops touch what the spec names, and the scratch that `scratch_bytes` counts.
                Ok(unsafe { kernel::plan(self, device, p, variant, code.scratch_bytes(), code) })
            }};
        }
        if finishes_in_f64(p) { plan!(f64) } else { plan!(f32) }
    }
}

/// Columns that meet rows at once.
const BREADTH: usize = 2;

/// What of A is in L1 at a time, in bytes: a third, so that the columns that are read next have room there, too.
const NEAR: usize = 16 << 10;

type OfColumns = unsafe fn(&[u32], &[&[u8]], usize, &mut [f32]);
type OfPanel = unsafe fn(&[u32], &[u8], &mut [[f32; PANEL]]);

/// For each of [`HEIGHTS`]; one row does not meet columns.
const OF_COLUMNS: [OfColumns; 4] = [
    pairs::columns::<2, BREADTH>,
    pairs::columns::<2, BREADTH>,
    pairs::columns::<4, BREADTH>,
    pairs::columns::<8, BREADTH>,
];
const OF_PANEL: [OfPanel; 4] = [pairs::panel::<1>, pairs::panel::<2>, pairs::panel::<4>, pairs::panel::<8>];

/// Sums of numbers.
struct Numbers<E> {
    spec: GemmSpec,
    /// The place in [`HEIGHTS`].
    height: usize,
    kind_of_end: PhantomData<E>,
}

impl<E> Numbers<E> {
    fn new(spec: &GemmSpec) -> Self {
        let height = columns::height((spec.m as usize).max(1)).max(usize::from(spec.b.order == Order::Col));
        Self { spec: *spec, height, kind_of_end: PhantomData }
    }

    fn rows(&self) -> usize {
        HEIGHTS[self.height]
    }

    fn lines(&self) -> usize {
        (self.spec.k as usize).div_ceil(LINE)
    }

    /// Pairs of all rows.
    fn pairs(&self) -> usize {
        self.lines() * self.rows() * LINE / 2
    }
}

impl<E: Tail> Dots for Numbers<E> {
    type End = E;

    fn a_bytes(&self) -> usize {
        self.pairs() * size_of::<u32>()
    }

    fn work_bytes(&self) -> usize {
        0
    }

    fn prepare(&self, product: &Product<'_>, item: Item, a: &mut [u8]) {
        let (rows, k) = (self.rows(), self.spec.k as usize);
        let each = rows * LINE / 2;
        let by_lines = self.spec.b.order == Order::Col;
        let a = Disjoint::of(&mut numbers_mut::<u32>(a)[..self.pairs()]);
        threads::for_each(self.lines(), |i| {
            // SAFETY: each line once.
            let out = unsafe { a.part(i * each..(i + 1) * each) };
            let inner = i * LINE..((i + 1) * LINE).min(k);
            for row in 0..rows {
                let mut line = [0.0_f32; LINE];
                if row < item.rows {
                    let line = &mut line[..inner.len()];
                    product.a.row(item.row_batch, item.row + row, inner.clone(), Scaling::Applied, line);
                }
                for (j, [low, high]) in line.as_chunks().0.iter().enumerate() {
                    let place = if by_lines { row * LINE / 2 + j } else { j * rows + row };
                    // Exact: they were bf16.
                    out[place] = low.to_bits() >> 16 | high.to_bits() & 0xffff_0000;
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

impl<E: Tail> Numbers<E> {
    fn by_columns(&self, task: &Task<'_, '_>, a: &[u32], sums: &mut [E], ld: usize) {
        let Task { product, item, ref columns, .. } = *task;
        let (rows, k) = (self.rows(), self.spec.k as usize);
        for sums in sums.chunks_mut(ld).take(item.rows) {
            sums[..columns.len()].fill(E::ZERO);
        }
        let near = NEAR / (rows * LINE_BYTES);
        for first in (0..self.lines()).step_by(near) {
            let inner = first * LINE..((first + near) * LINE).min(k);
            let a = &a[first * rows * LINE / 2..];
            let codes = Codes::of(&product.b, item.b, inner.clone());
            let ahead = columns::ahead(Reading::InTurn, BREADTH, codes.step(), inner.len() == k);
            for o in columns.clone().step_by(BREADTH) {
                // Past the last column, that one again.
                let some: [&[u8]; BREADTH] = std::array::from_fn(|c| codes.column((o + c).min(columns.end - 1)));
                let mut of_rows = [0.0; SUMS];
                // SAFETY: `supports` asked for the features.
                unsafe { OF_COLUMNS[self.height](a, &some, ahead, &mut of_rows) };
                let places = o - columns.start..columns.len();
                for (j, of_rows) in places.zip(of_rows.chunks_exact(rows).take(BREADTH)) {
                    for (sums, &more) in sums.chunks_mut(ld).zip(&of_rows[..item.rows]) {
                        sums[j] += E::from_f32(more);
                    }
                }
            }
        }
    }

    fn by_panels(&self, task: &Task<'_, '_>, a: &[u32], sums: &mut [E], ld: usize) {
        let Task { product, item, ref columns, .. } = *task;
        let matrix = &product.b.matrix;
        let bytes = self.spec.k.div_ceil(2) as usize * 4 * PANEL;
        for first in columns.clone().step_by(PANEL) {
            let at = item.b as u64 * matrix.stride + matrix.index(0, first as u32, product.b.inner);
            let mut totals = [[0.0; PANEL]; MOST];
            // SAFETY: `supports` asked for the features.
            unsafe { OF_PANEL[self.height](a, &product.b.codes[2 * at as usize..][..bytes], &mut totals) };
            let there = first - columns.start..(first + PANEL).min(columns.end) - columns.start;
            for (sums, totals) in sums.chunks_mut(ld).zip(&totals[..item.rows]) {
                for (sum, &total) in sums[there.clone()].iter_mut().zip(totals) {
                    *sum = E::from_f32(total);
                }
            }
        }
    }
}
