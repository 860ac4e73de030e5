//! Which products suit loops for few rows by columns of four bits.

use super::{columns, lists::can_list};
use crate::gemm::side::varies;
use kp_hal::{
    Caps, DType, Unsupported,
    op::{GemmProblem, Order},
};

/// Whether `p` suits loops in f32 of `features` for columns of four bits and at most `most` rows.
///
/// # Errors
/// The first part that does not.
pub(crate) fn four_bits(
    caps: &Caps,
    features: &[&'static str],
    p: &GemmProblem,
    most: usize,
) -> Result<(), Unsupported> {
    columns::suits(caps, features, p, most, Order::Col)?;
    if !matches!(p.b.dtype(), DType::I4 | DType::U4 | DType::Nf4 | DType::E2m1) {
        return Err(Unsupported::DType { operand: "b", got: p.b.dtype() });
    }
    if varies(&p.b, p.k) && !can_list(&p.b, p.k) {
        return Err(Unsupported::Scheme { operand: "b", got: p.b.format.to_string() });
    }
    Ok(())
}
