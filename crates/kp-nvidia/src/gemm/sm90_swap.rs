//! D = act(alpha · A·B + beta · C + bias) + residual for up to 128 rows: clusters part k of weights of few tiles.
//!
//! See `kernels/gemm/cuda/sm90_swap.cu`. Limits: as `sm90`'s, but D need not be aligned; A and B contiguous along k.

use super::{
    maps::Map,
    swap::{self, Params, Tile},
};
use crate::{
    compile::{Listed, Source, source},
    device::NvidiaDevice,
    launch::{Config, Function},
    queue::NvidiaQueue,
};
use kp_hal::{
    Caps, Device, Kernel, Launch, Nanos, Plan, Queue, Result, Support, Unsupported, Variant, Variants,
    op::{Gemm, GemmArgs, GemmProblem, GemmSpec},
    source_hash,
};
use std::{borrow::Cow, ffi::c_void, sync::Arc};

/// The kernel.
pub(crate) struct Sm90Swap;

static SOURCE: Source = source!(
    "gemm/cuda/sm90_swap.cu",
    "gemm/cuda/sm90_swap.cuh",
    "gemm/cuda/sm90_epilogue.cuh",
    "gemm/cuda/sm90_schedule.cuh",
    "common/cuda/math.cuh",
    "common/cuda/ptx.cuh",
    "common/cuda/wgmma.cuh",
);

const fn tile(groups: u32, split: u32, resident: u32, steps: u32) -> Tile {
    Tile { groups, split, resident, steps, general: false }
}

const fn general(tile: Tile) -> Tile {
    Tile { general: true, ..tile }
}

/// Append only, because wisdom names variants by their place.
const TILES: [Tile; 17] = [
    general(tile(2, 2, 2, 1)),
    general(tile(2, 1, 2, 1)),
    general(tile(1, 1, 1, 1)),
    tile(2, 1, 1, 1),
    tile(1, 2, 3, 1),
    tile(1, 2, 2, 2),
    tile(1, 1, 3, 1),
    tile(1, 1, 2, 1),
    tile(1, 2, 1, 1),
    tile(2, 2, 1, 1),
    tile(1, 2, 2, 1),
    tile(2, 4, 2, 1),
    tile(3, 1, 1, 1),
    tile(4, 1, 1, 1),
    tile(2, 4, 1, 1),
    tile(2, 3, 1, 1),
    tile(1, 4, 2, 1),
];

/// The builds for numbers of rows and types that are usual.
pub(super) fn builds() -> Vec<Listed> {
    let caps = super::h200();
    super::listed("gemm/sm90_swap", &Sm90Swap, &caps, swap::USUAL, |p, variant| {
        let tile = &TILES[usize::from(variant.0)];
        swap::build(&SOURCE, p.spec(), tile, tile.stages(caps.shared_bytes, p.spec(), false).0)
    })
}

impl Kernel<Gemm> for Sm90Swap {
    fn name(&self) -> &'static str {
        "sm90_swap"
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("sm90_swap.rs")) ^ super::hash(&SOURCE).rotate_left(1) }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        swap::check(caps, p)?;
        let otherwise = Unsupported::SharedMemory { need: 200 << 10, have: caps.shared_bytes.into() };
        Variants::filter(TILES.len() as u8, otherwise, |v| {
            let tile = &TILES[usize::from(v.0)];
            swap::fits(tile, p.spec(), caps, false) && (tile.general || swap::is_plain(p.spec()))
        })
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, variant: Variant) -> Nanos {
        swap::estimate(caps, p.spec(), &TILES[usize::from(variant.0)], false)
    }

    fn note(&self, _: &Caps, p: &GemmProblem, variant: Variant) -> Option<Cow<'static, str>> {
        let split = TILES[usize::from(variant.0)].split;
        if split > 1 { Some(format!("splits k in {split}").into()) } else { super::padding(p, swap::tokens(p.m)) }
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        let own: &NvidiaDevice = device.downcast_ref().expect("a device of this backend");
        let (spec, tile) = (p.spec(), &TILES[usize::from(variant.0)]);
        let tokens = swap::tokens(spec.m);
        let (stages, shared_bytes) = tile.stages(device.caps().shared_bytes, spec, false);
        let function = own.function(&swap::build(&SOURCE, spec, tile, stages))?;
        let grid = [tile.split * spec.n.div_ceil(tile.rows()), spec.m.div_ceil(tokens), spec.batch];
        let config = Config {
            cluster: tile.split,
            shared_bytes,
            programmatic: swap::overlaps(spec, tile, device.caps()),
            ..Config::new(grid, tile.threads(spec))
        };
        let (maps, params) = (swap::maps(spec, tile, tokens), swap::params(spec, tile, device.caps()));
        let code = Ready { spec: *spec, function, config, maps, params };
        // SAFETY: maps and epilogue are of the spec's operands; there is no scratch.
        Ok(unsafe { Plan::new(self.name(), variant, device.id(), p, 0, Box::new(code)) })
    }
}

struct Ready {
    spec: GemmSpec,
    function: Function,
    config: Config,
    maps: [Map; 2],
    params: Params,
}

impl Launch<Gemm> for Ready {
    unsafe fn launch(&self, queue: &mut dyn Queue, args: &GemmArgs<'_>) -> Result<()> {
        let queue: &mut NvidiaQueue = queue.downcast_mut().expect("same device, so same backend");
        let epilogue = self.params.epilogue.with(&self.spec, args);
        let mut params = Params { epilogue, d: args.d.addr(), ..self.params };
        let [a, b] = &self.maps;
        let mut a = queue.tensor_map(a.id, args.a.addr(), &a.tensor)?;
        let mut b = queue.tensor_map(b.id, args.b.addr(), &b.tensor)?;
        let mut pointers: [*mut c_void; 3] = [(&raw mut a).cast(), (&raw mut b).cast(), (&raw mut params).cast()];
        // SAFETY: the function came from the plan's device and takes two maps and `Params`; the rest is the caller's promise.
        unsafe { queue.launch("sm90_swap", &self.function, &self.config, &mut pointers) }
    }
}
