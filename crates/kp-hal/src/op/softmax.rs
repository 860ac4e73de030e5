//! Softmax of rows.

use super::{
    NeedList, Rows, Spec,
    act::{PLAIN_FLOATS, PLAIN_FLOATS_TEXT},
    args::args,
    format::Access,
    norm::{X, Y},
    op,
    problem::{BadProblem, dtype_in},
};
use crate::{
    dtype::DType,
    text::{Reader, Real, Writer},
};
use std::fmt;

op! {
    /// Softmax or its logarithm; see [`SoftmaxSpec`].
    Softmax, SoftmaxSpec, SoftmaxArgs, SoftmaxProblem, softmax
}

/// y = exp(scale · x − max) / Σ exp(scale · x − max) over each row, or its logarithm.
///
/// A row that is −∞ throughout gives NaN, as the formula does. Text: `softmax ROWSxCOLS X:Y scale= ldx= ldy= log`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SoftmaxSpec {
    /// Rows.
    pub rows: u32,
    /// Numbers of a row.
    pub cols: u32,
    /// Input.
    pub x: Rows,
    /// Output.
    pub y: Rows,
    /// Multiplies the input.
    pub scale: Real,
    /// Whether the logarithm is wanted.
    pub log: bool,
}

args! {
    /// Buffers of a [`Softmax`].
    SoftmaxArgs {
        /// Input.
        input x,
        /// Output.
        output y,
        ?
        =
    }
}

const ONE: Real = Real::new(1.0).expect("finite");

impl SoftmaxSpec {
    /// Tight rows of one type, unscaled.
    pub fn new(rows: u32, cols: u32, dtype: DType) -> Self {
        let tight = Rows::tight(dtype, cols);
        Self { rows, cols, x: tight, y: tight, scale: ONE, log: false }
    }
}

impl Spec for SoftmaxSpec {
    const NAME: &'static str = "softmax";

    fn check(&self) -> Result<(), BadProblem> {
        dtype_in("x", self.x.dtype(), &PLAIN_FLOATS, PLAIN_FLOATS_TEXT)?;
        dtype_in("y", self.y.dtype(), &PLAIN_FLOATS, PLAIN_FLOATS_TEXT)?;
        self.x.check_plain(&X, self.rows, self.cols)?;
        self.y.check_plain(&Y, self.rows, self.cols)
    }

    fn needs(&self, list: &mut NeedList) {
        self.x.needs(list, &X, self.rows, self.cols, Access::INPUT);
        self.y.needs(list, &Y, self.rows, self.cols, Access::OUTPUT);
    }

    fn flops(&self) -> f64 {
        5.0 * f64::from(self.rows) * f64::from(self.cols)
    }

    fn rate_dtype(&self) -> DType {
        self.x.dtype()
    }

    fn write(&self, out: &mut Writer<'_, '_>) -> fmt::Result {
        out.word(format_args!("{}x{}", self.rows, self.cols))?;
        out.word(format_args!("{}:{}", self.x.format, self.y.format))?;
        out.option("scale", &self.scale, &ONE)?;
        self.x.write(out, "ldx", self.cols)?;
        self.y.write(out, "ldy", self.cols)?;
        out.flag("log", self.log)
    }

    fn read(words: &mut Reader<'_>) -> Result<Self, BadProblem> {
        let [rows, cols] = words.dims("ROWSxCOLS")?;
        let [x, y] = words.types("X:Y")?.map(|dtype: DType| dtype.into());
        Ok(Self {
            rows,
            cols,
            x: Rows::read(words, "ldx", x, cols)?,
            y: Rows::read(words, "ldy", y, cols)?,
            scale: words.option("scale", "a finite number")?.unwrap_or(ONE),
            log: words.flag("log"),
        })
    }
}
