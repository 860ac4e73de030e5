//! D = A·B for every form of the op, on the ordinary arithmetic units.
//!
//! See `kernels/gemm/cuda/simt.cu` for the tiling. Limits: none. A row's bits depend on nothing but the row, since every
//! variant adds the products of an element one after the other.

pub(super) mod params;

use super::simt_store::{self, Form, Main, finishes_wide, is_staged};
use crate::compile::{Build, Listed, Source, source};
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Acc, Gemm, GemmProblem, GemmSpec, Order, Sparsity},
    source_hash,
};
use std::{borrow::Cow, sync::Arc};

/// The kernel that runs everything.
pub(crate) struct Simt;

impl Kernel<Gemm> for Simt {
    fn name(&self) -> &'static str {
        "simt"
    }

    fn code(&self) -> u64 {
        CODE
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        if super::is_invariant_elsewhere(super::LIST, caps, p, "simt") {
            return Err(Unsupported::Repro { asked: p.repro() });
        }
        supports(p.spec())
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, variant: Variant) -> Nanos {
        estimate(caps, p.spec(), f64::from(p.batch), variant)
    }

    fn note(&self, _: &Caps, p: &GemmProblem, _: Variant) -> Option<Cow<'static, str>> {
        is_staged(p.spec()).then_some(Cow::Borrowed("scales d afterwards"))
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        let code = Form::new(device, p.spec(), None, p.align(), &main(p.spec(), variant))?;
        // SAFETY: the kernels touch what the spec names, and the scratch that `scratch_bytes` counts.
        Ok(unsafe { Plan::new(self.name(), variant, device.id(), p, code.scratch_bytes, Box::new(code)) })
    }
}

/// Everything that a result of this kernel depends on.
pub(crate) const CODE: u64 =
    source_hash(include_bytes!("simt.rs")) ^ super::hash(&GEMM).rotate_left(1) ^ simt_store::CODE;

static GEMM: Source =
    source!("gemm/cuda/simt.cu", "gemm/cuda/simt.cuh", "gemm/cuda/simt_finish.cuh", "common/cuda/numbers.cuh");

/// Variants: `TILE` of the source; append only, because wisdom names them by their place.
const TILES: [Tile; 3] = [
    Tile { plain: (256, 128, 256), narrow: (128, 128, 256), wide: (64, 128, 256), efficiency: 0.62, step: 16.0 },
    Tile { plain: (64, 64, 128), narrow: (64, 64, 128), wide: (64, 64, 128), efficiency: 0.45, step: 16.0 },
    Tile { plain: (16, 32, 128), narrow: (16, 32, 128), wide: (16, 32, 128), efficiency: 0.15, step: 64.0 },
];

/// The variant for few rows pays off up to here.
const FEW_ROWS: u32 = 64;

struct Tile {
    /// Rows, columns and threads for plain f32.
    plain: (u32, u32, u32),
    /// The same for other sums of 32 bits.
    narrow: (u32, u32, u32),
    /// The same for sums of 64 bits.
    wide: (u32, u32, u32),
    /// Share of the peak that a unit full of such tiles reaches.
    efficiency: f64,
    /// Elements of k between two loads.
    step: f64,
}

/// Macros of `simt.cu`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Numbers {
    sum: &'static str,
    finish: &'static str,
    plain: bool,
}

/// All that `Numbers::of` may answer.
const NUMBERS: [Numbers; 6] = [
    Numbers { sum: "float", finish: "float", plain: true },
    Numbers { sum: "float", finish: "float", plain: false },
    Numbers { sum: "float", finish: "double", plain: true },
    Numbers { sum: "float", finish: "double", plain: false },
    Numbers { sum: "double", finish: "double", plain: false },
    Numbers { sum: "int", finish: "double", plain: false },
];

impl Numbers {
    fn of(spec: &GemmSpec) -> Self {
        // A scale that changes along k multiplies whole numbers as they are added, and f64 holds all of them.
        let varies = [spec.a, spec.b].iter().any(|x| x.format.block().1 < spec.k);
        let sum = match spec.acc {
            Acc::F64 => "double",
            Acc::I32 if varies => "double",
            Acc::I32 => "int",
            Acc::F32 | Acc::F32Fast | Acc::F32Q8 | Acc::F16 => "float",
        };
        let finish = sum != "float" || finishes_wide(spec);
        let is_plain = |x: &kp_hal::op::Matrix| {
            matches!(x.dtype(), DType::F32 | DType::Tf32) && !matches!(x.order, Order::Panel { .. })
        };
        let plain = sum == "float" && is_plain(&spec.a) && is_plain(&spec.b) && spec.sparsity == Sparsity::Dense;
        Self { sum, finish: if finish { "double" } else { "float" }, plain }
    }

    fn tile(self, variant: Variant) -> (u32, u32, u32) {
        let tile = &TILES[usize::from(variant.0)];
        match self.sum {
            "double" => tile.wide,
            _ if self.plain => tile.plain,
            _ => tile.narrow,
        }
    }

    fn build(self, variant: Variant) -> Build {
        let defines = vec![
            ("SUM", self.sum.to_owned()),
            ("FINISH", self.finish.to_owned()),
            ("PLAIN", u8::from(self.plain).to_string()),
            ("TILE", variant.0.to_string()),
        ];
        Build { source: &GEMM, entry: "simt", defines }
    }
}

/// Every build there is.
pub(crate) fn builds() -> Vec<Listed> {
    let tiles = (0..TILES.len() as u8).map(Variant);
    let listed = tiles.flat_map(|v| NUMBERS.map(|numbers| Listed::new("gemm/simt", v, numbers.build(v))));
    // Half of a large tile's sums wait in registers while the other half is finished, by calls.
    let why = "sums wait while others are finished, once for each tile";
    listed.map(|listed| Listed { local_memory: Some(why), ..listed }).collect()
}

pub(crate) fn supports(spec: &GemmSpec) -> Support {
    let never = Unsupported::TooLarge { dim: "m", max: FEW_ROWS.into(), got: spec.m.into() };
    Variants::filter(TILES.len() as u8, never, |v| v.0 != 2 || spec.m <= FEW_ROWS)
}

/// Tiles in waves, each at a share of the peak, or as long as its loads take; `rows` counts how often `m` repeats.
pub(crate) fn estimate(caps: &Caps, spec: &GemmSpec, row_batch: f64, variant: Variant) -> Nanos {
    let numbers = Numbers::of(spec);
    let tile = &TILES[usize::from(variant.0)];
    let (bm, bn, _) = numbers.tile(variant);
    let (tiles_m, tiles_n) = (spec.m.div_ceil(bm), spec.n.div_ceil(bn));
    let units = f64::from(caps.units.max(1));
    let waves = (row_batch * f64::from(tiles_m) * f64::from(tiles_n) / units).ceil();
    let rate = if numbers.sum == "double" { DType::F64 } else { DType::F32 };
    // Unpacking costs about as many instructions as a third of a tile's products.
    let unpack = if numbers.plain { 1.0 } else { 0.7 };
    let per_unit = caps.rates.get(rate) / units * tile.efficiency * unpack;
    let work = 2.0 * f64::from(bm) * f64::from(bn) * f64::from(spec.k) / per_unit;
    // A step waits for memory once, and other blocks of the unit hide half of that.
    let latency = f64::from(spec.k) / tile.step * 0.5e-6;
    let times = if is_staged(spec) { 3.0 } else { 1.0 };
    let bytes = kp_hal::op::Spec::bytes(spec) as f64 / caps.bytes_per_s;
    let launches = times * caps.launch_ns as f64 * 1e-9;
    Nanos::from_secs(launches + (waves * work.max(latency)).max(bytes))
}

/// What sums `spec` in `variant`.
pub(crate) fn main(spec: &GemmSpec, variant: Variant) -> Main {
    let numbers = Numbers::of(spec);
    let (m, n, threads) = numbers.tile(variant);
    Main {
        name: "simt",
        build: numbers.build(variant),
        tile: (m, n),
        threads,
        shared_bytes: 0,
        run: |_| 4,
        finish: numbers.finish,
    }
}
