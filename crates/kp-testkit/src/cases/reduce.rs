//! What reductions are judged on.

use super::{
    pairwise::{lines, words},
    tail,
};
use crate::{
    fill::Fill,
    formats::{decode, encode, max_value, smallest},
    judge::{Depth, Fewer, Judge, Output, Property},
    operands::Operands,
    reference::reduce as reference,
};
use kp_hal::op::{Overflow, Reduce, ReduceProblem, ReduceSpec, Reduced, Repro, Spec};

const FLOOR: &[&str] = &[
    "reduce 4x64 f32:f32 op=sum",
    "reduce 33x17 f32:f32 op=mean over=rows",
    "reduce 9x130 bf16:f32 op=amax",
    "reduce 20x8 f32:f32 op=sum over=segments/3",
    "reduce 5x7 f16:f16 op=max",
    "reduce 0x4 f32:f32 op=sum over=rows",
];

impl Judge for Reduce {
    fn cases(depth: Depth) -> Vec<String> {
        let dims = match depth {
            Depth::Quick => words("1x1 7x33 200x3 2x1000 0x4 3x0"),
            Depth::Full => words("1x1 1x2 7x33 16x64 200x3 3000x5 2x1000 5x257 129x130 1x5000 0x4 3x0"),
        };
        lines(
            "reduce",
            &[
                dims,
                words("f32:f32 bf16:bf16 f16:f16 f64:f64 bf16:f32 f32:bf16 f16:f32 f64:f32 f32:f64"),
                words("op=sum op=mean op=max op=min op=amax"),
                words("- over=rows over=segments/1 over=segments/5 over=segments/0"),
                words("- ldx=5003"),
                words("- - repro=batch-invariant repro=fast"),
                words("- - align=8 align=64"),
            ],
            |line| line.parse::<ReduceProblem>().is_ok(),
        )
    }

    fn floor() -> &'static [&'static str] {
        FLOOR
    }

    /// Segments ascend from 0; some are empty, and they may leave rows at the end.
    fn inputs(problem: &ReduceProblem, fill: &mut Fill) -> Operands {
        let mut operands = Operands::new::<Self>(problem, fill.kind());
        operands.fill_rows("x", &problem.x, (problem.rows, problem.cols), fill);
        if let Reduced::Segments(n) = problem.over {
            let rows = u64::from(problem.rows);
            let mut ends: Vec<u64> = (0..n).map(|_| fill.below(rows + 1)).collect();
            if let [_, .., other] = &mut ends[..] {
                *other = rows / 2;
            }
            if n > 2 {
                ends[1] = ends[0];
            }
            ends.sort_unstable();
            operands.set_ints("offsets", [0].into_iter().chain(ends.into_iter().map(|end| end as i64)));
        }
        operands
    }

    fn reference(problem: &ReduceProblem, operands: &Operands) -> Vec<Output> {
        reference::reduce(problem, operands)
    }

    fn properties() -> &'static [Property<Self>] {
        &[Property {
            name: "twice the numbers give twice the result",
            inputs: |problem, fill| (problem.repro() != Repro::Fast).then(|| Reduce::inputs(problem, fill)),
            again: Some(doubled),
            check: doubles,
        }]
    }

    fn fewer_rows(problem: &ReduceProblem, operands: &Operands) -> Option<Fewer<Self>> {
        if problem.over != Reduced::Cols {
            return None;
        }
        let rows = tail::kept(problem.rows)?;
        let first = u64::from(problem.rows - rows);
        let small = ReduceSpec { rows, ..*problem.spec() }.build().ok()?;
        let small = small.with_repro(problem.repro()).with_align(problem.align());
        let ld = u64::from(problem.x.ld);
        let shift = |name: &str| first * if name == "x" { ld } else { 1 };
        Some(tail::fewer(small, operands, shift, tail::elements("y", 1, rows, 1)))
    }
}

fn doubled(_: &ReduceProblem, operands: &Operands) -> Operands {
    let mut again = operands.clone();
    let x = operands.codes("x");
    let mut codes = again.codes_mut("x");
    (0..x.len()).for_each(|i| codes.set_value(i, 2.0 * x.value(i)));
    again
}

/// Doubling commutes with rounding, so results are equal to the bit, but for what falls out of Y's range.
fn doubles(problem: &ReduceProblem, runs: &[Operands]) -> Result<(), String> {
    let (once, twice) = (runs[0].codes("y"), runs[1].codes("y"));
    for i in 0..once.len() {
        let (once, twice) = (once.value(i), twice.value(i));
        let want = decode(problem.y, encode(problem.y, 2.0 * once, Overflow::Saturate));
        let past = once.abs() >= max_value(problem.y) / 2.0;
        let right = (want - twice).abs() <= 2.0 * smallest(problem.y)
            || want == twice
            || past
            || once.is_nan() && twice.is_nan();
        if !right {
            return Err(format!("y[{i}] is {once:e}, and {twice:e} of the doubled numbers"));
        }
    }
    Ok(())
}
