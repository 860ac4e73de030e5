//! Attention of few rows of f16 or bf16 on the matrix unit, at the speed of memory: see `kernels/attention/glsl/coopmat_decode.comp`.
//! Limits: Q, K and V of one type for which the driver lists matrices of 16×8×16 or 16×16×16 with sums of f32, without scales; heads of
//! a multiple of eight numbers, up to 128, that start on 16 bytes; no promise across batches; what `decode` asks for besides, which runs
//! where lanes have other parts of matrices than the shader needs.

use super::{
    decode::{self, Decode},
    form::{MOST_SPLITS, Main, matrices, plan, rows, tiles},
    merge::MERGE,
};
use crate::{
    caps::widths,
    device::VulkanDevice,
    shaders::{Shader, shader},
};
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Attention, AttentionProblem, AttentionSpec, Spec},
    source_hash,
};
use std::sync::Arc;

/// The kernel for few rows on matrix units that subgroups share.
pub(crate) struct CoopmatDecode;

static F16: Shader = shader!("attention", "coopmat_decode");
static BF16: Shader = shader!("attention", "coopmat_decode_bf16");

/// Numbers of a head, at most: registers hold queries, keys, values and results.
const MOST_DIM: u32 = 128;

/// Keys that a subgroup takes at once.
const KEYS: u32 = 16;

/// Groups that a unit of an H200 has registers for.
fn room(rows: u32) -> u32 {
    if rows == 8 { 3 } else { 2 }
}

/// How a group works.
struct Way {
    subgroups: u32,
    split: bool,
}

/// Variants; append only, because wisdom names them by their place.
const WAYS: [Way; 2] = [Way { subgroups: 4, split: true }, Way { subgroups: 4, split: false }];

impl Way {
    fn block(&self) -> u32 {
        KEYS * self.subgroups
    }

    /// A matrix of sums of each subgroup, and two numbers of each row.
    fn shared_bytes(&self, rows: u32) -> u32 {
        4 * self.subgroups * rows * (16 + 2)
    }

    /// Parts to cut keys into: as many as units have room for at once, since a few more would wait for all of these.
    fn splits(&self, caps: &Caps, p: &AttentionSpec, rows: u32) -> u32 {
        if !self.split {
            return 1;
        }
        let most = p.kv_len.div_ceil(4 * self.block());
        let at_once = u64::from(caps.units) * u64::from(room(rows)) / tiles(p, rows).max(1);
        (at_once as u32).min(most).clamp(2, MOST_SPLITS)
    }
}

/// Width of matrices, and rows of a group: the narrowest that have room for all rows, or else the widest, of which eight rows use half.
fn shape(caps: &Caps, p: &AttentionSpec) -> Option<(u32, u32)> {
    let all = || widths(caps, p.q.dtype);
    let width = all().find(|&n| rows(p) <= n.into()).or(all().last())?;
    Some((width, if rows(p) <= 8 { 8 } else { width }))
}

impl Kernel<Attention> for CoopmatDecode {
    fn name(&self) -> &'static str {
        "coopmat_decode"
    }

    fn code(&self) -> u64 {
        const {
            source_hash(include_bytes!("coopmat_decode.rs"))
                ^ F16.hash().rotate_left(1)
                ^ MERGE.hash().rotate_left(2)
                ^ BF16.hash().rotate_left(3)
        }
    }

    fn supports(&self, caps: &Caps, p: &AttentionProblem) -> Support {
        let need = matrices(p)?;
        let (_, rows) = shape(caps, p).filter(|_| caps.has(need)).ok_or(Unsupported::Feature { need })?;
        for (dim, got) in [("qk_dim", p.qk_dim), ("v_dim", p.v_dim)] {
            if got > MOST_DIM {
                return Err(Unsupported::TooLarge { dim, max: MOST_DIM.into(), got: got.into() });
            }
        }
        let lines = [(p.ld[0], p.qk_dim), (p.ld[1], p.qk_dim), (p.ld[2], p.v_dim)];
        if !decode::whole(p, p.q, &lines) {
            let got = p.align().bytes().into();
            return Err(Unsupported::Align { dim: "bytes before a head", multiple: 16, got });
        }
        Decode.supports(caps, p)?;
        let [need, have] = [WAYS[0].shared_bytes(rows), caps.shared_bytes].map(u64::from);
        Variants::filter(WAYS.len() as u8, Unsupported::SharedMemory { need, have }, |v| {
            let way = &WAYS[usize::from(v.0)];
            need <= have && (!way.split || p.kv_len > 2 * way.block())
        })
    }

    fn estimate(&self, caps: &Caps, p: &AttentionProblem, variant: Variant) -> Nanos {
        let way = &WAYS[usize::from(variant.0)];
        let (_, tile) = shape(caps, p).unwrap_or((1, 1));
        let groups = (tiles(p, tile) as f64 * f64::from(way.splits(caps, p, tile))).max(1.0);
        // A unit brings its share of the memory's speed with as many groups as it has room for, and less with fewer; what is left over
        // makes another round.
        let share = groups / (f64::from(room(tile)) * f64::from(caps.units.max(1)));
        let rounds = share.ceil() / share;
        let slower = if tile == 8 { 1.13 } else { 1.4 };
        let again = rows(p).div_ceil(tile.into()) as f64;
        let launches = if way.split { 2.0 } else { 1.0 };
        let moved = slower * rounds * again * p.bytes() as f64 / caps.bytes_per_s;
        Nanos::from_secs(launches * caps.launch_ns as f64 * 1e-9 + moved)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &AttentionProblem, variant: Variant) -> Result<Plan<Attention>> {
        let (caps, way) = (device.caps(), &WAYS[usize::from(variant.0)]);
        let (width, rows) = shape(caps, p).expect("supported, so there is a shape");
        let vulkan: &VulkanDevice = device.downcast_ref().expect("a device of this backend");
        if !vulkan.has_lanes(p.q.dtype, width) {
            return plan(device, p, variant, decode::main(self.name(), caps, p, way.split));
        }
        let main = Main {
            name: self.name(),
            shader: if p.q.dtype == DType::F16 { &F16 } else { &BF16 },
            runs: 0,
            constants: vec![width, way.subgroups, way.subgroups * caps.lanes, rows],
            subgroup: Some(caps.lanes),
            tile: rows,
            splits: way.splits(caps, p, rows),
        };
        plan(device, p, variant, main)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kp_hal::{
        DeviceKind,
        caps::{MmaScope, MmaShape},
    };

    #[test]
    fn groups_are_as_many_as_run_at_once() {
        let mut caps = Caps::new(DeviceKind::Gpu, "vulkan1.4");
        (caps.units, caps.max_threads, caps.shared_bytes, caps.lanes) = (132, 1024, 48 << 10, 32);
        let mma =
            |n| MmaShape { m: 16, n, k: 16, a: DType::F16, b: DType::F16, d: DType::F32, scope: MmaScope::Subgroup };
        let of = |caps: &Caps, text: &str| {
            let p: AttentionProblem = text.parse().expect("a problem");
            shape(caps, &p).map(|(width, rows)| (width, rows, WAYS[0].splits(caps, &p, rows)))
        };
        let eight = "attention 1x64:8x1:65536x128 f16:f16:f16";
        assert_eq!(of(&caps, eight), None, "no shape is listed");
        caps.mma_shapes = vec![mma(16)];
        assert_eq!(of(&caps, eight), Some((16, 8, 49)), "half of a matrix");
        caps.mma_shapes.push(mma(8));
        assert_eq!(of(&caps, eight), Some((8, 8, 49)));
        assert_eq!(of(&caps, "attention 1x128:8x1:65536x128 f16:f16:f16"), Some((16, 16, 33)));
        assert_eq!(of(&caps, "attention 1x64:8x1:1024x128 f16:f16:f16"), Some((8, 8, 4)), "no part is a few keys");
    }
}
