//! `kp verify`: the conformance suite on this machine.

use crate::{Global, no_device, output::Output, usage};
use anyhow::{Context, Result, ensure};
use kp_core::{Engine, Env, registry::Registry};
use kp_hal::Backend;
use kp_testkit::Suite;
use serde_json::{Value, json};
use std::{env, io, process::ExitCode};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only tests whose names contain one of these, such as `gemm` or a kernel's name; all if there are none
    #[arg(value_name = "FILTER")]
    filters: Vec<String>,
    /// Print names, run nothing
    #[arg(long)]
    list: bool,
}

/// Runs the suite of each backend that has a device, or of the one asked for. False if a test fails.
///
/// # Errors
/// A device that is not there or, if it is asked for, a backend; a filter that fits no test.
pub(crate) fn run(global: &Global, args: &Args, out: &mut Output) -> Result<bool> {
    let found = Engine::builder().survey();
    check_required(&found)?;
    let wanted = global.device.clone().or_else(|| Env::process().device);
    let chosen = found.choose(wanted.as_deref()).map_err(|none| no_device(&none))?;
    let mut backends: Vec<&'static dyn Backend> = Vec::new();
    // The suite opens a backend's first device, or the one that KP_DEVICE_INDEX says.
    if let (Some(_), [device, ..]) = (&wanted, &chosen[..]) {
        let (backend, index) = (device.backend.name(), device.info.index);
        let opens = env::var("KP_DEVICE_INDEX").map_or(Ok(0), |index| index.parse()).unwrap_or(index);
        ensure!(
            index == opens,
            usage(format!(
                "conformance runs on {backend}:{opens}; KP_DEVICE_INDEX={index} kp verify runs on {backend}:{index}"
            ))
        );
    }
    for device in chosen {
        if backends.iter().all(|backend| backend.name() != device.backend.name()) {
            backends.push(device.backend);
        }
    }
    for one in &found.unavailable {
        out.remark(&format!("skipped: {one}"));
    }
    let (mut good, mut tests, mut reports) = (true, 0, Vec::new());
    for backend in backends {
        let suite = Suite::new(backend);
        let mut words: Vec<&str> = args.filters.iter().map(String::as_str).collect();
        words.extend(args.list.then_some("--list"));
        let shown = match (out.json, global.quiet && !args.list) {
            (true, _) => Shown::Nothing,
            (false, true) => Shown::Failures,
            (false, false) => Shown::All,
        };
        let mut seen = Watch { text: String::new(), partial: Vec::new(), shown, began: false, lost: None };
        good &= suite.run_with(&words, &mut seen) == ExitCode::SUCCESS;
        // Who reads no further still gets the verdict, as the exit code; a full disk has lost results.
        if let Some(error) = seen.lost.filter(|error| error.kind() != io::ErrorKind::BrokenPipe) {
            return Err(error).context("cannot write results");
        }
        let report = report(backend.name(), &seen.text);
        tests += report.passed + report.failed.len() + report.listed;
        reports.push(report.json);
    }
    if out.json {
        out.print_json(&json!({ "backends": reports }))?;
    }
    ensure!(
        tests > 0 || args.filters.is_empty(),
        usage(format!("no test's name contains {}", args.filters.join(" or ")))
    );
    Ok(good)
}

/// Refuses to verify less than `KP_REQUIRE` says.
///
/// # Errors
/// A backend that this build or this machine does not have; a variable of the suite that means nothing.
fn check_required(found: &Registry) -> Result<()> {
    for name in kp_testkit::required().map_err(usage)? {
        let built = found.backends.join(", ");
        ensure!(
            found.backends.contains(&&*name),
            usage(format!("KP_REQUIRE asks for `{name}`; backends of this build: {built}"))
        );
        let missing = found.unavailable.iter().find(|one| one.what == name);
        let is_there = found.devices.iter().chain(&found.twins).any(|listed| listed.backend.name() == name);
        let why = missing.map_or_else(|| "it has no device".to_owned(), |one| one.why.clone());
        ensure!(is_there, "KP_REQUIRE asks for {name}: {why}");
    }
    Ok(())
}

/// Passes lines on as they come, as long as that works, and keeps them.
struct Watch {
    text: String,
    partial: Vec<u8>,
    shown: Shown,
    /// Whether a line was shown.
    began: bool,
    /// Why they are passed on no more.
    lost: Option<io::Error>,
}

/// Which lines are passed on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    All,
    /// Tests that failed, why, and how it ended.
    Failures,
    Nothing,
}

impl Watch {
    /// Whether the reader is shown `line`.
    fn shows(&self, line: &str) -> bool {
        let passed = line.starts_with("test ") && line.ends_with(" ... ok\n");
        match self.shown {
            Shown::All => true,
            // Blank lines set failures apart; above the first there is nothing to set apart.
            Shown::Failures => !passed && !line.starts_with("running ") && (self.began || line != "\n"),
            Shown::Nothing => false,
        }
    }
}

impl io::Write for Watch {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.partial.extend_from_slice(bytes);
        while let Some(end) = self.partial.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.partial.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            if self.lost.is_none() && self.shows(&line) {
                let mut stdout = io::stdout();
                self.lost = stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush()).err();
                self.began = true;
            }
            self.text.push_str(&line);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Report {
    passed: usize,
    failed: Vec<String>,
    listed: usize,
    json: Value,
}

/// What the suite's lines say: `test NAME ... ok`, `test NAME ... FAILED`, and `NAME: test` of a list.
fn report(backend: &str, text: &str) -> Report {
    let ended = |end: &'static str| {
        let name = move |line: &str| Some(line.strip_prefix("test ")?.strip_suffix(end)?.to_owned());
        text.lines().filter_map(name).collect::<Vec<String>>()
    };
    let (passed, failed) = (ended(" ... ok"), ended(" ... FAILED"));
    let listed: Vec<&str> = text.lines().filter_map(|line| line.strip_suffix(": test")).collect();
    let mut json = json!({ "backend": backend, "passed": passed.len(), "failed": failed });
    if !listed.is_empty() {
        json["tests"] = json!(listed);
    }
    if let Some(why) = text.lines().find_map(|line| line.strip_prefix("skipped: ")) {
        json["skipped"] = json!(why);
    }
    Report { passed: passed.len(), failed, listed: listed.len(), json }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quiet_run_tells_what_failed_and_how_it_ended() {
        let lines = [
            ("\n", false),
            ("running 3 tests\n", false),
            ("test cpu/gemm/a#0/x ... ok\n", false),
            ("test cpu/norm/c - expected to fail: slow ... ok\n", false),
            ("test cpu/gemm/b#0/x ... FAILED\n", true),
            ("test result: FAILED. 2 passed; 1 failed\n", true),
        ];
        let watch = |shown| Watch { text: String::new(), partial: Vec::new(), shown, began: false, lost: None };
        for (line, told) in lines {
            assert_eq!(watch(Shown::Failures).shows(line), told, "{line}");
            assert!(watch(Shown::All).shows(line) && !watch(Shown::Nothing).shows(line), "{line}");
        }
        assert!(Watch { began: true, ..watch(Shown::Failures) }.shows("\n"));
    }

    #[test]
    fn results_are_read_from_the_lines() {
        let text = "\nrunning 3 tests\ntest cpu/gemm/a#0/x ... ok\ntest cpu/gemm/b#0/x ... FAILED\n\
                    test cpu/norm/c - expected to fail: slow ... ok\n\nfailures:\n";
        let found = report("cpu", text);
        assert_eq!((found.passed, found.failed), (2, vec!["cpu/gemm/b#0/x".to_owned()]));
        assert_eq!(report("cpu", "a: test\nb: test\n\n2 tests, 0 benchmarks\n").json["tests"], json!(["a", "b"]));
        assert_eq!(report("x", "skipped: x unavailable: no driver\n").json["skipped"], "x unavailable: no driver");
    }
}
