//! Every row of the run, to be sorted by any column.

use super::{Point, escape};
use crate::units;
use std::fmt::Write;

const COLUMNS: [(&str, &str); 9] = [
    ("Problem", ""),
    ("Kernel", ""),
    ("Median", "n"),
    ("± half width", "n"),
    ("FLOP/s", "n"),
    ("B/s", "n"),
    ("Roofline", "n"),
    ("Error / bound", "n"),
    ("Rival", "n"),
];

/// The table, in the order of the suite.
pub(super) fn draw(points: &[Point<'_>]) -> String {
    let heads: String = COLUMNS
        .iter()
        .map(|(name, class)| format!("<th class=\"{class}\" scope=\"col\" tabindex=\"0\">{name}</th>"))
        .collect();
    let mut out = format!(
        "<section>\n<h2>All rows</h2>\n<p>The fastest kernel of each problem is bold. Choose a heading to sort by it.</p>\n\
         <div class=\"scroll\">\n<table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n"
    );
    for (at, point) in points.iter().enumerate() {
        let row = point.row;
        let number = |value: f64, text: String| format!("<td class=\"n\" data-v=\"{value}\">{text}</td>");
        let none = || "<td class=\"n\" data-v=\"-1\">–</td>".to_owned();
        let rival = match (&row.peer, row.ratio) {
            (Some(peer), Some(ratio)) => number(ratio, format!("{}× {}", units::digits(ratio), escape(peer))),
            _ => none(),
        };
        let warm = if row.cold { "" } else { " <small>warm</small>" };
        let _ = writeln!(
            out,
            "<tr data-row=\"{at}\" class=\"{}\"><td><code>{}</code></td><td>{}</td>{}{}{}{}{}{}{rival}</tr>",
            if point.best { "best" } else { "" },
            escape(&row.problem),
            escape(&row.label()),
            number(row.median_ns, units::time(row.median_ns)),
            number(row.iqr_ns, units::time(row.iqr_ns / 2.0)),
            if point.facts.flops > 0.0 { number(row.tflops, units::flops(row.tflops * 1e12)) } else { none() },
            number(row.gbs, units::bandwidth(row.gbs * 1e9)),
            number(row.roofline, format!("{}{warm}", units::percent(row.roofline))),
            row.max_error.map_or_else(none, |error| number(error, units::digits(error))),
        );
    }
    out + "</tbody>\n</table>\n</div>\n</section>\n"
}
