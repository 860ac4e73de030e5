//! `kp tune`: measure candidates and remember the fastest.

use crate::{
    Global,
    output::{self, Output},
    suites, units,
};
use anyhow::{Result, bail};
use kp_core::tune::{Outcome, Progress, Tune, Tuned};
use kp_hal::AnyProblem;
use serde_json::json;
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Suites, .txt files or problems
    #[arg(required = true, value_name = "SUITE | PROBLEM")]
    targets: Vec<String>,
    /// Time for all of it
    #[arg(long, default_value = "60s", value_parser = output::duration, value_name = "TIME")]
    budget: Duration,
    /// Measure again what is known already
    #[arg(long)]
    again: bool,
}

/// Tunes, and prints the winner of each problem.
///
/// # Errors
/// A target that is none, a device that is not there, wisdom that cannot be kept; no time of any kernel, measured now or before.
pub(crate) fn run(global: &Global, args: &Args, out: &mut Output) -> Result<bool> {
    let mut problems: Vec<AnyProblem> = Vec::new();
    for suite in suites::resolve(&args.targets)? {
        for line in suite.sections.into_iter().flat_map(|section| section.lines) {
            if !problems.contains(&line.problem) {
                problems.push(line.problem);
            }
        }
    }
    let engine = global.open(out)?;
    engine.check_wisdom_writable()?;
    // Saved with the times: explanations compare them with what the device reaches.
    engine.measure_peaks()?;
    let bar = out.progress(problems.len() as u64);
    let mut watch = |progress: Progress<'_>| {
        bar.set_position(progress.problems.0 as u64);
        bar.set_message(format!("{} on {}", progress.label, progress.problem));
    };
    let tune = Tune { budget: args.budget, again: args.again, progress: Some(&mut watch), ..Tune::default() };
    let tuned = engine.tune(&problems, tune);
    bar.finish_and_clear();
    let tuned = tuned?;
    let place = engine.wisdom_path().map_or_else(|| "memory only".to_owned(), |path| path.display().to_string());
    if out.json {
        let rows: Vec<_> = tuned
            .measurements
            .iter()
            .map(|row| {
                let (how, ns, why) = match &row.outcome {
                    Outcome::Measured(time) => ("measured", Some(time.0), None),
                    Outcome::Known(time) => ("known", Some(time.0), None),
                    Outcome::Failed(why) => ("failed", None, Some(why)),
                    Outcome::Skipped(why) => ("skipped", None, Some(why)),
                };
                let label = row.label.map(|label| label.to_string());
                json!({ "problem": row.problem.to_string(), "kernel": label, "outcome": how, "time_ns": ns, "why": why })
            })
            .collect();
        out.print_json(&json!({ "wisdom": place, "took_s": tuned.took.as_secs_f64(), "measurements": rows }))?;
    } else {
        out.print(&winners(&problems, &tuned))?;
    }
    let count = |is: fn(&Outcome) -> bool| tuned.measurements.iter().filter(|row| is(&row.outcome)).count();
    let measured = count(|outcome| matches!(outcome, Outcome::Measured(_)));
    if measured == 0 && count(|outcome| matches!(outcome, Outcome::Known(_))) == 0 {
        bail!("nothing was measured");
    }
    out.remark(&format!("{measured} times measured in {:.1} s, kept in {place}", tuned.took.as_secs_f64()));
    Ok(true)
}

/// The fastest kernel of each problem, or why there is none.
fn winners(problems: &[AnyProblem], tuned: &Tuned) -> String {
    let mut table = output::table(&["problem", "fastest", "time", "of"], &[2, 3]);
    for problem in problems {
        let of_it: Vec<_> = tuned.measurements.iter().filter(|row| row.problem == *problem).collect();
        let timed = of_it.iter().filter_map(|row| match row.outcome {
            Outcome::Measured(time) | Outcome::Known(time) => Some((time, row.label?)),
            Outcome::Failed(_) | Outcome::Skipped(_) => None,
        });
        match timed.clone().min_by_key(|(time, _)| *time) {
            Some((time, label)) => {
                let tried = match timed.count() {
                    1 => "1 kernel".to_owned(),
                    count => format!("{count} kernels"),
                };
                table.add_row([problem.to_string(), label.to_string(), units::time(time.0 as f64), tried]);
            }
            None => {
                let why = of_it.first().map_or_else(|| "no time left".to_owned(), |row| row.outcome.to_string());
                table.add_row([problem.to_string(), why]);
            }
        }
    }
    output::text(&table)
}
