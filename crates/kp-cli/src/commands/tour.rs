//! `kp` without a command: what this machine has, who competes for real problems, who wins, how fast, how exact.

use super::{bench, explain, info};
use crate::{Global, output::Output, suites, usage};
use anyhow::{Result, bail};
use clap::Parser;

/// The commands of the tour, as they would be typed.
#[derive(Parser)]
struct Info {
    #[command(flatten)]
    args: info::Args,
}

#[derive(Parser)]
struct Bench {
    #[command(flatten)]
    args: bench::Args,
}

const SUITE: &str = "tour";

/// Shows the devices, explains the choice for each problem of the tour, then measures all candidates.
///
/// # Errors
/// A device that is not there or fails; `--json`, which wants one command's result.
pub(crate) fn run(global: &Global, out: &mut Output) -> Result<bool> {
    if out.json {
        bail!(usage("--json needs a command, such as `kp info --json` or `kp bench tour --json`".into()));
    }
    let Info { args } = Info::parse_from(["kp"]);
    info::run(global, &args, out)?;
    out.print("\nwho could run what, and who is expected to win (kp explain PROBLEM):\n")?;
    let engine = global.open(out)?;
    for suite in suites::resolve(&[SUITE.to_owned()])? {
        for line in suite.sections.iter().flat_map(|section| &section.lines) {
            out.print(&format!("\n{}\n{}", line.text, explain::explain(&engine, &line.problem)))?;
        }
    }
    out.print("\nmeasured here and now, errors against an f64 reference as a share of the bound (kp bench tour):\n")?;
    let Bench { args } = Bench::parse_from(["kp", SUITE, "--budget", "300ms"]);
    bench::run(global, &args, out)
}
