//! Every kernel and variant on one problem: time, rate, fraction of the roofline, error.

use crate::{
    operands::{Host, Set, check_room},
    output,
    record::{Row, round},
    suites::{Line, facts},
    timing::{self, Clock, Method, Timing},
};
use anyhow::{Context, Result};
use kp_core::{Candidate, Engine};
use kp_hal::{
    Caps, DeviceKind, Plan, Queue,
    op::{Op, OpVisitor, Problem},
};
use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

/// Measures on one device.
pub(crate) struct Meter {
    engine: Engine,
    /// What the device can do, its peaks measured.
    pub(crate) caps: Caps,
    /// Whether they were measured.
    pub(crate) peaks: &'static str,
    /// What measuring them took.
    peaks_took: Duration,
    queue: Box<dyn Queue>,
    pub(crate) options: Options,
    /// The least part of the roofline that each kernel reached yet: what the next problem may cost.
    reached: HashMap<String, f64>,
}

/// How much time and memory a measurement may take.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Time for the samples of one row.
    pub(crate) budget: Duration,
    /// A launch expected to take longer is left out.
    pub(crate) longest: Duration,
    /// Multiply-adds that the f64 reference may take; 0 compares nothing.
    pub(crate) reference: f64,
    /// Only kernels whose name contains this.
    pub(crate) kernel: Option<String>,
    /// Of those, only so many that rank first.
    pub(crate) best: usize,
    /// And kernels whose name contains this, however they rank.
    pub(crate) beside: Option<String>,
    /// Time of launches before the first sample of each kernel, if not the usual.
    pub(crate) warm: Option<Duration>,
    /// How many turns the kernels of a problem take.
    pub(crate) turns: u32,
    /// Whether another program has a turn before each.
    pub(crate) yields: bool,
    /// What a sample is.
    pub(crate) method: Method,
}

/// What came of one problem.
#[derive(Default)]
pub(crate) struct Outcome {
    /// One per kernel and variant, fastest first.
    pub(crate) rows: Vec<Row>,
    /// Why there is no row: kernel, if it was one kernel's fault, and reason.
    pub(crate) skipped: Vec<(Option<String>, String)>,
    /// Kernels whose result is wrong, with the first wrong element. They have no row.
    pub(crate) wrong: Vec<(String, String)>,
}

impl Meter {
    /// Measures the device's peaks, which takes about a second.
    ///
    /// # Errors
    /// What the device returned.
    pub(crate) fn new(engine: Engine, options: Options) -> Result<Self> {
        let began = Instant::now();
        let caps = engine.measure_peaks().context("cannot measure the device's peaks")?;
        let peaks_took = began.elapsed();
        let peaks = if caps == *engine.caps() { "as the device states them" } else { "measured before the run" };
        let queue = engine.queue()?;
        Ok(Self { engine, caps, peaks, peaks_took, queue, options, reached: HashMap::new() })
    }

    /// What measuring `lines` will come to.
    pub(crate) fn expect<'l>(&self, lines: impl IntoIterator<Item = &'l Line>) -> Expected {
        let mut expected = Expected::default();
        for line in lines {
            line.problem.visit(Expect { meter: self, expected: &mut expected });
            expected.problems += 1;
            if self.caps.kind == DeviceKind::Cpu {
                expected.time += 2 * self.peaks_took;
            }
        }
        expected
    }

    /// Measures every candidate for the line's problem. `watch` is told which is next.
    pub(crate) fn measure(&mut self, line: &Line, watch: &mut dyn FnMut(&str)) -> Outcome {
        let mut outcome = Outcome::default();
        let visit = Measure { meter: self, line, watch, outcome: &mut outcome };
        if let Err(error) = line.problem.visit(visit) {
            outcome.skipped.push((None, format!("{error:#}")));
            // A fault is sticky: the next problem deserves a queue that works.
            if let Ok(queue) = self.engine.queue() {
                self.queue = queue;
            }
        }
        outcome.rows.sort_by(|a, b| a.median_ns.total_cmp(&b.median_ns));
        outcome
    }

    /// The peaks as they are this moment, of a processor that others use too: what it does changes from minute to minute, and a part
    /// of the roofline should be of the minute of its row. A GPU keeps those of the start, since measuring would move its clock.
    fn peaks_now(&self) -> Result<Caps> {
        if self.caps.kind != DeviceKind::Cpu {
            return Ok(self.caps.clone());
        }
        self.engine.measure_peaks().context("cannot measure the device's peaks")
    }

    /// From now on only kernels whose name with variant contains `part`; answers what was asked before.
    pub(crate) fn only(&mut self, part: Option<String>) -> Option<String> {
        std::mem::replace(&mut self.options.kernel, part)
    }
}

/// What there is to measure.
#[derive(Default)]
pub(crate) struct Expected {
    pub(crate) problems: usize,
    pub(crate) rows: usize,
    /// By what kernels estimate; without making inputs and computing references.
    pub(crate) time: Duration,
}

struct Expect<'a> {
    meter: &'a Meter,
    expected: &'a mut Expected,
}

impl OpVisitor for Expect<'_> {
    type Out = ();

    fn visit<O: Op>(self, problem: &Problem<O::Spec>) {
        let Self { meter, expected } = self;
        for (candidate, ..) in meter.options.asked(meter.engine.candidates(problem).accepted) {
            let one = Duration::from_nanos(candidate.time().0);
            if one <= meter.options.longest {
                expected.rows += 1;
                expected.time += meter.options.clock(&meter.engine).expected(one);
            }
        }
    }
}

impl Options {
    fn clock<'e>(&self, engine: &'e Engine) -> Clock<'e> {
        let Self { method, budget, turns, warm, .. } = *self;
        Clock { engine, method, budget, turns, warm }
    }

    /// Of the candidates for a problem those that are asked for, each with its place among all and its label.
    fn asked<O: Op>(&self, ranked: Vec<Candidate<O>>) -> Vec<(Candidate<O>, u32, String)> {
        let labelled =
            ranked.into_iter().zip(1..).map(|(candidate, rank)| (candidate, rank, candidate.label().to_string()));
        let wanted = labelled.filter(|(.., label)| self.kernel.as_ref().is_none_or(|part| label.contains(&**part)));
        let beside = |label: &str| self.beside.as_ref().is_some_and(|part| label.contains(&**part));
        wanted
            .enumerate()
            .filter(|(place, (.., label))| *place < self.best || beside(label))
            .map(|(_, one)| one)
            .collect()
    }
}

struct Measure<'a> {
    meter: &'a mut Meter,
    line: &'a Line,
    watch: &'a mut dyn FnMut(&str),
    outcome: &'a mut Outcome,
}

impl OpVisitor for Measure<'_> {
    type Out = Result<()>;

    fn visit<O: Op>(self, problem: &Problem<O::Spec>) -> Result<()> {
        let Self { meter, line, watch, outcome } = self;
        let found = meter.engine.candidates(problem);
        if found.accepted.is_empty() {
            let why = found.rejected.iter().map(|(kernel, why)| format!("{kernel}: {why}")).collect::<Vec<_>>();
            let none = "the backend has no kernel of this op".to_owned();
            outcome.skipped.push((None, if why.is_empty() { none } else { why.join("; ") }));
            return Ok(());
        }
        let floor_ns = floor_ns(line, &meter.caps);
        let mut left = Vec::new();
        for (candidate, rank, label) in meter.options.asked(found.accepted) {
            let reached = meter.reached.get(candidate.kernel.name()).copied().unwrap_or(1.0);
            let expected = Duration::from_secs_f64((floor_ns / reached / 1e9).min(1e9));
            if expected > meter.options.longest {
                let why = format!("a launch would take about {:.0} s, more than --longest", expected.as_secs_f64());
                outcome.skipped.push((Some(label), why));
            } else {
                left.push((candidate, rank, label));
            }
        }
        if left.is_empty() {
            return Ok(());
        }
        check_room::<O>(&meter.engine, problem)?;
        let memory = meter.engine.device().memory()?;
        watch("inputs");
        let began = Instant::now();
        let host = Host::<O>::new(problem, &line.problem, meter.options.reference);
        let (count, cold) = meter.options.method.sets(host.bytes(), &meter.caps, (memory.free / 4).min(MOST_BYTES));
        let mut sets = vec![Set::upload(&meter.engine, &host.operands, &mut *meter.queue)?];
        while sets.len() < count {
            sets.push(Set::upload(&meter.engine, &host.operands, &mut *meter.queue)?);
        }
        let mut ready = Vec::new();
        for (candidate, rank, label) in left {
            watch(&label);
            let plan = match candidate.kernel.plan(meter.engine.device(), problem, candidate.variant) {
                Ok(plan) => plan,
                Err(error) => {
                    outcome.skipped.push((Some(label), error.to_string()));
                    continue;
                }
            };
            let mut error = None;
            if host.reference.is_some() {
                // Outputs hold what the kernel before left there: poison them again, padding and all.
                sets[0] = Set::upload(&meter.engine, &host.operands, &mut *meter.queue)?;
                let args = sets[0].args::<O>(&host.operands)?;
                plan.launch(&mut *meter.queue, &args)?;
                drop(args);
                let comparison = host.compare(&sets[0], &mut *meter.queue)?;
                if let Some((first, found)) = comparison.as_ref().and_then(|found| Some((found.first.as_ref()?, found)))
                {
                    let why = format!("{} of {} elements, first {first}", found.wrong, found.checked);
                    outcome.wrong.push((label, why));
                    continue;
                }
                error = comparison.map(|found| found.max_share);
            }
            ready.push(Ready { candidate, rank, label, plan, error, samples: Vec::new() });
        }
        let Options { turns, yields, .. } = meter.options;
        let clock = meter.options.clock(&meter.engine);
        if let Some(Ready { label, plan, .. }) = ready.first() {
            watch(label);
            clock.wake(began, plan, &host.operands, &mut sets[0], &mut *meter.queue)?;
        }
        let before = meter.peaks_now()?;
        // In turns, so that none is alone in meeting the device rested.
        let mut medians = BTreeMap::new();
        for _ in 0..turns {
            if yields {
                output::hand_over(&medians)?;
            }
            for Ready { label, plan, samples, .. } in &mut ready {
                watch(label);
                let turn = clock.time(plan, &host.operands, &mut sets, &mut *meter.queue)?;
                samples.extend(&turn);
                medians.insert(label.clone(), round(timing::summary(turn).median_ns));
            }
        }
        if yields {
            output::hand_over(&medians)?;
        }
        let floor_ns = f64::midpoint(self::floor_ns(line, &before), self::floor_ns(line, &meter.peaks_now()?));
        for Ready { candidate, rank, error, samples, .. } in ready {
            let timing = timing::summary(samples);
            let reached = floor_ns / timing.median_ns;
            meter
                .reached
                .entry(candidate.kernel.name().to_owned())
                .and_modify(|least| *least = least.min(reached))
                .or_insert(reached);
            let at = (candidate.kernel.name(), candidate.variant.0);
            outcome.rows.push(Row { rank: Some(rank), ..row(meter, line, at, timing, (floor_ns, cold), error) });
        }
        Ok(())
    }
}

/// What the line's problem takes at the peaks.
fn floor_ns(line: &Line, caps: &Caps) -> f64 {
    let (compute, memory) = facts(&line.problem).floors(caps);
    (compute.max(memory).0 as f64).max(1.0)
}

/// A candidate that has a plan.
struct Ready<O: Op> {
    candidate: Candidate<O>,
    /// Its place among all.
    rank: u32,
    label: String,
    plan: Plan<O>,
    /// Its largest share of the allowed error, if it was compared.
    error: Option<f64>,
    /// Nanoseconds.
    samples: Vec<f64>,
}

/// Sets beyond this would take longer to fill than to use.
const MOST_BYTES: u64 = 4 << 30;

fn row(
    meter: &Meter,
    line: &Line,
    (kernel, variant): (&str, u8),
    timing: Timing,
    (floor_ns, cold): (f64, bool),
    max_error: Option<f64>,
) -> Row {
    let facts = facts(&line.problem);
    let Timing { median_ns, iqr_ns, samples } = timing;
    Row {
        problem: line.text.clone(),
        backend: meter.engine.backend().name().to_owned(),
        device: meter.engine.info().name.clone(),
        kernel: kernel.to_owned(),
        variant,
        median_ns: round(median_ns),
        iqr_ns: round(iqr_ns),
        samples,
        cold,
        tflops: round(facts.flops / median_ns / 1e3),
        gbs: round(facts.bytes as f64 / median_ns),
        roofline: round(floor_ns / median_ns),
        max_error: max_error.map(round),
        rank: None,
        peer: None,
        peer_ns: None,
        ratio: None,
    }
}
