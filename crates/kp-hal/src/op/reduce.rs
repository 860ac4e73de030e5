//! Many numbers to one: along rows, along columns, or segment by segment.

use super::{
    NeedList, Rows, Spec,
    act::{PLAIN_FLOATS, PLAIN_FLOATS_TEXT},
    args::args,
    format::Access,
    norm::X,
    op,
    problem::{BadProblem, dtype_in},
};
use crate::{
    dtype::DType,
    text::{Reader, Unread, Writer, number, spelled},
};
use std::{fmt, str::FromStr};

op! {
    /// Sums, means and extremes; see [`ReduceSpec`].
    Reduce, ReduceSpec, ReduceArgs, ReduceProblem, reduce
}

/// `rows` × `cols` numbers are reduced along one dimension. Y is tight.
///
/// Over nothing, a sum is 0, a mean NaN, the largest −∞, the smallest +∞, the largest magnitude 0. NaN wins.
/// Text: `reduce ROWSxCOLS X:Y op=sum|mean|max|min|amax over=cols|rows|segments/N ldx=`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReduceSpec {
    /// Rows.
    pub rows: u32,
    /// Columns.
    pub cols: u32,
    /// Input.
    pub x: Rows,
    /// Type of the results.
    pub y: DType,
    /// How.
    pub op: ReduceOp,
    /// Along what.
    pub over: Reduced,
}

/// How numbers are reduced.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ReduceOp {
    /// Their sum.
    Sum,
    /// Their mean.
    Mean,
    /// The largest.
    Max,
    /// The smallest.
    Min,
    /// The largest magnitude.
    Amax,
}
spelled!(ReduceOp { Sum = "sum", Mean = "mean", Max = "max", Min = "min", Amax = "amax" });

/// Along what numbers are reduced.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reduced {
    /// Each row to one number: Y has `rows`.
    Cols,
    /// Each column to one number: Y has `cols`.
    Rows,
    /// Rows `offsets[s] .. offsets[s + 1]` of each column to one number: Y is `segments` × `cols`.
    Segments(u32),
}

impl fmt::Display for Reduced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cols => f.write_str("cols"),
            Self::Rows => f.write_str("rows"),
            Self::Segments(n) => write!(f, "segments/{n}"),
        }
    }
}

impl FromStr for Reduced {
    type Err = Unread;
    /// # Errors
    /// [`Unread`] with the form expected.
    fn from_str(s: &str) -> Result<Self, Unread> {
        const BAD: Unread = Unread { expected: "cols, rows or segments/N" };
        match s {
            "cols" => Ok(Self::Cols),
            "rows" => Ok(Self::Rows),
            _ => s.strip_prefix("segments/").and_then(number).map(Self::Segments).ok_or(BAD),
        }
    }
}

args! {
    /// Buffers of a [`Reduce`].
    ReduceArgs {
        /// Input.
        input x,
        /// Output.
        output y,
        ?
        /// I32, one more than there are segments, ascending, from 0 up to at most `rows`.
        input offsets,
        =
    }
}

impl ReduceSpec {
    /// Tight rows, results of the same type.
    pub fn new(rows: u32, cols: u32, op: ReduceOp, over: Reduced, dtype: DType) -> Self {
        Self { rows, cols, x: Rows::tight(dtype, cols), y: dtype, op, over }
    }

    /// How many results there are.
    pub const fn results(&self) -> u64 {
        match self.over {
            Reduced::Cols => self.rows as u64,
            Reduced::Rows => self.cols as u64,
            Reduced::Segments(n) => n as u64 * self.cols as u64,
        }
    }
}

impl Spec for ReduceSpec {
    const NAME: &'static str = "reduce";

    fn check(&self) -> Result<(), BadProblem> {
        dtype_in("x", self.x.dtype(), &PLAIN_FLOATS, PLAIN_FLOATS_TEXT)?;
        dtype_in("y", self.y, &PLAIN_FLOATS, PLAIN_FLOATS_TEXT)?;
        self.x.check_plain(&X, self.rows, self.cols)
    }

    fn needs(&self, list: &mut NeedList) {
        self.x.needs(list, &X, self.rows, self.cols, Access::INPUT);
        list.output("y", true, self.y, self.results());
        if let Reduced::Segments(n) = self.over {
            list.input("offsets", true, DType::I32, u64::from(n) + 1);
        }
    }

    fn flops(&self) -> f64 {
        f64::from(self.rows) * f64::from(self.cols)
    }

    fn rate_dtype(&self) -> DType {
        self.x.dtype()
    }

    fn write(&self, out: &mut Writer<'_, '_>) -> fmt::Result {
        out.word(format_args!("{}x{}", self.rows, self.cols))?;
        out.word(format_args!("{}:{}", self.x.format, self.y))?;
        out.word(format_args!("op={}", self.op))?;
        out.option("over", &self.over, &Reduced::Cols)?;
        self.x.write(out, "ldx", self.cols)
    }

    fn read(words: &mut Reader<'_>) -> Result<Self, BadProblem> {
        let [rows, cols] = words.dims("ROWSxCOLS")?;
        let [x, y] = words.types::<DType, 2>("X:Y")?;
        Ok(Self {
            rows,
            cols,
            x: Rows::read(words, "ldx", x.into(), cols)?,
            y,
            op: words.option("op", ReduceOp::FORMS)?.ok_or(BadProblem::Missing { what: "op=" })?,
            over: words.option("over", "cols, rows or segments/N")?.unwrap_or(Reduced::Cols),
        })
    }
}
