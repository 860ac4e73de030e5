//! What products of bytes with columns of four bits have in common: A's rows as bytes, and what codes of B become.

use super::{
    byte_dots::Lift,
    columns::{Codes, sixteen},
    dots::{BROAD_SHARE, MOST_SHIFT, SHARE, STEP},
    lists::Lists,
};
use crate::{
    gemm::{
        product::{Item, Product},
        rounded::{RUN, is_rounded, round_anywhere},
        side::{Scaling, varies},
        vnni_few_rows::{self, a_varies, has_features, suits_but_for_b, unit},
    },
    numbers::{self, Real},
    simd::has_avx512,
};
use kp_hal::{
    Caps, DType, Unsupported,
    op::{GemmProblem, GemmSpec, Order},
};
use std::ops::Range;

/// Whether `caps` and `p` suit such products with AVX-512.
///
/// # Errors
/// The first part that does not.
pub(crate) fn suits(caps: &Caps, p: &GemmProblem) -> Result<(), Unsupported> {
    if !caps.has("avx512vbmi") {
        return Err(Unsupported::Feature { need: "avx512vbmi" });
    }
    suits_anywhere(p)?;
    has_features(caps)
}

/// Whether `p` suits such products: with scales that change along k, of A or of B.
///
/// # Errors
/// The first part that does not.
pub(crate) fn suits_anywhere(p: &GemmProblem) -> Result<(), Unsupported> {
    if p.b.order != Order::Col {
        return Err(Unsupported::Layout { operand: "b", got: p.b.order.to_string() });
    }
    let is_known = match p.b.dtype() {
        DType::I4 | DType::U4 | DType::E2m1 => true,
        // Its values become fixed-point numbers, which only this permits.
        DType::Nf4 => is_rounded(p),
        _ => false,
    };
    if !is_known {
        return Err(Unsupported::DType { operand: "b", got: p.b.dtype() });
    }
    if !a_varies(p) && !varies(&p.b, p.k) {
        return Err(Unsupported::Scheme { operand: "b", got: p.b.format.to_string() });
    }
    suits_but_for_b(p)
}

/// How codes of B become unsigned bytes, by which offset, and what a step of these is worth.
fn lift(dtype: DType) -> (Lift, i32, f32) {
    if dtype != DType::Nf4 {
        return vnni_few_rows::lift(dtype).expect("a supported type");
    }
    // Fixed-point numbers, so that −1, 0 and 1 are exact and no other is off by more than 2⁻¹² of itself: in 256ths of what the
    // offset counts.
    const ONE: f32 = (1 << 14) as f32;
    let fixed = sixteen(dtype).map(|value| (value * ONE + ONE).round() as u16);
    let [table, fine] = [8, 0].map(|shift| fixed.map(|value| (value >> shift) as u8));
    (Lift { flip: 0, table, fine }, 64, 1.0 / ONE)
}

/// The codes of elements `inner` of row `row` of A, which are whole numbers, zeros past the end of both; of unsigned bytes those with the same bits.
pub(crate) fn codes(product: &Product<'_>, item: Item, row: usize, inner: Range<usize>) -> [i8; STEP] {
    let (mut line, a) = ([0; STEP], &product.a.matrix);
    if row >= item.rows {
        return line;
    }
    if a.order == Order::Row && a.dtype() == DType::I8 {
        let codes = Codes::of(&product.a, item.row_batch, inner).column(item.row + row);
        line.iter_mut().zip(codes).for_each(|(out, &code)| *out = code as i8);
        return line;
    }
    let mut numbers = [0.0_f32; STEP];
    let some = &mut numbers[..inner.len()];
    product.a.row(item.row_batch, item.row + row, inner, Scaling::Left, some);
    if a.dtype() == DType::U8 {
        return numbers.map(|number| number as u8 as i8);
    }
    let whole_steps = 1.0 / unit(a.format);
    numbers.map(|number| (number * whole_steps) as i8)
}

/// A step of a row: its codes, and a scale for each share.
pub(crate) type Step = ([i8; STEP], [f32; STEP / SHARE]);

/// How both sides become bytes.
#[derive(Clone, Copy)]
pub(crate) struct Bytes {
    spec: GemmSpec,
    pub(crate) lift: Lift,
    /// What codes of B have too much.
    pub(crate) offset: i32,
    /// What a step of them is worth.
    unit: f32,
    /// Elements whose sum is scaled at once.
    pub(crate) share: usize,
}

impl Bytes {
    pub(crate) fn of(spec: &GemmSpec) -> Self {
        let (mut lift, mut offset, unit) = lift(spec.b.dtype());
        // Turning a bit around is as good as a look-up, where it suffices.
        lift.flip = if spec.b.dtype() == DType::I4 { 8 } else { 0 };
        if spec.b.format.has_zero() {
            offset = MOST_SHIFT.into();
        }
        let is_broad = |varies: bool, block: u32| !varies || (block as usize).is_multiple_of(BROAD_SHARE);
        let of_a = is_broad(varies(&spec.a, spec.k), spec.a.format.block().1);
        let is_broad = of_a && is_broad(varies(&spec.b, spec.k), spec.b.format.block().1);
        Self { spec: *spec, lift, offset, unit, share: if is_broad { BROAD_SHARE } else { SHARE } }
    }

    /// Makes what [`Lift::table`] and [`Lift::fine`] hold together words with signs, which need no offset.
    pub(crate) fn sign(&mut self) {
        self.lift.table = self.lift.table.map(|upper| upper.wrapping_sub(self.offset as u8));
        self.offset = 0;
    }

    pub(crate) fn steps(&self) -> usize {
        (self.spec.k as usize).div_ceil(STEP)
    }

    /// Step `step` of row `row`; zeros past the end.
    pub(crate) fn step(&self, product: &Product<'_>, item: Item, row: usize, step: usize) -> Step {
        let (mut codes, mut scales, mut numbers) = ([0; STEP], [1.0; STEP / SHARE], [0.0_f32; STEP]);
        let inner: Range<usize> = step * STEP..((step + 1) * STEP).min(self.spec.k as usize);
        if is_rounded(&self.spec) {
            let some = &mut numbers[..inner.len()];
            product.a.row(item.row_batch, item.row + row, inner, Scaling::Left, some);
            let mut of_runs = [0.0; STEP / RUN];
            round_anywhere(numbers.as_chunks().0, codes.as_chunks_mut().0, &mut of_runs);
            scales = std::array::from_fn(|i| of_runs[i * self.share / RUN % of_runs.len()]);
        } else {
            codes = self::codes(product, item, row, inner.clone());
            if varies(&self.spec.a, self.spec.k) {
                let lists = Lists::new(&product.a, item.row_batch, inner.start, self.share);
                lists.scales(item.row + row, &mut scales[..STEP / self.share]);
            }
        }
        (codes, scales)
    }

    /// What sums of row `row` of the item are worth, besides scales that change.
    pub(crate) fn factor<E: Real>(&self, product: &Product<'_>, item: Item, row: usize) -> E {
        let mut factor = [E::ONE];
        if !a_varies(&self.spec) {
            product.a.scales_of(item.row_batch, item.row + row..item.row + row + 1, 0, &mut factor);
        } else if !product.a.global.is_empty() {
            factor = [numbers::get(DType::F32, product.a.global, 0)];
        }
        factor[0] * E::from_f32(unit(self.spec.a.format) * self.unit)
    }
}

/// [`fold`] on any processor.
pub(crate) fn fold_anywhere(row: &[f32], has: bool, scales: &mut [f32]) {
    // SAFETY: it was just asked for.
    if has_avx512() { unsafe { fold(row, has, scales) } } else { fold_in(row, has, scales) }
}

/// Multiplies scales of a column, if it `has` some, by those of a row, if there are such.
#[target_feature(enable = "avx512f")]
fn fold(row: &[f32], has: bool, scales: &mut [f32]) {
    fold_in(row, has, scales);
}

#[inline(always)]
fn fold_in(row: &[f32], has: bool, scales: &mut [f32]) {
    if has {
        scales.iter_mut().zip(row).for_each(|(scale, by)| *scale *= by);
    } else if !row.is_empty() {
        scales.copy_from_slice(row);
    }
}
