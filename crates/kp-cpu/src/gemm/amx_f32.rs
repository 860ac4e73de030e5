//! D = A·B in f32 by tiles of AMX that multiply bf16: each number is the sum of three, or of fewer if it has fewer bits.
//!
//! See [`super::amx::parts`] for what is multiplied. Variant 0 splits both operands ([`super::amx::floats`]). Variant 1 splits A alone, whose parts meet
//! columns of codes that are numbers of bf16, contiguous or [turned](super::across), scales of whole columns left to the end ([`super::amx::product`]).
//! Errors are no larger than by multiply-adds,
//! and [the bound](kp_hal::op) of sums in f32 holds. Operands of other types become f32 first. Limits: AMX and AVX-512; sums in f32, that are finished in
//! f32; numbers below 2⁻¹¹⁰ lose bits, and count as 0 below 2⁻¹²⁶; not `batch-invariant`, since few rows have other kernels.

use super::{
    across::lies_across,
    amx::{
        bits::{kept, most_zero, parts_of},
        chunks::grid,
        floats::Floats,
        lines::Holds,
        parts::WIDE,
        product,
        source::{self, Units},
        splits::codes_of,
        terms::terms,
        woven,
    },
    amx_bf16::{has_tiles, suits, sums_in_f32},
    product::finishes_in_f64,
};
use crate::{amx::ROWS, kernel};
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Gemm, GemmProblem, GemmSpec, Matrix, Order, Repro, Scheme},
    source_hash,
};
use std::{borrow::Cow, sync::Arc};

/// The kernel.
pub(crate) struct AmxF32;

impl Kernel<Gemm> for AmxF32 {
    fn name(&self) -> &'static str {
        "amx_f32"
    }

    fn code(&self) -> u64 {
        const {
            source_hash(include_bytes!("amx_f32.rs"))
                ^ source_hash(include_bytes!("amx/parts.rs")).rotate_left(1)
                ^ source_hash(include_bytes!("amx/floats.rs")).rotate_left(2)
                ^ source_hash(include_bytes!("amx/bits.rs")).rotate_left(3)
                ^ source_hash(include_bytes!("amx/codes.rs")).rotate_left(4)
                ^ source_hash(include_bytes!("amx/convert.rs")).rotate_left(27)
                ^ source_hash(include_bytes!("amx/splits.rs")).rotate_left(5)
                ^ source_hash(include_bytes!("amx/terms.rs")).rotate_left(6)
                ^ source_hash(include_bytes!("amx/product.rs")).rotate_left(7)
                ^ source_hash(include_bytes!("amx/operands.rs")).rotate_left(8)
                ^ source_hash(include_bytes!("amx/along.rs")).rotate_left(28)
                ^ source_hash(include_bytes!("amx/asks.rs")).rotate_left(29)
                ^ source_hash(include_bytes!("amx/room.rs")).rotate_left(30)
                ^ source_hash(include_bytes!("amx/source.rs")).rotate_left(9)
                ^ source_hash(include_bytes!("amx/lines.rs")).rotate_left(10)
                ^ source_hash(include_bytes!("amx/tile.rs")).rotate_left(11)
                ^ source_hash(include_bytes!("amx/cut.rs")).rotate_left(12)
                ^ source_hash(include_bytes!("amx/ends.rs")).rotate_left(13)
                ^ source_hash(include_bytes!("amx/woven.rs")).rotate_left(14)
                ^ source_hash(include_bytes!("amx/weave.rs")).rotate_left(15)
                ^ source_hash(include_bytes!("amx/chunks.rs")).rotate_left(16)
                ^ source_hash(include_bytes!("amx/scaled.rs")).rotate_left(17)
                ^ source_hash(include_bytes!("across.rs")).rotate_left(18)
        }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        supports(caps, p, p.repro())
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, variant: Variant) -> Nanos {
        match variant {
            COLUMNS => {
                let (_, memory) = Nanos::floors(caps, p);
                let rows = f64::from(p.batch) * f64::from(p.m);
                source::estimate(caps, p, (Holds::Bf16, Units::Tiles), memory, rows, p.batch)
            }
            _ => estimate(caps, p),
        }
    }

    fn note(&self, _: &Caps, p: &GemmProblem, _: Variant) -> Option<Cow<'static, str>> {
        kernel::pads([("m", p.m as usize, ROWS), ("n", p.n as usize, WIDE)])
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        if variant == COLUMNS {
            return Ok(product::plan(self, device, p, variant, Holds::Bf16, Units::Tiles));
        }
        let code = Floats::new(p.spec());
        // SAFETY: the loops touch what the spec names, and the scratch that `scratch_bytes` counts.
        Ok(unsafe { kernel::plan(self, device, p, variant, code.scratch_bytes(), code) })
    }
}

/// Whether `caps` and `p` suit it.
fn supports(caps: &Caps, p: &GemmSpec, repro: Repro) -> Support {
    has_tiles(caps)?;
    sums_in_f32(p, repro)?;
    for (operand, matrix) in [("a", &p.a), ("b", &p.b)] {
        if matches!(matrix.dtype(), DType::F64 | DType::I32 | DType::I64) {
            return Err(Unsupported::DType { operand, got: matrix.dtype() });
        }
    }
    // What needs no parts.
    if suits(p, repro, Units::Tiles).is_ok() {
        return Err(Unsupported::DType { operand: "a", got: p.a.dtype() });
    }
    if finishes_in_f64(p) {
        return Err(Unsupported::DType { operand: "d", got: p.d.dtype() });
    }
    Variants::filter(2, Unsupported::DType { operand: "b", got: p.b.dtype() }, |variant| {
        variant != COLUMNS || meets_columns(p)
    })
}

/// The variant that splits A alone.
const COLUMNS: Variant = Variant(1);

/// Whether B's columns need not be split: they are codes that are numbers of bf16 with their scales, or before those, which then multiply sums.
fn meets_columns(p: &GemmSpec) -> bool {
    let is_exact = parts_of(&p.b, p.k, most_zero(&p.b)) == 1 || source::waits(p, Holds::Bf16, Units::Tiles);
    source::is_split(p) && (p.b.order == Order::Col || lies_across(&p.b, true)) && is_exact
}

/// Products of parts, six of f32, at a measured share of the peak, splitting, and reading.
fn estimate(caps: &Caps, p: &GemmProblem) -> Nanos {
    let (_, memory) = Nanos::floors(caps, p);
    let whole = |n: u32, multiple: usize| (n as usize).next_multiple_of(multiple) as f64;
    let (batch, k, threads) = (f64::from(p.batch), f64::from(p.k), caps.units.max(1));
    let (rows, columns) = (whole(p.m, ROWS), whole(p.n, WIDE));
    let parts = kept([&p.a, &p.b].map(|matrix| parts_of(matrix, p.k, USUAL_ZEROS)), p);
    let multiply = terms(parts).count() as f64 * 2.0 * batch * rows * columns * k / (0.5 * caps.rates.get(DType::Bf16));
    let [down, across] = grid(p, threads as usize).map(|chunks| chunks as f64);
    let turned = if p.b.order == Order::Col { TURN_CYCLES } else { 0.0 };
    let of_a = across * rows * (cycles(&p.a, p.a.order == Order::Row) - 1.0 + turned);
    let of_b = match codes_of(p) {
        Some(_) if p.b.dtype() == DType::F16 || parts[1] > 2 => 1.6 * CODE_CYCLES,
        Some(_) => CODE_CYCLES,
        None if woven::suits(p) => woven::cycles(p.m as usize / down.max(1.0) as usize),
        None => cycles(&p.b, matches!(p.b.order, Order::Row | Order::Panel { depth: 1, .. })),
    };
    let of_b = down * columns * of_b;
    // Few chunks keep few threads busy.
    let busy = (down * across).clamp(1.0, f64::from(threads)) / f64::from(threads);
    let split = batch * k * (of_a + of_b) / (caps.clock_hz.max(1e9) * f64::from(threads));
    Nanos::from_secs(((multiply + split) / busy).max(memory.as_secs()) + 3e-6 * batch)
}

/// Zero points as 4 bits have them.
const USUAL_ZEROS: u8 = 15;

/// Cycles that a code takes to be looked up as two parts at most; three take longer, and numbers of f16 are not looked up but split.
const CODE_CYCLES: f64 = 1.0;

/// Cycles that an element of A takes to be turned, once it is split.
const TURN_CYCLES: f64 = 0.4;

/// Cycles that an element of B takes to be split, as measured; one of A takes one fewer, since it is asked for long before.
fn cycles(matrix: &Matrix, lies: bool) -> f64 {
    match matrix.dtype() {
        _ if matrix.format.scheme != Scheme::None => 9.0,
        DType::F32 if lies => 2.0,
        DType::F32 | DType::Bf16 | DType::F16 => 3.0,
        _ => 5.0,
    }
}
