//! Constant right sides of products, arranged once.

use super::{
    Extent, Tensor,
    matmul::matrix,
    run::{Output, Run, dim, refuse, tight},
    view::Plane,
};
use kp_hal::{
    DType, Result,
    op::{CastArgs, CastSpec, Format, Matrix, Order},
};
use std::{fmt, sync::Arc};

/// A constant right side of products, in the order in which the device's kernels read it fastest.
///
/// Made by [`Tensor::pack`], used like the tensor it was made of: `x.matmul(&w.t().pack(x.dtype())?)`.
#[derive(Clone)]
pub struct Packed {
    /// Shape, format and scales are those of the right side; if there are panels, `codes` are in their order.
    tensor: Tensor,
    panels: Option<Order>,
}

/// The right side of a product: a tensor, or one that was [packed](Tensor::pack).
#[derive(Clone, Copy)]
pub struct Right<'t> {
    pub(super) tensor: &'t Tensor,
    panels: Option<Order>,
}

impl Packed {
    /// Its sizes, outermost first.
    pub fn shape(&self) -> &[usize] {
        self.tensor.shape()
    }

    /// The panels that it lies in; `None` if the device gains nothing from any, and the tensor was left as it is.
    pub fn panels(&self) -> Option<Order> {
        self.panels
    }

    /// Bytes that its numbers and scales occupy on the device.
    pub fn device_bytes(&self) -> u64 {
        self.tensor.device_bytes()
    }
}

impl fmt::Debug for Packed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.panels {
            Some(panels) => write!(f, "Packed({} {}, {panels})", self.tensor.extent, self.tensor.format),
            None => write!(f, "Packed({:?})", self.tensor),
        }
    }
}

impl<'t> From<&'t Tensor> for Right<'t> {
    fn from(tensor: &'t Tensor) -> Self {
        Self { tensor, panels: None }
    }
}

impl<'t> From<&'t Packed> for Right<'t> {
    fn from(packed: &'t Packed) -> Self {
        Self { tensor: &packed.tensor, panels: packed.panels }
    }
}

impl Right<'_> {
    /// The operand and its place in the problem, straightened if it must be.
    pub(super) fn as_operand(self, op: &'static str) -> Result<(Tensor, Plane)> {
        let (operand, plane) = self.tensor.as_operand(op, true)?;
        let Some(order) = self.panels else { return Ok((operand, plane)) };
        let (plane, all) = in_panels(plane, order, operand.format)?;
        Ok((operand.viewed(all), plane))
    }
}

/// Matrices in panels of `order`, and the elements that they take, padding included.
fn in_panels(plane: Plane, order: Order, format: Format) -> Result<(Plane, Extent)> {
    let each = Matrix::tight(format, order, dim("rows", plane.rows)?, dim("columns", plane.cols)?);
    let stride = usize::try_from(each.stride).unwrap_or(usize::MAX);
    let all = tight(&[stride.saturating_mul(plane.batch)], format.dtype)?;
    Ok((Plane { order, ld: 0, stride, ..plane }, all))
}

impl Tensor {
    /// The tensor as a right side that is used many times: arranged once, so that no product has to do it again.
    ///
    /// `left` is the type of the left sides. Which order is best depends on the device and on both types; where nothing is
    /// gained the result is the tensor as it is. A product may be another kernel's then: as exact, and not the same bits.
    ///
    /// # Errors
    /// `BadOperands` if the tensor has fewer than two dimensions; `OutOfMemory`.
    pub fn pack(&self, left: DType) -> Result<Packed> {
        if self.rank() < 2 {
            return Err(refuse("pack", [("b", self.describe())], "it needs at least two dimensions"));
        }
        let dtype = self.dtype();
        let panels = self.engine.caps().panel(dtype).filter(|_| left == dtype && !self.is_empty());
        let Some(order) = panels else { return Ok(Packed { tensor: self.clone(), panels }) };
        let (from, plane) = self.as_operand("pack", true)?;
        let (panels, all) = in_panels(plane, order, self.format)?;
        let mut out = Output::new(&self.engine, all.sizes(), dtype)?;
        let spec = CastSpec {
            batch: dim("batch", plane.batch)?,
            x: matrix(dtype.into(), &plane, plane.batch)?,
            y: matrix(dtype.into(), &panels, plane.batch)?,
            ..CastSpec::new(dim("rows", plane.rows)?, dim("columns", plane.cols)?, dtype, dtype)
        };
        let mut run = Run::new(&self.engine, "pack");
        let args = CastArgs::new(run.read(&from), out.data.codes.slice_mut());
        let how = run.launch(spec, &args)?;
        for (to, from) in [
            (&mut out.data.scale, &from.data.scale),
            (&mut out.data.global, &from.data.global),
            (&mut out.data.zero, &from.data.zero),
        ] {
            *to = from.as_ref().map(|from| self.engine.copy_of(from)).transpose()?;
        }
        let tensor = Tensor { data: Arc::new(out.data), extent: tight(self.shape(), dtype)?, how, ..self.clone() };
        Ok(Packed { tensor, panels: Some(order) })
    }
}
