//! Which keys a query sees.

use super::{
    Expr,
    problem::{BadProblem, at_least},
};
use crate::text::{Unread, number};
use std::{fmt, str::FromStr};

/// Which keys a query sees. `q` is the query's position among the keys: query i of a sequence of `q_len`
/// stands at `i + kv_len − q_len`, so that the last query sees the last key. `k` is the key's position.
/// A query that sees no key gets zeros, and −∞ as its log-sum-exp, or its sink if there are sinks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Mask {
    /// All keys.
    #[default]
    Full,
    /// k ≤ q.
    Causal,
    /// q − left ≤ k ≤ q + right.
    Window {
        /// Keys before the query.
        left: u32,
        /// Keys after it.
        right: u32,
    },
    /// k ≤ q or k < len: a prefix that all see, then causal.
    Prefix {
        /// Keys of the prefix.
        len: u32,
    },
    /// Blocks of `q` queries × `k` keys are seen where the operand `blocks` is not 0: one `U8` per block, row-major
    /// `[ceil(q_len / q)][ceil(kv_len / k)]`, the same for every head and sequence. Queries count from 0 here.
    Blocks {
        /// Queries of a block.
        q: u32,
        /// Keys of a block.
        k: u32,
    },
    /// Where the expression is not 0.
    Expr(Expr),
}

impl Mask {
    /// Whether `q` may see `k` in head `h` of sequence `b`, for every mask that needs no operand.
    ///
    /// `Blocks` answers `true`: its operand decides.
    pub fn sees(&self, q: i64, k: i64, h: u32, b: u32) -> bool {
        match *self {
            Self::Full | Self::Blocks { .. } => true,
            Self::Causal => k <= q,
            Self::Window { left, right } => q - i64::from(left) <= k && k <= q + i64::from(right),
            Self::Prefix { len } => k <= q || k < i64::from(len),
            Self::Expr(ref expr) => expr.eval(super::Vars { q, k, h: h.into(), b: b.into() }) != 0,
        }
    }

    pub(super) fn check(&self) -> Result<(), BadProblem> {
        match *self {
            Self::Blocks { q, k } => {
                at_least("queries of a mask block", 1, q.into())?;
                at_least("keys of a mask block", 1, k.into())
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("full"),
            Self::Causal => f.write_str("causal"),
            Self::Window { left, right } => write!(f, "window/{left}/{right}"),
            Self::Prefix { len } => write!(f, "prefix/{len}"),
            Self::Blocks { q, k } => write!(f, "blocks/{q}/{k}"),
            Self::Expr(expr) => write!(f, "({expr})"),
        }
    }
}

impl Mask {
    pub(super) const FORMS: &'static str =
        "full, causal, window/LEFT/RIGHT, prefix/LEN, blocks/Q/K or an expression in parentheses";
}

impl FromStr for Mask {
    type Err = Unread;
    /// # Errors
    /// [`Unread`] with the form expected.
    fn from_str(s: &str) -> Result<Self, Unread> {
        const BAD: Unread = Unread { expected: Mask::FORMS };
        if let Some(inner) = s.strip_prefix('(').and_then(|s| s.strip_suffix(')')) {
            return inner.parse().map(Self::Expr);
        }
        let mut parts = s.split('/');
        let name = parts.next().ok_or(BAD)?;
        let mut next = || parts.next().and_then(number).ok_or(BAD);
        let mask = match name {
            "full" => Self::Full,
            "causal" => Self::Causal,
            "window" => Self::Window { left: next()?, right: next()? },
            "prefix" => Self::Prefix { len: next()? },
            "blocks" => Self::Blocks { q: next()?, k: next()? },
            _ => return Err(BAD),
        };
        if parts.next().is_some() { Err(BAD) } else { Ok(mask) }
    }
}
