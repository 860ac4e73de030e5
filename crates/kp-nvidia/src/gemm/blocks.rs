//! What the kernels on `sm90_blocks.cuh` have in common: block-scaled e4m3, and groups of rows.

mod estimate;
mod kernel;

use super::{
    Check,
    maps::{self, Map},
};
use crate::{
    compile::{Build, Listed, Source},
    device::NvidiaDevice,
    launch::{Config, Function},
    queue::NvidiaQueue,
    tensor_map::Swizzle,
};
use kp_hal::{
    Caps, DType, Device, Launch, Queue, Result, Slice, SliceMut, Support, Unsupported, Variant, Variants,
    op::{
        Act, Addend, Align, Epilogue, Format, Gate, Gemm, GemmArgs, GemmSpec, GroupedGemm, GroupedGemmArgs, Grouping,
        Order, Repro, ScaleLayout, Scheme, Sparsity,
    },
};
use std::{ffi::c_void, sync::Arc};

/// A source that includes `sm90_blocks.cuh`, with all its headers.
macro_rules! source {
    ($name:literal) => {
        $crate::compile::source!(
            $name,
            "gemm/cuda/sm90_blocks.cuh",
            "gemm/cuda/sm90_blocks_compute.cuh",
            "gemm/cuda/sm90_blocks_load.cuh",
            "gemm/cuda/sm90_blocks_schedule.cuh",
            "gemm/cuda/sm90_blocks_stages.cuh",
            "gemm/cuda/sm90_blocks_store.cuh",
            "common/cuda/ptx.cuh",
            "common/cuda/wgmma.cuh",
        )
    };
}
pub(crate) use source;

/// One variant: macros of the source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tile {
    m: u32,
    n: u32,
    stages: u32,
    cluster_m: u32,
    cluster_n: u32,
    /// Blocks that part the k of one tile; if more than one, a cluster is nothing else.
    cluster_k: u32,
    boxes: u32,
    /// Whether the next block's products are issued before this block's are scaled.
    ahead: bool,
}

/// A row of a kernel's table.
pub(crate) const fn tile(m: u32, n: u32, stages: u32, (cluster_m, cluster_n): (u32, u32), boxes: u32) -> Tile {
    Tile { m, n, stages, cluster_m, cluster_n, cluster_k: 1, boxes, ahead: false }
}

/// A row whose warpgroups issue products ahead; alone in its cluster.
pub(crate) const fn ahead(m: u32, n: u32, stages: u32, boxes: u32) -> Tile {
    Tile { ahead: true, ..tile(m, n, stages, (1, 1), boxes) }
}

/// A row whose k is parted within a cluster.
pub(crate) const fn parted(tile: Tile, cluster_k: u32) -> Tile {
    Tile { cluster_k, ..tile }
}

/// A kernel on the header.
pub(crate) struct Family {
    pub(crate) name: &'static str,
    /// Hash of what it is made of.
    pub(crate) code: u64,
    pub(crate) source: &'static Source,
    /// Append only, because wisdom names variants by their place.
    pub(crate) tiles: &'static [Tile],
    /// Type of A and B.
    pub(crate) dtype: DType,
    /// Rows of A and of B that share a scale for 128 of k; `None` if nothing is scaled.
    pub(crate) scales: Option<(u16, u16)>,
}

/// The last parameter of the kernel.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Args {
    a_scale: u64,
    b_scale: u64,
    a_scale_batch: i64,
    b_scale_batch: i64,
    a_scale_row: u32,
    a_scale_k: u32,
    b_scale_row: u32,
    b_scale_k: u32,
    d: u64,
    d_batch: i64,
    groups: u64,
    m: i32,
    n: i32,
    k: i32,
    batch: i32,
    a_step: i32,
    b_step: i32,
    d_row: u32,
    band: i32,
    d_copies: i32,
    b_streams: i32,
    alpha: f32,
}

const _: () = assert!(size_of::<Args>() == 120);

/// Shared memory that a block of Hopper's may have, in bytes.
const MOST_SHARED: u32 = 227 << 10;

impl Tile {
    const fn consumers(&self) -> u32 {
        match self.m {
            64 => 1,
            192 => 3,
            _ => 2,
        }
    }

    const fn cluster(&self) -> u32 {
        self.cluster_m * self.cluster_n * self.cluster_k
    }

    /// What the others of a cluster that parts k send to one warpgroup.
    const fn inbox_bytes(&self) -> u32 {
        (self.cluster_k - 1) * 64 * (self.n / self.cluster_k) * 4
    }

    /// Columns of a box of D whose elements have `bytes` bytes.
    const fn store(&self, bytes: u32) -> u32 {
        gcd(self.n / self.cluster_k, 128 / bytes)
    }
}

const fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Family {
    /// Which variants run a product, whose rows are grouped or not. Each element's sum goes along k in steps of one size, and where k is not
    /// parted in one order, so any promise about bits is kept.
    fn computes(
        &self,
        caps: &Caps,
        spec: &GemmSpec,
        grouping: Option<Grouping>,
        repro: Repro,
        align: Align,
    ) -> Support {
        if !caps.has("wgmma") {
            return Err(Unsupported::Arch { need: "sm_90a", got: caps.arch.to_string() });
        }
        self.operands(spec)?;
        plain(spec)?;
        super::sizes(spec)?;
        let row_batch = if grouping == Some(Grouping::Contiguous) { 1 } else { spec.batch };
        maps::check(&spec.a, ["ld of a", "batch stride of a"], row_batch, align)?;
        maps::check(&spec.b, ["ld of b", "batch stride of b"], spec.batch, align)?;
        let blocks = |tile: &Tile| {
            let tiles = u64::from(spec.m.div_ceil(tile.m) + 1) * u64::from(spec.n.div_ceil(tile.n));
            tiles * u64::from(spec.batch) * u64::from(tile.cluster_k)
        };
        // Each part has a block of k.
        let parted = |tile: &Tile| {
            let enough = spec.k.div_ceil(self.step()) >= tile.cluster_k;
            tile.cluster_k == 1 || enough && grouping.is_none() && repro != Repro::BatchInvariant
        };
        let otherwise = Unsupported::SharedMemory { need: 220 << 10, have: caps.shared_bytes.into() };
        Variants::filter(self.tiles.len() as u8, otherwise, |v| {
            let tile = &self.tiles[usize::from(v.0)];
            self.shared_bytes(tile, spec.d.dtype()) <= caps.shared_bytes && blocks(tile) < 1 << 31 && parted(tile)
        })
    }

    /// Elements of a block of k.
    fn step(&self) -> u32 {
        1024 / self.dtype.bits()
    }

    fn operands(&self, spec: &GemmSpec) -> Check {
        let scheme = |outer| Scheme::Block { outer, inner: 128 };
        let wanted = self.scales.map_or((Scheme::None, Scheme::None), |(a, b)| (scheme(a), scheme(b)));
        for (operand, matrix, order, scheme) in
            [("a", &spec.a, Order::Row, wanted.0), ("b", &spec.b, Order::Col, wanted.1)]
        {
            if matrix.dtype() != self.dtype {
                return Err(Unsupported::DType { operand, got: matrix.dtype() });
            }
            if matrix.format.scheme != scheme {
                return Err(Unsupported::Scheme { operand, got: matrix.format.to_string() });
            }
            if matrix.order != order {
                return Err(Unsupported::Layout { operand, got: matrix.order.to_string() });
            }
        }
        Ok(())
    }

    fn shared_bytes(&self, tile: &Tile, d: DType) -> u32 {
        let d_bytes = d.bits() / 8;
        let box_bytes = 64 * tile.store(d_bytes) * d_bytes;
        let zone = gcd(tile.n, 128);
        let (a_scales, b_scales) = match self.scales {
            None => (0, 0),
            // A bulk copy of A's begins at a multiple of four rows.
            Some((_, 1)) => (tile.m + 4, tile.n),
            Some(_) => (tile.m + 4, (tile.n / zone).next_multiple_of(4)),
        };
        let bytes = tile.stages * ((tile.m + tile.n) * 128 + (a_scales + b_scales) * 4)
            + tile.consumers() * (tile.boxes * box_bytes + tile.inbox_bytes());
        // The tile that each stage is of, and two barriers; one for each inbox.
        bytes.next_multiple_of(16) + tile.stages * (16 + 16) + if tile.cluster_k > 1 { tile.consumers() * 8 } else { 0 }
    }

    fn build(&self, tile: &Tile, d: DType, grouping: Option<Grouping>) -> Build {
        let out = match d {
            DType::Bf16 => 0,
            DType::F16 => 1,
            _ => 2,
        };
        let numbers = [
            ("BM", tile.m),
            ("BN", tile.n),
            ("STAGES", tile.stages),
            ("CLUSTER_M", tile.cluster_m),
            ("CLUSTER_N", tile.cluster_n),
            ("CLUSTER_K", tile.cluster_k),
            ("BOXES", tile.boxes),
            ("OUT", out),
            ("GROUPING", grouping_number(grouping)),
            ("AHEAD", tile.ahead.into()),
        ];
        let defines = numbers.map(|(name, number)| (name, number.to_string())).to_vec();
        Build { source: self.source, entry: "gemm", defines }
    }

    /// Every build that a problem may want, for products grouped so; `kernel` names op and kernel.
    pub(crate) fn builds(&self, kernel: &'static str, groupings: &[Option<Grouping>]) -> Vec<Listed> {
        let of_tile = |(variant, tile)| {
            let outs = [DType::Bf16, DType::F16, DType::F32];
            let outs = outs.into_iter().filter(move |&d| self.shared_bytes(tile, d) <= MOST_SHARED);
            let forms = outs.flat_map(move |d| groupings.iter().map(move |&g| (d, g)));
            forms.map(move |(d, g)| Listed::new(kernel, Variant(variant), self.build(tile, d, g)))
        };
        (0..).zip(self.tiles).flat_map(of_tile).collect()
    }

    /// A product made ready.
    fn ready(
        &self,
        device: &Arc<dyn Device>,
        spec: &GemmSpec,
        grouping: Option<Grouping>,
        variant: Variant,
    ) -> Result<Ready> {
        let device: &NvidiaDevice = device.downcast_ref().expect("a device of this backend");
        let tile = &self.tiles[usize::from(variant.0)];
        let function = device.function(&self.build(tile, spec.d.dtype(), grouping))?;
        let d_bytes = spec.d.dtype().bits() / 8;
        let mut config = Config::new([tile.cluster(), 1, 1], 128 * (1 + tile.consumers()));
        config.cluster = tile.cluster();
        config.programmatic = true;
        config.shared_bytes = self.shared_bytes(tile, spec.d.dtype());
        let full = device.resident_clusters(&function, &config)?.max(1);
        let GemmSpec { batch, m, n, k, a, b, d, .. } = *spec;
        let row_batch = if grouping == Some(Grouping::Contiguous) { 1 } else { batch };
        let (units_m, units_n) = (m.div_ceil(tile.m * tile.cluster_m), n.div_ceil(tile.n * tile.cluster_n));
        let units = u64::from(units_m) * u64::from(units_n) * u64::from(batch);
        // How many tiles a group of rows has is known to the device only.
        let clusters = match grouping {
            Some(_) => full,
            // Clusters that part k have one tile each.
            None if tile.cluster_k > 1 => units as u32,
            None => units.min(full.into()) as u32,
        };
        config.grid[0] = clusters * tile.cluster();
        let (_, rows) = groups(spec, grouping);
        let b_streams = rows <= f64::from(tile.m * tile.cluster_m) && super::b_passes(spec, device.caps());
        let step = self.step();
        let store = tile.store(d_bytes);
        let swizzle = match store * d_bytes {
            128 => Swizzle::Bytes128,
            64 => Swizzle::Bytes64,
            32 => Swizzle::Bytes32,
            _ => Swizzle::None,
        };
        let whole = |elements: u64| (elements * u64::from(d_bytes)).is_multiple_of(16);
        let d_copies = whole(n.into()) && whole(d.ld.into()) && (row_batch == 1 || whole(d.stride));
        let (a_row, a_k, a_batch) = steps(a.format, (m, k));
        let (b_row, b_k, b_batch) = steps(b.format, (n, k));
        // As many rows of tiles side by side as make the tiles at work together a square.
        let side = f64::from(clusters) * f64::from(tile.n * tile.cluster_n) / f64::from(tile.m * tile.cluster_m);
        let args = Args {
            a_scale_batch: if row_batch > 1 { a_batch } else { 0 },
            b_scale_batch: b_batch,
            a_scale_row: a_row,
            a_scale_k: a_k,
            b_scale_row: b_row,
            b_scale_k: b_k,
            d_batch: d.stride as i64,
            m: m as i32,
            n: n as i32,
            k: k as i32,
            batch: batch as i32,
            a_step: i32::from(row_batch > 1 && a.stride != 0),
            b_step: i32::from(batch > 1 && b.stride != 0),
            d_row: d.ld,
            band: (side.sqrt().round() as u32).clamp(1, units_m.max(1)) as i32,
            d_copies: d_copies.into(),
            b_streams: b_streams.into(),
            ..Args::default()
        };
        Ok(Ready {
            name: self.name,
            function,
            config,
            a: Map::of(&a, (m, k, row_batch), [step, tile.m / tile.cluster_n], Swizzle::Bytes128),
            b: Map::of(&b, (k, n, batch), [step, tile.n / tile.cluster_m], Swizzle::Bytes128),
            d: d_copies.then(|| Map::of(&d, (m, n, row_batch), [store, 64], swizzle)),
            args,
        })
    }
}

/// How many groups of rows there are, and how many rows each is taken to have; a batch is groups of equal size.
fn groups(spec: &GemmSpec, grouping: Option<Grouping>) -> (f64, f64) {
    let (groups, rows) = (f64::from(spec.batch), f64::from(spec.m));
    match grouping {
        Some(Grouping::Contiguous) => (groups, rows / groups),
        // What is masked is the most there may be: half of it is used, say.
        Some(Grouping::Masked) => (groups, rows / 2.0),
        None => (groups, rows),
    }
}

/// Whether D is stored as it is summed, in a type that the source knows.
fn plain(spec: &GemmSpec) -> Check {
    let option = |option, got: String| Err(Unsupported::Option { option, got });
    if spec.d.order != Order::Row {
        return Err(Unsupported::Layout { operand: "d", got: spec.d.order.to_string() });
    }
    if !matches!(spec.d.dtype(), DType::Bf16 | DType::F16 | DType::F32) {
        return Err(Unsupported::DType { operand: "d", got: spec.d.dtype() });
    }
    if !spec.acc.is_f32() {
        return option("acc", spec.acc.to_string());
    }
    if spec.sparsity != Sparsity::Dense {
        return option("sparse", spec.sparsity.to_string());
    }
    if spec.c != Addend::None {
        return option("c", spec.c.to_string());
    }
    let Epilogue { bias, act, gate, residual } = spec.epilogue;
    if let Some(got) = bias {
        return Err(Unsupported::DType { operand: "bias", got });
    }
    if let Some(got) = residual {
        return Err(Unsupported::DType { operand: "residual", got });
    }
    if gate != Gate::None {
        return option("gate", gate.to_string());
    }
    if act != Act::Identity {
        return option("act", act.to_string());
    }
    Ok(())
}

/// Distances of scales along outer and inner, and from one matrix to the next.
pub(super) fn steps(format: Format, (outer, inner): (u32, u32)) -> (u32, u32, i64) {
    let (outer_blocks, inner_blocks) = format.blocks(outer, inner);
    let count = format.scale_count(outer, inner) as i64;
    match format.scales {
        ScaleLayout::Outer => (1, outer_blocks.next_multiple_of(4), count),
        ScaleLayout::Inner | ScaleLayout::Tiles => (inner_blocks, 1, count),
    }
}

const fn grouping_number(grouping: Option<Grouping>) -> u32 {
    match grouping {
        None => 0,
        Some(Grouping::Contiguous) => 1,
        Some(Grouping::Masked) => 2,
    }
}

/// A product made ready.
pub(crate) struct Ready {
    name: &'static str,
    function: Function,
    config: Config,
    a: Map,
    b: Map,
    /// `None` if D is not aligned enough for the copy engine.
    d: Option<Map>,
    args: Args,
}

/// A launch's addresses and its scalar.
struct Buffers {
    a: u64,
    b: u64,
    d: u64,
    a_scale: u64,
    b_scale: u64,
    groups: u64,
    alpha: f32,
}

impl Buffers {
    fn new(
        [a, b]: [&Slice<'_>; 2],
        d: &SliceMut<'_>,
        [a_scale, b_scale]: [&Option<Slice<'_>>; 2],
        groups: u64,
        alpha: f32,
    ) -> Self {
        let addr = |slice: &Option<Slice<'_>>| slice.as_ref().map_or(0, Slice::addr);
        Self { a: a.addr(), b: b.addr(), d: d.addr(), a_scale: addr(a_scale), b_scale: addr(b_scale), groups, alpha }
    }
}

impl Launch<Gemm> for Ready {
    unsafe fn launch(&self, queue: &mut dyn Queue, args: &GemmArgs<'_>) -> Result<()> {
        let buffers = Buffers::new([&args.a, &args.b], &args.d, [&args.a_scale, &args.b_scale], 0, args.alpha);
        // SAFETY: passed on.
        unsafe { self.enqueue(queue, &buffers) }
    }
}

impl Launch<GroupedGemm> for Ready {
    unsafe fn launch(&self, queue: &mut dyn Queue, args: &GroupedGemmArgs<'_>) -> Result<()> {
        let scales = [&args.a_scale, &args.b_scale];
        let buffers = Buffers::new([&args.a, &args.b], &args.d, scales, args.groups.addr(), args.alpha);
        // SAFETY: passed on.
        unsafe { self.enqueue(queue, &buffers) }
    }
}

impl Ready {
    /// # Safety
    /// As `Launch::launch`, whose arguments `buffers` are.
    unsafe fn enqueue(&self, queue: &mut dyn Queue, buffers: &Buffers) -> Result<()> {
        let queue: &mut NvidiaQueue = queue.downcast_mut().expect("same device, so same backend");
        let Buffers { a, b, d, a_scale, b_scale, groups, alpha } = *buffers;
        let mut args = Args { a_scale, b_scale, d, groups, alpha, ..self.args };
        let mut a_map = queue.tensor_map(self.a.id, a, &self.a.tensor)?;
        let mut b_map = queue.tensor_map(self.b.id, b, &self.b.tensor)?;
        // A map must be passed even if it is not read.
        let mut d_map = match &self.d {
            Some(map) => queue.tensor_map(map.id, d, &map.tensor)?,
            None => a_map,
        };
        let mut pointers: [*mut c_void; 4] =
            [(&raw mut a_map).cast(), (&raw mut b_map).cast(), (&raw mut d_map).cast(), (&raw mut args).cast()];
        // SAFETY: the function came from the plan's device and takes three maps and `Args`; the rest is the caller's promise.
        unsafe { queue.launch(self.name, &self.function, &self.config, &mut pointers) }
    }
}
