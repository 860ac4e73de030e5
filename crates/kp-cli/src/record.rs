//! Records: what was measured, as JSON lines. The schema is documented in `benches/README.md`.

use crate::files::Lines;
use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// The version of the schema this program writes and reads.
pub(crate) const SCHEMA: u32 = 1;

/// The first line of a record: where and how its rows were measured.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Header {
    /// [`SCHEMA`].
    pub(crate) schema: u32,
    /// Version of kp.
    pub(crate) kp: String,
    /// Commit of kp, `unknown` outside its repository.
    pub(crate) commit: String,
    /// UTC, ISO 8601.
    pub(crate) date: String,
    /// Name of the suite.
    pub(crate) suite: String,
    /// The machine class: the folder the record belongs to.
    pub(crate) class: String,
    /// The device's name.
    pub(crate) hardware: String,
    /// Cores, SMs or CUs.
    pub(crate) units: u32,
    /// Driver and its version.
    pub(crate) driver: String,
    /// Sustained clock in hertz, 0 if unknown.
    pub(crate) clock_hz: f64,
    /// Last-level cache in bytes, 0 if unknown.
    pub(crate) cache_bytes: u64,
    /// Main memory in bytes.
    pub(crate) memory_bytes: u64,
    /// Peak of main memory in bytes per second: one roof.
    pub(crate) bytes_per_s: f64,
    /// Peak arithmetic by type in operations per second, of the types that the rows use: the other roofs.
    pub(crate) flops_per_s: BTreeMap<String, f64>,
    /// Whether the peaks were measured on the machine, or are what its description says.
    pub(crate) peaks: String,
    /// How times were taken.
    pub(crate) method: String,
}

/// One kernel and variant on one problem.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    /// The problem's text.
    pub(crate) problem: String,
    /// `cpu`, `nvidia`.
    pub(crate) backend: String,
    /// The device's name.
    pub(crate) device: String,
    /// The kernel's name.
    pub(crate) kernel: String,
    /// Which of its variants.
    pub(crate) variant: u8,
    /// Median time of a launch.
    pub(crate) median_ns: f64,
    /// Middle half of the samples, as a width.
    pub(crate) iqr_ns: f64,
    /// How many samples.
    pub(crate) samples: u32,
    /// Whether operands came from main memory rather than from a cache.
    pub(crate) cold: bool,
    /// 10¹² operations per second.
    pub(crate) tflops: f64,
    /// 10⁹ bytes per second, counting each operand once.
    pub(crate) gbs: f64,
    /// The time at the device's peaks, over the median.
    pub(crate) roofline: f64,
    /// Largest error in units of the bound that conformance allows, if it was compared with the reference.
    pub(crate) max_error: Option<f64>,
    /// Its place among all kernels for the problem: 1 for what the engine would run. Unknown of older records.
    pub(crate) rank: Option<u32>,
    /// The rival: a library outside kp, if its time is known.
    pub(crate) peer: Option<String>,
    /// The rival's median.
    pub(crate) peer_ns: Option<f64>,
    /// `peer_ns / median_ns`, or the median of the ratios of turns that both took: above 1, kp is faster.
    pub(crate) ratio: Option<f64>,
}

impl Header {
    /// Refuses peaks that no device has.
    fn check(&self) -> Result<()> {
        let rates = self.flops_per_s.iter().map(|(name, &rate)| (&**name, rate));
        std::iter::once(("bytes_per_s", self.bytes_per_s))
            .chain(rates)
            .try_for_each(|(name, rate)| within(name, rate, 0.0))
    }
}

impl Row {
    /// Refuses what no run takes.
    fn check(&self) -> Result<()> {
        within("median_ns", self.median_ns, LEAST_NS)?;
        let rates = [("iqr_ns", self.iqr_ns), ("tflops", self.tflops), ("gbs", self.gbs), ("roofline", self.roofline)];
        rates.into_iter().try_for_each(|(name, value)| within(name, value, 0.0))?;
        self.peer_ns.map_or(Ok(()), |ns| within("peer_ns", ns, LEAST_NS))?;
        self.ratio.map_or(Ok(()), |ratio| within("ratio", ratio, 0.0))
    }

    /// The kernel with its variant, as wisdom writes it.
    pub(crate) fn label(&self) -> String {
        format!("{}#{}", self.kernel, self.variant)
    }

    /// What a row of another run must agree in to be compared.
    pub(crate) fn key(&self) -> (&str, &str, &str, u8) {
        (&self.problem, &self.backend, &self.kernel, self.variant)
    }

    /// Names the rival and its time.
    pub(crate) fn set_peer(&mut self, peer: &str, ns: f64) {
        self.peer = Some(peer.to_owned());
        self.peer_ns = Some(ns);
        self.ratio = Some(round(ns / self.median_ns));
    }
}

/// Four digits are more than a measurement has, and keep records short.
pub(crate) fn round(value: f64) -> f64 {
    format!("{value:.3e}").parse().expect("a float prints as a float")
}

/// A whole record.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Record {
    /// Where and how.
    pub(crate) header: Header,
    /// What came out, in the order of the suite.
    pub(crate) rows: Vec<Row>,
}

impl Record {
    /// Reads a record.
    ///
    /// # Errors
    /// The line that is not what the schema says. A last line without its end, as a full disk leaves, is one.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    fn parse(text: &str) -> Result<Self> {
        let mut lines = text.lines().enumerate();
        let Some((_, first)) = lines.next() else { bail!("empty; a record starts with a header") };
        let version: Version = serde_json::from_str(first).context("line 1 is no header of a record")?;
        ensure!(version.schema == SCHEMA, "schema {}; this kp reads {SCHEMA}", version.schema);
        let header: Header = serde_json::from_str(first).context("line 1 is no header of a record")?;
        header.check().context("line 1 is no header of a record")?;
        let row = |line: &str| {
            let row: Row = serde_json::from_str(line)?;
            row.check().map(|()| row)
        };
        let rows = lines
            .filter(|(_, line)| !line.is_empty())
            .map(|(at, line)| row(line).with_context(|| format!("line {} is no row", at + 1)))
            .collect::<Result<_>>()?;
        Ok(Self { header, rows })
    }
}

/// Refuses a number that nothing measures: of these a page would have no end.
fn within(name: &str, value: f64, least: f64) -> Result<()> {
    ensure!((least..=MOST).contains(&value), "{name} must be from {least} to {MOST:e}, got {value}");
    Ok(())
}

/// A femtosecond in nanoseconds: no launch is as short.
const LEAST_NS: f64 = 1e-6;

/// Thirty years in nanoseconds, and more of anything else than there is.
const MOST: f64 = 1e18;

#[derive(Deserialize)]
struct Version {
    schema: u32,
}

/// Writes a record while it is measured.
pub(crate) struct Writer(Lines);

impl Writer {
    /// Starts the record at `path`.
    ///
    /// # Errors
    /// The path, and what the system said.
    pub(crate) fn create(path: &Path, header: &Header) -> Result<Self> {
        let mut lines = Lines::create(path)?;
        lines.push(&json(header)?)?;
        Ok(Self(lines))
    }

    /// Adds a row.
    ///
    /// # Errors
    /// What the system said.
    pub(crate) fn push(&mut self, row: &Row) -> Result<()> {
        self.0.push(&json(row)?)
    }

    /// Gives the record its name.
    ///
    /// # Errors
    /// What the system said.
    pub(crate) fn finish(self) -> Result<PathBuf> {
        self.0.finish()
    }
}

/// The newest record of `suite` in `folder`, by name; `None` if there is none or no such folder.
///
/// # Errors
/// What the system said of a folder that is there.
pub(crate) fn newest(folder: &Path, suite: &str) -> Result<Option<PathBuf>> {
    if !folder.is_dir() {
        return Ok(None);
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        // `2026-11-21-gemm-small.jsonl`: the suite's name may hold dashes, the date has ten characters.
        let is_it = name.get(11..).and_then(|rest| rest.strip_suffix(".jsonl")) == Some(suite);
        found.extend(is_it.then_some(path));
    }
    Ok(found.into_iter().max())
}

/// One line of JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).context("not to be written as JSON")
}

/// A rival's time for one problem, as a line of the file that `--peers` names.
#[derive(Deserialize)]
pub(crate) struct Peer {
    /// The problem's text, in any spelling.
    pub(crate) problem: String,
    /// Who.
    pub(crate) peer: String,
    /// Its median.
    pub(crate) peer_ns: f64,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A record of two kernels on one problem.
    pub(crate) fn sample() -> Record {
        let header = Header {
            schema: SCHEMA,
            kp: "0.1.0".into(),
            commit: "abc".into(),
            date: "2026-11-21T00:00:00Z".into(),
            suite: "smoke".into(),
            class: "test-2c".into(),
            hardware: "Test <CPU> & co".into(),
            units: 2,
            driver: "none".into(),
            clock_hz: 2.8e9,
            cache_bytes: 48 << 20,
            memory_bytes: 24 << 30,
            bytes_per_s: 2e10,
            flops_per_s: BTreeMap::from([("f32".into(), 1e11)]),
            peaks: "measured".into(),
            method: "median".into(),
        };
        let row = |kernel: &str, median_ns: f64| Row {
            problem: "gemm 1x256x256x256 f32:f32:f32".into(),
            backend: "cpu".into(),
            device: "Test".into(),
            kernel: kernel.into(),
            variant: 1,
            median_ns,
            iqr_ns: 10.0,
            samples: 20,
            cold: false,
            tflops: round(2.0 * 256.0f64.powi(3) / median_ns / 1e3),
            gbs: round(3.0 * 4.0 * 65536.0 / median_ns),
            roofline: round(335_544.0 / median_ns),
            max_error: Some(0.11),
            rank: Some(1),
            peer: None,
            peer_ns: None,
            ratio: None,
        };
        Record { header, rows: vec![row("blocked", 500_000.0), row("simple", 2_000_000.0)] }
    }

    #[test]
    fn records_round_trip() {
        let mut record = sample();
        record.rows[0].set_peer("other", 250_000.0);
        assert_eq!(record.rows[0].ratio, Some(0.5));
        let path = std::env::temp_dir().join(format!("kp-record-{}.jsonl", std::process::id()));
        let mut writer = Writer::create(&path, &record.header).expect("it can be written");
        record.rows.iter().for_each(|row| writer.push(row).expect("it can be written"));
        assert_eq!(writer.finish().expect("it can be named"), path);
        assert_eq!(Record::read(&path).expect("it can be read"), record);
        fs::remove_file(path).expect("it can be removed");
    }

    #[test]
    fn the_newest_record_is_the_one_of_the_suite_with_the_latest_date() {
        let folder = std::env::temp_dir().join(format!("kp-newest-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("it can be made");
        let names = ["2026-01-02-smoke", "2026-11-21-smoke", "2026-12-01-not-smoke"];
        for name in names {
            fs::write(folder.join(format!("{name}.jsonl")), "").expect("it can be written");
        }
        fs::write(folder.join("2026-12-31-smoke.jsonl.part"), "").expect("it can be written");
        let found = newest(&folder, "smoke").expect("it can be listed");
        assert_eq!(found, Some(folder.join("2026-11-21-smoke.jsonl")));
        assert_eq!(newest(&folder, "rowwise").expect("it can be listed"), None);
        assert_eq!(newest(&folder.join("none"), "smoke").expect("no folder is no error"), None);
        fs::remove_dir_all(folder).expect("it can be removed");
    }

    #[test]
    fn every_documented_field_is_written() {
        let row = json(&sample().rows[0]).expect("it is JSON");
        for field in "problem backend device kernel variant median_ns tflops gbs roofline max_error peer peer_ns ratio"
            .split(' ')
        {
            assert!(row.contains(&format!("\"{field}\":")), "{field} in {row}");
        }
        let documented = include_str!("../../../benches/README.md");
        let header = serde_json::to_value(sample().header).expect("it is JSON");
        let row = serde_json::to_value(&sample().rows[0]).expect("it is JSON");
        for field in [header, row].iter().flat_map(|value| value.as_object().expect("an object").keys()) {
            assert!(documented.contains(&format!("| `{field}` |")), "benches/README.md says nothing of {field}");
        }
    }

    #[test]
    fn what_is_no_record_says_which_line() {
        let good = json(&sample().header).expect("it is JSON");
        for (text, message) in [
            (String::new(), "empty; a record starts with a header"),
            ("[]".into(), "line 1 is no header of a record"),
            (good.replace("\"schema\":1", "\"schema\":9"), "schema 9; this kp reads 1"),
            (format!("{good}\n{{\"problem\":\"x\"}}\n"), "line 2 is no row"),
            (format!("{good}\n\n{{\"pro"), "line 3 is no row"),
        ] {
            assert_eq!(Record::parse(&text).expect_err("no record").to_string(), message);
        }
    }

    #[test]
    fn numbers_that_nothing_measures_are_refused() {
        let refusal = |record: &Record| {
            let lines: Vec<String> = record.rows.iter().map(|row| json(row).expect("it is JSON")).collect();
            let header = json(&record.header).expect("it is JSON");
            Record::parse(&format!("{header}\n{}", lines.join("\n")))
                .map_or_else(|e| format!("{e:#}"), |_| "read".into())
        };
        assert_eq!(refusal(&sample()), "read");
        for median_ns in [0.0, -1.0, 5e-324, 1e300] {
            let mut record = sample();
            record.rows[1].median_ns = median_ns;
            let said = format!("line 3 is no row: median_ns must be from 0.000001 to 1e18, got {median_ns}");
            assert_eq!(refusal(&record), said);
        }
        let mut record = sample();
        record.header.flops_per_s.insert("bf16".into(), -1.0);
        assert_eq!(refusal(&record), "line 1 is no header of a record: bf16 must be from 0 to 1e18, got -1");
    }
}
