//! Rows of A as numbers side by side, for products with sets of columns.

use super::{columns, dots::STEP, sets::Rows};
use crate::{
    gemm::{
        product::{Item, Product},
        side::Scaling,
    },
    kernel::Disjoint,
    memory::numbers_mut,
    threads,
};
use std::ops::Range;

/// Groups of rows, of which a number of each lies beside those of the others, element by element of k.
#[derive(Clone, Copy)]
pub(crate) struct NumberRows {
    pub(crate) rows: Rows,
    k: usize,
}

impl NumberRows {
    pub(crate) fn new(rows: Rows, k: usize) -> Self {
        Self { rows, k }
    }

    fn steps(&self) -> usize {
        self.k.div_ceil(STEP)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.rows.all() * self.steps() * STEP * size_of::<f32>()
    }

    /// Makes the rows of `item` ready: zeros past the last row and the last element.
    pub(crate) fn prepare(&self, product: &Product<'_>, item: Item, a: &mut [u8]) {
        let Rows { height, groups } = self.rows;
        let steps = self.steps();
        let a = Disjoint::of(&mut numbers_mut::<f32>(a)[..groups * height * steps * STEP]);
        threads::for_each(groups * steps, |i| {
            // SAFETY: each step of each group once.
            let out = unsafe { a.part(i * height * STEP..(i + 1) * height * STEP) };
            let (group, step) = (i / steps, i % steps);
            let inner = step * STEP..((step + 1) * STEP).min(self.k);
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

    /// Steps `steps` of group `group`.
    pub(crate) fn part<'a>(&self, a: &'a [u8], group: usize, steps: Range<usize>) -> &'a [f32] {
        let step = self.rows.height * STEP;
        &columns::numbers::<f32>(a)[(group * self.steps() + steps.start) * step..][..steps.len() * step]
    }

    /// The sum of row `row` over the `len` elements from `first` on.
    pub(crate) fn sum(&self, a: &[u8], row: usize, first: usize, len: usize) -> f32 {
        let Rows { height, .. } = self.rows;
        let first = row / height * height * self.steps() * STEP + first * height + row % height;
        columns::numbers::<f32>(a)[first..].iter().step_by(height).take(len).sum()
    }
}
