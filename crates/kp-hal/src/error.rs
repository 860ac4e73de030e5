//! One error type, one pointer wide. Messages say what was asked, what was found, and the unit.
//!
//! It is what kp-hal and the backends return, and in kp-core what works on an engine that is open: tensors, plans, launches, queues.
//! What opens, tunes or saves returns `kp_core::Error`, which holds this one as `Hal`; `?` makes the one of the other.

use crate::{
    fault::Fault,
    op::{ArgError, BadProblem},
    support::Unsupported,
    text::Unread,
};
use std::{borrow::Cow, fmt};

/// What every fallible call returns.
pub type Result<T> = std::result::Result<T, Error>;

/// Errors are rare, so they live on the heap and `Result<()>` fits a register.
#[derive(Debug, Clone, PartialEq)]
pub struct Error(Box<ErrorKind>);

/// What went wrong.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A driver, library, device or ability is absent. Expected on most machines; callers skip.
    Unavailable {
        /// What was wanted: `nvidia`, `peer copies`.
        what: &'static str,
        /// What was looked for and not found.
        why: Cow<'static, str>,
    },
    /// The device has no room.
    OutOfMemory {
        /// Bytes asked for.
        wanted: u64,
        /// Bytes free when asked.
        free: u64,
        /// Bytes the device has.
        total: u64,
    },
    /// The problem makes no sense, or its text does not parse.
    BadProblem(BadProblem),
    /// A text is none of what it may be: of a type, a format, a setting. Whole problems have `BadProblem`.
    Unread(Unread),
    /// No kernel runs the problem: each kernel asked, with its reason, best first.
    Unsupported(Vec<(&'static str, Unsupported)>),
    /// The caller passed buffers that do not fit the problem.
    BadArgs(ArgError),
    /// The caller passed tensors that do not go together. Found above this crate, before there is a problem.
    BadOperands(BadOperands),
    /// A call that cannot be recorded was made while capturing.
    NotCapturable {
        /// The call.
        what: &'static str,
    },
    /// The driver refused a call.
    Driver(DriverError),
    /// Work submitted earlier failed. Sticky: the queue returns it until dropped.
    Fault(Fault),
}

/// Tensors that do not go together; prints as `matmul: a is 4x5, b is 6x7: columns of a must equal rows of b`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadOperands {
    /// What was called: `matmul`.
    pub op: &'static str,
    /// Each tensor that matters: its name, and its shape or format.
    pub operands: Vec<(&'static str, String)>,
    /// What should hold.
    pub rule: Cow<'static, str>,
}

/// A driver's refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverError {
    /// The function called.
    pub call: &'static str,
    /// What it returned.
    pub code: i64,
    /// What the driver calls that.
    pub text: Cow<'static, str>,
}

impl Error {
    /// What went wrong.
    pub fn kind(&self) -> &ErrorKind {
        &self.0
    }

    /// What went wrong, owned.
    pub fn into_kind(self) -> ErrorKind {
        *self.0
    }

    /// Whether something is merely absent, so that a caller may go on without it.
    pub fn is_unavailable(&self) -> bool {
        matches!(*self.0, ErrorKind::Unavailable { .. })
    }
}

impl<T: Into<ErrorKind>> From<T> for Error {
    #[cold]
    fn from(kind: T) -> Self {
        Self(Box::new(kind.into()))
    }
}

macro_rules! from {
    ($($part:ident => $kind:ident),*) => {$(
        impl From<$part> for ErrorKind {
            fn from(part: $part) -> Self {
                Self::$kind(part)
            }
        }
    )*};
}
from!(ArgError => BadArgs, BadOperands => BadOperands, BadProblem => BadProblem, DriverError => Driver, Fault => Fault, Unread => Unread);

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable { what, why } => write!(f, "{what} unavailable: {why}"),
            Self::OutOfMemory { wanted, free, total } => {
                write!(f, "out of memory: wanted {wanted} bytes, {free} of {total} are free")
            }
            Self::BadProblem(bad) => bad.fmt(f),
            Self::Unread(unread) => unread.fmt(f),
            Self::Unsupported(reasons) => match &reasons[..] {
                [] => f.write_str("unsupported: the backend has no kernel of this op"),
                [(kernel, why), rest @ ..] => {
                    write!(f, "unsupported: {kernel}: {why}")?;
                    rest.iter().try_for_each(|(kernel, why)| write!(f, "; {kernel}: {why}"))
                }
            },
            Self::BadArgs(bad) => bad.fmt(f),
            Self::BadOperands(bad) => bad.fmt(f),
            Self::NotCapturable { what } => write!(f, "{what} cannot be captured"),
            Self::Driver(driver) => driver.fmt(f),
            Self::Fault(fault) => fault.fmt(f),
        }
    }
}

impl fmt::Display for BadOperands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.op)?;
        for (i, (name, is)) in self.operands.iter().enumerate() {
            write!(f, "{} {name} is {is}", if i == 0 { ':' } else { ',' })?;
        }
        write!(f, ": {}", self.rule)
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call, code, text } = self;
        write!(f, "{call} returned {code}: {text}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_one_pointer() {
        assert_eq!(size_of::<Result<()>>(), size_of::<usize>());
    }

    #[test]
    fn a_text_that_does_not_parse_is_an_error() {
        let parse = |text: &str| -> Result<crate::DType> { Ok(text.parse()?) };
        assert_eq!(parse("bf16"), Ok(crate::DType::Bf16));
        let error = parse("bf17").expect_err("there is no such type");
        assert!(matches!(error.kind(), ErrorKind::Unread(_)) && error.to_string().starts_with("expected one of f64 "));
    }

    #[test]
    fn messages_name_the_numbers() {
        let shapes = BadOperands {
            op: "matmul",
            operands: vec![("a", "4x5".into()), ("b", "6x7".into())],
            rule: "columns of a must equal rows of b".into(),
        };
        assert_eq!(Error::from(shapes).to_string(), "matmul: a is 4x5, b is 6x7: columns of a must equal rows of b");
        let full = Error::from(ErrorKind::OutOfMemory { wanted: 10, free: 4, total: 8 });
        assert_eq!(full.to_string(), "out of memory: wanted 10 bytes, 4 of 8 are free");
    }
}
