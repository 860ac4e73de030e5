//! D = act(alpha · A·B + beta · C + bias) + residual on `tcgen05`: TF32, floats of 16 and 8 bits, blocks of 8 and 4 bits.
//!
//! See `kernels/gemm/cuda/sm100.cu` and `kernels/gemm/blackwell.md`. Never run. Limits: as `sm90`'s; k of blocks with
//! scales a multiple of 32, of 64 if elements have 4 bits, and of four scales unless they lie in tiles (`^tiles`); no gate by halves with them.

mod descriptor;
mod launch;
#[cfg(test)]
mod protocol;
mod variants;

use super::{macros, maps, sm90};
use crate::{
    compile::{Build, Listed, Source, source},
    device::NvidiaDevice,
    launch::Config,
};
use descriptor::{Kind, Major};
use kp_hal::{
    Caps, DType, Device, DeviceKind, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Addend, Epilogue, Gemm, GemmProblem, GemmSpec, Matrix, Order, Repro, ScaleLayout, Scheme},
    source_hash,
};
use launch::Ready;
use std::{borrow::Cow, sync::Arc};
use variants::{INVARIANT, Room, TILES, Tile, tile};

/// The kernel.
pub(crate) struct Sm100;

static SOURCE: Source = source!(
    "gemm/cuda/sm100.cu",
    "gemm/cuda/sm90_epilogue.cuh",
    "gemm/cuda/sm90_schedule.cuh",
    "common/cuda/math.cuh",
    "common/cuda/ptx.cuh",
    "common/cuda/tcgen05.cuh",
);

/// Of a block.
const THREADS: u32 = 256;

impl Kernel<Gemm> for Sm100 {
    fn name(&self) -> &'static str {
        "sm100"
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("sm100.rs")) ^ super::hash(&SOURCE).rotate_left(1) }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        let spec = p.spec();
        if !caps.has("tcgen05") {
            return Err(Unsupported::Arch { need: "sm_100a", got: caps.arch.to_string() });
        }
        super::untried(caps)?;
        let kind = operands(spec)?;
        super::sizes(spec)?;
        maps::check(&spec.a, ["ld of a", "batch stride of a"], spec.batch, p.align())?;
        maps::check(&spec.b, ["ld of b", "batch stride of b"], spec.batch, p.align())?;
        maps::check(&spec.d, ["ld of d", "batch stride of d"], spec.batch, p.align())?;
        // The copy engine cuts off what it stores at multiples of 16 bytes.
        let per_16 = u64::from(128 / spec.d.dtype().bits());
        if !u64::from(spec.d_cols()).is_multiple_of(per_16) {
            return Err(Unsupported::Align { dim: "columns of d", multiple: per_16, got: spec.d_cols().into() });
        }
        // Past k there are no scales that a product could read, and rows of them are gathered in words of four.
        let (_, block) = spec.a.format.block();
        let multiple = if gathers(spec) { 4 * block } else { kind.k() };
        if kind.scales() > 0 && !spec.k.is_multiple_of(multiple) {
            return Err(Unsupported::Align { dim: "k", multiple: multiple.into(), got: spec.k.into() });
        }
        let invariant = p.repro() == Repro::BatchInvariant;
        // The distance of A's columns depends on how many rows there are, and so would the kernel.
        if invariant && spec.a.order != Order::Row {
            return Err(Unsupported::Layout { operand: "a", got: spec.a.order.to_string() });
        }
        let plain =
            spec.epilogue == Epilogue::default() && spec.c == Addend::None && spec.d.format.scheme == Scheme::None;
        let otherwise = Unsupported::Option { option: "gate", got: spec.epilogue.gate.to_string() };
        Variants::filter(TILES.len() as u8, otherwise, |v| {
            let tile = tile(v);
            let parted = spec.b.order == Order::Col || (tile.n / tile.pair).is_multiple_of(64);
            let tiles = u64::from(tile.tiles(spec).0) * u64::from(tile.tiles(spec).1) * u64::from(spec.batch);
            room(caps, kind, tile, spec).is_some()
                && parted
                && tiles < 1 << 31
                && (plain || tile.general)
                && (!invariant || v == INVARIANT)
        })
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, variant: Variant) -> Nanos {
        let kind = Kind::of(p.spec()).expect("`supports` has looked");
        variants::estimate(caps, p.spec(), kind, variant)
    }

    fn note(&self, _: &Caps, p: &GemmProblem, variant: Variant) -> Option<Cow<'static, str>> {
        super::never_run(super::padding(p, 128 * tile(variant).pair))
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        let own: &NvidiaDevice = device.downcast_ref().expect("a device of this backend");
        let (spec, tile) = (p.spec(), tile(variant));
        let kind = Kind::of(spec).expect("`supports` has looked");
        let room = room(device.caps(), kind, tile, spec).expect("`supports` has looked");
        let function = own.function(&build(spec, kind, tile, &room))?;
        let mut config = Config::new([tile.pair, 1, 1], THREADS);
        (config.cluster, config.shared_bytes) = (tile.pair, room.shared_bytes);
        let clusters = own.resident_clusters(&function, &config)?;
        let code = Ready::new(spec, kind, tile, &room, function, clusters);
        // SAFETY: maps and epilogue are of the spec's operands; there is no scratch.
        Ok(unsafe { Plan::new(self.name(), variant, device.id(), p, 0, Box::new(code)) })
    }
}

fn room(caps: &Caps, kind: Kind, tile: &Tile, spec: &GemmSpec) -> Option<Room> {
    tile.room(kind, spec.d.dtype(), spec.epilogue.gate, caps.shared_bytes)
}

/// The kind of product, if types, layouts, schemes and options are those of the source.
fn operands(spec: &GemmSpec) -> std::result::Result<Kind, Unsupported> {
    let Some(kind) = Kind::of(spec) else {
        sm90::operands(spec)?;
        return Err(Unsupported::DType { operand: "a", got: spec.a.dtype() });
    };
    if kind.scales() == 0 {
        sm90::operands(spec)?;
        return Ok(kind);
    }
    let (a, b) = (spec.a.format, spec.b.format);
    for (operand, format) in [("a", a), ("b", b)] {
        if format.scales == ScaleLayout::Outer || format.scales != a.scales {
            return Err(Unsupported::Scheme { operand, got: format.to_string() });
        }
    }
    // All else is as with floats of 8 bits that have no scales.
    let bare = |matrix: Matrix| Matrix { format: DType::E4m3.into(), ..matrix };
    sm90::operands(&GemmSpec { a: bare(spec.a), b: bare(spec.b), ..*spec })?;
    Ok(kind)
}

/// Whether scales of blocks lie in rows, and are put in tiles on the way.
fn gathers(spec: &GemmSpec) -> bool {
    matches!(spec.a.format.scheme, Scheme::Mx | Scheme::Nv) && spec.a.format.scales == ScaleLayout::Inner
}

/// The build of one variant for problems like `spec`.
fn build(spec: &GemmSpec, kind: Kind, tile: &Tile, room: &Room) -> Build {
    let flag = |on: bool| u8::from(on).to_string();
    let c = match spec.c {
        Addend::None => None,
        Addend::Given(t) => Some(t),
        Addend::InPlace => Some(spec.d.dtype()),
    };
    let scale = match spec.a.format.scheme {
        Scheme::Mx => "NONE",
        // One number for each operand, on top of its blocks' scales.
        Scheme::Nv => "TENSOR",
        scheme => sm90::scale(scheme, spec.b.format.scheme).expect("`supports` has looked"),
    };
    let mut defines = vec![
        ("KP_KIND", kind.name().to_owned()),
        ("KP_SCALES", kind.scales().to_string()),
        ("KP_GATHER", flag(gathers(spec))),
        ("KP_PAIR", tile.pair.to_string()),
        ("KP_BN", tile.n.to_string()),
        ("KP_STAGES", room.stages.to_string()),
        ("KP_SUMS", room.sums.to_string()),
        ("KP_A_MN", flag(Major::of_a(spec) == Major::Mn)),
        ("KP_B_MN", flag(Major::of_b(spec) == Major::Mn)),
        ("KP_D", macros::float(spec.d.dtype()).expect("`supports` has looked at the type").to_owned()),
        ("KP_SCALE", scale.to_owned()),
        ("KP_C", macros::addend(c).expect("`supports` has looked at the type").to_owned()),
    ];
    defines.extend(macros::epilogue(&spec.epilogue));
    defines.extend(descriptor::defines(spec, kind, 128 * tile.pair, tile.n));
    Build { source: &SOURCE, entry: "gemm", defines }
}

/// Enough of a B200 to ask what is built there.
fn b200() -> Caps {
    let mut caps = Caps::new(DeviceKind::Gpu, "sm_100a");
    caps.set_features(["cp.async", "fp4", "fp8", "tcgen05", "untried"]);
    (caps.units, caps.shared_bytes) = (148, 227 << 10);
    caps
}

/// The builds of plain products, and of the usual epilogues: what to make before a program runs. Others are made when they
/// are planned.
pub(super) fn builds() -> Vec<Listed> {
    let problems = [
        "1x4096x4096x4096 bf16:bf16:bf16 b=col",
        "1x4096x4096x4096 bf16:bf16:bf16",
        "1x4096x4096x4096 bf16:bf16:f32 b=col",
        "1x4096x4096x4096 f16:f16:f16 b=col",
        "1x4096x4096x4096 tf32:tf32:f32 b=col",
        "1x4096x4096x4096 bf16:bf16:bf16 b=col bias=bf16 act=gelu_tanh",
        "1x4096x4096x4096 bf16:bf16:bf16 b=col act=silu gate=halves",
        "1x4096x4096x4096 e4m3@tensor:e4m3@tensor:bf16 b=col",
        "1x4096x4096x4096 e4m3@row:e4m3@row:bf16 b=col",
        "1x4096x4096x4096 e4m3@mx^tiles:e4m3@mx^tiles:bf16 b=col",
        "1x4096x4096x4096 e4m3@mx:e4m3@mx:bf16 b=col",
        "1x4096x4096x4096 e2m1@mx^tiles:e2m1@mx^tiles:bf16 b=col",
        "1x4096x4096x4096 e2m1@nv^tiles:e2m1@nv^tiles:bf16 b=col",
        "1x4096x4096x4096 e2m1@nv:e2m1@nv:bf16 b=col",
        "1x4096x4096x4096 e2m1@nv^tiles:e2m1@nv^tiles:bf16 b=col act=silu gate=pairs",
    ];
    let caps = b200();
    super::listed("gemm/sm100", &Sm100, &caps, &problems, |p, variant| {
        let (spec, tile) = (p.spec(), tile(variant));
        let kind = Kind::of(spec).expect("`supports` has looked");
        build(spec, kind, tile, &room(&caps, kind, tile, spec).expect("`supports` has looked"))
    })
}
