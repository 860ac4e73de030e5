//! Runs of elements to numbers and back: one loop for each type.

use super::{
    Real,
    narrow::Narrow,
    small::{self, Small, encode_bf16, encode_integer},
};
use crate::simd::Work;
use kp_hal::{DType, op::Overflow};

/// Reads `out.len()` elements from element `start` of `src` on.
pub(super) struct Read<'a, R> {
    pub(super) dtype: DType,
    pub(super) src: &'a [u8],
    pub(super) start: usize,
    pub(super) out: &'a mut [R],
}

impl<R: Real> Work for Read<'_, R> {
    #[inline(always)]
    fn run(self) {
        let Self { dtype, src, start, out } = self;
        macro_rules! whole {
            ($t:ty, |$x:ident| $value:expr) => {{
                const SIZE: usize = size_of::<$t>();
                let src = &src[start * SIZE..(start + out.len()) * SIZE];
                for (out, &bytes) in out.iter_mut().zip(src.as_chunks::<SIZE>().0) {
                    let $x = <$t>::from_le_bytes(bytes);
                    *out = $value;
                }
            }};
        }
        macro_rules! small {
            ($small:expr) => {{
                const SMALL: Small = $small;
                whole!(u8, |x| R::from_f32(SMALL.decode(x.into())))
            }};
        }
        match dtype {
            DType::F64 => whole!(f64, |x| R::from_f64(x)),
            DType::F32 => whole!(f32, |x| R::from_f32(x)),
            // The lower mantissa bits are not there as far as a tf32 multiplier is concerned.
            DType::Tf32 => whole!(u32, |x| R::from_f32(f32::from_bits(x & !0x1fff))),
            DType::F16 => whole!(u16, |x| R::from_f32(small::F16.decode(x.into()))),
            DType::Bf16 => whole!(u16, |x| R::from_f32(f32::from_bits(u32::from(x) << 16))),
            DType::E4m3 => small!(small::E4M3),
            DType::E5m2 => small!(small::E5M2),
            DType::E4m3Fnuz => small!(small::E4M3_FNUZ),
            DType::E5m2Fnuz => small!(small::E5M2_FNUZ),
            DType::I8 => whole!(i8, |x| R::from_f32(x.into())),
            DType::U8 => whole!(u8, |x| R::from_f32(x.into())),
            DType::I32 => whole!(i32, |x| R::from_f64(x.into())),
            DType::I64 => whole!(i64, |x| R::from_f64(x as f64)),
            DType::E2m1 => packed(src, start, out, |code| small::E2M1.decode(code.into())),
            DType::I4 => packed(src, start, out, |code| f32::from((code << 4) as i8 >> 4)),
            DType::U4 => packed(src, start, out, f32::from),
            _ => {
                let values = Narrow::of(dtype).expect("all other types are narrow").values();
                match dtype.bits() {
                    4 => packed(src, start, out, |code| values[usize::from(code)]),
                    _ => whole!(u8, |x| R::from_f32(values[usize::from(x)])),
                }
            }
        }
    }
}

/// Reads codes that share bytes.
#[inline(always)]
fn packed<R: Real>(src: &[u8], start: usize, out: &mut [R], decode: impl Fn(u8) -> f32) {
    let src = &src[start / 2..(start + out.len()).div_ceil(2)];
    let (first, out) = out.split_at_mut((start % 2).min(out.len()));
    for out in first.iter_mut() {
        *out = R::from_f32(decode(src[0] >> 4));
    }
    let src = &src[first.len()..];
    let (pairs, last) = out.as_chunks_mut::<2>();
    for (pair, &byte) in pairs.iter_mut().zip(src) {
        *pair = [R::from_f32(decode(byte & 15)), R::from_f32(decode(byte >> 4))];
    }
    for out in last {
        *out = R::from_f32(decode(src[src.len() - 1] & 15));
    }
}

/// Writes `x` to the start of `dst`.
pub(super) struct Write<'a, R> {
    pub(super) dtype: DType,
    pub(super) x: &'a [R],
    pub(super) dst: &'a mut [u8],
    pub(super) overflow: Overflow,
}

impl<R: Real> Work for Write<'_, R> {
    #[inline(always)]
    fn run(self) {
        let Self { dtype, x, dst, overflow } = self;
        macro_rules! whole {
            (|$x:ident| $value:expr) => {{
                for (bytes, &$x) in dst.as_chunks_mut().0.iter_mut().zip(x) {
                    *bytes = $value.to_le_bytes();
                }
            }};
        }
        macro_rules! small {
            ($small:expr) => {{
                const SMALL: Small = $small;
                match overflow {
                    Overflow::Saturate => whole!(|x| SMALL.encode(x.to_f32_sticky(), Overflow::Saturate) as u8),
                    Overflow::Propagate => whole!(|x| SMALL.encode(x.to_f32_sticky(), Overflow::Propagate) as u8),
                }
            }};
        }
        match dtype {
            DType::F64 => whole!(|x| x.to_f64()),
            DType::F32 | DType::Tf32 => whole!(|x| x.to_f32()),
            DType::F16 => whole!(|x| small::F16.encode(x.to_f32_sticky(), Overflow::Propagate) as u16),
            DType::Bf16 => whole!(|x| encode_bf16(x.to_f32_sticky())),
            DType::E4m3 => small!(small::E4M3),
            DType::E5m2 => small!(small::E5M2),
            DType::E4m3Fnuz => small!(small::E4M3_FNUZ),
            DType::E5m2Fnuz => small!(small::E5M2_FNUZ),
            DType::I8 => whole!(|x| encode_integer(x.to_f32_sticky(), -128.0, 127.0) as u8),
            DType::U8 => whole!(|x| encode_integer(x.to_f32_sticky(), 0.0, 255.0) as u8),
            // `as` saturates and takes NaN to 0.
            DType::I32 => whole!(|x| (x.to_f64().round_ties_even() as i32)),
            DType::I64 => whole!(|x| (x.to_f64().round_ties_even() as i64)),
            DType::E2m1 => pairs(x, dst, |x| small::E2M1.encode(x.to_f32_sticky(), overflow) as u8),
            DType::I4 => pairs(x, dst, |x| encode_integer(x.to_f32_sticky(), -8.0, 7.0) as u8 & 15),
            DType::U4 => pairs(x, dst, |x| encode_integer(x.to_f32_sticky(), 0.0, 15.0) as u8),
            _ => {
                let narrow = Narrow::of(dtype).expect("all other types are narrow");
                match dtype.bits() {
                    4 => pairs(x, dst, |x| narrow.encode(x.to_f64(), overflow)),
                    _ => whole!(|x| narrow.encode(x.to_f64(), overflow)),
                }
            }
        }
    }
}

/// Writes codes two to a byte, the first in the low bits; the upper half of an odd last byte becomes 0.
#[inline(always)]
fn pairs<R: Real>(x: &[R], dst: &mut [u8], encode: impl Fn(R) -> u8) {
    let (whole, last) = x.as_chunks::<2>();
    for (byte, &[low, high]) in dst.iter_mut().zip(whole) {
        *byte = encode(low) | encode(high) << 4;
    }
    for &x in last {
        dst[whole.len()] = encode(x);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        numbers::{get, read, write},
        simd::{Avx2, Avx512, Baseline, Isa},
    };

    fn codes(dtype: DType) -> Vec<u8> {
        (0..dtype.bytes(512)).map(|i| (i * 89 % 257) as u8).collect()
    }

    #[test]
    fn every_instruction_set_reads_and_writes_the_same() {
        fn both<I: Isa>(dtype: DType, src: &[u8], start: usize) -> Option<(Vec<u32>, Vec<u8>)> {
            I::is_in(&crate::caps::info().caps).then_some(())?;
            let mut out = vec![0.0_f32; 301];
            I::run(Read { dtype, src, start, out: &mut out });
            // NaN has many codes, and which one an addition leaves is not said.
            let numbers: Vec<f32> = out.iter().map(|x| if x.is_nan() { 0.0 } else { x * 1.01 }).collect();
            let mut dst = vec![0; dtype.bytes(301) as usize];
            I::run(Write { dtype, x: &numbers, dst: &mut dst, overflow: Overflow::Saturate });
            Some((numbers.iter().map(|x| x.to_bits()).collect(), dst))
        }
        for &dtype in DType::ALL {
            let src = codes(dtype);
            for start in 0..4 {
                let baseline = both::<Baseline>(dtype, &src, start);
                for other in [both::<Avx2>(dtype, &src, start), both::<Avx512>(dtype, &src, start)] {
                    assert!(other.is_none() || other == baseline, "{dtype} from {start}");
                }
            }
        }
    }

    #[test]
    fn runs_are_their_elements() {
        for &dtype in DType::ALL {
            let src = codes(dtype);
            for (start, len) in [(0, 0), (1, 0), (1, 1), (0, 3), (1, 2), (3, 40), (2, 41)] {
                let mut run = vec![0.0_f64; len];
                read(dtype, &src, start, &mut run);
                let one: Vec<u64> = (start..start + len).map(|i| get::<f64>(dtype, &src, i).to_bits()).collect();
                assert_eq!(run.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), one, "{dtype} {start}+{len}");
                let finite: Vec<f64> = run.iter().map(|x| if x.is_finite() { *x } else { 0.0 }).collect();
                let mut dst = vec![0xee; dtype.bytes(len as u64 + 4) as usize];
                write(dtype, &finite, &mut dst, 2, Overflow::Saturate);
                for (i, x) in finite.iter().enumerate() {
                    let back = get::<f64>(dtype, &dst, i + 2);
                    let same = back == *x || matches!(dtype, DType::Ue4m3 | DType::E8m0);
                    assert!(same, "{dtype} {start}+{len}: {back} {x}");
                }
                assert!(dst[..dtype.bytes(2) as usize].iter().all(|&b| b == 0xee), "{dtype}");
            }
        }
    }
}
