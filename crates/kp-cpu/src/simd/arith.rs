//! Arithmetic of inner loops: eᵡ and tanh without calls or branches, so that loops over them vectorise.

use crate::{numbers::Real, simd::Isa};

/// A type that inner loops compute in.
pub(crate) trait Arith: Real {
    /// eˣ within 2 units of the last place. Exactly 1 of 0; NaN stays NaN.
    fn exp_of<I: Isa>(self) -> Self;

    /// eˣ of x ≤ 0 in half the steps: within 2 units of the last place, 0 below the smallest normal number. Exactly 1 of 0;
    /// NaN stays NaN.
    fn exp_falling<I: Isa>(self) -> Self;

    /// 2ˣ for x < 128 within 3 units of the last place. Exactly 1 of 0; 0 below the exponent of the smallest normal
    /// number; NaN stays NaN.
    fn exp2_of<I: Isa>(self) -> Self;

    /// tanh(x) within 4 units of the last place. NaN stays NaN.
    fn tanh_of<I: Isa>(self) -> Self;

    /// `self · a + b`, rounded once where the processor can.
    #[inline(always)]
    fn times_plus<I: Isa>(self, a: Self, b: Self) -> Self {
        if I::FUSED { self.mul_add(a, b) } else { self * a + b }
    }
}

/// The larger; `a` if either is NaN. One instruction, unlike `Real::max`.
#[inline(always)]
pub(crate) fn larger<R: Real>(a: R, b: R) -> R {
    if b > a { b } else { a }
}

impl Arith for f64 {
    #[inline(always)]
    fn exp_of<I: Isa>(self) -> Self {
        self.exp()
    }

    #[inline(always)]
    fn exp_falling<I: Isa>(self) -> Self {
        self.exp()
    }

    #[inline(always)]
    fn exp2_of<I: Isa>(self) -> Self {
        (self * std::f64::consts::LN_2).exp()
    }

    #[inline(always)]
    fn tanh_of<I: Isa>(self) -> Self {
        self.tanh()
    }
}

impl Arith for f32 {
    /// x = n · ln 2 + r with |r| ≤ ln 2 / 2, then eˣ = 2ⁿ · (1 + r + r² · p(r)); p is the minimax polynomial.
    #[inline(always)]
    fn exp_of<I: Isa>(self) -> Self {
        // Adding 1.5 · 2²³ rounds to a whole number, which is then in the low bits.
        const ROUND: f32 = 12_582_912.0;
        // Below the first the result is 0, above the last infinite.
        const FIRST: f32 = -103.972_08;
        const LAST: f32 = 88.722_83;
        // What is 0 anyway must not pass through subnormal numbers, which are slow.
        let x = if self >= FIRST { self } else { 0.0 };
        let rounded = x.times_plus::<I>(std::f32::consts::LOG2_E, ROUND);
        let n = rounded - ROUND;
        let r = n.times_plus::<I>(-LN2_LOW, n.times_plus::<I>(-LN2_HIGH, x));
        let p = poly::<I>(r, EXP);
        let y = (r * r).times_plus::<I>(p, r) + 1.0;
        // The exponent field has no room for subnormal numbers: 2⁶⁴ too much at first. Nor has it for 2¹²⁸, but where
        // n is 128, y is below 1.
        let (more, less) = if x < 0.0 { (64, 1.0 / (1_u128 << 64) as f32) } else { (0, 1.0) };
        let power = rounded.to_bits().wrapping_add(more) << 23;
        let y = f32::from_bits(y.to_bits().wrapping_add(power)) * less;
        if self < FIRST {
            0.0
        } else if self <= LAST {
            y
        } else {
            // NaN, or past the largest.
            self + f32::INFINITY
        }
    }

    /// As `exp_of`, where only one end needs care.
    #[inline(always)]
    fn exp_falling<I: Isa>(self) -> Self {
        // Added, it rounds to a whole number, and that plus the exponent's bias is in the low bits.
        const ROUND: f32 = 12_582_912.0 + 127.0;
        // The logarithms of 2⁻¹²⁶ and of 2⁻¹²⁷, which has the exponent field of 0, and is taken for that.
        const FIRST: f32 = -87.336_54;
        const ZERO: f32 = -88.029_69;
        let x = if self < FIRST { ZERO } else { self };
        let rounded = x.times_plus::<I>(std::f32::consts::LOG2_E, ROUND);
        let n = rounded - ROUND;
        let r = n.times_plus::<I>(-LN2_LOW, n.times_plus::<I>(-LN2_HIGH, x));
        let p = poly::<I>(r, EXP);
        // A product, so that NaN is not mistaken for the number its bits would be with another exponent.
        ((r * r).times_plus::<I>(p, r) + 1.0) * f32::from_bits(rounded.to_bits() << 23)
    }

    /// x = n + r with |r| ≤ ½, then 2ˣ = 2ⁿ · (1 + r · p(r)); p is the minimax polynomial.
    #[inline(always)]
    fn exp2_of<I: Isa>(self) -> Self {
        let x = if self < exp2::LEAST { exp2::LEAST } else { self };
        let rounded = x + exp2::ROUND;
        let r = x - (rounded - exp2::ROUND);
        let p = poly::<I>(r, exp2::TERMS);
        // A product, so that NaN is not mistaken for the number its bits would be with another exponent.
        r.times_plus::<I>(p, 1.0) * f32::from_bits(rounded.to_bits() << 23)
    }

    /// An odd polynomial where x is small, 1 − 2 / (e²ˣ + 1) where that loses nothing.
    #[inline(always)]
    fn tanh_of<I: Isa>(self) -> Self {
        let x = self.abs();
        let square = x * x;
        let p = poly::<I>(square, [-0.333_332_7, 0.133_310_93, -0.053_709_656, 0.020_538_82, -0.005_591_016]);
        let small = (x * square).times_plus::<I>(p, x);
        let large = 1.0 - 2.0 / ((x + x).exp_of::<I>() + 1.0);
        let y = if x < 0.625 { small } else { large };
        if self.is_nan() { self } else { y.copysign(self) }
    }
}

/// The constants of [`Arith::exp2_of`].
pub(crate) mod exp2 {
    /// Added, it rounds to a whole number, and that plus the exponent's bias is in the low bits.
    pub(crate) const ROUND: f32 = 12_582_912.0 + 127.0;
    /// 2⁻¹²⁷ has the exponent field of 0, and is taken for that.
    pub(crate) const LEAST: f32 = -127.0;
    /// The p of 2ʳ = 1 + r · p(r).
    pub(crate) const TERMS: [f32; 5] =
        [std::f32::consts::LN_2, 0.240_222_83, 0.055_505_592, 0.009_669_661, 0.001_330_02];
}

/// eˣ⁺ʸ of x + y from −130 to 0, where x may be large and is exact, within 3 units of the last place. NaN stays NaN.
#[inline(always)]
pub(crate) fn exp_of_sum<I: Isa>(x: f32, y: f32) -> f32 {
    // Added, it rounds to a whole number, and that plus the exponent's bias and 64 is in the low bits.
    const ROUND: f32 = 12_582_912.0 + 127.0 + 64.0;
    let rounded = (x + y).times_plus::<I>(std::f32::consts::LOG2_E, ROUND);
    let n = rounded - ROUND;
    // The difference of two numbers near each other is exact.
    let r = n.times_plus::<I>(-LN2_LOW, n.times_plus::<I>(-LN2_HIGH, x) + y);
    let p = poly::<I>(r, EXP);
    // The exponent field has no room for subnormal numbers: 2⁶⁴ too much at first.
    const LESS: f32 = 1.0 / (1_u128 << 64) as f32;
    ((r * r).times_plus::<I>(p, r) + 1.0) * f32::from_bits(rounded.to_bits() << 23) * LESS
}

/// ln 2 in two parts: the high one has few bits, so that a whole number times it is exact.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// The p of eˣ = 1 + x + x² · p(x).
const EXP: [f32; 5] = [0.499_999_94, 0.166_665_2, 0.041_668_408, 0.008_368_914, 0.001_381_419_1];

/// A polynomial, constant term first.
#[inline(always)]
fn poly<I: Isa>(x: f32, terms: [f32; 5]) -> f32 {
    let [a, b, c, d, e] = terms;
    let upper = e.times_plus::<I>(x, d).times_plus::<I>(x, c);
    upper.times_plus::<I>(x, b).times_plus::<I>(x, a)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Baseline;

    /// The distance in units of the last place of `want` as an f32.
    fn ulps(got: f32, want: f64) -> f64 {
        let unit = f64::from((want as f32).abs().next_up()) - f64::from((want as f32).abs());
        (f64::from(got) - want).abs() / unit
    }

    /// Every f32 whose bits are a multiple of a prime: numbers, of all sizes and signs.
    fn numbers() -> impl Iterator<Item = f32> {
        (0..u32::MAX / 10_007).map(|i| f32::from_bits(i * 10_007)).filter(|x| x.is_finite())
    }

    #[test]
    fn exponentials_are_within_two_units() {
        let mut worst = 0.0_f64;
        for x in numbers() {
            let (got, want) = (x.exp_of::<Baseline>(), f64::from(x).exp());
            if want > f64::from(f32::MAX) {
                assert_eq!(got, f32::INFINITY, "exp({x})");
            } else {
                worst = worst.max(ulps(got, want));
            }
        }
        assert!(worst <= 2.0, "{worst}");
        assert_eq!(0.0_f32.exp_of::<Baseline>(), 1.0);
        assert_eq!((-0.0_f32).exp_of::<Baseline>(), 1.0);
        assert_eq!(f32::NEG_INFINITY.exp_of::<Baseline>(), 0.0);
        assert_eq!(f32::INFINITY.exp_of::<Baseline>(), f32::INFINITY);
        assert!(f32::NAN.exp_of::<Baseline>().is_nan());
    }

    #[test]
    fn falling_exponentials_are_within_two_units() {
        for x in numbers().filter(|&x| x <= 0.0) {
            let (got, want) = (x.exp_falling::<Baseline>(), f64::from(x).exp());
            if want < f64::from(f32::MIN_POSITIVE) {
                assert_eq!(got, 0.0, "exp({x})");
            } else {
                assert!(ulps(got, want) <= 2.0, "exp({x}) = {got}");
            }
        }
        assert_eq!(0.0_f32.exp_falling::<Baseline>(), 1.0);
        assert_eq!(f32::NEG_INFINITY.exp_falling::<Baseline>(), 0.0);
        assert!(f32::NAN.exp_falling::<Baseline>().is_nan());
    }

    #[test]
    fn powers_of_two_are_within_three_units() {
        let worst = numbers()
            .filter(|x| (-126.0..127.0).contains(x))
            .map(|x| ulps(x.exp2_of::<Baseline>(), f64::from(x).exp2()))
            .fold(0.0, f64::max);
        assert!(worst <= 3.0, "{worst}");
        assert_eq!(0.0_f32.exp2_of::<Baseline>(), 1.0);
        assert_eq!((-1e30_f32).exp2_of::<Baseline>(), 0.0);
        assert_eq!(f32::NEG_INFINITY.exp2_of::<Baseline>(), 0.0);
        assert!(f32::from_bits(0xffff_ffff).exp2_of::<Baseline>().is_nan());
        assert_eq!((-10.0_f64).exp2_of::<Baseline>(), 2.0_f64.powi(-10));
    }

    #[test]
    fn hyperbolic_tangents_are_within_four_units() {
        let worst = numbers()
            .filter(|x| x.abs() > 1e-18)
            .map(|x| ulps(x.tanh_of::<Baseline>(), f64::from(x).tanh()))
            .fold(0.0, f64::max);
        assert!(worst <= 4.0, "{worst}");
        assert_eq!(0.0_f32.tanh_of::<Baseline>(), 0.0);
        assert_eq!(f32::INFINITY.tanh_of::<Baseline>(), 1.0);
        assert_eq!(f32::NEG_INFINITY.tanh_of::<Baseline>(), -1.0);
        assert!(f32::NAN.tanh_of::<Baseline>().is_nan());
    }
}
