//! Starts the program that compiles device kernels, which is another: it needs the backends, and this one must run while they
//! do not compile.

use anyhow::{Context, Result};
use std::{env, ffi::OsString, path::Path, process::Command};

/// Arguments of that program; `--help` lists them.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<OsString>,
}

/// Builds and runs it; whether it was content.
///
/// # Errors
/// Cargo cannot be run.
pub(crate) fn run(root: &Path, args: &Args) -> Result<bool> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root).args(["run", "--quiet", "-p", "xtask-kernels", "--"]).args(&args.rest);
    Ok(command.status().context("cannot run cargo")?.success())
}
