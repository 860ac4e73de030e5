//! Functions of each number, sums and products of two tensors.

use super::{
    Tensor,
    run::{Output, Run, dim, refuse},
};
use kp_hal::{
    Result,
    op::{Act, ActivationArgs, ActivationSpec, Gate, Rows},
};

impl Tensor {
    /// x · Φ(x), by erf.
    ///
    /// # Errors
    /// As [`Tensor::activation`].
    pub fn gelu(&self) -> Result<Self> {
        self.activation(Act::Gelu)
    }

    /// x / (1 + e⁻ˣ).
    ///
    /// # Errors
    /// As [`Tensor::activation`].
    pub fn silu(&self) -> Result<Self> {
        self.activation(Act::Silu)
    }

    /// max(x, 0).
    ///
    /// # Errors
    /// As [`Tensor::activation`].
    pub fn relu(&self) -> Result<Self> {
        self.activation(Act::Relu)
    }

    /// 1 / (1 + e⁻ˣ).
    ///
    /// # Errors
    /// As [`Tensor::activation`].
    pub fn sigmoid(&self) -> Result<Self> {
        self.activation(Act::Sigmoid)
    }

    /// tanh(x).
    ///
    /// # Errors
    /// As [`Tensor::activation`].
    pub fn tanh(&self) -> Result<Self> {
        self.activation(Act::Tanh)
    }

    /// A function of each number.
    ///
    /// # Errors
    /// `BadOperands` if the tensor has scales; `Unsupported`; `OutOfMemory`.
    pub fn activation(&self, act: Act) -> Result<Self> {
        self.pointwise("activation", act, Gate::None, None, None)
    }

    /// act(g) · u for the two halves of each row, or for its pairs: half as many columns.
    ///
    /// # Errors
    /// As [`Tensor::activation`]; `BadOperands` also if the number of columns is odd.
    pub fn gated(&self, act: Act, gate: Gate) -> Result<Self> {
        self.pointwise("gated", act, gate, None, None)
    }

    /// The sum of two tensors of one shape.
    ///
    /// # Errors
    /// `BadOperands` if the shapes differ or one has scales; `Unsupported`; `OutOfMemory`.
    pub fn add(&self, other: &Tensor) -> Result<Self> {
        self.pointwise("add", Act::Identity, Gate::None, None, Some(other))
    }

    /// The product, number by number, of two tensors of one shape.
    ///
    /// # Errors
    /// As [`Tensor::add`].
    pub fn mul(&self, other: &Tensor) -> Result<Self> {
        self.pointwise("mul", Act::Identity, Gate::None, Some(other), None)
    }

    fn pointwise(
        &self,
        op: &'static str,
        act: Act,
        gate: Gate,
        factor: Option<&Tensor>,
        residual: Option<&Tensor>,
    ) -> Result<Self> {
        let x = self.as_rows(op)?;
        let mut shape = self.shape().to_vec();
        let per_output = gate.columns() as usize;
        if let Some(cols) = shape.last_mut().filter(|_| per_output > 1) {
            if !cols.is_multiple_of(per_output) {
                return Err(refuse(op, [("x", self.describe())], "a gate needs an even number of columns"));
            }
            *cols /= per_output;
        } else if per_output > 1 {
            return Err(refuse(op, [("x", self.describe())], "a gate needs columns"));
        }
        let other = |other: Option<&Tensor>| other.map(|other| other.of_shape(op, "the other", &shape)).transpose();
        let (factor, residual) = (other(factor)?, other(residual)?);
        let cols = dim("columns", shape.last().copied().unwrap_or(1))?;
        let spec = ActivationSpec {
            rows: x.rows,
            cols,
            x: x.layout,
            y: Rows::tight(self.dtype(), cols),
            act,
            gate,
            factor: factor.as_ref().map(Tensor::dtype),
            residual: residual.as_ref().map(Tensor::dtype),
        };
        let mut y = Output::new(&self.engine, &shape, self.dtype())?;
        let mut run = Run::new(&self.engine, op);
        let args = ActivationArgs {
            factor: run.maybe(factor.as_ref()),
            residual: run.maybe(residual.as_ref()),
            ..ActivationArgs::new(run.read(&x.tensor), y.data.codes.slice_mut())
        };
        let how = run.launch(spec, &args)?;
        Ok(y.finish(&self.engine, how))
    }
}
