//! D = A·B in every form, on the ordinary arithmetic units of any device; for grouped products too.
//!
//! See `kernels/gemm/glsl/simt.comp` for the tiling. Limits: f64 unscaled, with no functions but `relu`. A row's bits depend on
//! nothing but the row, since every variant adds the products of an element one after the other.

use super::{
    dot_few_rows::{has_fast_dot, is_dotted},
    full::{Code, Form},
    store::STORE,
};
use crate::{
    caps::{DOT8, FLOAT64},
    launch::planned,
    shaders::{Shader, shader},
};
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Acc, Gemm, GemmProblem, GemmSpec, Matrix, Spec},
    source_hash,
};
use std::sync::Arc;

/// The kernel that runs on every device.
pub(crate) struct Simt;

static SHADER: Shader = shader!("gemm", "simt", open 21 but []);
static WHOLE: Shader = shader!("gemm", "simt_whole", open 21 but []);
static WIDE: Shader = shader!("gemm", "simt_wide", open 21 but []);
static DOT: Shader = shader!("gemm", "simt_dot", open 21 but []);

/// What one variant is.
struct Tile {
    /// Rows, columns and depth that a group has in shared memory.
    shape: (u32, u32, u32),
    /// Rows and columns of a thread's sums.
    sums: (u32, u32),
    /// Share of the peak that a unit full of such tiles reaches; a guess, as the peak is.
    efficiency: f64,
    /// Whether words have four codes of 8 bits, which are multiplied at once.
    dot: bool,
}

/// Variants; append only, because wisdom names them by their place.
const TILES: [Tile; 6] = [
    Tile { shape: (128, 128, 16), sums: (8, 8), efficiency: 0.6, dot: false },
    Tile { shape: (64, 64, 16), sums: (4, 4), efficiency: 0.4, dot: false },
    Tile { shape: (16, 64, 32), sums: (2, 4), efficiency: 0.15, dot: false },
    Tile { shape: (128, 128, 64), sums: (8, 8), efficiency: 1.2, dot: true },
    Tile { shape: (64, 64, 64), sums: (4, 4), efficiency: 0.8, dot: true },
    Tile { shape: (16, 64, 128), sums: (2, 4), efficiency: 0.3, dot: true },
];

/// The share of the peak where a device has no instruction for such products and makes them of others.
const WITHOUT: f64 = 0.25;

/// Rows of a tile for few of them, and as many as it pays off up to.
const SMALL: u32 = 16;
const FEW_ROWS: u32 = 64;

/// Codes of a word.
const CODES: u32 = 4;

impl Tile {
    const fn threads(&self) -> u32 {
        self.shape.0 / self.sums.0 * (self.shape.1 / self.sums.1)
    }

    /// Both operands' parts, with the word that each row is longer; or a row of every thread's sums.
    const fn shared_bytes(&self) -> u32 {
        let ((rows, cols, depth), (tm, _)) = (self.shape, self.sums);
        let words = if self.dot { depth / CODES } else { depth };
        let (parts, done) = (words * (rows + 1 + cols + 1), rows / tm * cols);
        4 * if parts > done { parts } else { done }
    }

    /// As many of f64.
    const fn wide_bytes(&self) -> u32 {
        2 * self.shared_bytes()
    }
}

impl Kernel<Gemm> for Simt {
    fn name(&self) -> &'static str {
        "simt"
    }

    fn code(&self) -> u64 {
        CODE
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        if super::is_invariant_elsewhere(caps, p, "simt") {
            return Err(Unsupported::Repro { asked: p.repro() });
        }
        supports(caps, Form { spec: p.spec(), grouping: None })
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, variant: Variant) -> Nanos {
        estimate(caps, Form { spec: p.spec(), grouping: None }, p.bytes(), variant)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        let form = Form { spec: p.spec(), grouping: None };
        let code = ready(device, form, variant)?;
        // SAFETY: the shaders touch what the spec names, and the scratch that is asked for.
        Ok(unsafe { planned(self.name(), variant, device.id(), p, form.scratch_bytes(), Box::new(code)) })
    }
}

/// What the kernel is made of.
pub(crate) const CODE: u64 = source_hash(include_bytes!("simt.rs"))
    ^ SHADER.hash().rotate_left(1)
    ^ WHOLE.hash().rotate_left(2)
    ^ DOT.hash().rotate_left(3)
    ^ WIDE.hash().rotate_left(4)
    ^ STORE.hash();

/// Whether sums are of products of 8 bits by 8 bits, scaled block by block of whole words.
fn is_dot(spec: &GemmSpec) -> bool {
    let whole = |matrix: &Matrix| {
        let (_, inner) = matrix.format.block();
        inner >= spec.k || inner.is_multiple_of(CODES)
    };
    is_dotted(spec) && whole(&spec.a) && whole(&spec.b)
}

/// The variants that suit a device and a problem.
pub(crate) fn supports(caps: &Caps, form: Form<'_>) -> Support {
    form.known()?;
    if form.is_wide() && !caps.has(FLOAT64) {
        return Err(Unsupported::Feature { need: FLOAT64 });
    }
    let never = Unsupported::TooLarge { dim: "threads of a workgroup", max: caps.max_threads.into(), got: 128 };
    Variants::filter(TILES.len() as u8, never, |v| {
        let tile = &TILES[usize::from(v.0)];
        let shared = if form.is_wide() { tile.wide_bytes() } else { tile.shared_bytes() };
        let fits = tile.threads() <= caps.max_threads && shared <= caps.shared_bytes;
        let (rows, ..) = tile.shape;
        let dots = !tile.dot || (caps.has(DOT8) && is_dot(form.spec));
        fits && dots && (rows != SMALL || form.spec.m <= FEW_ROWS)
    })
}

/// Tiles at a share of the peak, or memory.
pub(crate) fn estimate(caps: &Caps, form: Form<'_>, bytes: u64, variant: Variant) -> Nanos {
    let tile = &TILES[usize::from(variant.0)];
    let (rows, cols, _) = tile.shape;
    let units = f64::from(caps.units.max(1));
    let share = if tile.dot && !has_fast_dot(caps, form.spec) { WITHOUT } else { 1.0 };
    let per_unit = caps.rates.get(DType::F32) / units * tile.efficiency * share;
    let tiles = form.tiles((rows, cols)) as f64;
    let work = (tiles / units).ceil() * 2.0 * f64::from(rows) * f64::from(cols) * f64::from(form.spec.k) / per_unit;
    Nanos::from_secs(caps.launch_ns as f64 * 1e-9 + work.max(bytes as f64 / caps.bytes_per_s))
}

/// A product made ready.
///
/// # Errors
/// `Driver` if the driver refuses a kernel.
pub(crate) fn ready(device: &Arc<dyn Device>, form: Form<'_>, variant: Variant) -> Result<Code> {
    let tile = &TILES[usize::from(variant.0)];
    let ((rows, cols, depth), (tm, tn)) = (tile.shape, tile.sums);
    let shader = match (tile.dot, form.spec.acc) {
        (true, _) => &DOT,
        (false, Acc::I32) => &WHOLE,
        (false, Acc::F64) => &WIDE,
        (false, _) => &SHADER,
    };
    form.ready(device, "simt", shader, &[rows, cols, depth, tm, tn, tile.threads()], (rows, cols), None)
}
