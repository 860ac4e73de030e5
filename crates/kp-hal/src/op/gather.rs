//! Rows of a table, chosen by index: embeddings, tokens of an expert.

use super::{
    NeedList, Rows, Spec,
    args::args,
    format::Access,
    layout::{MatrixNames, matrix_names},
    norm::Y,
    op,
    problem::{BadProblem, exclusive},
};
use crate::{
    dtype::DType,
    text::{Reader, Writer},
};
use std::fmt;

op! {
    /// Rows of a table by index; see [`GatherSpec`].
    Gather, GatherSpec, GatherArgs, GatherProblem, gather
}

/// Row i of Y is row `index[i]` of a table of `table_rows` rows, cast to Y's type as `cast` does.
///
/// An index outside the table gives a row of NaN, of zeros if Y's type has no NaN.
/// Text: `gather ROWSxCOLS TABLE:Y from=TABLE_ROWS ldt= ldy=`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GatherSpec {
    /// Rows of Y.
    pub rows: u32,
    /// Columns of both.
    pub cols: u32,
    /// Rows of the table.
    pub table_rows: u32,
    /// The table.
    pub table: Rows,
    /// The rows chosen.
    pub y: Rows,
}

args! {
    /// Buffers of a [`Gather`].
    GatherArgs {
        /// The table.
        input table,
        /// I32, one per row of Y.
        input index,
        /// The rows chosen.
        output y,
        ?
        =
    }
}

const TABLE: MatrixNames = matrix_names!("table");

impl GatherSpec {
    /// Tight rows of one type.
    pub fn new(rows: u32, cols: u32, table_rows: u32, dtype: DType) -> Self {
        let tight = Rows::tight(dtype, cols);
        Self { rows, cols, table_rows, table: tight, y: tight }
    }
}

impl Spec for GatherSpec {
    const NAME: &'static str = "gather";

    fn check(&self) -> Result<(), BadProblem> {
        exclusive(self.table.dtype().is_float() != self.y.dtype().is_float(), "integers", "floats")?;
        self.table.check_plain(&TABLE, self.table_rows, self.cols)?;
        self.y.check_plain(&Y, self.rows, self.cols)
    }

    fn needs(&self, list: &mut NeedList) {
        self.table.needs(list, &TABLE, self.table_rows, self.cols, Access::INPUT);
        list.input("index", true, DType::I32, self.rows.into());
        self.y.needs(list, &Y, self.rows, self.cols, Access::OUTPUT);
    }

    fn bytes(&self) -> u64 {
        let touched = Self { table_rows: self.table_rows.min(self.rows), ..*self };
        let mut list = NeedList::default();
        touched.needs(&mut list);
        list.total_bytes()
    }

    fn flops(&self) -> f64 {
        0.0
    }

    fn rate_dtype(&self) -> DType {
        self.table.dtype()
    }

    fn write(&self, out: &mut Writer<'_, '_>) -> fmt::Result {
        out.word(format_args!("{}x{}", self.rows, self.cols))?;
        out.word(format_args!("{}:{}", self.table.format, self.y.format))?;
        out.word(format_args!("from={}", self.table_rows))?;
        self.table.write(out, "ldt", self.cols)?;
        self.y.write(out, "ldy", self.cols)
    }

    fn read(words: &mut Reader<'_>) -> Result<Self, BadProblem> {
        use super::layout::Whole;
        let [rows, cols] = words.dims("ROWSxCOLS")?;
        let [table, y] = words.types("TABLE:Y")?.map(|dtype: DType| dtype.into());
        let Whole(table_rows) = words.option("from", "a whole number")?.ok_or(BadProblem::Missing { what: "from" })?;
        Ok(Self {
            rows,
            cols,
            table_rows,
            table: Rows::read(words, "ldt", table, cols)?,
            y: Rows::read(words, "ldy", y, cols)?,
        })
    }
}
