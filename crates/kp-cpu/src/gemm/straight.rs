//! The end of sums where all that follows lies in rows of the numbers that they are: one pass over them, and two more for an
//! activation.
//!
//! ```text
//!   sums (+ bias ─ act) ─▶ + bias + residual ─▶ D
//! ```

use super::{
    finish::{By, Finish, Step},
    product::{Product, Sums},
};
use crate::{
    act::{self, Tail},
    memory::as_numbers,
    numbers::{self, Real},
    simd::{Work, run_widest},
};
use kp_hal::{
    DType,
    op::{Act, Addend, Gate, Order},
};
use std::ops::Range;

impl<E: Tail> Finish<'_, '_, E> {
    /// The item's rows where they are written, and the distance between them, if that is in rows of numbers of `E`.
    pub(super) fn rows_as_numbers(&self) -> Option<(*mut E, usize)> {
        let spec = self.product.spec;
        if let Some(stage) = &self.stage {
            let ld = spec.d_cols() as usize;
            let rows = self.item.row * ld..(self.item.row + self.item.rows) * ld;
            return Some((stage.pointer(rows), ld));
        }
        self.rows_of(E::DTYPE)
    }

    /// The item's rows of D, not staged, and the distance between them, if those are rows of numbers of `dtype`, which `N` is.
    pub(super) fn rows_of<N>(&self, dtype: DType) -> Option<(*mut N, usize)> {
        debug_assert_eq!(dtype.bits() as usize, 8 * size_of::<N>());
        let d = &self.product.spec.d;
        if d.order != Order::Row || d.dtype() != dtype || cfg!(not(target_endian = "little")) {
            return None;
        }
        let first = self.d_place(0, 0) * size_of::<N>();
        let rows = self.product.d.pointer(first..self.product.d.bytes()).cast::<N>();
        rows.is_aligned().then_some((rows, d.ld as usize))
    }

    /// What is added to sums, if that and where they go lie as numbers of `E` in rows, and nothing else happens to them but an
    /// activation.
    pub(super) fn straight(&self) -> Option<Straight<'_, E>> {
        let Product { spec, alpha, beta, .. } = *self.product;
        let adds_c = beta != 0.0 && spec.c != Addend::None;
        let gates = spec.epilogue.gate != Gate::None;
        if alpha != 1.0 || adds_c || gates || self.summing.sums == Sums::Whole || spec.d.order != Order::Row {
            return None;
        }
        let first = if self.item.own_bias { self.item.b * spec.n as usize } else { 0 };
        let bias = match spec.epilogue.bias {
            Some(dtype) => Some(numbers::lying(dtype, self.product.bias, first, spec.n as usize)?),
            None => None,
        };
        let residual = match spec.epilogue.residual {
            Some(dtype) if dtype == E::DTYPE => {
                let rows = as_numbers(self.product.residual)?;
                Some((rows.get(self.d_place(0, 0)..).unwrap_or(&[]), spec.d.ld as usize))
            }
            Some(_) => return None,
            None => None,
        };
        Some(Straight { bias, residual, d: self.rows_as_numbers()? })
    }
}

/// What is added to sums, and where they go.
pub(super) struct Straight<'f, E> {
    bias: Option<&'f [E]>,
    /// From the item's first row on, and the distance between rows; both of D too.
    residual: Option<(&'f [E], usize)>,
    d: (*mut E, usize),
}

impl<E: Tail> Straight<'_, E> {
    /// Finishes rows `rows`, which are finished together, and columns `cols`, whose sums lie in `x`, a row every `ld`.
    ///
    /// # Safety
    /// They are the item's, and no other thread has the same elements of D.
    pub(super) unsafe fn rows(&self, rows: Range<usize>, cols: Range<usize>, act: Act, x: &mut [E], ld: usize) {
        let x = &mut x[..rows.len() * ld];
        let mut bias = self.bias.map(|bias| &bias[cols.clone()]);
        if act != Act::Identity {
            if let Some(bias) = bias.take() {
                run_widest(x.len(), Step { x, ld, by: By::Row(bias) });
            }
            act::each(act, x);
        }
        let at = rows.start * self.d.1 + cols.start;
        let residual = self.residual.map(|(residual, ld)| (&residual[rows.start * ld + cols.start..], ld));
        let out = |r: usize| {
            // SAFETY: this thread's elements of D, by the caller's promise.
            unsafe { std::slice::from_raw_parts_mut(self.d.0.add(at + r * self.d.1), cols.len()) }
        };
        run_widest(cols.len(), Out { x, ld, bias, residual, out });
    }
}

/// Rows of numbers stored, with what is added to them.
struct Out<'w, E, F> {
    x: &'w [E],
    ld: usize,
    bias: Option<&'w [E]>,
    /// And the distance between its rows.
    residual: Option<(&'w [E], usize)>,
    /// Where a row goes.
    out: F,
}

impl<'w, E: Real, F: FnMut(usize) -> &'w mut [E]> Work for Out<'w, E, F> {
    #[inline(always)]
    fn run(self) {
        let Self { x, ld, bias, residual, mut out } = self;
        for (r, x) in x.chunks(ld).enumerate() {
            let out = out(r);
            let each = out.iter_mut().zip(x);
            match (bias, residual.map(|(residual, ld)| &residual[r * ld..])) {
                (None, None) => each.for_each(|(out, &x)| *out = x),
                (Some(bias), None) => each.zip(bias).for_each(|((out, &x), &b)| *out = x + b),
                (None, Some(more)) => each.zip(more).for_each(|((out, &x), &r)| *out = x + r),
                (Some(bias), Some(more)) => {
                    each.zip(bias).zip(more).for_each(|(((out, &x), &b), &r)| *out = (x + b) + r);
                }
            }
        }
    }
}
