//! What activations are judged on.

use super::{
    dequantize::paired,
    pairwise::{lines, words},
    tail,
};
use crate::{
    fill::Fill,
    judge::{Depth, Fewer, Judge, Output},
    operands::Operands,
    reference::activation as reference,
};
use kp_hal::op::{Activation, ActivationProblem, ActivationSpec, Spec};

const FLOOR: &[&str] = &[
    "activation 4x64 f32:f32 act=gelu",
    "activation 3x33 bf16:bf16 act=silu gate=halves",
    "activation 5x7 f16:f16 act=relu",
    "activation 2x130 f32:f32 act=gelu_tanh",
    "activation 3x17 f32:f32 factor=f32 residual=f32",
    "activation 0x4 f32:f32 act=tanh",
];

/// Formats of outputs that are quantized as they are stored.
pub(super) const STORED: &str = "e4m3 e5m2 i8 e4m3@tensor e5m2@tensor i8@tensor e4m3@row i8@row e4m3@1x128 \
    e4m3@1x128^outer e5m2@2x16 e2m1@mx e4m3@mx e4m3@mx^tiles e2m1@nv e2m1@nv^tiles e4m3@g32/f32 i4@g32/f16 nf4@g64/f32";

impl Judge for Activation {
    fn cases(depth: Depth) -> Vec<String> {
        let dims = match depth {
            Depth::Quick => words("1x1 7x33 2x300 0x4"),
            Depth::Full => words("1x1 3x7 7x33 16x64 129x257 2x1000 5x128 0x4 3x0"),
        };
        let plain = words("f32:f32 bf16:bf16 f16:f16 f64:f64 bf16:f32 f32:bf16 f16:bf16 f64:f32");
        let stored = paired(&words(STORED), &[("f32:", ""), ("bf16:", "")], depth);
        let valid = |line: &str| line.parse::<ActivationProblem>().is_ok();
        let options = [
            words("- act=relu act=gelu act=gelu_tanh act=silu act=sigmoid act=tanh"),
            words("- gate=halves gate=pairs"),
            words("- - factor=f32 factor=bf16 factor=f64"),
            words("- - residual=f32 residual=f16"),
            words("- - ldx=2002"),
            words("- - ldy=1002"),
            words("- - repro=batch-invariant repro=fast"),
            words("- - align=8"),
        ];
        let with = |types: Vec<String>| [&[dims.clone(), types], &options[..]].concat();
        let mut out = lines("activation", &with(plain), valid);
        out.extend(lines("activation", &with(stored), valid));
        out
    }

    fn floor() -> &'static [&'static str] {
        FLOOR
    }

    fn inputs(problem: &ActivationProblem, fill: &mut Fill) -> Operands {
        let mut operands = Operands::new::<Self>(problem, fill.kind());
        operands.fill_rows("x", &problem.x, (problem.rows, problem.x_cols()), fill);
        operands.fill_all("factor", fill);
        operands.fill_all("residual", fill);
        operands.fill_scales("y_global", fill);
        operands
    }

    fn reference(problem: &ActivationProblem, operands: &Operands) -> Vec<Output> {
        reference::activation(problem, operands)
    }

    fn fewer_rows(problem: &ActivationProblem, operands: &Operands) -> Option<Fewer<Self>> {
        if !tail::scaled_alone(problem.y.format) {
            return None;
        }
        let rows = tail::kept(problem.rows)?;
        let first = u64::from(problem.rows - rows);
        let small = ActivationSpec { rows, ..*problem.spec() }.build().ok()?;
        let small = small.with_repro(problem.repro()).with_align(problem.align());
        let (ldx, ldy, cols) = (u64::from(problem.x.ld), u64::from(problem.y.ld), u64::from(problem.cols));
        let shift = |name: &str| match name {
            "x" => first * ldx,
            "y" => first * ldy,
            "factor" | "residual" => first * cols,
            _ => 0,
        };
        let fewer = tail::fewer(small, operands, shift, tail::elements("y", problem.y.ld, rows, problem.cols));
        Some(tail::with_scales(fewer, "y_scale", problem.y.format, (rows, problem.rows, problem.cols)))
    }
}
