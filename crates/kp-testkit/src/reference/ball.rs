//! A number with the error that a kernel's own roundings may leave in it.

use crate::{judge::Want, tolerance::Arithmetic};
use kp_hal::DType;

/// A number and how far an honest kernel may be from it before it is stored.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Ball {
    /// In exact arithmetic.
    pub(crate) value: f64,
    /// The most a kernel may be off.
    pub(crate) error: f64,
}

impl Ball {
    /// Without error.
    pub(crate) const fn exact(value: f64) -> Self {
        Self { value, error: 0.0 }
    }

    /// As far off as it is, and `more`.
    pub(crate) fn plus(self, more: f64) -> Self {
        Self { error: self.error + more, ..self }
    }
}

impl From<Ball> for Want {
    /// An infinite error says nothing; NaN and infinities must be met exactly.
    fn from(ball: Ball) -> Self {
        match ball {
            Ball { error: f64::INFINITY, .. } => Self::Any,
            Ball { value, .. } if !value.is_finite() => Self::exact(value),
            Ball { error, .. } if error.is_nan() => Self::Any,
            Ball { value, error } => Self::Number { value, slack: error },
        }
    }
}

/// What one operation may lose relatively in row-wise kernels on operands of type `t`.
pub(crate) fn unit(t: DType) -> f64 {
    Arithmetic::for_rows(t).step
}

/// What exp and division may lose where they underflow: hardware may flush what is below the smallest normal f32.
pub(crate) const TINY: f64 = f32::MIN_POSITIVE as f64;

/// Whether a difference is inside its bound; NaN is not.
pub(crate) fn within(difference: f64, bound: f64) -> bool {
    difference.abs() <= bound
}
