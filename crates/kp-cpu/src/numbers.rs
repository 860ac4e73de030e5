//! Between stored codes and the numbers kernels compute with.
//!
//! Kernels compute in [`Real`]: f32, or f64 where an operand is f64. A run of elements is read or
//! written at once, so that the type is looked at once per run and the loops are ones the compiler
//! can vectorise. Rounding is to nearest even; see `Overflow` for what exceeds a type.

mod narrow;

use half::{bf16, f16};
use kp_hal::{DType, op::Overflow};
use narrow::Narrow;

/// What kernels compute with: f32 or f64.
pub(crate) trait Real:
    Copy
    + Default
    + PartialOrd
    + Send
    + Sync
    + std::fmt::Debug
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
    + std::ops::Neg<Output = Self>
    + std::ops::AddAssign
    + std::ops::MulAssign
    + std::iter::Sum
    + 'static
{
    const ZERO: Self;
    const ONE: Self;
    const INFINITY: Self;
    const NAN: Self;
    fn from_f32(x: f32) -> Self;
    fn from_f64(x: f64) -> Self;
    fn to_f32(self) -> f32;
    fn to_f64(self) -> f64;
    fn mul_add(self, a: Self, b: Self) -> Self;
    fn sqrt(self) -> Self;
    fn exp(self) -> Self;
    fn ln(self) -> Self;
    fn tanh(self) -> Self;
    /// 1 − erf, accurate where it is tiny.
    fn erfc(self) -> Self;
    fn abs(self) -> Self;
    fn is_nan(self) -> bool;
    fn is_finite(self) -> bool;
    /// The larger; NaN only if both are.
    fn max(self, other: Self) -> Self;
    /// The smaller; NaN only if both are.
    fn min(self, other: Self) -> Self;
}

macro_rules! real {
    ($t:ident, $erfc:ident) => {
        impl Real for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const INFINITY: Self = $t::INFINITY;
            const NAN: Self = $t::NAN;
            #[inline(always)]
            fn from_f32(x: f32) -> Self {
                x as $t
            }
            #[inline(always)]
            fn from_f64(x: f64) -> Self {
                x as $t
            }
            #[inline(always)]
            fn to_f32(self) -> f32 {
                self as f32
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn mul_add(self, a: Self, b: Self) -> Self {
                <$t>::mul_add(self, a, b)
            }
            #[inline(always)]
            fn sqrt(self) -> Self {
                <$t>::sqrt(self)
            }
            #[inline(always)]
            fn exp(self) -> Self {
                <$t>::exp(self)
            }
            #[inline(always)]
            fn ln(self) -> Self {
                <$t>::ln(self)
            }
            #[inline(always)]
            fn tanh(self) -> Self {
                <$t>::tanh(self)
            }
            #[inline(always)]
            fn erfc(self) -> Self {
                libm::$erfc(self)
            }
            #[inline(always)]
            fn abs(self) -> Self {
                <$t>::abs(self)
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                <$t>::is_nan(self)
            }
            #[inline(always)]
            fn is_finite(self) -> bool {
                <$t>::is_finite(self)
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                <$t>::max(self, other)
            }
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                <$t>::min(self, other)
            }
        }
    };
}
real!(f32, erfcf);
real!(f64, erfc);

/// Reads `out.len()` elements from element `start` of `src` on.
///
/// # Panics
/// If they leave `src`.
pub(crate) fn read<R: Real>(dtype: DType, src: &[u8], start: usize, out: &mut [R]) {
    macro_rules! wide {
        ($t:ty, $size:literal, |$x:ident| $value:expr) => {{
            let src = &src[start * $size..(start + out.len()) * $size];
            for (out, bytes) in out.iter_mut().zip(src.chunks_exact($size)) {
                let $x = <$t>::from_le_bytes(bytes.try_into().expect("chunks of that size"));
                *out = $value;
            }
        }};
    }
    match dtype {
        DType::F64 => wide!(f64, 8, |x| R::from_f64(x)),
        DType::F32 => wide!(f32, 4, |x| R::from_f32(x)),
        // The lower mantissa bits are not there as far as a tf32 multiplier is concerned.
        DType::Tf32 => wide!(u32, 4, |x| R::from_f32(f32::from_bits(x & !0x1fff))),
        DType::F16 => wide!(u16, 2, |x| R::from_f32(f16::from_bits(x).to_f32())),
        DType::Bf16 => wide!(u16, 2, |x| R::from_f32(f32::from_bits(u32::from(x) << 16))),
        DType::I8 => wide!(i8, 1, |x| R::from_f32(x.into())),
        DType::U8 => wide!(u8, 1, |x| R::from_f32(x.into())),
        DType::I32 => wide!(i32, 4, |x| R::from_f64(x.into())),
        DType::I64 => wide!(i64, 8, |x| R::from_f64(x as f64)),
        _ => {
            let table = Narrow::of(dtype).expect("all other types are narrow").values();
            if dtype.bits() == 8 {
                let src = &src[start..start + out.len()];
                for (out, &code) in out.iter_mut().zip(src) {
                    *out = R::from_f32(table[usize::from(code)]);
                }
            } else {
                for (i, out) in (start..).zip(out) {
                    *out = R::from_f32(table[usize::from(src[i / 2] >> (i % 2 * 4) & 15)]);
                }
            }
        }
    }
}

/// Element `i` of `src`.
///
/// # Panics
/// If it leaves `src`.
pub(crate) fn get<R: Real>(dtype: DType, src: &[u8], i: usize) -> R {
    let mut out = [R::ZERO];
    read(dtype, src, i, &mut out);
    out[0]
}

/// Integer `i` of an operand of I32: an index, an offset, a length.
///
/// # Panics
/// If it leaves `src`.
pub(crate) fn index(src: &[u8], i: usize) -> i32 {
    i32::from_le_bytes(src[4 * i..4 * i + 4].try_into().expect("four bytes"))
}

/// Writes `x` to element `start` of `dst` on, each number rounded once to nearest even. Past the largest number of a
/// type, 16-bit floats become infinite, all others do as `overflow` says; integers take 0 for NaN.
///
/// # Panics
/// If they leave `dst`, or if a 4-bit run starts or ends within a byte: see [`write_packed`].
pub(crate) fn write<R: Real>(dtype: DType, x: &[R], dst: &mut [u8], start: usize, overflow: Overflow) {
    macro_rules! wide {
        ($size:literal, |$x:ident| $value:expr) => {{
            let dst = &mut dst[start * $size..(start + x.len()) * $size];
            for (bytes, &$x) in dst.chunks_exact_mut($size).zip(x) {
                bytes.copy_from_slice(&$value.to_le_bytes());
            }
        }};
    }
    match dtype {
        DType::F64 => wide!(8, |x| x.to_f64()),
        DType::F32 | DType::Tf32 => wide!(4, |x| x.to_f32()),
        DType::F16 => wide!(2, |x| f16::from_f64(x.to_f64()).to_bits()),
        DType::Bf16 => wide!(2, |x| bf16::from_f64(x.to_f64()).to_bits()),
        // `as` saturates and takes NaN to 0.
        DType::I8 => wide!(1, |x| (x.to_f64().round_ties_even() as i8)),
        DType::U8 => wide!(1, |x| (x.to_f64().round_ties_even() as u8)),
        DType::I32 => wide!(4, |x| (x.to_f64().round_ties_even() as i32)),
        DType::I64 => wide!(8, |x| (x.to_f64().round_ties_even() as i64)),
        _ => {
            let narrow = Narrow::of(dtype).expect("all other types are narrow");
            if dtype.bits() == 8 {
                for (code, &x) in dst[start..start + x.len()].iter_mut().zip(x) {
                    *code = narrow.encode(x.to_f64(), overflow);
                }
            } else {
                assert!(start.is_multiple_of(2), "a run of 4-bit codes starts within a byte");
                write_packed(x.iter().map(|x| narrow.encode(x.to_f64(), overflow)), &mut dst[start / 2..]);
            }
        }
    }
}

/// Packs 4-bit codes two to a byte, the first in the low bits; the upper half of an odd last byte becomes 0.
///
/// # Panics
/// If they leave `dst`.
pub(crate) fn write_packed(codes: impl Iterator<Item = u8>, dst: &mut [u8]) {
    for (i, code) in codes.enumerate() {
        if i % 2 == 0 {
            dst[i / 2] = code;
        } else {
            dst[i / 2] |= code << 4;
        }
    }
}

/// The code of one number in an 8- or 4-bit type, integers included.
pub(crate) fn encode(dtype: DType, x: f64, overflow: Overflow) -> u8 {
    match dtype {
        DType::I8 => x.round_ties_even() as i8 as u8,
        DType::U8 => x.round_ties_even() as u8,
        _ => Narrow::of(dtype).expect("an 8- or 4-bit type").encode(x, overflow),
    }
}

/// The largest number of a type.
pub(crate) fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::MAX,
        DType::F32 | DType::Tf32 => f32::MAX.into(),
        DType::F16 => f16::MAX.to_f64(),
        DType::Bf16 => bf16::MAX.to_f64(),
        DType::I8 => 127.0,
        DType::U8 => 255.0,
        DType::I32 => i32::MAX.into(),
        DType::I64 => i64::MAX as f64,
        _ => Narrow::of(dtype).expect("all other types are narrow").largest(),
    }
}
