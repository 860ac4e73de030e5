//! D = A·B for at most eight rows of 8- or 4-bit codes whose B, of such codes too, has contiguous columns: exact sums in
//! i32, at the speed of memory.
//!
//! ```text
//!                  n ─▶ columns, each thread a run of them
//!   A, as i8    ┌──────┐      ┌─┬─┬─┬─┐
//!   and in L1   └──────┘    k │ │ │ │ │  four products an instruction and lane
//!                             └─┴─┴─┴─┘
//! ```
//! See [`super::few::byte_dots`] for the loop. Limits: A of i8, i4, u4 or e2m1 without zero points (e2m1 doubled is a
//! whole number), of u8 where no scales change along k, or of floats that may be rounded; B of these or u8; AVX-512 with VNNI;
//! scales that change along k do so at multiples of 16; what is scaled is finished in f32, unlike in `packed`, so not `batch-invariant`.

use super::{
    few::{
        byte_dots::Lift,
        codes::{Codes, Set},
        columns::{self, HEIGHTS, MOST, Reading, overlapped},
        dots::SHARE,
        lists,
    },
    rounded::is_rounded,
    side::varies,
};
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant,
    op::{Acc, Format, Gemm, GemmProblem, GemmSpec, Order, Repro, Scheme, Sparsity},
    source_hash,
};
use std::sync::Arc;

/// The kernel for decoding with codes on both sides.
pub(crate) struct VnniFewRows;

const FEATURES: [&str; 5] = ["avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni"];

/// Up to this many products of bytes, sums fit 32 bits.
const MOST_K: u32 = 1 << 16;

impl Kernel<Gemm> for VnniFewRows {
    fn name(&self) -> &'static str {
        "vnni_few_rows"
    }

    fn code(&self) -> u64 {
        const {
            source_hash(include_bytes!("vnni_few_rows.rs"))
                ^ source_hash(include_bytes!("few/byte_dots.rs")).rotate_left(1)
                ^ source_hash(include_bytes!("few/codes.rs")).rotate_left(5)
                ^ source_hash(include_bytes!("few/lists.rs")).rotate_left(2)
                ^ source_hash(include_bytes!("few/columns.rs")).rotate_left(3)
                ^ source_hash(include_bytes!("rounded.rs")).rotate_left(4)
                ^ source_hash(include_bytes!("few/apart.rs")).rotate_left(6)
        }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        if p.m as usize > MOST {
            return Err(Unsupported::TooLarge { dim: "m", max: MOST as u64, got: p.m.into() });
        }
        if p.b.order != Order::Col {
            return Err(Unsupported::Layout { operand: "b", got: p.b.order.to_string() });
        }
        has_features(caps)?;
        suits_unsigned_too(p)?;
        Ok(Reading::IN_ORDER_TOO)
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, variant: Variant) -> Nanos {
        let (_, memory) = Nanos::floors(caps, p);
        let rows = HEIGHTS[columns::height((p.m as usize).max(1))] as f64;
        // For a line of 64 bytes: an instruction or two for each row, some more where scales change.
        let lines = f64::from(p.batch) * f64::from(p.n) * f64::from(p.k) * f64::from(p.b.dtype().bits()) / 512.0;
        let varies = a_varies(p) || varies(&p.b, p.k);
        let is_four = p.b.dtype().bits() == 4;
        let if_so = |is: bool, instructions: f64| if is { instructions } else { 0.0 };
        let instructions = match (varies, is_four) {
            (false, _) => 2.0 + 2.0 * rows,
            (true, false) => 8.0 + 5.0 * rows,
            (true, true) => 3.0 + rows * (6.0 + if_so(a_varies(p), 2.0) + if_so(p.b.format.has_zero(), 2.5)),
        };
        let compute = lines * instructions / (1.6 * caps.clock_hz.max(1e9) * f64::from(caps.units.max(1)));
        // Four bits are limited by memory only where one row has no lists of scales; otherwise several columns share the work.
        let is_busy = is_four && (p.m > 1 || varies);
        let share = match Reading::of(variant) {
            Reading::Beside if is_busy => 0.9,
            _ if is_busy => 0.85,
            reading => reading.share(caps),
        };
        let secs = if is_busy { overlapped(memory, compute / share) } else { overlapped(memory, compute) / share };
        Nanos::from_secs(secs + 2e-6 * f64::from(p.batch.max(1)))
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        Ok(columns::plan(self, device, p, variant, 16, Codes::new(p, Reading::of(variant), Set::Avx512)))
    }
}

/// Whether `caps` has products of bytes with AVX-512.
pub(crate) fn has_features(caps: &Caps) -> std::result::Result<(), Unsupported> {
    match FEATURES.into_iter().find(|feature| !caps.has(feature)) {
        Some(need) => Err(Unsupported::Feature { need }),
        None => Ok(()),
    }
}

/// Whether the types, scales and sums of `p` suit products of bytes.
pub(crate) fn suits(p: &GemmProblem) -> std::result::Result<(), Unsupported> {
    if lift(p.b.dtype()).is_none() {
        return Err(Unsupported::DType { operand: "b", got: p.b.dtype() });
    }
    suits_but_for_b(p)
}

/// [`suits`] for a B of any type.
pub(crate) fn suits_but_for_b(p: &GemmProblem) -> std::result::Result<(), Unsupported> {
    let is_known = lift(p.a.dtype()).is_some() && p.a.dtype() != DType::U8;
    if !is_known && !is_rounded(p) {
        return Err(Unsupported::DType { operand: "a", got: p.a.dtype() });
    }
    suits_but_for_types(p)
}

/// [`suits`] for an A of unsigned bytes, too, unless scales change along k.
pub(crate) fn suits_unsigned_too(p: &GemmProblem) -> std::result::Result<(), Unsupported> {
    if p.a.dtype() == DType::U8 { suits_whole(p) } else { suits(p) }
}

/// The same for no scales that change along k.
pub(crate) fn suits_whole(p: &GemmProblem) -> std::result::Result<(), Unsupported> {
    for (operand, matrix, varies) in [("a", &p.a, a_varies(p)), ("b", &p.b, varies(&p.b, p.k))] {
        if lift(matrix.dtype()).is_none() {
            return Err(Unsupported::DType { operand, got: matrix.dtype() });
        }
        if varies {
            return Err(Unsupported::Scheme { operand, got: matrix.format.to_string() });
        }
    }
    suits_but_for_types(p)
}

/// [`suits`] for an A and a B of any type.
fn suits_but_for_types(p: &GemmProblem) -> std::result::Result<(), Unsupported> {
    if p.repro() == Repro::BatchInvariant {
        return Err(Unsupported::Repro { asked: p.repro() });
    }
    if p.acc == Acc::F16 {
        return Err(Unsupported::Option { option: "acc", got: p.acc.to_string() });
    }
    if p.sparsity != Sparsity::Dense {
        return Err(Unsupported::Option { option: "sparse", got: p.sparsity.to_string() });
    }
    let vary = a_varies(p) || varies(&p.b, p.k);
    for (operand, matrix) in [("a", &p.a), ("b", &p.b)] {
        let listed = is_rounded(p) && (operand == "a" || !varies(matrix, p.k))
            || lists::can_list(matrix, p.k)
            || !varies(matrix, p.k) && p.k.is_multiple_of(SHARE as u32);
        if vary && !listed || operand == "a" && matrix.format.has_zero() {
            return Err(Unsupported::Scheme { operand, got: matrix.format.to_string() });
        }
    }
    let is_scaled = p.a.format.scheme != Scheme::None || p.b.format.scheme != Scheme::None;
    if is_scaled && p.k > MOST_K {
        return Err(Unsupported::TooLarge { dim: "k", max: MOST_K.into(), got: p.k.into() });
    }
    Ok(())
}

/// Whether scales of A change along k, which it has in any case once it is rounded.
pub(crate) fn a_varies(spec: &GemmSpec) -> bool {
    is_rounded(spec) || varies(&spec.a, spec.k)
}

/// How codes of a type become unsigned bytes, by which offset, and what a step of these is worth.
pub(crate) fn lift(dtype: DType) -> Option<(Lift, i32, f32)> {
    let whole = |flip| Lift { flip, table: [0; 16], fine: [0; 16] };
    let four = |value: fn(usize) -> u8| Lift { flip: 0, table: std::array::from_fn(value), fine: [0; 16] };
    Some(match dtype {
        DType::I8 => (whole(0x80), 128, 1.0),
        DType::U8 => (whole(0), 0, 1.0),
        DType::U4 => (four(|c| c as u8), 0, 1.0),
        DType::I4 => (four(|c| c as u8 ^ 8), 8, 1.0),
        // Twice the value, which is 0 to 12 and its negatives.
        DType::E2m1 => {
            const TWICE: [u8; 8] = [0, 1, 2, 3, 4, 6, 8, 12];
            (four(|c| if c < 8 { 12 + TWICE[c] } else { 12 - TWICE[c - 8] }), 12, 0.5)
        }
        _ => return None,
    })
}

/// How codes of a B become those that meet an A of a type, unsigned unless this is, and by which offset.
///
/// # Panics
/// If there is no way.
pub(crate) fn lift_for(a: DType, b: DType) -> (Lift, i32) {
    let lifted = match a {
        DType::U8 => lift_signed(b),
        _ => lift(b).map(|(lift, offset, _)| (lift, offset)),
    };
    lifted.expect("a supported type")
}

/// How codes of a type become signed bytes instead, and by which offset.
fn lift_signed(dtype: DType) -> Option<(Lift, i32)> {
    let (Lift { flip, table, fine }, offset, _) = lift(dtype)?;
    Some(match dtype.bits() {
        8 => (Lift { flip: flip ^ 0x80, table, fine }, offset - 128),
        _ => (Lift { flip, table: table.map(|code| code.wrapping_sub(offset as u8)), fine }, 0),
    })
}

/// What a whole step of an operand is worth, but for scales.
pub(crate) fn unit(format: Format) -> f32 {
    lift(format.dtype).map_or(1.0, |(.., unit)| unit)
}

#[cfg(test)]
mod tests {
    use crate::gemm::tests::check;

    /// An A of unsigned bytes, by B of every type of codes, whatever their order.
    #[test]
    fn unsigned_rows() {
        for types in ["u8:i8:i32", "u8:u8:i32", "u8:u4:f32", "u8:i4:i32", "u8:e2m1@row:bf16"] {
            for order in ["", "b=col", "a=col b=col", "b=panel32x4"] {
                for size in ["1x1x66x290", "2x7x35x300", "1x21x66x290", "2x270x34x1088"] {
                    check(&format!("gemm {size} {types} {order}"), (1.0, 1.0));
                }
            }
            check(&format!("gemm 2x3x130x300 {types} b=panel64x4"), (1.0, 1.0));
        }
    }
}
