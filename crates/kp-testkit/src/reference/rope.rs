//! Pairs of numbers turned by their token's angle.
//!
//! Bound: each result is two products and a sum, so it is off by at most 3 u (|x1 cos| + |x2 sin|). What is not turned
//! is copied, exact but for the rounding to Y's type.

use super::ball::{Ball, unit};
use crate::{
    fill::FillKind,
    judge::{Output, Plain, Want},
    operands::Operands,
    tensor::Tensor,
};
use kp_hal::op::RopeProblem;

/// What `y` should hold.
pub(crate) fn rope(p: &RopeProblem, operands: &Operands) -> Vec<Output> {
    let cols = p.cols();
    let x = Tensor::rows(operands.codes("x"), &p.x, p.tokens, cols);
    let (cos, sin) = (operands.codes("cos"), operands.codes("sin"));
    let u = if operands.kind() == FillKind::Exact { 0.0 } else { unit(p.x.dtype()) };
    let half = u64::from(p.rotated / 2);
    let mut y = vec![vec![Want::Any; cols as usize]; p.tokens as usize];
    for (token, y) in y.iter_mut().enumerate() {
        let position = operands.codes("positions").int(token as u64);
        let inside = (0..p.positions.into()).contains(&position);
        for head in 0..p.heads {
            let at = |place: u32| (head * p.dim + place) as usize;
            let x = |place: u32| x.at(0, token, at(place));
            for place in p.rotated..p.dim {
                y[at(place)] = Want::exact(x(place));
            }
            for j in 0..half {
                let (one, two) = p.pairs.places(j as u32, p.rotated);
                if !inside {
                    (y[at(one)], y[at(two)]) = (Want::exact(f64::NAN), Want::exact(f64::NAN));
                    continue;
                }
                let angle = position as u64 * half + j;
                let sin = if p.inverse { -sin.value(angle) } else { sin.value(angle) };
                let (first, second) = turn(x(one), x(two), cos.value(angle), sin, u);
                (y[at(one)], y[at(two)]) = (first.into(), second.into());
            }
        }
    }
    vec![Plain::rows("y", &p.y, (p.tokens, cols), |r, c| y[r as usize][c as usize]).into()]
}

fn turn(x1: f64, x2: f64, cos: f64, sin: f64, u: f64) -> (Ball, Ball) {
    let sum = |a: f64, b: f64| Ball { value: a + b, error: 3.0 * u * (a.abs() + b.abs()) };
    (sum(x1 * cos, -x2 * sin), sum(x2 * cos, x1 * sin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_right_angle_turns_the_first_axis_into_the_second() {
        let (one, two) = turn(1.0, 0.0, 0.0, 1.0, 0.0);
        assert_eq!((one.value, two.value), (0.0, 1.0));
    }

    #[test]
    fn turning_back_returns() {
        let (sin, cos) = 0.7_f64.sin_cos();
        let (one, two) = turn(0.3, -2.0, cos, sin, 0.0);
        let (one, two) = turn(one.value, two.value, cos, -sin, 0.0);
        assert!((one.value - 0.3).abs() < 1e-15 && (two.value + 2.0).abs() < 1e-15);
    }
}
