//! Rows chosen by index, and where sequences of different lengths begin.

use super::{
    Tensor,
    run::{Output, Run, dim, refuse},
};
use crate::Engine;
use kp_hal::{
    BadProblem, DType, Result,
    op::{GatherArgs, GatherSpec},
};

/// Sequences of different lengths, one behind the other in the rows of a tensor.
#[derive(Clone, Debug)]
pub struct Sequences {
    offsets: Tensor,
    lens: Vec<usize>,
}

impl Sequences {
    /// Sequences of these lengths.
    ///
    /// # Errors
    /// `BadProblem` if they have 2³¹ or more rows together; `OutOfMemory`.
    pub fn new(engine: &Engine, lens: &[usize]) -> Result<Self> {
        let mut offsets = vec![0_i32];
        for &len in lens {
            let end = offsets[offsets.len() - 1] as u64 + len as u64;
            let max = i32::MAX as u64;
            offsets.push(end.try_into().map_err(|_| BadProblem::TooLarge {
                what: "rows of all sequences",
                max,
                got: end,
            })?);
        }
        Ok(Self { offsets: engine.tensor(&[offsets.len()], &offsets)?, lens: lens.to_vec() })
    }

    /// How long each is.
    pub fn lens(&self) -> &[usize] {
        &self.lens
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.lens.len()
    }

    /// Rows of the longest; 0 if there is none.
    pub fn longest(&self) -> usize {
        self.lens.iter().copied().max().unwrap_or(0)
    }

    /// Rows of all.
    pub fn total(&self) -> usize {
        self.lens.iter().sum()
    }

    /// Where each begins, and where the last one ends: `i32`, one more than there are sequences.
    pub fn offsets(&self) -> &Tensor {
        &self.offsets
    }
}

impl Tensor {
    /// Rows of this table by `index` (`i32`, any shape): the result has the index's shape and the table's columns.
    /// An index outside the table gives a row of NaN, of zeros if the type has no NaN.
    ///
    /// # Errors
    /// `BadOperands` if this is no table or the index no `i32`; `Unsupported`; `OutOfMemory`.
    pub fn gather(&self, index: &Tensor) -> Result<Self> {
        const OP: &str = "gather";
        let &[_, cols] = self.shape() else {
            return Err(refuse(OP, [("the table", self.describe())], "it must have two dimensions"));
        };
        self.plain(OP, "the table")?;
        let count = index.vector_of(OP, "the index", index.len(), DType::I32)?;
        let table = self.as_rows(OP)?;
        let spec = GatherSpec {
            table: table.layout,
            ..GatherSpec::new(dim("rows", count.len())?, table.cols, table.rows, self.dtype())
        };
        let shape: Vec<usize> = index.shape().iter().copied().chain([cols]).collect();
        let mut y = Output::new(&self.engine, &shape, self.dtype())?;
        let mut run = Run::new(&self.engine, OP);
        let args = GatherArgs::new(run.read(&table.tensor), run.read(&count), y.data.codes.slice_mut());
        let how = run.launch(spec, &args)?;
        Ok(y.finish(&self.engine, how))
    }
}
