//! Sums, means and extremes along rows, along columns or segment by segment.
//!
//! Bound: a sum of n numbers, in any order, is off by at most n u Σ|x|; a mean by three roundings more. Extremes are
//! exact.

use super::want::{Ball, Get, Wants, row, unit};
use kp_hal::op::{ReduceOp, ReduceSpec, Reduced};

/// What `y` may be.
pub fn reduce(p: &ReduceSpec, get: &Get<'_>) -> Wants {
    let (x, u) = (get("x"), unit(p.x.dtype()));
    let column = |c: u32, rows: std::ops::Range<u32>| -> Vec<f64> {
        rows.map(|r| row(x, &p.x, r, p.cols)[c as usize]).collect()
    };
    let reduced: Vec<Ball> = match p.over {
        Reduced::Cols => (0..p.rows).map(|r| of_numbers(p.op, row(x, &p.x, r, p.cols), u)).collect(),
        Reduced::Rows => (0..p.cols).map(|c| of_numbers(p.op, &column(c, 0..p.rows), u)).collect(),
        Reduced::Segments(n) => {
            let offset = |s: u32| get("offsets")[s as usize] as u32;
            let each = |s: u32| (0..p.cols).map(move |c| of_numbers(p.op, &column(c, offset(s)..offset(s + 1)), u));
            (0..n).flat_map(each).collect()
        }
    };
    vec![("y", reduced.into_iter().map(|b| b.stored(p.y)).collect())]
}

fn of_numbers(op: ReduceOp, x: &[f64], u: f64) -> Ball {
    let n = x.len() as f64;
    let sum: f64 = x.iter().sum();
    let sum_error = n * u * x.iter().map(|x| x.abs()).sum::<f64>();
    let exact = |value| Ball { value, error: 0.0 };
    if op == ReduceOp::Sum && sum.is_infinite() {
        return exact(sum);
    }
    if x.iter().any(|x| x.is_nan()) {
        return exact(f64::NAN);
    }
    match op {
        ReduceOp::Sum => Ball { value: sum, error: sum_error },
        ReduceOp::Mean if x.is_empty() => exact(f64::NAN),
        ReduceOp::Mean => Ball { value: sum / n, error: sum_error / n + 3.0 * u * (sum / n).abs() },
        ReduceOp::Max => exact(x.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
        ReduceOp::Min => exact(x.iter().copied().fold(f64::INFINITY, f64::min)),
        ReduceOp::Amax => exact(x.iter().map(|x| x.abs()).fold(0.0, f64::max)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_sets_by_hand() {
        let x = [1.0, -4.0, 2.0];
        for (op, want) in [
            (ReduceOp::Sum, -1.0),
            (ReduceOp::Mean, -1.0 / 3.0),
            (ReduceOp::Max, 2.0),
            (ReduceOp::Min, -4.0),
            (ReduceOp::Amax, 4.0),
        ] {
            assert_eq!(of_numbers(op, &x, 0.0).value, want, "{op}");
            assert!(of_numbers(op, &[1.0, f64::NAN], 0.0).value.is_nan(), "{op}");
        }
    }

    #[test]
    fn nothing_has_the_neutral_element() {
        let of = |op| of_numbers(op, &[], 0.0).value;
        assert_eq!((of(ReduceOp::Sum), of(ReduceOp::Amax)), (0.0, 0.0));
        assert_eq!((of(ReduceOp::Max), of(ReduceOp::Min)), (f64::NEG_INFINITY, f64::INFINITY));
        assert!(of(ReduceOp::Mean).is_nan());
    }
}
