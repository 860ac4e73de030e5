//! Normalization and softmax of rows.

use super::{
    Tensor,
    run::{Output, Run, dim, refuse},
};
use kp_hal::{
    BadProblem, Real, Result,
    op::{NormArgs, NormKind, NormSpec, Rows, SoftmaxArgs, SoftmaxSpec},
};

/// A normalization of rows; see `kp_hal::op::NormSpec` for the formulas.
#[derive(Clone, Copy, Debug)]
pub struct Norm<'t> {
    /// Which norm.
    pub kind: NormKind,
    /// Keeps the divisor from 0.
    pub eps: f32,
    /// A factor per column.
    pub weight: Option<&'t Tensor>,
    /// An addend per column.
    pub bias: Option<&'t Tensor>,
}

/// A tensor as the rows of one matrix.
pub(super) struct RowsOf {
    pub(super) tensor: Tensor,
    pub(super) rows: u32,
    pub(super) cols: u32,
    pub(super) layout: Rows,
}

impl Tensor {
    /// Each row less its mean, by its deviation, times `weight`, plus `bias`.
    ///
    /// # Errors
    /// `BadOperands` if weight or bias have not a number per column; `Unsupported`; `OutOfMemory`.
    pub fn layer_norm(&self, weight: &Tensor, bias: &Tensor, eps: f32) -> Result<Self> {
        self.norm(Norm { kind: NormKind::Layer, eps, weight: Some(weight), bias: Some(bias) })
    }

    /// Each row by the root of its mean square, times `weight`.
    ///
    /// # Errors
    /// As [`Tensor::layer_norm`].
    pub fn rms_norm(&self, weight: &Tensor, eps: f32) -> Result<Self> {
        self.norm(Norm { kind: NormKind::Rms, eps, weight: Some(weight), bias: None })
    }

    /// Each row by its Euclidean length, or by `eps` if that is more.
    ///
    /// # Errors
    /// As [`Tensor::layer_norm`].
    pub fn l2_normalize(&self, eps: f32) -> Result<Self> {
        self.norm(Norm { kind: NormKind::L2, eps, weight: None, bias: None })
    }

    /// Each row normalized.
    ///
    /// # Errors
    /// As [`Tensor::layer_norm`]; `BadProblem` if eps is negative or not finite.
    pub fn norm(&self, norm: Norm<'_>) -> Result<Self> {
        Ok(self.norm_of_sum(None, norm)?.0)
    }

    /// Each row of `self + residual` normalized, and the sum itself, as a residual stream wants both.
    ///
    /// # Errors
    /// As [`Tensor::norm`]; `BadOperands` also if the residual has another shape or type.
    pub fn add_norm(&self, residual: &Tensor, norm: Norm<'_>) -> Result<(Self, Self)> {
        let (y, sum) = self.norm_of_sum(Some(residual), norm)?;
        Ok((y, sum.expect("there is a residual")))
    }

    fn norm_of_sum(&self, residual: Option<&Tensor>, norm: Norm<'_>) -> Result<(Self, Option<Self>)> {
        const OP: &str = "norm";
        // The residual is laid out as x, so x must be tight for both to be.
        let x = if residual.is_some() { self.contiguous()? } else { self.clone() };
        let x = x.as_rows(OP)?;
        let vector = |name, v: Option<&Tensor>| v.map(|v| v.vector(OP, name, x.cols as usize)).transpose();
        let (weight, bias) = (vector("the weight", norm.weight)?, vector("the bias", norm.bias)?);
        let residual = residual.map(|residual| residual.of_shape(OP, "the residual", self.shape())).transpose()?;
        if let Some(residual) = residual.as_ref().filter(|residual| residual.dtype() != self.dtype()) {
            let is = [("x", self.describe()), ("the residual", residual.describe())];
            return Err(refuse(OP, is, "both must have one type"));
        }
        let spec = NormSpec {
            x: x.layout,
            eps: real(OP, "eps", norm.eps)?,
            weight: weight.as_ref().map(Tensor::dtype),
            bias: bias.as_ref().map(Tensor::dtype),
            residual: residual.is_some(),
            ..NormSpec::new(x.rows, x.cols, norm.kind, self.dtype())
        };
        let mut y = Output::new(&self.engine, self.shape(), self.dtype())?;
        let mut sum = residual.is_some().then(|| Output::new(&self.engine, self.shape(), self.dtype())).transpose()?;
        let mut run = Run::new(&self.engine, OP);
        let args = NormArgs {
            weight: run.maybe(weight.as_ref()),
            bias: run.maybe(bias.as_ref()),
            residual: run.maybe(residual.as_ref()),
            sum: sum.as_mut().map(|sum| sum.data.codes.slice_mut()),
            ..NormArgs::new(run.read(&x.tensor), y.data.codes.slice_mut())
        };
        let how = run.launch(spec, &args)?;
        Ok((y.finish(&self.engine, how), sum.map(|sum| sum.finish(&self.engine, how))))
    }

    /// The softmax of each row.
    ///
    /// # Errors
    /// `BadOperands` if the tensor has scales; `Unsupported`; `OutOfMemory`.
    pub fn softmax(&self) -> Result<Self> {
        self.softmax_with(1.0, false)
    }

    /// The logarithm of the softmax of each row.
    ///
    /// # Errors
    /// As [`Tensor::softmax`].
    pub fn log_softmax(&self) -> Result<Self> {
        self.softmax_with(1.0, true)
    }

    /// The softmax of each row times `scale`, or its logarithm.
    ///
    /// # Errors
    /// As [`Tensor::softmax`]; `BadProblem` if `scale` is not finite.
    pub fn softmax_with(&self, scale: f32, log: bool) -> Result<Self> {
        let x = self.as_rows("softmax")?;
        let spec = SoftmaxSpec {
            x: x.layout,
            scale: real("softmax", "scale", scale)?,
            log,
            ..SoftmaxSpec::new(x.rows, x.cols, self.dtype())
        };
        let mut y = Output::new(&self.engine, self.shape(), self.dtype())?;
        let mut run = Run::new(&self.engine, "softmax");
        let args = SoftmaxArgs::new(run.read(&x.tensor), y.data.codes.slice_mut());
        let how = run.launch(spec, &args)?;
        Ok(y.finish(&self.engine, how))
    }

    /// All but the last dimension as rows of plain numbers, copied if their distances differ.
    pub(super) fn as_rows(&self, op: &'static str) -> Result<RowsOf> {
        self.plain(op, "x")?;
        let (tensor, (rows, cols, ld)) = match self.extent.as_rows(self.dtype()) {
            Some(rows) => (self.clone(), rows),
            None => {
                let straight = self.contiguous()?;
                let rows = straight.extent.as_rows(self.dtype()).expect("a tight tensor is rows of one distance");
                (straight, rows)
            }
        };
        let layout = Rows { format: self.format, ld: dim("the distance between rows", ld)? };
        Ok(RowsOf { tensor, rows: dim("rows", rows)?, cols: dim("columns", cols)?, layout })
    }
}

/// A setting as problems have it.
pub(super) fn real(op: &'static str, what: &'static str, value: f32) -> Result<Real> {
    let bad = || BadProblem::Invalid { what, expected: "a finite number", got: value.to_string() };
    Real::new(value).ok_or_else(|| bad().of(op).into())
}
