//! The `kp` program.

mod models;
mod suites;

/// An error of whoever typed the command.
pub(crate) fn usage(message: String) -> anyhow::Error {
    anyhow::Error::msg(message)
}

fn main() {}
