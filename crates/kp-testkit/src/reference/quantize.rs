//! Numbers to narrow codes with scales, block by block.
//!
//! Scales are judged first, then each code by the scale that the kernel stored: a scale that is off by its last bit
//! moves many codes, and rightly so. u is the roundoff of f32, in which kernels divide.
//! - A scale is amax / MAX, divided by the global and rounded once more: 4 u before it is rounded to its type. Powers
//!   of two follow from the exponent and a comparison of mantissas, so they are exact.
//! - x / scale is off by 4 u of itself: a reciprocal, its product with the global's, the product with x. So a code is
//!   exact, but where x / scale is that close to a tie either neighbour will do. Division by a power of two is exact,
//!   and then so is the code.
//! - A zero point is added after or before rounding, which moves ties: 4 u of |x / scale| + zero.
//!
//! A kernel that quantizes what it computed (norm, activation) has numbers with an error of their own; then the
//! largest and the smallest that each number may be bound its code, and those of a block bound its scale.

use super::want::{Ball, Get, Want, Wants, row, unit};
use crate::formats::{decode, encode, max_value, nan_code, smallest};
use kp_hal::{
    DType,
    op::{Format, Overflow, QuantizeSpec, Rows, ScaleRule, Scales, Scheme},
};

/// What codes, scales, global and zero points may be; `got` are those that the kernel stored.
pub fn quantize(p: &QuantizeSpec, get: &Get<'_>, got: &Get<'_>) -> Wants {
    let shape = (p.rows, p.cols);
    let x: Vec<Ball> = (0..p.rows).flat_map(|r| row(get("x"), &p.x, r, p.cols).iter().map(|&x| exactly(x))).collect();
    let format = p.q.format;
    let mut wants = Wants::new();
    let (scales, zeros) = match p.scales {
        Scales::Given => (get("given_scale"), get("given_zero")),
        Scales::Computed => (got("scale"), got("zero")),
    };
    let global = if format.has_global() { got("global")[0] } else { 1.0 };
    if p.scales == Scales::Computed {
        if format.has_global() {
            wants.push(("global", vec![global_of(&x)]));
        }
        if format.scheme != Scheme::None {
            wants.push(("scale", scales_of(format, p.rule, shape, &x, global)));
        }
        if format.has_zero() {
            wants.push(("zero", zeros_of(format, shape, &x, scales)));
        }
    }
    wants.push(("q", codes_of(&p.q, p.overflow, shape, &x, &Stored { scales, zeros, global })));
    wants
}

/// What a row-wise output `y` may be that is quantized as it is stored: by its format's usual rule, saturating, with a
/// scale or global of the whole tensor that the caller gives as `y_global`.
pub(super) fn store(y: &Rows, shape: (u32, u32), numbers: &[Ball], get: &Get<'_>, got: &Get<'_>) -> Wants {
    let format = y.format;
    let global = if format.has_global() { get("y_global")[0] } else { 1.0 };
    let (scales, zeros) = (if format.scheme == Scheme::Tensor { get("y_global") } else { got("y_scale") }, &[][..]);
    let mut wants = vec![("y", codes_of(y, Overflow::Saturate, shape, numbers, &Stored { scales, zeros, global }))];
    if !matches!(format.scheme, Scheme::None | Scheme::Tensor) {
        wants.push(("y_scale", scales_of(format, ScaleRule::of(format), shape, numbers, global)));
    }
    wants
}

/// What the kernel stored beside the codes, or was given.
struct Stored<'a> {
    scales: &'a [f64],
    zeros: &'a [f64],
    global: f64,
}

fn exactly(value: f64) -> Ball {
    Ball { value, error: 0.0 }
}

/// The least and the most that the largest finite magnitude may be.
fn amax<'a>(block: impl Iterator<Item = &'a Ball>) -> (f64, f64) {
    block.filter(|b| b.value.is_finite()).fold((0.0, 0.0), |(lo, hi): (f64, f64), b| {
        (lo.max(b.value.abs() - b.error), hi.max(b.value.abs() + b.error))
    })
}

fn global_of(x: &[Ball]) -> Want {
    let (amax, _) = amax(x.iter());
    let value = amax / (448.0 * 6.0);
    if amax == 0.0 { Want::exact(1.0) } else { Want::near(value, 4.0 * u() * value).stored(DType::F32) }
}

/// The numbers of each block and where its scale lies.
fn blocks<'a>(
    format: Format,
    (rows, cols): (u32, u32),
    x: &'a [Ball],
) -> impl Iterator<Item = (usize, Vec<&'a Ball>)> {
    let (block_rows, block_cols) = format.block();
    let (down, across) = format.blocks(rows, cols);
    (0..down).flat_map(move |o| (0..across).map(move |i| (o, i))).map(move |(o, i)| {
        let first_row = o * block_rows.min(rows);
        let first_col = i * block_cols.min(cols);
        let in_block = (first_row..rows.min(first_row.saturating_add(block_rows))).flat_map(|r| {
            let last_col = cols.min(first_col.saturating_add(block_cols));
            &x[r as usize * cols as usize..][first_col as usize..last_col as usize]
        });
        (scale_place(format, (o, i), (rows, cols)), in_block.collect())
    })
}

/// Where the scale of a block lies.
fn scale_place(format: Format, block: (u32, u32), shape: (u32, u32)) -> usize {
    if format.scheme == Scheme::Tensor { 0 } else { format.scale_index(block, shape) as usize }
}

/// All scales; those that only pad a layout may be anything.
fn scales_of(format: Format, rule: ScaleRule, shape: (u32, u32), x: &[Ball], global: f64) -> Vec<Want> {
    let mut wants = vec![Want::Any; format.scale_count(shape.0, shape.1) as usize];
    let dtype = format.scale_dtype().expect("a scheme with scales");
    if format.scheme == Scheme::Tensor && x.is_empty() {
        wants[0] = Want::exact(1.0);
    }
    for (at, block) in blocks(format, shape, x) {
        wants[at] = if format.has_zero() {
            let (min, max) = range(&block);
            let value = (max - min) / max_value(format.dtype);
            if value == 0.0 { Want::exact(1.0) } else { in_type(dtype, value * (1.0 - 4.0 * u()), value, value * (1.0 + 4.0 * u())) }
        } else {
            scale_of(format.dtype, dtype, rule, amax(block.into_iter()), global)
        };
    }
    wants
}

/// The scale of a block whose largest magnitude is from `lo` to `hi`.
fn scale_of(code: DType, scale: DType, rule: ScaleRule, (lo, hi): (f64, f64), global: f64) -> Want {
    // The code 0 of the types that only scale; they have no 1 that would do for every block of zeros.
    let of_zeros = if scale.is_scale() { decode(scale, 0) } else { 1.0 };
    if hi == 0.0 {
        return Want::exact(of_zeros);
    }
    let power = rule != ScaleRule::Nearest || scale == DType::E8m0;
    let slack = if power { 0.0 } else { 4.0 * u() };
    let of = |amax: f64, slack: f64| match rule {
        ScaleRule::Floor => two_to(exponent(amax) - exponent(max_value(code))),
        ScaleRule::Up => power_above(amax / max_value(code)),
        ScaleRule::Nearest if power => nearest_power(amax / max_value(code)),
        ScaleRule::Nearest => amax / max_value(code) / global * (1.0 + slack),
    };
    match in_type(scale, of(lo, -slack), of((lo + hi) / 2.0, 0.0), of(hi, slack)) {
        // A block that may be all zeros.
        Want::Between { lo: least, value, hi: most } if lo == 0.0 => {
            Want::Between { lo: least.min(of_zeros), value, hi: most.max(of_zeros) }
        }
        want => want,
    }
}

/// Rounded to `dtype`, never to 0 and never past its largest number.
fn in_type(dtype: DType, lo: f64, value: f64, hi: f64) -> Want {
    let one = |x: f64| {
        let x = x.clamp(smallest(dtype), max_value(dtype));
        decode(dtype, encode(dtype, x, Overflow::Saturate))
    };
    Want::Between { lo: one(lo), value: one(value), hi: one(hi) }
}

/// The least and the largest of a block's finite numbers and 0.
fn range(block: &[&Ball]) -> (f64, f64) {
    let finite = block.iter().map(|b| b.value).filter(|v| v.is_finite());
    finite.fold((0.0, 0.0), |(min, max), v| (min.min(v), max.max(v)))
}

fn zeros_of(format: Format, shape: (u32, u32), x: &[Ball], scales: &[f64]) -> Vec<Want> {
    let mut wants = vec![Want::Any; scales.len()];
    for (at, block) in blocks(format, shape, x) {
        let zero = -range(&block).0 / scales[at];
        wants[at] = Want::near(zero, 4.0 * u() * zero).stored(format.dtype);
    }
    wants
}

fn codes_of(q: &Rows, overflow: Overflow, (rows, cols): (u32, u32), x: &[Ball], with: &Stored<'_>) -> Vec<Want> {
    let format = q.format;
    let mut wants = super::want::blank_rows(q, rows, cols);
    let (block_rows, block_cols) = format.block();
    for r in 0..rows {
        for c in 0..cols {
            let at = scale_place(format, (r / block_rows, c / block_cols), (rows, cols));
            let scale = if format.scheme == Scheme::None { 1.0 } else { with.scales[at] * with.global };
            let zero = if format.has_zero() { with.zeros[at] } else { 0.0 };
            let x = x[r as usize * cols as usize + c as usize];
            wants[r as usize * q.ld as usize + c as usize] = code_of(format, overflow, x, scale, zero);
        }
    }
    wants
}

fn code_of(format: Format, overflow: Overflow, x: Ball, scale: f64, zero: f64) -> Want {
    let t = format.dtype;
    if x.value.is_nan() {
        return if nan_code(t).is_some() { Want::Nan } else { Want::exact(zero) };
    }
    let exact = is_power(scale) && !format.has_zero() && !format.has_global();
    let quotient = if x.value == 0.0 { 0.0 } else { x.value / scale };
    let off = if exact { 0.0 } else { 4.0 * u() * (quotient.abs() + zero) } + if x.error == 0.0 { 0.0 } else { x.error / scale };
    if quotient.is_nan() || off.is_nan() {
        // A scale that is NaN, or 0 for numbers that are not: the scale itself is judged elsewhere.
        return Want::Any;
    }
    let end = |off: f64| decode(t, encode(t, quotient + zero + if quotient.is_finite() { off } else { 0.0 }, overflow));
    let (lo, value, hi) = (end(-off), end(0.0), end(off));
    match (lo.is_nan(), hi.is_nan()) {
        (true, true) => Want::Nan,
        (false, false) => Want::Between { lo, value, hi },
        // One end overflows to NaN, the other does not.
        _ => Want::Any,
    }
}

fn u() -> f64 {
    unit(DType::F32)
}

/// floor(log2 x) of a positive x.
fn exponent(x: f64) -> i32 {
    (-1100..1100).rev().find(|&e| two_to(e) <= x).expect("positive and finite")
}

fn two_to(e: i32) -> f64 {
    // `powi` of a negative exponent divides by a positive power, which overflows where the result does not.
    2_f64.powi(e / 2) * 2_f64.powi(e - e / 2)
}

fn is_power(x: f64) -> bool {
    x > 0.0 && x.is_finite() && two_to(exponent(x)) == x
}

fn power_above(x: f64) -> f64 {
    let below = two_to(exponent(x));
    if below == x { below } else { 2.0 * below }
}

/// Halfway between two powers goes up.
fn nearest_power(x: f64) -> f64 {
    let below = two_to(exponent(x));
    if x < 1.5 * below { below } else { 2.0 * below }
}
