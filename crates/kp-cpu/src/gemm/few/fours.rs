//! A few rows of bytes, four elements of k of each row side by side, for loops that multiply as many of each column at once.

use super::{
    bytes,
    columns::{self, HEIGHTS, MOST},
    dots::STEP,
};
use crate::{
    gemm::product::{Item, Product},
    kernel::Disjoint,
    memory::numbers_mut,
    threads,
};
use kp_hal::{DType, op::GemmSpec};

/// Elements of k that are multiplied at once.
pub(crate) const FOUR: usize = 4;

/// Rows of a product.
#[derive(Clone, Copy)]
pub(crate) struct Fours {
    k: usize,
    /// Rows that loops are compiled for.
    pub(crate) rows: usize,
    /// Whether bytes have signs.
    pub(crate) signed: bool,
}

impl Fours {
    pub(crate) fn of(spec: &GemmSpec) -> Self {
        let rows = HEIGHTS[columns::height((spec.m as usize).max(1))];
        Self { k: spec.k as usize, rows, signed: spec.a.dtype() != DType::U8 }
    }

    /// Steps of k.
    fn steps(&self) -> usize {
        self.k.div_ceil(STEP)
    }

    /// Numbers made ready: codes of all rows, four at a time, and what each step of a row adds up to.
    fn lens(&self) -> [usize; 2] {
        [self.steps() * STEP / FOUR * self.rows, self.steps() * self.rows]
    }

    /// Bytes that they take.
    pub(crate) fn bytes(&self) -> usize {
        self.lens().iter().map(|len| (len * size_of::<u32>()).next_multiple_of(64)).sum()
    }

    /// Makes the rows of an item ready.
    pub(crate) fn prepare(&self, product: &Product<'_>, item: Item, a: &mut [u8]) {
        let (rows, [codes, sums]) = (self.rows, self.lens());
        let (codes, rest) = columns::take::<u32>(a, codes);
        let (codes, sums) = (Disjoint::of(codes), Disjoint::of(&mut numbers_mut::<i32>(rest)[..sums]));
        threads::for_each(self.steps(), |step| {
            let part = |each: usize| step * each..(step + 1) * each;
            // SAFETY: each step once.
            let (codes, sums) = unsafe { (codes.part(part(STEP / FOUR * rows)), sums.part(part(rows))) };
            let inner = step * STEP..((step + 1) * STEP).min(self.k);
            for (row, sum) in sums.iter_mut().enumerate() {
                let line = bytes::codes(product, item, row, inner.clone());
                for (fours, out) in line.as_chunks::<FOUR>().0.iter().zip(codes[row..].iter_mut().step_by(rows)) {
                    *out = u32::from_le_bytes(fours.map(|code| code as u8));
                }
                *sum = match self.signed {
                    true => line.into_iter().map(i32::from).sum(),
                    false => line.into_iter().map(|code| i32::from(code as u8)).sum(),
                };
            }
        });
    }

    /// The codes of what was made ready, of all rows for four elements after the other, and of each row the sum of its codes, which may wrap.
    pub(crate) fn ready<'a>(&self, a: &'a [u8]) -> (&'a [u32], [i32; MOST]) {
        let [codes, of_steps] = self.lens();
        let (a, rest) = a.split_at((codes * size_of::<u32>()).next_multiple_of(64));
        let mut sums = [0_i32; MOST];
        for of_rows in columns::numbers::<i32>(rest)[..of_steps].chunks_exact(self.rows) {
            for (sum, &more) in sums.iter_mut().zip(of_rows) {
                *sum = sum.wrapping_add(more);
            }
        }
        (&columns::numbers::<u32>(a)[..codes], sums)
    }
}
