//! Activation functions of runs of numbers.

use crate::{
    numbers::Real,
    simd::{
        Isa, WorkIn,
        arith::{Arith, exp_of_sum},
        run_same_in,
    },
};
use kp_hal::op::Act;
use std::f32::consts::{FRAC_1_SQRT_2, LN_2};

const SQRT_2_OVER_PI: f64 = 0.797_884_560_802_865_4;

/// `act` of each of `x` within a few units of the last place, also where it is tiny, as vector code whose bits depend on the
/// instruction set alone, not on how many numbers there are.
pub(crate) fn each<R: Tail>(act: Act, x: &mut [R]) {
    run_same_in(Each { act, x });
}

struct Each<'a, R> {
    act: Act,
    x: &'a mut [R],
}

impl<R: Tail> WorkIn for Each<'_, R> {
    #[inline(always)]
    fn run_in<I: Isa>(self) {
        let Self { act, x } = self;
        macro_rules! map {
            (|$x:ident| $value:expr) => {
                for place in x {
                    let $x = *place;
                    *place = $value;
                }
            };
        }
        match act {
            Act::Identity => {}
            Act::Relu => map!(|x| if x < R::ZERO { R::ZERO } else { x }),
            Act::Gelu => map!(|x| x.gelu_of::<I>()),
            Act::GeluTanh => map!(|x| {
                let u = x * (R::ONE + x * x * R::from_f64(0.044_715)) * R::from_f64(SQRT_2_OVER_PI);
                x * logistic::<I, R>(u + u)
            }),
            Act::Silu => map!(|x| x * logistic::<I, R>(x)),
            Act::Sigmoid => map!(|x| logistic::<I, R>(x)),
            Act::Tanh => map!(|x| x.tanh_of::<I>()),
        }
    }
}

/// The logistic function, without a branch.
#[inline(always)]
fn logistic<I: Isa, R: Arith>(x: R) -> R {
    let e = (-x.abs()).exp_of::<I>();
    (if x < R::ZERO { e } else { R::ONE }) / (R::ONE + e)
}

/// Numbers whose share of the normal distribution inner loops can compute.
pub(crate) trait Tail: Arith {
    /// x · Φ(x), for f32 within some 10 units of the last place, also where it is tiny.
    fn gelu_of<I: Isa>(self) -> Self;
}

impl Tail for f64 {
    #[inline(always)]
    fn gelu_of<I: Isa>(self) -> Self {
        self * (0.5 * Real::erfc(self * -std::f64::consts::FRAC_1_SQRT_2))
    }
}

impl Tail for f32 {
    /// max(x, 0) − a · Φ(−a) for a = |x|, where Φ(−a) = t · exp(p(t) − a² / 2) / 2 and t = 1 / (1 + a / √8). The polynomial is
    /// that of Numerical Recipes, section 6.2.
    #[inline(always)]
    fn gelu_of<I: Isa>(self) -> Self {
        // Half of it all is in the constant term.
        const P: [f32; 10] = [
            -1.265_512_2 - LN_2,
            1.000_023_7,
            0.374_091_96,
            0.096_784_18,
            -0.186_288_06,
            0.278_868_07,
            -1.135_204,
            1.488_515_9,
            -0.822_152_23,
            0.170_872_77,
        ];
        // From here on a · Φ(−a) is no normal number, and taken for 0.
        const LAST: f32 = 13.2;
        let a = self.abs();
        // There is none to be computed then either: subnormal numbers take a hundred cycles and more.
        let a = if a > LAST { 0.0 } else { a };
        let t = 1.0 / a.times_plus::<I>(0.5 * FRAC_1_SQRT_2, 1.0);
        let mut p = P[9];
        for term in P[..9].iter().rev() {
            p = p.times_plus::<I>(t, *term);
        }
        // a² in two parts, the first exact: its error would be multiplied by up to a hundred.
        let (high, low) = if I::FUSED {
            let square = a * a;
            (square, Real::mul_add(a, a, -square))
        } else {
            let short = f32::from_bits(a.to_bits() & !0xfff);
            (short * short, (a - short) * (a + short))
        };
        let tail = t * exp_of_sum::<I>(-0.5 * high, low.times_plus::<I>(-0.5, p));
        let tail = if a < LAST { tail } else { 0.0 };
        let above = if self > 0.0 { self } else { 0.0 };
        (-a).times_plus::<I>(tail, above)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `act(x)`. Written so that no two large terms cancel: the relative error stays a few ulps where the value is tiny.
    fn apply(act: Act, x: f64) -> f64 {
        match act {
            Act::Identity => x,
            // Not `max`, which would lose NaN.
            Act::Relu => {
                if x < 0.0 {
                    0.0
                } else {
                    x
                }
            }
            // Φ(x) = erfc(−x / √2) / 2
            Act::Gelu => x * (0.5 * libm::erfc(x * -std::f64::consts::FRAC_1_SQRT_2)),
            // (1 + tanh u) / 2 = 1 / (1 + e^(−2u))
            Act::GeluTanh => x * sigmoid(2.0 * x * (1.0 + x * x * 0.044_715) * SQRT_2_OVER_PI),
            Act::Silu => x * sigmoid(x),
            Act::Sigmoid => sigmoid(x),
            Act::Tanh => x.tanh(),
        }
    }

    fn sigmoid(x: f64) -> f64 {
        // e^x rather than e^−x for negative x, so that nothing overflows and x · sigmoid(x) goes to 0, not NaN.
        if x < 0.0 {
            let e = x.exp();
            e / (1.0 + e)
        } else {
            1.0 / (1.0 + (-x).exp())
        }
    }

    #[test]
    fn tails_are_accurate() {
        // Φ(−5) and the logistic function of −20, from tables to 10 digits.
        let near = |got: f64, want: f64| assert!((got / want - 1.0).abs() < 1e-6, "{got} {want}");
        near(apply(Act::Gelu, -5.0), -5.0 * 2.866_515_719e-7);
        near(apply(Act::Sigmoid, -20.0), 2.061_153_618e-9);
        assert_eq!(apply(Act::Silu, -1e30), 0.0);
    }

    #[test]
    fn runs_are_their_numbers() {
        for &act in Act::ALL {
            let x: Vec<f32> = (-1500..1500).map(|i| i as f32 * 0.013).chain([1e30, f32::INFINITY, -1e30]).collect();
            let mut y = x.clone();
            each(act, &mut y);
            for (&x, y) in x.iter().zip(y) {
                let want = apply(act, f64::from(x));
                // Where the function falls as exp(−x² / 2) does, the last bit of x / √2 is worth x² of the result's.
                let unit = 5e-7 * (2.0 + f64::from(x * x).min(200.0));
                let near = (f64::from(y) - want).abs() <= unit * want.abs() + f64::from(f32::MIN_POSITIVE);
                assert!(near || f64::from(y) == want, "{act} of {x}: {y}, not {want}");
            }
        }
    }

    #[test]
    fn nan_stays_nan() {
        for &act in Act::ALL {
            assert!(apply(act, f64::NAN).is_nan(), "{act}");
            let mut run = [f32::NAN; 9];
            each(act, &mut run);
            assert!(run.iter().all(|y| y.is_nan()), "{act}");
        }
    }
}
