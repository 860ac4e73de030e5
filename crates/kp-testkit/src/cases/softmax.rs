//! What softmax is judged on.

use super::{
    pairwise::{lines, words},
    tail,
};
use crate::{
    fill::Fill,
    formats::{smallest, unit_roundoff},
    judge::{Depth, Fewer, Judge, Output, Property},
    operands::Operands,
    reference::{ball::within, softmax as reference},
    tensor::Tensor,
};
use kp_hal::op::{Softmax, SoftmaxProblem, SoftmaxSpec, Spec};

const FLOOR: &[&str] = &[
    "softmax 4x64 f32:f32",
    "softmax 1x1 f32:f32",
    "softmax 3x257 bf16:bf16",
    "softmax 5x33 f16:f32 scale=0.125",
    "softmax 7x100 f32:f32 log",
    "softmax 0x8 f32:f32",
];

impl Judge for Softmax {
    fn cases(depth: Depth) -> Vec<String> {
        let dims = match depth {
            Depth::Quick => words("1x1 3x7 17x33 2x1000 0x4 3x0"),
            Depth::Full => words("1x1 1x2 3x7 4x64 17x33 2x1000 5x257 129x5 64x128 1x5000 3x1025 0x4 3x0"),
        };
        lines(
            "softmax",
            &[
                dims,
                words("f32:f32 bf16:bf16 f16:f16 f64:f64 bf16:f32 f32:bf16 f16:f32 f64:f32 f32:f16 f16:bf16"),
                words("- - scale=0.125 scale=-2.0"),
                words("- - ldx=5003"),
                words("- - ldy=5001"),
                words("- log"),
                words("- - repro=batch-invariant repro=fast"),
                words("- - align=8 align=64"),
            ],
            |line| line.parse::<SoftmaxProblem>().is_ok(),
        )
    }

    fn floor() -> &'static [&'static str] {
        FLOOR
    }

    fn inputs(problem: &SoftmaxProblem, fill: &mut Fill) -> Operands {
        let mut operands = Operands::new::<Self>(problem, fill.kind());
        operands.fill_rows("x", &problem.x, (problem.rows, problem.cols), fill);
        operands
    }

    fn reference(problem: &SoftmaxProblem, operands: &Operands) -> Vec<Output> {
        reference::softmax(problem, operands)
    }

    fn properties() -> &'static [Property<Self>] {
        &[Property {
            name: "rows sum to 1",
            inputs: |problem, fill| Some(Softmax::inputs(problem, fill)),
            again: None,
            check: sums,
        }]
    }

    fn fewer_rows(problem: &SoftmaxProblem, operands: &Operands) -> Option<Fewer<Self>> {
        let rows = tail::kept(problem.rows)?;
        let first = u64::from(problem.rows - rows);
        let small = SoftmaxSpec { rows, ..*problem.spec() }.build().ok()?;
        let small = small.with_repro(problem.repro()).with_align(problem.align());
        let (ldx, ldy, cols) = (problem.x.ld, problem.y.ld, problem.cols);
        let shift = |name: &str| first * u64::from(if name == "x" { ldx } else { ldy });
        Some(tail::fewer(small, operands, shift, tail::elements("y", ldy, rows, cols)))
    }
}

/// Each number is off by its rounding and by a few operations per column, and so is their sum; of a logarithm the
/// rounding is absolute and becomes relative.
fn sums(problem: &SoftmaxProblem, runs: &[Operands]) -> Result<(), String> {
    let t = problem.y.dtype();
    let y = Tensor::rows(runs[0].codes("y"), &problem.y, problem.rows, problem.cols);
    let columns = f64::from(problem.cols);
    for r in 0..problem.rows as usize {
        let row = y.row(0, r);
        let (sum, rounding) = row.iter().fold((0.0, 0.0), |(sum, rounding), &y| match problem.log {
            true => (sum + y.exp(), rounding + y.exp() * (y.exp() + y.abs()) * unit_roundoff(t)),
            false => (sum + y, rounding + y * unit_roundoff(t)),
        });
        let bound = rounding + columns * (smallest(t) + 1e-6) + 1e-5;
        if !row.is_empty() && !within(sum - 1.0, bound) {
            return Err(format!("row {r} sums to {sum}, which is off by more than {bound:.2e}"));
        }
    }
    Ok(())
}
