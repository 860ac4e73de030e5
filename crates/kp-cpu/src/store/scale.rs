//! From the largest magnitude of a block to its scale.

use crate::{
    numbers::{
        self,
        small::{F16, decode_ue4m3, encode_bf16, encode_ue4m3, sticky},
    },
    simd::{Isa, WorkIn},
};
use kp_hal::{
    DType,
    op::{Overflow, ScaleRule},
};

/// The scales of blocks whose largest magnitudes are `amax`, each divided by `global` first.
pub(super) struct Scales<'a> {
    pub(super) amax: &'a [f64],
    pub(super) global: f64,
    /// Type of the codes.
    pub(super) codes: DType,
    /// Type of the scales.
    pub(super) scale: DType,
    pub(super) rule: ScaleRule,
    pub(super) out: &'a mut [f64],
}

impl WorkIn for Scales<'_> {
    #[inline(always)]
    fn run_in<I: Isa>(self) {
        let Self { amax, global, codes, scale, rule, out } = self;
        let most = numbers::largest(codes);
        let each = out.iter_mut().zip(amax);
        match (scale, rule) {
            // The usual scales of short blocks, where a loop that branches costs as much as their numbers.
            (DType::Ue4m3, ScaleRule::Nearest) => each.for_each(|(out, amax)| {
                let wanted = sticky(amax / global / most);
                let least = exp2(-9) as f32;
                let code = encode_ue4m3(if wanted < least { least } else { wanted });
                *out = if *amax == 0.0 { 0.0 } else { decode_ue4m3(code).into() };
            }),
            (DType::E8m0, ScaleRule::Floor) => each.for_each(|(out, amax)| {
                let exponent = exponent_bits(amax / global) - log2_floor(most);
                let exponent = if exponent < 1023 - 127 { 1023 - 127 } else { exponent };
                let exponent = if exponent > 1023 + 127 { 1023 + 127 } else { exponent };
                *out = f64::from_bits((exponent as u64) << 52);
            }),
            _ => each.for_each(|(out, amax)| *out = scale_of(amax / global, codes, scale, rule)),
        }
    }
}

/// The largest finite magnitude; 0 of nothing.
pub(super) fn amax(values: impl Iterator<Item = f64>) -> f64 {
    values.map(f64::abs).filter(|x| x.is_finite()).fold(0.0, f64::max)
}

/// The scale of a block whose largest magnitude is `amax`, as stored in `scale`.
pub(crate) fn scale_of(amax: f64, codes: DType, scale: DType, rule: ScaleRule) -> f64 {
    if amax == 0.0 {
        let zero = matches!(scale, DType::E8m0 | DType::Ue4m3);
        return if zero { numbers::get(scale, &[0], 0) } else { 1.0 };
    }
    let largest = numbers::largest(codes);
    let wanted = match rule {
        ScaleRule::Nearest => amax / largest,
        ScaleRule::Floor => exp2(log2_floor(amax) - log2_floor(largest)),
        ScaleRule::Up => {
            let ratio = amax / largest;
            let floor = exp2(log2_floor(ratio));
            if floor < ratio { 2.0 * floor } else { floor }
        }
    };
    rounded(scale, wanted)
}

/// A positive number as `dtype` stores it: the nearest, but neither 0 nor infinite.
pub(super) fn rounded(dtype: DType, x: f64) -> f64 {
    let (smallest, largest) = match dtype {
        DType::F32 => (f64::from(f32::from_bits(1)), f32::MAX.into()),
        DType::F16 => (exp2(-24), numbers::largest(dtype)),
        DType::Bf16 => (exp2(-133), numbers::largest(dtype)),
        _ => (if dtype == DType::E8m0 { exp2(-127) } else { exp2(-9) }, numbers::largest(dtype)),
    };
    let x = x.clamp(smallest, largest);
    match dtype {
        DType::F32 => f64::from(x as f32),
        DType::F16 => F16.decode(F16.encode(sticky(x), Overflow::Saturate)).into(),
        DType::Bf16 => f32::from_bits(u32::from(encode_bf16(sticky(x))) << 16).into(),
        DType::E8m0 => {
            let floor = exp2(log2_floor(x));
            if x < 1.5 * floor { floor } else { 2.0 * floor }
        }
        _ => numbers::get(dtype, &[numbers::encode(dtype, x, Overflow::Saturate)], 0),
    }
}

/// The exponent of a positive finite number.
fn log2_floor(x: f64) -> i32 {
    // Subnormal f64: far below the smallest scale of any type, whatever its exponent.
    (exponent_bits(x) - 1023).max(-1022)
}

fn exponent_bits(x: f64) -> i32 {
    (x.to_bits() >> 52 & 0x7ff) as i32
}

fn exp2(exponent: i32) -> f64 {
    f64::from_bits(((exponent.clamp(-1022, 1023) + 1023) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::run_widest_in;

    #[test]
    fn rules_differ_as_specified() {
        let scale = |amax, rule| scale_of(amax, DType::E2m1, DType::E8m0, rule);
        // OCP: 2^(floor(log2 7) - 2) = 1, so 7 saturates to 6.
        assert_eq!(scale(7.0, ScaleRule::Floor), 1.0);
        assert_eq!(scale(7.0, ScaleRule::Up), 2.0);
        assert_eq!(scale(6.0, ScaleRule::Up), 1.0);
        assert_eq!([8.9, 9.0, 9.1].map(|amax| scale(amax, ScaleRule::Nearest)), [1.0, 2.0, 2.0]);
        assert_eq!(scale(0.0, ScaleRule::Floor), exp2(-127));
        assert_eq!(scale_of(0.0, DType::E4m3, DType::F32, ScaleRule::Nearest), 1.0);
        assert_eq!(scale_of(1e-300, DType::E4m3, DType::F32, ScaleRule::Nearest), f64::from(f32::from_bits(1)));
    }

    #[test]
    fn many_scales_are_each() {
        let amax: Vec<f64> = (0..=u32::MAX / 40_009)
            .map(|i| f32::from_bits((i * 40_009) & 0x7fff_ffff))
            .chain([0.0, f32::from_bits(1), f32::MAX])
            .filter(|x| x.is_finite())
            .map(f64::from)
            // Past what any type of scales has.
            .chain([f64::from_bits(1), 1e-300, 1e300, f64::MAX])
            .collect();
        for (codes, scale, rule, global) in [
            (DType::E2m1, DType::Ue4m3, ScaleRule::Nearest, f64::from(0.037_f32)),
            (DType::E2m1, DType::Ue4m3, ScaleRule::Nearest, 1.0),
            (DType::E2m1, DType::E8m0, ScaleRule::Floor, 1.0),
            (DType::E4m3, DType::E8m0, ScaleRule::Floor, 1.0),
            (DType::I8, DType::E8m0, ScaleRule::Floor, 1.0),
            (DType::E5m2, DType::E8m0, ScaleRule::Up, 1.0),
            (DType::I8, DType::F16, ScaleRule::Nearest, 1.0),
        ] {
            let mut got = vec![0.0; amax.len()];
            run_widest_in(amax.len(), Scales { amax: &amax, global, codes, scale, rule, out: &mut got });
            for (&amax, got) in amax.iter().zip(got) {
                let want = scale_of(amax / global, codes, scale, rule);
                assert_eq!(got, want, "{codes} {scale} {rule} of {amax:e} / {global}");
            }
        }
    }
}
