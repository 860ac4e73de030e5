//! Starts the program that compiles shaders, which is a workspace of its own: it builds a compiler written in C++.

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
    command.current_dir(root.join("xtask/shaders")).args(["run", "--quiet", "--locked", "--"]).args(&args.rest);
    // The folder that the caller's build shares with everything else of kp.
    command.env("CARGO_TARGET_DIR", root.join("target/shaders"));
    Ok(command.status().context("cannot run cargo")?.success())
}
