//! Runs tests and prints like `cargo test`.

use crate::{check::Failure, cli::Options, expected::Expected};
use std::{
    any::Any,
    cell::{Cell, RefCell},
    io::Write,
    panic::{self, AssertUnwindSafe},
    process::ExitCode,
    sync::{
        Mutex, Once,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

/// One test: a name and what it does.
pub(crate) struct Test {
    pub(crate) name: String,
    pub(crate) run: Box<dyn FnOnce() -> Result<(), Failure> + Send>,
}

impl Test {
    pub(crate) fn new(name: String, run: impl FnOnce() -> Result<(), Failure> + Send + 'static) -> Self {
        Self { name, run: Box::new(run) }
    }
}

/// How one test ended.
enum Outcome {
    Passed,
    /// It failed, and the reason was written down beforehand.
    Excused(String),
    Failed(String),
}

/// Runs the tests that `options` asks for, `threads` at a time, and prints to `out`.
pub(crate) fn run(
    tests: Vec<Test>,
    options: &Options,
    expected: &Expected,
    threads: usize,
    out: &mut (dyn Write + Send),
) -> ExitCode {
    let all = tests.len();
    let (tests, left): (Vec<_>, Vec<_>) = tests.into_iter().partition(|test| options.wants(&test.name));
    if options.list {
        tests.iter().for_each(|test| say(out, format_args!("{}: test\n", test.name)));
        if !options.quiet {
            say(out, format_args!("\n{} tests, 0 benchmarks\n", tests.len()));
        }
        return ExitCode::SUCCESS;
    }
    let plural = if tests.len() == 1 { "" } else { "s" };
    say(out, format_args!("\nrunning {} test{plural}\n", tests.len()));
    let start = Instant::now();
    let whole = tests.len() == all;
    let names: Vec<String> = tests.iter().map(|t| t.name.clone()).collect();
    let mut failures = run_all(tests, options, expected, threads, out);
    if whole {
        // An excuse that fits nothing any more is out of date.
        failures.extend(expected.unused(&names));
    }
    if options.quiet {
        say(out, format_args!("\n"));
    }
    report(&failures, out);
    let (failed, passed) = (failures.len(), names.len().saturating_sub(failures.len()));
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    say(
        out,
        format_args!(
            "\ntest result: {verdict}. {passed} passed; {failed} failed; 0 ignored; 0 measured; {} filtered out; \
             finished in {:.2}s\n\n",
            left.len(),
            start.elapsed().as_secs_f64()
        ),
    );
    // 101 is what libtest exits with.
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(101) }
}

fn run_all(
    tests: Vec<Test>,
    options: &Options,
    expected: &Expected,
    threads: usize,
    out: &mut (dyn Write + Send),
) -> Vec<(String, String)> {
    remember_panics();
    let count = tests.len();
    let slots: Vec<Mutex<Option<Test>>> = tests.into_iter().map(|test| Mutex::new(Some(test))).collect();
    let next = AtomicUsize::new(0);
    let shared = Mutex::new((out, Vec::new(), 0_usize));
    let work = || {
        while let Some(slot) = slots.get(next.fetch_add(1, Ordering::Relaxed)) {
            let test = slot.lock().expect("no holder panics").take().expect("each slot is taken once");
            let name = test.name.clone();
            let outcome = judge(expected, &name, caught(test.run));
            let mut shared = shared.lock().expect("no holder panics");
            let (out, failures, done) = &mut *shared;
            *done += 1;
            if options.quiet {
                say(*out, format_args!("{}", if matches!(outcome, Outcome::Failed(_)) { "F" } else { "." }));
                if done.is_multiple_of(88) {
                    say(*out, format_args!(" {done}/{count}\n"));
                }
            } else {
                match &outcome {
                    Outcome::Passed => say(*out, format_args!("test {name} ... ok\n")),
                    Outcome::Excused(why) => say(*out, format_args!("test {name} - expected to fail: {why} ... ok\n")),
                    Outcome::Failed(_) => say(*out, format_args!("test {name} ... FAILED\n")),
                }
            }
            if let Outcome::Failed(message) = outcome {
                failures.push((name, message));
            }
        }
    };
    std::thread::scope(|scope| {
        (1..threads.min(count)).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    shared.into_inner().expect("every thread has ended").1
}

fn judge(expected: &Expected, name: &str, result: Result<(), Failure>) -> Outcome {
    match (result, expected.reason(name)) {
        (Ok(()), None) => Outcome::Passed,
        (Ok(()), Some(why)) => Outcome::Failed(format!("passed, but was expected to fail: {why}")),
        (Err(_), Some(why)) => Outcome::Excused(why.to_owned()),
        (Err(failure), None) => Outcome::Failed(format!("{failure}\n{}", how_to_rerun(name))),
    }
}

fn report(failures: &[(String, String)], out: &mut (dyn Write + Send)) {
    if failures.is_empty() {
        return;
    }
    say(out, format_args!("\nfailures:\n"));
    for (name, message) in failures {
        say(out, format_args!("\n---- {name} stdout ----\n{message}\n"));
    }
    say(out, format_args!("\n\nfailures:\n"));
    failures.iter().for_each(|(name, _)| say(out, format_args!("    {name}\n")));
}

fn how_to_rerun(name: &str) -> String {
    let own = std::env::args().next().unwrap_or_default();
    // Cargo names the crate in the environment and the binary after the test's file.
    let target = std::path::Path::new(&own).file_stem().and_then(|s| s.to_str()).unwrap_or("conformance");
    let target = target.rsplit_once('-').map_or(target, |(target, _)| target);
    match std::env::var("CARGO_PKG_NAME") {
        Ok(package) => format!("rerun: cargo test -p {package} --test {target} -- --exact '{name}'"),
        Err(_) => format!("rerun: {own} --exact '{name}'"),
    }
}

thread_local! {
    /// Where and why this thread panicked last.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
    static IN_TEST: Cell<bool> = const { Cell::new(false) };
}

/// Panics of tests become their message instead of lines between other tests' lines.
fn remember_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if IN_TEST.get() {
                PANIC.with(|p| *p.borrow_mut() = Some(info.to_string()));
            } else {
                before(info);
            }
        }));
    });
}

/// What `run` answers, or how it panicked.
pub(crate) fn caught(run: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    let outer = IN_TEST.replace(true);
    let result = panic::catch_unwind(AssertUnwindSafe(run));
    IN_TEST.set(outer);
    result.unwrap_or_else(|payload| {
        let told = PANIC.with(|p| p.borrow_mut().take());
        Err(told.unwrap_or_else(|| format!("panicked: {}", text_of(&*payload))).into())
    })
}

fn text_of(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("with no message")
}

/// A reader that went away must not end the tests.
fn say(out: &mut (dyn Write + Send), text: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(text).and_then(|()| out.flush());
}
