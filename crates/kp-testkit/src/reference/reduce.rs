//! Sums, means and extremes along rows, along columns or segment by segment.
//!
//! Bound: a sum of n numbers, in any order, is off by at most n u Σ|x|; a mean by three roundings more. Extremes are
//! exact.

use super::ball::{Ball, unit};
use crate::{
    fill::FillKind,
    judge::{Output, Plain},
    operands::Operands,
    tensor::Tensor,
};
use kp_hal::op::{ReduceOp, ReduceProblem, Reduced};

/// What `y` should hold.
pub(crate) fn reduce(p: &ReduceProblem, operands: &Operands) -> Vec<Output> {
    let x = Tensor::rows(operands.codes("x"), &p.x, p.rows, p.cols);
    let whole = operands.kind() == FillKind::Exact && p.op == ReduceOp::Sum;
    let u = if whole { 0.0 } else { unit(p.x.dtype()) };
    let column = |c: usize, rows: std::ops::Range<usize>| rows.map(|r| x.at(0, r, c)).collect::<Vec<_>>();
    let y: Vec<Ball> = match p.over {
        Reduced::Cols => (0..x.rows).map(|r| of_numbers(p.op, x.row(0, r), u)).collect(),
        Reduced::Rows => (0..x.cols).map(|c| of_numbers(p.op, &column(c, 0..x.rows), u)).collect(),
        Reduced::Segments(n) => {
            let offset = |s: u32| operands.codes("offsets").int(s.into()) as usize;
            let each = |s: u32| (0..x.cols).map(move |c| (c, offset(s)..offset(s + 1)));
            (0..n).flat_map(each).map(|(c, rows)| of_numbers(p.op, &column(c, rows), u)).collect()
        }
    };
    vec![Plain::list("y", p.y, y.into_iter().map(Into::into)).into()]
}

fn of_numbers(op: ReduceOp, x: &[f64], u: f64) -> Ball {
    let n = x.len() as f64;
    let sum: f64 = x.iter().sum();
    let sum_error = n * u * x.iter().map(|x| x.abs()).sum::<f64>();
    if x.iter().any(|x| x.is_nan()) {
        return Ball::exact(f64::NAN);
    }
    match op {
        ReduceOp::Sum => Ball { value: sum, error: sum_error },
        ReduceOp::Mean if x.is_empty() => Ball::exact(f64::NAN),
        ReduceOp::Mean => Ball { value: sum / n, error: sum_error / n + 3.0 * u * (sum / n).abs() },
        ReduceOp::Max => Ball::exact(x.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
        ReduceOp::Min => Ball::exact(x.iter().copied().fold(f64::INFINITY, f64::min)),
        ReduceOp::Amax => Ball::exact(x.iter().map(|x| x.abs()).fold(0.0, f64::max)),
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
