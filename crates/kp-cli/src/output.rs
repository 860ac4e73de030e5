//! Where words go: results to stdout, remarks and progress to stderr.

use crate::Global;
use anyhow::{Result, ensure};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use console::Term;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::{
    io::{self, IsTerminal, Write},
    time::Duration,
};

/// How this run speaks.
pub(crate) struct Output {
    /// Whether results are JSON.
    pub(crate) json: bool,
    quiet: bool,
}

impl Output {
    /// As the command line says.
    pub(crate) fn new(global: &Global) -> Self {
        Self { json: global.json, quiet: global.quiet }
    }

    /// Prints a result.
    ///
    /// # Errors
    /// What the system said; a broken pipe among it.
    pub(crate) fn print(&mut self, text: &str) -> Result<()> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes())?;
        stdout.flush()?;
        Ok(())
    }

    /// Prints a result as JSON.
    ///
    /// # Errors
    /// As `print`.
    pub(crate) fn print_json(&mut self, value: &impl Serialize) -> Result<()> {
        self.print(&(serde_json::to_string_pretty(value)? + "\n"))
    }

    /// Says something that is no result, unless asked to be quiet.
    pub(crate) fn remark(&self, text: &str) {
        if !self.quiet {
            // A reader that went away must not end the work.
            drop(writeln!(io::stderr(), "{text}"));
        }
    }

    /// Something to look at while `len` steps pass; invisible unless stderr is a terminal.
    pub(crate) fn progress(&self, len: u64) -> ProgressBar {
        let seen = io::stderr().is_terminal() && !self.quiet && !self.json;
        let target = if seen { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let style =
            ProgressStyle::with_template("{bar:24} {pos}/{len} {elapsed} {wide_msg}").expect("the template is valid");
        let bar = ProgressBar::with_draw_target(Some(len), target).with_style(style);
        bar.enable_steady_tick(Duration::from_millis(250));
        bar
    }
}

/// Prints `value` as a line of JSON, and waits for a line on standard input: another program has a turn.
///
/// # Errors
/// What the system said; that nobody is there to answer.
pub(crate) fn hand_over(value: &impl Serialize) -> Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{}", serde_json::to_string(value)?)?;
    stdout.flush()?;
    ensure!(io::stdin().read_line(&mut String::new())? > 0, "--yield: standard input ended before the last turn");
    Ok(())
}

/// A table without lines, its numbers to the right.
pub(crate) fn table(columns: &[&str], numbers: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled).set_header(columns);
    if let Some((_, width)) = Term::stdout().size_checked() {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    }
    for &column in numbers {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// A table's text without the blanks at the ends of its lines.
pub(crate) fn text(table: &Table) -> String {
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// `60s`, `500ms`, `2m`, `1h` or a number of seconds.
///
/// # Errors
/// What was expected.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err("expected a time such as 500ms, 60s, 2m or 1h".into()),
    };
    let value: f64 = digits.parse().map_err(|_| "expected a time such as 500ms, 60s, 2m or 1h".to_owned())?;
    if !(value > 0.0 && value * unit <= 1e7) {
        return Err("expected a time above 0 and below 100 days".into());
    }
    Ok(Duration::from_secs_f64(value * unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_their_unit() {
        for (text, ms) in [("500ms", 500), ("60s", 60_000), ("0.5", 500), ("2m", 120_000), ("1h", 3_600_000)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "s", "-1s", "0", "1e99s", "60 s", "1d", "nan", "inf"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
