//! Normalization of rows, with an optional residual before it and quantization after it.

use super::{
    Format, NeedList, Rows, Scheme, Spec,
    act::{PLAIN_FLOATS, PLAIN_FLOATS_TEXT},
    args::args,
    format::Access,
    layout::{MatrixNames, matrix_names},
    op,
    problem::{BadProblem, dtype_in, exclusive, refuse_if},
};
use crate::{
    dtype::DType,
    text::{Reader, Real, Writer, spelled},
};
use std::fmt;

op! {
    /// Layer, RMS or L2 normalization; see [`NormSpec`].
    Norm, NormSpec, NormArgs, NormProblem, norm
}

/// Each of `rows` rows of `cols` numbers is normalized by itself.
///
/// ```text
/// s = x + residual        s is also stored, as `sum`, if there is a residual; y may be that of s as it is stored
/// layer: y = (s − mean) / √(var + eps) · weight + bias      var over cols, not cols − 1
/// rms:   y = s / √(mean of s² + eps) · weight + bias
/// l2:    y = s / max(√(Σ s²), eps) · weight + bias
/// ```
/// Text: `norm ROWSxCOLS X:Y kind=layer|rms|l2 eps=` then `weight= bias=` (types) `ldx= ldy= residual`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NormSpec {
    /// Rows.
    pub rows: u32,
    /// Numbers of a row.
    pub cols: u32,
    /// Input; residual and sum have its type and layout.
    pub x: Rows,
    /// Output, quantized as `quantize` does it (usual rule, saturating) if its format has a scheme.
    pub y: Rows,
    /// Which norm.
    pub kind: NormKind,
    /// Keeps the divisor from 0.
    pub eps: Real,
    /// Type of `cols` factors.
    pub weight: Option<DType>,
    /// Type of `cols` addends.
    pub bias: Option<DType>,
    /// Whether a residual is added first and the sum stored.
    pub residual: bool,
}

/// Which norm.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NormKind {
    /// By mean and variance.
    Layer,
    /// By the root of the mean square.
    Rms,
    /// By the Euclidean length.
    L2,
}
spelled!(NormKind { Layer = "layer", Rms = "rms", L2 = "l2" });

args! {
    /// Buffers of a [`Norm`].
    NormArgs {
        /// Input.
        input x,
        /// Output.
        output y,
        ?
        /// `cols` factors.
        input weight,
        /// `cols` addends.
        input bias,
        /// Added to X first.
        input residual,
        /// X + residual, in X's type.
        output sum,
        /// Scales of Y.
        output y_scale,
        /// The f32 that everything in Y is divided by: `@tensor` and `@nv`.
        input y_global,
        =
    }
}

pub(super) const X: MatrixNames = matrix_names!("x");
pub(super) const Y: MatrixNames = matrix_names!("y");

/// Lists a row-wise output that may be quantized as it is stored.
pub(super) fn output_needs(y: &Rows, list: &mut NeedList, rows: u32, cols: u32) {
    // The one scale of `@tensor` is read, so it is an input: `y_global`.
    let names = match y.format.scheme {
        Scheme::Tensor => ["y", "y_global", "", ""],
        _ => ["y", "y_scale", "y_global", ""],
    };
    let access = Access::fused_output(y.format);
    y.format.needs(list, names, y.span(rows, cols), (rows, cols, 1), access);
}

/// Refuses what cannot be stored to by a fused quantization.
pub(super) fn check_output(y: &Rows, rows: u32, cols: u32) -> Result<(), BadProblem> {
    y.check(&Y, rows, cols)?;
    exclusive(y.format.has_zero(), "y", "zero points")?;
    let wrong = matches!(y.dtype(), DType::U4 | DType::U8 | DType::I32 | DType::I64);
    refuse_if(wrong, "y", y.dtype(), "a float or a signed integer of at most 8 bits")
}

impl NormSpec {
    /// Tight rows of one type, eps 1e-5, neither weight nor bias.
    pub fn new(rows: u32, cols: u32, kind: NormKind, dtype: DType) -> Self {
        Self {
            rows,
            cols,
            x: Rows::tight(dtype, cols),
            y: Rows::tight(dtype, cols),
            kind,
            eps: EPS,
            weight: None,
            bias: None,
            residual: false,
        }
    }
}

pub(super) const EPS: Real = Real::new(1e-5).expect("finite");

impl Spec for NormSpec {
    const NAME: &'static str = "norm";

    fn check(&self) -> Result<(), BadProblem> {
        dtype_in("x", self.x.dtype(), &PLAIN_FLOATS, PLAIN_FLOATS_TEXT)?;
        exclusive(self.x.format.scheme != Scheme::None, "x", "scales")?;
        for (name, dtype) in [("weight", self.weight), ("bias", self.bias)] {
            if let Some(dtype) = dtype {
                dtype_in(name, dtype, &PLAIN_FLOATS, PLAIN_FLOATS_TEXT)?;
            }
        }
        if self.eps.get() < 0.0 {
            return Err(BadProblem::Invalid { what: "eps", expected: "at least 0", got: self.eps.to_string() });
        }
        self.x.check(&X, self.rows, self.cols)?;
        check_output(&self.y, self.rows, self.cols)
    }

    fn needs(&self, list: &mut NeedList) {
        let Self { rows, cols, x, .. } = *self;
        x.needs(list, &X, rows, cols, Access::INPUT);
        output_needs(&self.y, list, rows, cols);
        list.input("weight", self.weight.is_some(), self.weight.unwrap_or(DType::F32), cols.into());
        list.input("bias", self.bias.is_some(), self.bias.unwrap_or(DType::F32), cols.into());
        list.input("residual", self.residual, x.dtype(), x.span(rows, cols));
        list.output("sum", self.residual, x.dtype(), x.span(rows, cols));
    }

    fn flops(&self) -> f64 {
        6.0 * f64::from(self.rows) * f64::from(self.cols)
    }

    fn rate_dtype(&self) -> DType {
        self.x.dtype()
    }

    fn write(&self, out: &mut Writer<'_, '_>) -> fmt::Result {
        out.word(format_args!("{}x{}", self.rows, self.cols))?;
        out.word(format_args!("{}:{}", self.x.format, self.y.format))?;
        out.word(format_args!("kind={}", self.kind))?;
        out.option("eps", &self.eps, &EPS)?;
        out.maybe("weight", self.weight)?;
        out.maybe("bias", self.bias)?;
        self.x.write(out, "ldx", self.cols)?;
        self.y.write(out, "ldy", self.cols)?;
        out.flag("residual", self.residual)
    }

    fn read(words: &mut Reader<'_>) -> Result<Self, BadProblem> {
        let [rows, cols] = words.dims("ROWSxCOLS")?;
        let [x, y] = words.types::<Format, 2>("X:Y, each dtype[@scheme]")?;
        Ok(Self {
            rows,
            cols,
            x: Rows::read(words, "ldx", x, cols)?,
            y: Rows::read(words, "ldy", y, cols)?,
            kind: words.option("kind", NormKind::FORMS)?.ok_or(BadProblem::Missing { what: "kind" })?,
            eps: words.option("eps", "a finite number")?.unwrap_or(EPS),
            weight: words.option("weight", PLAIN_FLOATS_TEXT)?,
            bias: words.option("bias", PLAIN_FLOATS_TEXT)?,
            residual: words.flag("residual"),
        })
    }
}
