//! What rotary embeddings are judged on.

use super::{
    pairwise::{lines, words},
    tail,
};
use crate::{
    fill::{Fill, FillKind},
    formats::unit_roundoff,
    judge::{Depth, Fewer, Judge, Output, Property},
    operands::Operands,
    reference::{ball::within, rope as reference},
    tensor::Tensor,
};
use kp_hal::op::{Rope, RopeProblem, RopeSpec, Spec};
use std::f64::consts::TAU;

const FLOOR: &[&str] = &[
    "rope 5x3x64 f32:f32 positions=16",
    "rope 4x2x128 bf16:bf16 positions=9 pairs=adjacent",
    "rope 3x4x80 f16:f16 positions=7 rotated=32",
    "rope 2x2x64 f32:f32 positions=5 inverse",
    "rope 0x2x64 f32:f32 positions=5",
];

impl Judge for Rope {
    fn cases(depth: Depth) -> Vec<String> {
        let dims = match depth {
            Depth::Quick => words("1x1x2 5x3x64 3x4x80 0x2x64 7x1x6"),
            Depth::Full => words("1x1x2 1x32x128 5x3x64 7x2x128 3x4x80 9x1x6 33x5x16 2x7x256 0x2x64 4x0x8"),
        };
        lines(
            "rope",
            &[
                dims,
                words("f32:f32 bf16:bf16 f16:f16 f64:f64 bf16:f32 f32:bf16 f16:bf16"),
                words("positions=1 positions=7 positions=1000"),
                words("- pairs=adjacent"),
                words("- - rotated=2 rotated=6 rotated=64 rotated=0"),
                words("- - ldx=4099"),
                words("- - ldy=4100"),
                words("- inverse"),
                words("- - repro=batch-invariant repro=fast"),
                words("- - align=8"),
            ],
            |line| line.parse::<RopeProblem>().is_ok(),
        )
    }

    fn floor() -> &'static [&'static str] {
        FLOOR
    }

    /// Angles are random, or whole quarter turns if results must be exact. Every fifth token is outside the table.
    fn inputs(problem: &RopeProblem, fill: &mut Fill) -> Operands {
        let mut operands = Operands::new::<Self>(problem, fill.kind());
        operands.fill_rows("x", &problem.x, (problem.tokens, problem.cols()), fill);
        let last = i64::from(problem.positions);
        let outside = [-1, last, i64::from(i32::MAX), i64::from(i32::MIN)];
        let position = |token: u32| match token % 5 {
            3 => outside[token as usize / 5 % outside.len()],
            _ => fill.below(problem.positions.into()) as i64,
        };
        let positions: Vec<i64> = (0..problem.tokens).map(position).collect();
        operands.set_ints("positions", positions.into_iter().map(|p| p.min(i64::from(i32::MAX))));
        for i in 0..operands.codes("cos").len() {
            let (sin, cos) = match fill.kind() {
                FillKind::Exact => [(0.0, 1.0), (1.0, 0.0), (0.0, -1.0), (-1.0, 0.0)][fill.below(4) as usize],
                _ => (fill.unit() * TAU).sin_cos(),
            };
            operands.codes_mut("cos").set_value(i, cos);
            operands.codes_mut("sin").set_value(i, sin);
        }
        operands
    }

    fn reference(problem: &RopeProblem, operands: &Operands) -> Vec<Output> {
        reference::rope(problem, operands)
    }

    fn properties() -> &'static [Property<Self>] {
        &[
            Property {
                name: "turning keeps lengths",
                inputs: |problem, fill| Some(Rope::inputs(problem, fill)),
                again: None,
                check: lengths,
            },
            Property {
                name: "turning the other way mirrors",
                inputs: |problem, fill| Some(mirrored(problem, &Rope::inputs(problem, fill), false)),
                again: Some(|problem, operands| mirrored(problem, operands, true)),
                check: mirrors,
            },
        ]
    }

    fn fewer_rows(problem: &RopeProblem, operands: &Operands) -> Option<Fewer<Self>> {
        let tokens = tail::kept(problem.tokens)?;
        let first = u64::from(problem.tokens - tokens);
        let small = RopeSpec { tokens, ..*problem.spec() }.build().ok()?;
        let small = small.with_repro(problem.repro()).with_align(problem.align());
        let (ldx, ldy) = (u64::from(problem.x.ld), u64::from(problem.y.ld));
        let shift = |name: &str| match name {
            "x" => first * ldx,
            "y" => first * ldy,
            "positions" => first,
            _ => 0,
        };
        Some(tail::fewer(small, operands, shift, tail::elements("y", problem.y.ld, tokens, problem.cols())))
    }
}

/// Pairs of a token inside the table, each as the places of its two numbers.
fn pairs(p: &RopeSpec) -> impl Iterator<Item = (usize, usize)> {
    let heads = (0..p.heads).map(|head| head * p.dim);
    heads.flat_map(move |first| {
        (0..p.rotated / 2).map(move |j| {
            let (one, two) = p.pairs.places(j, p.rotated);
            ((first + one) as usize, (first + two) as usize)
        })
    })
}

fn inside(p: &RopeSpec, operands: &Operands, token: usize) -> bool {
    (0..i64::from(p.positions)).contains(&operands.codes("positions").int(token as u64))
}

fn lengths(problem: &RopeProblem, runs: &[Operands]) -> Result<(), String> {
    let p = problem.spec();
    let x = Tensor::rows(runs[0].codes("x"), &p.x, p.tokens, p.cols());
    let y = Tensor::rows(runs[0].codes("y"), &p.y, p.tokens, p.cols());
    for token in (0..p.tokens as usize).filter(|&token| inside(p, &runs[0], token)) {
        for (one, two) in pairs(p) {
            let length = |t: &Tensor| t.at(0, token, one).hypot(t.at(0, token, two));
            let (before, after) = (length(&x), length(&y));
            let bound = before * (2.0 * unit_roundoff(p.y.dtype()) + 1e-6) + 1e-6;
            if !within(before - after, bound) {
                return Err(format!("numbers {one} and {two} of token {token} had length {before}, now {after}"));
            }
        }
    }
    Ok(())
}

/// The same numbers with the second of each pair and every sine negated, if `on`.
fn mirrored(problem: &RopeProblem, operands: &Operands, on: bool) -> Operands {
    let (p, mut out) = (problem.spec(), operands.clone());
    if on {
        let sin = operands.codes("sin");
        (0..sin.len()).for_each(|i| out.codes_mut("sin").set_value(i, -sin.value(i)));
        let x = operands.codes("x");
        for token in 0..u64::from(p.tokens) {
            for (_, two) in pairs(p) {
                let at = token * u64::from(p.x.ld) + two as u64;
                out.codes_mut("x").set_value(at, -x.value(at));
            }
        }
    }
    out
}

/// Negation is exact, so the mirrored run has the same first numbers and negated second ones.
fn mirrors(problem: &RopeProblem, runs: &[Operands]) -> Result<(), String> {
    let p = problem.spec();
    let [once, again] = [&runs[0], &runs[1]].map(|run| Tensor::rows(run.codes("y"), &p.y, p.tokens, p.cols()));
    for token in (0..p.tokens as usize).filter(|&token| inside(p, &runs[0], token)) {
        for (one, two) in pairs(p) {
            let at = |t: &Tensor| (t.at(0, token, one), t.at(0, token, two));
            let ((a, b), (c, d)) = (at(&once), at(&again));
            if a != c || b != -d {
                return Err(format!("numbers {one} and {two} of token {token} are {a} and {b}, mirrored {c} and {d}"));
            }
        }
    }
    Ok(())
}
