//! What operands are filled with.

use crate::formats::{encode, max_value, nan_code};
use kp_hal::{DType, Unread, op::Overflow};
use std::{f64::consts::TAU, fmt, str::FromStr};

/// The kind of numbers that an operand holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FillKind {
    /// Whole numbers from −2 to 2 and scales of 1 or 2: sums are exact in any order, so results must be equal to
    /// the bit. Catches every error of layout.
    Exact,
    /// Normally distributed.
    Normal,
    /// Exponents far apart; every code of the narrow types but NaN and infinities.
    Wide,
    /// Normal, with a NaN, an infinity or a −0 here and there.
    Special,
}

impl FillKind {
    /// Every kind that a case may be judged with.
    pub const ALL: &[Self] = &[Self::Exact, Self::Normal, Self::Wide, Self::Special];

    const fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Normal => "normal",
            Self::Wide => "wide",
            Self::Special => "special",
        }
    }
}

impl fmt::Display for FillKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for FillKind {
    type Err = Unread;
    /// # Errors
    /// [`Unread`] with the kinds there are.
    fn from_str(s: &str) -> Result<Self, Unread> {
        const BAD: Unread = Unread { expected: "one of exact normal wide special" };
        Self::ALL.iter().copied().find(|k| k.name() == s).ok_or(BAD)
    }
}

/// A stream of numbers of one kind; the same seed gives the same stream everywhere.
#[derive(Clone, Debug)]
pub struct Fill {
    kind: FillKind,
    state: u64,
}

impl Fill {
    /// Starts a stream.
    pub fn new(kind: FillKind, seed: u64) -> Self {
        Self { kind, state: seed }
    }

    /// The kind of numbers.
    pub fn kind(&self) -> FillKind {
        self.kind
    }

    /// 64 random bits (SplitMix64).
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ self.state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A whole number below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        // The bias of the remainder is n / 2^64: of no importance to a test.
        self.bits() % n
    }

    /// A number from 0 up to, not including, 1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A number of the standard normal distribution (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (TAU * self.unit()).cos()
    }

    /// The code of an element of type `t`.
    pub fn code(&mut self, t: DType) -> u64 {
        match self.kind {
            FillKind::Exact => self.whole(t),
            FillKind::Normal => self.ordinary(t),
            FillKind::Wide => self.wide(t),
            FillKind::Special => self.special(t),
        }
    }

    /// The code of a scale of type `t`: positive, within a factor of 8 of 1, and 1 or 2 if exact.
    pub fn scale_code(&mut self, t: DType) -> u64 {
        let value = match self.kind {
            FillKind::Exact => 1.0 + self.below(2) as f64,
            _ => (self.unit() * 6.0 - 3.0).exp2(),
        };
        encode(t, value, Overflow::Saturate)
    }

    /// A scalar such as alpha.
    pub fn scalar(&mut self) -> f32 {
        match self.kind {
            FillKind::Exact => [1.0, 2.0, -1.0][self.below(3) as usize],
            _ => (0.5 + self.unit()) as f32,
        }
    }

    /// −2 to 2, or as many of them as the type has.
    fn whole(&mut self, t: DType) -> u64 {
        let x = self.below(5) as f64 - 2.0;
        match t {
            // Of NormalFloat's sixteen numbers only these three are whole.
            DType::Nf4 => encode(t, x.signum() * f64::from(x != 0.0), Overflow::Saturate),
            _ => encode(t, x, Overflow::Saturate),
        }
    }

    fn ordinary(&mut self, t: DType) -> u64 {
        let x = self.normal();
        let spread = match t {
            DType::I4 | DType::U4 => 3.0,
            DType::I8 | DType::U8 => 40.0,
            DType::I32 | DType::I64 => 1000.0,
            DType::E2m1 => 2.0,
            DType::Nf4 => 0.4,
            _ => 1.0,
        };
        encode(t, x * spread, Overflow::Saturate)
    }

    /// Exponents within a quarter of what the type has, so that products of two stay finite.
    fn wide(&mut self, t: DType) -> u64 {
        if t.bits() <= 8 {
            loop {
                let code = self.bits() & ((1 << t.bits()) - 1);
                if crate::formats::decode(t, code).is_finite() {
                    return code;
                }
            }
        }
        let reach = (max_value(t).log2() / 4.0).min(32.0);
        let x = self.normal() * (reach * (2.0 * self.unit() - 1.0)).exp2();
        encode(t, x, Overflow::Saturate)
    }

    fn special(&mut self, t: DType) -> u64 {
        match self.below(97) {
            0 => nan_code(t).unwrap_or(0),
            1 => encode(t, f64::INFINITY, Overflow::Propagate),
            2 => encode(t, f64::NEG_INFINITY, Overflow::Propagate),
            3..=6 => encode(t, -0.0, Overflow::Saturate),
            _ => self.ordinary(t),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::decode;

    #[test]
    fn exact_numbers_are_small_and_whole() {
        let mut fill = Fill::new(FillKind::Exact, 1);
        for &t in DType::ALL.iter().filter(|t| !t.is_scale()) {
            for _ in 0..100 {
                let x = decode(t, fill.code(t));
                assert!(x.fract() == 0.0 && x.abs() <= 2.0, "{t}: {x}");
            }
        }
        for t in [DType::F32, DType::F16, DType::Bf16, DType::E8m0, DType::Ue4m3] {
            for _ in 0..20 {
                let scale = decode(t, fill.scale_code(t));
                assert!(scale == 1.0 || scale == 2.0, "{t}: {scale}");
            }
        }
    }

    #[test]
    fn numbers_are_finite_unless_special() {
        for kind in [FillKind::Normal, FillKind::Wide] {
            let mut fill = Fill::new(kind, 2);
            for &t in DType::ALL {
                for _ in 0..1000 {
                    let code = fill.code(t);
                    assert!(decode(t, code).is_finite(), "{kind} {t}: {code:x}");
                }
            }
        }
        let mut fill = Fill::new(FillKind::Special, 3);
        let some: Vec<f64> = (0..2000).map(|_| decode(DType::F16, fill.code(DType::F16))).collect();
        assert!(some.iter().any(|x| x.is_nan()) && some.iter().any(|x| x.is_infinite()));
        assert!(some.iter().any(|x| *x == 0.0 && x.is_sign_negative()));
    }
}
