//! Where the elements of a matrix lie.

use super::{
    NeedList,
    format::{Access, Format, Scheme},
    problem::{BadProblem, at_least, exclusive, multiple},
};
use crate::{
    dtype::DType,
    text::{Reader, Unread, Writer, number},
};
use std::{fmt, str::FromStr};

/// Which index is contiguous.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Order {
    /// Rows are contiguous.
    #[default]
    Row,
    /// Columns are contiguous.
    Col,
    /// Panels of `width` columns, panel after panel. A panel holds groups of `depth` rows; a group holds, for
    /// each of its columns in turn, `depth` consecutive elements of that column. Both ends are padded with zeros.
    /// What a GEMM kernel wants of a constant B; `cast` makes it.
    Panel {
        /// Columns of a panel.
        width: u16,
        /// Consecutive elements of one column.
        depth: u16,
    },
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Row => f.write_str("row"),
            Self::Col => f.write_str("col"),
            Self::Panel { width, depth } => write!(f, "panel{width}x{depth}"),
        }
    }
}

impl FromStr for Order {
    type Err = Unread;
    /// # Errors
    /// [`Unread`] with the form expected.
    fn from_str(s: &str) -> Result<Self, Unread> {
        const BAD: Unread = Unread { expected: "row, col or panelWIDTHxDEPTH" };
        match s {
            "row" => Ok(Self::Row),
            "col" => Ok(Self::Col),
            _ => {
                let (width, depth) = s.strip_prefix("panel").and_then(|s| s.split_once('x')).ok_or(BAD)?;
                Ok(Self::Panel { width: number(width).ok_or(BAD)?, depth: number(depth).ok_or(BAD)? })
            }
        }
    }
}

/// A matrix, repeated `batch` times.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Matrix {
    /// Codes and scales.
    pub format: Format,
    /// Which index is contiguous.
    pub order: Order,
    /// Distance between rows (or columns, if `Col`), in elements; 0 for panels, which have none.
    pub ld: u32,
    /// Distance between the matrices of a batch, in elements; 0 repeats one matrix.
    pub stride: u64,
}

impl Matrix {
    /// A matrix of `rows` × `cols` without gaps.
    pub fn tight(format: impl Into<Format>, order: Order, rows: u32, cols: u32) -> Self {
        let format = format.into();
        let per_byte = format.dtype.per_byte();
        let ld = match order {
            Order::Row => cols.checked_next_multiple_of(per_byte).unwrap_or(u32::MAX),
            Order::Col => rows.checked_next_multiple_of(per_byte).unwrap_or(u32::MAX),
            Order::Panel { .. } => 0,
        };
        let matrix = Self { format, order, ld, stride: 0 };
        Self { stride: matrix.tight_stride(rows, cols), ..matrix }
    }

    /// Type of the codes.
    pub const fn dtype(&self) -> DType {
        self.format.dtype
    }

    /// Elements from one matrix of a batch to the next when nothing lies between them.
    pub fn tight_stride(&self, rows: u32, cols: u32) -> u64 {
        match self.order {
            Order::Row => u64::from(rows) * u64::from(self.ld),
            Order::Col => u64::from(cols) * u64::from(self.ld),
            Order::Panel { width, depth } => {
                let padded = |n: u32, to: u16| u64::from(n).div_ceil(u64::from(to.max(1))) * u64::from(to);
                padded(cols, width).saturating_mul(padded(rows, depth))
            }
        }
    }

    /// Index of element (`row`, `col`) within one matrix.
    pub const fn index(&self, row: u32, col: u32, rows: u32) -> u64 {
        let (row, col, ld) = (row as u64, col as u64, self.ld as u64);
        match self.order {
            Order::Row => row * ld + col,
            Order::Col => col * ld + row,
            Order::Panel { width, depth } => {
                let (width, depth) = (width as u64, depth as u64);
                let panel = (rows as u64).div_ceil(depth) * depth * width;
                col / width * panel + row / depth * depth * width + col % width * depth + row % depth
            }
        }
    }

    /// Elements from the first to the last one touched, in `batch` copies; saturates, so that a span no
    /// buffer can have fails the check instead of wrapping past it.
    pub fn span(&self, rows: u32, cols: u32, batch: u32) -> u64 {
        if rows == 0 || cols == 0 || batch == 0 {
            return 0;
        }
        let one = match self.order {
            Order::Row => u64::from(rows - 1) * u64::from(self.ld) + u64::from(cols),
            Order::Col => u64::from(cols - 1) * u64::from(self.ld) + u64::from(rows),
            Order::Panel { .. } => self.tight_stride(rows, cols),
        };
        u64::from(batch - 1).saturating_mul(self.stride).saturating_add(one)
    }

    /// The same matrix with the fields that have no meaning set to their defaults.
    pub(super) fn canonical(self, rows: u32, cols: u32, batch: u32) -> Self {
        let ld = if matches!(self.order, Order::Panel { .. }) { 0 } else { self.ld };
        let canonical = Self { ld, ..self };
        if batch <= 1 { Self { stride: canonical.tight_stride(rows, cols), ..canonical } } else { canonical }
    }

    /// Refuses overlapping rows, odd distances of packed types and, for outputs, overlapping matrices.
    pub(super) fn check(
        &self,
        names: &MatrixNames,
        (rows, cols, batch): (u32, u32, u32),
        output: bool,
    ) -> Result<(), BadProblem> {
        self.format.check(names.operand)?;
        let per_byte = u64::from(self.format.dtype.per_byte());
        match self.order {
            Order::Row => at_least(names.ld, cols.into(), self.ld.into())?,
            Order::Col => at_least(names.ld, rows.into(), self.ld.into())?,
            Order::Panel { width, depth } => {
                at_least("panel width", 1, width.into())?;
                at_least("panel depth", 1, depth.into())?;
                multiple("panel width x depth", per_byte, u64::from(width) * u64::from(depth))?;
            }
        }
        multiple(names.ld, per_byte, self.ld.into())?;
        multiple(names.stride, per_byte, self.stride)?;
        if batch > 1 && (output || self.stride != 0) {
            at_least(names.stride, self.span(rows, cols, 1), self.stride)?;
        }
        Ok(())
    }

    /// Lists the operand and what scales it; `outer` and `inner` say how its scheme sees it.
    pub(super) fn needs(
        &self,
        list: &mut NeedList,
        names: &MatrixNames,
        (rows, cols, batch): (u32, u32, u32),
        (outer, inner): (u32, u32),
        access: Access,
    ) {
        let names = [names.operand, names.scale, names.global, names.zero];
        self.format.needs(list, names, self.span(rows, cols, batch), (outer, inner, batch), access);
    }

    /// Writes `key=order[/ld[/stride]]`, as much of it as differs from tight rows.
    pub(super) fn write(&self, out: &mut Writer<'_, '_>, key: &str, (rows, cols): (u32, u32)) -> fmt::Result {
        let tight = Self::tight(self.format, self.order, rows, cols);
        let stride_is_tight = self.stride == self.tight_stride(rows, cols);
        match (self.ld == tight.ld, stride_is_tight) {
            (true, true) if self.order == Order::Row => Ok(()),
            (true, true) => out.word(format_args!("{key}={}", self.order)),
            (false, true) => out.word(format_args!("{key}={}/{}", self.order, self.ld)),
            (_, false) => out.word(format_args!("{key}={}/{}/{}", self.order, self.ld, self.stride)),
        }
    }

    /// Reads what `write` writes.
    pub(super) fn read(
        words: &mut Reader<'_>,
        key: &'static str,
        format: Format,
        (rows, cols): (u32, u32),
    ) -> Result<Self, BadProblem> {
        let LayoutText { order, ld, stride } = words.option(key, "order[/ld[/batch stride]]")?.unwrap_or_default();
        let mut matrix = Self::tight(format, order, rows, cols);
        matrix.ld = ld.unwrap_or(matrix.ld);
        matrix.stride = stride.unwrap_or(matrix.tight_stride(rows, cols));
        Ok(matrix)
    }
}

/// How a problem spells one matrix and its parts.
pub(super) struct MatrixNames {
    pub(super) operand: &'static str,
    pub(super) scale: &'static str,
    pub(super) global: &'static str,
    pub(super) zero: &'static str,
    pub(super) ld: &'static str,
    pub(super) stride: &'static str,
}

macro_rules! matrix_names {
    ($x:literal) => {
        $crate::op::layout::MatrixNames {
            operand: $x,
            scale: concat!($x, "_scale"),
            global: concat!($x, "_global"),
            zero: concat!($x, "_zero"),
            ld: concat!("ld of ", $x),
            stride: concat!("batch stride of ", $x),
        }
    };
}
pub(super) use matrix_names;

#[derive(Default)]
struct LayoutText {
    order: Order,
    ld: Option<u32>,
    stride: Option<u64>,
}

impl FromStr for LayoutText {
    type Err = Unread;
    fn from_str(s: &str) -> Result<Self, Unread> {
        const BAD: Unread = Unread { expected: "ORDER[/LD[/STRIDE]]" };
        let mut parts = s.split('/');
        let order = parts.next().ok_or(BAD)?.parse()?;
        let ld = parts.next().map(|p| number(p).ok_or(BAD)).transpose()?;
        let stride = parts.next().map(|p| number(p).ok_or(BAD)).transpose()?;
        if parts.next().is_some() { Err(BAD) } else { Ok(Self { order, ld, stride }) }
    }
}

/// Rows of equal length, the operand of every op that works row by row.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Rows {
    /// Codes and scales.
    pub format: Format,
    /// Distance between rows, in elements.
    pub ld: u32,
}

impl Rows {
    /// Rows of `cols` elements without gaps.
    pub fn tight(format: impl Into<Format>, cols: u32) -> Self {
        let matrix = Matrix::tight(format, Order::Row, 1, cols);
        Self { format: matrix.format, ld: matrix.ld }
    }

    /// Type of the codes.
    pub const fn dtype(&self) -> DType {
        self.format.dtype
    }

    /// The same as a matrix.
    pub fn as_matrix(&self, rows: u32) -> Matrix {
        let stride = u64::from(rows) * u64::from(self.ld);
        Matrix { format: self.format, order: Order::Row, ld: self.ld, stride }
    }

    /// Elements from the first to the last one touched.
    pub fn span(&self, rows: u32, cols: u32) -> u64 {
        self.as_matrix(rows).span(rows, cols, 1)
    }

    pub(super) fn check(&self, names: &MatrixNames, rows: u32, cols: u32) -> Result<(), BadProblem> {
        self.as_matrix(rows).check(names, (rows, cols, 1), false)
    }

    /// As `check`, for ops whose operands have no scales.
    pub(super) fn check_plain(&self, names: &MatrixNames, rows: u32, cols: u32) -> Result<(), BadProblem> {
        exclusive(self.format.scheme != Scheme::None, names.operand, "scales")?;
        self.check(names, rows, cols)
    }

    pub(super) fn needs(&self, list: &mut NeedList, names: &MatrixNames, rows: u32, cols: u32, access: Access) {
        self.as_matrix(rows).needs(list, names, (rows, cols, 1), (rows, cols), access);
    }

    /// Writes `key=ld` unless the rows are tight.
    pub(super) fn write(&self, out: &mut Writer<'_, '_>, key: &str, cols: u32) -> fmt::Result {
        out.option(key, &self.ld, &Self::tight(self.format, cols).ld)
    }

    /// Reads what `write` writes.
    pub(super) fn read(
        words: &mut Reader<'_>,
        key: &'static str,
        format: Format,
        cols: u32,
    ) -> Result<Self, BadProblem> {
        let tight = Self::tight(format, cols);
        let ld = words.option::<Whole>(key, "a number of elements")?.map_or(tight.ld, |w| w.0);
        Ok(Self { ld, ..tight })
    }
}

/// A `u32` in plain digits.
pub(super) struct Whole(pub(super) u32);

impl FromStr for Whole {
    type Err = Unread;
    fn from_str(s: &str) -> Result<Self, Unread> {
        const BAD: Unread = Unread { expected: "a whole number" };
        number(s).map(Self).ok_or(BAD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_are_distinct_and_inside_the_span() {
        for order in [Order::Row, Order::Col, Order::Panel { width: 4, depth: 2 }, Order::Panel { width: 16, depth: 1 }]
        {
            let (rows, cols) = (7, 9);
            let m = Matrix::tight(DType::F32, order, rows, cols);
            let mut seen: Vec<u64> = (0..rows).flat_map(|r| (0..cols).map(move |c| m.index(r, c, rows))).collect();
            assert!(seen.iter().all(|&i| i < m.span(rows, cols, 1)), "{order}");
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len() as u32, rows * cols, "{order}");
        }
    }

    #[test]
    fn spans_saturate() {
        let m = Matrix { ld: u32::MAX, stride: u64::MAX, ..Matrix::tight(DType::F64, Order::Row, 1, 1) };
        assert_eq!(m.span(u32::MAX, u32::MAX, u32::MAX), u64::MAX);
        assert_eq!(m.span(0, u32::MAX, u32::MAX), 0);
    }
}
