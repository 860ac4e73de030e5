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
    /// padded size as its first dimension. A size that is a bucket costs no copy. To pad the keys of a batch, which
    /// are another dimension, [`Tensor::pad_to`] them and pass their number as `Attend::kv_lens`.
    ///
    /// ```
    /// # use kp_core::{Engine, buckets::Buckets};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = Engine::builder().only(kp_null::BACKEND).memory_only().open()?;
    /// let w = engine.zeros(&[64, 64], kp_hal::DType::F32)?;
    /// let buckets = Buckets::learn(8);
    /// for tokens in [3, 5, 4, 5, 3] {
    ///     let x = engine.zeros(&[tokens, 64], kp_hal::DType::F32)?;
    ///     let y = x.in_bucket(&buckets, |x| x.matmul(&w)?.gelu())?;
    ///     assert_eq!(y.shape(), [tokens, 64]);
    /// }
    /// println!("{}", buckets.waste());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `BadOperands` if the tensor has no dimensions or has scales, or if the result has another first dimension;
    /// what `op` returns.
    pub fn in_bucket(&self, buckets: &Buckets, op: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Self> {
        const OP: &str = "in_bucket";
        self.plain(OP, "x")?;
        let Some(&size) = self.shape().first() else {
            return Err(refuse(OP, [("x", self.describe())], "it needs at least one dimension"));
        };
        let bucket = buckets.pad(super::run::dim("the first dimension", size)?) as usize;
        let result = if bucket == size { op(self)? } else { op(&self.pad_to(0, bucket)?)? };
        if result.shape().first() != Some(&bucket) {
            let rule = format!("its first dimension must still be {bucket}");
            return Err(refuse(OP, [("x", self.describe()), ("the result", result.describe())], rule));
        }
        if bucket == size { Ok(result) } else { result.slice(0, 0..size) }
    }

    /// A copy with zeros behind it, up to `size` along dimension `dim`; the same tensor if it has that size.
    ///
    /// # Errors
    /// `BadOperands` if there is no such dimension, if it is larger, or if the tensor has scales; for the last
    /// dimension of 4-bit codes; `OutOfMemory`.
    pub fn pad_to(&self, dim: usize, size: usize) -> Result<Self> {
        const OP: &str = "pad_to";
        self.plain(OP, "x")?;
        let Some(&old) = self.shape().get(dim).filter(|&&old| old <= size) else {
            let rule = format!("dimension {dim} must exist and be at most {size}");
            return Err(refuse(OP, [("x", self.describe())], rule));
        };
        if old == size {
            return Ok(self.clone());
        }
        if self.dtype().per_byte() > 1 && dim + 1 == self.rank() {
            return Err(refuse(OP, [("x", self.describe())], "rows of 4-bit codes cannot grow"));
        }
        let source = self.contiguous()?;
        let mut shape = self.shape().to_vec();
        shape[dim] = size;
        let mut out = Output::new(&self.engine, &shape, self.dtype())?;
        let (from, pieces) = (source.codes(), self.shape()[..dim].iter().product::<usize>() as u64);
        if pieces == 0 {
            return Ok(out.finish(&self.engine, How::Host));
        }
        let (old, new) = (from.bytes() / pieces, out.data.codes.bytes() / pieces);
        self.engine.with_queue(|queue| {
            for i in 0..pieces {
                let piece = out.data.codes.slice_mut().at(i * new..(i + 1) * new);
                let (to, zeros) = piece.split_at(old);
                queue.copy(to, from.at(i * old..(i + 1) * old))?;
                queue.fill(zeros, super::create::zero_byte(self.dtype()))?;
            }
            Ok(())
        })?;
        Ok(out.finish(&self.engine, How::Host))
    }
}
