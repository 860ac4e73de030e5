//! What can go wrong above the HAL.

use crate::registry::NoDevice;
use kp_hal::{ArgError, BadProblem};
use std::{io, path::PathBuf};

/// What opening, tuning and the other slow calls return. Calls on the way to a launch return `kp_hal::Result`.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device, driver, kernel or argument; see [`kp_hal::ErrorKind`].
    #[error(transparent)]
    Hal(#[from] kp_hal::Error),
    /// No device, or none that was asked for.
    #[error(transparent)]
    NoDevice(#[from] Box<NoDevice>),
    /// The wisdom file cannot be used as asked; what was measured is still in memory.
    #[error("cannot {act} wisdom {}: {why}", path.display())]
    Wisdom {
        /// `read`, `write` or `lock`.
        act: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said, or what the file is.
        #[source]
        why: io::Error,
    },
}

impl From<BadProblem> for Error {
    fn from(bad: BadProblem) -> Self {
        Self::Hal(bad.into())
    }
}

impl From<ArgError> for Error {
    fn from(bad: ArgError) -> Self {
        Self::Hal(bad.into())
    }
}
