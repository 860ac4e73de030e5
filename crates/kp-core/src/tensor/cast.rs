//! Conversion between types, and copies that straighten views.

use super::{
    Extent, How, Tensor,
    run::{Output, Run, dim, refuse},
    view::Plane,
};
use kp_hal::{
    DType, Result,
    op::{CastArgs, CastSpec, Matrix, Order},
};

impl Tensor {
    /// The same numbers as `dtype`, rounded to nearest even; the same tensor if that is its type.
    ///
    /// Floats become integers by rounding and saturating, NaN becoming 0.
    ///
    /// # Errors
    /// `BadOperands` if the tensor has scales; `Unsupported` if no kernel converts between the two; `OutOfMemory`.
    pub fn cast(&self, dtype: DType) -> Result<Self> {
        self.plain("cast", "x")?;
        if dtype == self.dtype() { Ok(self.clone()) } else { self.copied(dtype) }
    }

    /// A tight copy as `dtype`.
    pub(super) fn copied(&self, dtype: DType) -> Result<Self> {
        let mut out = Output::new(&self.engine, self.shape(), dtype)?;
        let how = self.copy_part(self.extent, &mut out, 0)?;
        let error_bound = self.error_bound.filter(|_| dtype == self.dtype());
        Ok(Tensor { error_bound, ..out.finish(&self.engine, how) })
    }

    /// Copies the part `extent` to elements from `at` of `out`: in one launch if it is a pattern that a kernel can
    /// be told, else in one launch per index of the outermost dimension.
    fn copy_part(&self, extent: Extent, out: &mut Output, at: u64) -> Result<How> {
        let y = out.dtype();
        if !extent.start.is_multiple_of(self.dtype().per_byte() as usize) {
            return Err(refuse("cast", [("x", self.describe())], "rows of 4-bit codes must begin at whole bytes"));
        }
        if let Some(plane) = extent.as_planes(self.dtype()) {
            let spec = spec(&plane, self.dtype(), y)?;
            let part = self.viewed(extent);
            let mut run = Run::new(&self.engine, "cast");
            let from = y.bytes(at);
            let room = y.bytes(spec.y.span(spec.rows, spec.cols, spec.batch));
            let from = if room == 0 { 0 } else { from };
            let to = out.data.codes.slice_mut().at(from..from + room);
            run.wrote(&to);
            let args = CastArgs::new(run.read(&part), to);
            return run.launch(spec, &args);
        }
        let inner = extent.inner(0);
        let (rows, cols) = inner.rows_and_cols();
        let each = rows * cols.next_multiple_of(y.per_byte() as usize);
        let mut how = How::Host;
        for i in 0..extent.sizes()[0] {
            how = self.copy_part(extent.inner(i), out, at + (i * each) as u64)?;
        }
        Ok(how)
    }
}

fn spec(plane: &Plane, x: DType, y: DType) -> Result<CastSpec> {
    let (rows, cols) = (dim("rows", plane.rows)?, dim("columns", plane.cols)?);
    let matrix =
        Matrix { format: x.into(), order: plane.order, ld: dim("ld of x", plane.ld)?, stride: plane.stride as u64 };
    Ok(CastSpec {
        batch: dim("batch", plane.batch)?,
        x: matrix,
        y: Matrix::tight(y, Order::Row, rows, cols),
        ..CastSpec::new(rows, cols, x, y)
    })
}
