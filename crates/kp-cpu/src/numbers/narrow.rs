//! Types of at most 8 bits that are no machine type: a table of values, and the nearest code.

use kp_hal::{DType, op::Overflow};

/// One narrow type.
pub(crate) struct Narrow {
    /// The value of each code.
    values: [f32; 256],
    /// The finite codes that rounding may choose, by ascending value; no two of one value.
    codes: [u8; 256],
    /// How many of them.
    count: usize,
    /// What a NaN becomes, if the type has one.
    nan: Option<u8>,
    /// What infinities become without saturation, minus first: infinities, else NaN.
    overflow: Option<[u8; 2]>,
    /// The code of −0, if it differs from that of 0.
    minus_zero: Option<u8>,
}

/// A float format: exponent and mantissa bits, bias, and what its last codes mean.
struct Float {
    mantissa: u32,
    bits: u32,
    bias: i32,
    special: Special,
}

#[derive(Clone, Copy, PartialEq)]
enum Special {
    /// The last exponent is for infinity and NaN.
    Ieee,
    /// All ones is NaN; no infinity.
    Fn,
    /// Minus zero is NaN; no infinity.
    Fnuz,
    /// Every code is a number.
    None,
}

/// NF4's quantiles (QLoRA, appendix E).
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

/// The steps between the codes of NF4: a number's code is how many of them are not above it.
pub(crate) const NF4_STEPS: [f32; 15] = nf4_steps(1.0);

/// The steps between the codes of NF4 times `scale`, a positive f32 with which none becomes subnormal: each is the least
/// f32 whose quotient by `scale` is nearer to the code above, or as near if that is the even one.
#[inline(always)]
pub(crate) const fn nf4_steps(scale: f64) -> [f32; 15] {
    let mut steps = [0.0; 15];
    let mut low = 0;
    while low < 15 {
        // The sum of two f32 of neighbouring sizes has at most 27 bits, and its product with 24 is exact.
        let step = (NF4[low] as f64 + NF4[low + 1] as f64) / 2.0 * scale;
        let near = step as f32;
        let back = near as f64;
        let up = back < step || (back == step && low.is_multiple_of(2));
        // The next f32 towards plus infinity.
        let next = if near < 0.0 { near.to_bits().wrapping_sub(1) } else { near.to_bits().wrapping_add(1) };
        steps[low] = f32::from_bits(if up { next } else { near.to_bits() });
        low += 1;
    }
    steps
}

impl Narrow {
    /// The table of `dtype`, or `None` if it is a machine type.
    pub(crate) fn of(dtype: DType) -> Option<&'static Self> {
        macro_rules! float {
            ($mantissa:literal, $bits:literal, $bias:literal, $special:ident) => {{
                static TABLE: Narrow =
                    Narrow::float(&Float { mantissa: $mantissa, bits: $bits, bias: $bias, special: Special::$special });
                &TABLE
            }};
        }
        Some(match dtype {
            DType::E4m3 => float!(3, 8, 7, Fn),
            DType::E5m2 => float!(2, 8, 15, Ieee),
            DType::E4m3Fnuz => float!(3, 8, 8, Fnuz),
            DType::E5m2Fnuz => float!(2, 8, 16, Fnuz),
            DType::E2m1 => float!(1, 4, 1, None),
            DType::Ue4m3 => {
                static TABLE: Narrow = Narrow::ue4m3();
                &TABLE
            }
            DType::E8m0 => {
                static TABLE: Narrow = Narrow::e8m0();
                &TABLE
            }
            DType::Nf4 => {
                static TABLE: Narrow = Narrow::listed(&NF4, 16);
                &TABLE
            }
            DType::I4 => {
                const VALUES: [f32; 16] =
                    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, -8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0];
                static TABLE: Narrow = Narrow::listed(&VALUES, 16);
                &TABLE
            }
            DType::U4 => {
                const VALUES: [f32; 16] =
                    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];
                static TABLE: Narrow = Narrow::listed(&VALUES, 16);
                &TABLE
            }
            _ => return None,
        })
    }

    /// The value of each code; 4-bit types repeat theirs.
    pub(crate) fn values(&self) -> &[f32; 256] {
        &self.values
    }

    /// The largest number.
    pub(crate) fn largest(&self) -> f64 {
        self.values[usize::from(self.codes[self.count - 1])].into()
    }

    /// The code nearest to `x`, the one of even mantissa if two are. NaN becomes the code of 0 in types without NaN.
    pub(crate) fn encode(&self, x: f64, overflow: Overflow) -> u8 {
        if x.is_nan() {
            return self.nan.unwrap_or_else(|| self.nearest(0.0));
        }
        let codes = &self.codes[..self.count];
        let value = |code: u8| f64::from(self.values[usize::from(code)]);
        if overflow == Overflow::Propagate
            && let Some(infinities) = self.overflow
        {
            // Past the largest by half a step or more, where the next code would be if there were one.
            let (last, before) = (value(codes[self.count - 1]), value(codes[self.count - 2]));
            let limit = last + (last - before) / 2.0;
            // On the limit itself the tie goes to the even mantissa, which the largest does not have in IEEE types.
            let even = codes[self.count - 1] & 1 == 0;
            if x.abs() > limit || (x.abs() == limit && !even) {
                return infinities[usize::from(x > 0.0)];
            }
        }
        let code = self.nearest(x);
        match self.minus_zero {
            Some(minus) if value(code) == 0.0 && x.is_sign_negative() => minus,
            _ => code,
        }
    }

    fn nearest(&self, x: f64) -> u8 {
        let codes = &self.codes[..self.count];
        let value = |code: u8| f64::from(self.values[usize::from(code)]);
        let above = codes.partition_point(|&code| value(code) < x);
        if above == 0 {
            return codes[0];
        }
        if above == codes.len() {
            return codes[above - 1];
        }
        let (low, high) = (codes[above - 1], codes[above]);
        let (down, up) = (x - value(low), value(high) - x);
        if down < up || (down == up && low & 1 == 0) { low } else { high }
    }

    const EMPTY: Self =
        Self { values: [0.0; 256], codes: [0; 256], count: 0, nan: None, overflow: None, minus_zero: None };

    /// Lists the codes by ascending value; insertion sort, since this runs in the compiler.
    const fn sort(mut self, codes: u32) -> Self {
        let mut code = 0;
        while code < codes {
            let value = self.values[code as usize];
            let skipped = value.is_nan() || value.is_infinite();
            let minus_zero = value == 0.0 && value.is_sign_negative();
            if minus_zero {
                self.minus_zero = Some(code as u8);
            } else if !skipped {
                let mut at = self.count;
                while at > 0 && self.values[self.codes[at - 1] as usize] > value {
                    self.codes[at] = self.codes[at - 1];
                    at -= 1;
                }
                self.codes[at] = code as u8;
                self.count += 1;
            }
            code += 1;
        }
        self
    }

    const fn listed(values: &[f32; 16], count: u32) -> Self {
        let mut table = Self::EMPTY;
        let mut code = 0;
        while code < 256 {
            table.values[code] = values[code % 16];
            code += 1;
        }
        table.sort(count)
    }

    const fn float(format: &Float) -> Self {
        let mut table = Self::EMPTY;
        let codes = 1 << format.bits;
        let mut code = 0;
        while code < 256 {
            table.values[code as usize] = format.value(code % codes);
            code += 1;
        }
        let sign = codes / 2;
        match format.special {
            Special::Ieee => {
                let infinity = ((1 << (format.bits - 1 - format.mantissa)) - 1) << format.mantissa;
                table.overflow = Some([(infinity | sign) as u8, infinity as u8]);
                table.nan = Some((sign - 1) as u8);
            }
            Special::Fn => {
                table.overflow = Some([(codes - 1) as u8, (sign - 1) as u8]);
                table.nan = Some((sign - 1) as u8);
            }
            Special::Fnuz => {
                table.overflow = Some([sign as u8, sign as u8]);
                table.nan = Some(sign as u8);
            }
            Special::None => {}
        }
        table.sort(codes)
    }

    const fn ue4m3() -> Self {
        let e4m3 = Float { mantissa: 3, bits: 8, bias: 7, special: Special::Fn };
        let mut table = Self::EMPTY;
        let mut code = 0;
        while code < 256 {
            // Codes past 0x7f do not occur; like 0x7f they are no numbers.
            table.values[code as usize] = if code < 0x80 { e4m3.value(code) } else { f32::NAN };
            code += 1;
        }
        table.nan = Some(0x7f);
        table.sort(128)
    }

    const fn e8m0() -> Self {
        let mut table = Self::EMPTY;
        table.values[0] = f32::from_bits(1 << 22);
        let mut code = 1;
        while code < 255 {
            table.values[code] = f32::from_bits((code as u32) << 23);
            code += 1;
        }
        table.values[255] = f32::NAN;
        table.nan = Some(0xff);
        table.sort(256)
    }
}

impl Float {
    /// The value of `code`, exact in f32.
    const fn value(&self, code: u32) -> f32 {
        let sign_bit = self.bits - 1;
        let negative = code >> sign_bit == 1;
        let magnitude = code & ((1 << sign_bit) - 1);
        let exponent = (magnitude >> self.mantissa) as i32;
        let fraction = magnitude & ((1 << self.mantissa) - 1);
        let last_exponent = (1 << (sign_bit - self.mantissa)) - 1;
        let special = match self.special {
            Special::Ieee => exponent == last_exponent,
            Special::Fn => magnitude == (1 << sign_bit) - 1,
            Special::Fnuz => negative && magnitude == 0,
            Special::None => false,
        };
        if special {
            return match (self.special, fraction) {
                (Special::Ieee, 0) if negative => f32::NEG_INFINITY,
                (Special::Ieee, 0) => f32::INFINITY,
                _ => f32::NAN,
            };
        }
        let (significand, exponent) =
            if exponent == 0 { (fraction, 1) } else { (fraction | 1 << self.mantissa, exponent) };
        let power = exponent - self.bias - self.mantissa as i32;
        // A power of two within f32's normal range, so its bits are its exponent.
        let scale = f32::from_bits(((power + 127) as u32) << 23);
        let value = significand as f32 * scale;
        if negative { -value } else { value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOATS: [DType; 5] = [DType::E4m3, DType::E5m2, DType::E4m3Fnuz, DType::E5m2Fnuz, DType::E2m1];

    #[test]
    fn every_number_is_its_own_nearest() {
        for &dtype in DType::ALL {
            let Some(narrow) = Narrow::of(dtype) else { continue };
            for code in 0..1_u32 << dtype.bits() {
                let value = narrow.values()[code as usize];
                if value.is_finite() {
                    assert_eq!(u32::from(narrow.encode(value.into(), Overflow::Saturate)), code, "{dtype} {value}");
                }
            }
        }
    }

    #[test]
    fn the_published_extremes() {
        let largest = FLOATS.map(|t| Narrow::of(t).expect("narrow").largest());
        assert_eq!(largest, [448.0, 57344.0, 240.0, 57344.0, 6.0]);
        let smallest = |t| Narrow::of(t).expect("narrow").values()[1];
        assert_eq!(FLOATS.map(smallest), [2f32.powi(-9), 2f32.powi(-16), 2f32.powi(-10), 2f32.powi(-17), 0.5]);
    }

    #[test]
    fn overflow_is_as_asked() {
        let encode = |t, x, overflow| Narrow::of(t).expect("narrow").encode(x, overflow);
        assert_eq!(encode(DType::E4m3, 1e9, Overflow::Saturate), 0x7e);
        assert_eq!(encode(DType::E4m3, 464.0, Overflow::Propagate), 0x7e);
        assert_eq!(encode(DType::E4m3, 464.1, Overflow::Propagate), 0x7f);
        assert_eq!(encode(DType::E5m2, 61440.0, Overflow::Propagate), 0x7c);
        assert_eq!(encode(DType::E5m2, -1e9, Overflow::Propagate), 0xfc);
        assert_eq!(encode(DType::E2m1, f64::NEG_INFINITY, Overflow::Saturate), 0xf);
        assert_eq!(encode(DType::E4m3, f64::NAN, Overflow::Saturate), 0x7f);
        assert_eq!(encode(DType::E2m1, f64::NAN, Overflow::Saturate), 0);
    }

    #[test]
    fn ties_go_to_the_even_code() {
        let e2m1 = |x| Narrow::of(DType::E2m1).expect("narrow").encode(x, Overflow::Saturate);
        assert_eq!([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0].map(e2m1), [0, 2, 2, 4, 4, 6, 6]);
    }
}
