//! Starts something new from what is there.

use anyhow::Result;
use std::path::Path;

/// What to start.
#[derive(clap::Subcommand)]
pub(crate) enum New {
    /// Start a backend as a copy of kp-null, the one that runs nothing.
    Backend {
        /// The backend's name without `kp-`.
        name: String,
    },
}

/// Writes the files.
pub(crate) fn run(_root: &Path, _new: &New) -> Result<()> {
    Ok(())
}
