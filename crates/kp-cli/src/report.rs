//! A report: one HTML page that needs nothing but itself.

mod bars;
mod roofline;
pub(crate) mod steps;
mod table;

use crate::{
    record::{Header, Record, Row},
    suites::{self, Facts, Suite},
    units,
};
use anyhow::{Context, Result};
use std::fmt::Write;

/// A record, and the suite it was measured from, which knows how often a model runs each line.
pub(crate) struct Run {
    /// What was measured.
    pub(crate) record: Record,
    /// Sections and counts.
    pub(crate) suite: Option<Suite>,
}

/// A row with what its problem's text says.
#[derive(Clone, Copy)]
struct Point<'a> {
    row: &'a Row,
    facts: Facts,
    family: &'static Family,
    /// Whether no other kernel of the run is faster on the problem.
    best: bool,
}

impl Point<'_> {
    /// Whether the problem does arithmetic, so that a roofline has a place for it.
    fn computes(&self) -> bool {
        self.facts.flops > 0.0 && self.facts.bytes > 0
    }
}

/// Ops that are drawn alike.
struct Family {
    name: &'static str,
    ops: &'static [&'static str],
    /// Its colour in the style sheet.
    class: &'static str,
}

/// Every family, in the order of the page; the last takes all ops that no other names.
static FAMILIES: &[Family] = &[
    Family { name: "Matrix products", ops: &["gemm"], class: "f0" },
    Family { name: "Grouped products", ops: &["grouped_gemm"], class: "f1" },
    Family { name: "Attention", ops: &["attention", "attention_backward"], class: "f2" },
    Family { name: "Quantization", ops: &["quantize", "dequantize"], class: "f3" },
    Family {
        name: "Row by row",
        ops: &["norm", "norm_backward", "softmax", "activation", "rope", "reduce"],
        class: "f4",
    },
    Family { name: "Moving data", ops: &[], class: "f5" },
];

fn family(problem: &str) -> &'static Family {
    let op = problem.split(' ').next().unwrap_or_default();
    let last = FAMILIES.last().expect("there are families");
    FAMILIES.iter().find(|family| family.ops.contains(&op)).unwrap_or(last)
}

/// The page of some runs on one device, of which `left` problems are still to be measured.
///
/// # Errors
/// A row whose problem this version cannot read, or no run at all.
pub(crate) fn page(runs: &[Run], left: usize) -> Result<String> {
    let (header, points) = gather(runs)?;
    let suites: Vec<&str> = runs.iter().map(|run| &*run.record.header.suite).collect();
    let title = format!("kp · {} · {}", header.hardware, suites.join(", "));
    let mut out = String::new();
    let style = concat!(include_str!("report/plot.css"), include_str!("report/style.css"));
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n",
        escape(&title)
    )?;
    out.push_str(&head(&header, runs, &points, left));
    out.push_str(&steps::draw(runs));
    out.push_str(&roofline::draw(&header, &points));
    out.push_str(&bars::draw(&points));
    out.push_str(&table::draw(&points));
    write!(
        out,
        "<footer>Times are medians. {}</footer>\n</main>\n<script>\n{}</script>\n</body>\n</html>\n",
        escape(&header.method),
        include_str!("report/sort.js")
    )?;
    Ok(out)
}

/// The roofline of some runs on one device as an SVG image.
///
/// # Errors
/// As for [`page`]; no problem that does arithmetic.
pub(crate) fn picture(runs: &[Run]) -> Result<String> {
    let (header, points) = gather(runs)?;
    roofline::picture(&header, &points)
}

/// The header of the first run with the highest peaks of all, and every row of all.
fn gather(runs: &[Run]) -> Result<(Header, Vec<Point<'_>>)> {
    let mut header = runs.first().context("a report needs a run")?.record.header.clone();
    let mut points = Vec::new();
    for run in runs {
        header.bytes_per_s = header.bytes_per_s.max(run.record.header.bytes_per_s);
        for (name, &rate) in &run.record.header.flops_per_s {
            let peak = header.flops_per_s.entry(name.clone()).or_insert(rate);
            *peak = peak.max(rate);
        }
        for row in &run.record.rows {
            let problem = row.problem.parse().with_context(|| format!("`{}`", row.problem))?;
            points.push(Point { row, facts: suites::facts(&problem), family: family(&row.problem), best: false });
        }
    }
    mark_best(&mut points);
    Ok((header, points))
}

fn mark_best(points: &mut [Point<'_>]) {
    for at in 0..points.len() {
        let row = points[at].row;
        points[at].best = points
            .iter()
            .filter(|other| other.row.problem == row.problem)
            .all(|other| other.row.median_ns > row.median_ns || std::ptr::eq(other.row, row));
    }
}

/// The machine, the run, and what came out in a few numbers.
fn head(head: &Header, runs: &[Run], points: &[Point<'_>], left: usize) -> String {
    let suites: Vec<&str> = runs.iter().map(|run| &*run.record.header.suite).collect();
    let mut facts = vec![
        ("Units", head.units.to_string()),
        ("Memory", units::binary(head.memory_bytes)),
        ("Bandwidth", units::bandwidth(head.bytes_per_s)),
        ("Driver", head.driver.clone()),
        ("kp", format!("{} ({})", head.kp, head.commit)),
        ("Date", head.date.replace('T', " ").replace('Z', " UTC")),
        ("Class", head.class.clone()),
    ];
    if head.cache_bytes > 0 {
        facts.insert(2, ("Last cache", units::binary(head.cache_bytes)));
    }
    let peaks: Vec<String> = head.flops_per_s.iter().map(|(t, &rate)| format!("{t} {}", units::flops(rate))).collect();
    facts.insert(facts.len() - 4, ("Peaks", format!("{} ({})", peaks.join(", "), head.peaks)));
    let facts: String = facts
        .iter()
        .map(|(name, value)| format!("<div><dt>{name}</dt><dd>{}</dd></div>", escape(value)))
        .collect::<Vec<_>>()
        .join("\n");

    let best: Vec<&Point<'_>> = points.iter().filter(|point| point.best).collect();
    let mut fractions: Vec<f64> = best.iter().map(|point| point.row.roofline).collect();
    fractions.sort_by(f64::total_cmp);
    let worst_error = points.iter().filter_map(|point| point.row.max_error).reduce(f64::max);
    let mut tiles = Vec::new();
    if left > 0 {
        tiles.push((left.to_string(), "problems not measured yet: the run goes on, or was interrupted".to_owned()));
    }
    tiles.extend([
        (best.len().to_string(), "problems".to_owned()),
        (points.len().to_string(), "kernels and variants timed".to_owned()),
        (
            units::percent(fractions.get(fractions.len() / 2).copied().unwrap_or(f64::NAN)),
            "of the roofline, median of the winners".to_owned(),
        ),
    ]);
    let checked = points.iter().filter(|point| point.row.max_error.is_some()).count();
    tiles.push(match worst_error {
        Some(error) => (units::digits(error), format!("largest error over its bound, {checked} rows checked")),
        None => ("–".to_owned(), "no row was small enough for the reference".to_owned()),
    });
    let ratios: Vec<f64> = best.iter().filter_map(|point| point.row.ratio).collect();
    if !ratios.is_empty() {
        let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
        tiles.push((
            format!("{}×", units::digits(mean)),
            format!("speed against rivals, geometric mean of {}", ratios.len()),
        ));
    }
    let tiles: String = tiles
        .iter()
        .map(|(value, what)| format!("<div class=\"tile\"><b>{value}</b><span>{what}</span></div>"))
        .collect::<Vec<_>>()
        .join("\n");
    format!(
        "<header>\n<p class=\"suites\">{}</p>\n<h1>{}</h1>\n<dl>\n{facts}\n</dl>\n<div class=\"tiles\">\n{tiles}\n</div>\n</header>\n",
        escape(&suites.join(" · ")),
        escape(&head.hardware)
    )
}

/// What a pointer that rests on a mark is told.
fn hint(point: &Point<'_>) -> String {
    let row = point.row;
    let rate = if point.facts.flops > 0.0 { units::flops(row.tflops * 1e12) } else { "no arithmetic".to_owned() };
    escape(&format!(
        "{}\n{}: {} ± {}\n{rate}, {}, {} of the roofline{}",
        row.problem,
        row.label(),
        units::time(row.median_ns),
        units::time(row.iqr_ns / 2.0),
        units::bandwidth(row.gbs * 1e9),
        units::percent(row.roofline),
        if row.cold { "" } else { "\nwarm: its operands fit the cache" }
    ))
}

/// Text as HTML.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            _ => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record;

    fn run() -> Run {
        Run { record: record::tests::sample(), suite: None }
    }

    #[test]
    fn a_page_needs_nothing_but_itself() {
        let html = page(&[run()], 0).expect("it can be drawn");
        for word in ["http://", "https://", " src=", "@import", "url(", "<link"] {
            assert!(!html.contains(word), "{word} would fetch something");
        }
        assert!(html.contains("Test &lt;CPU&gt; &amp; co") && !html.contains("Test <CPU>"));
        assert!(html.contains("prefers-color-scheme: dark"));
    }

    #[test]
    fn every_row_is_in_the_table_and_on_the_roofline() {
        let run = run();
        let html = page(std::slice::from_ref(&run), 0).expect("it can be drawn");
        assert_eq!(html.matches("<circle").count(), run.record.rows.len());
        assert_eq!(html.matches("<tr data-row").count(), run.record.rows.len());
        assert_eq!(html.matches("class=\"bar\"").count(), 1, "one problem, one bar");
    }

    #[test]
    fn a_picture_shows_the_fastest_and_the_rival() {
        let mut run = run();
        for row in &mut run.record.rows {
            (row.peer, row.peer_ns, row.ratio) = (Some("rival".into()), Some(1e6), Some(1e6 / row.median_ns));
        }
        let svg = picture(&[run]).expect("it can be drawn");
        assert!(svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>\n"));
        // One kernel and one rival, and the legend's mark for each.
        assert_eq!((svg.matches(" best\"").count(), svg.matches("peer\"").count()), (2, 2));
        assert!(!svg.contains(" other\""));
    }

    #[test]
    fn peaks_of_several_runs_are_drawn_together() {
        let mut other = run();
        other.record.header.flops_per_s = [("bf16".to_owned(), 4e11)].into();
        let (header, points) = gather(&[run(), other]).map(|(header, points)| (header, points.len())).expect("rows");
        assert_eq!((header.flops_per_s.len(), points), (2, 4));
    }

    #[test]
    fn tags_are_closed() {
        let html = page(&[run()], 0).expect("it can be drawn");
        for tag in ["main", "section", "table", "tr", "td", "svg", "g", "div", "dl", "details", "script", "style"] {
            let open = html.matches(&format!("<{tag} ")).count() + html.matches(&format!("<{tag}>")).count();
            assert_eq!(open, html.matches(&format!("</{tag}>")).count(), "{tag}");
        }
    }

    #[test]
    fn a_page_says_what_was_not_measured_yet() {
        let said =
            |left| page(&[run()], left).expect("it can be drawn").contains("<b>7</b><span>problems not measured");
        assert!(said(7) && !said(0));
    }

    #[test]
    fn rows_that_cannot_be_read_are_named() {
        let mut run = run();
        run.record.rows[0].problem = "gemm <b>".into();
        let error = format!("{:#}", page(&[run], 0).expect_err("no problem"));
        assert!(error.starts_with("`gemm <b>`: "), "{error}");
    }
}
