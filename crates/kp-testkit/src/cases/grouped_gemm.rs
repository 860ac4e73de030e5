//! What grouped GEMM is judged on.

use super::{
    beyond,
    gemm::fill_product,
    pairwise::{lines, words},
    part, shapes, tail,
};
use crate::{
    fill::Fill,
    judge::{Depth, Fewer, Judge, Output, Property},
    operands::Operands,
    reference::grouped_gemm::{self as reference, row_batch},
};
use kp_hal::op::{Act, GroupedGemm, GroupedGemmProblem, GroupedGemmSpec, Grouping, Spec};

/// What every backend that has groups must multiply.
const FLOOR: &[&str] = &[
    "grouped_gemm 4x64x32x48 f32:f32:f32",
    "grouped_gemm 4x16x32x48 f32:f32:f32 grouping=masked",
    "grouped_gemm 3x33x17x65 bf16:bf16:bf16 b=col",
    "grouped_gemm 8x1x16x32 bf16:bf16:bf16 b=col grouping=masked",
    "grouped_gemm 1x7x5x3 f32:f32:f32",
    "grouped_gemm 0x0x0x0 f32:f32:f32",
];

impl Judge for GroupedGemm {
    fn cases(depth: Depth) -> Vec<String> {
        let count = if depth == Depth::Quick { 3 } else { 10 };
        let groups = [1, 2, 3, 5, 8, 17];
        let sizes = shapes::triples(count).enumerate();
        let mut dims: Vec<String> =
            sizes.map(|(i, [m, n, k])| format!("{}x{m}x{n}x{k}", groups[i % groups.len()])).collect();
        dims.extend(words("4x0x5x6 3x5x0x6 3x5x6x0 4x130x128x256 4x200x272x256 17x64x64x128"));
        lines(
            "grouped_gemm",
            &[
                dims,
                words(
                    "f32:f32:f32 bf16:bf16:bf16 f16:f16:f32 i8:i8:i32 e4m3@1x128:e4m3@128x128:bf16 \
                     e4m3@row:e4m3@row:bf16 bf16:i4@g32/f16:bf16 e2m1@mx:e2m1@mx:f32 bf16:e2m1@mx:bf16 \
                     bf16:bf16:e4m3@row bf16:bf16:e4m3@1x32",
                ),
                words("- grouping=masked"),
                words("- - a=row/300 a=col/300"),
                words("- b=col b=row/302 b=panel16x2"),
                words("- - d=row/308"),
                words("- bias=f32 bias=bf16"),
                words("- act=silu act=gelu"),
                words("- - gate=halves gate=pairs"),
                words("- residual=bf16"),
                words("- - acc=f32q8"),
                words("- - align=2"),
                words("- - repro=batch-invariant"),
            ],
            |line| line.parse::<GroupedGemmProblem>().is_ok(),
        )
    }

    fn floor() -> &'static [&'static str] {
        FLOOR
    }

    fn inputs(problem: &GroupedGemmProblem, fill: &mut Fill) -> Operands {
        let spec = &problem.gemm;
        let mut operands = Operands::new::<Self>(problem, fill.kind());
        fill_product(&mut operands, spec, [row_batch(problem), spec.batch], fill);
        let m = u64::from(spec.m);
        let groups: Vec<i64> = match problem.grouping {
            // Some groups empty, some full.
            Grouping::Masked => (0..spec.batch).map(|_| fill.below(m + 1) as i64).collect(),
            Grouping::Contiguous => {
                // A few rows at the end may belong to none.
                let mut ends: Vec<i64> = (0..spec.batch).map(|_| fill.below(m + 1) as i64).collect();
                ends.sort_unstable();
                if let (Some(last), true) = (ends.last_mut(), fill.below(2) == 0) {
                    *last = m as i64;
                }
                [0].into_iter().chain(ends).collect()
            }
        };
        operands.set_ints("groups", groups);
        operands.set_scalar("alpha", fill.scalar());
        operands
    }

    fn cost(problem: &GroupedGemmProblem) -> f64 {
        let spec = &problem.gemm;
        f64::from(row_batch(problem)) * f64::from(spec.m) * f64::from(spec.n) * f64::from(spec.k)
    }

    fn reference(problem: &GroupedGemmProblem, operands: &Operands) -> Vec<Output> {
        reference::reference(problem, operands)
    }

    fn special(problem: &GroupedGemmProblem) -> bool {
        problem.gemm.epilogue.act == Act::Identity
    }

    fn properties() -> &'static [Property<Self>] {
        const { &[beyond::law()] }
    }

    /// The last rows of each group.
    fn fewer_rows(problem: &GroupedGemmProblem, operands: &Operands) -> Option<Fewer<Self>> {
        let (large, groups) = (&problem.gemm, operands.codes("groups"));
        let at = |i: u32| groups.int(i.into()) as u32;
        // First row and end of each group.
        let ranges = (0..large.batch).map(|g| match problem.grouping {
            Grouping::Masked => (g, 0, at(g)),
            Grouping::Contiguous => (0, at(g), at(g + 1)),
        });
        let (mut rows, mut numbers, mut next) = (Vec::new(), Vec::new(), 0);
        for (batch, first, end) in ranges {
            let count = (end - first).div_ceil(3);
            let (to, start) = if problem.grouping == Grouping::Masked { (batch, 0) } else { (0, next) };
            rows.extend((0..count).map(|row| ((to, start + row), (batch, end - count + row))));
            next += count;
            numbers.push(if problem.grouping == Grouping::Masked { count } else { next });
        }
        let m = match problem.grouping {
            Grouping::Masked => tail::kept(large.m)?,
            Grouping::Contiguous => next,
        };
        let gemm = part::of_height(large, m).filter(|_| next > 0)?;
        let small = GroupedGemmSpec { gemm, grouping: problem.grouping }.build().ok()?;
        let small = small.with_repro(problem.repro()).with_align(problem.align());
        let mut fewer = part::of_rows((large, operands), (small, &small.gemm), &rows);
        let before = (problem.grouping == Grouping::Contiguous).then_some(0);
        fewer.operands.set_ints("groups", before.into_iter().chain(numbers).map(i64::from));
        Some(fewer)
    }
}
