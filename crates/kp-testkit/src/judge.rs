//! What makes the suite generic: per op, its cases, its inputs and what should come out.

use crate::{fill::Fill, operands::Operands, scaled::Scaled};
use kp_hal::{
    DType,
    op::{Matrix, Op, Overflow, Problem, Rows, Spec},
};

/// How an op is judged. One implementation per op, in `cases/OP.rs`; the function it calls for `reference` is in
/// `reference/OP.rs`; a row of `judges.rs` makes it known.
pub trait Judge: Op {
    /// Problem lines, none twice; they may include lines that no kernel supports.
    fn cases(depth: Depth) -> Vec<String>;

    /// Problems that every backend which offers the op must run. Also judged as cases.
    fn floor() -> &'static [&'static str];

    /// Problems that cost more than the reference can take; at full depth they are judged by the properties.
    fn large() -> &'static [&'static str] {
        &[]
    }

    /// Operands for `problem`: every input has what `fill` gives, indices are valid, what lies between rows stays
    /// poison, and so do outputs that are not read.
    fn inputs(problem: &Problem<Self::Spec>, fill: &mut Fill) -> Operands;

    /// Multiply-adds that `reference` takes. Past [`REFERENCE_LIMIT`] only the properties are checked.
    fn cost(problem: &Problem<Self::Spec>) -> f64 {
        problem.flops() / 2.0
    }

    /// What each output should hold. Elements that no `Want` names are padding and must be left alone.
    ///
    /// Slack is 0 where `operands.kind()` is `Exact` and the op is exact on whole numbers.
    fn reference(problem: &Problem<Self::Spec>, operands: &Operands) -> Vec<Output>;

    /// Whether the op says what comes of NaN and infinities among the inputs, so that `Special` may be tried.
    fn special(problem: &Problem<Self::Spec>) -> bool {
        let _ = problem;
        true
    }

    /// Laws that hold whatever the size, for problems too large for the reference.
    fn properties() -> &'static [Property<Self>] {
        &[]
    }

    /// The same work with fewer rows, for problems that promise batch invariance.
    fn fewer_rows(problem: &Problem<Self::Spec>, operands: &Operands) -> Option<Fewer<Self>> {
        let _ = (problem, operands);
        None
    }
}

/// Most multiply-adds of a reference: about half a second of f64 loops.
pub const REFERENCE_LIMIT: f64 = 134_217_728.0;

/// How many cases to make.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Depth {
    /// The floor and a few lines per feature: seconds.
    Quick,
    /// Every pair of sizes, types, orders and options: minutes.
    Full,
}

/// A problem of op `O`.
pub type ProblemOf<O> = Problem<<O as Op>::Spec>;

/// What a law says of the operands after each run, inputs included: what is violated, where, and by how much.
pub type Law<O> = fn(&ProblemOf<O>, &[Operands]) -> Result<(), String>;

/// A law that results obey, checked without the reference.
pub struct Property<O: Op> {
    /// What it says: `values of 1 give 1`.
    pub name: &'static str,
    /// Inputs that the law speaks of, or `None` if it says nothing about this problem.
    pub inputs: fn(&ProblemOf<O>, &mut Fill) -> Option<Operands>,
    /// Inputs of a second run that is compared with the first.
    pub again: Option<fn(&ProblemOf<O>, &Operands) -> Operands>,
    /// The law itself.
    pub check: Law<O>,
}

/// A problem with fewer rows whose results must be equal to the bit.
pub struct Fewer<O: Op> {
    /// The smaller problem.
    pub problem: Problem<O::Spec>,
    /// Its operands.
    pub operands: Operands,
    /// Output elements that must be equal: operand, index in the smaller one, index in the larger one.
    pub same: Vec<(&'static str, u64, u64)>,
}

/// What one output should hold.
#[derive(Clone, Debug)]
pub enum Output {
    /// Numbers stored in the type of the operand.
    Plain(Plain),
    /// Codes and, unless given, their scales.
    Scaled(Scaled),
}

/// What one element should hold.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Want {
    /// What some number within `slack` of `value` is rounded to; with slack 0, what `value` is rounded to.
    Number {
        /// The exact result.
        value: f64,
        /// How far the kernel's own roundings may have led before it stored the result.
        slack: f64,
    },
    /// This code, bit by bit.
    Code(u64),
    /// An infinity or NaN, whichever, or what becomes of one in a type without.
    NotFinite,
    /// Anything: the op does not say.
    Any,
    /// What it held before.
    Untouched,
}

impl Want {
    /// Exactly `value`, rounded to the operand's type.
    pub const fn exact(value: f64) -> Self {
        Self::Number { value, slack: 0.0 }
    }
}

/// Numbers stored in the type of an operand.
#[derive(Clone, Debug)]
pub struct Plain {
    /// The operand.
    pub operand: &'static str,
    /// Its type.
    pub dtype: DType,
    /// What becomes of numbers past the type's largest.
    pub overflow: Overflow,
    /// Index among the operand's elements, and what should be there.
    pub wants: Vec<(u64, Want)>,
}

impl Plain {
    /// One after the other from the first element on.
    pub fn list(operand: &'static str, dtype: DType, wants: impl IntoIterator<Item = Want>) -> Self {
        let wants = wants.into_iter().enumerate().map(|(i, want)| (i as u64, want)).collect();
        Self { operand, dtype, overflow: Overflow::Saturate, wants }
    }

    /// A matrix; `want` answers for batch, row and column. The padding of panels must be zeros.
    pub fn matrix(
        operand: &'static str,
        m: &Matrix,
        (rows, cols, batch): (u32, u32, u32),
        mut want: impl FnMut(u32, u32, u32) -> Want,
    ) -> Self {
        let mut wants = Vec::with_capacity(batch as usize * rows as usize * cols as usize);
        for b in 0..batch {
            for row in 0..rows {
                for col in 0..cols {
                    wants.push((crate::tensor::place(m, (rows, b), row, col), want(b, row, col)));
                }
            }
        }
        if matches!(m.order, kp_hal::op::Order::Panel { .. }) {
            let mut named: Vec<u64> = wants.iter().map(|w| w.0).collect();
            named.sort_unstable();
            let padding = (0..batch).flat_map(|b| {
                let start = u64::from(b) * m.stride;
                start..start + m.tight_stride(rows, cols)
            });
            let zero = Want::exact(0.0);
            wants.extend(padding.filter(|at| named.binary_search(at).is_err()).map(|at| (at, zero)));
        }
        Self { operand, dtype: m.dtype(), overflow: Overflow::Saturate, wants }
    }

    /// Rows; `want` answers for row and column.
    pub fn rows(
        operand: &'static str,
        r: &Rows,
        (rows, cols): (u32, u32),
        mut want: impl FnMut(u32, u32) -> Want,
    ) -> Self {
        Self::matrix(operand, &r.as_matrix(rows), (rows, cols, 1), |_, row, col| want(row, col))
    }
}

impl From<Plain> for Output {
    fn from(plain: Plain) -> Self {
        Self::Plain(plain)
    }
}

impl From<Scaled> for Output {
    fn from(scaled: Scaled) -> Self {
        Self::Scaled(scaled)
    }
}
