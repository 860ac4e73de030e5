//! A matrix in another type, order or layout: cast, transpose, copy, pack.

use super::{
    Matrix, NeedList, Order, Overflow, Scheme, Spec,
    args::args,
    format::Access,
    layout::{MatrixNames, matrix_names},
    op,
    problem::{BadProblem, exclusive},
};
use crate::{
    dtype::DType,
    text::{Reader, Writer},
};
use std::fmt;

op! {
    /// Element by element into another type and layout; see [`CastSpec`].
    Cast, CastSpec, CastArgs, CastProblem, cast
}

/// Y = X, `rows` × `cols`, `batch` times: rounded to nearest even if Y's type is narrower, laid out as Y says.
///
/// Floats become integers by rounding to nearest even and saturating, NaN becoming 0. A transpose is a cast between
/// orders; packing is a cast to panels, whose padding is written as zeros. Codes of equal type are moved as they
/// are, so packing quantized weights keeps their scales valid. Text: `cast BATCHxROWSxCOLS X:Y x= y= overflow=`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CastSpec {
    /// How many matrices.
    pub batch: u32,
    /// Rows.
    pub rows: u32,
    /// Columns.
    pub cols: u32,
    /// From.
    pub x: Matrix,
    /// To.
    pub y: Matrix,
    /// What becomes of numbers past Y's largest; 16-bit floats become infinite in any case.
    pub overflow: Overflow,
}

args! {
    /// Buffers of a [`Cast`].
    CastArgs {
        /// From.
        input x,
        /// To.
        output y,
        ?
        =
    }
}

const X: MatrixNames = matrix_names!("x");
const Y: MatrixNames = matrix_names!("y");

impl CastSpec {
    /// One tight matrix, rows contiguous on both sides.
    pub fn new(rows: u32, cols: u32, x: DType, y: DType) -> Self {
        Self {
            batch: 1,
            rows,
            cols,
            x: Matrix::tight(x, Order::Row, rows, cols),
            y: Matrix::tight(y, Order::Row, rows, cols),
            overflow: Overflow::default(),
        }
    }
}

impl Spec for CastSpec {
    const NAME: &'static str = "cast";

    fn check(&self) -> Result<(), BadProblem> {
        let Self { batch, rows, cols, x, y, .. } = *self;
        exclusive(
            x.format.scheme != Scheme::None || y.format.scheme != Scheme::None,
            "cast",
            "scales: quantize instead",
        )?;
        let panels = matches!(x.order, Order::Panel { .. });
        exclusive(panels && x.dtype() != y.dtype(), "panels of x", "another type of y")?;
        let propagates = self.overflow == Overflow::Propagate;
        let fp8 = matches!(y.dtype(), DType::E4m3 | DType::E5m2 | DType::E4m3Fnuz | DType::E5m2Fnuz);
        exclusive(propagates && !fp8, "overflow=propagate", "y other than 8-bit floats")?;
        x.check(&X, (rows, cols, batch), false)?;
        y.check(&Y, (rows, cols, batch), true)
    }

    fn canonical(self) -> Self {
        let Self { batch, rows, cols, .. } = self;
        Self { x: self.x.canonical(rows, cols, batch), y: self.y.canonical(rows, cols, batch), ..self }
    }

    fn needs(&self, list: &mut NeedList) {
        let shape = (self.rows, self.cols, self.batch);
        self.x.needs(list, &X, shape, (self.rows, self.cols), Access::INPUT);
        self.y.needs(list, &Y, shape, (self.rows, self.cols), Access::OUTPUT);
    }

    fn flops(&self) -> f64 {
        f64::from(self.batch) * f64::from(self.rows) * f64::from(self.cols)
    }

    fn rate_dtype(&self) -> DType {
        self.x.dtype()
    }

    fn write(&self, out: &mut Writer<'_, '_>) -> fmt::Result {
        let Self { batch, rows, cols, x, y, .. } = self;
        out.word(format_args!("{batch}x{rows}x{cols}"))?;
        out.word(format_args!("{}:{}", x.format, y.format))?;
        x.write(out, "x", (*rows, *cols))?;
        y.write(out, "y", (*rows, *cols))?;
        out.option("overflow", &self.overflow, &Overflow::default())
    }

    fn read(words: &mut Reader<'_>) -> Result<Self, BadProblem> {
        let [batch, rows, cols] = words.dims("BATCHxROWSxCOLS")?;
        let [x, y] = words.types("X:Y")?.map(|dtype: DType| dtype.into());
        Ok(Self {
            batch,
            rows,
            cols,
            x: Matrix::read(words, "x", x, (rows, cols))?,
            y: Matrix::read(words, "y", y, (rows, cols))?,
            overflow: words.option("overflow", Overflow::FORMS)?.unwrap_or_default(),
        })
    }
}
