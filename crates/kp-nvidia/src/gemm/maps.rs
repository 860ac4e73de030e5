//! Matrices as the copy engine sees them: three dimensions, of which the last is the batch.

use super::Check;
use crate::tensor_map::{Element, MapId, Swizzle, Tiled};
use kp_hal::{
    DType, Unsupported,
    op::{Align, Matrix, Order},
};

/// One operand of a plan: its map but for the address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Map {
    pub(super) id: MapId,
    pub(super) tensor: Tiled,
}

/// Rows and columns of a matrix, and how often it repeats.
pub(super) type Shape = (u32, u32, u32);

impl Map {
    /// `matrix` in boxes of `tile` elements, those that lie side by side first.
    pub(super) fn of(matrix: &Matrix, (rows, cols, batch): Shape, tile: [u32; 2], swizzle: Swizzle) -> Self {
        let (along, across) = if matrix.order == Order::Col { (rows, cols) } else { (cols, rows) };
        let bytes = |elements: u64| matrix.dtype().bytes(elements);
        // One matrix for the whole batch is a batch of one, whose distance only has to be a valid number.
        let batch = if matrix.stride == 0 { 1 } else { batch };
        let distance = if batch > 1 { bytes(matrix.stride) } else { bytes(matrix.ld.into()).next_multiple_of(16) };
        // Elements of 4 bits go by twos.
        let in_one = if matrix.dtype().bits() == 4 { 2 } else { 1 };
        let dims = [u64::from(along / in_one), across.into(), batch.into()];
        let boxed = [tile[0] / in_one, tile[1], 1];
        let tensor = Tiled::new(element(matrix.dtype()), &dims, &[bytes(matrix.ld.into()), distance], &boxed);
        Self { id: MapId::next(), tensor: tensor.swizzle(swizzle) }
    }
}

fn element(t: DType) -> Element {
    match t.bits() {
        32 => Element::F32,
        16 => Element::Bf16,
        _ => Element::U8,
    }
}

/// Whether the copy engine can read or write `matrix`.
///
/// # Errors
/// What about it cannot be.
pub(super) fn check(matrix: &Matrix, names: [&'static str; 2], batch: u32, align: Align) -> Check {
    let multiple = |dim, elements: u64| {
        let per_16 = u64::from(128 / matrix.dtype().bits());
        if elements.is_multiple_of(per_16) {
            Ok(())
        } else {
            Err(Unsupported::Align { dim, multiple: per_16, got: elements })
        }
    };
    if align.bytes() < 16 {
        return Err(Unsupported::Address { need: 16, got: align.bytes() });
    }
    multiple(names[0], matrix.ld.into())?;
    multiple(names[1], if batch > 1 { matrix.stride } else { 0 })
}
