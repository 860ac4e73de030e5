//! D = A·B for at most eight rows of 8- or 4-bit codes whose B, of bytes, was packed ahead to panels of 64 columns, four of k side
//! by side: exact sums in i32, at the speed of memory.
//!
//! ```text
//!                 n ─▶ panels, each thread a run of them
//!   A, as i8    ┌──────┐      ┌────┬────┬────┐
//!   and in L1   └──────┘    k │    │    │    │  four products an instruction and lane
//!                             └────┴────┴────┘
//! ```
//! See [`super::few::byte_panels`] for the loop. Limits: as `vnni_few_rows`, and no scales that change along k.

use super::{
    few::{
        byte_panels::{STEP_BYTES, byte_panels},
        columns::{self, Dots, HEIGHTS, MOST, Task},
        fours::{FOUR, Fours},
        panels::PANEL,
    },
    product::{Item, Product},
    vnni_few_rows::{has_features, lift_for, suits_whole, unit},
};
use crate::{
    act::Tail,
    caps::{asks_first_cache, fetches_runs_of, streams_by_second_cache},
};
use kp_hal::{
    Caps, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Gate, Gemm, GemmProblem, GemmSpec, Order},
    source_hash,
};
use std::sync::Arc;

/// The kernel for decoding with bytes packed ahead.
pub(crate) struct VnniFewPanels;

/// How B is arranged for it: of bytes.
const PANELS: Order = Order::Panel { width: PANEL as u16, depth: 4 };

impl Kernel<Gemm> for VnniFewPanels {
    fn name(&self) -> &'static str {
        "vnni_few_panels"
    }

    fn code(&self) -> u64 {
        const {
            source_hash(include_bytes!("vnni_few_panels.rs"))
                ^ source_hash(include_bytes!("few/byte_panels.rs")).rotate_left(1)
                ^ source_hash(include_bytes!("few/columns.rs")).rotate_left(2)
                ^ source_hash(include_bytes!("few/bytes.rs")).rotate_left(3)
                ^ source_hash(include_bytes!("few/fours.rs")).rotate_left(4)
                ^ source_hash(include_bytes!("few/far.rs")).rotate_left(5)
        }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        if p.m as usize > MOST {
            return Err(Unsupported::TooLarge { dim: "m", max: MOST as u64, got: p.m.into() });
        }
        if p.b.order != PANELS {
            return Err(Unsupported::Layout { operand: "b", got: p.b.order.to_string() });
        }
        if p.b.dtype().bits() != 8 {
            return Err(Unsupported::DType { operand: "b", got: p.b.dtype() });
        }
        // Each half begins with a panel.
        let multiple = 2 * PANEL as u32;
        if p.epilogue.gate == Gate::Halves && !p.n.is_multiple_of(multiple) {
            return Err(Unsupported::Align { dim: "n", multiple: multiple.into(), got: p.n.into() });
        }
        has_features(caps)?;
        suits_whole(p)?;
        Ok(Variants::ONE)
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, _: Variant) -> Nanos {
        let (_, memory) = Nanos::floors(caps, p);
        let rows = HEIGHTS[columns::height((p.m as usize).max(1))] as f64;
        // For a line of 64 bytes: what brings it and makes it unsigned, and an instruction for each row, two at a time.
        let lines = f64::from(p.batch) * f64::from(p.n) * f64::from(p.k) / 64.0;
        let compute = lines * (2.0 + rows) / (1.6 * caps.clock_hz.max(1e9) * f64::from(caps.units.max(1)));
        // Where places differ, several are read faster than the one at which memory's rate is measured, which is what all but three and four rows do.
        let share = match (caps.read_places, p.m) {
            (0 | 1, _) => 0.95,
            (_, 3 | 4) => 0.75,
            _ => 1.0,
        };
        Nanos::from_secs((memory.as_secs() / share).max(compute) + 2e-6 * f64::from(p.batch.max(1)))
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        Ok(columns::plan(self, device, p, variant, PANEL, Codes::new(p, fetches_runs_of(&device.info().caps))))
    }
}

type Loop = unsafe fn(u8, &[u32], &[&[u8]], bool, &mut [[i32; PANEL]]);

/// For each of [`HEIGHTS`], by an A of unsigned and of signed bytes: as many vectors of a step as there are registers for, of one panel.
const LOOPS: [[Loop; 4]; 2] = [one_panel::<false>(), one_panel::<true>()];

const fn one_panel<const SIGNED: bool>() -> [Loop; 4] {
    [
        byte_panels::<1, 4, 1, SIGNED>,
        byte_panels::<2, 4, 1, SIGNED>,
        byte_panels::<4, 4, 1, SIGNED>,
        byte_panels::<8, 2, 1, SIGNED>,
    ]
}

/// One row and two by several panels at once, for processors that read faster so.
const BREADTHS: [usize; 2] = [MOST_PANELS, 2];
const BESIDE: [[Loop; 2]; 2] = [
    [byte_panels::<1, 4, { BREADTHS[0] }, false>, byte_panels::<2, 4, { BREADTHS[1] }, false>],
    [byte_panels::<1, 4, { BREADTHS[0] }, true>, byte_panels::<2, 4, { BREADTHS[1] }, true>],
];
const MOST_PANELS: usize = 4;

/// Sums of codes.
struct Codes {
    spec: GemmSpec,
    a: Fours,
    flip: u8,
    offset: i32,
    /// Whether few rows meet several panels at once.
    beside: bool,
}

impl Codes {
    fn new(spec: &GemmSpec, beside: bool) -> Self {
        let a = Fours::of(spec);
        let (lift, offset) = lift_for(spec.a.dtype(), spec.b.dtype());
        Self { spec: *spec, a, flip: lift.flip, offset, beside }
    }
}

impl<E: Tail> Dots<E> for Codes {
    fn a_bytes(&self) -> usize {
        self.a.bytes()
    }

    fn work_bytes(&self) -> usize {
        0
    }

    fn prepare(&self, product: &Product<'_>, item: Item, a: &mut [u8]) {
        self.a.prepare(product, item, a);
    }

    fn sums(&self, task: Task<'_, '_>, sums: &mut [E], ld: usize, _: &mut [u8]) {
        let Task { product, item, columns, a } = task;
        let (b, height) = (&product.b, columns::height(self.a.rows));
        let (a, of_rows) = self.a.ready(a);
        let taken = of_rows.map(|sum| self.offset.wrapping_mul(sum).wrapping_neg());
        let (bytes, signed) = ((self.spec.k as usize).div_ceil(FOUR) * STEP_BYTES, usize::from(self.a.signed));
        let (multiply, breadth) = match BREADTHS.get(height) {
            Some(&breadth) if self.beside => (BESIDE[signed][height], breadth),
            _ => (LOOPS[signed][height], 1),
        };
        // On an Emerald Rapids core eight rows took 0.94 to 0.95 of the time by the second.
        let by_second = !asks_first_cache() || streams_by_second_cache();
        let rows = HEIGHTS[height];
        let panel = |column: usize| {
            let at = item.b as u64 * b.matrix.stride + b.matrix.index(0, column as u32, b.inner);
            &b.codes[at as usize..][..bytes]
        };
        for first in columns.clone().step_by(breadth * PANEL) {
            // Past the last panel, that one again.
            let last = (columns.end - 1) / PANEL * PANEL;
            let some: [&[u8]; MOST_PANELS] = std::array::from_fn(|p| panel((first + p * PANEL).min(last)));
            let mut totals = [[0; PANEL]; MOST];
            for totals in totals.chunks_exact_mut(rows) {
                totals.iter_mut().zip(taken).for_each(|(totals, taken)| totals.fill(taken));
            }
            // SAFETY: `supports` asked for the features.
            unsafe { multiply(self.flip, a, &some[..breadth], by_second, &mut totals) };
            for (p, totals) in totals.chunks_exact(rows).enumerate().take(breadth) {
                let column = (first + p * PANEL).min(columns.end);
                let there = column - columns.start..(column + PANEL).min(columns.end) - columns.start;
                for (sums, totals) in sums.chunks_mut(ld).zip(&totals[..item.rows]) {
                    for (sum, &total) in sums[there.clone()].iter_mut().zip(totals) {
                        *sum = E::from_f64(f64::from(total));
                    }
                }
            }
        }
        let mut factors = [E::ONE; MOST];
        product.a.scales_of(item.row_batch, item.row..item.row + item.rows, 0, &mut factors[..item.rows]);
        let unit = E::from_f32(unit(self.spec.a.format) * unit(self.spec.b.format));
        columns::scale(b, item, columns, false, &|r| factors[r] * unit, sums, ld);
    }
}
