//! What a launch of `sm90.cu` is given.

use super::{
    super::maps::Map,
    variants::{Choice, Cut},
};
use crate::{
    device::NvidiaDevice,
    launch::{Config, Function},
    queue::NvidiaQueue,
    tensor_map::Swizzle,
};
use kp_hal::{
    Caps, DType, Launch, Queue, Result,
    op::{Addend, Gemm, GemmArgs, GemmSpec, Order, Scheme},
};
use std::ffi::c_void;

/// The last parameter of the kernel.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Params {
    tiles: Tiles,
    a_batched: u32,
    b_batched: u32,
    b_streams: u32,
    epilogue: Epilogue,
    partials: u64,
    flags: u64,
}

/// `Tiles` of `sm90_schedule.cuh`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(in crate::gemm) struct Tiles {
    pub(in crate::gemm) m: u32,
    pub(in crate::gemm) n: u32,
    pub(in crate::gemm) batch: u32,
    pub(in crate::gemm) k: u32,
    pub(in crate::gemm) group: u32,
    pub(in crate::gemm) n_first: u32,
    pub(in crate::gemm) streamed: u32,
}

/// `Epilogue` of `sm90_epilogue.cuh`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(in crate::gemm) struct Epilogue {
    pub(in crate::gemm) bias: u64,
    pub(in crate::gemm) c: u64,
    pub(in crate::gemm) residual: u64,
    pub(in crate::gemm) a_scale: u64,
    pub(in crate::gemm) b_scale: u64,
    pub(in crate::gemm) d_scale: u64,
    pub(in crate::gemm) c_ld: i64,
    pub(in crate::gemm) c_stride: i64,
    pub(in crate::gemm) d_ld: i64,
    pub(in crate::gemm) d_stride: i64,
    pub(in crate::gemm) m: u32,
    pub(in crate::gemm) n: u32,
    pub(in crate::gemm) alpha: f32,
    pub(in crate::gemm) beta: f32,
}

const _: () = assert!(size_of::<Epilogue>() == 96 && size_of::<Params>() == 152);

impl Epilogue {
    /// What does not change from launch to launch.
    pub(in crate::gemm) fn of(spec: &GemmSpec) -> Self {
        let in_place = spec.c == Addend::InPlace;
        let (m, n) = (i64::from(spec.m), i64::from(spec.n));
        let d = (i64::from(spec.d.ld), spec.d.stride as i64);
        let c = if in_place { d } else { (n, m * n) };
        Self { c_ld: c.0, c_stride: c.1, d_ld: d.0, d_stride: d.1, m: spec.m, n: spec.n, ..Self::default() }
    }

    /// With the addresses and scalars of one launch.
    pub(in crate::gemm) fn with(&self, spec: &GemmSpec, args: &GemmArgs<'_>) -> Self {
        let addr = |slice: &Option<kp_hal::Slice<'_>>| slice.as_ref().map_or(0, kp_hal::Slice::addr);
        let c = if spec.c == Addend::InPlace { args.d.addr() } else { addr(&args.c) };
        Self {
            bias: addr(&args.bias),
            c,
            residual: addr(&args.residual),
            a_scale: addr(&args.a_scale),
            b_scale: addr(&args.b_scale),
            d_scale: addr(&args.d_global),
            alpha: args.alpha,
            beta: args.beta,
            ..*self
        }
    }
}

/// A product made ready.
pub(super) struct Ready {
    spec: GemmSpec,
    function: Function,
    config: Config,
    maps: [Map; 3],
    params: Params,
    pub(super) scratch_bytes: u64,
}

impl Ready {
    pub(super) fn new(spec: &GemmSpec, choice: &Choice, cut: Cut, function: Function, caps: &Caps) -> Self {
        let GemmSpec { batch, m, n, k, a, b, d, .. } = *spec;
        let (tile, gate) = (&choice.tile, spec.epilogue.gate);
        let step = 1024 / a.dtype().bits();
        let (cm, cn) = tile.cluster;
        let a_box = if a.order == Order::Col { [64, 64] } else { [step, tile.m / cn] };
        let b_box = if b.order == Order::Row { [64, 64] } else { [step, tile.n / tile.b_boxes(gate)] };
        let width = tile.slab_width(d.dtype(), gate);
        let d_swizzle = match width {
            128 => Swizzle::Bytes128,
            64 => Swizzle::Bytes64,
            _ => Swizzle::Bytes32,
        };
        let maps = [
            Map::of(&a, (m, k, batch), a_box, Swizzle::Bytes128),
            Map::of(&b, (k, n, batch), b_box, Swizzle::Bytes128),
            Map::of(&d, (m, spec.d_cols(), batch), [width * 8 / d.dtype().bits(), 64], d_swizzle),
        ];
        let rows = tile.m * cm;
        let tiles = Tiles {
            m: cut.m,
            n: cut.n,
            batch,
            k: cut.k,
            // As many rows of tiles as keep what neighbours share in L2.
            group: (2048 / rows).clamp(8, 32),
            n_first: 0,
            streamed: cut.streamed,
        };
        let is_batched = |stride: u64| u32::from(batch > 1 && stride != 0);
        let mut config = Config::new([cut.clusters * tile.cluster_blocks(), 1, 1], tile.threads());
        config.cluster = tile.cluster_blocks();
        config.shared_bytes = tile.shared_bytes(spec);
        config.programmatic = true;
        let sums = u64::from(config.grid[0]) * u64::from(tile.m) * u64::from(tile.n) * DType::F32.bytes(1);
        Self {
            spec: *spec,
            function,
            config,
            maps,
            params: Params {
                tiles,
                a_batched: is_batched(a.stride),
                b_batched: is_batched(b.stride),
                b_streams: u32::from(cut.m == 1 && super::super::b_passes(spec, caps)),
                epilogue: Epilogue::of(spec),
                ..Params::default()
            },
            scratch_bytes: if cut.streamed > 0 { sums } else { 0 },
        }
    }
}

impl Launch<Gemm> for Ready {
    unsafe fn launch(&self, queue: &mut dyn Queue, args: &GemmArgs<'_>) -> Result<()> {
        let queue: &mut NvidiaQueue = queue.downcast_mut().expect("same device, so same backend");
        let mut params = Params { epilogue: self.params.epilogue.with(&self.spec, args), ..self.params };
        if self.scratch_bytes > 0 {
            (params.partials, params.flags) = (queue.scratch(), queue.flags());
        }
        let [a, b, d] = &self.maps;
        let mut a = queue.tensor_map(a.id, args.a.addr(), &a.tensor)?;
        let mut b = queue.tensor_map(b.id, args.b.addr(), &b.tensor)?;
        let mut d = queue.tensor_map(d.id, args.d.addr(), &d.tensor)?;
        let mut pointers: [*mut c_void; 4] =
            [(&raw mut a).cast(), (&raw mut b).cast(), (&raw mut d).cast(), (&raw mut params).cast()];
        // SAFETY: the function came from the plan's device and takes three maps and `Params`; the rest is the caller's promise.
        unsafe { queue.launch("sm90", &self.function, &self.config, &mut pointers) }
    }
}

/// Clusters of this launch that the device holds at a time.
///
/// # Errors
/// `Driver`.
pub(super) fn resident(device: &NvidiaDevice, function: &Function, spec: &GemmSpec, choice: &Choice) -> Result<u32> {
    let tile = &choice.tile;
    let mut config = Config::new([tile.cluster_blocks(), 1, 1], tile.threads());
    config.cluster = tile.cluster_blocks();
    config.shared_bytes = tile.shared_bytes(spec);
    device.resident_clusters(function, &config)
}

/// `KP_SCALE` of the operands.
pub(in crate::gemm) fn scale(a: Scheme, b: Scheme) -> Option<&'static str> {
    Some(match (a, b) {
        (Scheme::None, Scheme::None) => "NONE",
        (Scheme::Tensor, Scheme::Tensor) => "TENSOR",
        (Scheme::Row, Scheme::Row) => "ROW",
        _ => return None,
    })
}
