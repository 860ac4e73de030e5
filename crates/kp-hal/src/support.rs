//! A kernel's answer to "can you run this?": the variants that can, or the reason none can.

use crate::{caps::DeviceKind, dtype::DType};
use std::fmt;

/// Which variants run a problem, or the first reason none does.
pub type Support = Result<Variants, Unsupported>;

/// A tile shape or other choice inside one kernel; an index into its own table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Variant(pub u8);

/// A set of at most 64 variants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Variants(u64);

impl Variants {
    /// Variant 0 alone, for kernels that have no choice to make.
    pub const ONE: Self = Self(1);

    /// All of `0..n`.
    ///
    /// # Panics
    /// If `n` is 0 or exceeds 63.
    pub const fn first(n: u8) -> Self {
        assert!(0 < n && n < 64, "from 1 to 63 variants");
        Self((1 << n) - 1)
    }

    /// Those of `0..n` for which `keep` holds, or `otherwise` if none do.
    ///
    /// # Errors
    /// `otherwise`.
    ///
    /// # Panics
    /// If `n` exceeds 64.
    pub fn filter(n: u8, otherwise: Unsupported, keep: impl Fn(Variant) -> bool) -> Support {
        assert!(n <= 64, "a kernel has at most 64 variants, got {n}");
        let bits = (0..n).filter(|&i| keep(Variant(i))).fold(0, |bits, i| bits | 1 << i);
        if bits == 0 { Err(otherwise) } else { Ok(Self(bits)) }
    }

    /// Whether `variant` is in the set.
    pub fn contains(self, variant: Variant) -> bool {
        variant.0 < 64 && self.0 >> variant.0 & 1 == 1
    }

    /// The variants, lowest first.
    pub fn iter(self) -> impl Iterator<Item = Variant> {
        (0..64).map(Variant).filter(move |&v| self.contains(v))
    }
}

/// Why a kernel will not run a problem. Holds the numbers, not a sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Unsupported {
    /// A dimension does not divide.
    Align {
        /// The dimension as the problem spells it.
        dim: &'static str,
        /// What it must be a multiple of.
        multiple: u64,
        /// What it is.
        got: u64,
    },
    /// Addresses are not promised to be aligned enough.
    Address {
        /// Bytes needed.
        need: u32,
        /// Bytes promised by the problem.
        got: u32,
    },
    /// The device is of another architecture.
    Arch {
        /// What is needed: `sm_90a`.
        need: &'static str,
        /// What the device is.
        got: String,
    },
    /// The device lacks an ability.
    Feature {
        /// The ability as the vendor spells it: `avx512_bf16`.
        need: &'static str,
    },
    /// The device is of another kind.
    Kind {
        /// What it is.
        got: DeviceKind,
    },
    /// An operand has a type this kernel does not read or write.
    DType {
        /// The operand.
        operand: &'static str,
        /// Its type.
        got: DType,
    },
    /// An operand has a layout this kernel does not read or write.
    Layout {
        /// The operand.
        operand: &'static str,
        /// Its layout as the problem spells it.
        got: String,
    },
    /// An operand is scaled in a way this kernel does not know.
    Scheme {
        /// The operand.
        operand: &'static str,
        /// Its scheme as the problem spells it.
        got: String,
    },
    /// An option of the problem that this kernel does not implement.
    Option {
        /// The option as the problem spells it.
        option: &'static str,
        /// Its value.
        got: String,
    },
    /// A workgroup needs more shared memory than there is.
    SharedMemory {
        /// Bytes needed.
        need: u64,
        /// Bytes there are.
        have: u64,
    },
    /// A size is past what this kernel can index or was made for.
    TooLarge {
        /// The dimension as the problem spells it.
        dim: &'static str,
        /// The most it may be.
        max: u64,
        /// What it is.
        got: u64,
    },
    /// A size is below what this kernel was made for.
    TooSmall {
        /// The dimension as the problem spells it.
        dim: &'static str,
        /// The least it may be.
        min: u64,
        /// What it is.
        got: u64,
    },
    /// The promised reproducibility is more than this kernel gives.
    Repro {
        /// What the problem asks for.
        asked: crate::op::Repro,
    },
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Align { dim, multiple, got } => write!(f, "{dim} must be a multiple of {multiple}, got {got}"),
            Self::Address { need, got } => write!(f, "addresses must be aligned to {need} bytes, got {got}"),
            Self::Arch { need, got } => write!(f, "needs {need}, device is {got}"),
            Self::Feature { need } => write!(f, "needs {need}"),
            Self::Kind { got } => write!(f, "not made for a device of kind {got:?}"),
            Self::DType { operand, got } => write!(f, "{operand} cannot be {got}"),
            Self::Layout { operand, got } => write!(f, "{operand} cannot be laid out as {got}"),
            Self::Scheme { operand, got } => write!(f, "{operand} cannot be scaled by {got}"),
            Self::Option { option, got } => write!(f, "{option} cannot be {got}"),
            Self::SharedMemory { need, have } => write!(f, "needs {need} bytes of shared memory, device has {have}"),
            Self::TooLarge { dim, max, got } => write!(f, "{dim} may be at most {max}, got {got}"),
            Self::TooSmall { dim, min, got } => write!(f, "{dim} must be at least {min}, got {got}"),
            Self::Repro { asked } => write!(f, "cannot promise repro={asked}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_keeps_what_holds_and_else_says_why() {
        let why = Unsupported::Feature { need: "tma" };
        let even = Variants::filter(64, why.clone(), |v| v.0.is_multiple_of(2)).expect("evens exist");
        assert_eq!(even.iter().count(), 32);
        assert!(even.contains(Variant(62)) && !even.contains(Variant(63)) && !even.contains(Variant(200)));
        assert_eq!(Variants::filter(64, why.clone(), |_| false), Err(why));
    }
}
