//! What each code of each type means, and which code a number becomes.
//!
//! Slow and plain on purpose: every float format is one row of a table, and rounding works on whole multiples of the
//! distance between neighbouring numbers, which an f64 holds exactly. Shares nothing with any backend.

use kp_hal::{DType, op::Overflow};

/// A binary floating-point format of at most 32 bits.
#[derive(Clone, Copy, Debug)]
struct Float {
    /// Bits of the exponent.
    exponent: u32,
    /// Stored bits of the mantissa.
    mantissa: u32,
    /// What is subtracted from a stored exponent.
    bias: i32,
    /// The largest finite number.
    max: f64,
    /// Which codes are no numbers.
    specials: Specials,
}

/// Which codes of a float format are no finite numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Specials {
    /// The largest exponent: infinity without mantissa, else NaN.
    Ieee,
    /// NaN where all bits but the sign are set; no infinity.
    AllOnes,
    /// NaN where a negative zero would be; no infinity.
    NegativeZero,
    /// None.
    Nothing,
}

const fn float(t: DType) -> Option<Float> {
    let (exponent, mantissa, bias, max, specials) = match t {
        DType::F32 | DType::Tf32 => (8, 23, 127, f32::MAX as f64, Specials::Ieee),
        DType::F16 => (5, 10, 15, 65504.0, Specials::Ieee),
        DType::Bf16 => (8, 7, 127, 3.3895313892515355e38, Specials::Ieee),
        DType::E4m3 | DType::Ue4m3 => (4, 3, 7, 448.0, Specials::AllOnes),
        DType::E5m2 => (5, 2, 15, 57344.0, Specials::Ieee),
        DType::E4m3Fnuz => (4, 3, 8, 240.0, Specials::NegativeZero),
        DType::E5m2Fnuz => (5, 2, 16, 57344.0, Specials::NegativeZero),
        DType::E2m1 => (2, 1, 1, 6.0, Specials::Nothing),
        _ => return None,
    };
    Some(Float { exponent, mantissa, bias, max, specials })
}

/// The sixteen numbers of NF4, by code (QLoRA, appendix E).
const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// The number that `code` of type `t` stands for; NaN and infinities as such. `I64` beyond 2⁵³ is rounded.
pub fn decode(t: DType, code: u64) -> f64 {
    match t {
        DType::F64 => f64::from_bits(code),
        DType::Nf4 => NF4[code as usize & 15].into(),
        DType::E8m0 if code == 0xff => f64::NAN,
        DType::E8m0 => 2_f64.powi(code as i32 - 127),
        DType::I4 => (((code as i8) << 4) >> 4).into(),
        DType::U4 => (code as u8 & 15).into(),
        DType::I8 => (code as i8).into(),
        DType::U8 => (code as u8).into(),
        DType::I32 => (code as i32).into(),
        DType::I64 => code as i64 as f64,
        _ => decode_float(&float(t).expect("every other type is a float of at most 32 bits"), code),
    }
}

fn decode_float(f: &Float, code: u64) -> f64 {
    let stored_exponent = code >> f.mantissa & ((1 << f.exponent) - 1);
    let stored_mantissa = code & ((1 << f.mantissa) - 1);
    let sign = if code >> (f.exponent + f.mantissa) & 1 == 1 { -1.0 } else { 1.0 };
    let exponent_is_full = stored_exponent == (1 << f.exponent) - 1;
    let mantissa_is_full = stored_mantissa == (1 << f.mantissa) - 1;
    match f.specials {
        Specials::Ieee if exponent_is_full && stored_mantissa == 0 => return sign * f64::INFINITY,
        Specials::Ieee if exponent_is_full => return f64::NAN,
        Specials::AllOnes if exponent_is_full && mantissa_is_full => return f64::NAN,
        Specials::NegativeZero if sign < 0.0 && stored_exponent == 0 && stored_mantissa == 0 => return f64::NAN,
        _ => {}
    }
    let fraction = stored_mantissa as f64 / 2_f64.powi(f.mantissa as i32);
    sign * match stored_exponent {
        0 => fraction * 2_f64.powi(1 - f.bias),
        e => (1.0 + fraction) * 2_f64.powi(e as i32 - f.bias),
    }
}

/// The code of type `t` nearest to `x`, ties to even.
///
/// Past the largest number, 8-bit floats saturate or, if `overflow` says so, become infinite or NaN; wider floats
/// become infinite in any case; everything else saturates. NaN becomes NaN, or 0 in types that have none.
pub fn encode(t: DType, x: f64, overflow: Overflow) -> u64 {
    match t {
        DType::F64 => x.to_bits(),
        DType::Nf4 => nearest_nf4(x),
        DType::E8m0 => encode_power(x),
        DType::I4 => encode_integer(x, -8, 7) & 15,
        DType::U4 => encode_integer(x, 0, 15),
        DType::I8 => encode_integer(x, -128, 127) & 0xff,
        DType::U8 => encode_integer(x, 0, 255),
        DType::I32 => encode_integer(x, i32::MIN.into(), i32::MAX.into()) & 0xffff_ffff,
        DType::I64 => encode_integer(x, i64::MIN, i64::MAX),
        DType::Ue4m3 => encode_float(DType::Ue4m3, x.max(0.0) + if x.is_nan() { x } else { 0.0 }, overflow) & 0x7f,
        _ => encode_float(t, x, overflow),
    }
}

fn encode_float(t: DType, x: f64, overflow: Overflow) -> u64 {
    let f = float(t).expect("a float of at most 32 bits");
    let negative = x.is_sign_negative();
    if x.is_nan() {
        return match f.specials {
            Specials::Nothing => 0,
            _ => nan_code(t).expect("the format has NaN"),
        };
    }
    let rounded = round_float(&f, x.abs());
    let sign_bit = u64::from(negative) << (f.exponent + f.mantissa);
    if rounded > f.max {
        let has_infinity = f.specials == Specials::Ieee;
        let saturates = t.bits() <= 8 && overflow == Overflow::Saturate || f.specials == Specials::Nothing;
        return match (saturates, has_infinity) {
            (true, _) => sign_bit | positive_code(&f, f.max),
            (false, true) => sign_bit | ((1 << f.exponent) - 1) << f.mantissa,
            (false, false) => nan_code(t).expect("no infinity, so NaN"),
        };
    }
    match positive_code(&f, rounded) {
        0 if f.specials == Specials::NegativeZero => 0,
        code => sign_bit | code,
    }
}

/// The multiple of the format's step at `a` that is nearest to `a`, as if the exponent had no upper end.
fn round_float(f: &Float, a: f64) -> f64 {
    if a.is_infinite() {
        return a;
    }
    let exponent = floor_log2(a).max(1 - f.bias);
    let step = 2_f64.powi(exponent - f.mantissa as i32);
    // A division by a power of two is exact, and so is the product: both are f64 with at most 24 significant bits.
    (a / step).round_ties_even() * step
}

/// The code of `a`, a number of the format that is not negative.
fn positive_code(f: &Float, a: f64) -> u64 {
    let exponent = floor_log2(a).max(1 - f.bias);
    let multiple = (a / 2_f64.powi(exponent - f.mantissa as i32)) as u64;
    // A normal number's multiple has the leading one at bit `mantissa`, which adds 1 to the exponent field.
    (((exponent + f.bias - 1) as u64) << f.mantissa) + multiple
}

/// The exponent of the power of two at or below `a`, which is not negative; the least possible for 0.
pub(crate) fn floor_log2(a: f64) -> i32 {
    match a.to_bits() >> 52 & 0x7ff {
        0 => -1023,
        stored => stored as i32 - 1023,
    }
}

/// Ties go to the larger power; below the smallest power there is nothing to round to.
fn encode_power(x: f64) -> u64 {
    if x.is_nan() {
        return 0xff;
    }
    let exponent = floor_log2(x.max(0.0)).clamp(-128, 128);
    let up = x / 2_f64.powi(exponent) >= 1.5;
    (exponent + i32::from(up) + 127).clamp(0, 254) as u64
}

fn encode_integer(x: f64, min: i64, max: i64) -> u64 {
    // `as` saturates at the ends of i64 and makes NaN 0.
    (x.round_ties_even() as i64).clamp(min, max) as u64
}

fn nearest_nf4(x: f64) -> u64 {
    let distance = |code: &u64| (decode(DType::Nf4, *code) - x.clamp(-1.0, 1.0)).abs();
    match x.is_nan() {
        true => 7,
        // The even one of two equally near: `min_by` keeps the first of equals, so even codes come first.
        false => {
            let even_first = (0..16).step_by(2).chain((1..16).step_by(2));
            even_first.min_by(|a, b| distance(a).total_cmp(&distance(b))).expect("sixteen codes")
        }
    }
}

/// A code that means NaN, if the type has one.
pub fn nan_code(t: DType) -> Option<u64> {
    match t {
        DType::F64 => Some(f64::NAN.to_bits()),
        DType::E8m0 => Some(0xff),
        _ => {
            let f = float(t)?;
            let exponent = ((1 << f.exponent) - 1) << f.mantissa;
            match f.specials {
                Specials::Ieee => Some(exponent | 1 << (f.mantissa - 1)),
                Specials::AllOnes => Some(exponent | ((1 << f.mantissa) - 1)),
                Specials::NegativeZero => Some(1 << (f.exponent + f.mantissa)),
                Specials::Nothing => None,
            }
        }
    }
}

/// The largest finite number of the type.
pub fn max_value(t: DType) -> f64 {
    match t {
        DType::F64 => f64::MAX,
        DType::Nf4 => 1.0,
        DType::E8m0 => 2_f64.powi(127),
        DType::I4 => 7.0,
        DType::U4 => 15.0,
        DType::I8 => 127.0,
        DType::U8 => 255.0,
        DType::I32 => i32::MAX.into(),
        DType::I64 => i64::MAX as f64,
        _ => float(t).expect("a float of at most 32 bits").max,
    }
}

/// Bits of the significand, the hidden one included: 24 for `F32`. For integers, the bits that are exact.
pub fn precision(t: DType) -> u32 {
    match t {
        DType::F64 => 53,
        DType::Tf32 => 11,
        DType::E8m0 | DType::Nf4 => 1,
        DType::I4 | DType::U4 | DType::I8 | DType::U8 | DType::I32 | DType::I64 => t.bits(),
        _ => float(t).expect("a float of at most 32 bits").mantissa + 1,
    }
}

/// Half the distance from 1 to the next number: the largest relative error of one rounding to nearest.
pub fn unit_roundoff(t: DType) -> f64 {
    2_f64.powi(-(precision(t) as i32))
}

/// The smallest positive number of the type.
pub fn smallest(t: DType) -> f64 {
    match t {
        DType::F64 => f64::from_bits(1),
        DType::E8m0 => 2_f64.powi(-127),
        _ => float(t).map_or(1.0, |f| 2_f64.powi(1 - f.bias - f.mantissa as i32)),
    }
}

/// The distance between the numbers of the type around `x`.
pub fn ulp(t: DType, x: f64) -> f64 {
    match (t, float(t)) {
        (DType::F64, _) => 2_f64.powi(floor_log2(x.abs()).max(-1022) - 52),
        (_, Some(f)) => 2_f64.powi(floor_log2(x.abs()).max(1 - f.bias) - f.mantissa as i32),
        _ => 1.0,
    }
}

/// Element `i` of packed `bytes`, as a code.
pub fn get(t: DType, bytes: &[u8], i: u64) -> u64 {
    let i = i as usize;
    match t.bits() {
        4 => (bytes[i / 2] >> (i % 2 * 4) & 15).into(),
        8 => bytes[i].into(),
        16 => u16::from_le_bytes(*bytes[2 * i..].first_chunk().expect("the element is inside")).into(),
        32 => u32::from_le_bytes(*bytes[4 * i..].first_chunk().expect("the element is inside")).into(),
        _ => u64::from_le_bytes(*bytes[8 * i..].first_chunk().expect("the element is inside")),
    }
}

/// Sets element `i` of packed `bytes`; a 4-bit element leaves the other half of its byte alone.
pub fn set(t: DType, bytes: &mut [u8], i: u64, code: u64) {
    let i = i as usize;
    match t.bits() {
        4 => {
            let shift = i % 2 * 4;
            bytes[i / 2] = bytes[i / 2] & !(15 << shift) | (code as u8 & 15) << shift;
        }
        bits => {
            let width = bits as usize / 8;
            bytes[i * width..][..width].copy_from_slice(&code.to_le_bytes()[..width]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of a golden file, comments dropped, split into columns.
    fn rows(text: &str) -> impl Iterator<Item = Vec<&str>> {
        text.lines().filter(|l| !l.starts_with('#')).map(|l| l.split_whitespace().collect())
    }

    fn bits(column: &str) -> f64 {
        f32::from_bits(u32::from_str_radix(column, 16).expect("hex")).into()
    }

    #[test]
    fn every_code_means_what_the_libraries_say() {
        for (t, text) in [
            (DType::E4m3, include_str!("../vectors/formats/e4m3.txt")),
            (DType::E5m2, include_str!("../vectors/formats/e5m2.txt")),
            (DType::E4m3Fnuz, include_str!("../vectors/formats/e4m3fnuz.txt")),
            (DType::E5m2Fnuz, include_str!("../vectors/formats/e5m2fnuz.txt")),
            (DType::E2m1, include_str!("../vectors/formats/e2m1.txt")),
            (DType::E8m0, include_str!("../vectors/formats/e8m0.txt")),
            (DType::Ue4m3, include_str!("../vectors/formats/ue4m3.txt")),
            (DType::Nf4, include_str!("../vectors/formats/nf4.txt")),
        ] {
            let mut seen = 0;
            for row in rows(text) {
                let code = u64::from_str_radix(row[0], 16).expect("hex");
                let got = decode(t, code);
                match row[1] {
                    "nan" => assert!(got.is_nan(), "{t} {code:x}: {got}"),
                    value => assert_eq!(got.to_bits(), bits(value).to_bits(), "{t} {code:x}: {got}"),
                }
                seen += 1;
            }
            let codes = if t == DType::Ue4m3 { 128 } else { 1 << t.bits() };
            assert_eq!(seen, codes, "{t}");
        }
    }

    #[test]
    fn every_number_becomes_the_code_the_libraries_say() {
        for (t, text) in [
            (DType::F16, include_str!("../vectors/formats/encode_f16.txt")),
            (DType::Bf16, include_str!("../vectors/formats/encode_bf16.txt")),
            (DType::E4m3, include_str!("../vectors/formats/encode_e4m3.txt")),
            (DType::E5m2, include_str!("../vectors/formats/encode_e5m2.txt")),
            (DType::E4m3Fnuz, include_str!("../vectors/formats/encode_e4m3fnuz.txt")),
            (DType::E5m2Fnuz, include_str!("../vectors/formats/encode_e5m2fnuz.txt")),
            (DType::E2m1, include_str!("../vectors/formats/encode_e2m1.txt")),
            (DType::E8m0, include_str!("../vectors/formats/encode_e8m0.txt")),
            (DType::Ue4m3, include_str!("../vectors/formats/encode_ue4m3.txt")),
            (DType::Nf4, include_str!("../vectors/formats/encode_nf4.txt")),
        ] {
            let mut seen = 0;
            for row in rows(text) {
                let x = bits(row[0]);
                for (column, overflow) in [(row[1], Overflow::Saturate), (row[2], Overflow::Propagate)] {
                    // 16-bit floats never saturate, and what is not an 8-bit float has no choice.
                    let applies = match overflow {
                        Overflow::Saturate => t.bits() <= 8,
                        Overflow::Propagate => {
                            matches!(t, DType::F16 | DType::Bf16) || (t.bits() == 8 && !t.is_scale())
                        }
                    };
                    if !applies || column == "--" {
                        continue;
                    }
                    let got = encode(t, x, overflow);
                    match column {
                        "nan" => assert!(decode(t, got).is_nan(), "{t} of {x:e} ({overflow}): {got:x}"),
                        code => {
                            assert_eq!(format!("{got:0width$x}", width = code.len()), code, "{t} of {x:e} ({overflow})")
                        }
                    }
                    seen += 1;
                }
            }
            assert!(seen > 20, "{t}: {seen} lines");
        }
    }

    #[test]
    fn every_code_of_every_type_round_trips() {
        for &t in DType::ALL {
            let codes: Vec<u64> = match t.bits() {
                bits @ ..=16 => (0..1 << bits).collect(),
                // Odd multiples reach every exponent; the topmost bits keep the sign varied.
                bits => (0..4096_u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits)).collect(),
            };
            for code in codes {
                let x = decode(t, code);
                let exact = t != DType::I64 && !(t == DType::Ue4m3 && code > 0x7f);
                if !x.is_nan() && exact {
                    assert_eq!(encode(t, x, Overflow::Propagate), code, "{t} {code:x} {x}");
                }
            }
        }
    }

    #[test]
    fn packed_elements_do_not_touch_each_other() {
        for &t in DType::ALL {
            let mut bytes = vec![0xa5_u8; 64];
            for i in 0..8 {
                set(t, &mut bytes, i, i + 1);
            }
            for i in 0..8 {
                assert_eq!(get(t, &bytes, i), i + 1, "{t}");
            }
            assert!(bytes[t.bytes(8) as usize..].iter().all(|&b| b == 0xa5), "{t}");
        }
        let mut bytes = [0];
        set(DType::U4, &mut bytes, 0, 0x3);
        set(DType::U4, &mut bytes, 1, 0xc);
        assert_eq!(bytes, [0xc3], "the first element is in the low half");
    }
}
