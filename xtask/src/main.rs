//! `cargo xtask`: what developers of kp run beside cargo itself.

mod bench;
mod bundle;
mod compilers;
mod model;
mod new;
mod tidy;

use clap::{Parser, Subcommand};
use std::{env, path::PathBuf, process::ExitCode};

/// Tasks of this repository.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

/// One row a task; each lives in the module of its name, those that compile in `compilers`.
#[derive(Subcommand)]
enum Task {
    /// Check what a machine can check of how the code is built and written.
    Tidy,
    /// Start something new from what is there.
    #[command(subcommand)]
    New(new::New),
    /// Run benches on what this machine has and compare them with its records.
    Bench(bench::Args),
    /// Compile device kernels without a device: to check them, or to make the pack that a program embeds.
    Kernels(compilers::Args),
    /// Compile GLSL to the SPIR-V that kp-vulkan embeds; needs a C++ compiler.
    Shaders(compilers::Args),
    /// Pack kp, the backends' tests and benches and a script, for machines without Rust.
    Bundle(bundle::Args),
    /// Bring the weights of a model that the examples and benches use.
    Model(model::Args),
}

fn main() -> ExitCode {
    let done = match Cli::parse().task {
        Task::Tidy => tidy::report(&root()).map(|findings| findings == 0),
        Task::New(new) => new::run(&root(), &new).map(|()| true),
        Task::Bench(args) => bench::run(&root(), &args),
        Task::Kernels(args) => compilers::kernels(&root(), &args),
        Task::Shaders(args) => compilers::shaders(&root(), &args),
        Task::Bundle(args) => bundle::run(&root(), &args).map(|()| true),
        Task::Model(args) => model::run(&root(), &args).map(|()| true),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The root of the repository: the folder above this crate, which cargo names when it runs us.
fn root() -> PathBuf {
    let home = env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    home.parent().expect("xtask stands below the root").to_path_buf()
}
