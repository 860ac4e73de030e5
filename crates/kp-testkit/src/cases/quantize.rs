//! What quantization is judged on.

use super::{
    dequantize::{FORMATS, paired},
    pairwise::{lines, words},
    tail,
};
use crate::{
    fill::{Fill, FillKind},
    formats::{decode, max_value},
    judge::{Depth, Fewer, Judge, Output, Property},
    operands::Operands,
    reference::{ball::within, quantize as reference},
    tensor::{Inner, Tensor},
};
use kp_hal::{
    DType,
    op::{Quantize, QuantizeProblem, QuantizeSpec, Scales, Scheme, Spec},
};

const FLOOR: &[&str] = &[
    "quantize 4x64 f32:e4m3@row",
    "quantize 3x33 bf16:i8@row",
    "quantize 2x64 f32:e2m1@mx",
    "quantize 5x40 f32:u4@g16/f32z",
    "quantize 3x17 f32:e4m3",
    "quantize 0x8 f32:e4m3@row",
];

impl Judge for Quantize {
    fn cases(depth: Depth) -> Vec<String> {
        let dims = match depth {
            Depth::Quick => words("1x1 7x33 2x300 0x4"),
            Depth::Full => words("1x1 3x7 7x33 16x64 130x257 2x1000 5x128 129x16 0x4 3x0"),
        };
        let types = [("f32:", ""), ("bf16:", ""), ("f16:", ""), ("f64:", "")];
        lines(
            "quantize",
            &[
                dims,
                paired(&words(FORMATS), &types, depth),
                words("- rule=nearest rule=floor rule=up"),
                words("- - overflow=propagate"),
                words("- - scales=given"),
                words("- ldx=1003"),
                words("- ldq=1002"),
                words("- - repro=batch-invariant repro=fast"),
                words("- - align=8"),
            ],
            |line| line.parse::<QuantizeProblem>().is_ok(),
        )
    }

    fn floor() -> &'static [&'static str] {
        FLOOR
    }

    /// Every fourth row is all zeros, unless numbers are to be special, and then there are other surprises.
    fn inputs(problem: &QuantizeProblem, fill: &mut Fill) -> Operands {
        let mut operands = Operands::new::<Self>(problem, fill.kind());
        operands.fill_rows("x", &problem.x, (problem.rows, problem.cols), fill);
        if fill.kind() != FillKind::Special {
            for r in (3..u64::from(problem.rows)).step_by(4) {
                let mut x = operands.codes_mut("x");
                (0..u64::from(problem.cols)).for_each(|c| x.set_value(r * u64::from(problem.x.ld) + c, 0.0));
            }
        }
        operands.fill_scales("given_scale", fill);
        if operands.has("given_zero") {
            let mut zero = operands.codes_mut("given_zero");
            let most = max_value(problem.q.dtype()) as u64;
            (0..zero.len()).for_each(|i| zero.set_code(i, fill.below(most + 1)));
        }
        operands
    }

    fn reference(problem: &QuantizeProblem, operands: &Operands) -> Vec<Output> {
        reference::quantize(problem, operands)
    }

    fn properties() -> &'static [Property<Self>] {
        &[Property { name: "what can be said in codes keeps its value", inputs: sayable, again: None, check: kept }]
    }

    fn fewer_rows(problem: &QuantizeProblem, operands: &Operands) -> Option<Fewer<Self>> {
        let rows = tail::kept(problem.rows)?;
        let first = u64::from(problem.rows - rows);
        // A scale computed from all rows changes with them; given ones are cut by rows where each row has one.
        let format = problem.q.format;
        let per_row = match (format.scheme, problem.scales) {
            (Scheme::None, _) | (Scheme::Tensor, Scales::Given) => 0,
            (Scheme::Row, _) => 1,
            (Scheme::Tensor | Scheme::Nv, _) | (_, Scales::Given) => return None,
            _ if tail::scaled_alone(format) => 0,
            _ => return None,
        };
        let small = QuantizeSpec { rows, ..*problem.spec() }.build().ok()?;
        let small = small.with_repro(problem.repro()).with_align(problem.align());
        let (ldx, ldq) = (u64::from(problem.x.ld), u64::from(problem.q.ld));
        let shift = |name: &str| match name {
            "x" => first * ldx,
            "q" => first * ldq,
            _ => first * per_row,
        };
        let fewer = tail::fewer(small, operands, shift, tail::elements("q", problem.q.ld, rows, problem.cols));
        let shape = (rows, problem.rows, problem.cols);
        Some(tail::with_scales(tail::with_scales(fewer, "scale", format, shape), "zero", format, shape))
    }
}

/// Codes times a power of two, the largest code in every block, so that the scale can only be that power.
fn sayable(problem: &QuantizeProblem, fill: &mut Fill) -> Option<Operands> {
    let (p, format) = (problem.spec(), problem.q.format);
    let apart = format.has_zero() || format.has_global() || p.scales == Scales::Given;
    if apart || !matches!(p.x.dtype(), DType::F32 | DType::F64) {
        return None;
    }
    let mut operands = Quantize::inputs(problem, fill);
    let mut x = operands.codes_mut("x");
    let (block_rows, block_cols) = format.block();
    let factor = if format.scheme == Scheme::None { 1.0 } else { 8.0 };
    for r in 0..p.rows {
        for c in 0..p.cols {
            let first = r % block_rows == 0 && c % block_cols == 0;
            let code = loop {
                let code = decode(format.dtype, fill.below(1 << format.dtype.bits()));
                if code.abs() <= max_value(format.dtype) {
                    break code;
                }
            };
            let code = if first { max_value(format.dtype) } else { code };
            x.set_value(u64::from(r) * u64::from(p.x.ld) + u64::from(c), code * factor);
        }
    }
    Some(operands)
}

/// Codes times their scales are the numbers again. Other scales than powers of two may be off by their last bits, and
/// the products with them.
fn kept(problem: &QuantizeProblem, runs: &[Operands]) -> Result<(), String> {
    let p = problem.spec();
    let x = Tensor::rows(runs[0].codes("x"), &p.x, p.rows, p.cols);
    let shape = (p.rows, p.cols, 1);
    let q = Tensor::scaled(&runs[0], ["q", "scale", "global", "zero"], &p.q.as_matrix(p.rows), shape, Inner::Cols);
    for (i, (x, q)) in x.values.iter().zip(&q.values).enumerate() {
        if !within(x - q, 1e-6 * x.abs()) {
            return Err(format!("number {i} was {x}, its code times its scale is {q}"));
        }
    }
    Ok(())
}
