//! y = act(g) · u · factor + residual.
//!
//! Bound of the function itself, u being the roundoff of one operation and A its value:
//! - identity and relu are exact;
//! - tanh: 16 u |A|, what a decent library function loses, conditioning included (x tanh′ ≤ tanh);
//! - sigmoid and silu pass x through exp, which turns u |x| into a relative error: 8 u (1 + |x|) |A|, and where exp
//!   overflows they may be 0, so a few of the smallest normal f32 times 1 + |x|;
//! - gelu and gelu_tanh add 1 to a number that may be near −1, which costs u absolutely: 8 u |x|.
//!
//! Products and the sum after it cost u of their value each.

use super::{
    quantize::store,
    want::{Ball, Get, TINY, Wants, row, unit},
};
use kp_hal::op::{Act, ActivationSpec};

/// What `y` may be, and `y_scale` if the kernel makes it; `got` are the outputs it made.
pub fn activation(p: &ActivationSpec, get: &Get<'_>, got: &Get<'_>) -> Wants {
    let (x, factor, residual) = (get("x"), get("factor"), get("residual"));
    let u = unit(p.x.dtype());
    let mut numbers = Vec::new();
    for r in 0..p.rows {
        let x = row(x, &p.x, r, p.x_cols());
        for c in 0..p.cols {
            let (g, up) = p.gate.sources(c, p.cols);
            let at = r as usize * p.cols as usize + c as usize;
            let mut y = act(p.act, x[g as usize], u);
            if p.gate.columns() == 2 {
                y = times(y, x[up as usize], u);
            }
            if p.factor.is_some() {
                y = times(y, factor[at], u);
            }
            if p.residual.is_some() {
                let value = y.value + residual[at];
                y = Ball { value, error: y.error + u * value.abs() };
            }
            numbers.push(y);
        }
    }
    store(&p.y, (p.rows, p.cols), &numbers, get, got)
}

fn times(y: Ball, factor: f64, u: f64) -> Ball {
    let value = y.value * factor;
    Ball { value, error: y.error * factor.abs() + u * value.abs() }
}

/// The function of one number, by its definition.
pub fn act(act: Act, x: f64, u: f64) -> Ball {
    let flushed = TINY * 4.0 * (1.0 + x.abs());
    let (value, error) = match act {
        Act::Identity => (x, 0.0),
        Act::Relu if x.is_nan() => (x, 0.0),
        Act::Relu => (x.max(0.0), 0.0),
        Act::Tanh => (x.tanh(), 16.0 * u * x.tanh().abs() + flushed),
        Act::Sigmoid => {
            let value = 1.0 / (1.0 + (-x).exp());
            (value, 8.0 * u * (1.0 + x.abs()) * value + flushed)
        }
        Act::Silu => {
            let value = x / (1.0 + (-x).exp());
            (value, 8.0 * u * (1.0 + x.abs()) * value.abs() + flushed)
        }
        Act::Gelu => (x / 2.0 * erfc(-x / 2_f64.sqrt()), 8.0 * u * x.abs() + flushed),
        Act::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            // x / 2 · (1 + tanh z) = x / (1 + exp(−2z)), which loses nothing near −1.
            (x / (1.0 + (-2.0 * inner).exp()), 8.0 * u * x.abs() + flushed)
        }
    };
    Ball { value, error }
}

/// 1 − erf(x), to a few parts in 10¹⁵ of itself.
fn erfc(x: f64) -> f64 {
    if x < 2.0 {
        return 1.0 - erf(x);
    }
    // The continued fraction x + (1/2)/(x + 1/(x + (3/2)/(x + …))), from the inside out.
    let fraction = (1..200).rev().fold(x, |inner, k| x + f64::from(k) / 2.0 / inner);
    (-x * x).exp() / fraction / std::f64::consts::PI.sqrt()
}

/// 2/√π · exp(−x²) · Σ 2ⁿ x²ⁿ⁺¹ / (1 · 3 · … · (2n + 1)): all terms have one sign, so nothing cancels.
fn erf(x: f64) -> f64 {
    if x < -6.0 {
        return -1.0;
    }
    let (mut term, mut sum, mut n) = (x, x, 1.0);
    while term.abs() > f64::EPSILON / 4.0 * sum.abs() {
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
        n += 1.0;
    }
    2.0 / std::f64::consts::PI.sqrt() * (-x * x).exp() * sum
}


#[cfg(test)]
mod tests {
    use super::*;

    /// Tables of Abramowitz and Stegun, 7.1 and 26.1, and values of exp and tanh to 15 digits.
    #[test]
    fn known_values() {
        for (x, want) in [(0.5, 0.520_499_877_813_047), (1.0, 0.842_700_792_949_715), (2.5, 0.999_593_047_982_555)] {
            assert!((erf(x) - want).abs() < 4e-15, "{x}: {}", erf(x));
            assert!((erf(-x) + want).abs() < 4e-15, "{x}");
        }
        assert!((erfc(3.0) / 2.209_049_699_858_544e-5 - 1.0).abs() < 1e-13, "{}", erfc(3.0));
        assert!((erfc(2.0) / 4.677_734_981_047_266e-3 - 1.0).abs() < 1e-13, "{}", erfc(2.0));
        for (f, x, want) in [
            (Act::Identity, -3.5, -3.5),
            (Act::Relu, -3.5, 0.0),
            (Act::Gelu, 1.0, 0.841_344_746_068_543),
            (Act::GeluTanh, 1.0, 0.841_191_990_608_3),
            (Act::Silu, 1.0, 0.731_058_578_630_005),
            (Act::Sigmoid, 0.0, 0.5),
            (Act::Tanh, 1.0, 0.761_594_155_955_765),
        ] {
            let got = act(f, x, 0.0).value;
            assert!((got - want).abs() < 1e-13, "{f}({x}) = {got}");
        }
    }

    #[test]
    fn nan_stays_nan() {
        for &f in Act::ALL {
            assert!(act(f, f64::NAN, 0.0).value.is_nan(), "{f}");
        }
    }

    #[test]
    fn erfc_has_no_step_where_the_methods_meet() {
        let (below, above) = (erfc(2.0 - 1e-9), erfc(2.0));
        assert!((below / above - 1.0).abs() < 1e-7);
    }
}
