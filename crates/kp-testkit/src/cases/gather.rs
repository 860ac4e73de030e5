//! What gather is judged on.

use super::{
    pairwise::{lines, words},
    shapes,
};
use crate::{
    fill::{Fill, FillKind},
    judge::{Depth, Judge, Output},
    operands::Operands,
    reference::copy,
};
use kp_hal::op::{Gather, GatherProblem};

/// What every backend that gathers must gather.
const FLOOR: &[&str] = &[
    "gather 16x384 f32:f32 from=100",
    "gather 33x65 bf16:f32 from=7",
    "gather 5x1 f32:f32 from=1",
    "gather 0x0 f32:f32 from=0",
    "gather 4x8 bf16:bf16 from=0",
];

impl Judge for Gather {
    fn cases(depth: Depth) -> Vec<String> {
        let count = if depth == Depth::Quick { 3 } else { 12 };
        let mut dims: Vec<String> = shapes::pairs(count).map(|[rows, cols]| format!("{rows}x{cols}")).collect();
        dims.extend(words("0x5 5x0"));
        lines(
            "gather",
            &[
                dims,
                words(
                    "f32:f32 bf16:f32 f32:bf16 f16:f16 f64:f32 bf16:f16 e4m3:bf16 f32:e5m2 e2m1:e2m1 i8:i8 i32:i64 \
                     i4:i32 nf4:f32",
                ),
                words("from=1 from=37 from=1000 from=0"),
                words("- ldt=262"),
                words("- ldy=264"),
                words("- - align=1"),
            ],
            |line| line.parse::<GatherProblem>().is_ok(),
        )
    }

    fn floor() -> &'static [&'static str] {
        FLOOR
    }

    fn inputs(problem: &GatherProblem, fill: &mut Fill) -> Operands {
        let mut operands = Operands::new::<Self>(problem, fill.kind());
        operands.fill_rows("table", &problem.table, (problem.table_rows, problem.cols), fill);
        let rows = i64::from(problem.table_rows);
        let outside = [-1, rows, i64::from(i32::MIN), i64::from(i32::MAX)];
        let index: Vec<i64> = (0..problem.rows)
            .map(|_| match fill.below(16) {
                // An index outside the table gives NaN, not whatever lies there.
                choice @ 0..4 if fill.kind() != FillKind::Normal => outside[choice as usize],
                _ => fill.below(problem.table_rows.max(1).into()) as i64,
            })
            .collect();
        operands.set_ints("index", index);
        operands
    }

    fn cost(problem: &GatherProblem) -> f64 {
        f64::from(problem.rows) * f64::from(problem.cols)
    }

    fn reference(problem: &GatherProblem, operands: &Operands) -> Vec<Output> {
        copy::gather(problem, operands)
    }
}
