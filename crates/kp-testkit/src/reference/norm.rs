//! Rows brought to mean 0 and variance 1, to mean square 1, or to length 1.
//!
//! Bound, u being the loss of one operation and n the columns:
//! - s = x + residual is off by u |s|, and by the rounding to X's type, since y may be that of s as it is stored;
//! - the mean is off by the mean error of s and by (n + 1) u times the mean magnitude; d = s − mean by that and u |d|;
//! - a mean (or sum) of squares is off by the mean (sum) of 2 |d| times the error of d, that error squared, and
//!   (n + 3) u of itself;
//! - the divisor lies between what the two ends of that make it, since a small eps makes it anything but linear;
//! - y adds one operation for each of: division, weight, bias.
//!
//! The variance of numbers far from zero must therefore not be computed as a difference of mean squares.

use super::{
    activation::stored,
    ball::{Ball, TINY, unit},
};
use crate::{
    formats::unit_roundoff,
    judge::{Output, Plain},
    operands::Operands,
    tensor::Tensor,
};
use kp_hal::op::{NormKind, NormProblem};

/// What `y` should hold, its scales if the kernel makes them, and `sum`.
pub(crate) fn norm(p: &NormProblem, operands: &Operands) -> Vec<Output> {
    let shape = (p.rows, p.cols);
    let (t, u) = (p.x.dtype(), unit(p.x.dtype()));
    let x = Tensor::rows(operands.codes("x"), &p.x, p.rows, p.cols);
    let residual = operands.maybe("residual").map(|codes| Tensor::rows(codes, &p.x, p.rows, p.cols));
    let sum = |r: usize, c: usize| match &residual {
        None => Ball::exact(x.at(0, r, c)),
        Some(residual) => {
            let value = x.at(0, r, c) + residual.at(0, r, c);
            Ball { value, error: u * value.abs() }
        }
    };
    let stored_sum = |ball: Ball| if p.residual { ball.plus(unit_roundoff(t) * ball.value.abs()) } else { ball };
    let number = |name: &str, c: usize| operands.maybe(name).map(|codes| codes.value(c as u64));
    let mut y: Vec<Vec<Ball>> = Vec::new();
    for r in 0..x.rows {
        let s: Vec<Ball> = (0..x.cols).map(|c| stored_sum(sum(r, c))).collect();
        let normed = normalized(p.kind, p.eps.get().into(), &s, u);
        let of = |c: usize| {
            let mut y = normed.unit(c, u);
            if let Some(weight) = number("weight", c) {
                y = Ball { value: y.value * weight, error: (y.error + u * y.value.abs()) * weight.abs() };
            }
            if let Some(bias) = number("bias", c) {
                y = Ball { value: y.value + bias, error: y.error + u * (y.value + bias).abs() };
            }
            y.plus(TINY)
        };
        y.push((0..x.cols).map(of).collect());
    }
    let mut outputs = vec![stored(&p.y, shape, |r, c| y[r as usize][c as usize].into())];
    if p.residual {
        let sum = |r: u32, c: u32| sum(r as usize, c as usize).into();
        outputs.push(Plain::rows("sum", &p.x, shape, sum).into());
    }
    outputs
}

/// A row less its mean, and what it is divided by.
pub(super) struct Normalized {
    /// s − mean, or s.
    pub(super) centred: Vec<Ball>,
    /// 1 / √(var + eps), 1 / √(mean of s² + eps), or 1 / max(√(Σ s²), eps).
    pub(super) inverse: Ball,
    /// Whether the inverse depends on s: not where eps is the larger in `L2`; `None` if it may be either.
    pub(super) depends: Option<bool>,
}

impl Normalized {
    /// Number `c` divided.
    pub(super) fn unit(&self, c: usize, u: f64) -> Ball {
        let (d, inverse) = (self.centred[c], self.inverse);
        let value = d.value * inverse.value;
        let error = d.error * (inverse.value + inverse.error) + d.value.abs() * inverse.error + u * value.abs();
        // 0 times an inverse that may be anything is still 0.
        Ball { value, error: if d == Ball::exact(0.0) && !value.is_nan() { 0.0 } else { error } }
    }
}

/// The statistics of one row.
pub(super) fn normalized(kind: NormKind, eps: f64, s: &[Ball], u: f64) -> Normalized {
    let n = s.len() as f64;
    let total = |f: &dyn Fn(&Ball) -> f64| s.iter().map(f).sum::<f64>();
    let mean = match kind {
        NormKind::Layer => Ball {
            value: total(&|s| s.value) / n,
            error: (total(&|s| s.error) + (n + 1.0) * u * total(&|s| s.value.abs())) / n,
        },
        NormKind::Rms | NormKind::L2 => Ball::exact(0.0),
    };
    let centre = |s: &Ball| {
        let value = s.value - mean.value;
        let rounding = if kind == NormKind::Layer { u * value.abs() } else { 0.0 };
        Ball { value, error: s.error + mean.error + rounding }
    };
    let centred: Vec<Ball> = s.iter().map(centre).collect();
    let squares: f64 = centred.iter().map(|d| d.value * d.value).sum();
    let off: f64 = centred.iter().map(|d| 2.0 * d.value.abs() * d.error + d.error * d.error).sum();
    let squares = Ball { value: squares, error: off + (n + 3.0) * u * squares };
    let inverse_of = |squares: f64| match kind {
        NormKind::Layer | NormKind::Rms => 1.0 / (squares / n + eps).sqrt(),
        // `max` would prefer eps to NaN.
        NormKind::L2 if squares.is_nan() => squares,
        NormKind::L2 => 1.0 / squares.sqrt().max(eps),
    };
    let value = inverse_of(squares.value);
    let least = inverse_of(squares.value + squares.error) * (1.0 - 4.0 * u);
    let fewest = squares.value - squares.error;
    let most = inverse_of(if fewest < 0.0 { 0.0 } else { fewest }) * (1.0 + 4.0 * u);
    let lengths = [squares.value - squares.error, squares.value + squares.error].map(|q| q.max(0.0).sqrt() > eps);
    let depends = match (kind, lengths) {
        (NormKind::L2, [false, true]) => None,
        (NormKind::L2, [_, longer]) => Some(longer),
        _ => Some(true),
    };
    Normalized { centred, inverse: Ball { value, error: (most - value).max(value - least) }, depends }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(kind: NormKind, eps: f64, row: &[f64]) -> Vec<f64> {
        let s: Vec<Ball> = row.iter().map(|&x| Ball::exact(x)).collect();
        let normed = normalized(kind, eps, &s, 0.0);
        (0..row.len()).map(|c| normed.unit(c, 0.0).value).collect()
    }

    #[test]
    fn small_rows_by_hand() {
        for (kind, eps, row, want) in [
            (NormKind::Layer, 0.0, [1.0, 3.0], [-1.0, 1.0]),
            (NormKind::Layer, 1.0, [5.0, 5.0], [0.0, 0.0]),
            (NormKind::Rms, 0.0, [2.0, -2.0], [1.0, -1.0]),
            (NormKind::Rms, 12.0, [2.0, -2.0], [0.5, -0.5]),
            (NormKind::L2, 0.0, [3.0, 4.0], [0.6, 0.8]),
            (NormKind::L2, 10.0, [3.0, 4.0], [0.3, 0.4]),
        ] {
            let got = values(kind, eps, &row);
            assert!(got.iter().zip(want).all(|(g, w)| (g - w).abs() < 1e-15), "{kind} {eps} {row:?}: {got:?}");
        }
    }

    #[test]
    fn the_smaller_eps_the_less_is_promised_of_equal_numbers() {
        let row = [Ball::exact(0.1); 64];
        let loose = normalized(NormKind::Layer, 1e-12, &row, 1e-7).unit(0, 1e-7).error;
        let tight = normalized(NormKind::Layer, 1.0, &row, 1e-7).unit(0, 1e-7).error;
        assert!(tight < 1e-5 && loose > 0.1, "{tight} {loose}");
    }

    #[test]
    fn a_nan_spoils_its_row_and_zeros_without_eps_are_nan() {
        for &kind in NormKind::ALL {
            assert!(values(kind, 1.0, &[1.0, f64::NAN]).iter().all(|y| y.is_nan()), "{kind}");
        }
        assert!(values(NormKind::L2, 0.0, &[0.0, 0.0]).iter().all(|y| y.is_nan()));
    }
}
