//! The `kp` program: what this machine has, which kernel wins and why, how fast and how exact.

mod commands;
mod compare;
mod files;
mod hardware;
mod measure;
mod models;
mod operands;
mod output;
mod record;
mod report;
mod suites;
mod timing;
mod units;

use clap::{Parser, Subcommand};
use kp_core::{Engine, registry::NoDevice};
use output::Output;
use std::{
    cell::Cell,
    fmt,
    io::{self, Write},
    process::ExitCode,
};

/// Finds this machine's hardware and its fastest correct kernels for matrix products, attention and narrow numbers.
#[derive(Parser)]
#[command(name = "kp", version, max_term_width = 110)]
struct Cli {
    #[command(flatten)]
    global: Global,
    /// Without a command: a tour of them on a few problems of real models
    #[command(subcommand)]
    command: Option<Command>,
}

/// What every command understands.
#[derive(clap::Args)]
pub(crate) struct Global {
    /// The device: a backend (`cpu`), one of its devices (`nvidia:1`) or part of a device's name; else what KP_DEVICE says, else
    /// the best
    #[arg(long, global = true, value_name = "NAME")]
    device: Option<String>,
    /// Print JSON instead of text
    #[arg(long, global = true)]
    json: bool,
    /// Print results only: no progress, no remarks
    #[arg(long, short, global = true)]
    quiet: bool,
    /// Whether it was said what of the wisdom file is not used: the tour opens the device for each of its parts.
    #[arg(skip)]
    warned: Cell<bool>,
}

impl Global {
    /// Opens the device, and says what of the wisdom file is not used.
    ///
    /// # Errors
    /// What there is instead, if there is no such device.
    pub(crate) fn open(&self, out: &Output) -> anyhow::Result<Engine> {
        let builder = Engine::builder();
        let builder = match &self.device {
            Some(name) => builder.device(name.clone()),
            None => builder,
        };
        match builder.open() {
            Err(kp_core::Error::NoDevice(none)) => Err(no_device(&none)),
            opened => {
                let engine = opened?;
                let warnings = if self.warned.replace(true) { Vec::new() } else { engine.wisdom_warnings() };
                warnings.iter().take(SHOWN).for_each(|warning| out.remark(&format!("wisdom: {warning}")));
                if warnings.len() > SHOWN {
                    out.remark(&format!("wisdom: and {} more lines", warnings.len() - SHOWN));
                }
                Ok(engine)
            }
        }
    }
}

/// Lines of a damaged wisdom file that are shown.
const SHOWN: usize = 3;

/// One row a command; each lives in the module of its name.
#[derive(Subcommand)]
enum Command {
    /// Show the devices, what they can do, and what was looked for and not found
    Info(commands::info::Args),
    /// Show every kernel's answer to a problem: its time, or why it cannot
    Explain(commands::explain::Args),
    /// Run the best kernel on random operands: its time, its error, its name
    Run(commands::run::Args),
    /// Test every kernel of this machine against the f64 reference
    Verify(commands::verify::Args),
    /// Time every kernel on a suite, a problem or a model
    Bench(Box<commands::bench::Args>),
    /// Draw records as one HTML page
    Report(commands::report::Args),
    /// Measure kernels and remember the fastest
    Tune(commands::tune::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut out = Output::new(&cli.global);
    let done = match cli.command {
        Some(Command::Info(args)) => commands::info::run(&cli.global, &args, &mut out),
        Some(Command::Explain(args)) => commands::explain::run(&cli.global, &args, &mut out),
        Some(Command::Run(args)) => commands::run::run(&cli.global, &args, &mut out),
        Some(Command::Verify(args)) => commands::verify::run(&cli.global, &args, &mut out),
        Some(Command::Bench(args)) => commands::bench::run(&cli.global, &args, &mut out),
        Some(Command::Report(args)) => commands::report::run(&args, &mut out),
        Some(Command::Tune(args)) => commands::tune::run(&cli.global, &args, &mut out),
        None => commands::tour::run(&cli.global, &mut out),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // Whoever read us has seen enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // A reader that went away has the exit code.
            drop(writeln!(io::stderr(), "error: {}", format!("{error:#}").replace('\n', " ")));
            if error.is::<Usage>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

/// A mistake in the command line rather than a failure of the machine.
#[derive(Debug)]
struct Usage(String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// An error of whoever typed the command: exit code 2.
pub(crate) fn usage(message: String) -> anyhow::Error {
    Usage(message).into()
}

/// The error that a device is not there: of whoever typed a name that nothing has, as an option or a variable, else of the machine.
pub(crate) fn no_device(none: &NoDevice) -> anyhow::Error {
    if none.is_unknown() { usage(none.to_string()) } else { anyhow::Error::msg(none.to_string()) }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>()).any(|e| e.kind() == io::ErrorKind::BrokenPipe)
}
