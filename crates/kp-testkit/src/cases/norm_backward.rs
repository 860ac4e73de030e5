//! What gradients of norms are judged on.

use super::{
    pairwise::{lines, words},
    tail,
};
use crate::{
    fill::Fill,
    formats::{smallest, unit_roundoff},
    judge::{Depth, Fewer, Judge, Output, Property},
    operands::Operands,
    reference::{ball::within, norm_backward as reference},
    tensor::Tensor,
};
use kp_hal::op::{NormBackward, NormBackwardProblem, NormBackwardSpec, NormKind, Spec};

const FLOOR: &[&str] = &[
    "norm_backward 4x64 f32:f32 kind=rms weight=f32",
    "norm_backward 3x33 f32:f32 kind=layer weight=f32 bias",
    "norm_backward 5x130 bf16:bf16 kind=layer weight=bf16 bias",
    "norm_backward 3x16 f32:f32 kind=l2 eps=1e-12",
    "norm_backward 0x8 f32:f32 kind=rms weight=f32",
];

impl Judge for NormBackward {
    fn cases(depth: Depth) -> Vec<String> {
        let dims = match depth {
            Depth::Quick => words("1x1 7x33 2x300 0x4"),
            Depth::Full => words("1x1 1x2 3x7 7x33 16x64 129x257 2x1000 300x5 0x4 3x0"),
        };
        lines(
            "norm_backward",
            &[
                dims,
                words("f32:f32 bf16:bf16 f16:f16 f64:f64 bf16:f32 f32:bf16 f16:f32"),
                words("kind=layer kind=rms kind=l2"),
                words("- eps=1e-12 eps=0.5"),
                words("- weight=f32 weight=bf16"),
                words("- bias"),
                words("- - ldx=1003"),
                words("- - ldg=1004"),
                words("- - repro=batch-invariant repro=fast"),
                words("- - align=8"),
            ],
            |line| line.parse::<NormBackwardProblem>().is_ok(),
        )
    }

    fn floor() -> &'static [&'static str] {
        FLOOR
    }

    fn inputs(problem: &NormBackwardProblem, fill: &mut Fill) -> Operands {
        let mut operands = Operands::new::<Self>(problem, fill.kind());
        let shape = (problem.rows, problem.cols);
        operands.fill_rows("x", &problem.x, shape, fill);
        operands.fill_rows("grad_y", &problem.grad_y, shape, fill);
        operands.fill_all("weight", fill);
        operands
    }

    fn cost(problem: &NormBackwardProblem) -> f64 {
        10.0 * f64::from(problem.rows) * f64::from(problem.cols)
    }

    fn reference(problem: &NormBackwardProblem, operands: &Operands) -> Vec<Output> {
        reference::norm_backward(problem, operands)
    }

    fn properties() -> &'static [Property<Self>] {
        &[Property {
            name: "what a norm does not see has no gradient",
            inputs: |problem, fill| {
                (problem.cols >= 16 && problem.eps.get() <= 1e-5).then(|| NormBackward::inputs(problem, fill))
            },
            again: None,
            check: blind,
        }]
    }

    fn fewer_rows(problem: &NormBackwardProblem, operands: &Operands) -> Option<Fewer<Self>> {
        let rows = tail::kept(problem.rows)?;
        let first = u64::from(problem.rows - rows);
        let small = NormBackwardSpec { rows, ..*problem.spec() }.build().ok()?;
        let small = small.with_repro(problem.repro()).with_align(problem.align());
        let (ldx, ldg, cols) = (u64::from(problem.x.ld), u64::from(problem.grad_y.ld), u64::from(problem.cols));
        let shift = |name: &str| match name {
            "x" => first * ldx,
            "grad_y" => first * ldg,
            "grad_x" => first * cols,
            _ => 0,
        };
        Some(tail::fewer(small, operands, shift, tail::elements("grad_x", problem.cols, rows, problem.cols)))
    }
}

/// A layer norm does not see a shift of a row, and no norm sees its length: the gradient is at right angles to both,
/// but for eps, for roundings, and for what sums over a row lose.
fn blind(problem: &NormBackwardProblem, runs: &[Operands]) -> Result<(), String> {
    let t = problem.x.dtype();
    let x = Tensor::rows(runs[0].codes("x"), &problem.x, problem.rows, problem.cols);
    let grad = runs[0].codes("grad_x");
    let columns = f64::from(problem.cols);
    for r in 0..problem.rows as usize {
        let row = x.row(0, r);
        let mean = if problem.kind == NormKind::Layer { row.iter().sum::<f64>() / columns } else { 0.0 };
        let (mut along, mut across, mut magnitude, mut total) = (0.0, 0.0, 0.0, 0.0);
        for (c, x) in row.iter().enumerate() {
            let g = grad.value((r * problem.cols as usize + c) as u64);
            along += g * (x - mean);
            magnitude += (g * (x - mean)).abs();
            across += g;
            total += g.abs();
        }
        let share = unit_roundoff(t) + 1e-6 * columns + 1e-4;
        let flushed = columns * smallest(t);
        if !within(along, share * magnitude + 4.0 * flushed) {
            return Err(format!("row {r}: the gradient along the row is {along:.3e} of {magnitude:.3e}"));
        }
        if problem.kind == NormKind::Layer && !within(across, share * total + flushed) {
            return Err(format!("row {r}: the gradient sums to {across:.3e} of {total:.3e}"));
        }
    }
    Ok(())
}
