//! How the sequences of an attention are stored.

use crate::text::{Unread, number, spelled};
use std::{fmt, str::FromStr};

/// How heads and tokens are nested, outermost first. Sequences lie one behind the other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum HeadLayout {
    /// `[batch][len][heads][dim]`: a token's heads are adjacent; `ld` is at least `heads · dim`.
    #[default]
    Bshd,
    /// `[batch][heads][len][dim]`: a head's tokens are adjacent; `ld` is at least `dim`.
    Bhsd,
}
spelled!(HeadLayout { Bshd = "bshd", Bhsd = "bhsd" });

/// How sequences of different lengths are stored.
///
/// Lengths and offsets are data, so they may be anything: kernels take one below 0 as 0, an offset past the total as the total and a
/// length past `q_len` or `kv_len` as that, and touch nothing outside. If offsets do not ascend, what tokens that two sequences claim become is
/// not said.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Lens {
    /// All have `q_len` queries and `kv_len` keys.
    #[default]
    Fixed,
    /// Room for `kv_len` keys each, of which the first `kv_lens[b]` count.
    Padded,
    /// One behind the other: tokens `q_offsets[b] .. q_offsets[b + 1]` of `q_total`, and likewise keys. Paged keys
    /// have no offsets; `kv_lens[b]` counts them. Rows of O, LSE and gradients that belong to no sequence are not written.
    Packed {
        /// Queries of all sequences.
        q_total: u32,
        /// Keys of all sequences; 0 if paged.
        kv_total: u32,
    },
}

/// How K and V are stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Kv {
    /// As `layout` and `lens` say.
    #[default]
    Dense,
    /// In pages of `page` tokens anywhere in a pool of `pages`, each laid out as one sequence of a batch.
    /// Token t of sequence b is token `t % page` of page `page_table[b · ceil(kv_len / page) + t / page]`. Kernels take a number below 0
    /// as 0 and one past the pool as its last page; of a pool without pages no sequence has keys.
    Paged {
        /// Tokens of a page.
        page: u32,
        /// Pages of the pool.
        pages: u32,
    },
}

/// Two numbers, written once if equal: `32:8`, `128`.
pub(super) struct Pair(pub(super) u32, pub(super) u32);

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == self.1 { write!(f, "{}", self.0) } else { write!(f, "{}:{}", self.0, self.1) }
    }
}

impl FromStr for Pair {
    type Err = Unread;
    fn from_str(s: &str) -> Result<Self, Unread> {
        const BAD: Unread = Unread { expected: "N or N:N" };
        let (one, other) = s.split_once(':').unwrap_or((s, s));
        Ok(Self(number(one).ok_or(BAD)?, number(other).ok_or(BAD)?))
    }
}

impl fmt::Display for Lens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed => f.write_str("fixed"),
            Self::Padded => f.write_str("padded"),
            Self::Packed { q_total, kv_total } => write!(f, "packed/{q_total}/{kv_total}"),
        }
    }
}

impl FromStr for Lens {
    type Err = Unread;
    /// # Errors
    /// [`Unread`] with the form expected.
    fn from_str(s: &str) -> Result<Self, Unread> {
        const BAD: Unread = Unread { expected: "fixed, padded or packed/Q/KV" };
        match s {
            "fixed" => Ok(Self::Fixed),
            "padded" => Ok(Self::Padded),
            _ => {
                let (q, kv) = s.strip_prefix("packed/").and_then(|s| s.split_once('/')).ok_or(BAD)?;
                Ok(Self::Packed { q_total: number(q).ok_or(BAD)?, kv_total: number(kv).ok_or(BAD)? })
            }
        }
    }
}

impl FromStr for Kv {
    type Err = Unread;
    /// # Errors
    /// [`Unread`] with the form expected.
    fn from_str(s: &str) -> Result<Self, Unread> {
        const BAD: Unread = Unread { expected: "TOKENS/PAGES" };
        let (page, pages) = s.split_once('/').ok_or(BAD)?;
        Ok(Self::Paged { page: number(page).ok_or(BAD)?, pages: number(pages).ok_or(BAD)? })
    }
}
