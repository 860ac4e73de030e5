//! Floats of at most 16 bits by arithmetic on f32: no branch and no table, so that a loop over a run is vector code.

use kp_hal::op::Overflow;

/// A float format of 1 + E + `mantissa` bits.
#[derive(Clone, Copy)]
pub(crate) struct Small {
    /// Bits in all.
    bits: u32,
    mantissa: u32,
    bias: u32,
    /// The code of the largest number.
    max: u32,
    /// What becomes of numbers past it unless they saturate, without sign: infinity or NaN.
    past: u32,
    /// The code of NaN; 0 where there is none.
    nan: u32,
    /// Whether the code of −0 is NaN.
    fnuz: bool,
}

pub(crate) const F16: Small =
    Small { bits: 16, mantissa: 10, bias: 15, max: 0x7bff, past: 0x7c00, nan: 0x7e00, fnuz: false };
pub(crate) const E4M3: Small = Small { bits: 8, mantissa: 3, bias: 7, max: 0x7e, past: 0x7f, nan: 0x7f, fnuz: false };
pub(crate) const E5M2: Small = Small { bits: 8, mantissa: 2, bias: 15, max: 0x7b, past: 0x7c, nan: 0x7f, fnuz: false };
pub(crate) const E4M3_FNUZ: Small =
    Small { bits: 8, mantissa: 3, bias: 8, max: 0x7f, past: 0x80, nan: 0x80, fnuz: true };
pub(crate) const E5M2_FNUZ: Small =
    Small { bits: 8, mantissa: 2, bias: 16, max: 0x7f, past: 0x80, nan: 0x80, fnuz: true };
pub(crate) const E2M1: Small = Small { bits: 4, mantissa: 1, bias: 1, max: 7, past: 7, nan: 0, fnuz: false };

impl Small {
    /// The value of `code`.
    #[inline(always)]
    pub(crate) const fn decode(self, code: u32) -> f32 {
        let Self { bits, mantissa, bias, max, fnuz, .. } = self;
        let shift = 23 - mantissa;
        let magnitude = code & ((1 << (bits - 1)) - 1);
        let sign = (code >> (bits - 1)) << 31;
        let normal = f32::from_bits((magnitude << shift) + ((127 - bias) << 23));
        // With exponent 1 in place of 0, the leading bit that is not there is subtracted again: exact, and never
        // a subnormal f32, which some processors take a hundred cycles for.
        let one = (128 - bias) << 23;
        let subnormal = f32::from_bits((magnitude << shift) + one) - f32::from_bits(one);
        let value = if magnitude >> mantissa == 0 { subnormal } else { normal };
        let signed = f32::from_bits(value.to_bits() | sign);
        if fnuz {
            return if code == self.nan { f32::NAN } else { signed };
        }
        // Past the largest number: infinity if its code is next, and NaN.
        let special = if magnitude == max + 1 && self.past != self.nan { f32::INFINITY } else { f32::NAN };
        if magnitude > max { f32::from_bits(special.to_bits() | sign) } else { signed }
    }

    /// The code nearest to `x`, ties to even. NaN becomes NaN, or 0 where there is none.
    #[inline(always)]
    pub(crate) fn encode(self, x: f32, overflow: Overflow) -> u32 {
        let Self { bits, mantissa, bias, max, past, nan, fnuz } = self;
        let shift = 23 - mantissa;
        let magnitude = x.to_bits() & 0x7fff_ffff;
        let sign = (x.to_bits() >> 31) << (bits - 1);
        // Half a step less one, plus one if the code below is odd: ties go to even codes.
        let rounded = magnitude.wrapping_add((1 << (shift - 1)) - 1 + (magnitude >> shift & 1)) >> shift;
        let normal = rounded.wrapping_sub((127 - bias) << mantissa);
        // Added to a power of two whose last bit is worth a step of the subnormals, which rounds to such steps.
        let power = (150 + 1 - bias - mantissa) << 23;
        let subnormal = (f32::from_bits(magnitude) + f32::from_bits(power)).to_bits().wrapping_sub(power);
        let code = if magnitude < (128 - bias) << 23 { subnormal } else { normal };
        let saturates = overflow == Overflow::Saturate && bits <= 8 || bits == 4;
        let code = if code > max { if saturates { max } else { past } } else { code };
        let signed = match fnuz {
            // Neither zero nor NaN has a sign.
            true => {
                if code == 0 || code == nan {
                    code
                } else {
                    code | sign
                }
            }
            false => code | sign,
        };
        let unsigned_nan = if bits == 16 { nan | sign } else { nan };
        if magnitude > 0x7f80_0000 { unsigned_nan } else { signed }
    }
}

/// The upper half of `x`, rounded.
#[inline(always)]
pub(crate) fn encode_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    let nan = bits | 0x40_0000;
    // Chosen before they are cut to half, which takes several steps.
    ((if bits & 0x7fff_ffff > 0x7f80_0000 { nan } else { rounded }) >> 16) as u16
}

/// The power of two that a code of E8M0 stands for.
#[inline(always)]
pub(crate) fn decode_e8m0(code: u8) -> f32 {
    // 2⁻¹²⁷ is subnormal; the last code is NaN.
    let special = if code == 0 { 1 << 22 } else { f32::NAN.to_bits() };
    f32::from_bits(if code == 0 || code == 255 { special } else { u32::from(code) << 23 })
}

/// The power of two nearest to `x`, as a code of E8M0: halfway between two, the even code. NaN for NaN; the first for
/// what is less than any, the last for what is more.
#[inline(always)]
pub(crate) fn encode_e8m0(x: f32) -> u8 {
    let exponent = x.to_bits() >> 23 & 0xff;
    let mantissa = x.to_bits() & 0x7f_ffff;
    // Subnormal numbers begin a power later.
    let half = if exponent == 0 { 0x60_0000 } else { 0x40_0000 };
    let up = mantissa > half || mantissa == half && exponent & 1 == 1;
    let code = if exponent + u32::from(up) > 254 { 254 } else { exponent + u32::from(up) };
    let signed = if x < 0.0 { 0 } else { code };
    (if x.is_nan() { 255 } else { signed }) as u8
}

/// The value of a code of UE4M3; those of a minus sign are none.
#[inline(always)]
pub(crate) fn decode_ue4m3(code: u8) -> f32 {
    if code < 0x7f { E4M3.decode(code.into()) } else { f32::NAN }
}

/// The code of UE4M3 nearest to `x`, ties to even, 0 for what is negative, saturating; NaN for NaN.
#[inline(always)]
pub(crate) fn encode_ue4m3(x: f32) -> u8 {
    (if x < 0.0 { 0 } else { E4M3.encode(x, Overflow::Saturate) & 0x7f }) as u8
}

/// The f32 towards zero from `x`, with its last bit set unless it is `x`: rounded again to fewer bits, it rounds as `x`.
#[inline(always)]
pub(crate) fn sticky(x: f64) -> f32 {
    let nearest = x as f32;
    let back = f64::from(nearest);
    let bits = nearest.to_bits();
    let towards_zero = if back.abs() > x.abs() { bits.wrapping_sub(1) } else { bits };
    f32::from_bits(if back == x || x.is_nan() { bits } else { towards_zero | 1 })
}

/// `x` to the nearest whole number of `low ..= high`, at most 8 bits, ties to even; NaN to 0.
#[inline(always)]
pub(crate) fn encode_integer(x: f32, low: f32, high: f32) -> i32 {
    // Added to this, numbers round to whole ones, which are then in the low bits.
    const WHOLE: f32 = 12_582_912.0;
    let x = if x < low { low } else { x };
    let x = if x > high { high } else { x };
    let whole = (x + WHOLE).to_bits().wrapping_sub(WHOLE.to_bits()) as i32;
    if x.is_nan() { 0 } else { whole }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::narrow::{NF4_STEPS, Narrow};
    use half::{bf16, f16};
    use kp_hal::DType;

    const ALL: [(Small, DType); 5] = [
        (E4M3, DType::E4m3),
        (E5M2, DType::E5m2),
        (E4M3_FNUZ, DType::E4m3Fnuz),
        (E5M2_FNUZ, DType::E5m2Fnuz),
        (E2M1, DType::E2m1),
    ];

    #[test]
    fn codes_mean_what_the_tables_say() {
        for (small, dtype) in ALL {
            let table = Narrow::of(dtype).expect("narrow").values();
            for code in 0..1 << small.bits {
                let (got, want) = (small.decode(code), table[code as usize]);
                assert!(
                    got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
                    "{dtype} {code:x}: {got} {want}"
                );
            }
        }
        for code in 0..=u16::MAX {
            let (got, want) = (F16.decode(code.into()), f16::from_bits(code).to_f32());
            assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{code:x}: {got} {want}");
        }
    }

    /// Every exponent and sign, with mantissas around each tie of at most 11 bits and beside it.
    fn around_ties() -> impl Iterator<Item = f32> {
        let mantissas = (0..1_u32 << 12).flat_map(|m| [m << 11, (m << 11) + 1, (m << 11).wrapping_sub(1) & 0x7f_ffff]);
        (0..512_u32).flat_map(move |high| mantissas.clone().map(move |m| f32::from_bits(high << 23 | m)))
    }

    #[test]
    fn numbers_round_as_by_search() {
        for (small, dtype) in ALL {
            let table = Narrow::of(dtype).expect("narrow");
            // Ties of at most 4 bits lie on the coarser part of the list.
            for x in around_ties().step_by(5) {
                for overflow in [Overflow::Saturate, Overflow::Propagate] {
                    let (got, want) = (small.encode(x, overflow), u32::from(table.encode(x.into(), overflow)));
                    assert_eq!(got, want, "{dtype} of {x:e} ({overflow})");
                }
            }
        }
    }

    #[test]
    fn scales_and_quantiles_round_as_by_search() {
        for dtype in [DType::E8m0, DType::Ue4m3, DType::Nf4] {
            let table = Narrow::of(dtype).expect("narrow");
            // Steps between powers of two, the numbers beside each step of NF4, and the rest.
            let steps = NF4_STEPS.iter().flat_map(|&x| [x.next_down(), x, x.next_up()]);
            for x in around_ties().step_by(5).chain(steps) {
                let mut byte = [0];
                crate::numbers::write(dtype, &[x], &mut byte, 0, Overflow::Saturate);
                assert_eq!(byte[0], table.encode(x.into(), Overflow::Saturate), "{dtype} of {x:e}");
                // Runs of eight are vectors.
                let mut bytes = [0; 32];
                crate::numbers::write(dtype, &[x; 32], &mut bytes, 0, Overflow::Saturate);
                let twice = if dtype.bits() == 4 { byte[0] * 17 } else { byte[0] };
                assert_eq!(
                    bytes[..dtype.bytes(32) as usize],
                    [twice; 32][..dtype.bytes(32) as usize],
                    "{dtype} of {x:e}"
                );
            }
            for code in 0..if dtype.bits() == 4 { 16 } else { 256_u32 } {
                let got: f32 = crate::numbers::get(dtype, &[code as u8], 0);
                let want = table.values()[code as usize];
                assert!(
                    got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
                    "{dtype} {code:x}: {got} {want}"
                );
            }
        }
    }

    #[test]
    fn sixteen_bits_round_as_in_half() {
        for x in around_ties() {
            if !x.is_nan() {
                assert_eq!(F16.encode(x, Overflow::Saturate) as u16, f16::from_f32(x).to_bits(), "{x:e}");
            }
            assert_eq!(encode_bf16(x), bf16::from_f32(x).to_bits(), "{x:e}");
        }
        assert!(f16::from_bits(F16.encode(f32::NAN, Overflow::Saturate) as u16).is_nan());
    }

    #[test]
    fn doubles_round_once() {
        let tie = 1.0 + 2_f64.powi(-8);
        assert_eq!(encode_bf16(sticky(tie)), 0x3f80);
        assert_eq!(encode_bf16(sticky(tie + 2_f64.powi(-45))), 0x3f81);
        assert_eq!(encode_bf16(sticky(-tie - 2_f64.powi(-45))), 0xbf81);
        assert_eq!(encode_bf16(sticky(tie - 2_f64.powi(-45))), 0x3f80);
        assert_eq!(F16.encode(sticky(65519.999999), Overflow::Saturate), 0x7bff);
        assert_eq!(F16.encode(sticky(1e300), Overflow::Saturate), 0x7c00);
        assert_eq!(F16.encode(sticky(f64::NEG_INFINITY), Overflow::Saturate), 0xfc00);
        assert!(sticky(f64::NAN).is_nan());
        assert_eq!(sticky(1e-300), f32::from_bits(1));
        assert_eq!(sticky(0.5), 0.5);
    }

    #[test]
    fn integers_round_to_even_and_saturate() {
        let encode = |x| encode_integer(x, -128.0, 127.0);
        let got = [0.5, 1.5, -2.5, 127.4, 127.5, 1e30, -1e30, f32::NAN, f32::INFINITY].map(encode);
        assert_eq!(got, [0, 2, -2, 127, 127, 127, -128, 0, 127]);
    }
}
