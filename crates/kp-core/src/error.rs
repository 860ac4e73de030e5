//! What can go wrong above the HAL.
//!
//! There are two types, and `?` makes this one of the other. [`Error`] is what opening, tuning and saving return: no device, a wisdom
//! file that cannot be used, or what the HAL said. Tensors, plans, launches and queues return [`kp_hal::Error`] itself, one
//! pointer wide, whose [`kind`](kp_hal::Error::kind) says what happened. A program that does both returns this module's [`Result`] and
//! finds the other in [`Error::Hal`]; problems, types and formats read from text become it too.

use crate::registry::NoDevice;
use kp_hal::{ArgError, BadProblem, Unread};
use std::{error, fmt, io, path::PathBuf};

/// What opening, tuning and the other slow calls return. Calls on the way to a launch return `kp_hal::Result`.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A device, driver, kernel, argument or text; see [`kp_hal::ErrorKind`].
    Hal(kp_hal::Error),
    /// No device, or none that was asked for.
    NoDevice(Box<NoDevice>),
    /// The wisdom file cannot be used as asked; what was measured is still in memory.
    Wisdom {
        /// `read`, `write` or `lock`.
        act: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said, or what the file is.
        why: io::Error,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hal(error) => error.fmt(f),
            Self::NoDevice(error) => error.fmt(f),
            Self::Wisdom { act, path, why } => write!(f, "cannot {act} wisdom {}: {why}", path.display()),
        }
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            // Their own words are this error's, so its cause is theirs.
            Self::Hal(error) => error.source(),
            Self::NoDevice(error) => error.source(),
            Self::Wisdom { why, .. } => why.source(),
        }
    }
}

impl From<kp_hal::Error> for Error {
    fn from(error: kp_hal::Error) -> Self {
        Self::Hal(error)
    }
}

impl From<Box<NoDevice>> for Error {
    fn from(error: Box<NoDevice>) -> Self {
        Self::NoDevice(error)
    }
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

impl From<Unread> for Error {
    fn from(unread: Unread) -> Self {
        Self::Hal(unread.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kp_hal::{DType, op::GemmProblem};

    #[test]
    fn whatever_is_read_from_text_may_fail_as_this() {
        let types = || -> Result<(DType, GemmProblem)> { Ok(("bf16".parse()?, "gemm 1x1x1x1".parse()?)) };
        assert_eq!(types().expect_err("no problem").to_string(), "types is missing");
        let none = || -> Result<DType> { Ok("bf17".parse()?) };
        assert!(none().expect_err("no type").to_string().starts_with("expected one of f64 "));
    }
}
