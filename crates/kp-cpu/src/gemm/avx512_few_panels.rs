//! D = A·B for at most eight rows whose B was packed ahead to panels of 64 columns, in f32: weights as they lie, at the speed
//! of memory.
//!
//! ```text
//!                 n ─▶ panels, each thread a run of them
//!   A, in f32  ┌──────┐      ┌────┬────┬────┐
//!              └──────┘    k │    │    │    │  four panels at once meet one row, each panel alone four rows at a time
//!                            └────┴────┴────┘
//! ```
//! See [`super::few::panels`] for the loop. Limits: numbers of 32 or 16 bits without scales; not `batch-invariant`, since
//! `packed` adds blocks of k apart.

use super::{
    few::{
        columns::{self, Dots, MOST, Task},
        dots::{Bf16, F16, F32},
        far::Far,
        panels::{PANEL, panels},
    },
    product::{Item, Product},
    side::Scaling,
};
use crate::{act::Tail, caps::streams_by_second_cache, kernel::Disjoint, memory::numbers_mut, threads};
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Gate, Gemm, GemmProblem, GemmSpec, Order, Scheme},
    source_hash,
};
use std::sync::Arc;

/// The kernel for decoding with weights packed ahead.
pub(crate) struct Avx512FewPanels;

impl Kernel<Gemm> for Avx512FewPanels {
    fn name(&self) -> &'static str {
        "avx512_few_panels"
    }

    fn code(&self) -> u64 {
        const {
            source_hash(include_bytes!("avx512_few_panels.rs"))
                ^ source_hash(include_bytes!("few/panels.rs")).rotate_left(1)
                ^ source_hash(include_bytes!("few/dots.rs")).rotate_left(2)
                ^ source_hash(include_bytes!("few/columns.rs")).rotate_left(3)
        }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        columns::suits(caps, &columns::FEATURES, p, MOST, Order::Panel { width: PANEL as u16, depth: 1 })?;
        if !matches!(p.b.dtype(), DType::F32 | DType::Bf16 | DType::F16) {
            return Err(Unsupported::DType { operand: "b", got: p.b.dtype() });
        }
        if p.b.format.scheme != Scheme::None {
            return Err(Unsupported::Scheme { operand: "b", got: p.b.format.to_string() });
        }
        // Each half begins with a panel.
        let multiple = 2 * PANEL as u32;
        if p.epilogue.gate == Gate::Halves && !p.n.is_multiple_of(multiple) {
            return Err(Unsupported::Align { dim: "n", multiple: multiple.into(), got: p.n.into() });
        }
        Ok(Variants::ONE)
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, _: Variant) -> Nanos {
        let (_, memory) = Nanos::floors(caps, p);
        // For each sixteen elements: an instruction or two to make them numbers, one for each row; two at a time.
        let vectors = f64::from(p.batch) * f64::from(p.n) * f64::from(p.k) / 16.0;
        let compute = vectors * (2.0 + rows(p) as f64) / (1.6 * caps.clock_hz.max(1e9) * f64::from(caps.units.max(1)));
        // Four panels are read faster than the one place at which memory's rate is measured, and at which `packed` reads.
        Nanos::from_secs((memory.as_secs() / 1.05).max(compute / 0.9) + 2e-7 * f64::from(p.batch.max(1)))
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        Ok(columns::plan(self, device, p, variant, PANEL, Numbers::new(p)))
    }
}

/// Panels that meet one row at once; rows that meet one panel.
const BREADTH: usize = 4;
const HEIGHT: usize = 4;

/// Steps of a panel that all rows meet before the next ones: in L1.
const NEAR: usize = 128;

/// Rows of A that are made ready: one, or groups filled up with zeros.
fn rows(spec: &GemmSpec) -> usize {
    if spec.m <= 1 { 1 } else { (spec.m as usize).next_multiple_of(HEIGHT) }
}

type Loop = unsafe fn(&[f32], usize, &[&[u8]], (usize, Far), &mut [[f32; PANEL]]);

/// Sums of numbers.
struct Numbers {
    spec: GemmSpec,
    one_row: Loop,
    group: Loop,
}

impl Numbers {
    fn new(spec: &GemmSpec) -> Self {
        macro_rules! loops {
            ($kind:ident) => {
                (panels::<$kind, 1, BREADTH> as Loop, panels::<$kind, HEIGHT, 1> as Loop)
            };
        }
        let (one_row, group) = match spec.b.dtype() {
            DType::F32 => loops!(F32),
            DType::Bf16 => loops!(Bf16),
            _ => loops!(F16),
        };
        Self { spec: *spec, one_row, group }
    }

    /// From one row of A to the next.
    fn ld(&self) -> usize {
        (self.spec.k as usize).next_multiple_of(NEAR)
    }
}

impl Dots for Numbers {
    fn a_bytes(&self) -> usize {
        rows(&self.spec) * self.ld() * size_of::<f32>()
    }

    fn work_bytes(&self) -> usize {
        0
    }

    fn prepare(&self, product: &Product<'_>, item: Item, a: &mut [u8]) {
        let (rows, ld, k) = (rows(&self.spec), self.ld(), self.spec.k as usize);
        let a = Disjoint::of(&mut numbers_mut::<f32>(a)[..rows * ld]);
        threads::for_each(rows * ld / NEAR, |i| {
            // SAFETY: each part once.
            let out = unsafe { a.part(i * NEAR..(i + 1) * NEAR) };
            out.fill(0.0);
            let (row, first) = (i * NEAR / ld, i * NEAR % ld);
            let inner = first..(first + NEAR).min(k);
            if row < item.rows {
                let line = &mut out[..inner.len()];
                product.a.row(item.row_batch, item.row + row, inner, Scaling::Applied, line);
            }
        });
    }

    fn sums<E: Tail>(&self, task: Task<'_, '_>, sums: &mut [E], ld: usize, _: &mut [u8]) {
        let Task { product, item, columns, a } = task;
        let (b, k) = (&product.b, self.spec.k as usize);
        let (rows, a_ld) = (rows(&self.spec), self.ld());
        let a = &columns::numbers::<f32>(a)[..rows * a_ld];
        let size = b.matrix.dtype().bits() as usize / 8;
        let panel = |column: usize| {
            let first = item.b as u64 * b.matrix.stride + b.matrix.index(0, column as u32, b.inner);
            &b.codes[first as usize * size..][..k * PANEL * size]
        };
        let breadth = if rows == 1 { BREADTH } else { 1 };
        for first in columns.clone().step_by(breadth * PANEL) {
            let mut totals = [[0.0; PANEL]; MOST];
            if rows == 1 {
                // Past the last panel, that one again.
                let last = (columns.end - 1) / PANEL * PANEL;
                let some: [&[u8]; BREADTH] = std::array::from_fn(|i| panel((first + i * PANEL).min(last)));
                // SAFETY: `supports` asked for the features.
                unsafe { (self.one_row)(a, a_ld, &some, (0, Far::NONE), &mut totals) };
            } else {
                // With one group memory keeps it waiting, and then what is asked of the first cache comes sooner.
                let by_second = rows > HEIGHT && streams_by_second_cache();
                for (i, steps) in panel(first).chunks(NEAR * PANEL * size).enumerate() {
                    for (group, totals) in totals[..rows].chunks_exact_mut(HEIGHT).enumerate() {
                        let a = &a[group * HEIGHT * a_ld + i * NEAR..];
                        // Each of two groups asks for half of what follows.
                        let half = steps.len() / 2;
                        let ahead = match by_second {
                            true => (PANEL * size / 128, Far::behind(steps[group * half..].as_ptr(), half)),
                            false => (0, Far::NONE),
                        };
                        // SAFETY: as above.
                        unsafe { (self.group)(a, a_ld, &[steps], ahead, totals) };
                    }
                }
            }
            // One panel's rows, or one row's panels.
            for (i, totals) in totals.iter().enumerate().take(if rows == 1 { BREADTH } else { item.rows }) {
                let (row, column) = if rows == 1 { (0, first + i * PANEL) } else { (i, first) };
                let there = column.min(columns.end)..(column + PANEL).min(columns.end);
                let at = row * ld + there.start - columns.start;
                if row < item.rows {
                    for (sum, &total) in sums[at..at + there.len()].iter_mut().zip(totals) {
                        *sum = E::from_f32(total);
                    }
                }
            }
        }
    }
}
