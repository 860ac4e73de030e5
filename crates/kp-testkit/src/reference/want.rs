//! What a kernel may answer: an interval for each number of an output.

use crate::formats::{decode, encode, unit_roundoff};
use kp_hal::{
    DType,
    op::{Overflow, Rows},
};

/// The inputs of one launch by name, decoded, in the order in which they are stored; empty if there is none.
pub type Get<'a> = dyn Fn(&str) -> &'a [f64] + 'a;

/// What each output may hold, by name, in the order in which it is stored.
pub type Wants = Vec<(&'static str, Vec<Want>)>;

/// What one number of an output may be.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Want {
    /// It belongs to no row: nothing may be written there.
    Gap,
    /// Nothing can be said of it.
    Any,
    /// It is NaN.
    Nan,
    /// It is at least `lo` and at most `hi`.
    Between {
        /// The least it may be.
        lo: f64,
        /// What it is in exact arithmetic.
        value: f64,
        /// The most it may be.
        hi: f64,
    },
}

impl Want {
    /// `value` and nothing else.
    pub fn exact(value: f64) -> Self {
        Self::near(value, 0.0)
    }

    /// At most `error` away from `value`; an infinite `error` says nothing, a `value` that is not finite is exact.
    pub fn near(value: f64, error: f64) -> Self {
        if error == f64::INFINITY {
            Self::Any
        } else if value.is_nan() {
            Self::Nan
        } else if value.is_infinite() {
            Self::Between { lo: value, value, hi: value }
        } else if error.is_nan() {
            Self::Any
        } else {
            Self::Between { lo: value - error, value, hi: value + error }
        }
    }

    /// What it may be once stored as `dtype`: rounding is monotonic, so both ends are rounded.
    #[must_use]
    pub fn stored(self, dtype: DType) -> Self {
        match self {
            Self::Between { lo, value, hi } => {
                Self::Between { lo: rounded(dtype, lo), value: rounded(dtype, value), hi: rounded(dtype, hi) }
            }
            other => other,
        }
    }

    /// Whether `got` may be the answer.
    pub fn admits(self, got: f64) -> bool {
        match self {
            Self::Gap | Self::Any => true,
            Self::Nan => got.is_nan(),
            Self::Between { lo, hi, .. } => lo <= got && got <= hi,
        }
    }
}

/// What a number may be before it is stored.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Ball {
    /// In exact arithmetic.
    pub value: f64,
    /// How far an honest kernel may be from it.
    pub error: f64,
}

impl Ball {
    /// What it may be once stored as `dtype`.
    pub fn stored(self, dtype: DType) -> Want {
        Want::near(self.value, self.error).stored(dtype)
    }
}

/// The number that `x` becomes when it is stored as `dtype`.
pub fn rounded(dtype: DType, x: f64) -> f64 {
    decode(dtype, encode(dtype, x, Overflow::Saturate))
}

/// The largest relative error of one operation on inputs of type `t`: kernels work in f64 on f64 and in f32 on
/// everything else. For f64 it is doubled, because the reference rounds as often as the kernel.
pub fn unit(t: DType) -> f64 {
    if t == DType::F64 { 2.0 * unit_roundoff(t) } else { unit_roundoff(DType::F32) }
}

/// What exp and its kin may lose where they underflow: hardware may flush what is below the smallest normal f32.
pub const TINY: f64 = f32::MIN_POSITIVE as f64;

/// An output of `rows` × `cols` numbers, nothing said of any yet, gaps between rows marked.
pub fn blank_rows(layout: &Rows, rows: u32, cols: u32) -> Vec<Want> {
    let mut wants = vec![Want::Gap; layout.span(rows, cols) as usize];
    for r in 0..rows as usize {
        wants[r * layout.ld as usize..][..cols as usize].fill(Want::Any);
    }
    wants
}

/// Row `r` of an operand.
pub fn row<'a>(data: &'a [f64], layout: &Rows, r: u32, cols: u32) -> &'a [f64] {
    if cols == 0 { &[] } else { &data[r as usize * layout.ld as usize..][..cols as usize] }
}
