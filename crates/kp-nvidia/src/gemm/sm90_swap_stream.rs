//! D = act(alpha · A·B + beta · C + bias) + residual for up to 128 rows: all units get equal parts of weights of many tiles.
//!
//! See `kernels/gemm/cuda/sm90_swap_stream.cu`. Limits: as `sm90`'s, but D need not be aligned; A and B contiguous along k.

use super::{
    maps::Map,
    sm90::Tiles,
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
use std::{ffi::c_void, sync::Arc};

/// The kernel.
pub(crate) struct Sm90SwapStream;

static SOURCE: Source = source!(
    "gemm/cuda/sm90_swap_stream.cu",
    "gemm/cuda/sm90_swap.cuh",
    "gemm/cuda/sm90_epilogue.cuh",
    "gemm/cuda/sm90_schedule.cuh",
    "common/cuda/math.cuh",
    "common/cuda/ptx.cuh",
    "common/cuda/wgmma.cuh",
);

const fn tile(groups: u32, resident: u32, steps: u32, general: bool) -> Tile {
    Tile { groups, split: 1, resident, steps, general }
}

/// Append only, because wisdom names variants by their place.
const TILES: [Tile; 5] =
    [tile(2, 1, 1, true), tile(2, 1, 2, false), tile(1, 2, 2, false), tile(1, 1, 1, false), tile(1, 1, 2, false)];

/// The builds for numbers of rows and types that are usual.
pub(super) fn builds() -> Vec<Listed> {
    let caps = super::h200();
    super::listed("gemm/sm90_swap_stream", &Sm90SwapStream, &caps, swap::USUAL, |p, variant| {
        let tile = &TILES[usize::from(variant.0)];
        swap::build(&SOURCE, p.spec(), tile, tile.stages(caps.shared_bytes, p.spec(), true).0)
    })
}

impl Kernel<Gemm> for Sm90SwapStream {
    fn name(&self) -> &'static str {
        "sm90_swap_stream"
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("sm90_swap_stream.rs")) ^ super::hash(&SOURCE).rotate_left(1) }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        swap::check(caps, p)?;
        let otherwise = Unsupported::SharedMemory { need: 200 << 10, have: caps.shared_bytes.into() };
        Variants::filter(TILES.len() as u8, otherwise, |v| {
            let tile = &TILES[usize::from(v.0)];
            let tiles = u64::from(p.n.div_ceil(tile.rows())) * u64::from(p.batch);
            let parts = tiles * u64::from(p.k.div_ceil(tile.stage_k(p)));
            swap::fits(tile, p.spec(), caps, true) && (tile.general || swap::is_plain(p.spec())) && parts < 1 << 32
        })
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, variant: Variant) -> Nanos {
        swap::estimate(caps, p.spec(), &TILES[usize::from(variant.0)], true)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        let own: &NvidiaDevice = device.downcast_ref().expect("a device of this backend");
        let (spec, tile) = (p.spec(), &TILES[usize::from(variant.0)]);
        let tokens = swap::tokens(spec.m);
        let (stages, shared_bytes) = tile.stages(device.caps().shared_bytes, spec, true);
        let function = own.function(&swap::build(&SOURCE, spec, tile, stages))?;
        let (maps, params) = (swap::maps(spec, tile, tokens), swap::params(spec, tile, device.caps()));
        let (m, n) = (spec.m.div_ceil(tokens), spec.n.div_ceil(tile.rows()));
        let all = u64::from(m) * u64::from(n) * u64::from(spec.batch);
        let mut config = Config {
            shared_bytes,
            programmatic: swap::overlaps(spec, tile, device.caps()),
            ..Config::new([1, 1, 1], tile.threads(spec))
        };
        // As many as there is room for: their parts take equally long.
        let resident = own.resident_clusters(&function, &config)?;
        config.grid[0] = (all * u64::from(params.stages_k)).min(resident.into()) as u32;
        let tiles = Tiles { m, n, batch: spec.batch, k: params.stages_k, group: m, n_first: 0, streamed: all as u32 };
        let scratch_bytes = u64::from(config.grid[0]) * u64::from(tile.rows() * tokens) * 4;
        let code = Ready { spec: *spec, function, config, maps, params, tiles };
        // SAFETY: maps and epilogue are of the spec's operands; partial sums and flags are in the scratch.
        Ok(unsafe { Plan::new(self.name(), variant, device.id(), p, scratch_bytes, Box::new(code)) })
    }
}

struct Ready {
    spec: GemmSpec,
    function: Function,
    config: Config,
    maps: [Map; 2],
    params: Params,
    tiles: Tiles,
}

impl Launch<Gemm> for Ready {
    unsafe fn launch(&self, queue: &mut dyn Queue, args: &GemmArgs<'_>) -> Result<()> {
        let queue: &mut NvidiaQueue = queue.downcast_mut().expect("same device, so same backend");
        let epilogue = self.params.epilogue.with(&self.spec, args);
        let mut params = Params { epilogue, d: args.d.addr(), ..self.params };
        let (mut partials, mut flags, mut tiles) = (queue.scratch(), queue.flags(), self.tiles);
        let [a, b] = &self.maps;
        let mut a = queue.tensor_map(a.id, args.a.addr(), &a.tensor)?;
        let mut b = queue.tensor_map(b.id, args.b.addr(), &b.tensor)?;
        let mut pointers: [*mut c_void; 6] = [
            (&raw mut a).cast(),
            (&raw mut b).cast(),
            (&raw mut params).cast(),
            (&raw mut tiles).cast(),
            (&raw mut partials).cast(),
            (&raw mut flags).cast(),
        ];
        // SAFETY: the function came from the plan's device and takes these six; the rest is the caller's promise.
        unsafe { queue.launch("sm90_swap_stream", &self.function, &self.config, &mut pointers) }
    }
}
