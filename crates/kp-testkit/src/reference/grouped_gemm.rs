//! Grouped GEMM: every row by the B of its group.

use super::gemm::{B, finish, row_sums, stored};
use crate::{
    judge::{Output, Want},
    operands::Operands,
    reference::gemm::A,
    tensor::{Inner, Tensor},
};
use kp_hal::op::{GroupedGemmProblem, Grouping};

pub(crate) fn reference(problem: &GroupedGemmProblem, operands: &Operands) -> Vec<Output> {
    let spec = &problem.gemm;
    let row_batch = row_batch(problem);
    let a = Tensor::scaled(operands, A, &spec.a, (spec.m, spec.k, row_batch), Inner::Cols);
    let b = Tensor::scaled(operands, B, &spec.b, (spec.k, spec.n, spec.batch), Inner::Rows);
    let mut values = Vec::new();
    for batch in 0..row_batch {
        for row in 0..spec.m {
            let Some(group) = group_of(problem, operands, batch, row) else {
                values.extend((0..spec.d_cols()).map(|_| Want::Untouched));
                continue;
            };
            let sums = row_sums(spec, &a, &b, (batch as usize, row as usize), group as usize);
            let first = u64::from(group) * u64::from(spec.n);
            let bias = |col: u32| operands.maybe("bias").map(|bias| bias.value(first + u64::from(col)));
            values.extend(finish(spec, operands, &sums, (batch, row), bias));
        }
    }
    vec![stored(spec, row_batch, values)]
}

/// How often A and D repeat.
pub(crate) fn row_batch(problem: &GroupedGemmProblem) -> u32 {
    match problem.grouping {
        Grouping::Contiguous => 1,
        Grouping::Masked => problem.gemm.batch,
    }
}

/// Whose B multiplies a row, if any.
fn group_of(problem: &GroupedGemmProblem, operands: &Operands, batch: u32, row: u32) -> Option<u32> {
    let groups = operands.codes("groups");
    match problem.grouping {
        Grouping::Masked => (i64::from(row) < groups.int(batch.into())).then_some(batch),
        Grouping::Contiguous => (0..problem.gemm.batch)
            .find(|&g| (groups.int(g.into())..groups.int(u64::from(g) + 1)).contains(&i64::from(row))),
    }
}
