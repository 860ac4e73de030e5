//! A bar for each problem: how much of the roofline its fastest kernel reaches, with a tick for each of the others.

use super::{FAMILIES, Point, escape, hint};
use crate::units;
use std::fmt::Write;

/// One plot per family that the run has.
pub(super) fn draw(points: &[Point<'_>]) -> String {
    let mut out = String::from(
        "<section>\n<h2>Fraction of the roofline</h2>\n<p>The bar is the fastest kernel, a tick each other one. The end of the scale is the \
         device's peak; what worked from a cache may pass it.</p>\n",
    );
    for family in FAMILIES {
        let best: Vec<&Point<'_>> =
            points.iter().filter(|point| point.best && std::ptr::eq(point.family, family)).collect();
        if best.is_empty() {
            continue;
        }
        let _ = writeln!(out, "<h3>{}</h3>\n<div class=\"bars {}\">", family.name, family.class);
        for point in best {
            out += &bar(point, points);
        }
        out += "</div>\n";
    }
    out + "</section>\n"
}

fn bar(best: &Point<'_>, points: &[Point<'_>]) -> String {
    let row = best.row;
    let width = |roofline: f64| (roofline * 100.0).clamp(0.0, 100.0);
    let others: Vec<&Point<'_>> =
        points.iter().filter(|point| !point.best && point.row.problem == row.problem).collect();
    let ticks: String = others
        .iter()
        .map(|point| {
            format!("<i class=\"tick\" style=\"left:{:.2}%\" title=\"{}\"></i>", width(point.row.roofline), hint(point))
        })
        .collect();
    let second = others.iter().map(|point| point.row.median_ns).reduce(f64::min);
    let lead =
        second.map_or_else(String::new, |second| format!(", {}× the next", units::digits(second / row.median_ns)));
    let over = if row.roofline > 1.0 { " over" } else { "" };
    format!(
        "<div class=\"row\" title=\"{}\"><code>{}</code><div class=\"track\"><div class=\"bar\" data-over=\"{}\" style=\"width:{:.2}%\"></div>{ticks}</div>\
         <span class=\"num{over}\">{}</span><span class=\"num\">{}</span><span class=\"who\">{}{lead}</span></div>\n",
        hint(best),
        escape(&row.problem),
        over.trim(),
        width(row.roofline),
        units::percent(row.roofline),
        units::time(row.median_ns),
        escape(&row.label()),
    )
}
