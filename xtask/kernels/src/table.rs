//! What all builds cost, a line for each kernel and architecture.

use crate::compile::Done;
use std::fmt::Write;

/// Numbers of the builds of one kernel for one architecture: a range where they differ.
pub(crate) fn by_kernel(done: &[Done]) -> String {
    let mut rows = vec![HEADINGS.map(str::to_owned)];
    let mut left: Vec<&Done> = done.iter().collect();
    while let Some(first) = left.first() {
        let (kernel, arch) = (first.task.listed.kernel, first.task.arch);
        let (same, others): (Vec<&Done>, Vec<&Done>) =
            left.iter().partition(|done| (done.task.listed.kernel, done.task.arch) == (kernel, arch));
        left = others;
        let range = |pick: fn(&Done) -> u32| {
            let numbers = same.iter().map(|done| pick(done));
            match (numbers.clone().min().unwrap_or(0), numbers.max().unwrap_or(0)) {
                (low, high) if low == high => low.to_string(),
                (low, high) => format!("{low}–{high}"),
            }
        };
        let bytes: usize = same.iter().filter_map(|done| Some(done.compiled.as_ref()?.cubin.len())).sum();
        let slowest = same.iter().map(|done| done.time).max().unwrap_or_default();
        rows.push([
            kernel.to_owned(),
            arch.to_owned(),
            same.len().to_string(),
            range(|done| done.report.registers),
            range(|done| done.report.stack_bytes),
            range(|done| done.report.spill_store_bytes + done.report.spill_load_bytes),
            range(|done| done.report.shared_bytes),
            format!("{:.0}", bytes as f64 / 1e3),
            format!("{:.2}", slowest.as_secs_f64()),
        ]);
    }
    aligned(&rows)
}

const HEADINGS: [&str; 9] =
    ["kernel", "for", "builds", "registers", "local B", "spills B", "shared B", "cubins kB", "slowest s"];

/// Names to the left, numbers to the right.
fn aligned(rows: &[[String; 9]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for row in rows {
        for (column, cell) in row.iter().enumerate() {
            let width = width(column);
            let written = match column {
                0 => write!(text, "{cell:width$}"),
                1 => write!(text, "  {cell:width$}"),
                _ => write!(text, "  {cell:>width$}"),
            };
            written.expect("a string takes all");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let row = |cells: [&str; 9]| cells.map(str::to_owned);
        let text = aligned(&[
            row(["k", "for", "1", "2–3", "", "", "", "", ""]),
            row(["kk", "x", "10", "2", "", "", "", "", ""]),
        ]);
        assert_eq!(text, "k   for   1  2–3          \nkk  x    10    2          \n");
    }
}
