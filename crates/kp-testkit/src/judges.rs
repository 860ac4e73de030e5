//! The table of judges, one row per op.

use crate::{
    fill::Fill,
    judge::{Depth, Fewer, Judge, Output, ProblemOf, Property},
    operands::Operands,
};
use kp_hal::op::{self, Op};
use std::any::Any;

/// The functions of one op's [`Judge`], so that code generic over `Op` alone can find them with [`judge_of`].
pub struct Judged<O: Op> {
    /// [`Judge::cases`].
    pub cases: fn(Depth) -> Vec<String>,
    /// [`Judge::floor`].
    pub floor: fn() -> &'static [&'static str],
    /// [`Judge::large`].
    pub large: fn() -> &'static [&'static str],
    /// [`Judge::inputs`].
    pub inputs: fn(&ProblemOf<O>, &mut Fill) -> Operands,
    /// [`Judge::cost`].
    pub cost: fn(&ProblemOf<O>) -> f64,
    /// [`Judge::reference`].
    pub reference: fn(&ProblemOf<O>, &Operands) -> Vec<Output>,
    /// [`Judge::special`].
    pub special: fn(&ProblemOf<O>) -> bool,
    /// [`Judge::properties`].
    pub properties: fn() -> &'static [Property<O>],
    /// [`Judge::fewer_rows`].
    pub fewer_rows: fn(&ProblemOf<O>, &Operands) -> Option<Fewer<O>>,
}

impl<O: Judge> Judged<O> {
    const ROW: Self = Self {
        cases: O::cases,
        floor: O::floor,
        large: O::large,
        inputs: O::inputs,
        cost: O::cost,
        reference: O::reference,
        special: O::special,
        properties: O::properties,
        fewer_rows: O::fewer_rows,
    };
}

/// How op `O` is judged, if it has a row.
pub fn judge_of<O: Op>() -> Option<&'static Judged<O>> {
    TABLE.iter().find_map(|row| (*row as &dyn Any).downcast_ref())
}

/// One row per op, in the order of names: `&Judged::<op::Gemm>::ROW`.
static TABLE: &[&(dyn Any + Send + Sync)] = &[
    &Judged::<op::Activation>::ROW,
    &Judged::<op::Attention>::ROW,
    &Judged::<op::AttentionBackward>::ROW,
    &Judged::<op::Cast>::ROW,
    &Judged::<op::Dequantize>::ROW,
    &Judged::<op::Gather>::ROW,
    &Judged::<op::Gemm>::ROW,
    &Judged::<op::GroupedGemm>::ROW,
    &Judged::<op::Norm>::ROW,
    &Judged::<op::NormBackward>::ROW,
    &Judged::<op::Quantize>::ROW,
    &Judged::<op::Reduce>::ROW,
    &Judged::<op::Rope>::ROW,
    &Judged::<op::Softmax>::ROW,
];
