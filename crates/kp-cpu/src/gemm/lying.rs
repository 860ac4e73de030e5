//! Operands that are numbers where they lie, so that they need not be unpacked.

use super::side::Side;
use crate::{
    memory::{self, Number},
    numbers::Real,
};
use kp_hal::op::{Order, Scheme};
use std::ops::Range;

impl Side<'_> {
    /// The numbers of `batch` where they lie, with the distance between outer rows, if outer rows are runs of `R`.
    pub(crate) fn numbers_in_rows<R: Real + Number>(&self, batch: usize) -> Option<(&[R], usize)> {
        let lies = self.inner_is_contiguous() && self.meta.is_none() && self.inner > 0;
        Some((self.numbers(batch).filter(|_| lies)?, self.matrix.ld as usize))
    }

    /// The numbers of `batch` where they lie, if they are `R` in panels of `width` columns that no kernel repacks.
    pub(crate) fn numbers_in_panels<R: Real + Number>(&self, batch: usize, width: usize) -> Option<&[R]> {
        let order = Order::Panel { width: u16::try_from(width).ok()?, depth: 1 };
        self.numbers(batch).filter(|_| self.matrix.order == order)
    }

    /// The numbers of outer rows `outer` of `batch`, from inner element `inner` on, where they lie, with the distance between inner elements, if
    /// those of outer rows are side by side.
    pub(crate) fn numbers_across(&self, batch: usize, outer: &Range<usize>, inner: usize) -> Option<(&[f32], usize)> {
        let ld = match self.matrix.order {
            Order::Panel { width, .. } => width.into(),
            _ => self.matrix.ld as usize,
        };
        let numbers = self.numbers(batch).filter(|_| self.lie_across(outer) && self.meta.is_none())?;
        let first = self.place(batch, outer.start, inner) - self.place(batch, 0, 0);
        Some((&numbers[first..], ld))
    }

    fn numbers<R: Real + Number>(&self, batch: usize) -> Option<&[R]> {
        if self.matrix.dtype() != R::DTYPE || self.matrix.format.scheme != Scheme::None || self.codes.is_empty() {
            return None;
        }
        let first = self.place(batch, 0, 0) * size_of::<R>();
        memory::as_numbers(&self.codes[first..]).filter(|_| cfg!(target_endian = "little"))
    }
}
