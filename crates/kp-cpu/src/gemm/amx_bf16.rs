//! D = A·B in bf16 by tiles of AMX, summed in f32; operands of bf16, or of 8 or 4 bits, which become bf16 as they are packed.
//!
//! See [`super::amx::product`] for how it is cut. Codes of 8 and 4 bits are bf16 numbers, so scales that are those of whole
//! rows and columns are left to the end; scales of B that change along k multiply codes first, and the product is rounded to bf16, as A
//! is then. Where A is no bf16, nothing is rounded, and scales with which codes would have too many bits [wait for sums](super::amx::scaled).
//! Limits: AMX and AVX-512; sums in f32; numbers below 2⁻¹²⁶, of operands and between them, count as 0; the order
//! in which sums are made is the tiles', so not `batch-invariant`.

use super::{
    amx::{
        bits::{most_zero, parts_of},
        lines::Holds,
        product,
        source::{Units, estimate, sums_are_whole, waits},
    },
    side::varies,
};
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Gemm, GemmProblem, GemmSpec, Matrix, Repro, Scheme, Sparsity},
    source_hash,
};
use std::sync::Arc;

/// The kernel.
pub(crate) struct AmxBf16;

/// What packs and finishes for tiles.
pub(crate) const VECTORS: [&str; 4] = ["avx512f", "avx512bw", "avx512dq", "avx512vl"];

impl Kernel<Gemm> for AmxBf16 {
    fn name(&self) -> &'static str {
        "amx_bf16"
    }

    fn code(&self) -> u64 {
        const {
            source_hash(include_bytes!("amx_bf16.rs"))
                ^ source_hash(include_bytes!("amx/tile.rs")).rotate_left(1)
                ^ source_hash(include_bytes!("amx/lines.rs")).rotate_left(2)
                ^ source_hash(include_bytes!("amx/codes.rs")).rotate_left(3)
                ^ source_hash(include_bytes!("amx/convert.rs")).rotate_left(27)
                ^ source_hash(include_bytes!("amx/source.rs")).rotate_left(4)
                ^ source_hash(include_bytes!("amx/product.rs")).rotate_left(5)
                ^ source_hash(include_bytes!("amx/cut.rs")).rotate_left(6)
                ^ source_hash(include_bytes!("amx/ends.rs")).rotate_left(7)
                ^ source_hash(include_bytes!("amx/operands.rs")).rotate_left(8)
                ^ source_hash(include_bytes!("amx/along.rs")).rotate_left(28)
                ^ source_hash(include_bytes!("amx/asks.rs")).rotate_left(29)
                ^ source_hash(include_bytes!("amx/room.rs")).rotate_left(30)
                ^ source_hash(include_bytes!("amx/bits.rs")).rotate_left(9)
                ^ source_hash(include_bytes!("amx/parts.rs")).rotate_left(10)
                ^ source_hash(include_bytes!("amx/scaled.rs")).rotate_left(11)
                ^ source_hash(include_bytes!("across.rs")).rotate_left(12)
        }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        supports(caps, p, p.repro())
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, _: Variant) -> Nanos {
        let (_, memory) = Nanos::floors(caps, p);
        estimate(caps, p, (Holds::Bf16, Units::Tiles), memory, f64::from(p.batch) * f64::from(p.m), p.batch)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        Ok(product::plan(self, device, p, variant, Holds::Bf16, Units::Tiles))
    }
}

/// Whether `caps` and `p` suit products by tiles.
pub(crate) fn supports(caps: &Caps, p: &GemmSpec, repro: Repro) -> Support {
    has_tiles(caps)?;
    suits(p, repro, Units::Tiles)
}

/// Whether `caps` have tiles of bf16, and what packs and finishes for them.
///
/// # Errors
/// What is missing.
pub(crate) fn has_tiles(caps: &Caps) -> std::result::Result<(), Unsupported> {
    let mut needs = ["amx-tile", "amx-bf16"].into_iter().chain(VECTORS);
    needs.find(|need| !caps.has(need)).map_or(Ok(()), |need| Err(Unsupported::Feature { need }))
}

/// Whether `p` wants plain sums in f32, in any order, or in i32 where f32 holds them.
///
/// # Errors
/// What it wants instead.
pub(crate) fn sums_in_f32(p: &GemmSpec, repro: Repro) -> std::result::Result<(), Unsupported> {
    if repro == Repro::BatchInvariant {
        return Err(Unsupported::Repro { asked: repro });
    }
    if !p.acc.is_f32() && !sums_are_whole(p) {
        return Err(Unsupported::Option { option: "acc", got: p.acc.to_string() });
    }
    if p.sparsity != Sparsity::Dense {
        return Err(Unsupported::Option { option: "sparse", got: p.sparsity.to_string() });
    }
    Ok(())
}

/// Whether the types and sums of `p` suit products of bf16: A is exact in it, and B if A is not bf16.
pub(crate) fn suits(p: &GemmSpec, repro: Repro, units: Units) -> Support {
    sums_in_f32(p, repro)?;
    if p.a.dtype() != DType::Bf16 {
        let is_exact = |matrix: &Matrix| parts_of(matrix, p.k, most_zero(matrix)) == 1;
        let exact = [is_exact(&p.a) && !varies(&p.a, p.k), is_exact(&p.b) || waits(p, Holds::Bf16, units)];
        for ((operand, matrix), exact) in [("a", &p.a), ("b", &p.b)].into_iter().zip(exact) {
            if matrix.format.scheme == Scheme::None && !exact {
                return Err(Unsupported::DType { operand, got: matrix.dtype() });
            }
            if !exact {
                return Err(Unsupported::Scheme { operand, got: matrix.format.to_string() });
            }
        }
    }
    if p.b.dtype() != DType::Bf16 && p.b.dtype().bits() > 8 {
        return Err(Unsupported::DType { operand: "b", got: p.b.dtype() });
    }
    for (operand, matrix) in [("a", &p.a), ("b", &p.b)] {
        if matrix.dtype() == DType::Bf16 && matrix.format.scheme != Scheme::None {
            return Err(Unsupported::Scheme { operand, got: matrix.format.to_string() });
        }
    }
    Ok(Variants::ONE)
}
