//! Starts the programs that compile device code. Each is another program, because this one must run where they do not build: one
//! needs the backends, the other a C++ compiler.

use anyhow::{Context, Result};
use std::{env, ffi::OsString, path::Path, process::Command};

/// Arguments of such a program; `--help` lists them.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<OsString>,
}

/// CUDA C++ to cubins; whether it was content.
///
/// # Errors
/// Cargo cannot be run.
pub(crate) fn kernels(root: &Path, args: &Args) -> Result<bool> {
    run(cargo().current_dir(root).args(["run", "--quiet", "-p", "xtask-kernels", "--"]).args(&args.rest))
}

/// GLSL to SPIR-V; whether it was content.
///
/// # Errors
/// Cargo cannot be run.
pub(crate) fn shaders(root: &Path, args: &Args) -> Result<bool> {
    // A workspace of its own, in the target folder that the caller's build shares with everything else of kp.
    let mut cargo = cargo();
    cargo.current_dir(root.join("xtask/shaders")).env("CARGO_TARGET_DIR", root.join("target/shaders"));
    run(cargo.args(["run", "--quiet", "--locked", "--"]).args(&args.rest))
}

fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

fn run(command: &mut Command) -> Result<bool> {
    Ok(command.status().context("cannot run cargo")?.success())
}
