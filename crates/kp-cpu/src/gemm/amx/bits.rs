//! How many numbers of bf16 an operand's elements are the sums of: as many as their bits fill.
//!
//! ```text
//!   element = (code − zero) · scale        so many bits as the factors together; 8 are one number of bf16, 16 two, 24 three
//! ```
//! A scale that serves all of k is [left](is_late) for sums. Of one f32 for everything only its power of two is [left](without_digits), and the rest
//! multiplies the product: it would fill all bits otherwise.

use super::parts::PARTS;
use crate::{
    gemm::side::{Scaling, Side, varies},
    numbers,
};
use kp_hal::{DType, op::Matrix};

/// Whether scales of `matrix`, of which an outer row has `inner` elements, are for sums.
pub(super) fn is_late(matrix: &Matrix, inner: u32) -> bool {
    matrix.format.scale_dtype().is_some() && !varies(matrix, inner)
}

/// How an operand is unpacked then.
pub(super) fn scaling(matrix: &Matrix, inner: u32) -> Scaling {
    if is_late(matrix, inner) { Scaling::Left } else { Scaling::Applied }
}

/// The parts of an operand's numbers, as its zero points and its f32 for everything are.
pub(super) fn parts(side: &Side<'_>) -> usize {
    const DIGITS: u32 = 0x7f_ffff;
    let has_digits = !side.global.is_empty() && {
        let global: f32 = numbers::get(DType::F32, side.global, 0);
        global.to_bits() & DIGITS != 0
    };
    match has_digits {
        true => PARTS,
        false => parts_of(&side.matrix, side.inner, side.zeros.iter().copied().max().unwrap_or(0)),
    }
}

/// The parts of a matrix's numbers, with zero points of at most `most`.
pub(crate) fn parts_of(matrix: &Matrix, inner: u32, most: u8) -> usize {
    const ALL: u32 = 24;
    let format = matrix.format;
    let whole = |least: i32, greatest: i32| {
        let magnitude = (least - i32::from(most)).abs().max(greatest);
        // A power of two has but one, so those below it count.
        (magnitude - 1).ilog2() + 1
    };
    let of_code = match matrix.dtype() {
        DType::I4 => whole(-8, 7),
        DType::U4 => whole(0, 15),
        DType::I8 => whole(-128, 127),
        DType::U8 => whole(0, 255),
        _ if format.has_zero() => ALL,
        DType::E2m1 => 2,
        DType::E5m2 | DType::E5m2Fnuz => 3,
        DType::E4m3 | DType::E4m3Fnuz => 4,
        DType::Bf16 => 8,
        DType::F16 => 11,
        _ => ALL,
    };
    let of_scale = match format.scale_dtype().filter(|_| !is_late(matrix, inner)) {
        None | Some(DType::E8m0) => 0,
        Some(DType::Ue4m3) => 4,
        Some(DType::Bf16) => 8,
        Some(DType::F16) => 11,
        Some(_) => ALL,
    };
    (of_code + of_scale).div_ceil(8).min(PARTS as u32) as usize
}

/// A number as a power of two, and what that is to be multiplied by; itself and 1 if it is not normal.
pub(super) fn without_digits(x: f32) -> (f32, f32) {
    if !x.is_normal() {
        return (x, 1.0);
    }
    let power = f32::from_bits(x.to_bits() & 0x7f80_0000);
    (power, x / power)
}
