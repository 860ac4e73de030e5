//! The suite: every kernel and variant of a backend on every problem it supports, and the chapters.

use crate::{
    cases::found,
    chapters,
    check::{Case, Failure, agreed, judge_case},
    cli::{Options, USAGE},
    expected::Expected,
    judge::Depth,
    judges::judge_of,
    runner::{self, Test},
    vectors,
};
use kp_hal::{
    Backend, Device, DeviceKind, Kernel, Kernels, Label, Variant,
    op::{EachOp, Op, Problem, Repro, each_op},
};
use std::{io::Write, process::ExitCode, sync::Arc};

/// The conformance suite of one backend.
///
/// In the backend's crate, `tests/conformance.rs` with `harness = false` is three lines:
///
/// ```no_run
/// # static BACKEND: &dyn kp_hal::Backend = { struct B; impl kp_hal::Backend for B {
/// #     fn name(&self) -> &'static str { "b" }
/// #     fn devices(&self) -> kp_hal::Result<Vec<kp_hal::DeviceInfo>> { Ok(vec![]) }
/// #     fn open(&self, _: u32) -> kp_hal::Result<std::sync::Arc<dyn kp_hal::Device>> { unreachable!() }
/// #     fn kernels(&self) -> &'static kp_hal::Kernels { &kp_hal::Kernels::NONE }
/// # } &B };
/// fn main() -> std::process::ExitCode {
///     kp_testkit::main(BACKEND)
/// }
/// ```
#[derive(Clone)]
pub struct Suite {
    backend: &'static dyn Backend,
    expected: Result<Expected, String>,
    depth: Option<Depth>,
    always_there: bool,
}

/// As [`Suite::new`].
impl From<&'static dyn Backend> for Suite {
    fn from(backend: &'static dyn Backend) -> Self {
        Self::new(backend)
    }
}

/// Runs the suite of `backend` as a test binary's `main`.
pub fn main(backend: &'static dyn Backend) -> ExitCode {
    Suite::new(backend).main()
}

impl Suite {
    /// The suite of `backend`; no failure is expected.
    pub fn new(backend: &'static dyn Backend) -> Self {
        Self { backend, expected: Ok(Expected::default()), depth: None, always_there: false }
    }

    /// Every machine has a device of this backend: none is a failure, as where `KP_REQUIRE` names it.
    #[must_use]
    pub fn always_there(self) -> Self {
        Self { always_there: true, ..self }
    }

    /// The backend.
    #[cfg(feature = "random")]
    pub(crate) fn backend(&self) -> &'static dyn Backend {
        self.backend
    }

    /// Names tests that must fail: the text of `tests/expected_failures.toml`, which has `[[failure]]` entries with a
    /// `pattern` (part of a test's name) and a `reason`. One that passes, or fits no test, is a failure.
    #[must_use]
    pub fn expect_failures(self, toml: &str) -> Self {
        Self { expected: Expected::parse(toml), ..self }
    }

    /// How many cases to judge, whatever `KP_DEPTH` says.
    #[must_use]
    pub fn depth(self, depth: Depth) -> Self {
        Self { depth: Some(depth), ..self }
    }

    /// Runs it with the arguments and environment of this process.
    pub fn main(self) -> ExitCode {
        let suite = self.clone();
        self.main_of(|device, settings| suite.tests(device, settings))
    }

    /// Runs other tests than the suite's.
    pub(crate) fn main_of(self, tests: impl FnOnce(&Arc<dyn Device>, &Settings) -> Vec<Test>) -> ExitCode {
        let mut out = std::io::stdout();
        match Options::parse(std::env::args().skip(1)) {
            Ok(options) => self.run(&options, tests, &mut out),
            Err(e) => {
                eprintln!("error: {e}");
                ExitCode::from(2)
            }
        }
    }

    /// Runs it with other arguments, printing to `out`. For programs that verify a machine, and for tests.
    pub fn run_with(self, args: &[&str], out: &mut (dyn Write + Send)) -> ExitCode {
        let suite = self.clone();
        match Options::parse(args.iter().map(|s| (*s).to_owned())) {
            Ok(options) => self.run(&options, |device, settings| suite.tests(device, settings), out),
            Err(e) => {
                let _ = writeln!(out, "error: {e}");
                ExitCode::from(2)
            }
        }
    }

    fn run(
        self,
        options: &Options,
        tests: impl FnOnce(&Arc<dyn Device>, &Settings) -> Vec<Test>,
        out: &mut (dyn Write + Send),
    ) -> ExitCode {
        // A reader that went away must not end the tests, so what writing returns does not matter here.
        let mut say = |text: String| drop(writeln!(out, "{text}"));
        if options.help {
            say(USAGE.into());
            return ExitCode::SUCCESS;
        }
        let settings = Settings::read().and_then(|settings| Ok((settings, self.expected.clone()?)));
        let (settings, expected) = match settings {
            Ok(settings) => settings,
            Err(e) => {
                say(format!("error: {e}"));
                return ExitCode::from(2);
            }
        };
        let device = match self.open(settings.device) {
            Ok(device) => device,
            Err(why) => {
                let asked = settings.required.iter().any(|name| name == self.backend.name());
                if options.list {
                    return ExitCode::SUCCESS;
                }
                if !(asked || self.always_there) {
                    say(format!("skipped: {why}"));
                    return runner::run(Vec::new(), options, &Expected::default(), 1, out);
                }
                let name = format!("{}/available", self.backend.name());
                let reason = if asked { "KP_REQUIRE asks for it" } else { "every machine has one" };
                let test = Test::new(name, move || Err(format!("{reason}, but {why}").into()));
                return runner::run(vec![test], &Options::default(), &Expected::default(), 1, out);
            }
        };
        let on_host = device.caps().kind == DeviceKind::Cpu;
        let host_threads = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = options.threads.unwrap_or(if on_host { host_threads } else { 1 });
        let settings = Settings { depth: self.depth.unwrap_or(settings.depth), ..settings };
        runner::run(tests(&device, &settings), options, &expected, threads, out)
    }

    fn open(&self, index: usize) -> Result<Arc<dyn Device>, String> {
        let devices = self.backend.devices().map_err(|e| e.to_string())?;
        let name = self.backend.name();
        let info = devices.get(index).ok_or_else(|| {
            let numbers: Vec<_> = devices.iter().map(|info| info.index.to_string()).collect();
            format!("{name} unavailable: KP_DEVICE_INDEX is {index}, there is {}", numbers.join(", "))
        })?;
        self.backend.open(info.index).map_err(|e| e.to_string())
    }

    fn tests(&self, device: &Arc<dyn Device>, settings: &Settings) -> Vec<Test> {
        let mut made = Maker {
            backend: self.backend.name(),
            kernels: self.backend.kernels(),
            device,
            settings,
            tests: chapters::tests(self.backend, device),
        };
        each_op(&mut made);
        made.tests
    }
}

/// What the environment says.
pub(crate) struct Settings {
    required: Vec<String>,
    depth: Depth,
    pub(crate) seed: u64,
    device: usize,
}

/// The backends that `KP_REQUIRE` names, for programs that run suites one after the other.
///
/// # Errors
/// A variable of the suite whose value means nothing, and what it may be.
pub fn required() -> Result<Vec<String>, String> {
    Settings::read().map(|settings| settings.required)
}

impl Settings {
    fn read() -> Result<Self, String> {
        let var =
            |name: &str| std::env::var_os(name).map(|v| v.to_string_lossy().into_owned()).filter(|v| !v.is_empty());
        let number = |name: &str| match var(name) {
            Some(text) => text.parse::<u64>().map_err(|_| format!("{name} must be a whole number, got `{text}`")),
            None => Ok(0),
        };
        let depth = match var("KP_DEPTH").as_deref() {
            None | Some("quick") => Depth::Quick,
            Some("full") => Depth::Full,
            Some(other) => return Err(format!("KP_DEPTH must be quick or full, got `{other}`")),
        };
        let required = var("KP_REQUIRE").unwrap_or_default();
        let required = required.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect();
        Ok(Self { required, depth, seed: number("KP_SEED")?, device: number("KP_DEVICE_INDEX")? as usize })
    }
}

/// Makes the tests of every op.
struct Maker<'s> {
    backend: &'static str,
    kernels: &'static Kernels,
    device: &'s Arc<dyn Device>,
    settings: &'s Settings,
    tests: Vec<Test>,
}

impl EachOp for Maker<'_> {
    fn op<O: Op>(&mut self) {
        let kernels = O::kernels(self.kernels);
        if kernels.is_empty() {
            return;
        }
        let prefix = format!("{}/{}", self.backend, O::NAME);
        let Some(judge) = judge_of::<O>() else {
            let why = format!("{} has kernels but no judge", O::NAME);
            return self.tests.push(Test::new(format!("{prefix}/judged"), move || Err(why.into())));
        };
        let floor = (judge.floor)();
        let mut texts: Vec<String> = floor.iter().map(|&text| text.to_owned()).collect();
        let mut seen: std::collections::HashSet<String> = texts.iter().cloned().collect();
        let found = found::lines(O::NAME).map(str::to_owned);
        let cases = (judge.cases)(self.settings.depth).into_iter().chain(found);
        texts.extend(cases.filter(|text| seen.insert(text.clone())));
        if self.settings.depth == Depth::Full {
            texts.extend((judge.large)().iter().map(|&text| text.to_owned()));
        }
        for (i, text) in texts.into_iter().enumerate() {
            let problem: Problem<O::Spec> = match text.parse() {
                Ok(problem) => problem,
                Err(e) => {
                    let why = format!("`{text}` is no problem: {e}");
                    self.tests.push(Test::new(format!("{prefix}/cases/{text}"), move || Err(why.into())));
                    continue;
                }
            };
            let case = Arc::new(Case::<O>::new(problem, judge, self.settings.seed));
            let candidates = candidates(kernels, self.device, &problem);
            if i < floor.len() {
                self.floor::<O>(&prefix, &problem, &candidates);
            }
            if problem.repro() == Repro::BatchInvariant && candidates.len() > 1 {
                let (device, case, candidates) = (self.device.clone(), case.clone(), candidates.clone());
                let test = move || agreed(&device, &candidates, &case);
                self.tests.push(Test::new(format!("{prefix}/agreed/{problem}"), test));
            }
            for (kernel, variant) in candidates {
                let label = Label { kernel: kernel.name(), variant };
                let (device, case) = (self.device.clone(), case.clone());
                self.tests.push(Test::new(format!("{prefix}/{label}/{problem}"), move || {
                    judge_case(&device, kernel, variant, &case)
                }));
            }
        }
        self.tests.extend(vectors::tests::<O>(self.backend, self.device, kernels));
    }
}

impl Maker<'_> {
    /// A problem of the floor must have a kernel.
    fn floor<O: Op>(&mut self, prefix: &str, problem: &Problem<O::Spec>, found: &[(&'static dyn Kernel<O>, Variant)]) {
        let caps = self.device.caps();
        let reasons = O::kernels(self.kernels).iter().filter_map(|kernel| {
            let why = kernel.supports(caps, problem).err()?;
            Some(format!("{}: {why}", kernel.name()))
        });
        let result = match found.is_empty() {
            true => Err(format!("no kernel runs it: {}", reasons.collect::<Vec<_>>().join("; "))),
            false => Ok(()),
        };
        self.tests.push(Test::new(format!("{prefix}/floor/{problem}"), move || result.map_err(Failure::from)));
    }
}

/// Every kernel and variant that supports `problem`, in the backend's order.
pub(crate) fn candidates<O: Op>(
    kernels: &[&'static dyn Kernel<O>],
    device: &Arc<dyn Device>,
    problem: &Problem<O::Spec>,
) -> Vec<(&'static dyn Kernel<O>, Variant)> {
    let variants = |kernel: &&'static dyn Kernel<O>| {
        let variants = kernel.supports(device.caps(), problem).map(|v| v.iter().collect::<Vec<_>>());
        (*kernel, variants.unwrap_or_default())
    };
    let each = kernels.iter().map(variants);
    each.flat_map(|(kernel, variants)| variants.into_iter().map(move |variant| (kernel, variant))).collect()
}
