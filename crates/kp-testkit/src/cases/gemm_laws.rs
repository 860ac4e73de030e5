//! What results of products obey whatever the size, and the operands that it takes to see it.

use crate::{
    fill::{Fill, FillKind},
    judge::Judge,
    operands::Operands,
    reference::gemm as reference,
};
use kp_hal::{
    DType,
    op::{Acc, Addend, Gemm, GemmProblem, GemmSpec, Matrix, Order, Problem, Scheme, Sparsity},
};

/// Freivalds' check wants D linear in B: no epilogue, and D of a type that says how it was rounded.
pub(super) fn vector_inputs(problem: &GemmProblem, fill: &mut Fill) -> Option<Operands> {
    let spec = problem.spec();
    let plain = spec.epilogue == kp_hal::op::Epilogue::default()
        && spec.d.format.scheme == Scheme::None
        && spec.c == Addend::None;
    let mut operands = plain.then(|| Gemm::inputs(problem, fill))?;
    operands.set_scalar("alpha", 1.0);
    Some(operands)
}

/// D·x against A·(B·x) for two random vectors of ±1; the bound is the sum over a row of what each element may be off.
pub(super) fn vector_law(problem: &Problem<GemmSpec>, runs: &[Operands]) -> Result<(), String> {
    let (spec, run) = (problem.spec(), &runs[0]);
    reference::vector_law(spec, run)
}

/// Scales of B far from 1, where the type of its scales and D's know such numbers: a kernel that widens weights to a type of less
/// range must not lose them.
pub(super) fn far_inputs(problem: &GemmProblem, fill: &mut Fill) -> Option<Operands> {
    let spec = problem.spec();
    let is_wide = |t: DType| matches!(t, DType::F32 | DType::Bf16 | DType::E8m0);
    let known = spec.b.format.scale_dtype().is_some_and(is_wide) && is_wide(spec.d.dtype());
    let mut operands = if known { vector_inputs(problem, fill)? } else { return None };
    let by = [2_f64.powi(-40), 2_f64.powi(40)][fill.below(2) as usize];
    for i in 0..operands.codes("b_scale").len() {
        // What is poison between scales stays so.
        let scale = operands.codes("b_scale").value(i);
        if scale.is_finite() {
            operands.codes_mut("b_scale").set_value(i, by * scale);
        }
    }
    Some(operands)
}

/// 1, 2 and 3, so that sums grow with k: past 256 bf16 loses ones, past 2048 f16 does, and the accumulator must not. The
/// bound of a long sum, which allows for every order, would not see that.
pub(super) fn counting_inputs(problem: &GemmProblem, fill: &mut Fill) -> Option<Operands> {
    let spec = problem.spec();
    let counts = |m: &Matrix| {
        let whole = m.format.dtype != DType::Nf4 && m.format.scheme == Scheme::None;
        whole && !matches!(m.order, Order::Panel { .. })
    };
    let mut operands = vector_inputs(problem, &mut Fill::new(FillKind::Exact, fill.bits()))?;
    if spec.acc == Acc::F32Q8 || spec.sparsity != Sparsity::Dense || !counts(&spec.a) || !counts(&spec.b) {
        return None;
    }
    for name in ["a", "b"] {
        for i in 0..operands.codes(name).len() {
            // What is poison between rows stays so.
            let x = operands.codes(name).value(i);
            if x.is_finite() {
                operands.codes_mut(name).set_value(i, x.abs() + 1.0);
            }
        }
    }
    // The largest sum must be a number that the accumulator counts to.
    (9.0 * f64::from(spec.k) < reference::exact_below(spec.acc)).then_some(operands)
}

/// D is what the exact sums are rounded to.
pub(super) fn counting_law(problem: &Problem<GemmSpec>, runs: &[Operands]) -> Result<(), String> {
    reference::exact_law(problem.spec(), &runs[0])
}
