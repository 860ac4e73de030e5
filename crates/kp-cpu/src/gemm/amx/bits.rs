//! How many numbers of bf16 an operand's elements are the sums of: as many as their bits fill.
//!
//! ```text
//!   element = (code − zero) · scale        so many bits as the factors together; 8 are one number of bf16, 16 two, 24 three
//! ```
//! A scale that serves all of k waits [for sums](is_late). One f32 for everything would fill all bits: its power of two stays with the scales,
//! and [the rest](without_digits) multiplies the product.

use super::parts::PARTS;
use crate::{
    gemm::side::{Scaling, Side, varies},
    numbers,
};
use kp_hal::{
    DType,
    op::{Acc, GemmSpec, Matrix},
};

/// Whether scales of `matrix`, of which an outer row has `inner` elements, are for sums.
pub(super) fn is_late(matrix: &Matrix, inner: u32) -> bool {
    matrix.format.scale_dtype().is_some() && !varies(matrix, inner)
}

/// How an operand is unpacked then.
pub(crate) fn scaling(matrix: &Matrix, inner: u32) -> Scaling {
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
    let of_scale = match matrix.format.scale_dtype().filter(|_| !is_late(matrix, inner)) {
        None | Some(DType::E8m0) => 0,
        Some(DType::Ue4m3) => 4,
        Some(DType::Bf16) => 8,
        Some(DType::F16) => 11,
        Some(_) => ALL,
    };
    parts_of_bits(code_bits(matrix, most) + of_scale)
}

/// The parts that are multiplied of an A and a B of so many. `acc=f32q8` lets A be rounded to 8 bits, and numbers of NF4 be off by 2⁻¹² of themselves: one
/// part is closer to the former than those bits are, and two to the latter.
pub(crate) fn kept([a, b]: [usize; 2], spec: &GemmSpec) -> [usize; 2] {
    match (spec.acc, spec.b.dtype()) {
        (Acc::F32Q8, DType::Nf4) => [1, b.min(2)],
        (Acc::F32Q8, _) => [1, b],
        _ => [a, b],
    }
}

/// The same before they are scaled.
pub(super) fn parts_of_codes(matrix: &Matrix) -> usize {
    parts_of_bits(code_bits(matrix, most_zero(matrix)))
}

/// The largest that a zero point of `matrix` may be.
pub(crate) fn most_zero(matrix: &Matrix) -> u8 {
    if matrix.format.has_zero() { u8::MAX } else { 0 }
}

const ALL: u32 = 24;

fn parts_of_bits(bits: u32) -> usize {
    bits.div_ceil(8).min(PARTS as u32) as usize
}

/// The bits of codes less zero points of at most `most`.
pub(super) fn code_bits(matrix: &Matrix, most: u8) -> u32 {
    let whole = |least: i32, greatest: i32| {
        let magnitude = (least - i32::from(most)).abs().max(greatest);
        // A power of two has but one, so those below it count.
        (magnitude - 1).ilog2() + 1
    };
    match matrix.dtype() {
        DType::I4 => whole(-8, 7),
        DType::U4 => whole(0, 15),
        DType::I8 => whole(-128, 127),
        DType::U8 => whole(0, 255),
        _ if matrix.format.has_zero() => ALL,
        DType::E2m1 => 2,
        DType::E5m2 | DType::E5m2Fnuz => 3,
        DType::E4m3 | DType::E4m3Fnuz => 4,
        DType::Bf16 => 8,
        DType::F16 => 11,
        _ => ALL,
    }
}

/// A number as a power of two, and what that is to be multiplied by; itself and 1 if it is not normal.
pub(super) fn without_digits(x: f32) -> (f32, f32) {
    if !x.is_normal() {
        return (x, 1.0);
    }
    let power = f32::from_bits(x.to_bits() & 0x7f80_0000);
    (power, x / power)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kp_hal::op::GemmProblem;

    #[test]
    fn parts_hold_all_bits() {
        for (b, k, most, parts) in [
            ("f32", 64, 0, 3),
            ("f16", 64, 0, 2),
            ("bf16", 64, 0, 1),
            ("e4m3", 64, 0, 1),
            // Scales of whole columns wait.
            ("i8@row", 64, 0, 1),
            ("nf4@row", 64, 0, 3),
            ("i4@g32/f16", 64, 0, 2),
            ("i4@g32/f32", 64, 0, 3),
            ("u4@g32/f16z", 64, 15, 2),
            ("u4@g32/f16z", 64, 33, 3),
            ("e2m1@mx", 64, 0, 1),
            ("e2m1@nv", 64, 0, 1),
            ("e4m3@128x128", 256, 0, 3),
        ] {
            let text = format!("gemm 1x16x128x{k} f32:{b}:f32 b=col");
            let problem: GemmProblem = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(parts_of(&problem.b, problem.k, most), parts, "{b}, zero points to {most}");
        }
    }

    #[test]
    fn a_power_of_two_and_the_rest_are_the_number() {
        for x in [1.0, -3.25e-7, 6.5e37, f32::MIN_POSITIVE, 1e-40, 0.0, f32::INFINITY] {
            let (power, rest) = without_digits(x);
            assert_eq!(power * rest, x);
            assert!(!x.is_normal() || (1.0..2.0).contains(&rest.abs()), "{x}: {rest}");
        }
        assert!(without_digits(f32::NAN).0.is_nan());
    }
}
