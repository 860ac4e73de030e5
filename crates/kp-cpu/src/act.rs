//! Activation functions.

use crate::numbers::Real;
use kp_hal::op::Act;

/// `act(x)`. Written so that no two large terms cancel: the relative error stays a few ulps where the value is tiny.
pub(crate) fn apply<R: Real>(act: Act, x: R) -> R {
    match act {
        Act::Identity => x,
        // Not `max`, which would lose NaN.
        Act::Relu => {
            if x < R::ZERO {
                R::ZERO
            } else {
                x
            }
        }
        // Φ(x) = erfc(−x / √2) / 2
        Act::Gelu => x * (R::from_f64(0.5) * (x * R::from_f64(-std::f64::consts::FRAC_1_SQRT_2)).erfc()),
        // (1 + tanh u) / 2 = 1 / (1 + e^(−2u))
        Act::GeluTanh => {
            let u = x * (R::ONE + x * x * R::from_f64(0.044_715)) * R::from_f64(SQRT_2_OVER_PI);
            x * sigmoid(u + u)
        }
        Act::Silu => x * sigmoid(x),
        Act::Sigmoid => sigmoid(x),
        Act::Tanh => x.tanh(),
    }
}

const SQRT_2_OVER_PI: f64 = 0.797_884_560_802_865_4;

fn sigmoid<R: Real>(x: R) -> R {
    // e^x rather than e^−x for negative x, so that nothing overflows and x · sigmoid(x) goes to 0, not NaN.
    if x < R::ZERO {
        let e = x.exp();
        e / (R::ONE + e)
    } else {
        R::ONE / (R::ONE + (-x).exp())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tails_are_accurate() {
        // Φ(−5) and the logistic function of −20, from tables to 10 digits.
        let near = |got: f64, want: f64| assert!((got / want - 1.0).abs() < 1e-6, "{got} {want}");
        near(apply(Act::Gelu, -5.0_f32).into(), -5.0 * 2.866_515_719e-7);
        near(apply(Act::Sigmoid, -20.0_f32).into(), 2.061_153_618e-9);
        assert_eq!(apply(Act::Silu, -1e30_f32), 0.0);
    }

    #[test]
    fn nan_stays_nan() {
        for &act in Act::ALL {
            assert!(apply(act, f32::NAN).is_nan(), "{act}");
        }
    }
}
