//! The `kp` program.

mod compare;
mod files;
mod hardware;
mod models;
mod record;
mod suites;
mod units;

/// An error of whoever typed the command.
pub(crate) fn usage(message: String) -> anyhow::Error {
    anyhow::Error::msg(message)
}

fn main() {}
