//! Judging outputs that hold codes with scales.

use crate::judge::Want;
use kp_hal::op::{Matrix, Overflow, ScaleRule};

/// Codes of a scaled format and the scales that belong to them.
///
/// The scales a kernel wrote are judged first, each within the interval that the slack of its block leaves; then
/// every code is judged against the scale that the kernel chose.
#[derive(Clone, Debug)]
pub struct Scaled {
    /// The operand that holds the codes.
    pub codes: &'static str,
    /// Its scales.
    pub scale: Part,
    /// The f32 that multiplies all scales.
    pub global: Part,
    /// Its zero points.
    pub zero: Part,
    /// Layout and format; outer rows, inner columns.
    pub matrix: Matrix,
    /// Rows, columns, batch.
    pub shape: (u32, u32, u32),
    /// How scales are rounded.
    pub rule: ScaleRule,
    /// What becomes of numbers past the largest code.
    pub overflow: Overflow,
    /// `[batch][rows][cols]`: what the numbers are before they are scaled and rounded.
    pub values: Vec<Want>,
}

/// Where a part of a scaled operand comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The format has none.
    Absent,
    /// The caller gave it, in this operand.
    Given(&'static str),
    /// The kernel computes it, into this operand.
    Written(&'static str),
}
