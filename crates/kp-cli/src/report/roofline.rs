//! The roofline: what was reached over how much arithmetic a problem does per byte, both logarithmic.

use super::{FAMILIES, Point, escape, hint};
use crate::{record::Header, units};
use std::fmt::Write;

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

/// Roofs, points and legend, or a word on why there are none.
pub(super) fn draw(header: &Header, points: &[Point<'_>]) -> String {
    let drawn: Vec<&Point<'_>> =
        points.iter().filter(|point| point.facts.flops > 0.0 && point.facts.bytes > 0).collect();
    let Some(peak) = header.flops_per_s.values().copied().reduce(f64::max).filter(|_| !drawn.is_empty()) else {
        return "<section>\n<h2>Roofline</h2>\n<p>No problem of this run does arithmetic.</p>\n</section>\n".to_owned();
    };
    let intensity = |point: &Point<'_>| point.facts.flops / point.facts.bytes as f64;
    let reached = |point: &Point<'_>| point.facts.flops / point.row.median_ns * 1e9;
    let ridge = peak / header.bytes_per_s;
    let x =
        Axis::over(drawn.iter().map(|point| intensity(point)).chain([ridge / 3.0, ridge * 3.0]), LEFT, WIDTH - RIGHT);
    let y = Axis::over(drawn.iter().map(|point| reached(point)).chain([peak]), HEIGHT - BOTTOM, TOP);

    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"Roofline: rate reached over operations per byte\">\n<g class=\"grid\">\n"
    );
    let line = |class: &str, [x1, y1, x2, y2]: [f64; 4]| {
        format!("<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>\n")
    };
    for decade in x.decades() {
        let (value, at) = (10f64.powi(decade), x.at(10f64.powi(decade)));
        svg += &line("", [at, TOP, at, HEIGHT - BOTTOM]);
        let label = if decade < 0 { format!("{value}") } else { format!("{value:.0}") };
        svg += &format!("<text class=\"x\" x=\"{at:.1}\" y=\"{:.1}\">{label}</text>\n", HEIGHT - BOTTOM + 18.0);
    }
    for decade in y.decades() {
        let (value, at) = (10f64.powi(decade), y.at(10f64.powi(decade)));
        svg += &line("", [LEFT, at, WIDTH - RIGHT, at]);
        let label = units::flops(value).replace(".00", "").replace(".0", "").replace("FLOP/s", "");
        svg += &format!("<text class=\"y\" x=\"{:.1}\" y=\"{:.1}\">{label}</text>\n", LEFT - 8.0, at + 4.0);
    }
    svg += &format!(
        "<text class=\"x\" x=\"{:.1}\" y=\"{:.1}\">operations per byte</text>\n\
         <text class=\"x\" transform=\"translate(16 {:.1}) rotate(-90)\">operations per second</text>\n</g>\n<g class=\"roofs\">\n",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 8.0,
        (TOP + HEIGHT - BOTTOM) / 2.0
    );
    svg += &roofs(header, &x, &y, peak);
    svg += "</g>\n<g class=\"points\">\n";
    // Winners last, so that they lie on top.
    for best in [false, true] {
        for point in drawn.iter().filter(|point| point.best == best) {
            let (cx, cy) = (x.at(intensity(point)), y.at(reached(point)));
            let (class, rank, r) =
                (point.family.class, if best { "best" } else { "other" }, if best { 5.0 } else { 3.5 });
            let _ = writeln!(
                svg,
                "<circle class=\"{class} {rank}\" cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"{r}\"><title>{}</title></circle>",
                hint(point)
            );
        }
    }
    svg += "</g>\n</svg>\n";
    let still = points.len() - drawn.len();
    let without =
        if still == 0 { String::new() } else { format!(" {still} rows that only move data are not shown here.") };
    format!(
        "<section>\n<h2>Roofline</h2>\n<p>Each mark is a kernel on a problem: filled, the fastest there; hollow, the others. The lines are \
         what this device's memory and arithmetic allow ({}); a mark above them worked from a cache. Rest the pointer on a mark to read it.{without}</p>\n\
         {}<div class=\"plot\">\n{svg}</div>\n</section>\n",
        escape(&header.peaks),
        legend(&drawn)
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

fn legend(drawn: &[&Point<'_>]) -> String {
    let seen = FAMILIES.iter().filter(|family| drawn.iter().any(|point| std::ptr::eq(point.family, *family)));
    let entries: String =
        seen.map(|family| format!("<span class=\"{}\"><i></i>{}</span>", family.class, family.name)).collect();
    format!("<div class=\"legend\">{entries}</div>\n")
}
