//! Rotary position embedding.

use super::{
    Tensor,
    run::{Output, Run, dim, refuse, tight},
};
use crate::Engine;
use kp_hal::{
    DType, Result,
    op::{RopeArgs, RopePairs, RopeSpec, Rows},
};

/// Cosines and sines of every position, for heads of which the first `rotated` numbers are turned.
#[derive(Clone, Debug)]
pub struct RopeTable {
    cos: Tensor,
    sin: Tensor,
    /// Which two numbers are a pair.
    pub pairs: RopePairs,
}

impl RopeTable {
    /// Angles p · base^(−2j / rotated) for positions p and pairs j, computed in f64.
    ///
    /// # Errors
    /// `BadOperands` if `rotated` is odd or `base` no number above 0; `BadProblem` past 2⁶³ numbers; `OutOfMemory`.
    pub fn new(engine: &Engine, positions: usize, rotated: usize, base: f64) -> Result<Self> {
        let sensible = rotated.is_multiple_of(2) && base > 0.0 && base.is_finite();
        if !sensible {
            let is = [("rotated", rotated.to_string()), ("base", base.to_string())];
            return Err(refuse("rope", is, "numbers are turned in pairs, by powers of a finite number above 0"));
        }
        let pairs = rotated / 2;
        let count = tight(&[positions, pairs], DType::F32)?.count();
        // Before as much is made on the host, where too much ends the program.
        drop(engine.alloc(DType::F32.bytes(count as u64))?);
        let angle = |i: usize| {
            let (position, pair) = (i / pairs, i % pairs);
            position as f64 * base.powf(-2.0 * pair as f64 / rotated as f64)
        };
        let table = |f: fn(f64) -> f64| {
            let numbers: Vec<f32> = (0..count).map(|i| f(angle(i)) as f32).collect();
            engine.tensor(&[positions, pairs], &numbers)
        };
        Self::from_tensors(&table(f64::cos)?, &table(f64::sin)?)
    }

    /// A table from tensors of `positions`×`rotated / 2` f32 numbers, as scaled or interpolated positions need.
    ///
    /// # Errors
    /// `BadOperands` if they are no such tensors.
    pub fn from_tensors(cos: &Tensor, sin: &Tensor) -> Result<Self> {
        let same = cos.shape() == sin.shape() && cos.rank() == 2;
        if !same || cos.format() != DType::F32.into() || sin.format() != DType::F32.into() {
            let is = [("cos", cos.describe()), ("sin", sin.describe())];
            return Err(refuse("rope", is, "both must be f32 of one shape, positions x pairs"));
        }
        Ok(Self { cos: cos.contiguous()?, sin: sin.contiguous()?, pairs: RopePairs::default() })
    }
}

impl Tensor {
    /// Each head's leading numbers turned by the token's position: `[.., tokens, heads, dim]` with `positions` one
    /// `i32` per token. A position outside the table gives NaN.
    ///
    /// # Errors
    /// `BadOperands` if the shapes do not go together; `Unsupported`; `OutOfMemory`.
    pub fn rope(&self, positions: &Tensor, table: &RopeTable) -> Result<Self> {
        self.turned(positions, table, false)
    }

    /// The same the other way round, which is also the gradient of [`Tensor::rope`].
    ///
    /// # Errors
    /// As [`Tensor::rope`].
    pub fn rope_back(&self, positions: &Tensor, table: &RopeTable) -> Result<Self> {
        self.turned(positions, table, true)
    }

    fn turned(&self, positions: &Tensor, table: &RopeTable, inverse: bool) -> Result<Self> {
        const OP: &str = "rope";
        let &[ref tokens @ .., heads, head] = self.shape() else {
            return Err(refuse(OP, [("x", self.describe())], "it must end in heads and their numbers"));
        };
        let tokens: usize = tokens.iter().product();
        let rotated = 2 * table.cos.shape()[1];
        if rotated > head {
            let is = [("x", self.describe()), ("the table", format!("for heads of {rotated}"))];
            return Err(refuse(OP, is, "heads must be at least as long as what is turned"));
        }
        let positions = positions.vector_of(OP, "the positions", tokens, DType::I32)?;
        let x = self.reshape(&[tokens, heads * head])?.as_rows(OP)?;
        let spec = RopeSpec {
            rotated: dim("rotated", rotated)?,
            pairs: table.pairs,
            x: x.layout,
            y: Rows::tight(self.dtype(), x.cols),
            inverse,
            ..RopeSpec::new(
                x.rows,
                dim("heads", heads)?,
                dim("numbers of a head", head)?,
                dim("positions", table.cos.shape()[0])?,
                self.dtype(),
            )
        };
        let mut y = Output::new(&self.engine, self.shape(), self.dtype())?;
        let mut run = Run::new(&self.engine, OP);
        let args = RopeArgs::new(
            run.read(&x.tensor),
            y.data.codes.slice_mut(),
            run.read(&positions),
            run.read(&table.cos),
            run.read(&table.sin),
        );
        let how = run.launch(spec, &args)?;
        Ok(y.finish(&self.engine, how))
    }
}
