//! Golden vectors: answers that outside libraries gave, which reference and kernels must both agree with.

use crate::{
    check::{Failure, run},
    compare::{Comparison, Wrong},
    fill::FillKind,
    formats::encode,
    judge::{Output, Plain, Want},
    judges::judge_of,
    operands::Operands,
    runner::Test,
    suite::candidates,
};
use kp_hal::{
    Device, Kernel, KernelList, Label, Variant,
    op::{Op, Overflow, Problem},
};
use std::{collections::BTreeMap, sync::Arc};

/// Op, name and text of every vector, as the build found them.
static FILES: &[(&str, &str, &str)] = include!(concat!(env!("OUT_DIR"), "/vectors.rs"));

/// One golden answer.
#[derive(Clone, Debug)]
pub struct Vector {
    /// The library, its version and what was called.
    pub source: String,
    /// The problem's line.
    pub problem: String,
    scalars: BTreeMap<String, f32>,
    operands: BTreeMap<String, Vec<u8>>,
    expect: BTreeMap<String, Golden>,
    absolute: f64,
    relative: f64,
}

/// What one output should be.
#[derive(Clone, Debug)]
enum Golden {
    /// True values in the order of memory; `None` where nothing is known.
    Values(Vec<Option<f64>>),
    /// Exact bytes.
    Bytes(Vec<u8>),
}

impl Vector {
    /// Reads the JSON text of a vector.
    ///
    /// # Errors
    /// What is missing or of the wrong kind.
    pub fn parse(text: &str) -> Result<Self, String> {
        use serde_json::Value;
        let json: Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let string = |key: &str| json[key].as_str().map(str::to_owned).ok_or(format!("{key} must be a string"));
        let map = |key: &str| json[key].as_object().ok_or(format!("{key} must be an object"));
        let number = |value: &Value, what: &str| value.as_f64().ok_or(format!("{what} must be a number"));
        let bytes = |value: &Value, what: &str| {
            value.as_str().and_then(unhex).ok_or(format!("{what} must be a string of hex digits, two a byte"))
        };
        let mut scalars = BTreeMap::new();
        for (name, value) in map("scalars")? {
            scalars.insert(name.clone(), number(value, name)? as f32);
        }
        let mut operands = BTreeMap::new();
        for (name, value) in map("operands")? {
            operands.insert(name.clone(), bytes(value, name)?);
        }
        let mut expect = BTreeMap::new();
        for (name, value) in map("expect")? {
            let golden = match (value.get("f64").and_then(Value::as_array), value.get("hex")) {
                (Some(values), None) => Golden::Values(values.iter().map(element).collect::<Result<_, _>>()?),
                (None, Some(hex)) => Golden::Bytes(bytes(hex, name)?),
                _ => return Err(format!("{name} must have either f64 or hex")),
            };
            expect.insert(name.clone(), golden);
        }
        let tolerance = &json["tolerance"];
        Ok(Self {
            source: string("source")?,
            problem: string("problem")?,
            scalars,
            operands,
            expect,
            absolute: number(&tolerance["absolute"], "tolerance.absolute")?,
            relative: number(&tolerance["relative"], "tolerance.relative")?,
        })
    }

    /// The problem and its operands.
    fn load<O: Op>(&self) -> Result<(Problem<O::Spec>, Operands), String> {
        let problem: Problem<O::Spec> = self.problem.parse().map_err(|e| format!("{}: {e}", self.problem))?;
        let mut operands = Operands::new::<O>(&problem, FillKind::Normal);
        for (name, bytes) in &self.operands {
            let at = operands.list().iter().position(|o| o.name == name);
            let own = at.and_then(|i| operands.at_mut(i)).ok_or(format!("{problem} has no operand {name}"))?;
            if own.len() != bytes.len() {
                return Err(format!("{name} of {problem} has {} bytes, got {}", own.len(), bytes.len()));
            }
            own.copy_from_slice(bytes);
        }
        for (i, operand) in operands.list().iter().enumerate() {
            let need = *operands.needs().get(i);
            let given = self.operands.contains_key(operand.name);
            if need.is_present() && !operand.output && !given && need.bytes > 0 {
                return Err(format!("{problem} needs {}", operand.name));
            }
        }
        for (name, &value) in &self.scalars {
            if !operands.scalars().iter().any(|(n, _)| n == name) {
                return Err(format!("{problem} has no scalar {name}"));
            }
            operands.set_scalar(name, value);
        }
        Ok((problem, operands))
    }

    fn tolerance(&self, value: f64) -> f64 {
        self.absolute + if value.is_finite() { self.relative * value.abs() } else { 0.0 }
    }

    /// Whether the reference of `O` agrees: each value within the vector's own tolerance, and the golden answer,
    /// stored in the output's type, judged as if a kernel had written it.
    ///
    /// # Errors
    /// Where they differ.
    pub fn check_reference<O: Op>(&self) -> Result<(), String> {
        let judge = judge_of::<O>().ok_or_else(|| format!("{} has no judge", O::NAME))?;
        let (problem, before) = self.load::<O>()?;
        let mut outputs = (judge.reference)(&problem, &before);
        let mut golden = before.clone();
        for (name, expect) in &self.expect {
            let at = before.list().iter().position(|o| o.name == name && o.output);
            at.filter(|&i| before.at(i).is_some()).ok_or(format!("{problem} has no output {name}"))?;
            match expect {
                Golden::Bytes(bytes) => golden.set_bytes(name, bytes),
                Golden::Values(values) => {
                    let mut codes = golden.codes_mut(name);
                    for (i, value) in values.iter().enumerate() {
                        if let Some(value) = value {
                            codes.set_value(i as u64, *value);
                        }
                    }
                }
            }
        }
        for output in &mut outputs {
            if let Output::Plain(plain) = output
                && let Some(Golden::Values(values)) = self.expect.get(plain.operand)
            {
                self.check_values(plain, values)?;
                // The answer's own tolerance comes on top of a kernel's.
                for (_, want) in &mut plain.wants {
                    if let Want::Number { value, slack } = want {
                        *slack += self.tolerance(*value);
                    }
                }
            }
        }
        match Comparison::of(&outputs, &before, &golden).first {
            Some(first) => Err(format!("the reference refuses the golden answer: {first}")),
            None => Ok(()),
        }
    }

    fn check_values(&self, plain: &Plain, values: &[Option<f64>]) -> Result<(), String> {
        for &(at, want) in &plain.wants {
            let Want::Number { value, slack } = want else { continue };
            let Some(Some(golden)) = values.get(at as usize) else {
                return Err(format!("{}[{at}] is {value:e}, but nothing is known of it", plain.operand));
            };
            // Of results that are exact but for storing them, some libraries only give what they stored.
            let stored = crate::formats::decode(plain.dtype, encode(plain.dtype, value, plain.overflow));
            let same = value == *golden || slack == 0.0 && stored == *golden;
            let off = if same { 0.0 } else { (value - golden).abs() };
            // A reference in f64 rounds too: a few of its own steps per element on top.
            let allowed = self.tolerance(*golden) + 1e-13 * golden.abs();
            if off.is_nan() || off > allowed {
                return Err(format!(
                    "{}[{at}] is {value:e}, {} says {golden:e}: off by {off:.2e}, allowed {allowed:.2e}",
                    plain.operand, self.source
                ));
            }
        }
        Ok(())
    }

    /// Whether a kernel's outputs agree.
    fn check_outputs(&self, outputs: &[Output], before: &Operands, after: &Operands) -> Result<(), String> {
        let mut found = Comparison::default();
        for output in outputs {
            for (name, at, slack) in output.elements() {
                let codes = after.codes(name);
                let (t, code) = (codes.dtype, codes.code(at));
                match self.expect.get(name) {
                    Some(Golden::Values(values)) => {
                        let Some(Some(golden)) = values.get(at as usize) else { continue };
                        // What is stored scaled has a scale that a kernel computes in f32.
                        let scaling =
                            if matches!(output, Output::Scaled(_)) { golden.abs() / 4_194_304.0 } else { 0.0 };
                        let slack = slack + self.tolerance(*golden) + scaling;
                        let range = (golden - slack, golden + slack);
                        found.number(name, t, (at, code), (*golden, slack), range, Overflow::Saturate);
                    }
                    Some(Golden::Bytes(bytes)) => {
                        let golden = crate::formats::get(t, bytes, at);
                        let (got, want) = (codes.value(at), crate::formats::decode(t, golden));
                        let right = code == golden || got.is_nan() && want.is_nan();
                        found.judge(right, name, t, at, code, Wrong::Code(golden));
                    }
                    None => {}
                }
            }
        }
        let ours = Comparison::of(outputs, before, after).first;
        match (found.first, ours) {
            (Some(first), _) => Err(format!("disagrees with {}: {first}", self.source)),
            (None, Some(first)) => Err(format!("disagrees with the reference: {first}")),
            (None, None) => Ok(()),
        }
    }
}

impl Output {
    /// Operand, index and slack of every element that holds a result.
    fn elements(&self) -> Vec<(&'static str, u64, f64)> {
        match self {
            Self::Plain(plain) => {
                let named = plain.wants.iter().filter_map(|&(at, want)| match want {
                    Want::Number { slack, .. } => Some((plain.operand, at, slack)),
                    Want::Code(_) => Some((plain.operand, at, 0.0)),
                    Want::NotFinite | Want::Any | Want::Untouched => None,
                });
                named.collect()
            }
            Self::Scaled(scaled) => scaled.elements(),
        }
    }
}

/// The tests of `O`'s vectors on every kernel and variant that supports them.
pub(crate) fn tests<O: Op>(backend: &'static str, device: &Arc<dyn Device>, kernels: KernelList<O>) -> Vec<Test> {
    let mut tests = Vec::new();
    for (name, text) in of_op(O::NAME) {
        let loaded = Vector::parse(text).and_then(|v| v.load::<O>().map(|(problem, operands)| (v, problem, operands)));
        match loaded {
            Err(e) => {
                let why = format!("{name}: {e}");
                tests.push(Test::new(format!("{backend}/{}/vector {name}", O::NAME), move || Err(why.into())));
            }
            Ok((vector, problem, operands)) => {
                let shared = Arc::new((vector, problem, operands));
                for (kernel, variant) in candidates(kernels, device, &problem) {
                    let label = Label { kernel: kernel.name(), variant };
                    let (device, shared) = (device.clone(), shared.clone());
                    tests.push(Test::new(format!("{backend}/{}/{label}/vector {name}", O::NAME), move || {
                        let (vector, problem, operands) = &*shared;
                        judge_vector(&device, kernel, variant, (vector, problem, operands))
                    }));
                }
            }
        }
    }
    tests
}

fn judge_vector<O: Op>(
    device: &Arc<dyn Device>,
    kernel: &'static dyn Kernel<O>,
    variant: Variant,
    (vector, problem, operands): (&Vector, &Problem<O::Spec>, &Operands),
) -> Result<(), Failure> {
    let judge = judge_of::<O>().ok_or_else(|| Failure::from(format!("{} has no judge", O::NAME)))?;
    let plan = kernel.plan(device, problem, variant)?;
    let mut queue = device.clone().queue()?;
    let (after, _) = run(device, &mut *queue, &plan, operands)?;
    let outputs = (judge.reference)(problem, operands);
    vector.check_outputs(&outputs, operands, &after).map_err(|e| format!("{problem}: {e}").into())
}

/// Name and text of every vector of one op.
pub fn of_op(op: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    FILES.iter().filter(move |(of, ..)| *of == op).map(|&(_, name, text)| (name, text))
}

fn element(value: &serde_json::Value) -> Result<Option<f64>, String> {
    match value.as_str() {
        Some("any") => Ok(None),
        Some("inf") => Ok(Some(f64::INFINITY)),
        Some("-inf") => Ok(Some(f64::NEG_INFINITY)),
        Some(other) => Err(format!("a value must be a number, any, inf or -inf, got `{other}`")),
        None => value.as_f64().map(Some).ok_or(format!("a value must be a number, got {value}")),
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let value = |digit: u8| char::from(digit).to_digit(16);
    let byte = |pair: &[u8]| Some((value(pair[0])? << 4 | value(pair[1])?) as u8);
    if digits.len().is_multiple_of(2) { digits.chunks(2).map(byte).collect() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kp_hal::op::{EachOp, each_op};

    #[test]
    fn every_reference_agrees_with_every_vector() {
        struct All(Vec<String>, usize);
        impl EachOp for All {
            fn op<O: Op>(&mut self) {
                for (name, text) in of_op(O::NAME) {
                    let result = Vector::parse(text).and_then(|v| v.check_reference::<O>());
                    self.0.extend(result.err().map(|e| format!("{}/{name}: {e}", O::NAME)));
                    self.1 += 1;
                }
            }
        }
        let mut all = All(Vec::new(), 0);
        each_op(&mut all);
        assert!(all.0.is_empty(), "{} of {} disagree:\n{}", all.0.len(), all.1, all.0.join("\n"));
        assert_eq!(all.1, FILES.len(), "every folder of vectors is an op's");
        assert!(all.1 >= 100, "{}", all.1);
    }

    #[test]
    fn broken_vectors_are_refused() {
        let good = r#"{"source": "s", "problem": "p", "scalars": {}, "operands": {"a": "00ff"},
            "expect": {"d": {"f64": [1.5, "any", "-inf"]}}, "tolerance": {"absolute": 0, "relative": 1e-3}}"#;
        assert!(Vector::parse(good).is_ok());
        for (part, other) in
            [("00ff", "00f"), ("00ff", "zz"), ("\"any\"", "\"all\""), ("f64", "f63"), ("absolute", "a")]
        {
            assert!(Vector::parse(&good.replace(part, other)).is_err(), "{part} as {other}");
        }
    }
}
