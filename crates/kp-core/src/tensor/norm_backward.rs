//! Gradients of normalization.

use super::{
    Norm, Tensor,
    norm::real,
    run::{Output, Run, refuse},
    view::shape_text,
};
use kp_hal::{
    DType, Result,
    op::{NormBackwardArgs, NormBackwardSpec},
};

/// The loss by what a norm took.
#[derive(Clone, Debug)]
pub struct NormGradients {
    /// By what was normalized, in its shape and type.
    pub x: Tensor,
    /// By the weight, if there was one: f32, a number per column.
    pub weight: Option<Tensor>,
    /// By the bias, if there was one: f32, a number per column.
    pub bias: Option<Tensor>,
}

impl Tensor {
    /// Gradients of [`Tensor::norm`] of this tensor with the same options, by the loss by its result; of
    /// [`Tensor::add_norm`], ask the sum that it returned.
    ///
    /// # Errors
    /// `BadOperands` if shapes do not go together or an operand is scaled; `BadProblem` if eps is negative or not
    /// finite; `Unsupported`; `OutOfMemory`.
    pub fn norm_backward(&self, grad_y: &Tensor, norm: Norm<'_>) -> Result<NormGradients> {
        const OP: &str = "norm_backward";
        if grad_y.shape() != self.shape() {
            let is = [("x", self.describe()), ("the gradient", grad_y.describe())];
            return Err(refuse(OP, is, format!("both must be {}", shape_text(self.shape()))));
        }
        let (x, grad) = (self.as_rows(OP)?, grad_y.as_rows(OP)?);
        let weight = norm.weight.map(|weight| weight.vector(OP, "the weight", x.cols as usize)).transpose()?;
        let bias = norm.bias.map(|bias| bias.vector(OP, "the bias", x.cols as usize)).transpose()?;
        let spec = NormBackwardSpec {
            x: x.layout,
            grad_y: grad.layout,
            eps: real(OP, "eps", norm.eps)?,
            weight: weight.as_ref().map(Tensor::dtype),
            bias: bias.is_some(),
            ..NormBackwardSpec::new(x.rows, x.cols, norm.kind, self.dtype())
        };
        let engine = &self.engine;
        let column = |v: &Tensor| Output::new(engine, v.shape(), DType::F32);
        let mut x_out = Output::new(engine, self.shape(), self.dtype())?;
        let mut weight_out = weight.as_ref().map(column).transpose()?;
        let mut bias_out = bias.as_ref().map(column).transpose()?;
        let mut run = Run::new(engine, OP);
        let args = NormBackwardArgs {
            weight: run.maybe(weight.as_ref()),
            grad_weight: weight_out.as_mut().map(|out| out.data.codes.slice_mut()),
            grad_bias: bias_out.as_mut().map(|out| out.data.codes.slice_mut()),
            ..NormBackwardArgs::new(run.read(&x.tensor), run.read(&grad.tensor), x_out.data.codes.slice_mut())
        };
        let how = run.launch(spec, &args)?;
        let [weight, bias] = [weight_out, bias_out].map(|out| out.map(|out| out.finish(engine, how)));
        Ok(NormGradients { x: x_out.finish(engine, how), weight, bias })
    }
}
