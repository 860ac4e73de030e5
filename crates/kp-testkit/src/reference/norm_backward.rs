//! Gradients of a norm by its input, weight and bias.
//!
//! With d = s − mean (or s), h = d · inverse, g = grad_y · weight:
//!
//! ```text
//! layer: grad_x = inverse · (g − mean(g) − h · mean(g h))
//! rms:   grad_x = inverse · (g − h · mean(g h))
//! l2:    grad_x = inverse · (g − h · Σ g h)     inverse · g where eps is the larger
//! grad_weight = Σ over rows of grad_y · h       grad_bias = Σ over rows of grad_y
//! ```
//! Bound: d and inverse as in `norm`; each sum adds its number of terms times u times its magnitudes, each product and
//! difference u of its value, and errors are carried through by the product rule.

use super::{
    ball::{Ball, TINY, unit},
    norm::{Normalized, normalized},
};
use crate::{
    judge::{Output, Plain},
    operands::Operands,
    tensor::Tensor,
};
use kp_hal::{
    DType,
    op::{NormBackwardProblem, NormKind},
};

/// What `grad_x`, `grad_weight` and `grad_bias` should hold.
pub(crate) fn norm_backward(p: &NormBackwardProblem, operands: &Operands) -> Vec<Output> {
    let u = unit(p.x.dtype());
    let x = Tensor::rows(operands.codes("x"), &p.x, p.rows, p.cols);
    let grad_y = Tensor::rows(operands.codes("grad_y"), &p.grad_y, p.rows, p.cols);
    let weight = |c: usize| operands.maybe("weight").map_or(1.0, |codes| codes.value(c as u64));
    let mut grad_x = Vec::new();
    let mut sums = vec![[Sum::default(); 2]; x.cols];
    for r in 0..x.rows {
        let s: Vec<Ball> = x.row(0, r).iter().map(|&x| Ball::exact(x)).collect();
        let normed = normalized(p.kind, p.eps.get().into(), &s, u);
        let g: Vec<Ball> = (0..x.cols)
            .map(|c| {
                let value = grad_y.at(0, r, c) * weight(c);
                Ball { value, error: if p.weight.is_some() { u * value.abs() } else { 0.0 } }
            })
            .collect();
        grad_x.extend(by_row(p.kind, &normed, &g, u));
        for (c, [of_weight, of_bias]) in sums.iter_mut().enumerate() {
            of_weight.add(product(Ball::exact(grad_y.at(0, r, c)), normed.unit(c, u), u));
            of_bias.add(Ball::exact(grad_y.at(0, r, c)));
        }
    }
    let mut outputs = vec![Plain::list("grad_x", p.x.dtype(), grad_x.into_iter().map(Into::into)).into()];
    let columns = |name, i: usize| {
        Plain::list(name, DType::F32, sums.iter().map(|s| s[i].ball(p.rows.into(), u).plus(TINY).into())).into()
    };
    if p.weight.is_some() {
        outputs.push(columns("grad_weight", 0));
    }
    if p.bias {
        outputs.push(columns("grad_bias", 1));
    }
    outputs
}

/// A sum of numbers with errors.
#[derive(Clone, Copy, Default)]
struct Sum {
    value: f64,
    error: f64,
    magnitude: f64,
}

impl Sum {
    fn add(&mut self, term: Ball) {
        self.value += term.value;
        self.error += term.error;
        self.magnitude += term.value.abs();
    }

    /// After `n` additions that lose `u` each.
    fn ball(self, n: f64, u: f64) -> Ball {
        Ball { value: self.value, error: self.error + n * u * self.magnitude }
    }
}

fn product(a: Ball, b: Ball, u: f64) -> Ball {
    let value = a.value * b.value;
    let carried = a.error * (b.value.abs() + b.error) + a.value.abs() * b.error;
    Ball { value, error: carried + u * value.abs() }
}

fn difference(a: Ball, b: Ball, u: f64) -> Ball {
    let value = a.value - b.value;
    Ball { value, error: a.error + b.error + u * value.abs() }
}

/// The gradients by the numbers of one row.
fn by_row(kind: NormKind, normed: &Normalized, g: &[Ball], u: f64) -> Vec<Ball> {
    let n = g.len() as f64;
    let h: Vec<Ball> = (0..g.len()).map(|c| normed.unit(c, u)).collect();
    let summed = |terms: &mut dyn Iterator<Item = Ball>| {
        let mut sum = Sum::default();
        terms.for_each(|term| sum.add(term));
        let sum = sum.ball(n, u);
        let over = if kind == NormKind::L2 { 1.0 } else { n };
        Ball { value: sum.value / over, error: sum.error / over + u * (sum.value / over).abs() }
    };
    let along = summed(&mut g.iter().zip(&h).map(|(&g, &h)| product(g, h, u)));
    let mean = if kind == NormKind::Layer { summed(&mut g.iter().copied()) } else { Ball::exact(0.0) };
    let of = |(&g, &h): (&Ball, &Ball)| {
        let straight = difference(g, mean, u);
        let projected = difference(straight, product(h, along, u), u);
        let inner = match normed.depends {
            Some(true) => projected,
            Some(false) => straight,
            // At the kink either side may be taken.
            None => straight.plus((straight.value - projected.value).abs() + projected.error),
        };
        product(inner, normed.inverse, u).plus(TINY)
    };
    g.iter().zip(&h).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: [f64; 4] = [0.3, -1.2, 2.0, 0.7];
    const G: [f64; 4] = [1.0, 0.5, -0.25, 2.0];

    fn row(kind: NormKind, eps: f64, x: &[f64]) -> Normalized {
        normalized(kind, eps, &x.iter().map(|&x| Ball::exact(x)).collect::<Vec<_>>(), 0.0)
    }

    /// Σ g · norm(x), whose gradient by x is what is judged.
    fn loss(kind: NormKind, eps: f64, x: &[f64]) -> f64 {
        let normed = row(kind, eps, x);
        (0..4).map(|c| G[c] * normed.unit(c, 0.0).value).sum()
    }

    #[test]
    fn gradients_are_differences_of_the_forward_pass() {
        for (kind, eps) in [
            (NormKind::Layer, 1e-5),
            (NormKind::Layer, 0.5),
            (NormKind::Rms, 1e-5),
            (NormKind::Rms, 0.5),
            (NormKind::L2, 1e-5),
            (NormKind::L2, 100.0),
        ] {
            let g: Vec<Ball> = G.iter().map(|&g| Ball::exact(g)).collect();
            let got = by_row(kind, &row(kind, eps, &X), &g, 0.0);
            for c in 0..4 {
                let at = |h: f64| {
                    let mut x = X;
                    x[c] += h;
                    loss(kind, eps, &x)
                };
                let want = (at(1e-5) - at(-1e-5)) / 2e-5;
                assert!((got[c].value - want).abs() < 1e-8, "{kind} {eps} {c}: {} {want}", got[c].value);
            }
        }
    }

    #[test]
    fn a_layer_norm_does_not_see_a_shift() {
        let g: Vec<Ball> = G.iter().map(|&g| Ball::exact(g)).collect();
        let sum: f64 = by_row(NormKind::Layer, &row(NormKind::Layer, 1e-5, &X), &g, 0.0).iter().map(|g| g.value).sum();
        assert!(sum.abs() < 1e-14, "{sum}");
    }
}
