//! How far a correct kernel may be from the exact result, derived from types and lengths alone.
//!
//! A reference computes each result exactly (in f64) and beside it the *slack*: a bound on what the kernel's own
//! roundings can add up to before the result is stored. Storing is judged apart: the stored code must be what some
//! number within the slack rounds to. So no bound here speaks of the output's type.
//!
//! Three facts are all there is (u is the unit roundoff, 2⁻²⁴ for f32):
//!
//! 1. One operation rounded to nearest errs by at most u times its result; a truncating one by 2u.
//! 2. A sum of n products, in any order and with any tree, errs by at most n·2u·Σ|aᵢbᵢ| to first order, if every
//!    addition may truncate as matrix units do. The part of second order is below n²u² and covered by the next fact.
//!    Nothing better holds for a kernel that does not say how it sums, and what it said could not be checked from
//!    outside; so a long sum's bound is far wider than random errors, which grow as √n. What it would let pass, sums
//!    kept in too few bits, is caught by sums of whole numbers that a narrower type cannot count to.
//! 3. Every factor applied later (scales, alpha) costs one more u relative to the magnitude Σ|aᵢbᵢ|; each such
//!    operation is counted as if it truncated, which leaves more than the second-order part of fact 2.

use crate::formats::{smallest, unit_roundoff};
use kp_hal::{
    DType,
    op::{Acc, Act},
};

/// How numbers are rounded while a kernel computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arithmetic {
    /// Largest relative error of one operation: 2u, since matrix units truncate.
    pub step: f64,
    /// Largest absolute error of one operation near zero.
    pub floor: f64,
}

impl Arithmetic {
    /// Computing in `t`: f64, f32, f16.
    pub fn of(t: DType) -> Self {
        Self { step: 2.0 * unit_roundoff(t), floor: smallest(t) }
    }

    /// Computing row-wise ops on operands of type `t`: f64 for f64, else f32.
    pub fn for_rows(t: DType) -> Self {
        Self::of(if t == DType::F64 { DType::F64 } else { DType::F32 })
    }

    /// Sums kept in `acc`. A coarse f32 keeps 13 mantissa bits of each addition and cuts the rest off.
    pub fn of_acc(acc: Acc) -> Self {
        match acc {
            Acc::F64 => Self::of(DType::F64),
            Acc::F32 | Acc::F32Q8 => Self::of(DType::F32),
            Acc::F32Fast => Self { step: 2_f64.powi(-13), floor: smallest(DType::F32) },
            Acc::F16 => Self::of(DType::F16),
            Acc::I32 => Self { step: 0.0, floor: 0.0 },
        }
    }

    /// What `operations` of them can add up to on numbers whose magnitudes sum to `magnitude`.
    pub fn slack(self, operations: f64, magnitude: f64) -> f64 {
        operations * (self.step * magnitude + self.floor)
    }
}

/// What an operand's type costs before it is multiplied, relative to its magnitude: `tf32` loses all but 10
/// mantissa bits, cut off or rounded.
pub fn operand_error(t: DType) -> f64 {
    if t == DType::Tf32 { 2_f64.powi(-10) } else { 0.0 }
}

/// What widening a scaled operand to the type it is multiplied in costs: code · scale is rounded to that type.
pub fn widening_error(t: DType) -> f64 {
    unit_roundoff(t)
}

/// An activation's value at x, the largest slope it has anywhere (an error of x grows by no more), and the error
/// of computing it, for x itself exact.
#[derive(Clone, Copy, Debug)]
pub struct ActValue {
    /// act(x)
    pub value: f64,
    /// max |act′|
    pub slope: f64,
    /// The error of the computation.
    pub error: f64,
}

/// An activation computed in `arithmetic`.
///
/// Every formula is a handful of operations on numbers no larger than max(1, |x|), one of them `exp`, `tanh` or
/// `erf` to 4 ulp, as vendors' fast versions give. e⁻ˣ multiplies the rounding of its argument by |x|, which is
/// where the factor 1 + |x| comes from; past |x| = 100 every one of them has saturated.
pub fn act(act: Act, x: f64, arithmetic: Arithmetic) -> ActValue {
    let (value, slope) = match act {
        Act::Identity => return ActValue { value: x, slope: 1.0, error: 0.0 },
        Act::Relu => return ActValue { value: if x.is_nan() { x } else { x.max(0.0) }, slope: 1.0, error: 0.0 },
        Act::Gelu => (gelu(x), 1.13),
        Act::GeluTanh => (gelu_tanh(x), 1.13),
        Act::Silu => (x * sigmoid(x), 1.1),
        Act::Sigmoid => (sigmoid(x), 0.25),
        Act::Tanh => (x.tanh(), 1.0),
    };
    // x · Φ(x) and x · σ(x) tend to 0 on the left, where ∞ · 0 would be NaN.
    let value =
        if x == f64::NEG_INFINITY && matches!(act, Act::Gelu | Act::GeluTanh | Act::Silu) { 0.0 } else { value };
    let error = match x.is_finite() {
        true => {
            6.0 * (arithmetic.step * x.abs().clamp(1.0, 100.0) * value.abs().max(x.abs().min(1.0)) + arithmetic.floor)
        }
        false => 0.0,
    };
    ActValue { value, slope, error }
}

/// 1 / (1 + e⁻ˣ)
pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// x · Φ(x)
pub fn gelu(x: f64) -> f64 {
    x * 0.5 * erfc(-x / std::f64::consts::SQRT_2)
}

/// The approximation of `gelu` by tanh.
pub fn gelu_tanh(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    // 1 + tanh(z) = 2σ(2z), which does not cancel on the left.
    x * sigmoid(2.0 * inner)
}

/// 1 − erf(x): the series of erf near 0, a continued fraction away from it.
pub fn erfc(x: f64) -> f64 {
    const ROOT_PI: f64 = 1.772_453_850_905_516;
    if x.is_nan() {
        return x;
    }
    if x < 0.0 {
        return 2.0 - erfc(-x);
    }
    if x < 2.5 {
        // erf(x) = 2/√π · e^(−x²) · Σ 2ⁿ x^(2n+1) / (1·3·5···(2n+1)): all terms positive.
        let (mut term, mut sum, mut n) = (x, x, 0.0);
        while term > sum * 1e-17 {
            n += 1.0;
            term *= 2.0 * x * x / (2.0 * n + 1.0);
            sum += term;
        }
        return 1.0 - 2.0 / ROOT_PI * (-x * x).exp() * sum;
    }
    // erfc(x) = e^(−x²)/√π · 1/(x + (1/2)/(x + 1/(x + (3/2)/(x + …)))), from the innermost outwards.
    let tail = (1..=60).rev().fold(0.0, |inner, i| f64::from(i) / 2.0 / (x + inner));
    (-x * x).exp() / ROOT_PI / (x + tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erfc_agrees_with_its_tables() {
        // Abramowitz and Stegun, tables 7.1 and 7.3.
        for (x, want) in [
            (0.0, 1.0),
            (0.5, 0.479_500_122_186_953_5),
            (1.0, 0.157_299_207_050_285_13),
            (2.0, 0.004_677_734_981_047_266),
            (3.0, 2.209_049_699_858_544e-5),
            (5.0, 1.537_459_794_428_035e-12),
            (-1.0, 1.842_700_792_949_715),
        ] {
            let got = erfc(x);
            assert!((got - want).abs() <= 1e-13 * want, "erfc({x}) = {got:e}, not {want:e}");
        }
        assert!((erfc(2.499_999) / erfc(2.500_001) - 1.0).abs() < 1e-4, "the two formulas meet");
        assert!(erfc(f64::NAN).is_nan() && erfc(f64::INFINITY) == 0.0);
    }

    #[test]
    fn no_activation_is_steeper_than_said() {
        let exact = Arithmetic { step: 0.0, floor: 0.0 };
        for &kind in Act::ALL {
            for i in -4000..4000 {
                let (x, h) = (f64::from(i) * 0.005, 1e-4);
                let (low, high) = (act(kind, x, exact), act(kind, x + h, exact));
                let slope = (high.value - low.value) / h;
                assert!(slope.abs() <= low.slope + 1e-9, "{kind} at {x}: {slope}");
            }
            assert!(!act(kind, f64::NEG_INFINITY, exact).value.is_nan(), "{kind}");
            assert!(act(kind, f64::NAN, exact).value.is_nan(), "{kind}");
        }
    }
}
