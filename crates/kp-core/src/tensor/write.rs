//! Numbers put in place of others, as a cache of keys and values grows.

use super::{
    Data, Tensor,
    run::{Output, refuse},
    view::shape_text,
};
use kp_hal::{
    Queue, Result,
    op::{Format, ScaleLayout},
};
use std::sync::Arc;

const OP: &str = "write";

impl Tensor {
    /// Puts `part` in place of the numbers from index `at` on.
    ///
    /// `at` names leading dimensions. In the last of those, `part`'s first dimension begins there; the dimensions behind it
    /// are all `part`'s, in full. So a pool of pages, `pages`×`tokens of a page`×`heads`×`dim`, gets three tokens at a price
    /// that does not depend on the pool:
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = kp_core::Engine::builder().only(kp_null::BACKEND).memory_only().open()?;
    /// let mut keys = engine.zeros(&[64, 16, 8, 128], kp_hal::DType::F32)?;
    /// let three = engine.zeros(&[3, 8, 128], kp_hal::DType::F32)?;
    /// let (page, token) = (7, 2);
    /// keys.write(&[page, token], &three)?;
    /// # Ok(())
    /// # }
    /// ```
    /// Clones and views stay as they are: while there are any, this tensor gets a copy of its own first. Of formats with
    /// scales, those are written whose scales belong to one row each.
    ///
    /// # Errors
    /// `BadOperands` if the part does not fit there, has another format or is a transpose with scales, if the format has
    /// scales of more than a row, or if 4-bit codes would be cut within a byte; `OutOfMemory`.
    pub fn write(&mut self, at: &[usize], part: &Tensor) -> Result<()> {
        part.of_engine(OP, "the part", &self.engine)?;
        self.check_place(at, part)?;
        if part.is_empty() {
            return Ok(());
        }
        let part = part.contiguous()?;
        if !self.extent.is_tight(self.dtype()) {
            *self = self.contiguous()?;
        }
        if Arc::get_mut(&mut self.data).is_none() {
            *self = self.duplicate()?;
        }
        let before: usize = at.iter().zip(self.strides()).map(|(at, stride)| at * stride).sum();
        let codes_at = self.dtype().bytes((self.extent.start + before) as u64);
        let (rows, cols) = self.extent.rows_and_cols();
        let row = before / cols.next_multiple_of(self.dtype().per_byte() as usize);
        let data = Arc::get_mut(&mut self.data).expect("it was made sure that nobody shares it");
        self.engine.with_queue(|queue| data.put(queue, &part, codes_at, (row, rows)))?;
        self.error_bound = None;
        Ok(())
    }

    fn check_place(&self, at: &[usize], part: &Tensor) -> Result<()> {
        let is = || [("x", self.describe()), ("the part", part.describe()), ("the index", shape_text(at))];
        let wrong = |rule: &'static str| Err(refuse(OP, is(), rule));
        let (shape, count) = (self.shape(), at.len());
        let (Some((&first, outer)), Some((&len, rest))) = (at.split_last(), part.shape().split_first()) else {
            return wrong("both the index and the part need at least one dimension");
        };
        if part.format != self.format || self.flipped || part.flipped {
            return wrong("both must have one format, and none be a transpose with scales");
        }
        if count > shape.len() || rest != &shape[count..] {
            return wrong("the part must have a dimension to put there, and those of x that the index does not name");
        }
        let inside = outer.iter().zip(shape).all(|(at, size)| at < size);
        if !inside || first.checked_add(len).is_none_or(|end| end > shape[count - 1]) {
            return wrong("the part must end within x");
        }
        if self.format.scale_dtype().is_none() {
            let per_byte = self.dtype().per_byte() as usize;
            let whole = first.is_multiple_of(per_byte) && len.is_multiple_of(per_byte);
            return if count < shape.len() || whole {
                Ok(())
            } else {
                wrong("4-bit codes can only be cut at whole bytes")
            };
        }
        match count < shape.len() && scales_are_of_rows(self.format) {
            true => Ok(()),
            false => wrong("what has scales is written by whole rows, whose scales belong to no other"),
        }
    }

    /// The same numbers in buffers of their own.
    fn duplicate(&self) -> Result<Self> {
        let mut out = Output::new(&self.engine, self.shape(), self.format)?;
        self.engine.with_queue(|queue| out.data.put(queue, self, 0, (0, 1)))?;
        Ok(out.finish(&self.engine, self.how))
    }
}

/// Whether each row has scales of its own, one row's behind the other's.
fn scales_are_of_rows(format: Format) -> bool {
    format.block().0 == 1 && format.scales == ScaleLayout::Inner && !format.has_global()
}

impl Data {
    /// Copies what a tight tensor has: its codes to byte `codes_at`, its scales to where those of row `row` of `rows` are.
    fn put(&mut self, queue: &mut dyn Queue, part: &Tensor, codes_at: u64, (row, rows): (usize, usize)) -> Result<()> {
        let codes = part.codes();
        queue.copy(self.codes.slice_mut().at(codes_at..codes_at + codes.bytes()), codes)?;
        for (to, from) in [(&mut self.scale, part.scale()), (&mut self.zero, part.zero())] {
            if let (Some(to), Some(from)) = (to, from) {
                let at = to.bytes() / rows as u64 * row as u64;
                queue.copy(to.slice_mut().at(at..at + from.bytes()), from)?;
            }
        }
        Ok(())
    }
}
