//! What results of attention obey whatever the size.

use super::{beyond, sequences};
use crate::{
    fill::Fill,
    formats::unit_roundoff,
    judge::{Judge, Property},
    operands::Operands,
    reference::{
        attention::Rounding,
        ball::{unit, within},
        heads::Tensors,
    },
};
use kp_hal::op::{
    Attention, AttentionBackward, AttentionBackwardProblem, AttentionProblem, AttentionSpec, Kv, Lens, Mask, Repro,
};

/// Laws of the forward pass.
pub(super) const FORWARD: &[Property<Attention>] = &[
    Property { name: "values of 1 give 1", inputs: values_of_1, again: None, check: gives_1 },
    Property { name: "the order of keys does not matter", inputs: ordered, again: Some(reversed), check: equal },
    Property { name: "keys after a query do not matter", inputs: causal, again: Some(other_future), check: same_past },
    beyond::law(),
];

/// Laws of the backward pass.
pub(super) const BACKWARD: &[Property<AttentionBackward>] = &[
    Property {
        name: "gradients of values sum to those of results",
        inputs: |problem, fill| (!problem.forward.sinks).then(|| AttentionBackward::inputs(problem, fill)),
        again: None,
        check: sums,
    },
    beyond::law(),
];

/// What weights that sum to 1 may be off: P's rounding, and a few operations per key.
fn share(p: &AttentionSpec) -> f64 {
    let rounding = Rounding::of(p.kv.dtype);
    let keys = f64::from(p.kv_len);
    2.0 * rounding.relative + keys * (rounding.absolute + 8.0 * unit(p.q.dtype)) + 1e-5
}

/// Every query that sees a key, and those that see none.
fn queries(
    p: &AttentionSpec,
    run: &Operands,
    mut each: impl FnMut(&[u64], bool) -> Result<(), String>,
) -> Result<(), String> {
    let tensors = Tensors::new(p, run);
    for sequence in tensors.sequences() {
        for head in 0..p.q_heads {
            for query in 0..sequence.queries {
                let place = sequence.place(query);
                let at: Vec<u64> = (0..p.v_dim).map(|i| tensors.o.index(place, head, i)).collect();
                each(&at, (0..sequence.keys).any(|key| tensors.sees(&sequence, head, query, key)))?;
            }
        }
    }
    Ok(())
}

fn values_of_1(problem: &AttentionProblem, fill: &mut Fill) -> Option<Operands> {
    // Weights in 8 bits of very many keys are mostly rounded away.
    if problem.sinks || share(problem) > 0.25 {
        return None;
    }
    let mut operands = Attention::inputs(problem, fill);
    for name in ["v", "v_scale"] {
        if operands.has(name) {
            let mut codes = operands.codes_mut(name);
            (0..codes.len()).for_each(|i| codes.set_value(i, 1.0));
        }
    }
    Some(operands)
}

fn gives_1(problem: &AttentionProblem, runs: &[Operands]) -> Result<(), String> {
    let (p, o) = (problem.spec(), runs[0].codes("o"));
    let bound = share(p) + 2.0 * unit_roundoff(p.o);
    queries(p, &runs[0], |at, sees| {
        let want = f64::from(sees);
        match at.iter().find(|&&at| !within(o.value(at) - want, bound * want)) {
            Some(&at) => Err(format!("o[{at}] is {}, not {want} ± {bound:.1e}", o.value(at))),
            None => Ok(()),
        }
    })
}

fn ordered(problem: &AttentionProblem, fill: &mut Fill) -> Option<Operands> {
    let p = problem.spec();
    let any_order = p.mask == Mask::Full && !p.alibi && p.storage == Kv::Dense && p.lens == Lens::Fixed;
    let plain = p.q.dtype.bits() >= 16 && p.kv.dtype.bits() >= 16;
    (any_order && plain).then(|| Attention::inputs(problem, fill))
}

/// The keys of every sequence from the last to the first, with their values.
fn reversed(problem: &AttentionProblem, operands: &Operands) -> Operands {
    let (p, mut again) = (problem.spec(), operands.clone());
    let tensors = Tensors::new(p, operands);
    for (name, heads, dim) in [("k", &tensors.k, p.qk_dim), ("v", &tensors.v, p.v_dim)] {
        let (from, mut to) = (operands.codes(name), again.codes_mut(name));
        for sequence in tensors.sequences() {
            for key in 0..sequence.keys {
                let [source, target] = [sequence.keys - 1 - key, key].map(|key| tensors.key(&sequence, key));
                for (head, i) in (0..p.kv_heads).flat_map(|head| (0..dim).map(move |i| (head, i))) {
                    to.set_code(heads.index(target, head, i), from.code(heads.index(source, head, i)));
                }
            }
        }
    }
    again
}

/// Normal scores are below 100, values below 8: errors of scores are relative errors of weights.
fn equal(problem: &AttentionProblem, runs: &[Operands]) -> Result<(), String> {
    let p = problem.spec();
    let of_scores = f64::from(p.qk_dim) * 100.0 * unit(p.q.dtype);
    let bound = 8.0 * (2.0 * share(p) + 2.0 * of_scores + 2.0 * unit_roundoff(p.o));
    let (once, again) = (runs[0].codes("o"), runs[1].codes("o"));
    queries(p, &runs[0], |at, _| match at.iter().find(|&&at| !within(once.value(at) - again.value(at), bound)) {
        Some(&at) => Err(format!("o[{at}] is {}, in another order {}", once.value(at), again.value(at))),
        None => Ok(()),
    })
}

fn causal(problem: &AttentionProblem, fill: &mut Fill) -> Option<Operands> {
    let p = problem.spec();
    let plain = p.lens == Lens::Fixed && p.storage == Kv::Dense && p.q_len == p.kv_len && p.q_len > 1;
    let behind = matches!(p.mask, Mask::Causal | Mask::Window { right: 0, .. });
    (plain && behind && problem.repro() != Repro::Fast).then(|| Attention::inputs(problem, fill))
}

/// Other keys and values in the second half of every sequence.
fn other_future(problem: &AttentionProblem, operands: &Operands) -> Operands {
    let (p, mut again) = (problem.spec(), operands.clone());
    let mut other = operands.clone();
    sequences::tokens(p, &mut other, &mut Fill::new(operands.kind(), 0x0dd), &[], &["k", "v"]);
    let tensors = Tensors::new(p, operands);
    for (name, heads, dim) in [("k", &tensors.k, p.qk_dim), ("v", &tensors.v, p.v_dim)] {
        let (from, mut to) = (other.codes(name), again.codes_mut(name));
        for sequence in tensors.sequences() {
            for place in (sequence.keys / 2..sequence.keys).map(|key| tensors.key(&sequence, key)) {
                for (head, i) in (0..p.kv_heads).flat_map(|head| (0..dim).map(move |i| (head, i))) {
                    let at = heads.index(place, head, i);
                    to.set_code(at, from.code(at));
                }
            }
        }
    }
    again
}

/// A weight that is masked is exactly 0, so not a bit may change.
fn same_past(problem: &AttentionProblem, runs: &[Operands]) -> Result<(), String> {
    let p = problem.spec();
    let tensors = Tensors::new(p, &runs[0]);
    let (once, again) = (runs[0].codes("o"), runs[1].codes("o"));
    for sequence in tensors.sequences() {
        for query in 0..sequence.keys / 2 {
            for (head, i) in (0..p.q_heads).flat_map(|head| (0..p.v_dim).map(move |i| (head, i))) {
                let at = tensors.o.index(sequence.place(query), head, i);
                if once.code(at) != again.code(at) {
                    let (one, other) = (once.value(at), again.value(at));
                    return Err(format!("o[{at}] of query {query} is {one}, and {other} with other keys after it"));
                }
            }
        }
    }
    Ok(())
}

/// Over the keys of a query P sums to 1, so Σ dV over keys is Σ dO over the queries that see any and share the head.
fn sums(problem: &AttentionBackwardProblem, runs: &[Operands]) -> Result<(), String> {
    let (p, run) = (&problem.forward, &runs[0]);
    let tensors = Tensors::new(p, run);
    let (grad_o, grad_v) = (tensors.o.with(run, "grad_o"), tensors.v.with(run, "grad_v"));
    let rounding = Rounding::of(if p.q.dtype.bits() < p.kv.dtype.bits() { p.q.dtype } else { p.kv.dtype });
    let keys = f64::from(p.kv_len);
    for sequence in tensors.sequences() {
        let operations = (keys + f64::from(p.q_len)) * f64::from(tensors.group) + f64::from(p.qk_dim) * 100.0;
        let share =
            2.0 * rounding.relative + 2.0 * keys * rounding.absolute + 8.0 * operations * unit(p.q.dtype) + 1e-5;
        for kv_head in 0..p.kv_heads {
            for i in 0..p.v_dim as usize {
                let (mut want, mut magnitude, mut got, mut stored) = (0.0, 0.0, 0.0, 0.0);
                for head in kv_head * tensors.group..(kv_head + 1) * tensors.group {
                    for query in 0..sequence.queries {
                        if (0..sequence.keys).any(|key| tensors.sees(&sequence, head, query, key)) {
                            let g = grad_o.get(sequence.place(query), head)[i];
                            want += g;
                            magnitude += g.abs();
                        }
                    }
                }
                for key in 0..sequence.keys {
                    let g = grad_v.get(tensors.key(&sequence, key), kv_head)[i];
                    got += g;
                    stored += g.abs() * unit_roundoff(p.kv.dtype);
                }
                let bound = magnitude * share + stored;
                if !within(want - got, bound) {
                    return Err(format!(
                        "number {i} of key head {kv_head}: values have {got}, results {want} ± {bound:.1e}"
                    ));
                }
            }
        }
    }
    Ok(())
}
