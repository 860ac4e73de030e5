//! A bench against a record: what became slower, after a second look.

use crate::{
    compare::Changes,
    measure::Meter,
    output::{self, Output},
    record::{Header, Record, Row, newest},
    suites::Line,
    units,
};
use anyhow::Result;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// A run and its record.
pub(super) struct Comparison {
    path: PathBuf,
    changes: Changes,
    threshold: f64,
}

impl Comparison {
    /// Whether no row is slower than allowed.
    pub(super) fn is_good(&self) -> bool {
        self.changes.slower(self.threshold).next().is_none()
    }

    /// As a part of `--json`.
    pub(super) fn as_json(&self, rows: &[Row]) -> Value {
        let list = |changes: Vec<&crate::compare::Change>| {
            let change = |change: &&crate::compare::Change| {
                let row = &rows[change.row];
                json!({ "problem": row.problem, "kernel": row.label(), "old_ns": change.old_ns, "new_ns": row.median_ns, "ratio": change.ratio })
            };
            changes.iter().map(change).collect::<Vec<_>>()
        };
        json!({
            "record": self.path,
            "threshold": self.threshold,
            "compared": self.changes.both.len(),
            "slower": list(self.changes.slower(self.threshold).collect()),
            "faster": list(self.changes.faster(self.threshold).collect()),
            "added": self.changes.added,
            "gone": self.changes.gone,
        })
    }
}

/// A record to compare with.
pub(super) struct Old {
    path: PathBuf,
    record: Record,
}

/// The record that `path` names, or the newest of the class and suite below it; `None`, and a remark, if there is none.
///
/// # Errors
/// A record that cannot be read.
pub(super) fn find(path: &Path, class: &str, suite: &str, out: &Output) -> Result<Option<Old>> {
    let path = if path.is_dir() { newest(&path.join(class), suite)? } else { Some(path.to_owned()) };
    let Some(path) = path else {
        out.remark(&format!(
            "no record of {suite} for machines of class {class}: nothing to compare with; \
             `kp bench {suite} --record` or `cargo xtask bench {suite} --record` makes one"
        ));
        return Ok(None);
    };
    let record = Record::read(&path)?;
    if record.header.class != class {
        out.remark(&format!(
            "the record is of class {}, this machine is {class}: times of different machines",
            record.header.class
        ));
    }
    Ok(Some(Old { path, record }))
}

/// Compares `rows` with a record. Rows that look slower are measured once more, and the faster of both counts.
///
/// # Errors
/// Output that cannot be written.
pub(super) fn compare(
    Old { path, record: old }: Old,
    rows: &mut [Row],
    meter: &mut Meter,
    threshold: f64,
    out: &mut Output,
) -> Result<Comparison> {
    let suspects: Vec<usize> = Changes::of(&old, rows).slower(threshold).map(|change| change.row).collect();
    if !suspects.is_empty() {
        out.remark(&format!("measuring {} suspicious rows once more", suspects.len()));
    }
    let asked = meter.only(None);
    for at in suspects {
        let row = &mut rows[at];
        let line = Line::of(row.problem.parse()?);
        meter.only(Some(row.label()));
        let again = meter.measure(&line, &mut |_| {});
        if let Some(again) =
            again.rows.into_iter().find(|again| again.key() == row.key() && again.median_ns < row.median_ns)
        {
            let (peer, ns) = (row.peer.take(), row.peer_ns);
            *row = again;
            if let (Some(peer), Some(ns)) = (peer, ns) {
                row.set_peer(&peer, ns);
            }
        }
    }
    meter.only(asked);
    let comparison = Comparison { changes: Changes::of(&old, rows), path, threshold };
    if !out.json {
        out.print(&text(&comparison, &old.header, rows))?;
    }
    Ok(comparison)
}

fn text(comparison: &Comparison, old: &Header, rows: &[Row]) -> String {
    let Comparison { changes, threshold, path } = comparison;
    let mut table = output::table(&["problem", "kernel", "then", "now", "change"], &[2, 3, 4]);
    let mut add = |change: &crate::compare::Change, how: &str| {
        let row = &rows[change.row];
        let ratio = if change.ratio > 1.0 { change.ratio } else { 1.0 / change.ratio };
        table.add_row([
            row.problem.clone(),
            row.label(),
            units::time(change.old_ns),
            units::time(row.median_ns),
            format!("{}× {how}", units::digits(ratio)),
        ]);
    };
    changes.slower(*threshold).for_each(|change| add(change, "slower"));
    changes.faster(*threshold).for_each(|change| add(change, "faster"));
    let (slower, faster) = (changes.slower(*threshold).count(), changes.faster(*threshold).count());
    let mut text = format!("\nagainst {} ({}, kp {} {}):\n", path.display(), old.date, old.kp, old.commit);
    if slower + faster > 0 {
        text += &output::text(&table);
    }
    for gone in &changes.gone {
        text += &format!("gone: {gone}\n");
    }
    text + &format!(
        "{} rows compared: {slower} slower and {faster} faster by more than {threshold}, {} new, {} gone\n",
        changes.both.len(),
        changes.added,
        changes.gone.len()
    )
}
