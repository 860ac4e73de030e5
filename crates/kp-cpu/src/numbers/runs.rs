//! Runs of elements to numbers and back: one loop for each type.

use super::{
    Real,
    narrow::{NF4_STEPS, Narrow},
    small::{self, Small, encode_bf16, encode_e8m0, encode_integer, encode_ue4m3},
};
use crate::simd::{Isa, WorkIn};
use kp_hal::{DType, op::Overflow};

/// Reads `out.len()` elements from element `start` of `src` on.
pub(super) struct Read<'a, R> {
    pub(super) dtype: DType,
    pub(super) src: &'a [u8],
    pub(super) start: usize,
    pub(super) out: &'a mut [R],
}

impl<R: Real> WorkIn for Read<'_, R> {
    #[inline(always)]
    fn run_in<I: Isa>(self) {
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
        macro_rules! widened {
            ($size:literal, $small:expr, $widen:ident) => {{
                const SMALL: Small = $small;
                let src = &src[start * $size..(start + out.len()) * $size];
                let ((sixteens, rest), (codes, few)) = (out.as_chunks_mut::<16>(), src.as_chunks::<{ 16 * $size }>());
                for (out, codes) in sixteens.iter_mut().zip(codes) {
                    *out = I::$widen(codes).map(R::from_f32);
                }
                for (out, &code) in rest.iter_mut().zip(few.as_chunks::<$size>().0) {
                    let mut word = [0; 4];
                    word[..$size].copy_from_slice(&code);
                    *out = R::from_f32(SMALL.decode(u32::from_le_bytes(word)));
                }
            }};
        }
        match dtype {
            DType::F64 => whole!(f64, |x| R::from_f64(x)),
            DType::F32 => whole!(f32, |x| R::from_f32(x)),
            // The lower mantissa bits are not there as far as a tf32 multiplier is concerned.
            DType::Tf32 => whole!(u32, |x| R::from_f32(f32::from_bits(x & !0x1fff))),
            DType::F16 => widened!(2, small::F16, f16),
            DType::Bf16 => whole!(u16, |x| R::from_f32(f32::from_bits(u32::from(x) << 16))),
            DType::E4m3 => widened!(1, small::E4M3, e4m3),
            DType::E5m2 => widened!(1, small::E5M2, e5m2),
            DType::E4m3Fnuz => small!(small::E4M3_FNUZ),
            DType::E5m2Fnuz => small!(small::E5M2_FNUZ),
            DType::I8 => whole!(i8, |x| R::from_f32(x.into())),
            DType::U8 => whole!(u8, |x| R::from_f32(x.into())),
            DType::I32 => whole!(i32, |x| R::from_f64(x.into())),
            DType::I64 => whole!(i64, |x| R::from_f64(x as f64)),
            DType::E8m0 => whole!(u8, |x| R::from_f32(small::decode_e8m0(x))),
            DType::Ue4m3 => whole!(u8, |x| R::from_f32(small::decode_ue4m3(x))),
            // The 4-bit types.
            _ => {
                let values = Narrow::of(dtype).expect("all other types are narrow").values();
                packed::<I, R>(src, start, out, values.first_chunk().expect("there are 256"));
            }
        }
    }
}

/// Reads codes that share bytes.
#[inline(always)]
fn packed<I: Isa, R: Real>(src: &[u8], start: usize, out: &mut [R], table: &[f32; 16]) {
    let value = |code: u8| R::from_f32(table[usize::from(code)]);
    let src = &src[start / 2..(start + out.len()).div_ceil(2)];
    let (first, out) = out.split_at_mut((start % 2).min(out.len()));
    for out in first.iter_mut() {
        *out = value(src[0] >> 4);
    }
    let src = &src[first.len()..];
    let (eights, few) = src.as_chunks::<8>();
    let (sixteens, rest) = out.as_chunks_mut::<16>();
    for (out, &bytes) in sixteens.iter_mut().zip(eights) {
        *out = I::lookup(table, bytes).map(R::from_f32);
    }
    // What is left, and the sixteen of eight whole bytes that were none of `out`'s, begin at the same element.
    let src = if eights.len() > sixteens.len() { &src[8 * sixteens.len()..] } else { few };
    for (i, out) in rest.iter_mut().enumerate() {
        *out = value(src[i / 2] >> (i % 2 * 4) & 15);
    }
}

/// Writes `x` to the start of `dst`.
pub(super) struct Write<'a, R> {
    pub(super) dtype: DType,
    pub(super) x: &'a [R],
    pub(super) dst: &'a mut [u8],
    pub(super) overflow: Overflow,
}

impl<R: Real> WorkIn for Write<'_, R> {
    #[inline(always)]
    fn run_in<I: Isa>(self) {
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
            DType::E8m0 => whole!(|x| encode_e8m0(x.to_f32_sticky())),
            DType::Ue4m3 => whole!(|x| encode_ue4m3(x.to_f32_sticky())),
            // NF4.
            _ => match R::floats(x) {
                Some(x) => pairs(x, dst, encode_nf4),
                // Its steps have more bits than f32.
                None => {
                    let narrow = Narrow::of(dtype).expect("all other types are narrow");
                    pairs(x, dst, |x| narrow.encode(x.to_f64(), overflow));
                }
            },
        }
    }
}

/// The code of NF4: as many as there are steps not above `x`; that of 0 for NaN.
#[inline(always)]
fn encode_nf4(x: f32) -> u8 {
    let code = NF4_STEPS.iter().map(|&step| u32::from(x >= step)).sum::<u32>();
    (if x.is_nan() { 7 } else { code }) as u8
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
        simd::{Avx2, Avx512, Baseline, In},
    };

    fn codes(dtype: DType) -> Vec<u8> {
        (0..dtype.bytes(512)).map(|i| (i * 89 % 257) as u8).collect()
    }

    #[test]
    fn every_instruction_set_reads_and_writes_the_same() {
        fn both<I: Isa>(dtype: DType, src: &[u8], start: usize) -> Option<(Vec<u32>, Vec<u8>)> {
            I::is_in(&crate::caps::info().caps).then_some(())?;
            let mut out = vec![0.0_f32; 301];
            I::run(In::<I, _>::new(Read { dtype, src, start, out: &mut out }));
            // NaN has many codes, and which one an addition leaves is not said.
            let numbers: Vec<f32> = out.iter().map(|x| if x.is_nan() { 0.0 } else { x * 1.01 }).collect();
            let mut dst = vec![0; dtype.bytes(301) as usize];
            I::run(In::<I, _>::new(Write { dtype, x: &numbers, dst: &mut dst, overflow: Overflow::Saturate }));
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
