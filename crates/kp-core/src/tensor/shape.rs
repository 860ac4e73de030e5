//! The same numbers seen differently; nothing is moved unless said.

use super::{
    Tensor,
    run::{Output, refuse, tight},
    view::{Extent, shape_text},
};
use kp_hal::Result;
use std::ops::Range;

impl Tensor {
    /// The last two dimensions exchanged; a vector or a single number is its own transpose.
    #[must_use]
    pub fn t(&self) -> Self {
        let rank = self.rank();
        if rank < 2 {
            return self.clone();
        }
        let flipped = self.format.scale_dtype().is_some() && !self.flipped;
        Self { flipped, ..self.viewed(self.extent.swapped(rank - 2, rank - 1)) }
    }

    /// Dimensions `a` and `b` exchanged.
    ///
    /// # Errors
    /// `BadOperands` if there is no such dimension, or if the tensor has scales: those only [`Tensor::t`] turns.
    pub fn swap_dims(&self, a: usize, b: usize) -> Result<Self> {
        self.plain("swap_dims", "x")?;
        if a.max(b) >= self.rank() {
            return Err(refuse("swap_dims", [("x", self.describe())], format!("it has no dimension {}", a.max(b))));
        }
        Ok(self.viewed(self.extent.swapped(a, b)))
    }

    /// Rows `range`, counted from 0, of every matrix: a part of the dimension before the last. It shares the buffer, and keeps the
    /// distances between rows. Rows of 4-bit codes begin at whole bytes, so any may be taken.
    ///
    /// # Errors
    /// As [`Tensor::slice`]; `BadOperands` also if there are fewer than two dimensions.
    pub fn slice_rows(&self, range: Range<usize>) -> Result<Self> {
        self.slice_from_end(2, range)
    }

    /// Columns `range`: a part of the last dimension.
    ///
    /// # Errors
    /// As [`Tensor::slice`].
    pub fn slice_cols(&self, range: Range<usize>) -> Result<Self> {
        self.slice_from_end(1, range)
    }

    fn slice_from_end(&self, back: usize, range: Range<usize>) -> Result<Self> {
        let dim = self.rank().checked_sub(back);
        let few = || refuse("slice", [("x", self.describe())], format!("it needs at least {back} dimensions"));
        self.slice(dim.ok_or_else(few)?, range)
    }

    /// The part at `range` of dimension `dim`, counted from 0; it shares the buffer.
    ///
    /// # Errors
    /// `BadOperands` if the range leaves the tensor or there is no such dimension, if the tensor has scales, or if
    /// 4-bit codes would start within a byte.
    pub fn slice(&self, dim: usize, range: Range<usize>) -> Result<Self> {
        self.plain("slice", "x")?;
        let is = || [("x", self.describe())];
        let Some(&size) = self.shape().get(dim) else {
            return Err(refuse("slice", is(), format!("it has no dimension {dim}")));
        };
        if range.start > range.end || range.end > size {
            return Err(refuse("slice", is(), format!("dimension {dim} has no {range:?}")));
        }
        let extent = self.extent.sliced(dim, range);
        if !extent.start.is_multiple_of(self.dtype().per_byte() as usize) {
            return Err(refuse("slice", is(), "4-bit codes can only be cut at whole bytes"));
        }
        Ok(self.viewed(extent))
    }

    /// The same numbers, in the same order, as `shape`. Copies if no view is that.
    ///
    /// # Errors
    /// `BadOperands` if the counts differ, or if the tensor has scales and its rows would change.
    pub fn reshape(&self, shape: &[usize]) -> Result<Self> {
        let wanted = tight(shape, self.dtype())?;
        let is = || [("x", self.describe()), ("the shape", shape_text(shape))];
        if wanted.count() != self.len() {
            let rule = format!("{} numbers do not fit {}", self.len(), wanted.count());
            return Err(refuse("reshape", is(), rule));
        }
        if self.format.scale_dtype().is_some() {
            if self.flipped || self.extent.rows_and_cols() != wanted.rows_and_cols() {
                return Err(refuse("reshape", is(), "rows with scales must stay as long as they were quantized"));
            }
            return Ok(self.viewed(wanted));
        }
        match self.extent.reshaped(shape, self.dtype()) {
            Some(extent) => Ok(self.viewed(extent)),
            None => {
                let copy = self.contiguous()?;
                let extent = copy.extent.reshaped(shape, self.dtype());
                let extent = extent.ok_or_else(|| refuse("reshape", is(), "rows of 4-bit codes must stay as long"))?;
                Ok(copy.viewed(extent))
            }
        }
    }

    /// The same numbers one behind the other, copied only if they are not; what has scales is never copied.
    ///
    /// # Errors
    /// `OutOfMemory`, or `Unsupported` if no kernel copies this.
    pub fn contiguous(&self) -> Result<Self> {
        if self.format.scale_dtype().is_some() || self.extent.is_tight(self.dtype()) {
            return Ok(self.clone());
        }
        self.copied(self.dtype())
    }

    /// Several tensors one behind the other along the first dimension; the others must be the same. A copy.
    ///
    /// # Errors
    /// `BadOperands` if there is none, if shapes, types or engines do not go together, or if one has scales; `OutOfMemory`.
    pub fn cat(parts: &[&Tensor]) -> Result<Self> {
        const OP: &str = "cat";
        let Some(first) = parts.first() else {
            return Err(refuse(OP, [("the parts", "none".into())], "there must be at least one"));
        };
        let mut rows = 0;
        for part in parts {
            part.plain(OP, "a part")?;
            part.of_engine(OP, "a part", &first.engine)?;
            if part.rank() == 0 || part.shape()[1..] != first.shape()[1..] || part.dtype() != first.dtype() {
                let is = [("the first", first.describe()), ("another", part.describe())];
                return Err(refuse(OP, is, "they may differ in the first dimension only"));
            }
            rows += part.shape()[0];
        }
        let (last, before) = parts.split_last().expect("there is a first");
        if let Some(part) = before.iter().find(|part| !part.len().is_multiple_of(part.dtype().per_byte() as usize)) {
            let is = [("a part", part.describe()), ("the last", last.describe())];
            return Err(refuse(OP, is, "4-bit codes of all but the last must fill their bytes"));
        }
        let shape: Vec<usize> = std::iter::once(rows).chain(first.shape()[1..].iter().copied()).collect();
        let mut out = Output::new(&first.engine, &shape, first.dtype())?;
        let mut at = 0;
        for part in parts {
            let part = part.contiguous()?;
            let from = part.codes();
            let end = at + from.bytes();
            first.engine.with_queue(|queue| queue.copy(out.data.codes.slice_mut().at(at..end), from))?;
            at = end;
        }
        Ok(out.finish(&first.engine, first.how))
    }

    /// The same buffers seen through `extent`.
    pub(super) fn viewed(&self, extent: Extent) -> Self {
        Self { extent, ..self.clone() }
    }
}
