//! Between stored codes and the numbers kernels compute with.
//!
//! Kernels compute in [`Real`]: f32, or f64 where an operand is f64. A run of elements is read or
//! written at once, so that the type is looked at once per run and the loops are ones the compiler
//! can vectorise. Rounding is to nearest even; see `Overflow` for what exceeds a type.

#[cfg(target_arch = "x86_64")]
pub(crate) mod bf16s;
pub(crate) mod narrow;
mod runs;
pub(crate) mod small;

use crate::{
    memory::{Number, as_numbers},
    simd,
};
use kp_hal::{DType, op::Overflow};
use narrow::Narrow;

/// What kernels compute with: f32 or f64.
pub(crate) trait Real:
    Number
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
{
    /// The type whose elements are such numbers.
    const DTYPE: DType;
    const ZERO: Self;
    const ONE: Self;
    const INFINITY: Self;
    const NAN: Self;
    fn from_f32(x: f32) -> Self;
    fn from_f64(x: f64) -> Self;
    fn to_f32(self) -> f32;
    fn to_f64(self) -> f64;
    /// As f32, or what rounds as the number does to fewer bits than f32 has.
    fn to_f32_sticky(self) -> f32;
    fn mul_add(self, a: Self, b: Self) -> Self;
    fn sqrt(self) -> Self;
    fn exp(self) -> Self;
    fn ln(self) -> Self;
    /// 1 − erf, accurate where it is tiny.
    fn erfc(self) -> Self;
    fn abs(self) -> Self;
    fn is_nan(self) -> bool;
    fn is_finite(self) -> bool;
    /// The numbers if they are f32.
    fn floats(x: &[Self]) -> Option<&[f32]>;
    /// As `floats`, with numbers to write.
    fn floats_with<'a>(x: &'a [Self], out: &'a mut [Self]) -> Option<(&'a [f32], &'a mut [f32])>;
}

macro_rules! real {
    ($t:ident, $dtype:ident, $erfc:ident, $sticky:expr, $floats:expr, $both:expr) => {
        impl Real for $t {
            const DTYPE: DType = DType::$dtype;
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
            fn to_f32_sticky(self) -> f32 {
                $sticky(self)
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
            fn floats(x: &[Self]) -> Option<&[f32]> {
                $floats(x)
            }
            #[inline(always)]
            fn floats_with<'a>(x: &'a [Self], out: &'a mut [Self]) -> Option<(&'a [f32], &'a mut [f32])> {
                $both(x, out)
            }
        }
    };
}
real!(f32, F32, erfcf, std::convert::identity, Some, |x, out| Some((x, out)));
real!(f64, F64, erfc, small::sticky, |_| None, |_, _| None);

/// Reads `out.len()` elements from element `start` of `src` on.
///
/// # Panics
/// If they leave `src`.
pub(crate) fn read<R: Real>(dtype: DType, src: &[u8], start: usize, out: &mut [R]) {
    simd::run_widest_in(out.len(), runs::Read { dtype, src, start, out });
}

/// `len` elements from element `start` of `src` on where they lie, if they are numbers of `R`.
///
/// # Panics
/// If they leave `src`.
pub(crate) fn lying<R: Real>(dtype: DType, src: &[u8], start: usize, len: usize) -> Option<&[R]> {
    (dtype == R::DTYPE).then(|| as_numbers(&src[start * size_of::<R>()..(start + len) * size_of::<R>()])).flatten()
}

/// Element `i` of `src`.
///
/// # Panics
/// If it leaves `src`.
pub(crate) fn get<R: Real>(dtype: DType, src: &[u8], i: usize) -> R {
    // The types scales have, without the detour of a run.
    match dtype {
        DType::F32 => R::from_f32(f32::from_le_bytes(src[4 * i..4 * i + 4].try_into().expect("four bytes"))),
        DType::F16 => R::from_f32(small::F16.decode(u32::from(src[2 * i]) | u32::from(src[2 * i + 1]) << 8)),
        DType::Bf16 => R::from_f32(f32::from_bits(u32::from(src[2 * i]) << 16 | u32::from(src[2 * i + 1]) << 24)),
        DType::E8m0 => R::from_f32(small::decode_e8m0(src[i])),
        DType::Ue4m3 => R::from_f32(small::decode_ue4m3(src[i])),
        _ => {
            let mut out = [R::ZERO];
            read(dtype, src, i, &mut out);
            out[0]
        }
    }
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
/// If they leave `dst`, or if a 4-bit run starts within a byte; the upper half of an odd last byte becomes 0.
pub(crate) fn write<R: Real>(dtype: DType, x: &[R], dst: &mut [u8], start: usize, overflow: Overflow) {
    assert!(start.is_multiple_of(dtype.per_byte() as usize), "a run of 4-bit codes starts within a byte");
    let first = dtype.bytes(start as u64) as usize;
    let dst = &mut dst[first..first + dtype.bytes(x.len() as u64) as usize];
    #[cfg(target_arch = "x86_64")]
    if dtype == DType::Bf16
        && bf16s::are_here()
        && let Some(x) = R::floats(x)
    {
        // SAFETY: the features were detected.
        return unsafe { bf16s::write(x, dst) };
    }
    simd::run_widest_in(x.len(), runs::Write { dtype, x, dst, overflow });
}

/// The code of one number in an 8- or 4-bit type, integers included.
pub(crate) fn encode(dtype: DType, x: f64, overflow: Overflow) -> u8 {
    match dtype {
        DType::I8 => x.round_ties_even() as i8 as u8,
        DType::U8 => x.round_ties_even() as u8,
        DType::E4m3 => small::E4M3.encode(small::sticky(x), overflow) as u8,
        DType::E5m2 => small::E5M2.encode(small::sticky(x), overflow) as u8,
        DType::E4m3Fnuz => small::E4M3_FNUZ.encode(small::sticky(x), overflow) as u8,
        DType::E5m2Fnuz => small::E5M2_FNUZ.encode(small::sticky(x), overflow) as u8,
        DType::E2m1 => small::E2M1.encode(small::sticky(x), overflow) as u8,
        DType::E8m0 => small::encode_e8m0(small::sticky(x)),
        DType::Ue4m3 => small::encode_ue4m3(small::sticky(x)),
        _ => Narrow::of(dtype).expect("an 8- or 4-bit type").encode(x, overflow),
    }
}

/// The largest number of a type.
pub(crate) fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::MAX,
        DType::F32 | DType::Tf32 => f32::MAX.into(),
        DType::F16 => 65504.0,
        DType::Bf16 => f32::from_bits(0x7f7f_0000).into(),
        DType::I8 => 127.0,
        DType::U8 => 255.0,
        DType::I32 => i32::MAX.into(),
        DType::I64 => i64::MAX as f64,
        _ => Narrow::of(dtype).expect("all other types are narrow").largest(),
    }
}
