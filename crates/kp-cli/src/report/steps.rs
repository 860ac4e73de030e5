//! Steps of models: the lines of a section added up, each as often as the model runs it.

use super::{FAMILIES, Run, escape, family};
use crate::{record::Row, suites::Suite, units};
use std::{collections::HashMap, fmt::Write};

/// The time of one section of a suite with the fastest kernel of each line.
#[derive(Debug)]
pub(crate) struct Step {
    /// The section's title.
    pub(crate) title: String,
    /// Time of all lines, each as often as it runs.
    pub(crate) total_ns: f64,
    /// The same at the device's peaks.
    pub(crate) floor_ns: f64,
    /// Time by family, as an index into the families.
    shares: Vec<f64>,
    /// Lines without a time.
    pub(crate) missing: usize,
}

/// The steps of a suite that says how often its lines run.
pub(crate) fn of(suite: &Suite, rows: &[Row]) -> Vec<Step> {
    let mut best: HashMap<&str, &Row> = HashMap::new();
    for row in rows {
        let slot = best.entry(&row.problem).or_insert(row);
        if row.median_ns < slot.median_ns {
            *slot = row;
        }
    }
    let counted = suite.sections.iter().filter(|section| section.lines.iter().any(|line| line.count > 1));
    counted
        .map(|section| {
            let mut step = Step {
                title: section.title.clone(),
                total_ns: 0.0,
                floor_ns: 0.0,
                shares: vec![0.0; FAMILIES.len()],
                missing: 0,
            };
            for line in &section.lines {
                let Some(row) = best.get(&*line.text) else {
                    step.missing += 1;
                    continue;
                };
                let ns = row.median_ns * f64::from(line.count);
                step.total_ns += ns;
                step.floor_ns += ns * row.roofline;
                let at = FAMILIES.iter().position(|one| std::ptr::eq(one, family(&row.problem)));
                step.shares[at.expect("a family is one of the families")] += ns;
            }
            step
        })
        .collect()
}

/// A bar per step, divided by family.
pub(super) fn draw(runs: &[Run]) -> String {
    let mut body = String::new();
    for run in runs {
        let Some(suite) = &run.suite else { continue };
        let steps = of(suite, &run.record.rows);
        let longest = steps.iter().map(|step| step.total_ns).fold(0.0, f64::max);
        if longest == 0.0 {
            continue;
        }
        let _ = writeln!(body, "<h3>{}</h3>\n<div class=\"steps\">", escape(&suite.name));
        for step in &steps {
            body += &bar(step);
        }
        body += "</div>\n";
    }
    if body.is_empty() {
        return body;
    }
    let legend: String = FAMILIES
        .iter()
        .map(|family| format!("<span class=\"{}\"><i></i>{}</span>", family.class, family.name))
        .collect();
    format!(
        "<section>\n<h2>One step of the model</h2>\n<p>Every kernel of a step, as often as the model runs it, added up: what a program would \
         wait for if nothing ran side by side.</p>\n<div class=\"legend\">{legend}</div>\n{body}</section>\n"
    )
}

fn bar(step: &Step) -> String {
    let parts: String = FAMILIES
        .iter()
        .zip(&step.shares)
        .filter(|(_, share)| **share > 0.0)
        .map(|(family, share)| {
            let part = share / step.total_ns;
            let label = if part > 0.08 { units::percent(part) } else { String::new() };
            format!(
                "<div class=\"part {}\" style=\"width:{:.2}%\" title=\"{}: {} ({})\">{label}</div>",
                family.class,
                part * 100.0,
                family.name,
                units::time(*share),
                units::percent(part)
            )
        })
        .collect();
    let missing = match step.missing {
        0 => String::new(),
        n => format!(", {n} lines without a time"),
    };
    format!(
        "<div class=\"row\"><span>{}</span><div class=\"stack\">{parts}</div><span class=\"num\">{}</span>\
         <span class=\"who\">{} of the roofline{missing}</span></div>\n",
        escape(&step.title),
        units::time(step.total_ns),
        units::percent(step.floor_ns / step.total_ns),
    )
}
