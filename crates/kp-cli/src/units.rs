//! Numbers as people read them: three digits and a unit.

use std::time::{SystemTime, UNIX_EPOCH};

/// `41.2 µs`; below a microsecond `41.2 ns`.
pub(crate) fn time(ns: f64) -> String {
    scaled(ns, &[(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns")])
}

/// `1.21 TFLOP/s`.
pub(crate) fn flops(per_s: f64) -> String {
    scaled(
        per_s,
        &[(1e15, "PFLOP/s"), (1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s"), (1e3, "kFLOP/s"), (1.0, "FLOP/s")],
    )
}

/// `4.37 TB/s`, in powers of 1000.
pub(crate) fn bandwidth(per_s: f64) -> String {
    scaled(per_s, &[(1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s")])
}

/// `117 MB`, in powers of 1000.
pub(crate) fn bytes(bytes: u64) -> String {
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    scaled(bytes as f64, &[(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")])
}

/// `48 MiB`, for sizes that are made of powers of 2.
pub(crate) fn binary(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["B", "KiB", "MiB", "GiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() == 0.0 { format!("{value} {}", UNITS[unit]) } else { format!("{} {}", digits(value), UNITS[unit]) }
}

/// `91 %`, `4.3 %`; never `100 %` for what is less.
pub(crate) fn percent(part: f64) -> String {
    let percent = part * 100.0;
    match percent {
        p if p.is_nan() => "–".to_owned(),
        p if p < 9.95 => format!("{p:.1} %"),
        p if p < 100.0 => format!("{:.0} %", p.min(99.0)),
        p => format!("{p:.0} %"),
    }
}

/// Three digits: `4.37`, `43.7`, `437`.
pub(crate) fn digits(value: f64) -> String {
    let after = if value.abs() < 9.995 { 2 } else { usize::from(value.abs() < 99.95) };
    format!("{value:.after$}")
}

fn scaled(value: f64, units: &[(f64, &str)]) -> String {
    // 999.6 of a unit would print as 1000 of it: it is 1.00 of the next.
    let fits = units.iter().find(|(size, _)| value >= size * 0.9995);
    let (size, unit) = fits.or(units.last()).expect("there is a unit");
    format!("{} {unit}", digits(value / size))
}

/// Now, as `2026-11-21T13:45:00Z`.
pub(crate) fn now() -> String {
    date(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

/// Seconds since 1970 as a date and a time of day, by Hinnant's days-to-civil arithmetic: years of 400 are alike.
fn date(secs: u64) -> String {
    let (days, secs) = (secs / 86_400, secs % 86_400);
    // Years start in March here, so that the leap day is the last.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (secs / 3600, secs / 60 % 60, secs % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        for (got, want) in [
            (time(0.25), "0.25 ns"),
            (time(41.23), "41.2 ns"),
            (time(999.97), "1.00 µs"),
            (time(201_000.0), "201 µs"),
            (time(2.5e9), "2.50 s"),
            (time(7.2e12), "7200 s"),
            (flops(1.213e12), "1.21 TFLOP/s"),
            (bandwidth(4.3e9), "4.30 GB/s"),
            (bytes(17), "17 B"),
            (bytes(117_440_512), "117 MB"),
            (binary(48 << 20), "48 MiB"),
            (binary(1_310_720), "1.25 MiB"),
            (percent(0.043), "4.3 %"),
            (percent(0.996), "99 %"),
            (percent(1.314), "131 %"),
        ] {
            assert_eq!(got, want);
        }
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (secs, want) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_164_800, "2024-02-29T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (1_000_000_000, "2001-09-09T01:46:40Z"),
        ] {
            assert_eq!(date(secs), want);
        }
    }
}
