//! Many numbers to one.

use super::{
    Sequences, Tensor,
    run::{Output, Run, dim, refuse},
};
use kp_hal::{
    Result,
    op::{ReduceArgs, ReduceOp, ReduceSpec, Reduced},
};

/// Along what numbers are reduced; the tensor is seen as rows of its last dimension.
#[derive(Clone, Copy, Debug)]
pub enum Over<'s> {
    /// Each row to one number: the last dimension goes.
    Cols,
    /// Each column to one number: only the last dimension stays.
    Rows,
    /// The rows of each sequence to one: as many rows as sequences.
    Segments(&'s Sequences),
}

impl Tensor {
    /// The sums. Over nothing, 0.
    ///
    /// # Errors
    /// As [`Tensor::reduce`].
    pub fn sum(&self, over: Over<'_>) -> Result<Self> {
        self.reduce(ReduceOp::Sum, over)
    }

    /// The means. Over nothing, NaN.
    ///
    /// # Errors
    /// As [`Tensor::reduce`].
    pub fn mean(&self, over: Over<'_>) -> Result<Self> {
        self.reduce(ReduceOp::Mean, over)
    }

    /// The largest. Over nothing, −∞.
    ///
    /// # Errors
    /// As [`Tensor::reduce`].
    pub fn max(&self, over: Over<'_>) -> Result<Self> {
        self.reduce(ReduceOp::Max, over)
    }

    /// The largest magnitudes. Over nothing, 0.
    ///
    /// # Errors
    /// As [`Tensor::reduce`].
    pub fn amax(&self, over: Over<'_>) -> Result<Self> {
        self.reduce(ReduceOp::Amax, over)
    }

    /// Many numbers to one, in the tensor's type. NaN wins over any number.
    ///
    /// # Errors
    /// `BadOperands` if the sequences have more rows than the tensor, or if it has scales; `Unsupported`;
    /// `OutOfMemory`.
    pub fn reduce(&self, op: ReduceOp, over: Over<'_>) -> Result<Self> {
        const OP: &str = "reduce";
        let x = self.as_rows(OP)?;
        let cols = x.cols as usize;
        let (shape, reduced, offsets) = match over {
            Over::Cols => {
                let outer = self.shape().split_last().map_or(&[][..], |(_, outer)| outer);
                (outer.to_vec(), Reduced::Cols, None)
            }
            Over::Rows => (vec![cols], Reduced::Rows, None),
            Over::Segments(sequences) => {
                if sequences.total() > x.rows as usize {
                    let is = [("x", self.describe()), ("the sequences", format!("{} rows", sequences.total()))];
                    return Err(refuse(OP, is, "x must have the rows of all sequences"));
                }
                let segments = Reduced::Segments(dim("sequences", sequences.count())?);
                (vec![sequences.count(), cols], segments, Some(sequences.offsets()))
            }
        };
        let spec = ReduceSpec { x: x.layout, ..ReduceSpec::new(x.rows, x.cols, op, reduced, self.dtype()) };
        let mut y = Output::new(&self.engine, &shape, self.dtype())?;
        let mut run = Run::new(&self.engine, OP);
        let args = ReduceArgs {
            offsets: run.maybe(offsets),
            ..ReduceArgs::new(run.read(&x.tensor), y.data.codes.slice_mut())
        };
        let how = run.launch(spec, &args)?;
        Ok(y.finish(&self.engine, how))
    }

    /// As `reduce` over columns, of every number: one number.
    ///
    /// # Errors
    /// As [`Tensor::reduce`].
    pub fn reduce_all(&self, op: ReduceOp) -> Result<Self> {
        self.contiguous()?.reshape(&[1, self.len()])?.reduce(op, Over::Cols)?.reshape(&[])
    }
}
