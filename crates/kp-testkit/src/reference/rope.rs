//! Pairs of numbers turned by their token's angle.
//!
//! Bound: each result is two products and a sum, so it is off by at most 3 u (|x1 cos| + |x2 sin|). What is not turned
//! is copied, exact but for the rounding to Y's type.

use super::want::{Ball, Get, Want, Wants, blank_rows, row, unit};
use kp_hal::op::RopeSpec;

/// What `y` may be.
pub fn rope(p: &RopeSpec, get: &Get<'_>) -> Wants {
    let (x, positions, cos, sin) = (get("x"), get("positions"), get("cos"), get("sin"));
    let (u, cols, half) = (unit(p.x.dtype()), p.cols(), p.rotated as usize / 2);
    let mut y = blank_rows(&p.y, p.tokens, cols);
    if cols == 0 {
        return vec![("y", y)];
    }
    for token in 0..p.tokens {
        let from = row(x, &p.x, token, cols);
        let to = &mut y[token as usize * p.y.ld as usize..][..cols as usize];
        let position = positions[token as usize];
        if position < 0.0 || position >= f64::from(p.positions) {
            to.fill(Want::Nan);
            continue;
        }
        for (from, to) in from.chunks(p.dim as usize).zip(to.chunks_mut(p.dim as usize)) {
            for (x, y) in from.iter().zip(&mut *to).skip(p.rotated as usize) {
                *y = Want::exact(*x).stored(p.y.dtype());
            }
            for j in 0..half {
                let at = position as usize * half + j;
                let (one, two) = p.pairs.places(j as u32, p.rotated);
                let sin = if p.inverse { -sin[at] } else { sin[at] };
                let (first, second) = turn(from[one as usize], from[two as usize], cos[at], sin, u);
                to[one as usize] = first.stored(p.y.dtype());
                to[two as usize] = second.stored(p.y.dtype());
            }
        }
    }
    vec![("y", y)]
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

    #[test]
    fn a_token_outside_the_table_is_nan_and_the_rest_is_copied() {
        let p = RopeSpec { rotated: 2, ..RopeSpec::new(2, 1, 4, 1, kp_hal::DType::F32) };
        let x = [1.0, 0.0, 5.0, 6.0, 1.0, 2.0, 3.0, 4.0];
        let get = |name: &str| -> &'static [f64] {
            match name {
                "x" => x.to_vec().leak(),
                "positions" => &[0.0, 1.0],
                "cos" => &[0.0],
                _ => &[1.0],
            }
        };
        let y = &rope(&p, &get)[0].1;
        assert!(y[0].admits(0.0) && y[1].admits(1.0) && y[2] == Want::exact(5.0) && y[3] == Want::exact(6.0));
        assert_eq!(y[4..], [Want::Nan; 4]);
    }
}
