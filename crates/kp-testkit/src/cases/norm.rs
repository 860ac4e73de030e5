//! What norms are judged on.

use super::{
    activation::STORED,
    dequantize::paired,
    pairwise::{lines, words},
    tail,
};
use crate::{
    fill::Fill,
    formats::unit_roundoff,
    judge::{Depth, Fewer, Judge, Output, Property},
    operands::Operands,
    reference::{ball::within, norm as reference},
    tensor::Tensor,
};
use kp_hal::op::{Norm, NormKind, NormProblem, NormSpec, Scheme, Spec};

const FLOOR: &[&str] = &[
    "norm 4x64 f32:f32 kind=rms weight=f32",
    "norm 3x33 f32:f32 kind=layer weight=f32 bias=f32",
    "norm 5x130 bf16:bf16 kind=rms weight=bf16 residual",
    "norm 2x257 f16:f16 kind=layer eps=1e-6",
    "norm 3x16 f32:f32 kind=l2 eps=1e-12",
    "norm 0x8 f32:f32 kind=rms",
];

impl Judge for Norm {
    fn cases(depth: Depth) -> Vec<String> {
        let dims = match depth {
            Depth::Quick => words("1x1 7x33 2x300 0x4"),
            Depth::Full => words("1x1 1x2 3x7 7x33 16x64 129x257 2x1000 5x128 1x8192 0x4 3x0"),
        };
        let plain = words("f32:f32 bf16:bf16 f16:f16 f64:f64 bf16:f32 f32:bf16 f16:bf16 f64:f32");
        let stored = paired(&words(STORED), &[("f32:", ""), ("bf16:", "")], depth);
        let valid = |line: &str| line.parse::<NormProblem>().is_ok();
        let options = [
            words("kind=layer kind=rms kind=l2"),
            words("- eps=1e-12 eps=0.5 eps=0.0"),
            words("- weight=f32 weight=bf16"),
            words("- bias=f32 bias=f16"),
            words("- residual"),
            words("- - ldx=8195"),
            words("- - ldy=8196"),
            words("- - repro=batch-invariant repro=fast"),
            words("- - align=8"),
        ];
        let with = |types: Vec<String>| [&[dims.clone(), types], &options[..]].concat();
        let mut out = lines("norm", &with(plain), valid);
        out.extend(lines("norm", &with(stored), valid));
        out
    }

    fn floor() -> &'static [&'static str] {
        FLOOR
    }

    fn inputs(problem: &NormProblem, fill: &mut Fill) -> Operands {
        let mut operands = Operands::new::<Self>(problem, fill.kind());
        let shape = (problem.rows, problem.cols);
        operands.fill_rows("x", &problem.x, shape, fill);
        if problem.residual {
            operands.fill_rows("residual", &problem.x, shape, fill);
        }
        operands.fill_all("weight", fill);
        operands.fill_all("bias", fill);
        operands.fill_scales("y_global", fill);
        operands
    }

    fn cost(problem: &NormProblem) -> f64 {
        5.0 * f64::from(problem.rows) * f64::from(problem.cols)
    }

    fn reference(problem: &NormProblem, operands: &Operands) -> Vec<Output> {
        reference::norm(problem, operands)
    }

    fn properties() -> &'static [Property<Self>] {
        &[Property {
            name: "normalized rows have the mean and the length that the norm gives them",
            inputs: |problem, fill| bare(problem).then(|| Norm::inputs(problem, fill)),
            again: None,
            check: moments,
        }]
    }

    fn fewer_rows(problem: &NormProblem, operands: &Operands) -> Option<Fewer<Self>> {
        if !tail::scaled_alone(problem.y.format) {
            return None;
        }
        let rows = tail::kept(problem.rows)?;
        let first = u64::from(problem.rows - rows);
        let small = NormSpec { rows, ..*problem.spec() }.build().ok()?;
        let small = small.with_repro(problem.repro()).with_align(problem.align());
        let (ldx, ldy) = (u64::from(problem.x.ld), u64::from(problem.y.ld));
        let shift = |name: &str| match name {
            "x" | "residual" | "sum" => first * ldx,
            "y" => first * ldy,
            _ => 0,
        };
        let fewer = tail::fewer(small, operands, shift, tail::elements("y", problem.y.ld, rows, problem.cols));
        Some(tail::with_scales(fewer, "y_scale", problem.y.format, (rows, problem.rows, problem.cols)))
    }
}

/// Neither weight nor bias nor scales hide what was normalized, eps is small, and a row has more than one number.
fn bare(p: &NormProblem) -> bool {
    let plain = p.weight.is_none() && p.bias.is_none() && p.y.format.scheme == Scheme::None && p.y.dtype().bits() >= 16;
    plain && p.eps.get() <= 1e-5 && p.cols >= 16
}

/// Rows of normal numbers have a variance near 1, beside which eps is nothing; each number is off by its rounding and by
/// what sums over a row lose.
fn moments(problem: &NormProblem, runs: &[Operands]) -> Result<(), String> {
    let y = Tensor::rows(runs[0].codes("y"), &problem.y, problem.rows, problem.cols);
    let columns = f64::from(problem.cols);
    let share = 4.0 * unit_roundoff(problem.y.dtype()) + 4.0 * unit_roundoff(problem.x.dtype()) + 1e-6 * columns + 1e-4;
    for r in 0..problem.rows as usize {
        let row = y.row(0, r);
        let squares: f64 = row.iter().map(|y| y * y).sum();
        let want = if problem.kind == NormKind::L2 { 1.0 } else { columns };
        let mean = row.iter().sum::<f64>() / columns;
        if !within(squares - want, share * want) {
            return Err(format!("the squares of row {r} sum to {squares}, not to {want} ± {:.1e}", share * want));
        }
        if problem.kind == NormKind::Layer && !within(mean, share) {
            return Err(format!("the mean of row {r} is {mean:.3e}, not 0 ± {share:.1e}"));
        }
    }
    Ok(())
}
