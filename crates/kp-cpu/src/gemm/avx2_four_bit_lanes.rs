//! D = A·B for more rows than `avx2_four_bits` has registers for, whose B has contiguous columns of 4-bit codes, in f32, on processors
//! that have AVX2 and no AVX-512.
//!
//! See [`super::few::sets`] for how it is cut and [`super::few::avx2_lanes`] for the loops. Limits: as `avx512_four_bits`.

use super::{
    few::{
        avx2_lanes::{MOST_ROWS, lanes, open},
        avx2_nibbles::Table,
        columns,
        dots::{BROAD_SHARE, SHARE},
        lanes::{EIGHT, Each, Later, SET},
        number_rows::NumberRows,
        sets::{Meet, Rows, Sets, Turned},
        suits,
    },
    product::{Item, Product},
    side::varies,
};
use crate::{
    numbers::Real,
    simd::{Avx2, Isa},
};
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Variant, Variants,
    op::{Gemm, GemmProblem, GemmSpec},
    source_hash,
};
use std::{ops::Range, sync::Arc};

/// The kernel for rows of numbers by weights of four bits without AVX-512.
pub(crate) struct Avx2FourBitLanes;

impl Kernel<Gemm> for Avx2FourBitLanes {
    fn name(&self) -> &'static str {
        "avx2_four_bit_lanes"
    }

    fn code(&self) -> u64 {
        const {
            source_hash(include_bytes!("avx2_four_bit_lanes.rs"))
                ^ source_hash(include_bytes!("few/avx2_lanes.rs")).rotate_left(1)
                ^ source_hash(include_bytes!("few/lists.rs")).rotate_left(2)
                ^ source_hash(include_bytes!("few/columns.rs")).rotate_left(3)
                ^ source_hash(include_bytes!("few/sets.rs")).rotate_left(4)
                ^ source_hash(include_bytes!("few/number_rows.rs")).rotate_left(5)
                ^ source_hash(include_bytes!("few/avx2_nibbles.rs")).rotate_left(6)
        }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        suits::four_bits(caps, Avx2::FEATURES, p, usize::MAX)?;
        Ok(Variants::ONE)
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, _: Variant) -> Nanos {
        let (_, memory) = Nanos::floors(caps, p);
        // Cycles for eight elements, as measured on Zen 3: turning and opening them, and each row.
        let vectors = f64::from(p.batch) * f64::from(p.n.next_multiple_of(SET as u32)) * f64::from(p.k) / 8.0;
        let opening = if p.b.dtype() == DType::Nf4 { 3.8 } else { 3.2 };
        let cycles = opening + 0.48 * Rows::even(p.m as usize, MOST_ROWS).all() as f64;
        let compute = vectors * cycles / (caps.clock_hz.max(1e9) * f64::from(caps.units.max(1)));
        Nanos::from_secs(columns::overlapped(memory, compute) + 2e-6 * f64::from(p.batch.max(1)))
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        let varies = varies(&p.b, p.k);
        let is_broad = !varies || (p.b.format.block().1 as usize).is_multiple_of(BROAD_SHARE);
        let share = if is_broad { BROAD_SHARE } else { SHARE };
        Ok(columns::plan(self, device, p, variant, SET, Sets::new(p, varies, share, Numbers::new(p, share))))
    }
}

type Open = unsafe fn(&Table, (&[Each<u32>], usize), (&[Each<f32>], &[Each<u32>]), Later<'_, '_>, &mut [Each<u32>]);
type Loop = unsafe fn(&[f32], &[Each<u32>], &mut [Each<f32>]);

/// Rows of numbers.
struct Numbers {
    rows: NumberRows,
    table: Table,
    open: Open,
    multiply: Loop,
    share: usize,
}

impl Numbers {
    fn new(spec: &GemmSpec, share: usize) -> Self {
        let rows = Rows::even(spec.m as usize, MOST_ROWS);
        let (mut values, has_zero) = (columns::sixteen(spec.b.dtype()), spec.b.format.has_zero());
        if has_zero && spec.b.dtype() == DType::I4 {
            // As the shifts want them: unsigned.
            values = std::array::from_fn(|code| (code ^ 8) as f32);
        }
        let table = Table::of(&values);
        // Integers, which alone have zero points, have all that they are in two bytes.
        let open = match (table.is_whole(), has_zero) {
            (true, _) => open::<true, false> as Open,
            (false, true) => open::<false, true>,
            (false, false) => open::<false, false>,
        };
        let multiply = match rows.height {
            1 => lanes::<1> as Loop,
            2 => lanes::<2>,
            3 => lanes::<3>,
            4 => lanes::<4>,
            5 => lanes::<5>,
            _ => lanes::<MOST_ROWS>,
        };
        Self { rows: NumberRows::new(rows, spec.k as usize), table, open, multiply, share }
    }
}

impl Meet for Numbers {
    const WIDE: bool = false;

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

    fn opened(&self) -> usize {
        EIGHT
    }

    unsafe fn open(&self, columns: Turned<'_>, later: Later<'_, '_>, out: &mut [Each<u32>]) {
        let Turned { codes, shared, scales, shifts } = columns;
        // SAFETY: passed on.
        unsafe { (self.open)(&self.table, (codes, shared), (scales, shifts), later, out) };
    }

    unsafe fn multiply(
        &self,
        a: &[u8],
        (group, steps): (usize, Range<usize>),
        columns: Turned<'_>,
        _: Option<Later<'_, '_>>,
        sums: &mut [Each<f32>],
        (): &(),
    ) {
        // SAFETY: passed on.
        unsafe { (self.multiply)(self.rows.part(a, group, steps), columns.codes, sums) };
    }

    fn sum(&self, a: &[u8], row: usize, share: usize) -> f32 {
        self.rows.sum(a, row, share * self.share, self.share)
    }

    fn factor<E: Real>(&self, _: &Product<'_>, _: Item, _: usize) -> E {
        E::ONE
    }
}
