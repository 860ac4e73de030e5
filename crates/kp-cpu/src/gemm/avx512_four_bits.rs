//! D = A·B for several rows whose B has contiguous columns of 4-bit codes, in f32: these become numbers in registers, for
//! eight rows at a time.
//!
//! See [`super::few::sets`] for how it is cut and [`super::few::lanes`] for the loops. Limits: AVX-512 with VBMI; scales that
//! change along k do so at multiples of 16; sums are in another order than `packed` has, so not `batch-invariant`.

use super::{
    few::{
        columns::{self, MOST},
        dots::{BROAD_SHARE, Kind, SHARE, Table},
        lanes::{Each, Later, SET, lanes},
        number_rows::NumberRows,
        sets::{Meet, Rows, Sets, Turned},
        suits,
    },
    product::{Item, Product},
    side::varies,
};
use crate::numbers::Real;
use kp_hal::{
    Caps, Device, Kernel, Nanos, Plan, Result, Support, Variant, Variants,
    op::{Gemm, GemmProblem, GemmSpec},
    source_hash,
};
use std::{ops::Range, sync::Arc};

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
                ^ source_hash(include_bytes!("few/sets.rs")).rotate_left(4)
                ^ source_hash(include_bytes!("few/number_rows.rs")).rotate_left(5)
        }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        suits::four_bits(caps, &columns::FEATURES, p, usize::MAX)?;
        Ok(Variants::ONE)
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, _: Variant) -> Nanos {
        let (_, memory) = Nanos::floors(caps, p);
        // For each sixteen elements two instructions to make them numbers and one for each row, two at a time; turning them.
        let vectors = f64::from(p.batch) * f64::from(p.n.next_multiple_of(SET as u32)) * f64::from(p.k) / 16.0;
        let rows = Rows::of(p.m as usize, MOST);
        let cycles = 1.5 + rows.groups as f64 * (2.5 + rows.height as f64) / 1.8;
        let compute = vectors * cycles / (caps.clock_hz.max(1e9) * f64::from(caps.units.max(1)));
        Nanos::from_secs(memory.as_secs().max(compute) / 0.9 + 2e-6 * f64::from(p.batch.max(1)))
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        let varies = varies(&p.b, p.k);
        let is_broad = !varies || (p.b.format.block().1 as usize).is_multiple_of(BROAD_SHARE);
        let share = if is_broad { BROAD_SHARE } else { SHARE };
        let sets = Sets::new(p, varies, share, Numbers::new(p, share));
        Ok(columns::plan(self, device, p, variant, SET, sets))
    }
}

type Loop = unsafe fn(
    &Table,
    &[f32],
    (&[Each<u32>], usize),
    (&[Each<f32>], &[Each<u32>]),
    Option<Later<'_, '_>>,
    &mut [Each<f32>],
);

/// Rows of numbers.
pub(crate) struct Numbers {
    rows: NumberRows,
    table: Box<Table>,
    multiply: Loop,
    share: usize,
}

impl Numbers {
    pub(crate) fn new(spec: &GemmSpec, share: usize) -> Self {
        let rows = Rows::of(spec.m as usize, MOST);
        let multiply = match rows.height {
            2 => lanes::<2> as Loop,
            4 => lanes::<4>,
            _ => lanes::<8>,
        };
        let table = Box::new(Table::of(Kind::Nibbles, spec.b.format));
        Self { rows: NumberRows::new(rows, spec.k as usize), table, multiply, share }
    }
}

impl Meet for Numbers {
    type Held = ();

    fn rows(&self) -> Rows {
        self.rows.rows
    }

    fn hold(&self) {}

    fn bytes(&self) -> usize {
        self.rows.bytes()
    }

    fn prepare(&self, product: &Product<'_>, item: Item, a: &mut [u8]) {
        self.rows.prepare(product, item, a);
    }

    unsafe fn multiply(
        &self,
        a: &[u8],
        (group, steps): (usize, Range<usize>),
        columns: Turned<'_>,
        later: Option<Later<'_, '_>>,
        sums: &mut [Each<f32>],
        (): &(),
    ) {
        let Turned { codes, shared, scales, shifts } = columns;
        let a = self.rows.part(a, group, steps);
        // SAFETY: passed on.
        unsafe { (self.multiply)(&self.table, a, (codes, shared), (scales, shifts), later, sums) };
    }

    fn sum(&self, a: &[u8], row: usize, share: usize) -> f32 {
        self.rows.sum(a, row, share * self.share, self.share)
    }

    fn factor<E: Real>(&self, _: &Product<'_>, _: Item, _: usize) -> E {
        E::ONE
    }
}
