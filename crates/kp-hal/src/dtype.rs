//! Number formats, named by their bit layout.

use crate::text::Unread;
use std::{fmt, str::FromStr};

macro_rules! dtypes {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $bits:literal;)*) => {
        /// How one stored element is laid out in bits.
        ///
        /// Elements narrower than a byte are packed two per byte along the contiguous
        /// dimension, the first in the low four bits.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum DType { $($(#[$doc])* $name),* }

        impl DType {
            /// Every type, in declaration order; `ALL[t as usize] == t`.
            pub const ALL: &[DType] = &[$(DType::$name),*];

            /// The spellings, for messages.
            const FORMS: &str = concat!("one of", $(" ", $text),*);

            /// Width of one element in bits: 4, 8, 16, 32 or 64.
            pub const fn bits(self) -> u32 {
                match self { $(Self::$name => $bits),* }
            }

            /// The spelling used in problems, wisdom and logs: `e4m3`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text),* }
            }
        }
    };
}

dtypes! {
    /// IEEE binary64.
    F64 = "f64", 64;
    /// IEEE binary32.
    F32 = "f32", 32;
    /// Binary32 in memory; a multiplier may read only sign, exponent and the upper 10 mantissa bits.
    Tf32 = "tf32", 32;
    /// IEEE binary16.
    F16 = "f16", 16;
    /// The upper half of binary32.
    Bf16 = "bf16", 16;
    /// OCP FP8 E4M3: bias 7, no infinity, NaN at 0x7f and 0xff, largest 448.
    E4m3 = "e4m3", 8;
    /// OCP FP8 E5M2: bias 15, infinities and NaNs as in IEEE, largest 57344.
    E5m2 = "e5m2", 8;
    /// E4M3 with bias 8, one zero, NaN at 0x80 only, largest 240 (AMD gfx942).
    E4m3Fnuz = "e4m3fnuz", 8;
    /// E5M2 with bias 16, one zero, NaN at 0x80 only, largest 57344 (AMD gfx942).
    E5m2Fnuz = "e5m2fnuz", 8;
    /// OCP FP4 E2M1: ±{0, 0.5, 1, 1.5, 2, 3, 4, 6}.
    E2m1 = "e2m1", 4;
    /// NormalFloat: 16 quantiles of a normal distribution scaled to [-1, 1] (QLoRA, appendix E).
    Nf4 = "nf4", 4;
    /// OCP E8M0: 2^(code - 127), NaN at 0xff. A scale, never an operand.
    E8m0 = "e8m0", 8;
    /// E4M3 restricted to codes 0 ..= 0x7f: the block scale of NVFP4. A scale, never an operand.
    Ue4m3 = "ue4m3", 8;
    /// Two's complement, -8 ..= 7.
    I4 = "i4", 4;
    /// 0 ..= 15.
    U4 = "u4", 4;
    /// Two's complement, 8 bits.
    I8 = "i8", 8;
    /// Unsigned, 8 bits.
    U8 = "u8", 8;
    /// Two's complement, 32 bits.
    I32 = "i32", 32;
    /// Two's complement, 64 bits.
    I64 = "i64", 64;
}

impl DType {
    /// How many types there are: the length of a table indexed by `DType as usize`.
    pub const COUNT: usize = Self::ALL.len();

    /// Bytes that `elements` consecutive elements occupy, or `u64::MAX` if that is no `u64`.
    #[inline]
    pub const fn bytes(self, elements: u64) -> u64 {
        let bits = elements as u128 * self.bits() as u128;
        let bytes = bits.div_ceil(8);
        if bytes > u64::MAX as u128 { u64::MAX } else { bytes as u64 }
    }

    /// The alignment an address of this type must have, in bytes.
    pub const fn natural_align(self) -> u32 {
        let bytes = self.bits() / 8;
        if bytes == 0 { 1 } else { bytes }
    }

    /// Elements that share one byte: 2 for the 4-bit types, else 1.
    pub const fn per_byte(self) -> u32 {
        if self.bits() == 4 { 2 } else { 1 }
    }

    /// Whether values have a fractional part: everything but the integers.
    pub const fn is_float(self) -> bool {
        !matches!(self, Self::I4 | Self::U4 | Self::I8 | Self::U8 | Self::I32 | Self::I64)
    }

    /// Whether the type exists only to scale others: `E8m0` and `Ue4m3`.
    pub const fn is_scale(self) -> bool {
        matches!(self, Self::E8m0 | Self::Ue4m3)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DType {
    type Err = Unread;
    /// # Errors
    /// [`Unread`] with the form expected.
    fn from_str(s: &str) -> Result<Self, Unread> {
        const BAD: Unread = Unread { expected: DType::FORMS };
        Self::ALL.iter().copied().find(|t| t.name() == s).ok_or(BAD)
    }
}

/// A set of `DType`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct DTypes(u32);

impl DTypes {
    /// No type.
    pub const NONE: Self = Self(0);

    /// The set of the types in `list`.
    pub const fn of(list: &[DType]) -> Self {
        let (mut bits, mut i) = (0, 0);
        while i < list.len() {
            bits |= 1 << list[i] as u32;
            i += 1;
        }
        Self(bits)
    }

    /// Whether `t` is in the set.
    pub const fn contains(self, t: DType) -> bool {
        self.0 >> t as u32 & 1 == 1
    }

    /// The types in the set, in declaration order.
    pub fn iter(self) -> impl Iterator<Item = DType> {
        DType::ALL.iter().copied().filter(move |&t| self.contains(t))
    }
}

impl fmt::Debug for DTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_fit_the_set() {
        const { assert!(DType::COUNT <= 32, "DTypes is a u32") };
        for (i, &t) in DType::ALL.iter().enumerate() {
            assert_eq!(t as usize, i);
            assert_eq!(t.name().parse(), Ok(t));
            assert_eq!(DTypes::of(&[t]).iter().collect::<Vec<_>>(), [t]);
        }
        let why = "F32".parse::<DType>().expect_err("spellings are lower case").to_string();
        assert!(why.starts_with("expected one of f64 f32 "), "{why}");
    }

    #[test]
    fn bytes_round_up_and_saturate() {
        assert_eq!(DType::E2m1.bytes(3), 2);
        assert_eq!(DType::F64.bytes(3), 24);
        assert_eq!(DType::F64.bytes(u64::MAX), u64::MAX);
        assert_eq!(DType::E2m1.bytes(u64::MAX), u64::MAX / 2 + 1);
    }
}
