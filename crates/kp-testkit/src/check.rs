//! One kernel on one problem: what the suite does in every case, and what `kp verify` and `kp bench` ask for.

use crate::{
    compare::Comparison,
    fill::{Fill, FillKind},
    judge::{Output, REFERENCE_LIMIT},
    judges::{Judged, judge_of},
    load::Loaded,
    operands::Operands,
};
use kp_hal::{
    Caps, Device, Error, ErrorKind, Kernel, Label, Plan, Queue, Variant,
    op::{ArgError, Op, Problem, Repro, Spec},
};
use std::{fmt, sync::Arc, sync::OnceLock};

/// Why a kernel is wrong: what was found, with its numbers.
#[derive(Clone, Debug)]
pub struct Failure(String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self(error.to_string())
    }
}

/// What one comparison with the reference found.
#[derive(Clone, Debug)]
pub struct Report {
    /// The largest |got − want| among the numbers, in the units of the output.
    pub max_error: f64,
    /// The largest |got − want| as a share of the bound; above 1 only if something is wrong.
    pub max_share: f64,
    /// Elements compared.
    pub checked: u64,
    /// Elements that are wrong.
    pub wrong: u64,
    /// What is wrong, if anything.
    pub failure: Option<Failure>,
}

impl Report {
    /// Whether every element is right.
    pub fn passed(&self) -> bool {
        self.failure.is_none()
    }

    fn new(comparison: &Comparison) -> Self {
        let Comparison { checked, wrong, max_error, max_share, .. } = *comparison;
        Self { max_error, max_share, checked, wrong, failure: failure(comparison) }
    }
}

/// Runs one kernel on one problem and compares with the reference, or with the op's laws if that would take too long.
///
/// # Errors
/// If it cannot be planned or launched, writes outside its outputs, or the op has no judge.
pub fn check<O: Op>(
    device: &Arc<dyn Device>,
    kernel: &'static dyn Kernel<O>,
    variant: Variant,
    problem: &Problem<O::Spec>,
    kind: FillKind,
    seed: u64,
) -> Result<Report, Failure> {
    let judge = judge_of::<O>().ok_or_else(|| Failure(format!("{} has no judge", O::NAME)))?;
    let plan = kernel.plan(device, problem, variant)?;
    let mut queue = device.clone().queue()?;
    if (judge.cost)(problem) > REFERENCE_LIMIT {
        let law = laws(judge, device, &mut *queue, &plan, seed);
        return Ok(Report { max_error: 0.0, max_share: 0.0, checked: 0, wrong: 0, failure: law.err() });
    }
    let before = (judge.inputs)(problem, &mut Fill::new(kind, seed));
    let (after, _) = run(device, &mut *queue, &plan, &before)?;
    Ok(Report::new(&Comparison::of(&(judge.reference)(problem, &before), &before, &after)))
}

/// Operands filled for `problem`, or `None` if the op has no judge.
pub fn inputs<O: Op>(problem: &Problem<O::Spec>, seed: u64) -> Option<Operands> {
    judge_of::<O>().map(|judge| (judge.inputs)(problem, &mut Fill::new(FillKind::Normal, seed)))
}

/// A problem with its operands and their reference, shared by the kernels that are judged on it.
pub(crate) struct Case<O: Op> {
    pub(crate) problem: Problem<O::Spec>,
    pub(crate) judge: &'static Judged<O>,
    pub(crate) seed: u64,
    made: [OnceLock<Made>; FillKind::ALL.len()],
}

struct Made {
    operands: Operands,
    /// `None` if the problem is too large for it.
    outputs: Option<Vec<Output>>,
}

impl<O: Op> Case<O> {
    pub(crate) fn new(problem: Problem<O::Spec>, judge: &'static Judged<O>, seed: u64) -> Self {
        let name = kp_hal::source_hash(problem.to_string().as_bytes());
        Self { problem, judge, seed: seed ^ name, made: Default::default() }
    }

    fn made(&self, kind: FillKind) -> &Made {
        let i = FillKind::ALL.iter().position(|k| *k == kind).expect("a kind that cases are judged with");
        self.made[i].get_or_init(|| {
            let operands = (self.judge.inputs)(&self.problem, &mut Fill::new(kind, self.seed));
            let small = (self.judge.cost)(&self.problem) <= REFERENCE_LIMIT;
            let outputs = small.then(|| (self.judge.reference)(&self.problem, &operands));
            Made { operands, outputs }
        })
    }

    /// Exact and normal numbers always; wide and special ones in turn.
    fn kinds(&self) -> Vec<FillKind> {
        let mut kinds = vec![FillKind::Exact, FillKind::Normal];
        let special = (self.judge.special)(&self.problem);
        kinds.push(if special && self.seed.is_multiple_of(2) { FillKind::Special } else { FillKind::Wide });
        kinds
    }
}

/// Everything that is asked of one kernel on one problem.
pub(crate) fn judge_case<O: Op>(
    device: &Arc<dyn Device>,
    kernel: &'static dyn Kernel<O>,
    variant: Variant,
    case: &Case<O>,
) -> Result<(), Failure> {
    let problem = &case.problem;
    pure(kernel, device.caps(), problem, variant)?;
    let plan = kernel.plan(device, problem, variant)?;
    describes(&plan, kernel, variant, problem)?;
    let mut queue = device.clone().queue()?;
    if (case.judge.cost)(problem) > REFERENCE_LIMIT {
        return laws(case.judge, device, &mut *queue, &plan, case.seed);
    }
    for (nth, kind) in case.kinds().into_iter().enumerate() {
        let made = case.made(kind);
        let outputs = made.outputs.as_deref().expect("small enough for the reference");
        let named = |e: Failure| Failure(format!("{kind} numbers, seed {:#x}: {e}", case.seed));
        let (after, mut loaded) = run(device, &mut *queue, &plan, &made.operands).map_err(named)?;
        if let Some(e) = failure(&Comparison::of(outputs, &made.operands, &after)) {
            return Err(named(e));
        }
        if nth == 0 {
            spoiled(&plan, &mut *queue, &mut loaded, &made.operands)?;
        }
        if nth == 1 {
            // Sums of whole numbers are equal in any order, so only these show that the order is not fixed.
            again(&plan, &mut *queue, &mut loaded, (&made.operands, &after), outputs).map_err(named)?;
        }
        if nth == 1 && problem.repro() == Repro::BatchInvariant {
            fewer_rows(device, kernel, variant, case, (&made.operands, &after))?;
        }
    }
    if case.seed.is_multiple_of(3) {
        laws(case.judge, device, &mut *queue, &plan, case.seed)?;
    }
    Ok(())
}

/// Uploads, launches, downloads.
pub(crate) fn run<O: Op>(
    device: &Arc<dyn Device>,
    queue: &mut dyn Queue,
    plan: &Plan<O>,
    operands: &Operands,
) -> Result<(Operands, Loaded), Failure> {
    let mut loaded = Loaded::new(device, queue, operands)?;
    if plan.scratch_bytes() > 0 {
        queue.reserve_scratch(plan.scratch_bytes())?;
        // NaN, or −1 where numbers are whole.
        queue.fill_scratch(0xff)?;
    }
    plan.launch(queue, &loaded.args::<O>(operands))?;
    queue.sync()?;
    let after = loaded.download(queue, operands)?;
    Ok((after, loaded))
}

fn failure(comparison: &Comparison) -> Option<Failure> {
    let first = comparison.first.as_ref()?;
    Some(Failure(format!("{} of {} elements are wrong, the first: {first}", comparison.wrong, comparison.checked)))
}

/// `supports`, `estimate` and `note` answer the same twice and make sense.
fn pure<O: Op>(
    kernel: &dyn Kernel<O>,
    caps: &Caps,
    problem: &Problem<O::Spec>,
    variant: Variant,
) -> Result<(), Failure> {
    let (once, twice) = (kernel.supports(caps, problem), kernel.supports(caps, problem));
    if once != twice {
        return Err(Failure(format!("supports is not pure: first {once:?}, then {twice:?}")));
    }
    let (once, twice) = (kernel.estimate(caps, problem, variant), kernel.estimate(caps, problem, variant));
    if once != twice {
        return Err(Failure(format!("estimate is not pure: first {once}, then {twice}")));
    }
    let (once_said, again) = (kernel.note(caps, problem, variant), kernel.note(caps, problem, variant));
    if once_said != again {
        return Err(Failure(format!("note is not pure: first {once_said:?}, then {again:?}")));
    }
    if let Some(note) = once_said.filter(|note| note.is_empty() || note.contains(['\n', '\r'])) {
        return Err(Failure(format!("a note is a few words on one line, got {note:?}")));
    }
    let (compute, memory) = kp_hal::Nanos::floors(caps, problem);
    let nothing = compute.max(memory).0 == 0;
    if once.0 == u64::MAX || once.0 == 0 && !nothing {
        return Err(Failure(format!(
            "estimate is {} ns for {} flops and {} bytes",
            once.0,
            problem.flops(),
            problem.bytes()
        )));
    }
    Ok(())
}

/// A plan says of itself what was asked for.
fn describes<O: Op>(
    plan: &Plan<O>,
    kernel: &dyn Kernel<O>,
    variant: Variant,
    problem: &Problem<O::Spec>,
) -> Result<(), Failure> {
    if plan.kernel() != kernel.name() || plan.variant() != variant || plan.problem() != problem {
        return Err(Failure(format!("asked for {}#{} of {problem}, got {plan:?}", kernel.name(), variant.0)));
    }
    Ok(())
}

/// Arguments that do not fit are refused before anything runs.
fn spoiled<O: Op>(
    plan: &Plan<O>,
    queue: &mut dyn Queue,
    loaded: &mut Loaded,
    operands: &Operands,
) -> Result<(), Failure> {
    for (i, operand) in operands.list().iter().enumerate() {
        let need = operands.needs().get(i);
        if !need.is_present() || need.bytes == 0 {
            continue;
        }
        let mut expect = |by, less, right: &dyn Fn(&ArgError) -> bool| {
            let args = loaded.args_spoiled::<O>(operands, (i, by, less)).map_err(|e| Failure(e.to_string()))?;
            match plan.launch(queue, &args).map_err(Error::into_kind) {
                Err(ErrorKind::BadArgs(e)) if right(&e) => Ok(()),
                other => Err(Failure(format!("{} moved by {by} and {less} bytes short: {other:?}", operand.name))),
            }
        };
        expect(0, 1, &|e| matches!(e, ArgError::TooShort { operand: name, .. } if *name == operand.name))?;
        if need.align > 1 {
            expect(1, 0, &|e| matches!(e, ArgError::Misaligned { operand: name, .. } if *name == operand.name))?;
        }
    }
    Ok(())
}

/// The same inputs over other leftovers give the same bits, or at least right ones if the problem asks for no more.
fn again<O: Op>(
    plan: &Plan<O>,
    queue: &mut dyn Queue,
    loaded: &mut Loaded,
    (before, after): (&Operands, &Operands),
    outputs: &[Output],
) -> Result<(), Failure> {
    let mut other = before.clone();
    for (i, operand) in before.list().iter().enumerate() {
        if operand.output
            && !before.needs().get(i).reads
            && let Some(bytes) = other.at_mut(i)
        {
            bytes.fill(0xa5);
        }
    }
    loaded.upload(queue, &other)?;
    plan.launch(queue, &loaded.args::<O>(&other))?;
    queue.sync()?;
    let second = loaded.download(queue, &other)?;
    if let Some(Failure(e)) = failure(&Comparison::of(outputs, &other, &second)) {
        return Err(Failure(format!("second run: {e}")));
    }
    if plan.problem().repro() == Repro::Fast {
        return Ok(());
    }
    for (i, operand) in before.list().iter().enumerate().filter(|(_, o)| o.output) {
        let parts = (before.at(i), after.at(i), other.at(i), second.at(i));
        let (Some(old), Some(new), Some(other_old), Some(other_new)) = parts else { continue };
        let differs = |at: &usize| {
            let untouched = new[*at] == old[*at] && other_new[*at] == other_old[*at];
            new[*at] != other_new[*at] && !untouched
        };
        // Of two 4-bit elements one may be padding, which keeps what it held.
        let packed = before.needs().get(i).dtype.per_byte() == 2;
        if let (false, Some(at)) = (packed, (0..new.len()).find(differs)) {
            let (first, again) = (new[at], other_new[at]);
            let name = operand.name;
            return Err(Failure(format!(
                "two runs differ in byte {at} of {name}: {first:#04x}, then {again:#04x}, which repro={} forbids",
                plan.problem().repro()
            )));
        }
    }
    Ok(())
}

/// A row's bits do not depend on how many other rows there are.
fn fewer_rows<O: Op>(
    device: &Arc<dyn Device>,
    kernel: &'static dyn Kernel<O>,
    variant: Variant,
    case: &Case<O>,
    (before, after): (&Operands, &Operands),
) -> Result<(), Failure> {
    let Some(fewer) = (case.judge.fewer_rows)(&case.problem, before) else { return Ok(()) };
    let supported = kernel.supports(device.caps(), &fewer.problem).is_ok_and(|variants| variants.contains(variant));
    if !supported {
        // Then another kernel would run it, and the promise cannot hold.
        return Err(Failure(format!("promises batch invariance but does not run {}", fewer.problem)));
    }
    let plan = kernel.plan(device, &fewer.problem, variant)?;
    let mut queue = device.clone().queue()?;
    let (small, _) = run(device, &mut *queue, &plan, &fewer.operands)?;
    for (operand, at, from) in fewer.same {
        let (got, want) = (small.codes(operand).code(at), after.codes(operand).code(from));
        if got != want {
            return Err(Failure(format!(
                "{operand}[{from}] is {want:#x}, but {got:#x} when only the rows of {} are computed",
                fewer.problem
            )));
        }
    }
    Ok(())
}

/// Kernels that promise batch invariance give the same bits: which of them runs may depend on how many rows there are.
pub(crate) fn agreed<O: Op>(
    device: &Arc<dyn Device>,
    candidates: &[(&'static dyn Kernel<O>, Variant)],
    case: &Case<O>,
) -> Result<(), Failure> {
    if (case.judge.cost)(&case.problem) > REFERENCE_LIMIT {
        return Ok(());
    }
    let before = &case.made(FillKind::Normal).operands;
    let mut first: Option<(Label, Operands)> = None;
    for &(kernel, variant) in candidates {
        let plan = kernel.plan(device, &case.problem, variant)?;
        let mut queue = device.clone().queue()?;
        let (after, _) = run(device, &mut *queue, &plan, before)?;
        let Some((label, of_first)) = &first else {
            first = Some((plan.label(), after));
            continue;
        };
        for (i, operand) in before.list().iter().enumerate().filter(|(_, operand)| operand.output) {
            let (Some(one), Some(other)) = (of_first.at(i), after.at(i)) else { continue };
            if let Some(at) = (0..one.len()).find(|&at| one[at] != other[at]) {
                let (name, one, other, plan) = (operand.name, one[at], other[at], plan.label());
                return Err(Failure(format!(
                    "{label} and {plan} both promise batch invariance, and differ in byte {at} of {name}: {one:#04x}, {other:#04x}"
                )));
            }
        }
    }
    Ok(())
}

/// The op's laws, as far as they speak of this problem.
fn laws<O: Op>(
    judge: &Judged<O>,
    device: &Arc<dyn Device>,
    queue: &mut dyn Queue,
    plan: &Plan<O>,
    seed: u64,
) -> Result<(), Failure> {
    for property in (judge.properties)() {
        let Some(first) = (property.inputs)(plan.problem(), &mut Fill::new(FillKind::Normal, seed)) else { continue };
        let mut runs = vec![run(device, queue, plan, &first)?.0];
        if let Some(again) = property.again {
            runs.push(run(device, queue, plan, &again(plan.problem(), &first))?.0);
        }
        (property.check)(plan.problem(), &runs).map_err(|e| Failure(format!("violates `{}`: {e}", property.name)))?;
    }
    Ok(())
}
