//! What a machine was measured to reach, as one line of a wisdom file.
//!
//! ```text
//! peaks memory 14800000000 f64 84000000000 f32 168000000000 …
//! ```

use kp_hal::{Caps, DType};
use std::fmt;

/// Measured peaks, in bytes and operations per second, rounded to whole numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peaks {
    bytes_per_s: u64,
    /// Of the types that this was measured for, in the order of `DType::ALL`.
    rates: Vec<(DType, u64)>,
}

impl Peaks {
    /// The peaks among the capabilities that a device measured of itself.
    pub fn of(measured: &Caps) -> Self {
        let rates = DType::ALL.iter().map(|&t| (t, measured.rates.get(t) as u64)).filter(|(_, rate)| *rate > 0);
        Self { bytes_per_s: (measured.bytes_per_s as u64).max(1), rates: rates.collect() }
    }

    /// Takes over what `other` says is higher: a peak is the best that was ever seen, whatever else the machine did while
    /// it was measured again.
    pub fn raise(&mut self, other: &Self) {
        self.bytes_per_s = self.bytes_per_s.max(other.bytes_per_s);
        for &(t, rate) in &other.rates {
            match self.rates.binary_search_by_key(&t, |(t, _)| *t) {
                Ok(at) => self.rates[at].1 = self.rates[at].1.max(rate),
                Err(at) => self.rates.insert(at, (t, rate)),
            }
        }
    }

    /// The capabilities with these peaks in place of the stated ones.
    #[must_use]
    pub fn on(&self, stated: &Caps) -> Caps {
        let mut caps = stated.clone();
        caps.bytes_per_s = self.bytes_per_s as f64;
        for &(t, rate) in &self.rates {
            caps.rates = caps.rates.with(&[t], rate as f64);
        }
        caps
    }

    /// Reads what follows `peaks ` on a line; types that this build does not know are passed over.
    pub(super) fn read(words: &str) -> Result<Self, String> {
        let form = || "expected peaks memory BYTES_PER_S and then TYPE OPERATIONS_PER_S".to_owned();
        let words: Vec<&str> = words.split(' ').collect();
        let (pairs, []) = words.as_chunks::<2>() else { return Err(form()) };
        let number = |text: &str| match text.bytes().all(|b| b.is_ascii_digit()) {
            true => text.parse::<u64>().ok().filter(|&n| n > 0),
            false => None,
        };
        let [["memory", bytes_per_s], rates @ ..] = pairs else { return Err(form()) };
        let bytes_per_s = number(bytes_per_s).ok_or("a peak is a whole number above 0")?;
        let mut peaks = Self { bytes_per_s, rates: Vec::new() };
        for [name, rate] in rates {
            let rate = number(rate).ok_or("a peak is a whole number above 0")?;
            peaks.rates.extend(name.parse().ok().map(|t: DType| (t, rate)));
        }
        peaks.rates.sort_by_key(|(t, _)| *t);
        peaks.rates.dedup_by_key(|(t, _)| *t);
        Ok(peaks)
    }
}

/// Its line in a wisdom file.
impl fmt::Display for Peaks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "peaks memory {}", self.bytes_per_s)?;
        self.rates.iter().try_for_each(|(t, rate)| write!(f, " {t} {rate}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kp_hal::DeviceKind;

    #[test]
    fn peaks_survive_their_line_and_replace_stated_ones() {
        let mut measured = Caps::new(DeviceKind::Cpu, "test");
        measured.bytes_per_s = 1.48e10;
        measured.rates = measured.rates.with(&[DType::F32], 1.68e11);
        let peaks = Peaks::of(&measured);
        let line = peaks.to_string();
        assert_eq!(line.strip_prefix("peaks ").map(Peaks::read), Some(Ok(peaks.clone())), "{line}");
        let caps = peaks.on(&Caps::new(DeviceKind::Cpu, "test"));
        assert_eq!((caps.bytes_per_s, caps.rates.get(DType::F32)), (1.48e10, 1.68e11));
        let some = Peaks::read("memory 7 f99 3 f32 5").expect("an unknown type is another build's");
        assert_eq!(some.to_string(), "peaks memory 7 f32 5");
        let mut best = some.clone();
        best.raise(&Peaks::read("memory 5 f64 2 f32 9").expect("well formed"));
        assert_eq!(best.to_string(), "peaks memory 7 f64 2 f32 9");
        for bad in ["", "memory", "memory 0", "memory -1", "memory 1e9", "f32 5", "memory 7 f32", "memory 7 f32 +5"] {
            assert!(Peaks::read(bad).is_err(), "{bad:?}");
        }
    }
}
