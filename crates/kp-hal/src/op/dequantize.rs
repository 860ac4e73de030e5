//! Narrow codes with scales to numbers.

use super::{
    Format, NeedList, Rows, Scheme, Spec,
    act::{PLAIN_FLOATS, PLAIN_FLOATS_TEXT},
    args::args,
    format::Access,
    norm::Y,
    op,
    problem::{BadProblem, dtype_in, exclusive},
    quantize::{NARROW, NARROW_TEXT, Q},
};
use crate::{
    dtype::DType,
    text::{Reader, Writer},
};
use std::fmt;

op! {
    /// From codes and scales to numbers; see [`DequantizeSpec`].
    Dequantize, DequantizeSpec, DequantizeArgs, DequantizeProblem, dequantize
}

/// `rows` × `cols` codes become numbers: code · scale (· global), or (code − zero) · scale.
/// Text: `dequantize ROWSxCOLS Q:Y` then `ldq= ldy=`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DequantizeSpec {
    /// Rows, the scheme's outer dimension.
    pub rows: u32,
    /// Columns, the scheme's inner dimension.
    pub cols: u32,
    /// Codes and scales.
    pub q: Rows,
    /// Numbers: f64, f32, f16 or bf16.
    pub y: Rows,
}

args! {
    /// Buffers of a [`Dequantize`].
    DequantizeArgs {
        /// Codes.
        input q,
        /// Numbers.
        output y,
        ?
        /// Scales.
        input scale,
        /// The one f32 of `@nv`.
        input global,
        /// Zero points.
        input zero,
        =
    }
}

impl DequantizeSpec {
    /// Tight rows.
    pub fn new(rows: u32, cols: u32, q: Format, y: DType) -> Self {
        Self { rows, cols, q: Rows::tight(q, cols), y: Rows::tight(y, cols) }
    }
}

impl Spec for DequantizeSpec {
    const NAME: &'static str = "dequantize";

    fn check(&self) -> Result<(), BadProblem> {
        dtype_in("q", self.q.dtype(), &NARROW, NARROW_TEXT)?;
        dtype_in("y", self.y.dtype(), &PLAIN_FLOATS, PLAIN_FLOATS_TEXT)?;
        exclusive(self.y.format.scheme != Scheme::None, "y", "scales")?;
        self.q.check(&Q, self.rows, self.cols)?;
        self.y.check(&Y, self.rows, self.cols)
    }

    fn needs(&self, list: &mut NeedList) {
        self.q.needs(list, &Q, self.rows, self.cols, Access::INPUT);
        self.y.needs(list, &Y, self.rows, self.cols, Access::OUTPUT);
    }

    fn flops(&self) -> f64 {
        f64::from(self.rows) * f64::from(self.cols)
    }

    fn rate_dtype(&self) -> DType {
        self.y.dtype()
    }

    fn write(&self, out: &mut Writer<'_, '_>) -> fmt::Result {
        out.word(format_args!("{}x{}", self.rows, self.cols))?;
        out.word(format_args!("{}:{}", self.q.format, self.y.format))?;
        self.q.write(out, "ldq", self.cols)?;
        self.y.write(out, "ldy", self.cols)
    }

    fn read(words: &mut Reader<'_>) -> Result<Self, BadProblem> {
        let [rows, cols] = words.dims("ROWSxCOLS")?;
        let [q, y] = words.types::<Format, 2>("Q:Y, each dtype[@scheme]")?;
        let q = Rows::read(words, "ldq", q, cols)?;
        let y = Rows::read(words, "ldy", y, cols)?;
        Ok(Self { rows, cols, q, y })
    }
}
