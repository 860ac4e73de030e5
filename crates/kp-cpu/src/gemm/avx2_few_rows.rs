//! D = A·B for at most eight rows whose B has contiguous columns, in f32, on processors that have AVX2 and no AVX-512: weights
//! as they lie, at the speed of memory where turning codes into numbers allows.
//!
//! See [`super::few::avx2`] for the loops and [`super::few::columns`] for how threads share the columns. Limits: codes of 32,
//! 16, 8 or 4 bits; scales that change along k do so at multiples of 16; sums are in another order than `packed` has, so not
//! `batch-invariant`.

use super::{
    few::{
        avx2::{
            self, BREADTHS, BROAD, Bf16, Columns, Digits, E4m3, E5m2, F16, F32, HEIGHTS, I8, Kind, LIST, List,
            MOST_STEPS, STEP, SUMS, Table, U8, Values,
        },
        columns::{self, Codes, Dots, Few, MOST, Reading, Task},
        lists::{self, Lists},
    },
    product::{Item, Product, finishes_in_f64},
    side::Scaling,
    vnni_few_rows::varies,
};
use crate::{
    act::Tail,
    kernel::{self, Disjoint},
    memory::numbers_mut,
    simd::{Avx2, Isa},
    threads,
};
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant,
    op::{Gemm, GemmProblem, GemmSpec, Order},
    source_hash,
};
use std::{marker::PhantomData, sync::Arc};

/// The kernel for decoding on processors without AVX-512.
pub(crate) struct Avx2FewRows;

impl Kernel<Gemm> for Avx2FewRows {
    fn name(&self) -> &'static str {
        "avx2_few_rows"
    }

    fn code(&self) -> u64 {
        const {
            source_hash(include_bytes!("avx2_few_rows.rs"))
                ^ source_hash(include_bytes!("few/avx2.rs")).rotate_left(1)
                ^ source_hash(include_bytes!("few/lists.rs")).rotate_left(2)
                ^ source_hash(include_bytes!("few/columns.rs")).rotate_left(3)
        }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        columns::suits(caps, Avx2::FEATURES, p, MOST, Order::Col)?;
        let Some(kind) = kind(p.b.dtype()) else {
            return Err(Unsupported::DType { operand: "b", got: p.b.dtype() });
        };
        let lists = !varies(&p.b, p.k) || lists::can_list(&p.b, p.k);
        if !lists || p.b.format.has_zero() && kind.factor() != 1.0 {
            return Err(Unsupported::Scheme { operand: "b", got: p.b.format.to_string() });
        }
        Ok(Reading::VARIANTS)
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, variant: Variant) -> Nanos {
        let (_, memory) = Nanos::floors(caps, p);
        let kind = kind(p.b.dtype()).unwrap_or(Kind::F32);
        // For each eight elements: instructions that make them numbers, three at a time, and one for each row, two at a time.
        let made = match kind {
            Kind::F32 => 1.0,
            Kind::Bf16 | Kind::F16 => 2.0,
            Kind::I8 | Kind::U8 | Kind::E5m2 => 3.0,
            Kind::E4m3 | Kind::Digits => 5.0,
            Kind::Table => 7.0,
        };
        let rows = HEIGHTS[height((p.m as usize).max(1))] as f64;
        let vectors = f64::from(p.batch) * f64::from(p.n) * f64::from(p.k) / 8.0;
        let cycles = vectors * (made / 3.0 + rows / 2.0) / 0.8;
        let compute = cycles / (caps.clock_hz.max(1e9) * f64::from(caps.units.max(1)));
        // A little less than wider loops reach, where there are both.
        let share = Reading::of(variant).share(caps) - 0.02;
        Nanos::from_secs(memory.as_secs().max(compute) / share + 2e-6 * f64::from(p.batch.max(1)))
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        macro_rules! plan {
            ($end:ty) => {{
                let code = Few::new(p, 16, Numbers::<$end>::new(p, Reading::of(variant)));
                // SAFETY: the loops touch what the spec names, and the scratch that `scratch_bytes` counts.
                Ok(unsafe { kernel::plan(self, device, p, variant, code.scratch_bytes(), code) })
            }};
        }
        if finishes_in_f64(p) { plan!(f64) } else { plan!(f32) }
    }
}

fn kind(dtype: DType) -> Option<Kind> {
    Some(match dtype {
        DType::F32 => Kind::F32,
        DType::Bf16 => Kind::Bf16,
        DType::F16 => Kind::F16,
        DType::I8 => Kind::I8,
        DType::U8 => Kind::U8,
        DType::E4m3 => Kind::E4m3,
        DType::E5m2 => Kind::E5m2,
        DType::I4 | DType::U4 => Kind::Digits,
        DType::Nf4 | DType::E2m1 => Kind::Table,
        _ => return None,
    })
}

/// The place in [`HEIGHTS`] of the least that has room for `rows`.
fn height(rows: usize) -> usize {
    HEIGHTS.iter().position(|&h| h >= rows).expect("few rows")
}

/// Bytes of A that are in L1 at a time.
const NEAR: usize = 24 << 10;

/// Some rows by some columns.
type Sums = unsafe fn(&Values, usize, &[f32], &Columns<'_>, &mut [f32]);

/// Sums of numbers.
struct Numbers<E> {
    spec: GemmSpec,
    reading: Reading,
    kind: Kind,
    values: Values,
    sums: Sums,
    /// Whether scales or zero points are applied within sums.
    varies: bool,
    /// Elements that share an entry of the lists.
    share: usize,
    kind_of_end: PhantomData<E>,
}

impl<E> Numbers<E> {
    fn new(spec: &GemmSpec, reading: Reading) -> Self {
        let dtype = spec.b.dtype();
        let kind = kind(dtype).expect("a supported type");
        let height = height((spec.m as usize).max(1));
        macro_rules! sums {
            ($kind:ident) => {
                match (height, reading) {
                    (0, Reading::Beside) => avx2::dots::<$kind, 1, { BREADTHS[0] }> as Sums,
                    (0, Reading::InTurn) => avx2::dots::<$kind, 1, 1>,
                    (1, _) => avx2::dots::<$kind, { HEIGHTS[1] }, { BREADTHS[1] }>,
                    _ => avx2::dots::<$kind, { HEIGHTS[2] }, { BREADTHS[2] }>,
                }
            };
        }
        let sums = match kind {
            Kind::F32 => sums!(F32),
            Kind::Bf16 => sums!(Bf16),
            Kind::F16 => sums!(F16),
            Kind::I8 => sums!(I8),
            Kind::U8 => sums!(U8),
            Kind::E4m3 => sums!(E4m3),
            Kind::E5m2 => sums!(E5m2),
            Kind::Digits => sums!(Digits),
            Kind::Table => sums!(Table),
        };
        let varies = varies(&spec.b, spec.k);
        let divides = |share: &usize| !varies || (spec.b.format.block().1 as usize).is_multiple_of(*share);
        let share = [STEP, STEP / 2].into_iter().find(divides).unwrap_or(STEP / 4);
        Self { spec: *spec, reading, kind, values: values(dtype), sums, varies, share, kind_of_end: PhantomData }
    }

    fn height(&self) -> usize {
        height((self.spec.m as usize).max(1))
    }

    fn steps(&self) -> usize {
        (self.spec.k as usize).div_ceil(STEP)
    }

    /// Columns that meet the rows at once.
    fn breadth(&self) -> usize {
        if self.height() == 0 && self.reading == Reading::InTurn { 1 } else { BREADTHS[self.height()] }
    }
}

/// What four bits of `dtype` stand for; of integers, what makes them unsigned.
fn values(dtype: DType) -> Values {
    match dtype {
        DType::Nf4 | DType::E2m1 => columns::sixteen(dtype),
        _ => [if dtype == DType::I4 { 8.0 } else { 0.0 }; 16],
    }
}

impl<E: Tail> Dots for Numbers<E> {
    type End = E;

    fn a_bytes(&self) -> usize {
        self.steps() * HEIGHTS[self.height()] * STEP * size_of::<f32>()
    }

    fn work_bytes(&self) -> usize {
        2 * BROAD * size_of::<List>()
    }

    fn prepare(&self, product: &Product<'_>, item: Item, a: &mut [u8]) {
        let (rows, k) = (HEIGHTS[self.height()], self.spec.k as usize);
        let a = Disjoint::of(&mut numbers_mut::<f32>(a)[..self.steps() * rows * STEP]);
        threads::for_each(self.steps(), |step| {
            // SAFETY: each step once.
            let out = unsafe { a.part(step * rows * STEP..(step + 1) * rows * STEP) };
            let inner = step * STEP..((step + 1) * STEP).min(k);
            for (row, out) in out.chunks_exact_mut(STEP).enumerate() {
                let mut line = [0.0; STEP];
                if row < item.rows {
                    let line = &mut line[..inner.len()];
                    product.a.row(item.row_batch, item.row + row, inner.clone(), Scaling::Applied, line);
                }
                for (i, out) in out.iter_mut().enumerate() {
                    *out = line[self.kind.element(i / 8, i % 8)];
                }
            }
        });
    }

    fn sums(&self, task: Task<'_, '_>, sums: &mut [E], ld: usize, work: &mut [u8]) {
        let Task { product, item, columns, a } = task;
        let (b, k) = (&product.b, self.spec.k as usize);
        let (rows, breadth) = (HEIGHTS[self.height()], self.breadth());
        let a = &columns::numbers::<f32>(a)[..self.steps() * rows * STEP];
        let near = (NEAR / (rows * STEP * size_of::<f32>())).min(MOST_STEPS);
        let (scales, rest) = columns::take::<f32>(work, BROAD * LIST);
        let (zeros, _) = columns::take::<f32>(rest, BROAD * LIST);
        let (scales, zeros): (&mut [List], &mut [List]) = (scales.as_chunks_mut().0, zeros.as_chunks_mut().0);
        for sums in sums.chunks_mut(ld).take(item.rows) {
            sums[..columns.len()].fill(E::ZERO);
        }
        let (has_zero, always) = (b.matrix.format.has_zero(), self.kind.is_four_bits());
        scales.as_flattened_mut().fill(1.0);
        zeros.as_flattened_mut().fill(0.0);
        for first in (0..self.steps()).step_by(near) {
            let steps = first..(first + near).min(self.steps());
            let inner = steps.start * STEP..(steps.end * STEP).min(k);
            let a = &a[steps.start * rows * STEP..steps.end * rows * STEP];
            let lists = Lists::new(b, item.b, inner.start, self.share);
            let shares = steps.len() * STEP / self.share;
            let codes = Codes::of(b, item.b, inner.clone());
            let ahead = columns::ahead(self.reading, breadth, codes.step(), inner.len() == k);
            for o in columns.clone().step_by(breadth) {
                // Past the last column, that one again.
                let place = |c: usize| (o + c).min(columns.end - 1);
                let mut some: [&[u8]; BROAD] = [&[]; BROAD];
                for (c, some) in some[..breadth].iter_mut().enumerate() {
                    *some = codes.column(place(c));
                    if self.varies {
                        lists.scales_anywhere(place(c), &mut scales[c][..shares]);
                    }
                    if has_zero {
                        lists.zeros_anywhere(place(c), &mut zeros[c][..shares]);
                    }
                }
                let some = Columns {
                    codes: some,
                    scales: if self.varies || always { scales } else { &[] },
                    zeros: if has_zero || always { zeros } else { &[] },
                    ahead,
                };
                let mut of_rows = [0.0; SUMS];
                // SAFETY: `supports` asked for the features.
                unsafe { (self.sums)(&self.values, self.share, a, &some, &mut of_rows) };
                let places = o - columns.start..columns.len().min(o - columns.start + breadth);
                columns::add(sums, ld, places, &of_rows, (rows, item.rows));
            }
        }
        columns::scale(b, item, columns, self.varies, |_| E::ONE, sums, ld);
    }
}
