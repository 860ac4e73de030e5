//! `kp run`: the best kernel on random operands.

use crate::{
    Global,
    operands::{Host, Set, check_room, reference_cost},
    output::Output,
    suites::{self, Facts, facts},
    timing::{self, Clock, Method, Timing},
    units,
};
use anyhow::Result;
use kp_core::Engine;
use kp_hal::{
    AnyProblem,
    op::{Op, OpVisitor, Problem},
};
use kp_testkit::{compare::Comparison, judge::REFERENCE_LIMIT};
use serde_json::json;
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The problem, quoted or not: `gemm 1x64x64x64 f32:f32:f32`
    #[arg(required = true)]
    problem: Vec<String>,
}

struct Ran {
    how: String,
    timing: Timing,
    cold: bool,
    sets: usize,
    /// `None` if the reference was too expensive.
    comparison: Option<Comparison>,
    cost: f64,
}

struct Go<'a> {
    engine: &'a Engine,
    problem: &'a AnyProblem,
}

impl OpVisitor for Go<'_> {
    type Out = Result<Ran>;

    fn visit<O: Op>(self, problem: &Problem<O::Spec>) -> Result<Ran> {
        let engine = self.engine;
        let plan = engine.plan(problem)?;
        check_room::<O>(engine, problem)?;
        let mut queue = engine.queue()?;
        let host = Host::<O>::new(problem, self.problem, REFERENCE_LIMIT);
        let free = engine.device().memory()?.free;
        let (count, cold) = Method::Rotate.sets(host.bytes(), engine.caps(), (free / 4).min(MOST_BYTES));
        let mut sets = vec![Set::upload(engine, &host.operands, &mut *queue)?];
        let args = sets[0].args::<O>(&host.operands)?;
        plan.launch(&mut *queue, &args)?;
        drop(args);
        let comparison = host.compare(&sets[0], &mut *queue)?;
        while sets.len() < count {
            sets.push(Set::upload(engine, &host.operands, &mut *queue)?);
        }
        let clock =
            Clock { engine, method: Method::Rotate, budget: Duration::from_secs(1), turns: timing::TURNS, warm: None };
        let mut samples = Vec::new();
        for _ in 0..clock.turns {
            samples.extend(clock.time(&plan, &host.operands, &mut sets, &mut *queue)?);
        }
        Ok(Ran {
            how: engine.how(&plan),
            timing: timing::summary(samples),
            cold,
            sets: sets.len(),
            comparison,
            cost: reference_cost::<O>(problem),
        })
    }
}

/// Sets of operands beyond this take longer to fill than to use.
const MOST_BYTES: u64 = 1 << 30;

/// Runs, and prints what came of it; false if the result is wrong.
///
/// # Errors
/// A problem that makes no sense or that no kernel runs, a device that is not there or fails.
pub(crate) fn run(global: &Global, args: &Args, out: &mut Output) -> Result<bool> {
    let problem = suites::problem(&args.problem)?;
    let engine = global.open(out)?;
    let ran = problem.visit(Go { engine: &engine, problem: &problem })?;
    let facts = facts(&problem);
    let (compute, memory) = facts.floors(engine.caps());
    let floor = compute.max(memory);
    let median = ran.timing.median_ns;
    let wrong = ran.comparison.as_ref().is_some_and(|found| found.wrong > 0);
    if out.json {
        out.print_json(&json!({
            "problem": problem.to_string(),
            "device": engine.info().name,
            "kernel": ran.how,
            "median_ns": median,
            "iqr_ns": ran.timing.iqr_ns,
            "samples": ran.timing.samples,
            "cold": ran.cold,
            "tflops": facts.flops / median / 1e3,
            "gbs": facts.bytes as f64 / median,
            "floor_ns": floor.0,
            "max_error": ran.comparison.as_ref().map(|found| found.max_share),
            "max_abs_error": ran.comparison.as_ref().map(|found| found.max_error),
            "wrong": ran.comparison.as_ref().map(|found| found.wrong),
        }))?;
        return Ok(!wrong);
    }
    let text = format!(
        "{problem}\n  kernel    {}\n  device    {}\n  time      {} (median of {}, the middle half within {})\n  rate      {}\n  \
         roofline  {} of peak speed: at stated peaks it takes {}, {}\n  operands  {}\n  error     {}\n",
        ran.how,
        engine.info().name,
        units::time(median),
        ran.timing.samples,
        units::time(ran.timing.iqr_ns),
        rates(&facts, median),
        units::percent(floor.0 as f64 / median),
        floor,
        if compute > memory { "bound by arithmetic" } else { "bound by memory" },
        places(&ran),
        error(&ran),
    );
    out.print(&text)?;
    Ok(!wrong)
}

fn rates(facts: &Facts, median_ns: f64) -> String {
    let bandwidth = units::bandwidth(facts.bytes as f64 / median_ns * 1e9);
    if facts.flops > 0.0 { format!("{}, {bandwidth}", units::flops(facts.flops / median_ns * 1e9)) } else { bandwidth }
}

fn places(ran: &Ran) -> String {
    match (ran.cold, ran.sets) {
        (true, sets) => format!("cold: {sets} sets in turn, more than the last-level cache holds"),
        (false, 1) => "warm: one set".to_owned(),
        (false, sets) => format!("warm: {sets} sets in turn, which caches may hold"),
    }
}

fn error(ran: &Ran) -> String {
    match &ran.comparison {
        None if ran.cost.is_finite() => {
            format!(
                "not compared: the f64 reference would take {:.1e} multiply-adds, the limit is {REFERENCE_LIMIT:.1e}",
                ran.cost
            )
        }
        None => "not compared: there is no f64 reference of this op".to_owned(),
        Some(found) => match &found.first {
            None => format!(
                "{:.1e} at most, {} of the bound, {} elements",
                found.max_error,
                units::digits(found.max_share),
                found.checked
            ),
            Some(first) => format!("WRONG: {} of {} elements; {first}", found.wrong, found.checked),
        },
    }
}
