//! What a bench says on a terminal and as JSON.

use super::against::Comparison;
use crate::{
    models, output,
    record::Row,
    report::{self, Run},
    suites::{Line, facts},
    units,
};
use comfy_table::Table;
use kp_hal::Caps;
use serde_json::{Value, json};
use std::fmt::Write;

/// A problem, or one of its kernels, without a time.
pub(super) struct Skipped {
    pub(super) problem: String,
    pub(super) kernel: Option<String>,
    pub(super) why: String,
}

/// What came of a suite besides its rows.
#[derive(Default)]
pub(super) struct Done {
    pub(super) skipped: Vec<Skipped>,
    pub(super) wrong: Vec<Skipped>,
    pub(super) comparison: Option<Comparison>,
}

/// The table of one section.
pub(super) struct Section<'a> {
    section: &'a models::Section,
    table: Table,
    rows: Vec<Row>,
    notes: String,
}

impl<'a> Section<'a> {
    pub(super) fn new(section: &'a models::Section) -> Self {
        let columns = ["problem", "kernel", "time", "rate", "roofline", "error", "rival"];
        Self { section, table: output::table(&columns, &[2, 3, 4, 5, 6]), rows: Vec::new(), notes: String::new() }
    }

    /// Adds a line's rows, fastest first, or why there are none.
    pub(super) fn add(&mut self, line: &Line, rows: &[Row], skipped: &[Skipped], wrong: &[Skipped]) {
        for (at, row) in rows.iter().enumerate() {
            let problem = if at == 0 { line.text.clone() } else { String::new() };
            self.table.add_row([
                problem,
                row.label(),
                units::time(row.median_ns),
                rate(line, row),
                units::percent(row.roofline) + if row.cold { "" } else { "*" },
                row.max_error.map_or_else(String::new, units::digits),
                row.ratio.map_or_else(String::new, |ratio| format!("{}×", units::digits(ratio))),
            ]);
        }
        let mut note = |mark: &str, one: &Skipped| {
            let kernel = one.kernel.as_ref().map_or_else(String::new, |kernel| format!(" {kernel}:"));
            let _ = writeln!(self.notes, "{mark} {}:{kernel} {}", one.problem, one.why);
        };
        skipped.iter().filter(|one| one.problem == line.text).for_each(|one| note("left out:", one));
        wrong.iter().filter(|one| one.problem == line.text).for_each(|one| note("WRONG:", one));
        self.rows.extend(rows.iter().cloned());
    }

    /// Title, table, what was left out, and the step's sum.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        if !self.section.title.is_empty() {
            let _ = writeln!(text, "\n{}", self.section.title);
        }
        if !self.rows.is_empty() {
            text += &output::text(&self.table);
        }
        text += &self.notes;
        let suite = crate::suites::Suite { name: String::new(), sections: vec![self.section.clone()] };
        for step in report::steps::of(&suite, &self.rows) {
            let missing = if step.missing == 0 {
                String::new()
            } else {
                format!(", without {} lines that have no time", step.missing)
            };
            let _ = writeln!(
                text,
                "one step, every line as often as the model runs it: {}, {} of the roofline{missing}",
                units::time(step.total_ns),
                units::percent(step.floor_ns / step.total_ns)
            );
        }
        if self.rows.iter().any(|row| !row.cold) {
            text += "* warm: the operands fit a cache, which may be faster than the roofline's memory\n";
        }
        text
    }
}

/// Bytes or operations per second, whichever bounds the work on a machine of ordinary balance.
fn rate(line: &Line, row: &Row) -> String {
    let facts = facts(&line.problem);
    let ordinary = Caps::new(kp_hal::DeviceKind::Cpu, "");
    let (compute, memory) = facts.floors(&ordinary);
    if compute > memory { units::flops(row.tflops * 1e12) } else { units::bandwidth(row.gbs * 1e9) }
}

/// All suites as one JSON value.
pub(super) fn as_json(runs: &[Run], done: &[Done]) -> Value {
    let reason = |one: &Skipped| json!({ "problem": one.problem, "kernel": one.kernel, "why": one.why });
    let suites = runs.iter().zip(done).map(|(run, done)| {
        let record = &run.record;
        let steps: Vec<_> = run.suite.iter().flat_map(|suite| report::steps::of(suite, &record.rows)).collect();
        json!({
            "header": record.header,
            "rows": record.rows,
            "skipped": done.skipped.iter().map(reason).collect::<Vec<_>>(),
            "wrong": done.wrong.iter().map(reason).collect::<Vec<_>>(),
            "steps": steps.iter().map(|step| json!({
                "section": step.title, "total_ns": step.total_ns, "floor_ns": step.floor_ns, "missing": step.missing,
            })).collect::<Vec<_>>(),
            "against": done.comparison.as_ref().map(|comparison| comparison.as_json(&record.rows)),
        })
    });
    json!({ "suites": suites.collect::<Vec<_>>() })
}
