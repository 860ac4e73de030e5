//! A problem: a description of work that was checked, with one text form.

use super::{NeedList, args::Needs};
use crate::{
    dtype::DType,
    text::{Reader, Unread, Writer, spelled},
};
use std::{
    fmt,
    hash::{Hash, Hasher},
    ops::Deref,
    str::FromStr,
};

/// A description of work before it is checked: shapes, types and layouts, no pointers.
///
/// Plain data with public fields. [`Spec::build`] checks it once and makes a [`Problem`].
pub trait Spec: Copy + Eq + Hash + fmt::Debug + Send + Sync + 'static {
    /// The op's name, the first word of the text: `gemm`.
    const NAME: &'static str;

    /// Refuses what makes no sense.
    ///
    /// # Errors
    /// The first contradiction, with its numbers.
    fn check(&self) -> Result<(), BadProblem>;

    /// The same work with every field that has no meaning set to its default, so that equal work is equal data.
    #[must_use]
    fn canonical(self) -> Self {
        self
    }

    /// Names every operand this problem has, with its bytes.
    fn needs(&self, list: &mut NeedList);

    /// Arithmetic operations, a multiply-add counting two.
    fn flops(&self) -> f64;

    /// Bytes that must cross main memory at least once.
    fn bytes(&self) -> u64 {
        let mut list = NeedList::default();
        self.needs(&mut list);
        list.total_bytes()
    }

    /// The operand type whose arithmetic rate bounds the work.
    fn rate_dtype(&self) -> DType;

    /// Writes the words after the op's name.
    ///
    /// # Errors
    /// What the formatter returned.
    fn write(&self, out: &mut Writer<'_, '_>) -> fmt::Result;

    /// Reads the words after the op's name.
    ///
    /// # Errors
    /// The first word that is missing or does not parse.
    fn read(words: &mut Reader<'_>) -> Result<Self, BadProblem>;

    /// Checks the description.
    ///
    /// # Errors
    /// What `check` found, or `TooLarge` if an operand would exceed 2⁶³ − 1 bytes.
    fn build(self) -> Result<Problem<Self>, BadProblem> {
        let spec = self.canonical();
        spec.check()?;
        let mut list = NeedList::default();
        spec.needs(&mut list);
        list.check()?;
        Ok(Problem::new(spec, Repro::default(), Align::default()))
    }
}

/// A description of work that makes sense: the key of the plan cache and of wisdom, the name of a test
/// case, a benchmark row, a line in a log.
///
/// Made by [`Spec::build`] or by parsing, never by hand, so whoever holds one need not check it again.
/// Reads like its spec: `problem.m`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Problem<S> {
    /// First, because it is compared first: different problems are told apart by one number.
    fingerprint: u64,
    spec: S,
    repro: Repro,
    align: Align,
}

impl<S: Spec> Problem<S> {
    fn new(spec: S, repro: Repro, align: Align) -> Self {
        let mut fold = Fold::default();
        (spec, repro, align).hash(&mut fold);
        Self { fingerprint: fold.finish(), spec, repro, align }
    }

    /// The description.
    pub fn spec(&self) -> &S {
        &self.spec
    }

    /// What is promised about the bits of the result.
    pub fn repro(&self) -> Repro {
        self.repro
    }

    /// The same work with another promise.
    #[must_use]
    pub fn with_repro(self, repro: Repro) -> Self {
        if repro == self.repro { self } else { Self::new(self.spec, repro, self.align) }
    }

    /// What the caller promises about addresses.
    pub fn align(&self) -> Align {
        self.align
    }

    /// The same work with another promise about addresses.
    #[must_use]
    pub fn with_align(self, align: Align) -> Self {
        if align == self.align { self } else { Self::new(self.spec, self.repro, align) }
    }

    /// A hash of all of it, computed when it was built, so that looking a problem up costs no more than comparing
    /// it. The same within one process only.
    #[inline]
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }
}

impl<S> Hash for Problem<S> {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.fingerprint);
    }
}

impl<S> Deref for Problem<S> {
    type Target = S;
    #[inline]
    fn deref(&self) -> &S {
        &self.spec
    }
}

impl<S: Spec> fmt::Display for Problem<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(S::NAME)?;
        let mut out = Writer::new(f);
        self.spec.write(&mut out)?;
        out.option("repro", &self.repro, &Repro::default())?;
        out.option("align", &self.align, &Align::default())
    }
}

impl<S: Spec> fmt::Debug for Problem<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl<S: Spec> FromStr for Problem<S> {
    type Err = BadProblem;
    fn from_str(text: &str) -> Result<Self, BadProblem> {
        let mut words = Reader::new(text)?;
        let name = words.word("op")?;
        if name != S::NAME {
            return Err(BadProblem::Invalid { what: "op", expected: S::NAME, got: crate::text::clip(name) });
        }
        let spec = S::read(&mut words)?;
        let repro = words.option("repro", Repro::FORMS)?.unwrap_or_default();
        let align = words.option("align", "a power of two up to 256")?.unwrap_or_default();
        words.finish()?;
        Ok(spec.build()?.with_repro(repro).with_align(align))
    }
}

#[cfg(feature = "serde")]
mod serde_text {
    use super::{Problem, Spec};

    impl<S: Spec> serde::Serialize for Problem<S> {
        fn serialize<Z: serde::Serializer>(&self, out: Z) -> Result<Z::Ok, Z::Error> {
            out.collect_str(self)
        }
    }

    impl<'de, S: Spec> serde::Deserialize<'de> for Problem<S> {
        fn deserialize<D: serde::Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
            let text = <std::borrow::Cow<'de, str> as serde::Deserialize>::deserialize(input)?;
            text.parse().map_err(serde::de::Error::custom)
        }
    }
}

/// What is promised about the bits of a result.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
pub enum Repro {
    /// Whatever is fastest; two runs may differ in rounding.
    Fast,
    /// The same inputs give the same bits on the same device.
    #[default]
    Deterministic,
    /// Also, a row's bits do not depend on how many other rows there are.
    BatchInvariant,
}
spelled!(Repro { Fast = "fast", Deterministic = "deterministic", BatchInvariant = "batch-invariant" });

/// A promise that every operand's address is a multiple of so many bytes; 16 unless said otherwise.
///
/// Addresses must suit their element type in any case.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Align(u8);

impl Align {
    /// The largest promise of `bytes` that can be made: a power of two from 1 to 256, or `None`.
    pub const fn new(bytes: u32) -> Option<Self> {
        if bytes.is_power_of_two() && bytes <= 256 { Some(Self(bytes.trailing_zeros() as u8)) } else { None }
    }

    /// What an address happens to offer.
    pub const fn of_addr(addr: u64) -> Self {
        let zeros = addr.trailing_zeros();
        Self(if zeros > 8 { 8 } else { zeros as u8 })
    }

    /// The promise in bytes.
    pub const fn bytes(self) -> u32 {
        1 << self.0
    }
}

impl Default for Align {
    fn default() -> Self {
        Self(4)
    }
}

impl fmt::Display for Align {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes())
    }
}

impl FromStr for Align {
    type Err = Unread;
    /// # Errors
    /// [`Unread`] with the form expected.
    fn from_str(s: &str) -> Result<Self, Unread> {
        const BAD: Unread = Unread { expected: "a power of two from 1 to 256" };
        crate::text::number(s).and_then(Self::new).ok_or(BAD)
    }
}

/// The needs of a problem in the order of its op's operands.
pub fn needs<O: super::Op>(problem: &Problem<O::Spec>) -> Needs {
    let mut list = NeedList::default();
    problem.spec.needs(&mut list);
    list.ordered(<O::Args<'_> as super::Args<'_>>::OPERANDS, problem.align)
}

/// Why a description of work is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BadProblem {
    /// A word is missing.
    Missing {
        /// Which.
        what: &'static str,
    },
    /// A word does not parse.
    Invalid {
        /// Which.
        what: &'static str,
        /// Its form.
        expected: &'static str,
        /// What stood there, clipped.
        got: String,
    },
    /// A word that this op does not know.
    Unknown {
        /// The word, clipped.
        word: String,
        /// The options and flags that it knows, in the order in which it reads them.
        known: Vec<&'static str>,
    },
    /// An option is given twice.
    Repeated {
        /// Its key, clipped.
        key: String,
    },
    /// A number is too small.
    TooSmall {
        /// Which.
        what: &'static str,
        /// The least it may be.
        min: u64,
        /// What it is.
        got: u64,
    },
    /// A number is too large.
    TooLarge {
        /// Which.
        what: &'static str,
        /// The most it may be.
        max: u64,
        /// What it is; `u64::MAX` also stands for anything beyond.
        got: u64,
    },
    /// A number does not divide.
    NotMultiple {
        /// Which.
        what: &'static str,
        /// What it must be a multiple of.
        of: u64,
        /// What it is.
        got: u64,
    },
    /// An operand cannot have this type here.
    DType {
        /// The operand.
        operand: &'static str,
        /// Its type.
        got: DType,
        /// What it may be.
        expected: &'static str,
    },
    /// Two settings that exclude each other.
    Conflict {
        /// The first, as the problem spells it.
        one: &'static str,
        /// The second.
        other: &'static str,
    },
    /// Any of these, found by a call that built the problem itself.
    Of {
        /// What was called: `attention`.
        op: &'static str,
        /// What is wrong.
        why: Box<BadProblem>,
    },
}

impl BadProblem {
    /// The same, and what was called.
    #[must_use]
    pub fn of(self, op: &'static str) -> Self {
        Self::Of { op, why: Box::new(self) }
    }
}

impl std::error::Error for BadProblem {}

impl fmt::Display for BadProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { what } => write!(f, "{what} is missing"),
            Self::Invalid { what, expected, got } => write!(f, "{what} must be {expected}, got `{got}`"),
            Self::Unknown { word, known } => write!(f, "unknown word `{word}`, known here: {}", known.join(" ")),
            Self::Repeated { key } => write!(f, "`{key}` is given twice"),
            Self::TooSmall { what, min, got } => write!(f, "{what} must be at least {min}, got {got}"),
            Self::TooLarge { what, max, got: u64::MAX } => write!(f, "{what} may be at most {max}, got more than 2^64"),
            Self::TooLarge { what, max, got } => write!(f, "{what} may be at most {max}, got {got}"),
            Self::NotMultiple { what, of, got } => write!(f, "{what} must be a multiple of {of}, got {got}"),
            Self::DType { operand, got, expected } => write!(f, "{operand} must be {expected}, got {got}"),
            Self::Conflict { one, other } => write!(f, "{one} cannot go with {other}"),
            Self::Of { op, why } => write!(f, "{op}: {why}"),
        }
    }
}

/// Refuses `got < min`.
pub(super) fn at_least(what: &'static str, min: u64, got: u64) -> Result<(), BadProblem> {
    if got < min { Err(BadProblem::TooSmall { what, min, got }) } else { Ok(()) }
}

/// Refuses `got > max`.
pub(super) fn at_most(what: &'static str, max: u64, got: u64) -> Result<(), BadProblem> {
    if got > max { Err(BadProblem::TooLarge { what, max, got }) } else { Ok(()) }
}

/// Refuses what `of` does not divide.
pub(super) fn multiple(what: &'static str, of: u64, got: u64) -> Result<(), BadProblem> {
    if got.is_multiple_of(of) { Ok(()) } else { Err(BadProblem::NotMultiple { what, of, got }) }
}

/// Refuses two settings together.
pub(super) fn exclusive(both: bool, one: &'static str, other: &'static str) -> Result<(), BadProblem> {
    if both { Err(BadProblem::Conflict { one, other }) } else { Ok(()) }
}

/// Refuses a type of an operand.
pub(super) fn refuse_if(
    wrong: bool,
    operand: &'static str,
    got: DType,
    expected: &'static str,
) -> Result<(), BadProblem> {
    if wrong { Err(BadProblem::DType { operand, got, expected }) } else { Ok(()) }
}

/// Refuses a type that is not in `allowed`.
pub(super) fn dtype_in(
    operand: &'static str,
    got: DType,
    allowed: &[DType],
    expected: &'static str,
) -> Result<(), BadProblem> {
    refuse_if(!allowed.contains(&got), operand, got, expected)
}

/// Multiply and fold: a few cycles per field, good enough for keys that kp makes itself.
#[derive(Default)]
struct Fold(u64);

impl Hasher for Fold {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, x: u64) {
        let wide = u128::from(self.0 ^ x ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
        self.0 = wide as u64 ^ (wide >> 64) as u64;
    }
}
