//! How far a product may be from the exact one: what every kernel of the op has promised, as one number.
//!
//! An element of a product is the sum of `k` terms `alpha·a·b`, a bias and a residual; S is the sum of their
//! magnitudes. Each operation on the way errs by at most `step` = 2u of S, u being the unit roundoff of the type it is
//! done in and 2 for units that truncate:
//!
//! ```text
//! k · step(acc)                       adding the terms, in any order
//! min(k, 128) · 2⁻¹³ for 8-bit floats  partial sums that a coarser matrix unit may keep; see `Acc::F32`
//! blocks · step(f32)                  adding what blocks with scales of their own sum to
//! 9 · step(f32)                       scales of a and b, alpha, bias, residual
//! 2⁻¹⁰ for each tf32 operand          what the multiplier does not read
//! u(wider operand)                    a code times its scale, as a number of the other operand's type
//! u(result)                           storing
//! ```
//! The sum of these times S bounds the error, as long as nothing leaves the range of normal numbers of the types in
//! between. With f64 sums, read f64 for f32.

use kp_hal::{
    DType,
    op::{Acc, Act, Format, Gate, GemmSpec, Scheme},
};

/// Operations besides the `k` additions: two scales and two global scales, their product, alpha, the bias twice
/// (widened, added), the residual.
const FURTHER: f64 = 9.0;

/// One addition that keeps 13 bits of mantissa and cuts the rest off: 2⁻¹³.
const COARSE: f64 = 1.0 / 8192.0;

/// The bound of a product relative to S; `None` where an error is not a share of S: after an activation that is no
/// straight line, a gate, a rounding to integers or a quantization, of `a` too.
pub(super) fn of_product(spec: &GemmSpec, alpha: f32) -> Option<f64> {
    let plain = |f: Format| f.scheme == Scheme::None;
    let (a, b, d) = (spec.a.format, spec.b.format, spec.d.format);
    let straight = matches!(spec.epilogue.act, Act::Identity | Act::Relu) && spec.epilogue.gate == Gate::None;
    if !straight || !plain(d) {
        return None;
    }
    if spec.acc == Acc::I32 && d.dtype == DType::I32 {
        let exact = plain(a) && plain(b) && alpha == 1.0;
        let exact = exact && spec.epilogue.bias.is_none() && spec.epilogue.residual.is_none();
        return exact.then_some(0.0);
    }
    let later = 2.0 * unit_roundoff(if spec.acc == Acc::F64 { DType::F64 } else { DType::F32 })?;
    let step = match spec.acc {
        Acc::F64 | Acc::F32 => later,
        Acc::F32Fast => COARSE,
        Acc::F32Q8 => return None,
        Acc::F16 => 2.0 * unit_roundoff(DType::F16)?,
        Acc::I32 => 0.0,
    };
    // What 8-bit floats may lose in a matrix unit before their sums are promoted.
    let narrow = |f: Format| f.dtype.is_float() && f.dtype.bits() == 8;
    let coarse = spec.acc == Acc::F32 && narrow(a) && narrow(b);
    let partial = if coarse { f64::from(spec.k.min(128)) * COARSE } else { 0.0 };
    let blocks = |f: Format| if plain(f) { 0.0 } else { f64::from(f.blocks(1, spec.k).1) };
    let read = |f: Format| if f.dtype == DType::Tf32 { 2_f64.powi(-10) } else { 0.0 };
    let wider = if a.dtype.bits() >= b.dtype.bits() { a.dtype } else { b.dtype };
    let widened = !(plain(a) && plain(b)) && wider.bits() >= 16 && a.dtype != b.dtype;
    let widening = if widened { unit_roundoff(wider)? } else { 0.0 };
    let sum = f64::from(spec.k) * step
        + partial
        + (blocks(a).max(blocks(b)) + FURTHER) * later
        + read(a)
        + read(b)
        + widening;
    Some(sum + unit_roundoff(d.dtype)? * (1.0 + sum))
}

/// Half the distance between neighbours at 1; `None` for types whose steps do not grow with their numbers.
fn unit_roundoff(t: DType) -> Option<f64> {
    let mantissa = match t {
        DType::F64 => 52,
        DType::F32 | DType::Tf32 => 23,
        DType::F16 => 10,
        DType::Bf16 => 7,
        DType::E4m3 | DType::E4m3Fnuz => 3,
        DType::E5m2 | DType::E5m2Fnuz => 2,
        DType::E2m1 => 1,
        _ => return None,
    };
    Some(2_f64.powi(-mantissa - 1))
}
