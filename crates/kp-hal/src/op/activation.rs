//! A function of each number, gated or not, with an optional factor and residual.

use super::{
    Act, Format, Gate, NeedList, Rows, Scheme, Spec,
    act::{PLAIN_FLOATS, PLAIN_FLOATS_TEXT},
    args::args,
    format::Access,
    norm::{X, check_output, output_needs},
    op,
    problem::{BadProblem, at_most, dtype_in, exclusive},
};
use crate::{
    dtype::DType,
    text::{Reader, Writer},
};
use std::fmt;

op! {
    /// Element by element; see [`ActivationSpec`].
    Activation, ActivationSpec, ActivationArgs, ActivationProblem, activation
}

/// y = act(x) · factor + residual; gated, y = act(g) · u · factor + residual.
///
/// Y has `rows` × `cols` numbers, X twice the columns if gated. Factor and residual are tight `rows` × `cols`, so
/// `act=identity` with one of them multiplies or adds two tensors.
/// Text: `activation ROWSxCOLS X:Y act= gate= factor= residual= ldx= ldy=`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ActivationSpec {
    /// Rows.
    pub rows: u32,
    /// Columns of Y.
    pub cols: u32,
    /// Input.
    pub x: Rows,
    /// Output, quantized as `quantize` does it (usual rule, saturating) if its format has a scheme.
    pub y: Rows,
    /// The function.
    pub act: Act,
    /// Whether pairs of columns are combined.
    pub gate: Gate,
    /// Type of the factor.
    pub factor: Option<DType>,
    /// Type of the residual.
    pub residual: Option<DType>,
}

args! {
    /// Buffers of an [`Activation`].
    ActivationArgs {
        /// Input.
        input x,
        /// Output.
        output y,
        ?
        /// Multiplies.
        input factor,
        /// Is added last.
        input residual,
        /// Scales of Y.
        output y_scale,
        /// The f32 that everything in Y is divided by: `@tensor` and `@nv`.
        input y_global,
        =
    }
}

impl ActivationSpec {
    /// Tight rows of one type; X is twice as wide if gated.
    pub fn new(rows: u32, cols: u32, act: Act, gate: Gate, dtype: DType) -> Self {
        let x = Rows::tight(dtype, cols.saturating_mul(gate.columns()));
        Self { rows, cols, x, y: Rows::tight(dtype, cols), act, gate, factor: None, residual: None }
    }

    /// Columns of X.
    pub const fn x_cols(&self) -> u32 {
        self.cols.saturating_mul(self.gate.columns())
    }
}

impl Spec for ActivationSpec {
    const NAME: &'static str = "activation";

    fn check(&self) -> Result<(), BadProblem> {
        dtype_in("x", self.x.dtype(), &PLAIN_FLOATS, PLAIN_FLOATS_TEXT)?;
        exclusive(self.x.format.scheme != Scheme::None, "x", "scales")?;
        for (name, dtype) in [("factor", self.factor), ("residual", self.residual)] {
            if let Some(dtype) = dtype {
                dtype_in(name, dtype, &PLAIN_FLOATS, PLAIN_FLOATS_TEXT)?;
            }
        }
        at_most("columns of x", u32::MAX.into(), u64::from(self.cols) * u64::from(self.gate.columns()))?;
        self.x.check(&X, self.rows, self.x_cols())?;
        check_output(&self.y, self.rows, self.cols)
    }

    fn needs(&self, list: &mut NeedList) {
        let Self { rows, cols, .. } = *self;
        self.x.needs(list, &X, rows, self.x_cols(), Access::INPUT);
        output_needs(&self.y, list, rows, cols);
        let elements = u64::from(rows) * u64::from(cols);
        list.input("factor", self.factor.is_some(), self.factor.unwrap_or(DType::F32), elements);
        list.input("residual", self.residual.is_some(), self.residual.unwrap_or(DType::F32), elements);
    }

    fn flops(&self) -> f64 {
        8.0 * f64::from(self.rows) * f64::from(self.cols)
    }

    fn rate_dtype(&self) -> DType {
        self.x.dtype()
    }

    fn write(&self, out: &mut Writer<'_, '_>) -> fmt::Result {
        out.word(format_args!("{}x{}", self.rows, self.cols))?;
        out.word(format_args!("{}:{}", self.x.format, self.y.format))?;
        out.option("act", &self.act, &Act::Identity)?;
        out.option("gate", &self.gate, &Gate::None)?;
        out.maybe("factor", self.factor)?;
        out.maybe("residual", self.residual)?;
        self.x.write(out, "ldx", self.x_cols())?;
        self.y.write(out, "ldy", self.cols)
    }

    fn read(words: &mut Reader<'_>) -> Result<Self, BadProblem> {
        let [rows, cols] = words.dims("ROWSxCOLS")?;
        let [x, y] = words.types::<Format, 2>("X:Y, each dtype[@scheme]")?;
        let act = words.option("act", Act::FORMS)?.unwrap_or_default();
        let gate = words.option("gate", Gate::FORMS)?.unwrap_or_default();
        let spec = Self::new(rows, cols, act, gate, x.dtype);
        Ok(Self {
            x: Rows::read(words, "ldx", x, spec.x_cols())?,
            y: Rows::read(words, "ldy", y, cols)?,
            factor: words.option("factor", PLAIN_FLOATS_TEXT)?,
            residual: words.option("residual", PLAIN_FLOATS_TEXT)?,
            ..spec
        })
    }
}
