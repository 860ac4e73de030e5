//! y = act(g) · u · factor + residual.
//!
//! Bound: what the function itself may lose (see `tolerance::act`), carried through the products, and one operation's
//! loss for each product and for the sum. Identity and relu lose nothing.

use super::ball::{Ball, unit};
use crate::{
    fill::FillKind,
    judge::{Output, Plain, Want},
    operands::Operands,
    scaled::{Part, Scaled},
    tensor::Tensor,
    tolerance::{Arithmetic, act},
};
use kp_hal::op::{Act, ActivationProblem, Overflow, Rows, ScaleRule, Scheme};

/// What `y` should hold, and its scales if the kernel makes them.
pub(crate) fn activation(p: &ActivationProblem, operands: &Operands) -> Vec<Output> {
    let x = Tensor::rows(operands.codes("x"), &p.x, p.rows, p.x_cols());
    let whole = operands.kind() == FillKind::Exact && matches!(p.act, Act::Identity | Act::Relu);
    let u = if whole { 0.0 } else { unit(p.x.dtype()) };
    let times = |y: Ball, factor: f64| {
        let value = y.value * factor;
        Ball { value, error: y.error * factor.abs() + u * value.abs() }
    };
    let number = |r: u32, c: u32| -> Want {
        let (g, up) = p.gate.sources(c, p.cols);
        let (g, up) = (x.at(0, r as usize, g as usize), x.at(0, r as usize, up as usize));
        if g == f64::NEG_INFINITY && matches!(p.act, Act::Gelu | Act::GeluTanh | Act::Silu) {
            // Its limit is 0, but the formula says ∞ · 0: either may come out.
            return Want::Any;
        }
        let at = u64::from(r) * u64::from(p.cols) + u64::from(c);
        let function = act(p.act, g, Arithmetic::for_rows(p.x.dtype()));
        let mut y = Ball { value: function.value, error: function.error };
        if p.gate.columns() == 2 {
            y = times(y, up);
        }
        if let Some(factor) = operands.maybe("factor") {
            y = times(y, factor.value(at));
        }
        if let Some(residual) = operands.maybe("residual") {
            let value = y.value + residual.value(at);
            y = Ball { value, error: y.error + u * value.abs() };
        }
        y.into()
    };
    vec![stored(&p.y, (p.rows, p.cols), number)]
}

/// The output of a row-wise op, quantized by its format's usual rule if it has a scheme: what belongs to the whole
/// tensor is given as `y_global`, the scales of blocks are written to `y_scale`.
pub(super) fn stored(y: &Rows, (rows, cols): (u32, u32), mut number: impl FnMut(u32, u32) -> Want) -> Output {
    if y.format.scheme == Scheme::None {
        return Plain::rows("y", y, (rows, cols), number).into();
    }
    let tensor = y.format.scheme == Scheme::Tensor;
    Output::Scaled(Scaled {
        codes: "y",
        scale: if tensor { Part::Given("y_global") } else { Part::Written("y_scale") },
        global: if y.format.has_global() { Part::Given("y_global") } else { Part::Absent },
        zero: Part::Absent,
        matrix: y.as_matrix(rows),
        shape: (rows, cols, 1),
        rule: ScaleRule::of(y.format),
        overflow: Overflow::Saturate,
        values: (0..rows).flat_map(|r| (0..cols).map(move |c| (r, c))).map(|(r, c)| number(r, c)).collect(),
    })
}
