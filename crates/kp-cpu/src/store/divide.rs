//! Numbers divided by the scales of their blocks, so that rounding the quotients rounds what they stand for.
//!
//! A quotient of two f32 may lie closer to a tie between two codes than f32 can tell. It is therefore taken to 21 bits
//! by a product with the reciprocal; the sign of what is left, x − quotient · scale, which a fused multiply-add or f64
//! gives exactly, tells on which side the true quotient is, and moves it there by a unit of the last place. Codes have at
//! most 10 bits with their ties, so they come out as from exact arithmetic, on every instruction set.

use crate::{
    numbers::{narrow::nf4_step, small::sticky},
    simd::{Isa, WorkIn},
};

/// What the numbers of one block are divided by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Divisor {
    /// The divisor: a scale, times the global if there is one.
    whole: f64,
    /// It to 24 bits, and what is missing.
    high: f32,
    low: f32,
    /// About one over it.
    inverse: f32,
    way: Way,
    /// What is added to the quotients, a whole number.
    zero: f32,
}

/// How quotients are found.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Way {
    /// The divisor is a power of two, or zero: the product with the reciprocal is the quotient.
    Product,
    /// As the module says.
    Sides,
    /// In f64, number by number: the divisor is negative, or so large or small that f32 has no room for what is left.
    Slow,
}

impl Divisor {
    /// Division by `whole`, which has at most 28 bits, then addition of `zero`.
    pub(super) fn new(whole: f64, zero: f64) -> Self {
        let high = whole as f32;
        let low = (whole - f64::from(high)) as f32;
        let power = high.is_normal() && high.to_bits() & 0x807f_ffff == 0 && low == 0.0;
        let (way, inverse) = if whole.is_sign_negative() {
            (Way::Slow, 0.0)
        } else if whole == 0.0 || whole == LEAST || power && high.recip().is_normal() {
            (Way::Product, (1.0 / whole) as f32)
        } else if (1e-24..1e24).contains(&whole) {
            (Way::Sides, (1.0 / whole) as f32)
        } else {
            (Way::Slow, 0.0)
        };
        Self { whole, high, low, inverse, way, zero: zero as f32 }
    }

    /// As a code sees `x`, in f64: divided; with `zeros`, moved by the zero point and rounded.
    #[inline(always)]
    pub(super) fn quotient(&self, x: f64, zeros: bool) -> f64 {
        let quotient = x / self.whole;
        // 0 / 0 and ∞ / ∞: not the numbers' fault.
        let quotient = if quotient.is_nan() && !x.is_nan() { 0.0 } else { quotient };
        if !zeros {
            return quotient;
        }
        let zero = f64::from(self.zero);
        if x.is_nan() { zero } else { (quotient + zero).round_ties_even() }
    }

    /// Where the reciprocal is exact.
    #[inline(always)]
    fn product(&self, x: f32) -> f32 {
        let quotient = x * self.inverse;
        // 0 / 0, as in `quotient`.
        if quotient.is_nan() && !x.is_nan() { 0.0 } else { quotient }
    }

    #[inline(always)]
    fn side<I: Isa>(&self, x: f32) -> f32 {
        let size = x.abs();
        let near = f32::from_bits(((size * self.inverse).to_bits() + 4) & !7);
        let (above, below) = if I::FUSED {
            let left = (-near).mul_add(self.low, (-near).mul_add(self.high, size));
            (left > 0.0, left < 0.0)
        } else {
            let left = f64::from(size) - f64::from(near) * self.whole;
            (left > 0.0, left < 0.0)
        };
        let bits = near.to_bits().wrapping_add(u32::from(above)).wrapping_sub(u32::from(below));
        if x.is_nan() { x } else { f32::from_bits(bits).copysign(x) }
    }
}

/// 2⁻¹²⁷, E8M0's least: its reciprocal is a power of two that f32 has.
const LEAST: f64 = f64::from_bits((1023 - 127) << 52);

/// A quotient to the nearest whole number such that with `zero` added ties go to even; NaN becomes `zero`.
#[inline(always)]
fn shifted(quotient: f32, zero: f32) -> f32 {
    // Added to and taken from this, numbers round to whole ones.
    const WHOLE: f32 = 12_582_912.0;
    let far = 65536.0;
    let bounded = if quotient > far { far } else { quotient };
    let bounded = if bounded < -far { -far } else { bounded };
    let whole = (bounded + WHOLE) - WHOLE;
    let rest = bounded - whole;
    let odd = zero.to_bits() != 0 && zero % 2.0 != 0.0;
    let tie = if odd && rest.abs() == 0.5 { rest + rest } else { 0.0 };
    if quotient.is_nan() { zero } else { whole + tie + zero }
}

/// `f` of each number, sixteen at a time: blocks are too short for loops that are cut into longer steps.
#[inline(always)]
fn each(x: &[f32], out: &mut [f32], f: impl Fn(f32) -> f32) {
    let (sixteens, rest) = x.as_chunks::<16>();
    let (out_sixteens, out_rest) = out.as_chunks_mut::<16>();
    for (x, out) in sixteens.iter().zip(out_sixteens) {
        for i in 0..16 {
            out[i] = f(x[i]);
        }
    }
    for (&x, out) in rest.iter().zip(out_rest) {
        *out = f(x);
    }
}

/// Divides `x`, block by block of `inner`, each by its divisor, adding zero points if `Z`; quotients below −`limit`
/// become that.
pub(super) struct Divide<'a, const Z: bool> {
    pub(super) x: &'a [f32],
    pub(super) inner: usize,
    pub(super) by: &'a [Divisor],
    pub(super) limit: f32,
    pub(super) out: &'a mut [f32],
}

impl<const Z: bool> WorkIn for Divide<'_, Z> {
    #[inline(always)]
    fn run_in<I: Isa>(self) {
        let Self { x, inner, by, limit, out } = self;
        // Not `max`, which would make NaN a number.
        let finish = |quotient: f32, zero: f32| {
            if Z {
                shifted(quotient, zero)
            } else if quotient < limit {
                limit
            } else {
                quotient
            }
        };
        for ((x, out), by) in x.chunks(inner).zip(out.chunks_mut(inner)).zip(by) {
            match by.way {
                Way::Product => each(x, out, |x| finish(by.product(x), by.zero)),
                Way::Sides => each(x, out, |x| finish(by.side::<I>(x), by.zero)),
                Way::Slow => {
                    for (&x, out) in x.iter().zip(out) {
                        let slow = sticky(by.quotient(x.into(), Z));
                        *out = if !Z && slow < limit { limit } else { slow };
                    }
                }
            }
        }
    }
}

/// The codes of NF4 of `x / scale`, as numbers: each counts the steps, multiplied by the scale, that are not above it.
pub(super) struct Quantiles<'a> {
    pub(super) x: &'a [f32],
    pub(super) inner: usize,
    pub(super) by: &'a [Divisor],
    pub(super) out: &'a mut [f32],
}

impl WorkIn for Quantiles<'_> {
    #[inline(always)]
    fn run_in<I: Isa>(self) {
        let Self { x, inner, by, out } = self;
        for ((x, out), by) in x.chunks(inner).zip(out.chunks_mut(inner)).zip(by) {
            let steps: [f32; 15] = std::array::from_fn(|low| nf4_step(low, by.whole));
            each(x, out, |x| {
                let mut code = 0.0;
                for step in steps {
                    code += if x >= step { 1.0 } else { 0.0 };
                }
                if x.is_nan() { 7.0 } else { code }
            });
        }
    }
}

impl Divisor {
    /// Whether steps of NF4 can be multiplied by it: positive, and an f32.
    pub(super) fn has_quantiles(&self) -> bool {
        self.whole > 0.0 && self.low == 0.0 && self.high.is_finite()
    }
}

/// The largest finite magnitude of each block of `inner`, or what `out` has if that is larger.
pub(super) struct Largest<'a> {
    pub(super) x: &'a [f32],
    pub(super) inner: usize,
    pub(super) out: &'a mut [f64],
}

impl WorkIn for Largest<'_> {
    #[inline(always)]
    fn run_in<I: Isa>(self) {
        for (x, out) in self.x.chunks(self.inner).zip(self.out) {
            *out = f64::from(largest(x)).max(*out);
        }
    }
}

/// The largest finite magnitude; 0 of nothing.
#[inline(always)]
fn largest(x: &[f32]) -> f32 {
    // As whole numbers, magnitudes compare as they do, and infinities and NaN come last.
    let finite = |x: f32| {
        let bits = x.to_bits() & 0x7fff_ffff;
        if bits < 0x7f80_0000 { bits } else { 0 }
    };
    let mut most = [0_u32; 16];
    let (chunks, rest) = x.as_chunks::<16>();
    for chunk in chunks {
        most.iter_mut().zip(chunk).for_each(|(most, &x)| *most = finite(x).max(*most));
    }
    most.iter_mut().zip(rest).for_each(|(most, &x)| *most = finite(x).max(*most));
    f32::from_bits(most.into_iter().fold(0, u32::max))
}

/// The least and the largest finite number of each block and 0, with what `low` and `high` have.
pub(super) struct Range<'a> {
    pub(super) x: &'a [f32],
    pub(super) inner: usize,
    pub(super) low: &'a mut [f64],
    pub(super) high: &'a mut [f64],
}

impl WorkIn for Range<'_> {
    #[inline(always)]
    fn run_in<I: Isa>(self) {
        for ((x, low), high) in self.x.chunks(self.inner).zip(self.low).zip(self.high) {
            let (mut least, mut most) = ([0.0_f32; 16], [0.0_f32; 16]);
            for chunk in x.chunks(16) {
                for ((least, most), &x) in least.iter_mut().zip(&mut most).zip(chunk) {
                    let x = if x.abs() < f32::INFINITY { x } else { 0.0 };
                    *least = if x < *least { x } else { *least };
                    *most = if x > *most { x } else { *most };
                }
            }
            *low = f64::from(least.into_iter().fold(0.0, f32::min)).min(*low);
            *high = f64::from(most.into_iter().fold(0.0, f32::max)).max(*high);
        }
    }
}
