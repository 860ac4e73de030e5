//! Attention of few rows, as decoding has them, at the speed of memory: see `kernels/attention/glsl/decode.comp`. Limits: heads of a
//! multiple of eight numbers, up to eight for each lane of a subgroup; no promise across batches; at most eight of the operands that
//! not every problem has.

use super::{
    form::{Main, known, plan, rows, splits, tiles},
    merge::MERGE,
};
use crate::{
    layouts::{RUN, at_once},
    shaders::{Shader, shader},
};
use kp_hal::{
    Caps, Device, DeviceKind, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Attention, AttentionProblem, AttentionSpec, Format, HeadLayout, Repro, Rows, Spec},
    source_hash,
};
use std::sync::Arc;

/// The kernel for few rows.
pub(crate) struct Decode;

static SHADER: Shader = shader!("attention", "decode", open 32 but [4]);

/// Rows of a group, at most; and rows that share a head of keys, each group of which reads them again.
const MOST_ROWS: u32 = 8;
const MOST_SHARING: u64 = 16;

/// Subgroups of a group, and keys that a worker takes at once.
const SUBGROUPS: u32 = 8;
const KEYS: u32 = 4;

/// Variants: whether keys are split among groups; append only, because wisdom names them by their place.
const SPLIT: [bool; 2] = [true, false];

/// Threads of a worker: eight numbers of a head each.
fn lanes(p: &AttentionSpec) -> u32 {
    p.qk_dim.max(p.v_dim).div_ceil(RUN).next_power_of_two().max(MOST_ROWS)
}

/// Rows of a group: a power of two.
fn tile(caps: &Caps, p: &AttentionSpec) -> u32 {
    // A driver for processors compiles for seconds what more rows unroll to.
    let most = if caps.kind == DeviceKind::SoftwareGpu { MOST_ROWS / 2 } else { MOST_ROWS };
    let wanted = rows(p).min(most.into()).max(1) as u32;
    let mut tile = wanted.next_power_of_two();
    while tile > 1 && shared_bytes(tile, p) > caps.shared_bytes {
        tile /= 2;
    }
    tile
}

fn shared_bytes(tile: u32, p: &AttentionSpec) -> u32 {
    4 * SUBGROUPS * tile * (p.v_dim + 2)
}

/// Keys that a group's workers take together.
fn block(caps: &Caps, p: &AttentionSpec) -> u32 {
    SUBGROUPS * caps.lanes / lanes(p) * KEYS
}

/// The kernel for a problem, under the name of whoever plans it.
pub(super) fn main(name: &'static str, caps: &Caps, p: &AttentionProblem, split: bool) -> Main {
    let tile = tile(caps, p);
    let runs = u32::from(whole(p, p.q, &[(p.ld[0], p.qk_dim)]))
        | u32::from(whole(p, p.kv, &[(p.ld[1], p.qk_dim), (p.ld[2], p.v_dim)])) << 1;
    Main {
        name,
        shader: &SHADER,
        runs,
        constants: vec![SUBGROUPS * caps.lanes, lanes(p), tile],
        subgroup: Some(caps.lanes),
        tile,
        splits: if split { splits(caps, p, tile, block(caps, p)) } else { 1 },
    }
}

/// Whether eight numbers can be loaded at once wherever a token's head of these lines and dimensions starts.
pub(super) fn whole(p: &AttentionProblem, format: Format, of: &[(u32, u32)]) -> bool {
    // Heads of a token are neighbours, or heads' tokens are.
    let starts = |&(ld, dim): &(u32, u32)| [ld, if p.layout == HeadLayout::Bshd { dim } else { ld }];
    of.iter().flat_map(starts).all(|ld| at_once(&Rows { format, ld }, p.align().bytes()))
}

impl Kernel<Attention> for Decode {
    fn name(&self) -> &'static str {
        "decode"
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("decode.rs")) ^ SHADER.hash().rotate_left(1) ^ MERGE.hash().rotate_left(2) }
    }

    fn supports(&self, caps: &Caps, p: &AttentionProblem) -> Support {
        known(p)?;
        for (dim, got) in [("qk_dim", p.qk_dim), ("v_dim", p.v_dim)] {
            if !got.is_multiple_of(RUN) {
                return Err(Unsupported::Align { dim, multiple: RUN.into(), got: got.into() });
            }
        }
        if lanes(p) > caps.lanes {
            let (max, got) = (u64::from(RUN * caps.lanes), p.qk_dim.max(p.v_dim).into());
            return Err(Unsupported::TooLarge { dim: "numbers of a head", max, got });
        }
        if rows(p) > MOST_SHARING {
            return Err(Unsupported::TooLarge { dim: "rows of a head of keys", max: MOST_SHARING, got: rows(p) });
        }
        if p.repro() == Repro::BatchInvariant {
            return Err(Unsupported::Repro { asked: p.repro() });
        }
        let threads = SUBGROUPS * caps.lanes;
        if threads > caps.max_threads {
            let max = caps.max_threads.into();
            return Err(Unsupported::TooLarge { dim: "threads of a workgroup", max, got: threads.into() });
        }
        let [need, have] = [shared_bytes(1, p), caps.shared_bytes].map(u64::from);
        if need > have {
            return Err(Unsupported::SharedMemory { need, have });
        }
        let never = Unsupported::TooSmall { dim: "kv_len", min: 1, got: p.kv_len.into() };
        Variants::filter(SPLIT.len() as u8, never, |v| !SPLIT[usize::from(v.0)] || p.kv_len > 2 * block(caps, p))
    }

    fn estimate(&self, caps: &Caps, p: &AttentionProblem, variant: Variant) -> Nanos {
        let (tile, split) = (tile(caps, p), SPLIT[usize::from(variant.0)]);
        let parts = if split { splits(caps, p, tile, block(caps, p)) } else { 1 };
        let groups = (tiles(p, tile) as f64 * f64::from(parts)).max(1.0);
        // A unit brings its share of the memory's speed with two groups, and less with fewer.
        let busy = (groups / (2.0 * f64::from(caps.units.max(1)))).min(1.0);
        let again = rows(p).div_ceil(tile.into()) as f64;
        let launches = if split { 2.0 } else { 1.0 };
        // The more rows share keys, the more registers a thread needs for them.
        let slower = match tile {
            1 => 1.1,
            2 => 1.15,
            3..=4 => 1.25,
            _ => 2.3,
        };
        let moved = slower * again * p.bytes() as f64 / (caps.bytes_per_s * busy);
        Nanos::from_secs(launches * caps.launch_ns as f64 * 1e-9 + moved)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &AttentionProblem, variant: Variant) -> Result<Plan<Attention>> {
        plan(device, p, variant, main(self.name(), device.caps(), p, SPLIT[usize::from(variant.0)]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_share_what_a_group_has_room_for() {
        let mut caps = Caps::new(kp_hal::DeviceKind::Gpu, "vulkan1.2");
        (caps.lanes, caps.shared_bytes, caps.max_threads) = (32, 48 << 10, 1024);
        let of = |text: &str| -> (u32, u32) {
            let p: AttentionProblem = text.parse().expect("a problem");
            (tile(&caps, &p), lanes(&p))
        };
        assert_eq!(of("attention 1x32:8x1:65536x128 bf16:bf16:bf16"), (4, 16));
        assert_eq!(of("attention 1x32x1:65536x64 bf16:bf16:bf16"), (1, 8));
        assert_eq!(
            of("attention 1x16:2x1:65536x256 bf16:bf16:bf16"),
            (4, 32),
            "eight rows of 256 numbers are too many"
        );
    }
}
