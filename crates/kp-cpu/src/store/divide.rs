//! Numbers divided by the scales of their blocks, so that rounding the quotients rounds what they stand for.
//!
//! A quotient of two f32 may lie closer to a tie between two codes than f32 can tell. It is therefore taken to 21 bits
//! by a product with the reciprocal; the sign of what is left, x − quotient · scale, which a fused multiply-add or f64
//! gives exactly, tells on which side the true quotient is, and moves it there by a unit of the last place. Codes have at
//! most 10 bits with their ties, so they come out as from exact arithmetic, on every instruction set.

use super::TILE;
use crate::{
    numbers::{
        narrow::nf4_steps,
        small::{encode_integer, sticky},
    },
    rows::{largest_of, spread},
    simd::{
        Isa, WorkIn,
        vector::{Vectors, WorkOn},
    },
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
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
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
}

/// The quotient where the reciprocal is exact.
#[inline(always)]
fn product(x: f32, inverse: f32) -> f32 {
    let quotient = x * inverse;
    // 0 / 0, as in `quotient`.
    if quotient.is_nan() && !x.is_nan() { 0.0 } else { quotient }
}

/// The quotient of `x` and `high` + `low`, with the low bits that the module speaks of.
#[inline(always)]
fn side<I: Isa>(x: f32, inverse: f32, high: f32, low: f32) -> f32 {
    let size = x.abs();
    let near = f32::from_bits(((size * inverse).to_bits() + 4) & !7);
    let (above, below) = if I::FUSED {
        let left = (-near).mul_add(low, (-near).mul_add(high, size));
        (left > 0.0, left < 0.0)
    } else {
        let left = f64::from(size) - f64::from(near) * (f64::from(high) + f64::from(low));
        (left > 0.0, left < 0.0)
    };
    let bits = near.to_bits().wrapping_add(u32::from(above)).wrapping_sub(u32::from(below));
    // 0 / 0 is 0, as in `quotient`.
    let quotient = if near.is_nan() { 0.0 } else { f32::from_bits(bits) };
    if x.is_nan() { x } else { quotient.copysign(x) }
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
        let way = by.iter().map(|by| by.way).max().unwrap_or(Way::Product);
        if way == Way::Slow {
            for ((x, out), by) in x.chunks(inner).zip(out.chunks_mut(inner)).zip(by) {
                for (&x, out) in x.iter().zip(out) {
                    let slow = sticky(by.quotient(x.into(), Z));
                    *out = if !Z && slow < limit { limit } else { slow };
                }
            }
        } else if inner >= LONG {
            for ((x, out), &by) in x.chunks(inner).zip(out.chunks_mut(inner)).zip(by) {
                let each = x.iter().zip(out);
                match way {
                    Way::Product => each.for_each(|(&x, out)| *out = finish(product(x, by.inverse), by.zero)),
                    _ => each.for_each(|(&x, out)| *out = finish(side::<I>(x, by.inverse, by.high, by.low), by.zero)),
                }
            }
        } else {
            // Short blocks: each number beside its own divisor makes one loop of them all.
            let n = x.len();
            let spread = |of: fn(&Divisor) -> f32| spread::<f32, TILE>(by.iter().map(of), inner);
            let inverse = spread(|by| by.inverse);
            let zero = if Z { spread(|by| by.zero) } else { [0.0; TILE] };
            let (x, out) = (&x[..n], &mut out[..n]);
            if way == Way::Product {
                for i in 0..n {
                    out[i] = finish(product(x[i], inverse[i]), zero[i]);
                }
            } else {
                let (high, low) = (spread(|by| by.high), spread(|by| by.low));
                for i in 0..n {
                    out[i] = finish(side::<I>(x[i], inverse[i], high[i], low[i]), zero[i]);
                }
            }
        }
    }
}

/// Divides `x` by one divisor, without a zero point, to signed bytes of a symmetric range: no −128.
pub(super) struct Bytes<'a> {
    pub(super) x: &'a [f32],
    pub(super) by: Divisor,
    pub(super) out: &'a mut [u8],
}

impl WorkIn for Bytes<'_> {
    #[inline(always)]
    fn run_in<I: Isa>(self) {
        let Self { x, by, out } = self;
        let code = |quotient: f32| encode_integer(quotient, -127.0, 127.0) as u8;
        let each = x.iter().zip(out);
        match by.way {
            Way::Product => each.for_each(|(&x, out)| *out = code(product(x, by.inverse))),
            _ => each.for_each(|(&x, out)| *out = code(side::<I>(x, by.inverse, by.high, by.low))),
        }
    }
}

impl Divisor {
    /// Whether [`Bytes`] may divide by it.
    pub(super) fn is_quick(&self) -> bool {
        self.way != Way::Slow
    }
}

/// Numbers of a block from which on a loop of its own pays.
const LONG: usize = 128;

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
            let steps = nf4_steps(by.whole);
            for (&x, out) in x.iter().zip(out) {
                let mut code = 0.0;
                for step in steps {
                    code += if x >= step { 1.0 } else { 0.0 };
                }
                *out = if x.is_nan() { 7.0 } else { code };
            }
        }
    }
}

impl Divisor {
    /// Whether steps of NF4 can be multiplied by it: an f32, positive, and none of the products subnormal.
    pub(super) fn has_quantiles(&self) -> bool {
        self.whole > 1e-30 && self.low == 0.0 && self.high.is_finite()
    }
}

/// The largest finite magnitude of each block of `inner`, or what `out` has if that is larger.
pub(super) struct Largest<'a> {
    pub(super) x: &'a [f32],
    pub(super) inner: usize,
    pub(super) out: &'a mut [f64],
}

impl WorkOn<f32> for Largest<'_> {
    #[inline(always)]
    fn run_on<I: Vectors<f32>>(self) {
        let Self { x, inner, out } = self;
        let size = |x| I::larger(x, I::minus(I::splat(0.0), x));
        each_most::<I>(x, inner, size, f32::abs, |block, most| out[block] = most.max(out[block]));
    }
}

/// The least and the largest finite number of each block and 0, with what `low` and `high` have.
pub(super) struct Range<'a> {
    pub(super) x: &'a [f32],
    pub(super) inner: usize,
    pub(super) low: &'a mut [f64],
    pub(super) high: &'a mut [f64],
}

impl WorkOn<f32> for Range<'_> {
    #[inline(always)]
    fn run_on<I: Vectors<f32>>(self) {
        let Self { x, inner, low, high } = self;
        let less = |x| I::minus(I::splat(0.0), x);
        each_most::<I>(x, inner, less, |x| -x, |block, most| low[block] = (-most).min(low[block]));
        each_most::<I>(x, inner, |x| x, |x| x, |block, most| high[block] = most.max(high[block]));
    }
}

/// Calls `found` with each block's number and the largest of what `of`, in vectors, and `one` alone make of its finite
/// numbers; 0 if that is more.
#[inline(always)]
fn each_most<I: Vectors<f32>>(
    x: &[f32],
    inner: usize,
    of: impl Fn(I::V) -> I::V + Copy,
    one: impl Fn(f32) -> f32,
    mut found: impl FnMut(usize, f64),
) {
    // Vectors pass over NaN, and infinities are rare.
    let finite = |x: &f32| if x.is_finite() { one(*x) } else { 0.0 };
    let mut found = |block: usize, most: f32| {
        let again = || x.chunks(inner).nth(block).map_or(0.0, |x| x.iter().map(finite).fold(0.0, f32::max));
        found(block, f64::from(if most == f32::INFINITY { again() } else { most.max(0.0) }));
    };
    if inner >= LONG || !inner.is_multiple_of(WIDE) || !x.len().is_multiple_of(inner) || x.len() > TILE {
        for (block, x) in x.chunks(inner).enumerate() {
            found(block, largest_of::<I, f32>(x, of));
        }
        return;
    }
    // Short blocks become sixteen numbers each, and these one: each alone would end in steps that no vector can take.
    let mut rows = [[0.0; TILE]; 2];
    for (x, row) in x.chunks_exact(inner).zip(rows[0].as_chunks_mut::<WIDE>().0) {
        for at in (0..WIDE).step_by(I::N) {
            let mut most = I::splat(0.0);
            for x in x.as_chunks::<WIDE>().0 {
                most = I::larger(of(I::load(&x[at..])), most);
            }
            I::store(most, &mut row[at..]);
        }
    }
    let blocks = x.len() / inner;
    let [from, to] = &mut rows;
    let (mut from, mut to, mut len) = (from, to, blocks * WIDE);
    while len > blocks {
        for (to, pair) in to.iter_mut().zip(from[..len].as_chunks::<2>().0) {
            *to = if pair[0] > pair[1] { pair[0] } else { pair[1] };
        }
        len /= 2;
        (from, to) = (to, from);
    }
    from[..blocks].iter().enumerate().for_each(|(block, &most)| found(block, most));
}

/// Numbers that a short block first becomes: the longest vector.
const WIDE: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Baseline;

    /// What divides a block is chosen for all blocks beside it.
    #[test]
    fn a_scale_of_0_or_infinity_gives_what_f64_does() {
        for whole in [0.0, f64::INFINITY] {
            let by = Divisor::new(whole, 0.0);
            for x in [0.0, -0.0, 1e-40, 3.0, -3.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
                let want = by.quotient(x.into(), false) as f32;
                for got in [product(x, by.inverse), side::<Baseline>(x, by.inverse, by.high, by.low)] {
                    assert!(got == want || got.is_nan() && want.is_nan(), "{x} / {whole} gives {got}, not {want}");
                }
            }
        }
    }
}
