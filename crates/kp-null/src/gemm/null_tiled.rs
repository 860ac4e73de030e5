//! D = A·B in square tiles, one per compute unit at a time, computing nothing.
//!
//! ```text
//!   n ─▶             each unit takes one tile of D and walks k;
//! m ┌──┬──┬──┐       tiles are padded, so a large tile wastes
//! │ ├──┼──┼──┤       a small problem, and a small tile loads
//! ▼ └──┴──┴──┘       A and B more often
//! ```
//! Limits: plain bf16, f16 or e4m3 operands of one type, rows contiguous or not, no epilogue, `k` a multiple of 16.

use crate::every_op::Nothing;
use kp_hal::{
    Caps, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Epilogue, Gemm, GemmProblem, Sparsity},
    source_hash,
};
use std::{borrow::Cow, sync::Arc};

/// Edges of the tile; append only, because wisdom names variants by their place.
const TILES: [u32; 3] = [32, 64, 128];

/// Computed while compiling: at run time it would take longer than the ranking that asks for it.
const CODE: u64 = source_hash(include_bytes!("null_tiled.rs"));

/// The kernel that has something to choose.
pub(crate) struct NullTiled;

impl Kernel<Gemm> for NullTiled {
    fn name(&self) -> &'static str {
        "null_tiled"
    }

    fn code(&self) -> u64 {
        CODE
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        for (operand, format) in [("a", p.a.format), ("b", p.b.format)] {
            if !caps.mma.contains(format.dtype) {
                return Err(Unsupported::DType { operand, got: format.dtype });
            }
            if format != format.dtype.into() {
                return Err(Unsupported::Scheme { operand, got: format.to_string() });
            }
        }
        if p.a.dtype() != p.b.dtype() {
            return Err(Unsupported::DType { operand: "b", got: p.b.dtype() });
        }
        if p.epilogue != Epilogue::default() {
            return Err(Unsupported::Option { option: "epilogue", got: "given".into() });
        }
        if p.sparsity != Sparsity::Dense {
            return Err(Unsupported::Option { option: "sparse", got: p.sparsity.to_string() });
        }
        if !p.k.is_multiple_of(16) {
            return Err(Unsupported::Align { dim: "k", multiple: 16, got: p.k.into() });
        }
        let have = u64::from(caps.shared_bytes);
        let need = |v: Variant| u64::from(TILES[usize::from(v.0)]) * 2 * 128 * u64::from(p.a.dtype().bits()) / 8;
        let otherwise = Unsupported::SharedMemory { need: need(Variant(0)), have };
        Variants::filter(TILES.len() as u8, otherwise, |v| need(v) <= have)
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, variant: Variant) -> Nanos {
        let tile = TILES[usize::from(variant.0)];
        let tiles = f64::from(p.batch) * f64::from(p.m.div_ceil(tile)) * f64::from(p.n.div_ceil(tile));
        let units = f64::from(caps.units.max(1));
        let waves = (tiles / units).ceil();
        let (edge, k) = (f64::from(tile), f64::from(p.k));
        let compute = waves * 2.0 * edge * edge * k / (caps.rates.get(p.a.dtype()) / units);
        let loads = tiles * 2.0 * edge * k * f64::from(p.a.dtype().bits()) / 8.0 / (4.0 * caps.bytes_per_s);
        let (_, memory) = Nanos::floors(caps, p);
        Nanos(memory.max(Nanos::from_secs(compute.max(loads))).0.saturating_add(caps.launch_ns))
    }

    fn note(&self, _: &Caps, p: &GemmProblem, variant: Variant) -> Option<Cow<'static, str>> {
        let tile = TILES[usize::from(variant.0)];
        let padded = |dim, size: u32| {
            let whole = u64::from(size).next_multiple_of(tile.into());
            (whole != u64::from(size)).then(|| format!("pads {dim} from {size} to {whole}"))
        };
        padded("m", p.m).or_else(|| padded("n", p.n)).map(Cow::Owned)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        // SAFETY: `Nothing` launches nothing, so it touches no byte.
        Ok(unsafe { Plan::new(self.name(), variant, device.id(), p, 0, Box::new(Nothing)) })
    }
}
