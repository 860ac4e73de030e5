//! Cast and gather: elements into another type and place.

use crate::{
    judge::{Output, Plain, Want},
    operands::Operands,
    tensor::place,
    tolerance::operand_error,
};
use kp_hal::{
    DType,
    op::{CastProblem, GatherProblem},
};

pub(crate) fn cast(problem: &CastProblem, operands: &Operands) -> Vec<Output> {
    let (x, y) = (operands.codes("x"), problem.y);
    let shape = (problem.rows, problem.cols, problem.batch);
    let plain = Plain::matrix("y", &y, shape, |b, row, col| {
        element(x.dtype, y.dtype(), x.code(place(&problem.x, (problem.rows, b), row, col)))
    });
    vec![Plain { overflow: problem.overflow, ..plain }.into()]
}

pub(crate) fn gather(problem: &GatherProblem, operands: &Operands) -> Vec<Output> {
    let (table, index) = (operands.codes("table"), operands.codes("index"));
    let has_nan = crate::formats::nan_code(problem.y.dtype()).is_some();
    let plain = Plain::rows("y", &problem.y, (problem.rows, problem.cols), |row, col| {
        let from = index.int(row.into());
        if !(0..i64::from(problem.table_rows)).contains(&from) {
            return Want::exact(if has_nan { f64::NAN } else { 0.0 });
        }
        let at = from as u64 * u64::from(problem.table.ld) + u64::from(col);
        element(table.dtype, problem.y.dtype(), table.code(at))
    });
    vec![plain.into()]
}

/// Codes of one type are moved as they are; others are rounded once. Of `tf32` only ten mantissa bits need count.
fn element(from: DType, to: DType, code: u64) -> Want {
    if from == to {
        return Want::Code(code);
    }
    let value = crate::formats::decode(from, code);
    let lost = (operand_error(from) + operand_error(to)) * value.abs();
    Want::Number { value, slack: if lost.is_finite() { lost } else { 0.0 } }
}
