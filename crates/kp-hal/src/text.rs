//! The one grammar of problems: `op dims types option=value flag`.
//!
//! Words are separated by blanks. Dimensions and types come first, in the op's order; options and
//! flags follow in any order. What equals its default is not written, so each problem has one text.

use crate::op::BadProblem;
use std::{fmt, str::FromStr};

/// Reads the words of one problem, remembering which were used.
#[derive(Debug)]
pub struct Reader<'t> {
    words: Vec<(&'t str, bool)>,
    /// The options and flags that were asked for.
    known: Vec<&'static str>,
}

impl<'t> Reader<'t> {
    /// Starts at the first word. No more than 64 words are a problem.
    ///
    /// # Errors
    /// `TooLarge` past 64 words; `Repeated` if two words have one key.
    pub fn new(text: &'t str) -> Result<Self, BadProblem> {
        let words: Vec<_> = text.split_whitespace().map(|w| (w, false)).take(65).collect();
        if words.len() > 64 {
            return Err(BadProblem::TooLarge { what: "words", max: 64, got: 65 });
        }
        let key = |w: &'t str| w.split_once('=').map_or(w, |(key, _)| key);
        for (i, (word, _)) in words.iter().enumerate() {
            if words[..i].iter().any(|(earlier, _)| key(earlier) == key(word)) {
                return Err(BadProblem::Repeated { key: clip(key(word)) });
            }
        }
        Ok(Self { words, known: Vec::new() })
    }

    /// The next word that is no option.
    ///
    /// # Errors
    /// `Missing` if there is none.
    pub fn word(&mut self, what: &'static str) -> Result<&'t str, BadProblem> {
        let next = self.words.iter_mut().find(|(word, used)| !used && !word.contains('='));
        let (word, used) = next.ok_or(BadProblem::Missing { what })?;
        *used = true;
        Ok(word)
    }

    /// `N` whole numbers joined by `x`.
    ///
    /// # Errors
    /// `Invalid` with the form expected; `TooLarge` for a number past 32 bits.
    pub fn dims<const N: usize>(&mut self, form: &'static str) -> Result<[u32; N], BadProblem> {
        let word = self.word(form)?;
        let invalid = || BadProblem::Invalid { what: "dims", expected: form, got: clip(word) };
        let parts: Vec<&str> = word.split('x').collect();
        let parts: [&str; N] = parts.try_into().map_err(|_| invalid())?;
        let mut out = [0; N];
        for (slot, (part, what)) in out.iter_mut().zip(parts.into_iter().zip(form.split('x'))) {
            *slot = match number(part) {
                Some(size) => size,
                None if is_digits(part) => return Err(past_32_bits(what, part)),
                None => return Err(invalid()),
            };
        }
        Ok(out)
    }

    /// `N` types joined by `:`, as `form` names them: `A:B:D, each dtype[@scheme]`.
    ///
    /// # Errors
    /// `Invalid` with the form if there are more or fewer; with the one that does not parse and what it may be.
    pub fn types<T: FromStr<Err = Unread>, const N: usize>(
        &mut self,
        form: &'static str,
    ) -> Result<[T; N], BadProblem> {
        let word = self.word("types")?;
        let parts: Vec<&str> = word.split(':').collect();
        if parts.len() != N {
            return Err(BadProblem::Invalid { what: "types", expected: form, got: clip(word) });
        }
        let names = form.split([':', ',']);
        let type_of = |(what, part): (&'static str, &str)| {
            part.parse().map_err(|Unread { expected }| BadProblem::Invalid { what, expected, got: clip(part) })
        };
        let types: Vec<T> = names.zip(parts).map(type_of).collect::<Result<_, _>>()?;
        Ok(types.try_into().unwrap_or_else(|_| unreachable!("there are as many as parts, and a name for each")))
    }

    /// The value of `key=`, if the word is there.
    ///
    /// # Errors
    /// `Invalid` if it does not parse.
    pub fn option<T: FromStr>(&mut self, key: &'static str, expected: &'static str) -> Result<Option<T>, BadProblem> {
        self.known.push(key);
        for (word, used) in &mut self.words {
            if let Some((k, value)) = word.split_once('=')
                && k == key
            {
                *used = true;
                return match value.parse() {
                    Ok(value) => Ok(Some(value)),
                    Err(_) => Err(BadProblem::Invalid { what: key, expected, got: clip(value) }),
                };
            }
        }
        Ok(None)
    }

    /// Whether the bare word `name` is there.
    pub fn flag(&mut self, name: &'static str) -> bool {
        self.known.push(name);
        match self.words.iter_mut().find(|(word, _)| *word == name) {
            Some((_, used)) => {
                *used = true;
                true
            }
            None => false,
        }
    }

    /// Ends reading.
    ///
    /// # Errors
    /// `Unknown` for the first word nobody asked for, with those that were asked for.
    pub fn finish(self) -> Result<(), BadProblem> {
        match self.words.iter().find(|(_, used)| !used) {
            Some((word, _)) => Err(BadProblem::Unknown { word: clip(word), known: self.known }),
            None => Ok(()),
        }
    }
}

/// Writes the words of one problem, blanks between.
pub struct Writer<'f, 'g> {
    out: &'f mut fmt::Formatter<'g>,
}

impl<'f, 'g> Writer<'f, 'g> {
    /// Starts after the op's name.
    pub fn new(out: &'f mut fmt::Formatter<'g>) -> Self {
        Self { out }
    }

    /// One word.
    ///
    /// # Errors
    /// What the formatter returned, here and below.
    pub fn word(&mut self, word: impl fmt::Display) -> fmt::Result {
        write!(self.out, " {word}")
    }

    /// `key=value`, unless the value is the default.
    ///
    /// # Errors
    /// As `word`.
    pub fn option<T: fmt::Display + PartialEq>(&mut self, key: &str, value: &T, default: &T) -> fmt::Result {
        if value == default { Ok(()) } else { write!(self.out, " {key}={value}") }
    }

    /// `key=value`, if there is one.
    ///
    /// # Errors
    /// As `word`.
    pub fn maybe<T: fmt::Display>(&mut self, key: &str, value: Option<T>) -> fmt::Result {
        value.map_or(Ok(()), |value| write!(self.out, " {key}={value}"))
    }

    /// `name`, if `on`.
    ///
    /// # Errors
    /// As `word`.
    pub fn flag(&mut self, name: &str, on: bool) -> fmt::Result {
        if on { write!(self.out, " {name}") } else { Ok(()) }
    }
}

/// A finite `f32` that can be part of a key: compared and hashed by its bits, written as the shortest
/// decimal that reads back the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Real(u32);

impl Real {
    /// The number, or `None` if it is infinite or NaN. Both zeros are one.
    pub const fn new(value: f32) -> Option<Self> {
        if !value.is_finite() {
            None
        } else if value == 0.0 {
            Some(Self(0))
        } else {
            Some(Self(value.to_bits()))
        }
    }

    /// The number.
    pub const fn get(self) -> f32 {
        f32::from_bits(self.0)
    }
}

impl fmt::Display for Real {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `Debug` of a float is the shortest form that round-trips, with an exponent when far from 1.
        write!(f, "{:?}", self.get())
    }
}

impl fmt::Debug for Real {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Real {
    type Err = Unread;
    /// # Errors
    /// [`Unread`] with the form expected.
    fn from_str(s: &str) -> Result<Self, Unread> {
        const BAD: Unread = Unread { expected: "a finite number" };
        s.parse().ok().and_then(Self::new).ok_or(BAD)
    }
}

/// Why a word could not be read: the error of every `FromStr` here. Problems say which word, as [`BadProblem::Invalid`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unread {
    /// What it may be instead, as a form (`OUTERxINNER`) or a list of words.
    pub expected: &'static str,
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}", self.expected)
    }
}

impl std::error::Error for Unread {}

/// A whole number in plain digits: no sign, no blanks.
pub(crate) fn number<T: FromStr>(s: &str) -> Option<T> {
    if is_digits(s) { s.parse().ok() } else { None }
}

/// Whether it is one, however large.
pub(crate) fn is_digits(s: &str) -> bool {
    !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit())
}

/// The refusal of a number, in digits, of which 32 bits are kept.
pub(crate) fn past_32_bits(what: &'static str, digits: &str) -> BadProblem {
    BadProblem::TooLarge { what, max: u32::MAX.into(), got: number(digits).unwrap_or(u64::MAX) }
}

/// At most 40 characters of foreign text, escaped ones counted as they are shown, so that a message stays a line.
pub(crate) fn clip(s: &str) -> String {
    let mut shown = String::new();
    for c in s.chars() {
        let escaped = c.escape_default();
        if shown.len() + escaped.len() > 40 {
            return shown + "…";
        }
        shown.extend(escaped);
    }
    shown
}

/// Spells the variants of a field-less enum once, for both directions.
macro_rules! spelled {
    ($type:ty { $($variant:ident = $text:literal),* $(,)? }) => {
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(match self { $(Self::$variant => $text),* })
            }
        }
        impl std::str::FromStr for $type {
            type Err = $crate::text::Unread;
            fn from_str(s: &str) -> Result<Self, Self::Err> {
                match s { $($text => Ok(Self::$variant),)* _ => Err($crate::text::Unread { expected: Self::FORMS }) }
            }
        }
        impl $type {
            /// Every choice, in declaration order.
            pub const ALL: &[Self] = &[$(Self::$variant),*];
            /// The spellings, for messages.
            pub(crate) const FORMS: &'static str = concat!("one of", $(" ", $text),*);
        }
    };
}
pub(crate) use spelled;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;

    #[test]
    fn words_are_used_once_and_all() {
        let mut r = Reader::new("4x5  f32:i8  k=7 fast").expect("no word repeats");
        assert_eq!(r.dims::<2>("MxN"), Ok([4, 5]));
        assert_eq!(r.types::<DType, 2>("X:Y"), Ok([DType::F32, DType::I8]));
        assert_eq!(r.option::<u32>("k", "a number"), Ok(Some(7)));
        assert_eq!(r.option::<u32>("n", "a number"), Ok(None));
        assert!(!r.flag("slow"));
        assert!(r.flag("fast"));
        assert_eq!(r.finish(), Ok(()));
    }

    #[test]
    fn bad_words_are_named() {
        let dims = |t| Reader::new(t).and_then(|mut r| r.dims::<2>("MxN"));
        for text in ["4", "4x5x6", "4x-5", "4x+5", "4xx", "x"] {
            assert!(matches!(dims(text), Err(BadProblem::Invalid { .. })), "{text}");
        }
        for (text, got) in [("4x4294967296", 1 << 32), ("4x99999999999999999999", u64::MAX)] {
            assert_eq!(dims(text), Err(BadProblem::TooLarge { what: "N", max: u32::MAX.into(), got }));
        }
        assert_eq!(Reader::new("a=1 a=2").map(|_| ()), Err(BadProblem::Repeated { key: "a".into() }));
        assert_eq!(
            Reader::new("1x1 what").and_then(|mut r| {
                r.dims::<2>("MxN")?;
                r.flag("fast");
                r.finish()
            }),
            Err(BadProblem::Unknown { word: "what".into(), known: vec!["fast"] })
        );
        assert!(Reader::new(&"w ".repeat(1000)).is_err());
    }

    #[test]
    fn reals_round_trip() {
        for value in [0.0, -0.0, 1e-5, 0.088_388_35, 50.0, f32::MAX, f32::MIN_POSITIVE / 8.0] {
            let real = Real::new(value).expect("finite");
            assert_eq!(real.to_string().parse(), Ok(real));
            assert_eq!(real.get(), value);
        }
        for text in ["inf", "nan", "one"] {
            assert_eq!(text.parse::<Real>(), Err(Unread { expected: "a finite number" }), "{text}");
        }
    }
}
