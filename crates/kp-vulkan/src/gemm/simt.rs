//! D = A·B for floats, and for narrow integers beside them, on the ordinary arithmetic units of any device.
//!
//! See `kernels/gemm/glsl/simt.comp` for the tiling. Limits: operands and results without scales, sums of floats. A row's bits
//! depend on nothing but the row, since every variant adds the products of an element one after the other.

use super::form::{Main, plain, product};
use crate::{
    layouts::reads,
    shaders::{Shader, shader},
};
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Gemm, GemmProblem, Spec},
    source_hash,
};
use std::sync::Arc;

/// The kernel that runs on every device.
pub(crate) struct Simt;

static SHADER: Shader = shader!("gemm", "simt", open 12 but []);

/// What one variant is.
struct Tile {
    /// Rows, columns and depth that a group has in shared memory.
    shape: (u32, u32, u32),
    /// Rows and columns of a thread's sums.
    sums: (u32, u32),
    /// Share of the peak that a unit full of such tiles reaches; a guess, as the peak is.
    efficiency: f64,
}

/// Variants; append only, because wisdom names them by their place.
const TILES: [Tile; 3] = [
    Tile { shape: (128, 128, 16), sums: (8, 8), efficiency: 0.6 },
    Tile { shape: (64, 64, 16), sums: (4, 4), efficiency: 0.4 },
    Tile { shape: (16, 64, 32), sums: (2, 4), efficiency: 0.15 },
];

/// The variant for few rows pays off up to here.
const FEW_ROWS: u32 = 64;

impl Tile {
    const fn threads(&self) -> u32 {
        self.shape.0 / self.sums.0 * (self.shape.1 / self.sums.1)
    }

    /// Both operands' parts, with the word that each row is longer; or a row of every thread's sums.
    const fn shared_bytes(&self) -> u32 {
        let ((rows, cols, depth), (tm, _)) = (self.shape, self.sums);
        let (parts, done) = (depth * (rows + 1 + cols + 1), rows / tm * cols);
        4 * if parts > done { parts } else { done }
    }
}

impl Kernel<Gemm> for Simt {
    fn name(&self) -> &'static str {
        "simt"
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("simt.rs")) ^ SHADER.hash().rotate_left(1) }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        if super::is_invariant_elsewhere(caps, p, "simt") {
            return Err(Unsupported::Repro { asked: p.repro() });
        }
        plain(p.spec())?;
        reads(&[("a", p.a.dtype()), ("b", p.b.dtype())])?;
        let never = Unsupported::TooLarge { dim: "threads of a workgroup", max: caps.max_threads.into(), got: 128 };
        Variants::filter(TILES.len() as u8, never, |v| {
            let tile = &TILES[usize::from(v.0)];
            let fits = tile.threads() <= caps.max_threads && tile.shared_bytes() <= caps.shared_bytes;
            fits && (v.0 != 2 || p.m <= FEW_ROWS)
        })
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, variant: Variant) -> Nanos {
        let tile = &TILES[usize::from(variant.0)];
        let (rows, cols, _) = tile.shape;
        let tiles = f64::from(p.batch) * f64::from(p.m.div_ceil(rows)) * f64::from(p.n.div_ceil(cols));
        let units = f64::from(caps.units.max(1));
        let per_unit = caps.rates.get(DType::F32) / units * tile.efficiency;
        let work = (tiles / units).ceil() * 2.0 * f64::from(rows) * f64::from(cols) * f64::from(p.k) / per_unit;
        let bytes = p.bytes() as f64 / caps.bytes_per_s;
        Nanos::from_secs(caps.launch_ns as f64 * 1e-9 + work.max(bytes))
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        let tile = &TILES[usize::from(variant.0)];
        let ((rows, cols, depth), (tm, tn)) = (tile.shape, tile.sums);
        let main = Main {
            name: self.name(),
            shader: &SHADER,
            constants: vec![rows, cols, depth, tm, tn, tile.threads()],
            subgroup: None,
            tile: (rows, cols),
        };
        let code = product(device, p.spec(), main)?;
        // SAFETY: the shader touches what the spec names, and has no scratch.
        Ok(unsafe { Plan::new(self.name(), variant, device.id(), p, 0, code) })
    }
}
