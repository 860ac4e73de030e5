//! Padding to a bucket and back, around any operation.

use super::{
    How, Tensor,
    run::{Output, refuse},
};
use crate::buckets::Buckets;
use kp_hal::Result;

impl Tensor {
    /// Runs `op` on this tensor with its first dimension padded to a bucket, and cuts the result back to size, so
    /// that many sizes share the plans of a few. The size is observed and its waste counted by `buckets`.
    ///
    /// What is added is zeros, and `op` must not let it reach what is kept: products, norms, softmax and activations
    /// work row by row, and packed attention leaves alone what belongs to no sequence. `op`'s result must have the
    /// padded size as its first dimension. A size that is a bucket costs no copy.
    ///
    /// ```ignore
    /// let y = x.in_bucket(&buckets, |x| x.matmul(&w)?.gelu())?;
    /// println!("{}", buckets.waste());
    /// ```
    ///
    /// # Errors
    /// `BadOperands` if the tensor has no dimensions or has scales, or if the result has another first dimension;
    /// what `op` returns.
    pub fn in_bucket(&self, buckets: &Buckets, op: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Self> {
        const OP: &str = "in_bucket";
        self.plain(OP, "x")?;
        let Some((&size, rest)) = self.shape().split_first() else {
            return Err(refuse(OP, [("x", self.describe())], "it needs at least one dimension"));
        };
        let bucket = buckets.pad(super::run::dim("the first dimension", size)?) as usize;
        let result = if bucket == size { op(self)? } else { op(&self.padded(bucket, rest)?)? };
        if result.shape().first() != Some(&bucket) {
            let rule = format!("its first dimension must still be {bucket}");
            return Err(refuse(OP, [("x", self.describe()), ("the result", result.describe())], rule));
        }
        if bucket == size { Ok(result) } else { result.slice(0, 0..size) }
    }

    /// A tight copy with zeros behind it, up to `size` along the first dimension.
    fn padded(&self, size: usize, rest: &[usize]) -> Result<Self> {
        let source = self.contiguous()?;
        let shape: Vec<usize> = std::iter::once(size).chain(rest.iter().copied()).collect();
        let mut out = Output::new(&self.engine, &shape, self.dtype())?;
        let from = source.codes();
        self.engine.with_queue(|queue| {
            let (to, zeros) = out.data.codes.slice_mut().split_at(from.bytes());
            queue.copy(to, from)?;
            queue.fill(zeros, 0)
        })?;
        Ok(out.finish(&self.engine, How::Host))
    }
}
