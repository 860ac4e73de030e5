//! y = exp(t − max) / Σ exp(t − max), t = scale · x; or its logarithm.
//!
//! Bound, u being the roundoff of one operation:
//! - t − max is off by a few u of |t| and |max|, so each exponential by as much relatively, and by 8 u of its own:
//!   ε = (8 + 4 (|t| + |max|)) u.
//! - The sum is off by the mean of the ε, weighted as the result is, and by 4 u per number: one addition, and one
//!   rescaling where a kernel learns the maximum as it goes.
//! - y is off by ε, by the sum's error and by the division; ln y by the same, absolutely.

use super::ball::{Ball, TINY, unit};
use crate::{judge::Output, judge::Plain, operands::Operands, tensor::Tensor};
use kp_hal::op::SoftmaxProblem;

/// What `y` should hold.
pub(crate) fn softmax(p: &SoftmaxProblem, operands: &Operands) -> Vec<Output> {
    let x = Tensor::rows(operands.codes("x"), &p.x, p.rows, p.cols);
    let (scale, u) = (f64::from(p.scale.get()), unit(p.x.dtype()));
    let of = |r| of_row(&x.row(0, r).iter().map(|x| x * scale).collect::<Vec<_>>(), p.log, u);
    let y: Vec<Vec<Ball>> = (0..x.rows).map(of).collect();
    vec![Plain::rows("y", &p.y, (p.rows, p.cols), |r, c| y[r as usize][c as usize].into()).into()]
}

fn of_row(t: &[f64], log: bool, u: f64) -> Vec<Ball> {
    let max = t.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let defined = max.is_finite() && !t.iter().any(|t| t.is_nan());
    if !defined {
        return vec![Ball { value: f64::NAN, error: 0.0 }; t.len()];
    }
    // What contributes nothing has no error either, and −∞ would make it NaN.
    let off = |t: f64| if t == f64::NEG_INFINITY { 0.0 } else { u * (8.0 + 4.0 * (t.abs() + max.abs())) };
    let weight: Vec<f64> = t.iter().map(|t| (t - max).exp()).collect();
    let sum: f64 = weight.iter().sum();
    let sum_off = weight.iter().zip(t).map(|(w, &t)| w * off(t)).sum::<f64>() / sum + 4.0 * u * t.len() as f64;
    let of_one = |(&t, w): (&f64, f64)| match log {
        false => {
            let value = w / sum;
            let error = if t == f64::NEG_INFINITY { 0.0 } else { TINY };
            Ball { value, error: value * (off(t) + 2.0 * sum_off + 4.0 * u).exp_m1() + error }
        }
        true => {
            let value = t - max - sum.ln();
            let error = off(t) + 2.0 * sum_off + 4.0 * u * (1.0 + sum.ln() + value.abs());
            Ball { value, error: if value.is_finite() { error } else { 0.0 } }
        }
    };
    t.iter().zip(weight).map(of_one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(t: &[f64], log: bool) -> Vec<f64> {
        of_row(t, log, 0.0).iter().map(|b| b.value).collect()
    }

    #[test]
    fn equal_numbers_share_equally() {
        assert_eq!(values(&[3.0; 4], false), [0.25; 4]);
        assert!(values(&[3.0; 4], true).iter().all(|y| (y + 4_f64.ln()).abs() < 1e-15));
    }

    #[test]
    fn ln_3_gets_three_quarters() {
        let y = values(&[0.0, 3_f64.ln(), f64::NEG_INFINITY], false);
        assert!((y[0] - 0.25).abs() < 1e-15 && (y[1] - 0.75).abs() < 1e-15 && y[2] == 0.0, "{y:?}");
        assert_eq!(values(&[0.0, f64::NEG_INFINITY], true), [0.0, f64::NEG_INFINITY]);
    }

    #[test]
    fn what_has_no_value_is_nan() {
        for row in [&[f64::NEG_INFINITY; 3], &[1.0, f64::NAN, 2.0], &[1.0, f64::INFINITY, 2.0]] {
            assert!(values(row, false).iter().all(|y| y.is_nan()), "{row:?}");
        }
    }
}
