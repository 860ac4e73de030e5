//! Numbers that say where rows, tokens and pages are. What stands there is data, so it may be anything: kernels take numbers below
//! the first as the first and those past the last as the last, and touch nothing outside.

use crate::{
    judge::{Judge, ProblemOf, Property},
    operands::Operands,
};
use kp_hal::op::{
    Attention, AttentionBackward, AttentionBackwardProblem, AttentionProblem, AttentionSpec, GroupedGemm,
    GroupedGemmProblem, Kv, Lens,
};

/// An operand of such numbers, and the last that there is.
type Last = (&'static str, u32);

/// An op with operands of such numbers.
pub(super) trait Places: Judge {
    /// Those that a problem has.
    fn places(problem: &ProblemOf<Self>) -> Vec<Last>;
}

impl Places for Attention {
    fn places(problem: &AttentionProblem) -> Vec<Last> {
        of_attention(problem)
    }
}

impl Places for AttentionBackward {
    fn places(problem: &AttentionBackwardProblem) -> Vec<Last> {
        of_attention(&problem.forward)
    }
}

impl Places for GroupedGemm {
    fn places(problem: &GroupedGemmProblem) -> Vec<Last> {
        vec![("groups", problem.gemm.m)]
    }
}

/// The law of `O`.
pub(super) const fn law<O: Places>() -> Property<O> {
    Property {
        name: "numbers beyond the ends are the ends",
        inputs: |problem, fill| {
            let places = O::places(problem);
            let beyond = |x, last| match x {
                0 => -3,
                x if x == last => i32::MAX.into(),
                x => x,
            };
            (!places.is_empty()).then(|| rewritten(&O::inputs(problem, fill), &places, beyond))
        },
        again: Some(|problem, beyond| rewritten(beyond, &O::places(problem), |x, last| x.clamp(0, last))),
        check: |_, runs| {
            let list = runs[0].list().iter().enumerate().filter(|(_, operand)| operand.output);
            for (i, operand) in list {
                let [beyond, within] = [&runs[0], &runs[1]].map(|run| run.at(i).unwrap_or_default());
                if let Some(at) = beyond.iter().zip(within).position(|(one, other)| one != other) {
                    return Err(format!("byte {at} of {} is another", operand.name));
                }
            }
            Ok(())
        },
    }
}

/// `operands` with `to` of every number and the last that there is.
fn rewritten(operands: &Operands, places: &[Last], to: impl Fn(i64, i64) -> i64) -> Operands {
    let mut rewritten = operands.clone();
    for &(name, last) in places {
        let codes = operands.codes(name);
        rewritten.set_ints(name, (0..codes.len()).map(|i| to(codes.int(i), last.into())));
    }
    rewritten
}

fn of_attention(p: &AttentionSpec) -> Vec<Last> {
    let mut places = Vec::new();
    if let Lens::Packed { q_total, kv_total } = p.lens {
        places.push(("q_offsets", q_total));
        if p.storage == Kv::Dense {
            places.push(("kv_offsets", kv_total));
        }
    }
    match p.storage {
        Kv::Paged { pages, .. } => {
            places.push(("kv_lens", if pages == 0 { 0 } else { p.kv_len }));
            if pages > 0 {
                places.push(("page_table", pages - 1));
            }
        }
        Kv::Dense if p.lens == Lens::Padded => places.push(("kv_lens", p.kv_len)),
        Kv::Dense => {}
    }
    places
}
