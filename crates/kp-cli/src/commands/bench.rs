//! `kp bench`: every kernel on a suite, a problem or a model.

mod against;
mod print;

use crate::{
    Global, files, hardware,
    measure::{Expected, Meter, Options, Outcome},
    models::{CONTEXT, Linear, Model, PREFILLS, Phase, WEIGHTS},
    output::{self, Output},
    record::{Header, Peer, Record, Row, SCHEMA, Writer},
    report::{self, Run},
    suites::{self, Line, Suite, facts},
    timing::{self, Method},
    units, usage,
};
use anyhow::{Context, Result, bail};
use clap::builder::RangedU64ValueParser;
use indicatif::ProgressBar;
use kp_core::Engine;
use kp_hal::AnyProblem;
use std::{
    collections::{HashMap, HashSet},
    env, fs,
    path::{Path, PathBuf},
    process,
    time::Duration,
};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Suites, .txt files or problems; `smoke` if neither these nor a model are given
    #[arg(value_name = "SUITE | PROBLEM")]
    targets: Vec<String>,
    /// A model's own problems instead
    #[arg(long, value_name = "NAME", conflicts_with = "targets")]
    model: Option<String>,
    /// Sequences at once, of a model
    #[arg(long, value_delimiter = ',', requires = "model", value_parser = clap::value_parser!(u32).range(1..))]
    batch: Vec<u32>,
    /// `decode`, `prefill` or both
    #[arg(long, value_delimiter = ',', requires = "model")]
    phase: Vec<PhaseName>,
    /// Tokens of a prefill
    #[arg(long, value_delimiter = ',', requires = "model", value_parser = clap::value_parser!(u32).range(1..))]
    tokens: Vec<u32>,
    /// Tokens of each sequence that is decoded
    #[arg(long, requires = "model", default_value_t = CONTEXT, value_parser = clap::value_parser!(u32).range(1..))]
    context: u32,
    /// Format of the model's linear layers, if not the published one: bf16, f32, fp8, mxfp8, int8, int4, mxfp4, nvfp4
    #[arg(long, requires = "model", value_name = "FORMAT")]
    weights: Option<String>,
    /// Print the problems and measure nothing
    #[arg(long)]
    list: bool,
    /// Only kernels whose name contains this
    #[arg(long, value_name = "PART")]
    kernel: Option<String>,
    /// Of those, only so many that rank first
    #[arg(long, value_name = "COUNT", default_value_t = usize::MAX, hide_default_value = true)]
    #[arg(value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    best: usize,
    /// And kernels whose name contains this, however they rank
    #[arg(long, requires = "best", value_name = "PART")]
    beside: Option<String>,
    /// What a sample is
    #[arg(long, value_enum, default_value_t = Method::Rotate)]
    method: Method,
    /// Time for the samples of each kernel
    #[arg(long, default_value = "1s", value_parser = output::duration, value_name = "TIME")]
    budget: Duration,
    /// Time of launches before the first sample of each kernel; without it, 20ms or half of the budget
    #[arg(long, value_parser = output::duration, value_name = "TIME")]
    warm: Option<Duration>,
    /// Turns that the kernels of a problem take
    #[arg(long, default_value_t = timing::TURNS, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    turns: u32,
    /// Let another program have turns too: before each and after the last, print a line of JSON with the medians of the turn before (kernel
    /// to nanoseconds, nothing at first), and wait for a line on standard input
    #[arg(long = "yield", requires = "record", conflicts_with = "json")]
    yields: bool,
    /// Leave out launches that would take longer
    #[arg(long, default_value = "10s", value_parser = output::duration, value_name = "TIME")]
    longest: Duration,
    /// Compare no result with the reference
    #[arg(long)]
    no_check: bool,
    /// Write one HTML page, anew after each problem
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Keep the times as a record below this folder
    #[arg(long, value_name = "FOLDER", num_args = 0..=1, default_missing_value = "benches/record")]
    record: Option<PathBuf>,
    /// Compare with a record, or with the newest of this machine's class below a folder
    #[arg(long, value_name = "RECORD | FOLDER")]
    against: Option<PathBuf>,
    /// How much slower than the record a row may be
    #[arg(long, default_value_t = 1.10, requires = "against", value_name = "RATIO")]
    threshold: f64,
    /// Rivals' times: JSON lines of problem, peer, peer_ns
    #[arg(long, value_name = "FILE")]
    peers: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum PhaseName {
    Decode,
    Prefill,
}

/// Multiply-adds of the f64 reference that a bench pays for: about a tenth of a second.
const REFERENCE: f64 = 3e7;

/// Measures, prints, compares, and writes what was asked for. False if a result is wrong or a row became slower.
///
/// # Errors
/// A target that is none, a device that is not there, a file that cannot be read or written, nothing measured.
pub(crate) fn run(global: &Global, args: &Args, out: &mut Output) -> Result<bool> {
    let suites = wanted(args)?;
    if args.list {
        let head = args.model.as_deref().map(Model::named).transpose()?.map_or_else(String::new, Model::head);
        suites.iter().try_for_each(|suite| out.print(&suite.text(&head)))?;
        return Ok(true);
    }
    if !(args.threshold >= 1.0 && args.threshold.is_finite()) {
        bail!(usage(format!("--threshold must be at least 1, got {}", args.threshold)));
    }
    if let Some(path) = &args.report {
        files::check_writable(path)?;
    }
    let peers = args.peers.as_deref().map(read_peers).transpose()?.unwrap_or_default();
    let engine = global.open(out)?;
    let class = hardware::class(engine.info());
    let options = Options {
        budget: args.budget,
        longest: args.longest,
        reference: if args.no_check { 0.0 } else { REFERENCE },
        kernel: args.kernel.clone(),
        best: args.best,
        beside: args.beside.clone(),
        warm: args.warm,
        method: args.method,
        turns: args.turns,
        yields: args.yields,
    };
    let old =
        |suite: &Suite| args.against.as_deref().map(|path| against::find(path, &class, &suite.name, out)).transpose();
    // Before measuring: what cannot be read must not cost minutes, and what is recorded now must not be compared with itself.
    let olds = suites.iter().map(|suite| Ok(old(suite)?.flatten())).collect::<Result<Vec<_>>>()?;
    out.remark(&format!("{}: measuring peaks", engine.info().name));
    let mut meter = Meter::new(engine.clone(), options)?;
    out.remark(&format!("{}, {}", units::bandwidth(meter.caps.bytes_per_s), meter.peaks));
    announce(&meter, &suites, out);
    let mut bench = Bench {
        meter: &mut meter,
        peers: &peers,
        page: args.report.as_deref(),
        left: suites.iter().map(Suite::len).sum(),
        runs: Vec::new(),
    };
    let (mut good, mut done) = (true, Vec::new());
    for (suite, old) in suites.into_iter().zip(olds) {
        let header = header(&engine, bench.meter, &suite, &class);
        let mut writer = None;
        if let Some(folder) = &args.record {
            let date = header.date.split('T').next().unwrap_or_default();
            let path = folder.join(&class).join(format!("{date}-{}.jsonl", suite.name));
            writer = Some(Writer::create(&path, &header)?);
        }
        if !out.json {
            out.print(&format!("\n{} · {}\n", suite.name, header.hardware))?;
        }
        bench.runs.push(Run { record: Record { header, rows: Vec::new() }, suite: Some(suite.clone()) });
        let mut one = bench.measure(&suite, out, writer.as_mut())?;
        if let Some(writer) = writer {
            out.remark(&format!("recorded in {}", writer.finish()?.display()));
        }
        if let (Some(old), Some(run)) = (old, bench.runs.last_mut()) {
            one.comparison = Some(against::compare(old, &mut run.record.rows, bench.meter, args.threshold, out)?);
        }
        good &= one.wrong.is_empty() && one.comparison.as_ref().is_none_or(against::Comparison::is_good);
        done.push(one);
    }
    if out.json {
        out.print_json(&print::as_json(&bench.runs, &done))?;
    }
    // Once more: rows that were compared may have been measured again.
    bench.write_page()?;
    if let Some(path) = bench.page {
        out.remark(&format!("wrote {}", path.display()));
    }
    if bench.runs.iter().all(|run| run.record.rows.is_empty()) {
        let of =
            args.kernel.as_ref().map_or_else(String::new, |part| format!(": no kernel whose name contains `{part}`"));
        bail!("nothing was measured{of}");
    }
    Ok(good)
}

/// Says what there is to measure.
fn announce(meter: &Meter, suites: &[Suite], out: &Output) {
    let mut seen = HashSet::new();
    let lines = suites.iter().enumerate().flat_map(|(at, suite)| suite.lines().map(move |line| (at, line)));
    let Expected { problems, rows, time } =
        meter.expect(lines.filter(|(at, line)| seen.insert((*at, line.problem))).map(|(_, line)| line));
    let count = |count, what| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let about = match time.as_secs() {
        secs @ 0..120 => format!("{} s", secs + 1),
        secs => format!("{} min", secs.div_ceil(60)),
    };
    out.remark(&format!(
        "{} of {} to measure, in about {about} by what kernels estimate",
        count(rows, "row"),
        count(problems, "problem"),
    ));
}

/// Suites while they are measured.
struct Bench<'a> {
    meter: &'a mut Meter,
    peers: &'a HashMap<AnyProblem, (String, f64)>,
    /// Where the page goes, if there is to be one.
    page: Option<&'a Path>,
    /// How many lines are still to be measured.
    left: usize,
    /// What was measured, the last suite last.
    runs: Vec<Run>,
}

impl Bench<'_> {
    /// Measures the suite of the last run.
    fn measure(&mut self, suite: &Suite, out: &mut Output, mut writer: Option<&mut Writer>) -> Result<print::Done> {
        let bar = out.progress(suite.len() as u64);
        let mut done = print::Done::default();
        // A model's sections repeat problems: each is measured once.
        let mut known: HashMap<AnyProblem, Vec<Row>> = HashMap::new();
        for section in &suite.sections {
            let mut table = print::Section::new(section);
            for line in &section.lines {
                self.left -= 1;
                let rows = match known.get(&line.problem) {
                    Some(rows) => rows.clone(),
                    None => self.line(line, &bar, writer.as_deref_mut(), &mut done)?,
                };
                bar.inc(1);
                table.add(line, &rows, &done.skipped, &done.wrong);
                known.insert(line.problem, rows);
            }
            if !out.json {
                bar.suspend(|| out.print(&table.text()))?;
            }
        }
        bar.finish_and_clear();
        Ok(done)
    }

    /// Measures one problem, and keeps what came of it.
    fn line(
        &mut self,
        line: &Line,
        bar: &ProgressBar,
        writer: Option<&mut Writer>,
        done: &mut print::Done,
    ) -> Result<Vec<Row>> {
        let Outcome { mut rows, skipped, wrong } =
            self.meter.measure(line, &mut |what| bar.set_message(format!("{what} on {}", line.text)));
        if let (Some((peer, ns)), [best, ..]) = (self.peers.get(&line.problem), &mut rows[..]) {
            best.set_peer(peer, *ns);
        }
        if let Some(writer) = writer {
            rows.iter().try_for_each(|row| writer.push(row))?;
        }
        let without = |kernel, why| print::Skipped { problem: line.text.clone(), kernel, why };
        done.skipped.extend(skipped.into_iter().map(|(kernel, why)| without(kernel, why)));
        done.wrong.extend(wrong.into_iter().map(|(kernel, why)| without(Some(kernel), why)));
        if let Some(run) = self.runs.last_mut() {
            run.record.rows.extend(rows.iter().cloned());
        }
        // After each problem: a run that is interrupted leaves a page of what it measured.
        self.write_page()?;
        Ok(rows)
    }

    fn write_page(&self) -> Result<()> {
        match self.page {
            Some(path) => files::write(path, &report::page(&self.runs, self.left)?),
            None => Ok(()),
        }
    }
}

/// What the command line asks for.
fn wanted(args: &Args) -> Result<Vec<Suite>> {
    let Some(name) = &args.model else {
        let smoke = ["smoke".to_owned()];
        return suites::resolve(if args.targets.is_empty() { &smoke } else { &args.targets });
    };
    let model = Model::named(name)?;
    let weights = args.weights.as_deref().map(weights).transpose()?;
    let asked = |phase| args.phase.is_empty() || args.phase.contains(&phase);
    if args.phase == [PhaseName::Decode] && !model.decodes() {
        bail!(usage(format!("{name} is an encoder and decodes nothing; its phase is prefill")));
    }
    if args.batch.is_empty() && args.tokens.is_empty() && args.phase.is_empty() && args.context == CONTEXT {
        return Ok(vec![suites::of_model(model, &model.phases(), weights)?]);
    }
    let or = |given: &[u32], usual: &[u32]| if given.is_empty() { usual.to_vec() } else { given.to_vec() };
    let mut phases = Vec::new();
    if model.decodes() {
        if asked(PhaseName::Decode) {
            let batches = or(&args.batch, &[1, 8, 64]);
            phases.extend(batches.into_iter().map(|batch| Phase::Decode { batch, context: args.context }));
        }
        if asked(PhaseName::Prefill) && (args.batch.is_empty() || !args.tokens.is_empty() || !args.phase.is_empty()) {
            phases.extend(or(&args.tokens, &PREFILLS).into_iter().map(|tokens| model.prefill(tokens)));
        }
    } else {
        let tokens = or(&args.tokens, &[128]);
        for batch in or(&args.batch, &[1]) {
            phases.extend(tokens.iter().map(|&tokens| Phase::Prefill { batch, tokens: tokens.min(model.positions()) }));
        }
    }
    Ok(vec![suites::of_model(model, &phases, weights)?])
}

fn weights(name: &str) -> Result<Linear> {
    match WEIGHTS.iter().find(|(known, _)| *known == name) {
        Some((_, linear)) => Ok(*linear),
        None => {
            let names: Vec<&str> = WEIGHTS.iter().map(|(known, _)| *known).collect();
            bail!(usage(format!("weights must be one of {}, got `{name}`", names.join(", "))))
        }
    }
}

fn read_peers(path: &Path) -> Result<HashMap<AnyProblem, (String, f64)>> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(at, line)| {
            let place = || format!("{}:{}", path.display(), at + 1);
            let peer: Peer = serde_json::from_str(line).with_context(place)?;
            let problem = peer.problem.parse().with_context(place)?;
            anyhow::ensure!(peer.peer_ns > 0.0, "{}: peer_ns must be above 0, got {}", place(), peer.peer_ns);
            Ok((problem, (peer.peer, peer.peer_ns)))
        })
        .collect()
}

fn header(engine: &Engine, meter: &Meter, suite: &Suite, class: &str) -> Header {
    let (info, caps) = (engine.info(), &meter.caps);
    let types =
        suite.lines().map(|line| facts(&line.problem)).filter(|facts| facts.flops > 0.0).map(|facts| facts.rate);
    Header {
        schema: SCHEMA,
        kp: env!("CARGO_PKG_VERSION").to_owned(),
        commit: commit().unwrap_or_else(|| "unknown".to_owned()),
        date: units::now(),
        suite: suite.name.clone(),
        class: class.to_owned(),
        hardware: info.name.clone(),
        units: caps.units,
        driver: info.driver.clone(),
        clock_hz: caps.clock_hz,
        cache_bytes: caps.l1_bytes.max(caps.l2_bytes).max(caps.l3_bytes),
        memory_bytes: caps.memory_bytes,
        bytes_per_s: crate::record::round(caps.bytes_per_s),
        flops_per_s: types.map(|t| (t.to_string(), crate::record::round(caps.rates.get(t)))).collect(),
        peaks: meter.peaks.to_owned(),
        method: meter.options.method.words(meter.options.turns),
    }
}

/// What `KP_COMMIT` says, for a program far from its repository; else the commit that is checked out here, with a mark if
/// files differ from it.
fn commit() -> Option<String> {
    if let Some(commit) = env::var("KP_COMMIT").ok().filter(|commit| !commit.is_empty()) {
        return Some(commit);
    }
    fs::metadata("crates/kp-hal").ok()?;
    let git = |args: &[&str]| process::Command::new("git").args(args).output().ok().filter(|out| out.status.success());
    let hash = String::from_utf8(git(&["rev-parse", "--short=12", "HEAD"])?.stdout).ok()?.trim().to_owned();
    let changed = !git(&["status", "--porcelain", "--untracked-files=no", "--", "crates", "kernels", "Cargo.toml"])?
        .stdout
        .is_empty();
    Some(if changed { hash + "-changed" } else { hash })
}
