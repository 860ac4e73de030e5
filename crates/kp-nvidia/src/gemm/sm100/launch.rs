//! What a launch of `sm100.cu` is given.

use super::{
    super::{maps::Map, sm90},
    descriptor::Kind,
    variants::{Room, Tile},
};
use crate::{
    launch::{Config, Function},
    queue::NvidiaQueue,
    tensor_map::{Element, MapId, Swizzle, Tiled},
};
use kp_hal::{
    Launch, Queue, Result,
    op::{Gemm, GemmArgs, GemmSpec, Matrix, Order, Scheme},
};
use std::ffi::c_void;

/// The last parameter of the kernel.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Params {
    tiles: sm90::Tiles,
    a_batched: u32,
    b_batched: u32,
    steps: u32,
    a_tiles: u32,
    b_tiles: u32,
    words: u32,
    a_scales: u64,
    b_scales: u64,
    epilogue: sm90::Arguments,
}

const _: () = assert!(size_of::<Params>() == 168);

/// A product made ready.
pub(super) struct Ready {
    spec: GemmSpec,
    function: Function,
    config: Config,
    a: Map,
    b: Map,
    d: Map,
    /// Scales of A and B, if they lie in tiles.
    scales: Option<[Map; 2]>,
    params: Params,
}

impl Ready {
    /// `clusters` are those that the device holds at a time.
    pub(super) fn new(
        spec: &GemmSpec,
        kind: Kind,
        tile: &Tile,
        room: &Room,
        function: Function,
        clusters: u32,
    ) -> Self {
        let GemmSpec { batch, m, n, k, a, b, d, .. } = *spec;
        let (step, b_rows) = (4 * kind.k(), tile.n / tile.pair);
        // Both halves of a gate are rows of one box if each block of a pair has one of them.
        let b_rows = if tile.pair == 1 && spec.epilogue.gate == kp_hal::op::Gate::Halves { b_rows / 2 } else { b_rows };
        let a_box = if a.order == Order::Col { [64, 64] } else { [step, 128] };
        let b_box = if b.order == Order::Row { [64, 64] } else { [step, b_rows] };
        let d_swizzle = match room.width {
            128 => Swizzle::Bytes128,
            64 => Swizzle::Bytes64,
            _ => Swizzle::Bytes32,
        };
        let (tiles_m, tiles_n) = tile.tiles(spec);
        let tiles = u64::from(tiles_m) * u64::from(tiles_n) * u64::from(batch);
        let is_batched = |stride: u64| u32::from(batch > 1 && stride != 0);
        let params = Params {
            tiles: sm90::Tiles {
                m: tiles_m,
                n: tiles_n,
                batch,
                k: k.div_ceil(step),
                // As many rows of tiles as keep what neighbours share in L2.
                group: (2048 / (128 * tile.pair)).clamp(8, 32),
                n_first: 0,
                streamed: 0,
            },
            a_batched: is_batched(a.stride),
            b_batched: is_batched(b.stride),
            steps: k.div_ceil(kind.k()),
            a_tiles: m.div_ceil(128),
            b_tiles: n.div_ceil(128),
            words: a.format.blocks(m, k).1 / 4,
            epilogue: sm90::Arguments::of(spec),
            ..Params::default()
        };
        let scales = (kind.scales() > 0 && !super::gathers(spec)).then(|| {
            let boxed =
                |matrix: &Matrix, outer: u32, rows: u32| scale_map(matrix, outer, k, batch, [kind.scales(), rows]);
            [boxed(&a, m, 1), boxed(&b, n, tile.n.div_ceil(128))]
        });
        let mut config = Config::new([tiles.min(clusters.into()) as u32 * tile.pair, 1, 1], super::THREADS);
        config.cluster = tile.pair;
        config.shared_bytes = room.shared_bytes;
        config.programmatic = true;
        Self {
            spec: *spec,
            function,
            config,
            a: Map::of(&a, (m, k, batch), a_box, Swizzle::Bytes128),
            b: Map::of(&b, (k, n, batch), b_box, Swizzle::Bytes128),
            d: Map::of(&d, (m, spec.d_cols(), batch), [room.width * 8 / d.dtype().bits(), 128], d_swizzle),
            scales,
            params,
        }
    }
}

/// Scales in tiles of 512 bytes, `tiles` of them along k and rows in a box. The batch's matrices follow each other along rows.
fn scale_map(matrix: &Matrix, outer: u32, k: u32, batch: u32, tiles: [u32; 2]) -> Map {
    let (_, inner) = matrix.format.blocks(outer, k);
    let along = u64::from(inner.div_ceil(4));
    let across = u64::from(outer.div_ceil(128)) * u64::from(batch);
    let tensor = Tiled::new(Element::U32, &[128, along, across], &[512, 512 * along], &[128, tiles[0], tiles[1]]);
    Map { id: MapId::next(), tensor }
}

impl Launch<Gemm> for Ready {
    unsafe fn launch(&self, queue: &mut dyn Queue, args: &GemmArgs<'_>) -> Result<()> {
        let queue: &mut NvidiaQueue = queue.downcast_mut().expect("same device, so same backend");
        let addr = |slice: &Option<kp_hal::Slice<'_>>| slice.as_ref().map_or(0, kp_hal::Slice::addr);
        let mut epilogue = self.params.epilogue.with(&self.spec, args);
        if self.spec.a.format.scheme == Scheme::Nv {
            (epilogue.a_scale, epilogue.b_scale) = (addr(&args.a_global), addr(&args.b_global));
        }
        let (a_scales, b_scales) = (addr(&args.a_scale), addr(&args.b_scale));
        let mut params = Params { epilogue, a_scales, b_scales, ..self.params };
        let mut a = queue.tensor_map(self.a.id, args.a.addr(), &self.a.tensor)?;
        let mut b = queue.tensor_map(self.b.id, args.b.addr(), &self.b.tensor)?;
        let mut d = queue.tensor_map(self.d.id, args.d.addr(), &self.d.tensor)?;
        // The kernel looks at maps of scales only if they lie in tiles.
        let (mut a_scale, mut b_scale) = (a, b);
        if let Some([of_a, of_b]) = &self.scales {
            a_scale = queue.tensor_map(of_a.id, a_scales, &of_a.tensor)?;
            b_scale = queue.tensor_map(of_b.id, b_scales, &of_b.tensor)?;
        }
        let mut pointers: [*mut c_void; 6] = [
            (&raw mut a).cast(),
            (&raw mut b).cast(),
            (&raw mut a_scale).cast(),
            (&raw mut b_scale).cast(),
            (&raw mut d).cast(),
            (&raw mut params).cast(),
        ];
        // SAFETY: the function came from the plan's device and takes five maps and `Params`; the rest is the caller's promise.
        unsafe { queue.launch("sm100", &self.function, &self.config, &mut pointers) }
    }
}
