//! What cast is judged on.

use super::{
    pairwise::{lines, words},
    shapes,
};
use crate::{
    fill::Fill,
    judge::{Depth, Judge, Output},
    operands::Operands,
    reference::copy,
};
use kp_hal::op::{Cast, CastProblem};

/// What every backend that casts must cast.
const FLOOR: &[&str] = &[
    "cast 1x64x32 f32:bf16",
    "cast 1x17x65 bf16:f32",
    "cast 1x33x31 f32:f16",
    "cast 1x31x33 f32:f32 x=col",
    "cast 2x16x24 f32:f32 y=panel16x2",
    "cast 1x40x31 bf16:bf16 y=panel16x2",
    "cast 1x1x1 f32:bf16",
    "cast 0x0x0 f32:f32",
];

const TYPES: &str = "f64 f32 tf32 f16 bf16 e4m3 e5m2 e4m3fnuz e5m2fnuz e2m1 nf4 i4 u4 i8 u8 i32 i64";

impl Judge for Cast {
    fn cases(depth: Depth) -> Vec<String> {
        let count = if depth == Depth::Quick { 2 } else { 4 };
        let mut dims: Vec<String> = shapes::pairs(count).map(|[rows, cols]| format!("1x{rows}x{cols}")).collect();
        dims.extend(words("3x7x9 1x0x5"));
        let types = words(TYPES);
        let pairs = types.iter().flat_map(|x| types.iter().map(move |y| format!("{x}:{y}"))).collect();
        let options = [
            words("- x=col x=row/264 x=col/266/80000 x=panel16x2"),
            words("- y=col y=row/268 y=col/270/90000 y=panel16x2 y=panel8x4 y=panel4x1"),
            words("- - overflow=propagate"),
            words("- - align=1"),
        ];
        let valid = |line: &str| line.parse::<CastProblem>().is_ok();
        let mut out = lines("cast", &[vec![dims, pairs], options.to_vec()].concat(), valid);
        if depth == Depth::Quick {
            out = out.into_iter().step_by(8).collect();
        }
        out
    }

    fn floor() -> &'static [&'static str] {
        FLOOR
    }

    fn inputs(problem: &CastProblem, fill: &mut Fill) -> Operands {
        let mut operands = Operands::new::<Self>(problem, fill.kind());
        operands.fill_matrix("x", &problem.x, (problem.rows, problem.cols, problem.batch), fill);
        operands
    }

    fn reference(problem: &CastProblem, operands: &Operands) -> Vec<Output> {
        copy::cast(problem, operands)
    }
}
