//! Gradients of a norm by its input, weight and bias.

use super::{
    NeedList, NormKind, Rows, Spec,
    act::{PLAIN_FLOATS, PLAIN_FLOATS_TEXT},
    args::args,
    format::Access,
    layout::{MatrixNames, matrix_names},
    norm::{EPS, X},
    op,
    problem::{BadProblem, dtype_in},
};
use crate::{
    dtype::DType,
    text::{Reader, Real, Writer},
};
use std::fmt;

op! {
    /// The backward pass of [`super::Norm`]; see [`NormBackwardSpec`].
    NormBackward, NormBackwardSpec, NormBackwardArgs, NormBackwardProblem, norm_backward
}

/// Gradients of `norm` by what it normalized (X, or X + residual), by weight and by bias.
///
/// Mean and variance are computed again from X, which must be read anyway. `grad_x` has X's type and is tight;
/// `grad_weight` and `grad_bias` are f32, summed over rows.
/// Text: `norm_backward ROWSxCOLS X:GRAD_Y kind= eps= weight= ldx= ldg= bias`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NormBackwardSpec {
    /// Rows.
    pub rows: u32,
    /// Numbers of a row.
    pub cols: u32,
    /// What was normalized.
    pub x: Rows,
    /// The loss by the output.
    pub grad_y: Rows,
    /// Which norm.
    pub kind: NormKind,
    /// Kept the divisor from 0.
    pub eps: Real,
    /// Type of the weight, if there was one; then its gradient is wanted.
    pub weight: Option<DType>,
    /// Whether there was a bias; then its gradient is wanted.
    pub bias: bool,
}

args! {
    /// Buffers of a [`NormBackward`].
    NormBackwardArgs {
        /// What was normalized.
        input x,
        /// The loss by the output.
        input grad_y,
        /// The loss by X.
        output grad_x,
        ?
        /// The forward pass's factors.
        input weight,
        /// F32, the loss by the weight.
        output grad_weight,
        /// F32, the loss by the bias.
        output grad_bias,
        =
    }
}

const GRAD_Y: MatrixNames = matrix_names!("grad_y");

impl NormBackwardSpec {
    /// Tight rows of one type, eps 1e-5, neither weight nor bias.
    pub fn new(rows: u32, cols: u32, kind: NormKind, dtype: DType) -> Self {
        let tight = Rows::tight(dtype, cols);
        Self { rows, cols, x: tight, grad_y: tight, kind, eps: EPS, weight: None, bias: false }
    }
}

impl Spec for NormBackwardSpec {
    const NAME: &'static str = "norm_backward";

    fn check(&self) -> Result<(), BadProblem> {
        for (name, dtype) in
            [("x", Some(self.x.dtype())), ("grad_y", Some(self.grad_y.dtype())), ("weight", self.weight)]
        {
            if let Some(dtype) = dtype {
                dtype_in(name, dtype, &PLAIN_FLOATS, PLAIN_FLOATS_TEXT)?;
            }
        }
        if self.eps.get() < 0.0 {
            return Err(BadProblem::Invalid { what: "eps", expected: "at least 0", got: self.eps.to_string() });
        }
        self.x.check_plain(&X, self.rows, self.cols)?;
        self.grad_y.check_plain(&GRAD_Y, self.rows, self.cols)
    }

    fn needs(&self, list: &mut NeedList) {
        let Self { rows, cols, .. } = *self;
        self.x.needs(list, &X, rows, cols, Access::INPUT);
        self.grad_y.needs(list, &GRAD_Y, rows, cols, Access::INPUT);
        list.output("grad_x", true, self.x.dtype(), u64::from(rows) * u64::from(cols));
        list.input("weight", self.weight.is_some(), self.weight.unwrap_or(DType::F32), cols.into());
        list.output("grad_weight", self.weight.is_some(), DType::F32, cols.into());
        list.output("grad_bias", self.bias, DType::F32, cols.into());
    }

    fn flops(&self) -> f64 {
        12.0 * f64::from(self.rows) * f64::from(self.cols)
    }

    fn rate_dtype(&self) -> DType {
        self.x.dtype()
    }

    fn write(&self, out: &mut Writer<'_, '_>) -> fmt::Result {
        out.word(format_args!("{}x{}", self.rows, self.cols))?;
        out.word(format_args!("{}:{}", self.x.format, self.grad_y.format))?;
        out.word(format_args!("kind={}", self.kind))?;
        out.option("eps", &self.eps, &EPS)?;
        out.maybe("weight", self.weight)?;
        self.x.write(out, "ldx", self.cols)?;
        self.grad_y.write(out, "ldg", self.cols)?;
        out.flag("bias", self.bias)
    }

    fn read(words: &mut Reader<'_>) -> Result<Self, BadProblem> {
        let [rows, cols] = words.dims("ROWSxCOLS")?;
        let [x, grad_y] = words.types("X:GRAD_Y")?.map(|dtype: DType| dtype.into());
        Ok(Self {
            rows,
            cols,
            x: Rows::read(words, "ldx", x, cols)?,
            grad_y: Rows::read(words, "ldg", grad_y, cols)?,
            kind: words.option("kind", NormKind::FORMS)?.ok_or(BadProblem::Missing { what: "kind" })?,
            eps: words.option("eps", "a finite number")?.unwrap_or(EPS),
            weight: words.option("weight", PLAIN_FLOATS_TEXT)?,
            bias: words.flag("bias"),
        })
    }
}
