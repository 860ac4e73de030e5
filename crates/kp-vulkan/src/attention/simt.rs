//! Attention on the ordinary units of any device: see `kernels/attention/glsl/simt.comp`. Limits: no f64; at most eight of the operands
//! that not every problem has.

use super::{
    coopmat::Coopmat,
    form::{Main, known, plan, splits, tiles},
    merge::MERGE,
};
use crate::shaders::{Shader, shader};
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Attention, AttentionProblem, Repro, Spec},
    source_hash,
};
use std::sync::Arc;

/// The kernel that runs on every device.
pub(crate) struct Simt;

static SHADER: Shader = shader!("attention", "simt", open 32 but [4]);

/// What one variant is.
struct Way {
    /// Rows of a thread; a group has sixteen times as many.
    deep: u32,
    /// Whether keys are split among groups.
    split: bool,
    /// Share of the peak that a busy unit reaches; a guess, as the peak is.
    efficiency: f64,
}

/// Variants; append only, because wisdom names them by their place.
const WAYS: [Way; 3] = [
    Way { deep: 4, split: false, efficiency: 0.15 },
    Way { deep: 1, split: false, efficiency: 0.06 },
    Way { deep: 1, split: true, efficiency: 0.06 },
];

/// Keys of a block.
const BLOCK: u32 = 32;

/// Threads of a group.
const THREADS: u32 = 128;

/// Columns of V whose sums threads have registers for, in variants with more rows than one.
const MOST_DEEP: u32 = 256;

impl Kernel<Attention> for Simt {
    fn name(&self) -> &'static str {
        "simt"
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("simt.rs")) ^ SHADER.hash().rotate_left(1) ^ MERGE.hash().rotate_left(2) }
    }

    fn supports(&self, caps: &Caps, p: &AttentionProblem) -> Support {
        known(p)?;
        // Its sums are of another order, and which of the two wins depends on how many rows there are.
        if p.repro() == Repro::BatchInvariant && Coopmat.supports(caps, p).is_ok() {
            return Err(Unsupported::Repro { asked: p.repro() });
        }
        let never =
            Unsupported::TooLarge { dim: "threads of a workgroup", max: caps.max_threads.into(), got: THREADS.into() };
        Variants::filter(WAYS.len() as u8, never, |v| {
            let way = &WAYS[usize::from(v.0)];
            // How keys are split depends on how many rows there are.
            let splits = p.repro() != Repro::BatchInvariant && p.kv_len > 2 * BLOCK;
            THREADS <= caps.max_threads && (!way.split || splits) && (way.deep == 1 || p.v_dim <= MOST_DEEP)
        })
    }

    fn estimate(&self, caps: &Caps, p: &AttentionProblem, variant: Variant) -> Nanos {
        let way = &WAYS[usize::from(variant.0)];
        let tile = 16 * way.deep;
        let parts = if way.split { splits(caps, p, tile, BLOCK) } else { 1 };
        let items = tiles(p, tile) as f64 * f64::from(parts);
        let units = f64::from(caps.units.max(1));
        // A tile costs the same however many of its rows there are.
        let full = f64::from(tile) * tiles(p, tile) as f64
            / (super::form::rows(p) * u64::from(p.batch * p.kv_heads)).max(1) as f64;
        let rounds = (items / units).ceil() / (items / units).max(f64::MIN_POSITIVE);
        let work = p.flops() * full * rounds / (caps.rates.get(DType::F32) * way.efficiency);
        let launches = if way.split { 2.0 } else { 1.0 };
        Nanos::from_secs(launches * caps.launch_ns as f64 * 1e-9 + work.max(p.bytes() as f64 / caps.bytes_per_s))
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &AttentionProblem, variant: Variant) -> Result<Plan<Attention>> {
        let way = &WAYS[usize::from(variant.0)];
        let tile = 16 * way.deep;
        let main = Main {
            name: self.name(),
            shader: &SHADER,
            runs: 0,
            constants: vec![way.deep],
            subgroup: None,
            tile,
            splits: if way.split { splits(device.caps(), p, tile, BLOCK) } else { 1 },
        };
        plan(device, p, variant, main)
    }
}
