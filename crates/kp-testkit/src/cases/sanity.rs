//! The judges judged: their problems make sense, their inputs fit, what they want is admitted, and else nothing is.

use crate::{
    compare::Comparison,
    fill::{Fill, FillKind},
    formats::{decode, encode},
    judge::{Depth, Output, REFERENCE_LIMIT, Want},
    judges::{Judged, judge_of},
    operands::Operands,
};
use kp_hal::op::{EachOp, Op, Overflow, Problem, Spec, each_op};
use std::collections::HashSet;

/// The problems of one op.
fn problems<O: Op>(judge: &Judged<O>, depth: Depth) -> Vec<Problem<O::Spec>> {
    let lines = (judge.floor)().iter().map(|&l| l.to_owned()).chain((judge.cases)(depth));
    lines.map(|line| line.parse().unwrap_or_else(|e| panic!("{line}: {e}"))).collect()
}

#[test]
fn every_case_makes_sense_and_none_comes_twice() {
    struct Lines;
    impl EachOp for Lines {
        fn op<O: Op>(&mut self) {
            let judge = judge_of::<O>().unwrap_or_else(|| panic!("{} has no judge", O::NAME));
            for (depth, most) in [(Depth::Quick, 800), (Depth::Full, 6000)] {
                let lines = (judge.cases)(depth);
                assert!(lines.len() > 10 && lines.len() < most, "{}: {} lines", O::NAME, lines.len());
                let mut seen = HashSet::new();
                for line in &lines {
                    assert!(seen.insert(line), "{line} comes twice");
                }
                let all: HashSet<_> = problems::<O>(judge, depth).iter().map(ToString::to_string).collect();
                let small = problems::<O>(judge, depth).iter().all(|p| (judge.cost)(p) <= REFERENCE_LIMIT);
                assert!(!all.is_empty() && small, "{}: a reference would take too long", O::NAME);
            }
        }
    }
    each_op(&mut Lines);
}

/// Writes what the reference wants into the outputs, as far as it says.
fn obey(outputs: &[Output], operands: &Operands) -> Operands {
    let mut after = operands.clone();
    for output in outputs {
        let Output::Plain(plain) = output else { continue };
        let mut codes = after.codes_mut(plain.operand);
        for &(at, want) in &plain.wants {
            match want {
                Want::Number { value, .. } => codes.set_code(at, encode(plain.dtype, value, plain.overflow)),
                Want::Code(code) => codes.set_code(at, code),
                Want::NotFinite => codes.set_code(at, encode(plain.dtype, f64::NAN, plain.overflow)),
                Want::Any | Want::Untouched => {}
            }
        }
    }
    after
}

#[test]
fn what_the_reference_wants_is_admitted_and_what_is_far_from_it_is_not() {
    struct Answers;
    impl EachOp for Answers {
        fn op<O: Op>(&mut self) {
            let judge = judge_of::<O>().unwrap_or_else(|| panic!("{} has no judge", O::NAME));
            let mut caught = 0;
            for problem in problems::<O>(judge, Depth::Quick).into_iter().step_by(3) {
                for kind in [FillKind::Exact, FillKind::Normal, FillKind::Wide, FillKind::Special] {
                    if kind == FillKind::Special && !(judge.special)(&problem) {
                        continue;
                    }
                    let before = (judge.inputs)(&problem, &mut Fill::new(kind, 5));
                    let outputs = (judge.reference)(&problem, &before);
                    if outputs.iter().any(|o| matches!(o, Output::Scaled(_))) {
                        continue;
                    }
                    let right = obey(&outputs, &before);
                    let comparison = Comparison::of(&outputs, &before, &right);
                    let first = comparison.first.map(|m| m.to_string());
                    assert_eq!(first, None, "{problem} with {kind} numbers");
                    caught += u64::from(spoiled(&problem, kind, &outputs, &before, &right));
                }
            }
            assert!(caught > 10 || O::NAME == "quantize", "{}: only {caught} cases can fail", O::NAME);
        }
    }
    each_op(&mut Answers);
}

/// Changes the last number that the reference has an opinion about; answers whether there is one.
fn spoiled<S: Spec>(
    problem: &Problem<S>,
    kind: FillKind,
    outputs: &[Output],
    before: &Operands,
    right: &Operands,
) -> bool {
    for output in outputs {
        let Output::Plain(plain) = output else { continue };
        let firm = plain.wants.iter().rev().find_map(|&(at, want)| match want {
            Want::Number { value, slack } if value.is_finite() && slack < 1.0 => Some((at, value)),
            _ => None,
        });
        let Some((at, value)) = firm else { continue };
        let mut wrong = right.clone();
        let other = if value > 0.0 { -4.0 } else { 4.0 };
        let code = encode(plain.dtype, other, Overflow::Saturate);
        // Unsigned numbers and scales have nothing far enough.
        if (decode(plain.dtype, code) - value).abs() < 3.0 {
            continue;
        }
        wrong.codes_mut(plain.operand).set_code(at, code);
        let found = Comparison::of(outputs, before, &wrong).wrong;
        assert!(found > 0, "{problem} with {kind} numbers: {}[{at}] may be {other} for {value}", plain.operand);
        return true;
    }
    false
}
