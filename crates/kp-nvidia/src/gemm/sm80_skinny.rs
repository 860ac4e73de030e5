//! D = act(alpha · A·B + beta · C + bias) + residual for up to 16 rows: B is streamed once, at memory's pace.
//!
//! See `kernels/gemm/cuda/sm80_skinny.cu`. Limits: A's rows and B's columns contiguous along k, of one type, 8 or 16 bits; D's
//! rows contiguous, unscaled, of at least 8 bits; not on sm_90.

use super::{
    Check,
    sm90::{Arguments, promotes},
};
use crate::{
    compile::{Build, Listed, Source, source},
    device::NvidiaDevice,
    launch::{Config, Function},
    queue::NvidiaQueue,
};
use kp_hal::{
    Caps, DType, Device, Kernel, Launch, Nanos, Plan, Queue, Result, Support, Unsupported, Variant, Variants,
    op::{
        Acc, Addend, Epilogue, Gemm, GemmArgs, GemmProblem, GemmSpec, Matrix, Order, Repro, ScaleLayout, Scheme,
        Sparsity, Spec,
    },
    source_hash,
};
use std::{ffi::c_void, sync::Arc};

/// The kernel.
pub(crate) struct Sm80Skinny;

static SOURCE: Source = source!(
    "gemm/cuda/sm80_skinny.cu",
    "gemm/cuda/sm90_epilogue.cuh",
    "gemm/cuda/sm90_schedule.cuh",
    "common/cuda/math.cuh",
    "common/cuda/numbers.cuh",
    "common/cuda/ptx.cuh",
);

/// Rows up to which it is worth its name.
const MOST_ROWS: u32 = 16;

/// One variant: macros of the source.
struct Tile {
    /// Columns, in eights.
    blocks: u32,
    warps: u32,
    run: u32,
    depth: u32,
    /// Whether problems with more than a plain store have it too: each epilogue is a build of its own.
    general: bool,
    /// Of the memory's pace.
    efficiency: f64,
}

const fn tile(blocks: u32, warps: u32, run: u32, depth: u32, efficiency: f64) -> Tile {
    Tile { blocks, warps, run, depth, general: false, efficiency }
}

/// Append only, because wisdom names variants by their place. Efficiencies are those of the larger weights on an H200.
const TILES: [Tile; 6] = [
    Tile { general: true, ..tile(1, 8, 4, 2, 0.915) },
    tile(1, 8, 8, 1, 0.918),
    tile(1, 16, 4, 1, 0.918),
    Tile { general: true, ..tile(2, 8, 4, 1, 0.91) },
    tile(1, 4, 8, 1, 0.905),
    tile(4, 8, 2, 1, 0.89),
];

/// The builds on `arch` for types that are usual: one row, and sixteen.
pub(super) fn builds(arch: &str) -> Vec<Listed> {
    let version: u32 = arch.trim_start_matches("sm_").trim_end_matches('a').parse().unwrap_or(0);
    let mut caps = super::h200();
    caps.set_features(
        [(80, "cp.async"), (89, "fp8")].into_iter().filter(|&(from, _)| version >= from).map(|(_, name)| name),
    );
    let problems = [
        "1x1x4096x4096 bf16:bf16:bf16 b=col",
        "1x16x4096x4096 bf16:bf16:bf16 b=col",
        "1x1x4096x4096 e4m3@row:e4m3@row:bf16 b=col acc=f32fast",
        "1x16x4096x4096 e4m3@row:e4m3@row:bf16 b=col acc=f32fast",
        "1x16x4096x4096 i8:i8:i32 b=col",
        "1x16x4096x4095 bf16:bf16:bf16 b=col",
        "1x1x4096x4096 bf16:bf16:bf16 b=col bias=bf16 act=gelu_tanh residual=bf16",
    ];
    super::listed("gemm/sm80_skinny", &Sm80Skinny, &caps, &problems, |p, variant| {
        build(p, &TILES[usize::from(variant.0)])
    })
}

impl Kernel<Gemm> for Sm80Skinny {
    fn name(&self) -> &'static str {
        "sm80_skinny"
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("sm80_skinny.rs")) ^ super::hash(&SOURCE).rotate_left(1) }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        check(caps, p)?;
        let spec = p.spec();
        let plain = spec.epilogue == Epilogue::default() && spec.c == Addend::None;
        let otherwise = Unsupported::Option { option: "gate", got: spec.epilogue.gate.to_string() };
        Variants::filter(TILES.len() as u8, otherwise, |v| {
            let tile = &TILES[usize::from(v.0)];
            // Both halves of a gate are one block's.
            let gates = spec.epilogue.gate != kp_hal::op::Gate::Halves || tile.blocks.is_multiple_of(2);
            gates && (tile.general || plain)
        })
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, variant: Variant) -> Nanos {
        estimate(caps, p, &TILES[usize::from(variant.0)])
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        let own: &NvidiaDevice = device.downcast_ref().expect("a device of this backend");
        let code = Ready::new(own, p, &TILES[usize::from(variant.0)])?;
        // SAFETY: sources and epilogue are of the spec's operands; there is no scratch.
        Ok(unsafe { Plan::new(self.name(), variant, device.id(), p, 0, Box::new(code)) })
    }
}

/// The enumerator of `DType` in `numbers.cuh`.
fn spelled(t: DType) -> String {
    format!("{t:?}")
}

fn check(caps: &Caps, p: &GemmProblem) -> Check {
    use DType::{Bf16, E4m3, E5m2, F16, I8};
    let spec = p.spec();
    if !caps.has("cp.async") {
        return Err(Unsupported::Arch { need: "sm_80", got: caps.arch.to_string() });
    }
    if spec.m > MOST_ROWS {
        return Err(Unsupported::TooLarge { dim: "m", max: MOST_ROWS.into(), got: spec.m.into() });
    }
    // Larger products have another kernel, whose sums go another way.
    if p.repro() == Repro::BatchInvariant {
        return Err(Unsupported::Repro { asked: p.repro() });
    }
    let (a, b) = (spec.a.dtype(), spec.b.dtype());
    match (a, b) {
        (Bf16, Bf16) | (F16, F16) | (I8, I8) => {}
        (E4m3 | E5m2, E4m3 | E5m2) if caps.has("fp8") => {}
        (Bf16 | F16 | I8 | E4m3 | E5m2, got) => return Err(Unsupported::DType { operand: "b", got }),
        (got, _) => return Err(Unsupported::DType { operand: "a", got }),
    }
    let layout = |operand, order: Order| Err(Unsupported::Layout { operand, got: order.to_string() });
    match (spec.a.order, spec.b.order, spec.d.order) {
        (Order::Row, Order::Col, Order::Row) => {}
        (Order::Row, Order::Col, order) => return layout("d", order),
        (Order::Row, order, _) => return layout("b", order),
        (order, ..) => return layout("a", order),
    }
    if scales(spec).is_none() {
        return Err(Unsupported::Scheme { operand: "a", got: spec.a.format.to_string() });
    }
    if spec.d.format.scheme != Scheme::None || spec.d.dtype().bits() < 8 {
        return Err(Unsupported::Scheme { operand: "d", got: spec.d.format.to_string() });
    }
    let sums = if a.is_float() {
        spec.acc == Acc::F32Fast || !promotes(spec) && spec.acc.is_f32()
    } else {
        spec.acc == Acc::I32
    };
    if !sums {
        return Err(Unsupported::Option { option: "acc", got: spec.acc.to_string() });
    }
    if spec.sparsity != Sparsity::Dense {
        return Err(Unsupported::Option { option: "sparse", got: spec.sparsity.to_string() });
    }
    // Sums in f32 are finished in f32.
    if a.is_float() && super::simt_store::finishes_wide(spec) {
        return Err(Unsupported::DType { operand: "d", got: spec.d.dtype() });
    }
    super::sizes(spec)?;
    if spec.batch >= 1 << 16 {
        return Err(Unsupported::TooLarge { dim: "batch", max: (1 << 16) - 1, got: spec.batch.into() });
    }
    Ok(())
}

/// `KP_SCALES` of the source.
fn scales(spec: &GemmSpec) -> Option<u32> {
    let block = |outer| Scheme::Block { outer, inner: 128 };
    let (a, b) = (spec.a.format.scheme, spec.b.format.scheme);
    // Integers with scales that change along k would be summed in f32.
    let whole = !spec.a.dtype().is_float();
    Some(match (a, b) {
        (Scheme::None, Scheme::None) => 0,
        (Scheme::Tensor, Scheme::Tensor) => 1,
        (Scheme::Row, Scheme::Row) => 2,
        _ if whole => return None,
        (x, y) if x == block(1) && y == block(128) => 3,
        (x, y) if x == block(1) && y == block(1) => 4,
        _ => return None,
    })
}

fn estimate(caps: &Caps, p: &GemmProblem, tile: &Tile) -> Nanos {
    let spec = p.spec();
    let units = f64::from(caps.units.max(1));
    let clock = if caps.clock_hz > 0.0 { caps.clock_hz } else { 1.5e9 };
    let rows = if spec.m <= 8 { 8 } else { 16 };
    let blocks = f64::from(spec.batch) * f64::from(spec.n.div_ceil(8 * tile.blocks)) * f64::from(spec.m.div_ceil(rows));
    // Fewer warps than keep memory busy wait for it.
    let warps = blocks * f64::from(tile.warps) / units;
    let under_way = (warps * f64::from(tile.run * tile.depth * tile.blocks) / 96.0).min(1.0);
    let slow = if vector(p) { 1.0 } else { 8.0 };
    // Each row costs loads of A beside those of B.
    let a_loads = 1.0 + 0.06 * f64::from(rows / 8) / f64::from(tile.blocks) * if spec.m > 8 { 2.0 } else { 0.0 };
    let bytes = spec.bytes() as f64 / (caps.bytes_per_s * tile.efficiency * under_way.max(0.05));
    let line = f64::from(spec.k) * f64::from(spec.a.dtype().bits()) / 8.0 / f64::from(tile.warps);
    let latency = line / f64::from(64 * tile.run * tile.depth) * 700.0 / clock;
    Nanos::from_secs(1.5e-6 + slow * (bytes * a_loads).max(latency))
}

/// Whether all runs of 16 bytes are aligned.
fn vector(p: &GemmProblem) -> bool {
    let starts = |elements: u64, x: &Matrix| (elements * u64::from(x.dtype().bits())).is_multiple_of(128);
    let aligned = |x: &Matrix| starts(x.ld.into(), x) && (p.batch <= 1 || starts(x.stride, x));
    p.align().bytes() >= 16 && aligned(&p.a) && aligned(&p.b) && starts(p.k.into(), &p.a)
}

fn build(p: &GemmProblem, tile: &Tile) -> Build {
    let spec = p.spec();
    let or_void = |t: Option<DType>| t.map_or_else(|| "VOID".to_owned(), spelled);
    let c = match spec.c {
        Addend::None => None,
        Addend::Given(t) => Some(t),
        Addend::InPlace => Some(spec.d.dtype()),
    };
    let flag = |on: bool| u8::from(on).to_string();
    let defines = vec![
        ("KP_A", spelled(spec.a.dtype())),
        ("KP_B", spelled(spec.b.dtype())),
        ("KP_BLOCKS", tile.blocks.to_string()),
        ("KP_WARPS", tile.warps.to_string()),
        ("KP_SPLIT", "1".to_owned()),
        ("KP_HALF", flag(spec.m <= 8)),
        ("KP_RUN", tile.run.to_string()),
        ("KP_DEPTH", tile.depth.to_string()),
        ("KP_VECTOR", flag(vector(p))),
        ("KP_SCALES", scales(spec).expect("`check` has looked").to_string()),
        ("KP_D", spelled(spec.d.dtype())),
        ("KP_C", or_void(c)),
        ("KP_BIAS", or_void(spec.epilogue.bias)),
        ("KP_RESIDUAL", or_void(spec.epilogue.residual)),
        ("KP_ACT", super::macros::act(spec.epilogue.act).to_owned()),
        ("KP_GATE", super::macros::gate(spec.epilogue.gate).to_owned()),
        ("KP_BLOCKS_PER_SM", "1".to_owned()),
    ];
    Build { source: &SOURCE, entry: "gemm", defines }
}

/// `Source` of the device code: one operand.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Operand {
    data: u64,
    stride: i64,
    scale_stride: i64,
    ld: u32,
    scale_row: u32,
    scale_k: u32,
    unused: u32,
}

const _: () = assert!(size_of::<Operand>() == 40);

impl Operand {
    fn of(matrix: &Matrix, (outer, inner): (u32, u32)) -> Self {
        let format = matrix.format;
        let (outer_blocks, inner_blocks) = format.blocks(outer, inner);
        let (scale_row, scale_k) = match format.scales {
            ScaleLayout::Outer => (1, outer_blocks.next_multiple_of(4)),
            ScaleLayout::Inner | ScaleLayout::Tiles => (inner_blocks, 1),
        };
        let scale_stride = if format.scheme == Scheme::Tensor { 0 } else { format.scale_count(outer, inner) as i64 };
        Self { data: 0, stride: matrix.stride as i64, scale_stride, ld: matrix.ld, scale_row, scale_k, unused: 0 }
    }
}

/// A product made ready.
struct Ready {
    spec: GemmSpec,
    function: Function,
    config: Config,
    a: Operand,
    b: Operand,
    epilogue: Arguments,
}

impl Ready {
    fn new(device: &NvidiaDevice, p: &GemmProblem, tile: &Tile) -> Result<Self> {
        let spec = p.spec();
        let function = device.function(&build(p, tile))?;
        let rows = if spec.m <= 8 { 8 } else { 16 };
        let grid = [spec.n.div_ceil(8 * tile.blocks), spec.m.div_ceil(rows), spec.batch];
        let mut config = Config::new(grid, 32 * tile.warps);
        config.programmatic = kp_hal::Device::caps(device).has("pdl");
        let (a, b) = (Operand::of(&spec.a, (spec.m, spec.k)), Operand::of(&spec.b, (spec.n, spec.k)));
        Ok(Self { spec: *spec, function, config, a, b, epilogue: Arguments::of(spec) })
    }
}

impl Launch<Gemm> for Ready {
    unsafe fn launch(&self, queue: &mut dyn Queue, args: &GemmArgs<'_>) -> Result<()> {
        let queue: &mut NvidiaQueue = queue.downcast_mut().expect("same device, so same backend");
        let mut a = Operand { data: args.a.addr(), ..self.a };
        let mut b = Operand { data: args.b.addr(), ..self.b };
        let mut epilogue = self.epilogue.with(&self.spec, args);
        let (mut d, mut k) = (args.d.addr(), self.spec.k);
        let mut pointers: [*mut c_void; 5] = [
            (&raw mut a).cast(),
            (&raw mut b).cast(),
            (&raw mut epilogue).cast(),
            (&raw mut d).cast(),
            (&raw mut k).cast(),
        ];
        // SAFETY: the function came from the plan's device and takes these five; the rest is the caller's promise.
        unsafe { queue.launch("sm80_skinny", &self.function, &self.config, &mut pointers) }
    }
}
