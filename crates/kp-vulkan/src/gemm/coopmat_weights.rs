//! D = A·B on the matrix unit, A of f16 or bf16, B's columns contiguous and of 8 or 4 bits, scaled or not.
//!
//! The tiles of [`super::coopmat`], with B widened to A's type on the way to shared memory: see
//! `kernels/gemm/glsl/coopmat_weights.glsl`. Scales of whole columns multiply sums; a scale along k multiplies codes, and the product is
//! rounded to A's type. Limits: as `coopmat`'s; blocks of a multiple of eight elements of a column; of a column scaled along k, what
//! is 2⁻²⁴ of its largest number is lost where A is f16.

use super::{
    coopmat::{READING, TILES, Tile, countable, matrices},
    form::weighed,
    scales::SCALES,
    splits::SPLITS,
};
use crate::{
    launch::planned,
    layouts::RUN,
    shaders::{Shader, shader},
};
use kp_hal::{
    Caps, DType, Device, DeviceKind, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    caps::MmaShape,
    op::{Gemm, GemmProblem, GemmSpec, Order},
    source_hash,
};
use std::sync::Arc;

/// The kernel for weights of few bits on matrix units that subgroups share.
pub(crate) struct CoopmatWeights;

static F16: Shader = shader!("gemm", "coopmat_weights", open 12 but [0, 1, 10, 11], and [21]);
static BF16: Shader = shader!("gemm", "coopmat_weights_bf16");

/// What B may be.
const NARROW: [DType; 8] =
    [DType::E4m3, DType::E5m2, DType::E2m1, DType::Nf4, DType::I4, DType::U4, DType::I8, DType::U8];

/// How much longer products take for widening B, which every row of tiles does again; as on an H200.
pub(crate) fn widening(tile: &Tile) -> f64 {
    1.0 + 32.0 / f64::from(tile.size().0)
}

impl Tile {
    /// What B's columns are multiplied by besides, and numbers of NF4.
    fn weighed_bytes(&self, mma: &MmaShape) -> u32 {
        self.shared_bytes(mma) + 4 * self.cols() + 64
    }
}

/// What the kernel is made of.
pub(crate) const CODE: u64 = source_hash(include_bytes!("coopmat_weights.rs"))
    ^ source_hash(include_bytes!("coopmat.rs")).rotate_left(1)
    ^ F16.hash().rotate_left(2)
    ^ BF16.hash().rotate_left(3)
    ^ SPLITS.hash().rotate_left(4)
    ^ SCALES.hash().rotate_left(5);

/// The shader for A's type.
pub(crate) fn shader(p: &GemmSpec) -> &'static Shader {
    if p.a.dtype() == DType::F16 { &F16 } else { &BF16 }
}

/// The variants that suit a device and a product.
pub(crate) fn supports(caps: &Caps, p: &GemmSpec) -> Support {
    let mma = matrices(caps, p)?;
    countable(p)?;
    if !NARROW.contains(&p.b.dtype()) {
        return Err(Unsupported::DType { operand: "b", got: p.b.dtype() });
    }
    if p.b.order != Order::Col {
        return Err(Unsupported::Layout { operand: "b", got: p.b.order.to_string() });
    }
    weighed(p)?;
    let (_, depth) = p.b.format.block();
    if depth != u32::MAX && !depth.is_multiple_of(RUN) {
        let (multiple, got) = (RUN.into(), depth.into());
        return Err(Unsupported::Align { dim: "elements that share a scale", multiple, got });
    }
    let fits = |tile: &Tile| tile.fits(caps, mma) && tile.weighed_bytes(mma) <= caps.shared_bytes;
    // A driver for processors compiles each for seconds, and none is better than another there.
    let first = TILES.iter().position(fits).filter(|_| caps.kind == DeviceKind::SoftwareGpu);
    let never = Unsupported::SharedMemory {
        need: TILES.iter().map(|tile| tile.weighed_bytes(mma)).min().unwrap_or(0).into(),
        have: caps.shared_bytes.into(),
    };
    Variants::filter(TILES.len() as u8, never, |v| {
        let at = usize::from(v.0);
        fits(&TILES[at]) && first.is_none_or(|first| at == first)
    })
}

impl Kernel<Gemm> for CoopmatWeights {
    fn name(&self) -> &'static str {
        "coopmat_weights"
    }

    fn code(&self) -> u64 {
        CODE
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        supports(caps, p.spec())
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, variant: Variant) -> Nanos {
        let tile = &TILES[usize::from(variant.0)];
        let work = widening(tile) * tile.least_seconds(caps, p);
        // Steps wait for memory as long as if B had 16 bits.
        let bytes = 2.0 * f64::from(p.batch) * f64::from(p.n) * f64::from(p.k);
        Nanos::from_secs(caps.launch_ns as f64 * 1e-9 + work.max(READING * bytes / caps.bytes_per_s))
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        let (code, scratch) = TILES[usize::from(variant.0)].ready(device, p, self.name(), shader(p.spec()))?;
        // SAFETY: the shaders touch what the spec names, and the scratch that is asked for.
        Ok(unsafe { planned(self.name(), variant, device.id(), p, scratch, code) })
    }
}
