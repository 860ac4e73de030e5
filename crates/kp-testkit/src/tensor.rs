//! Operands as numbers by logical index: layout, packing and scales undone.

use crate::operands::{Codes, Operands, Parts};
use kp_hal::op::{Format, Matrix, Rows, Scheme};

/// Numbers by batch, row and column.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Rows of one matrix.
    pub rows: usize,
    /// Columns of one matrix.
    pub cols: usize,
    /// `[batch][rows][cols]`.
    pub values: Vec<f64>,
}

/// Which dimension of a matrix its scheme calls inner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Inner {
    /// The columns: A of a GEMM, D, and everything row-wise.
    Cols,
    /// The rows: B of a GEMM.
    Rows,
}

impl Tensor {
    /// A matrix that no scheme scales.
    pub fn plain(codes: Codes<'_>, m: &Matrix, (rows, cols, batch): (u32, u32, u32)) -> Self {
        let mut values = Vec::with_capacity(batch as usize * rows as usize * cols as usize);
        for b in 0..batch {
            for row in 0..rows {
                values.extend((0..cols).map(|col| codes.value(place(m, (rows, b), row, col))));
            }
        }
        Self { rows: rows as usize, cols: cols as usize, values }
    }

    /// Rows that no scheme scales.
    pub fn rows(codes: Codes<'_>, r: &Rows, rows: u32, cols: u32) -> Self {
        Self::plain(codes, &r.as_matrix(rows), (rows, cols, 1))
    }

    /// A matrix with its scales, global scale and zero points applied.
    pub fn scaled(
        operands: &Operands,
        parts: Parts,
        m: &Matrix,
        (rows, cols, batch): (u32, u32, u32),
        inner: Inner,
    ) -> Self {
        let mut tensor = Self::plain(operands.codes(parts[0]), m, (rows, cols, batch));
        tensor.scale(operands, parts, m.format, inner);
        tensor
    }

    /// Applies the scales of `format` to codes that are already in place.
    pub fn scale(&mut self, operands: &Operands, parts: Parts, format: Format, inner: Inner) {
        if format.scheme == Scheme::None || self.values.is_empty() {
            return;
        }
        let (rows, cols) = (self.rows as u32, self.cols as u32);
        let extent = match inner {
            Inner::Cols => (rows, cols),
            Inner::Rows => (cols, rows),
        };
        let scales = Scales::new(operands, parts, format, extent);
        for (b, matrix) in self.values.chunks_mut(self.rows * self.cols).enumerate() {
            for (row, values) in matrix.chunks_mut(self.cols).enumerate() {
                for (col, value) in values.iter_mut().enumerate() {
                    let (row, col) = (row as u32, col as u32);
                    let (o, i) = if inner == Inner::Cols { (row, col) } else { (col, row) };
                    *value = scales.apply(*value, b as u32, o, i);
                }
            }
        }
    }

    /// One number.
    #[inline]
    pub fn at(&self, b: usize, row: usize, col: usize) -> f64 {
        self.values[(b * self.rows + row) * self.cols + col]
    }

    /// One row.
    #[inline]
    pub fn row(&self, b: usize, row: usize) -> &[f64] {
        &self.values[(b * self.rows + row) * self.cols..][..self.cols]
    }
}

/// Index of element (`row`, `col`) of matrix `b` among all elements of the operand.
pub fn place(m: &Matrix, (rows, b): (u32, u32), row: u32, col: u32) -> u64 {
    u64::from(b) * m.stride + m.index(row, col, rows)
}

/// The scales of one operand.
#[derive(Clone, Copy, Debug)]
pub struct Scales<'a> {
    format: Format,
    extent: (u32, u32),
    scale: Option<Codes<'a>>,
    zero: Option<Codes<'a>>,
    global: f64,
}

impl<'a> Scales<'a> {
    /// The parts of a scaled operand; `extent` is outer × inner of one matrix. An empty name is an absent part.
    pub fn new(operands: &'a Operands, parts: Parts, format: Format, extent: (u32, u32)) -> Self {
        let part = |name: &str| if name.is_empty() { None } else { operands.maybe(name) };
        let [_, scale, global, zero] = parts.map(part);
        Self { format, extent, scale, zero, global: global.map_or(1.0, |g| g.value(0)) }
    }

    /// Where the scale of element (`o`, `i`) of matrix `b` lies.
    pub fn index(&self, b: u32, o: u32, i: u32) -> u64 {
        if self.format.scheme == Scheme::Tensor {
            return 0;
        }
        let (outer, inner) = self.format.block();
        let count = self.format.scale_count(self.extent.0, self.extent.1);
        u64::from(b) * count + self.format.scale_index((o / outer, i / inner), self.extent)
    }

    /// What the element of value `code` at (`o`, `i`) of matrix `b` means.
    pub fn apply(&self, code: f64, b: u32, o: u32, i: u32) -> f64 {
        let Some(scale) = self.scale else { return code };
        let at = self.index(b, o, i);
        let zero = self.zero.map_or(0.0, |z| z.value(at));
        (code - zero) * scale.value(at) * self.global
    }
}
