//! What came out against what should have.

use crate::{
    formats::{decode, encode, ulp},
    judge::{Output, Plain, Want},
    operands::Operands,
};
use kp_hal::{DType, op::Overflow};
use std::fmt;

/// How the outputs of one run compare with the reference.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// Elements compared.
    pub checked: u64,
    /// Elements that are wrong.
    pub wrong: u64,
    /// The largest |got − want|.
    pub max_error: f64,
    /// The largest |got − want| as a share of what is allowed; above 1 only if something is wrong.
    pub max_share: f64,
    /// The first element that is wrong.
    pub first: Option<Mismatch>,
}

/// One wrong element.
#[derive(Clone, Debug)]
pub struct Mismatch {
    /// The operand.
    pub operand: &'static str,
    /// Its type.
    pub dtype: DType,
    /// Index among the operand's elements.
    pub index: u64,
    /// The code that came out.
    pub code: u64,
    /// What is wrong.
    pub what: Wrong,
}

/// What is wrong with an element.
#[derive(Clone, Copy, Debug)]
pub enum Wrong {
    /// It is not what any number within the bound is rounded to.
    Number {
        /// The exact result.
        want: f64,
        /// The bound.
        slack: f64,
        /// The smallest number that would have been right.
        low: f64,
        /// The largest.
        high: f64,
    },
    /// It is not this code.
    Code(u64),
    /// It lies between the elements of the result and was written; it held this code.
    Padding(u64),
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operand, dtype, index, code, what } = self;
        let got = decode(*dtype, *code);
        write!(f, "{operand}[{index}]: got {got:e} (code {code:#x}), ")?;
        match *what {
            Wrong::Number { want, slack, low, high } => {
                let (error, unit) = ((got - want).abs(), ulp(*dtype, want));
                let of_slack = if slack > 0.0 { format!(", bound {slack:.2e}") } else { ", exactly".into() };
                write!(f, "want {want:e}{of_slack}, so {low:e} to {high:e}; off by {error:.2e}")?;
                if error.is_finite() { write!(f, ", {:.1} ulp of {dtype}", error / unit) } else { Ok(()) }
            }
            Wrong::Code(want) => write!(f, "want code {want:#x} ({:e})", decode(*dtype, want)),
            Wrong::Padding(before) => write!(f, "padding that held {before:#x} was written"),
        }
    }
}

impl Comparison {
    /// Compares every output of `after` with what `outputs` want; `before` says what padding held.
    pub fn of(outputs: &[Output], before: &Operands, after: &Operands) -> Self {
        let mut comparison = Self::default();
        let mut touched = Touched::new(before);
        for output in outputs {
            match output {
                Output::Plain(plain) => comparison.plain(plain, after, &mut touched),
                Output::Scaled(scaled) => scaled.compare(before, after, &mut comparison, &mut touched),
            }
        }
        comparison.padding(before, after, &touched);
        comparison
    }

    fn plain(&mut self, plain: &Plain, after: &Operands, touched: &mut Touched) {
        let new = after.codes(plain.operand);
        for &(at, want) in &plain.wants {
            match want {
                Want::Untouched => continue,
                Want::Any => {}
                Want::NotFinite => {
                    let (code, dtype) = (new.code(at), plain.dtype);
                    let got = decode(dtype, code);
                    let right = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN].into_iter().any(|x| {
                        let stored = decode(dtype, encode(dtype, x, plain.overflow));
                        got == stored || got.is_nan() && stored.is_nan()
                    });
                    let nan = encode(dtype, f64::NAN, plain.overflow);
                    self.judge(right, plain.operand, dtype, at, code, Wrong::Code(nan));
                }
                Want::Code(want) => {
                    let code = new.code(at);
                    self.judge(code == want, plain.operand, plain.dtype, at, code, Wrong::Code(want));
                }
                Want::Number { value, slack } => {
                    let range = (value - slack, value + slack);
                    self.number(plain.operand, plain.dtype, (at, new.code(at)), (value, slack), range, plain.overflow);
                }
            }
            touched.mark(plain.operand, at);
        }
    }

    /// Whether a code is what some number of `range` is rounded to. Rounding keeps order, so the codes of the two
    /// ends decide.
    pub(crate) fn number(
        &mut self,
        operand: &'static str,
        dtype: DType,
        (at, code): (u64, u64),
        (want, slack): (f64, f64),
        (low, high): (f64, f64),
        overflow: Overflow,
    ) {
        let stored = |x: f64| decode(dtype, encode(dtype, x, overflow));
        let (got, best) = (decode(dtype, code), stored(want));
        // A bound that is infinite or no number says nothing: only what the exact result rounds to is then asked for.
        let bounded = low.is_finite() && high.is_finite();
        let (low, high) = if bounded { (stored(low), stored(high)) } else { (best, best) };
        let inside = match (low.is_nan(), high.is_nan()) {
            (false, false) => low <= got && got <= high,
            // Past the largest number of a type without infinity lies NaN.
            (false, true) => got.is_nan() || got >= low,
            (true, false) => got.is_nan() || got <= high,
            (true, true) => got.is_nan(),
        };
        // `want` may be NaN where the ends are not: 0 · ∞ in the slack.
        let right = inside || (best.is_nan() && got.is_nan()) || got == best;
        let error = if got == best || got.is_nan() && best.is_nan() { 0.0 } else { (got - want).abs() };
        if !error.is_nan() {
            self.max_error = self.max_error.max(error);
            let allowed = (high - want).abs().max((want - low).abs());
            if allowed > 0.0 && allowed.is_finite() {
                self.max_share = self.max_share.max(error / allowed);
            }
        }
        self.judge(right, operand, dtype, at, code, Wrong::Number { want, slack, low, high });
    }

    pub(crate) fn judge(
        &mut self,
        right: bool,
        operand: &'static str,
        dtype: DType,
        index: u64,
        code: u64,
        what: Wrong,
    ) {
        self.checked += 1;
        if !right {
            self.wrong += 1;
            self.max_share = self.max_share.max(f64::INFINITY);
            self.first.get_or_insert(Mismatch { operand, dtype, index, code, what });
        }
    }

    /// Whatever is no element of the result must be as it was.
    fn padding(&mut self, before: &Operands, after: &Operands, touched: &Touched) {
        for (i, operand) in before.list().iter().enumerate().filter(|(_, o)| o.output) {
            if before.at(i).is_none() || before.at(i) == after.at(i) {
                continue;
            }
            let (old, new) = (before.codes(operand.name), after.codes(operand.name));
            for at in (0..old.len()).filter(|&at| !touched.covers(i, at) && old.code(at) != new.code(at)) {
                let what = Wrong::Padding(old.code(at));
                self.judge(false, operand.name, new.dtype, at, new.code(at), what);
            }
        }
    }
}

/// Which elements of each output are results.
pub(crate) struct Touched {
    names: Vec<&'static str>,
    per_byte: Vec<u64>,
    marks: Vec<Vec<bool>>,
}

impl Touched {
    fn new(operands: &Operands) -> Self {
        let names: Vec<_> = operands.list().iter().map(|o| o.name).collect();
        let has = |i: usize| operands.list()[i].output && operands.at(i).is_some();
        let elements = |i: usize| if has(i) { operands.codes(names[i]).len() as usize } else { 0 };
        let marks = (0..names.len()).map(|i| vec![false; elements(i)]).collect();
        let per_byte = (0..names.len()).map(|i| u64::from(operands.needs().get(i).dtype.per_byte())).collect();
        Self { names, per_byte, marks }
    }

    fn index(&self, name: &str) -> usize {
        self.names.iter().position(|n| *n == name).expect("an operand of the op")
    }

    pub(crate) fn mark(&mut self, name: &str, at: u64) {
        let i = self.index(name);
        self.marks[i][at as usize] = true;
    }

    pub(crate) fn mark_all(&mut self, name: &str) {
        let i = self.index(name);
        self.marks[i].fill(true);
    }

    /// A kernel that writes a 4-bit element may write the whole byte.
    fn covers(&self, i: usize, at: u64) -> bool {
        let first = at / self.per_byte[i] * self.per_byte[i];
        (first..first + self.per_byte[i]).any(|at| self.marks[i].get(at as usize) == Some(&true))
    }
}
