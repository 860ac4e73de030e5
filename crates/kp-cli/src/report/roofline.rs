//! The roofline: what was reached over how much arithmetic a problem does per byte, both logarithmic.

use super::{FAMILIES, Point, escape, hint};
use crate::{record::Header, units};
use anyhow::{Context, Result};
use std::fmt::Write;

const LABEL: &str = "Roofline: rate reached over operations per byte";

const WIDTH: f64 = 1100.0;
const HEIGHT: f64 = 470.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 48.0;

/// From a range of a quantity, logarithmically, to a range of pixels.
struct Axis {
    from: f64,
    to: f64,
    start: f64,
    end: f64,
}

impl Axis {
    /// An axis over all of `values` and a little more.
    fn over(values: impl Iterator<Item = f64>, start: f64, end: f64) -> Self {
        let (low, high) =
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v.log10()), high.max(v.log10())));
        Self { from: low - 0.15, to: high + 0.15, start, end }
    }

    fn at(&self, value: f64) -> f64 {
        self.start + (value.log10() - self.from) / (self.to - self.from) * (self.end - self.start)
    }

    /// The powers of ten inside.
    fn decades(&self) -> impl Iterator<Item = i32> {
        self.from.ceil() as i32..=self.to.floor() as i32
    }
}

/// The section of a page: roofs, points and legend, or a word on why there are none.
pub(super) fn draw(header: &Header, points: &[Point<'_>]) -> String {
    let Some(svg) = plot(header, points, |point| point.family.class) else {
        return "<section>\n<h2>Roofline</h2>\n<p>No problem of this run does arithmetic.</p>\n</section>\n".to_owned();
    };
    let still = points.iter().filter(|point| !point.computes()).count();
    let without =
        if still == 0 { String::new() } else { format!(" {still} rows that only move data are not shown here.") };
    format!(
        "<section>\n<h2>Roofline</h2>\n<p>Each mark is a kernel on a problem: filled, the fastest there; hollow, the others; a ring \
         below or above the fastest, the rival. The lines are what this device's memory and arithmetic allow ({}); a mark above them \
         worked from a cache. Rest the pointer on a mark to read it.{without}</p>\n\
         {}<div class=\"plot\">\n<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{LABEL}\">\n{svg}</svg>\n</div>\n</section>\n",
        escape(&header.peaks),
        legend(points)
    )
}

/// A picture that stands alone: the fastest kernel of each problem and its rival, coloured by the type that bounds the work.
///
/// # Errors
/// No problem of the run does arithmetic.
pub(super) fn picture(header: &Header, points: &[Point<'_>]) -> Result<String> {
    let best: Vec<Point<'_>> = points.iter().filter(|point| point.best).copied().collect();
    let types: Vec<&String> = header.flops_per_s.keys().collect();
    let class = |point: &Point<'_>| {
        let name = point.facts.rate.to_string();
        let at = types.iter().position(|t| **t == name);
        at.and_then(|at| FAMILIES.get(at)).map_or(FAMILIES[FAMILIES.len() - 1].class, |family| family.class)
    };
    let svg = plot(header, &best, class).context("a roofline needs a problem that does arithmetic")?;
    let mut seen: Vec<(&str, String)> = Vec::new();
    for point in best.iter().filter(|point| point.computes()) {
        let entry = (class(point), point.facts.rate.to_string());
        if !seen.contains(&entry) {
            seen.push(entry);
        }
    }
    let mut legend = String::new();
    for (at, (class, name)) in seen.iter().enumerate() {
        let y = TOP + 14.0 + 18.0 * at as f64;
        let _ = writeln!(
            legend,
            "<circle class=\"{class} best\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"5\"/><text x=\"{:.1}\" y=\"{y:.1}\">{}</text>",
            LEFT + 16.0,
            y - 4.0,
            LEFT + 28.0,
            escape(name)
        );
    }
    if best.iter().any(|point| point.row.peer_ns.is_some()) {
        let y = TOP + 14.0 + 18.0 * seen.len() as f64;
        let _ = writeln!(
            legend,
            "<circle class=\"peer\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\"/><text x=\"{:.1}\" y=\"{y:.1}\">the rival</text>",
            LEFT + 16.0,
            y - 4.0,
            LEFT + 28.0
        );
    }
    Ok(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{LABEL}\">\n\
         <style>\n{}</style>\n<rect class=\"paper\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\n{svg}<g class=\"points\">\n{legend}</g>\n</svg>\n",
        include_str!("plot.css")
    ))
}

/// Grid, roofs and points; nothing where no problem does arithmetic.
fn plot(header: &Header, points: &[Point<'_>], class: impl Fn(&Point<'_>) -> &'static str) -> Option<String> {
    let drawn: Vec<&Point<'_>> = points.iter().filter(|point| point.computes()).collect();
    let peak = header.flops_per_s.values().copied().reduce(f64::max).filter(|_| !drawn.is_empty())?;
    let intensity = |point: &Point<'_>| point.facts.flops / point.facts.bytes as f64;
    let reached = |point: &Point<'_>, ns: f64| point.facts.flops / ns * 1e9;
    let rival = |point: &Point<'_>| point.row.peer_ns.filter(|_| point.best).map(|ns| reached(point, ns));
    let ridge = peak / header.bytes_per_s;
    let x =
        Axis::over(drawn.iter().map(|point| intensity(point)).chain([ridge / 3.0, ridge * 3.0]), LEFT, WIDTH - RIGHT);
    let rates = drawn.iter().flat_map(|point| [Some(reached(point, point.row.median_ns)), rival(point)]).flatten();
    let y = Axis::over(rates.chain([peak]), HEIGHT - BOTTOM, TOP);

    let mut svg =
        grid(&x, &y) + "<g class=\"roofs\">\n" + &roofs(header, &x, &y, peak) + "</g>\n<g class=\"points\">\n";
    for point in &drawn {
        let Some(rate) = rival(point) else { continue };
        let (cx, cy, to) = (x.at(intensity(point)), y.at(rate), y.at(reached(point, point.row.median_ns)));
        let class = class(point);
        let _ = writeln!(
            svg,
            "<path class=\"{class} gap\" d=\"M{cx:.1} {cy:.1}V{to:.1}\"/><circle class=\"{class} peer\" cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"3\"/>"
        );
    }
    // Winners last, so that they lie on top.
    for best in [false, true] {
        for point in drawn.iter().filter(|point| point.best == best) {
            let (cx, cy) = (x.at(intensity(point)), y.at(reached(point, point.row.median_ns)));
            let (class, rank, r) = (class(point), if best { "best" } else { "other" }, if best { 5.0 } else { 3.5 });
            let _ = writeln!(
                svg,
                "<circle class=\"{class} {rank}\" cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"{r}\"><title>{}</title></circle>",
                hint(point)
            );
        }
    }
    Some(svg + "</g>\n")
}

/// Lines and labels at the powers of ten, and what the axes are.
fn grid(x: &Axis, y: &Axis) -> String {
    let mut svg = "<g class=\"grid\">\n".to_owned();
    let line =
        |[x1, y1, x2, y2]: [f64; 4]| format!("<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>\n");
    for decade in x.decades() {
        let (value, at) = (10f64.powi(decade), x.at(10f64.powi(decade)));
        svg += &line([at, TOP, at, HEIGHT - BOTTOM]);
        let label = if decade < 0 { format!("{value}") } else { format!("{value:.0}") };
        svg += &format!("<text class=\"x\" x=\"{at:.1}\" y=\"{:.1}\">{label}</text>\n", HEIGHT - BOTTOM + 18.0);
    }
    for decade in y.decades() {
        let (value, at) = (10f64.powi(decade), y.at(10f64.powi(decade)));
        svg += &line([LEFT, at, WIDTH - RIGHT, at]);
        let label = units::flops(value).replace(".00", "").replace(".0", "").replace("FLOP/s", "");
        svg += &format!("<text class=\"y\" x=\"{:.1}\" y=\"{:.1}\">{label}</text>\n", LEFT - 8.0, at + 4.0);
    }
    svg + &format!(
        "<text class=\"x\" x=\"{:.1}\" y=\"{:.1}\">operations per byte</text>\n\
         <text class=\"x\" transform=\"translate(16 {:.1}) rotate(-90)\">operations per second</text>\n</g>\n",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 8.0,
        (TOP + HEIGHT - BOTTOM) / 2.0
    )
}

/// One slope for memory, and a level for each type's arithmetic, joined where they meet.
fn roofs(header: &Header, x: &Axis, y: &Axis, peak: f64) -> String {
    let mut out = String::new();
    let clamp = |value: f64| value.max(10f64.powf(y.from));
    let bandwidth = header.bytes_per_s;
    let from = clamp(10f64.powf(x.from) * bandwidth) / bandwidth;
    let to = peak / bandwidth;
    out += &format!(
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>\n",
        x.at(from),
        y.at(from * bandwidth),
        x.at(to),
        y.at(peak)
    );
    let (end, mut free) = (x.end, f64::INFINITY);
    let mut levels: Vec<(f64, Vec<&str>)> = Vec::new();
    for (name, &rate) in &header.flops_per_s {
        // Types of one rate share a line.
        match levels.iter_mut().find(|(level, _)| (level.ln() - rate.ln()).abs() < 0.02) {
            Some((_, names)) => names.push(name),
            None => levels.push((rate, vec![name])),
        }
    }
    // From the lowest up, each label of two lines at least two lines above the one before.
    levels.sort_by(|a, b| a.0.total_cmp(&b.0));
    for (rate, names) in levels {
        let at = y.at(rate);
        let label = at.min(free - 30.0);
        free = label;
        out += &format!(
            "<line x1=\"{:.1}\" y1=\"{at:.1}\" x2=\"{end:.1}\" y2=\"{at:.1}\"/>\n\
             <text x=\"{tx:.1}\" y=\"{label:.1}\">{}<tspan x=\"{tx:.1}\" dy=\"14\">{}</tspan><title>{}</title></text>\n",
            x.at((rate / bandwidth).max(10f64.powf(x.from))),
            units::flops(rate),
            escape(&few(&names)),
            escape(&names.join(" ")),
            tx = end + 8.0,
        );
    }
    // The slope's name lies along it, below.
    let (x1, y1, x2, y2) = (x.at(from), y.at(from * bandwidth), x.at(to), y.at(peak));
    let angle = (y2 - y1).atan2(x2 - x1).to_degrees();
    let (tx, ty) = (x1 + (x2 - x1) * 0.42, y1 + (y2 - y1) * 0.42);
    out += &format!(
        "<text transform=\"translate({tx:.1} {ty:.1}) rotate({angle:.1})\" dy=\"-7\">memory {}</text>\n",
        units::bandwidth(bandwidth)
    );
    out
}

/// The names that have room beside the plot.
fn few(names: &[&str]) -> String {
    match names {
        [_, _, _, _, _, ..] => format!("{} and {} more", names[..3].join(" "), names.len() - 3),
        few => few.join(" "),
    }
}

fn legend(points: &[Point<'_>]) -> String {
    let drawn = |family| points.iter().any(|point| point.computes() && std::ptr::eq(point.family, family));
    let seen = FAMILIES.iter().filter(|family| drawn(*family));
    let entries: String =
        seen.map(|family| format!("<span class=\"{}\"><i></i>{}</span>", family.class, family.name)).collect();
    format!("<div class=\"legend\">{entries}</div>\n")
}
