//! What dequantization is judged on.

use super::{
    pairwise::{lines, words},
    tail,
};
use crate::{
    fill::Fill,
    judge::{Depth, Fewer, Judge, Output},
    operands::Operands,
    reference::dequantize as reference,
};
use kp_hal::op::{Dequantize, DequantizeProblem, DequantizeSpec, Scheme, Spec};

const FLOOR: &[&str] = &[
    "dequantize 4x64 e4m3@row:f32",
    "dequantize 3x33 i8@row:bf16",
    "dequantize 2x64 e2m1@mx:bf16",
    "dequantize 5x48 u4@g16/f16z:f16",
    "dequantize 1x1 e5m2:f32",
    "dequantize 0x8 e4m3@tensor:f32",
];

/// Every format: type, scheme, and order of the scales.
pub(super) const FORMATS: &str = "e4m3 e5m2 e4m3fnuz e5m2fnuz e2m1 nf4 i4 u4 i8 u8 \
    e4m3@tensor e2m1@tensor i8@tensor e4m3@row e5m2@row e4m3fnuz@row e5m2fnuz@row e2m1@row nf4@row i4@row i8@row \
    e4m3@1x128 e4m3@1x128^outer e4m3@128x128 e5m2@2x16 i8@3x5 nf4@1x64 e4m3@128x128^outer e4m3fnuz@1x32^outer \
    e4m3@mx e5m2@mx e2m1@mx i8@mx e4m3@mx^outer e2m1@mx^tiles e4m3@mx^tiles e2m1@nv e2m1@nv^outer e2m1@nv^tiles \
    i4@g32/f16 i4@g128/f32 u4@g16/bf16 i8@g64/f32 u8@g32/f16 e4m3@g32/f32 e2m1@g16/bf16 nf4@g64/f32 nf4@g64/bf16^outer \
    e5m2@g7/f32 u4@g32/f32z u4@g16/f16z u8@g32/f32z u8@g128/bf16z u4@g32/f16z^outer";

/// Each format between the ends of each of `types`; when quick, of one of them in turn.
pub(super) fn paired(formats: &[String], types: &[(&str, &str)], depth: Depth) -> Vec<String> {
    let all = formats.iter().enumerate().flat_map(|(i, format)| {
        let few = if depth == Depth::Quick { i % types.len()..i % types.len() + 1 } else { 0..types.len() };
        types[few].iter().map(move |(before, after)| format!("{before}{format}{after}"))
    });
    all.collect()
}

impl Judge for Dequantize {
    fn cases(depth: Depth) -> Vec<String> {
        let dims = match depth {
            Depth::Quick => words("1x1 7x33 2x300 0x4"),
            Depth::Full => words("1x1 3x7 7x33 16x64 130x257 2x1000 5x128 129x16 0x4 3x0"),
        };
        let formats = [words(FORMATS), words("i4@g32/f16z i8@g32/f32z")].concat();
        let types = [("", ":f32"), ("", ":bf16"), ("", ":f16"), ("", ":f64")];
        lines(
            "dequantize",
            &[
                dims,
                paired(&formats, &types, depth),
                words("- ldq=1002"),
                words("- ldy=1003"),
                words("- - repro=batch-invariant repro=fast"),
                words("- - align=4"),
            ],
            |line| line.parse::<DequantizeProblem>().is_ok(),
        )
    }

    fn floor() -> &'static [&'static str] {
        FLOOR
    }

    fn inputs(problem: &DequantizeProblem, fill: &mut Fill) -> Operands {
        let mut operands = Operands::new::<Self>(problem, fill.kind());
        let shape = (problem.rows, problem.cols, 1);
        operands.fill_scaled(["q", "scale", "global", "zero"], &problem.q.as_matrix(problem.rows), shape, fill);
        operands
    }

    fn reference(problem: &DequantizeProblem, operands: &Operands) -> Vec<Output> {
        reference::dequantize(problem, operands)
    }

    fn fewer_rows(problem: &DequantizeProblem, operands: &Operands) -> Option<Fewer<Self>> {
        let rows = tail::kept(problem.rows)?;
        let first = u64::from(problem.rows - rows);
        // Scales of other schemes are not cut by a row alone.
        let per_row = match problem.q.format.scheme {
            Scheme::None | Scheme::Tensor => 0,
            Scheme::Row => 1,
            _ => return None,
        };
        let small = DequantizeSpec { rows, ..*problem.spec() }.build().ok()?;
        let small = small.with_repro(problem.repro()).with_align(problem.align());
        let (ldq, ldy) = (u64::from(problem.q.ld), u64::from(problem.y.ld));
        let shift = |name: &str| match name {
            "q" => first * ldq,
            "y" => first * ldy,
            _ => first * per_row,
        };
        Some(tail::fewer(small, operands, shift, tail::elements("y", problem.y.ld, rows, problem.cols)))
    }
}
