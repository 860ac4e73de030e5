//! Measuring candidates, on request only: a first call never stalls to tune.

pub mod fill;
mod measure;

pub use fill::{Fill, Random};

use crate::{
    candidates::Candidate,
    engine::{Engine, not_while_recording},
    error::Result,
    wisdom::Fact,
};
use kp_hal::{
    AnyProblem, ErrorKind, Label, Nanos, Op, Problem, Queue, Unsupported,
    op::{OpVisitor, View},
};
use measure::{Operands, median};
use std::{
    fmt,
    time::{Duration, Instant},
};

/// While tuning goes on, wisdom is saved so often that this part of the time goes into it: little is lost if the process
/// is killed, however long one problem takes, and a large file on a slow disk costs no more.
const SAVING: u32 = 20;

/// How to tune.
pub struct Tune<'t> {
    /// Time for all of it. A launch cannot be interrupted, so the last one may end later; a candidate whose own
    /// estimate exceeds what is left is not started.
    pub budget: Duration,
    /// Whether candidates whose time is known already are measured again.
    pub again: bool,
    /// Where inputs come from; [`Random`] if `None`.
    pub fill: Option<&'t mut dyn Fill>,
    /// Told before and after each candidate. If it panics, what was measured is kept.
    pub progress: Option<&'t mut dyn FnMut(Progress<'_>)>,
}

impl Default for Tune<'_> {
    /// Ten seconds, random inputs, nobody told.
    fn default() -> Self {
        Self { budget: Duration::from_secs(10), again: false, fill: None, progress: None }
    }
}

impl fmt::Debug for Tune<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tune").field("budget", &self.budget).field("again", &self.again).finish_non_exhaustive()
    }
}

/// Where tuning is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'p> {
    /// The problem.
    pub problem: &'p AnyProblem,
    /// Its place among the problems, from 0, and how many there are.
    pub problems: (usize, usize),
    /// The candidate.
    pub label: Label,
    /// Its place among the problem's candidates, from 0, and how many there are.
    pub candidates: (usize, usize),
    /// How it went; `None` before it starts.
    pub outcome: Option<&'p Outcome>,
    /// Time since tuning began.
    pub elapsed: Duration,
}

/// How one candidate went.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Its median time.
    Measured(Nanos),
    /// Its time was known already.
    Known(Nanos),
    /// It could not be planned or launched.
    Failed(String),
    /// The budget does not allow it.
    Skipped(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Measured(time) => time.fmt(f),
            Self::Known(time) => write!(f, "{time}, known"),
            Self::Failed(why) => write!(f, "failed: {why}"),
            Self::Skipped(why) => write!(f, "skipped: {why}"),
        }
    }
}

/// One candidate of one problem, and how it went.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Measurement {
    /// The problem.
    pub problem: AnyProblem,
    /// The candidate; `None` if the problem as a whole could not be measured.
    pub label: Option<Label>,
    /// How it went.
    pub outcome: Outcome,
}

/// What tuning found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tuned {
    /// Every candidate of every problem, in the order tried.
    pub measurements: Vec<Measurement>,
    /// Time it took.
    pub took: Duration,
}

impl Engine {
    /// Measures every candidate of every problem, and keeps the times as wisdom: on disk, and for the rankings from
    /// now on. Plans made before are forgotten; those in use live on.
    ///
    /// Each problem gets an equal share of what is left of the budget, and so does each of its candidates, the most
    /// promising first. Buffers are reused, so what fits a cache is measured in that cache.
    ///
    /// # Errors
    /// `Wisdom` if what is measured cannot be saved: before measuring if that can be seen, else after; it is used in
    /// memory all the same. `Hal` if the device is lost, or if this thread is recording.
    pub fn tune(&self, problems: &[AnyProblem], tune: Tune<'_>) -> Result<Tuned> {
        /// Also when the caller's closure panics: rankings have changed.
        struct Forget<'e>(&'e Engine);
        impl Drop for Forget<'_> {
            fn drop(&mut self) {
                self.0.forget_plans();
            }
        }
        not_while_recording("tuning")?;
        self.check_wisdom_writable()?;
        let _span = tracing::info_span!("tune", problems = problems.len(), budget = ?tune.budget).entered();
        let start = Instant::now();
        let _forget = Forget(self);
        let mut random = Random::default();
        let mut session = Session {
            engine: self,
            queue: self.queue()?,
            fill: match tune.fill {
                Some(fill) => fill,
                None => &mut random,
            },
            progress: tune.progress,
            again: tune.again,
            start,
            deadline: start.checked_add(tune.budget),
            save_at: start,
            tuned: Tuned::default(),
        };
        for (at, problem) in problems.iter().enumerate() {
            problem.visit(One { session: &mut session, any: problem, place: (at, problems.len()) })?;
        }
        session.tuned.took = start.elapsed();
        self.save_wisdom()?;
        Ok(session.tuned)
    }
}

/// One run of `tune`.
struct Session<'s, 't> {
    engine: &'s Engine,
    queue: Box<dyn Queue>,
    fill: &'s mut (dyn Fill + 't),
    progress: Option<&'t mut (dyn FnMut(Progress<'_>) + 't)>,
    again: bool,
    start: Instant,
    /// `None` if no clock counts that far.
    deadline: Option<Instant>,
    /// Not earlier than this.
    save_at: Instant,
    tuned: Tuned,
}

impl Session<'_, '_> {
    /// Saves what was measured, unless it was saved just now.
    fn save(&mut self) -> Result<()> {
        let start = Instant::now();
        if start >= self.save_at {
            self.engine.save_wisdom()?;
            self.save_at = Instant::now() + start.elapsed() * SAVING;
        }
        Ok(())
    }

    fn left(&self) -> Duration {
        self.deadline.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()))
    }

    fn tell(&mut self, progress: Progress<'_>) {
        if let Some(tell) = &mut self.progress {
            tell(progress);
        }
    }
}

/// One problem of it.
struct One<'o, 's, 't> {
    session: &'o mut Session<'s, 't>,
    any: &'o AnyProblem,
    place: (usize, usize),
}

impl OpVisitor for One<'_, '_, '_> {
    type Out = Result<()>;

    fn visit<O: Op>(self, problem: &Problem<O::Spec>) -> Self::Out {
        let found = self.session.engine.candidates(problem);
        let entries: Vec<Entry> = found
            .accepted
            .iter()
            .map(|c| Entry { label: c.label(), time: c.time(), measured: c.measured, code: c.kernel.code() })
            .collect();
        // Inputs are made when the first candidate needs them.
        let mut operands: Option<Operands> = None;
        let any = self.any;
        self.measure(&entries, found.rejected, &mut |session, at, share| {
            let time = run(session, problem, &found.accepted[at], &mut operands, any, share);
            if matches!(time.as_ref().map_err(kp_hal::Error::kind), Err(ErrorKind::Fault(_))) {
                // Buffers that a faulted queue used may be in any state.
                operands = None;
            }
            time
        })
    }
}

/// What is told of a candidate, whatever its op.
struct Entry {
    label: Label,
    time: Nanos,
    measured: Option<Nanos>,
    code: u64,
}

/// [`run`] for the candidate at a place.
type Run<'r> = dyn FnMut(&mut Session<'_, '_>, usize, Duration) -> kp_hal::Result<Nanos> + 'r;

impl One<'_, '_, '_> {
    /// Measures the candidates that `entries` tell of; apart from `visit` so that it is compiled once.
    fn measure(self, entries: &[Entry], rejected: Vec<(&'static str, Unsupported)>, run: &mut Run<'_>) -> Result<()> {
        let Self { session, any, place } = self;
        let _span = tracing::debug_span!("measure", problem = %any).entered();
        let share = share_of(session.left(), place.1 - place.0);
        let end = Instant::now().checked_add(share);
        if entries.is_empty() {
            let outcome = Outcome::Failed(ErrorKind::Unsupported(rejected).to_string());
            session.tuned.measurements.push(Measurement { problem: *any, label: None, outcome });
            return Ok(());
        }
        for (at, entry) in entries.iter().enumerate() {
            let &Entry { label, time: expected, measured, code } = entry;
            let progress = Progress {
                problem: any,
                problems: place,
                label,
                candidates: (at, entries.len()),
                outcome: None,
                elapsed: session.start.elapsed(),
            };
            session.tell(progress);
            let share = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            let share = share_of(share, entries.len() - at);
            let outcome = match measured.filter(|_| !session.again) {
                Some(time) => Outcome::Known(time),
                None if session.left().is_zero() => Outcome::Skipped("the budget is spent".into()),
                None if Nanos::from(session.left()) < expected => {
                    let left = Nanos::from(session.left());
                    Outcome::Skipped(format!("one launch may take {expected}, {left} are left"))
                }
                None => match run(session, at, share) {
                    Ok(time) => Outcome::Measured(time),
                    Err(error) => {
                        tracing::warn!(kernel = %label, %error, "cannot be measured");
                        if let ErrorKind::Fault(fault) = error.kind() {
                            if fault.device_lost {
                                return Err(error.into());
                            }
                            // A faulted queue stays so.
                            session.queue = session.engine.queue()?;
                        }
                        Outcome::Failed(error.to_string())
                    }
                },
            };
            if let Outcome::Measured(time) = outcome {
                session.engine.record(any, label, Fact { time, code });
                tracing::debug!(kernel = %label, %time, "measured");
                session.save()?;
            }
            session.tell(Progress { outcome: Some(&outcome), elapsed: session.start.elapsed(), ..progress });
            session.tuned.measurements.push(Measurement { problem: *any, label: Some(label), outcome });
        }
        Ok(())
    }
}

/// Plans one candidate and takes its time, for about `share`.
fn run<O: Op>(
    session: &mut Session<'_, '_>,
    problem: &Problem<O::Spec>,
    candidate: &Candidate<O>,
    operands: &mut Option<Operands>,
    any: &AnyProblem,
    share: Duration,
) -> kp_hal::Result<Nanos> {
    if operands.is_none() {
        *operands = Some(Operands::new::<O>(session.engine, &mut *session.queue, problem, any, session.fill)?);
    }
    let views: Vec<Option<View<'_>>> = operands.as_mut().expect("just made").views();
    let args = <O::Args<'_> as kp_hal::Args<'_>>::bind(views)?;
    let plan = candidate.kernel.plan(session.engine.device(), problem, candidate.variant)?;
    median(&mut *session.queue, share, &mut |queue| plan.launch(queue, &args))
}

/// An equal part for each of `among`.
fn share_of(time: Duration, among: usize) -> Duration {
    time / u32::try_from(among.max(1)).unwrap_or(u32::MAX)
}
