//! Attention of f16 or bf16 on the matrix unit: see `kernels/attention/glsl/coopmat.comp` and `coopmat_ahead.comp`.
//!
//! Limits: Q, K and V of one 16-bit type without scales, dimensions that are multiples of the columns of the shape that the driver
//! lists. Needs what `VK_NV_cooperative_matrix2` adds to matrices of subgroups.

use super::{
    coopmat_ahead,
    form::{Main, known, matrices, plan, rows, splits, tiles},
    merge::MERGE,
};
use crate::{
    caps::{COOPMAT_2, mma_shape},
    device::VulkanDevice,
    shaders::{Shader, shader},
};
use kp_hal::{
    Caps, DType, Device, DeviceKind, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    caps::MmaShape,
    op::{Attention, AttentionProblem, HeadLayout, Repro, Spec},
    source_hash,
};
use std::sync::Arc;

/// The kernel for matrix units that subgroups share.
pub(crate) struct Coopmat;

static F16: Shader = shader!("attention", "coopmat");
static BF16: Shader = shader!("attention", "coopmat_bf16");

/// What one variant is.
struct Way {
    subgroups: u32,
    /// Matrices down that a subgroup has.
    deep: u32,
    /// Keys of a block.
    block: u32,
    /// Whether scores are made a block ahead, where lanes have parts of matrices that are known.
    ahead: bool,
    /// Whether keys are split among groups.
    split: bool,
    /// Share of the peak that a busy unit reaches; a guess, as the peak is.
    efficiency: f64,
}

/// Variants; append only, because wisdom names them by their place.
const WAYS: [Way; 9] = [
    Way { subgroups: 4, deep: 1, block: 64, ahead: false, split: false, efficiency: 0.42 },
    Way { subgroups: 4, deep: 2, block: 32, ahead: false, split: false, efficiency: 0.2 },
    Way { subgroups: 1, deep: 1, block: 16, ahead: false, split: true, efficiency: 0.2 },
    Way { subgroups: 1, deep: 1, block: 32, ahead: false, split: true, efficiency: 0.2 },
    Way { subgroups: 1, deep: 1, block: 16, ahead: false, split: false, efficiency: 0.2 },
    Way { subgroups: 8, deep: 1, block: 64, ahead: false, split: false, efficiency: 0.6 },
    Way { subgroups: 8, deep: 1, block: 32, ahead: false, split: false, efficiency: 0.48 },
    Way { subgroups: 4, deep: 1, block: 32, ahead: false, split: false, efficiency: 0.5 },
    Way { subgroups: 8, deep: 1, block: 32, ahead: true, split: false, efficiency: 0.66 },
];

impl Way {
    /// Rows of a group.
    const fn tile(&self, mma: &MmaShape) -> u32 {
        self.subgroups * self.deep * mma.m
    }

    fn threads(&self, caps: &Caps) -> u32 {
        self.subgroups * caps.lanes
    }

    /// Blocks of keys and of values that stand in shared memory.
    fn places(&self) -> u32 {
        1 + u32::from(self.ahead)
    }

    /// Keys and values of its blocks or the tile's queries, with 16 bytes more a line, or a matrix of each subgroup; two numbers a row.
    fn shared_bytes(&self, mma: &MmaShape, p: &AttentionProblem) -> u32 {
        let line = |dim: u32| 2 * dim + 16;
        let blocks = self.places() * self.block * (line(p.qk_dim) + line(p.v_dim));
        let matrices = 4 * self.subgroups * mma.m * mma.n;
        blocks.max(self.tile(mma) * line(p.qk_dim)).max(matrices) + 8 * self.tile(mma)
    }

    /// Whether the device has room for it, and a subgroup's registers for its queries, its results and scores.
    fn fits(&self, caps: &Caps, mma: &MmaShape, p: &AttentionProblem) -> bool {
        let whole = self.block.is_multiple_of(mma.n);
        let numbers = self.deep * mma.m * (p.v_dim + p.qk_dim / 2 + self.places() * self.block);
        // A driver for processors makes hundreds of instructions of each product, and takes a second to compile a few.
        let products = self.deep * self.block / mma.n * ((p.qk_dim + p.v_dim) / mma.n);
        let most = if caps.kind == DeviceKind::SoftwareGpu { 8 } else { u32::MAX };
        let room = self.threads(caps) <= caps.max_threads && self.shared_bytes(mma, p) <= caps.shared_bytes;
        whole
            && room
            && products <= most
            && numbers <= MOST_NUMBERS * caps.lanes
            && (!self.ahead || coopmat_ahead::asked(mma))
    }
}

/// Numbers that a lane has registers for.
const MOST_NUMBERS: u32 = 240;

/// Where eight numbers can be loaded or stored at once wherever a head of a token starts, as `RUNS` of the shader.
fn runs(p: &AttentionProblem) -> u32 {
    let [q, k, v, o] = p.ld;
    let apart = |all: &[u32]| all.iter().all(|ld| ld.is_multiple_of(8));
    let heads = p.layout == HeadLayout::Bhsd || (p.qk_dim.is_multiple_of(8) && p.v_dim.is_multiple_of(8));
    let starts = p.align().bytes() >= 16 && heads;
    let of_two_bytes = matches!(p.o, DType::F16 | DType::Bf16);
    u32::from(starts && apart(&[q, k, v])) | u32::from(starts && of_two_bytes && apart(&[o])) << 1
}

/// Times a copy's time that one query with many keys takes on an H200.
const READING: f64 = 1.9;

impl Kernel<Attention> for Coopmat {
    fn name(&self) -> &'static str {
        "coopmat"
    }

    fn code(&self) -> u64 {
        let own = const {
            source_hash(include_bytes!("coopmat.rs"))
                ^ F16.hash().rotate_left(1)
                ^ MERGE.hash().rotate_left(2)
                ^ BF16.hash().rotate_left(3)
        };
        own ^ coopmat_ahead::code().rotate_left(4)
    }

    fn supports(&self, caps: &Caps, p: &AttentionProblem) -> Support {
        known(p)?;
        let need = matrices(p)?;
        let mma = mma_shape(caps, p.q.dtype).filter(|_| caps.has(need)).ok_or(Unsupported::Feature { need })?;
        if !caps.has(COOPMAT_2) || mma.n != mma.k {
            return Err(Unsupported::Feature { need: COOPMAT_2 });
        }
        for (dim, got) in [("qk_dim", p.qk_dim), ("v_dim", p.v_dim)] {
            if !got.is_multiple_of(mma.n) {
                return Err(Unsupported::Align { dim, multiple: mma.n.into(), got: got.into() });
            }
        }
        let need = WAYS.iter().map(|way| way.shared_bytes(mma, p)).min().unwrap_or(0).into();
        let never = Unsupported::SharedMemory { need, have: caps.shared_bytes.into() };
        // Which way wins, and how keys are split, depends on how many rows there are; the bits of a row on the keys that are
        // added at once. So whoever wants the same bits always gets blocks of one size.
        let invariant = p.repro() == Repro::BatchInvariant;
        let whole = WAYS.iter().filter(|way| !way.split && way.fits(caps, mma, p));
        let block = whole.map(|way| way.block).max();
        Variants::filter(WAYS.len() as u8, never, |v| {
            let way = &WAYS[usize::from(v.0)];
            let splits = !invariant && p.kv_len > 2 * way.block;
            way.fits(caps, mma, p) && (!way.split || splits) && (!invariant || block == Some(way.block))
        })
    }

    fn estimate(&self, caps: &Caps, p: &AttentionProblem, variant: Variant) -> Nanos {
        let way = &WAYS[usize::from(variant.0)];
        let Some(mma) = mma_shape(caps, p.q.dtype) else { return Nanos(u64::MAX) };
        let tile = way.tile(mma);
        let all = tiles(p, tile) as f64;
        let parts = if way.split { splits(caps, p, tile, way.block) } else { 1 };
        // What is busy at once, as groups of four subgroups.
        let groups = all * f64::from(parts) * f64::from(way.subgroups) / 4.0 / f64::from(caps.units.max(1));
        let rounds = groups.ceil() / groups.max(f64::MIN_POSITIVE);
        let full = f64::from(tile) * all / (rows(p) * u64::from(p.batch * p.kv_heads)).max(1) as f64;
        // With heads of 64 numbers a step has too few products to make up for its smaller block.
        let efficiency = if way.ahead && p.qk_dim.max(p.v_dim) <= 64 { 0.55 } else { way.efficiency };
        let work = p.flops() * full * rounds / (caps.rates.get(p.q.dtype) * efficiency);
        let bytes = READING * rounds * p.bytes() as f64 / caps.bytes_per_s;
        let launches = if way.split { 2.0 } else { 1.0 };
        Nanos::from_secs(launches * caps.launch_ns as f64 * 1e-9 + work.max(bytes))
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &AttentionProblem, variant: Variant) -> Result<Plan<Attention>> {
        let (caps, way) = (device.caps(), &WAYS[usize::from(variant.0)]);
        let mma = mma_shape(caps, p.q.dtype).expect("supported, so there is a shape");
        let tile = way.tile(mma);
        let vulkan: &VulkanDevice = device.downcast_ref().expect("a device of this backend");
        let known = coopmat_ahead::asked(mma) && vulkan.has_lanes(p.q.dtype, mma.n);
        let numbers = [way.subgroups, way.deep, way.block, mma.m, mma.n, way.threads(caps)];
        let main = Main {
            name: self.name(),
            shader: match p.q.dtype {
                dtype if way.ahead && known => coopmat_ahead::shader_of(dtype),
                DType::F16 => &F16,
                _ => &BF16,
            },
            runs: 0,
            constants: numbers.into_iter().chain([runs(p), known.into()]).collect(),
            subgroup: Some(caps.lanes),
            tile,
            splits: if way.split { splits(caps, p, tile, way.block) } else { 1 },
        };
        plan(device, p, variant, main)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caps::COOPMAT;
    use kp_hal::caps::MmaScope;

    fn caps() -> Caps {
        let mut caps = Caps::new(DeviceKind::Gpu, "vulkan1.4");
        (caps.max_threads, caps.shared_bytes, caps.lanes) = (1024, 48 << 10, 32);
        caps.set_features([COOPMAT, COOPMAT_2]);
        let (a, d) = (DType::F16, DType::F32);
        caps.mma_shapes = vec![MmaShape { m: 16, n: 16, k: 16, a, b: a, d, scope: MmaScope::Subgroup }];
        caps
    }

    fn ways(caps: &Caps, text: &str) -> Vec<u8> {
        let p: AttentionProblem = text.parse().expect("a problem");
        Coopmat.supports(caps, &p).map_or_else(|_| Vec::new(), |all| all.iter().map(|v| v.0).collect())
    }

    #[test]
    fn variants_are_those_that_fit() {
        assert_eq!(ways(&caps(), "attention 1x4x512x128 f16:f16:f16"), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(ways(&caps(), "attention 1x4x512x128 f16:f16:f16 repro=batch-invariant"), [0, 5]);
        assert_eq!(ways(&caps(), "attention 1x4x512x256 f16:f16:f16"), [2, 3, 4, 7]);
    }

    #[test]
    fn what_the_driver_does_not_list_is_not_run() {
        let mut caps = caps();
        assert!(ways(&caps, "attention 1x4x512x128 bf16:bf16:bf16").is_empty());
        assert!(ways(&caps, "attention 1x4x512x24 f16:f16:f16").is_empty());
        caps.set_features([COOPMAT]);
        assert!(ways(&caps, "attention 1x4x512x128 f16:f16:f16").is_empty(), "reductions are another extension's");
    }
}
