//! D = act(alpha · A·B + beta · C + bias) + residual of 16-bit and 8-bit floats, TF32 and 8-bit integers on `wgmma`.
//!
//! See `kernels/gemm/cuda/sm90.cu` and `kernels/gemm/README.md`. Limits: rows and matrices of A, B and D a multiple of
//! 16 bytes apart, D's rows contiguous and of a multiple of 16 bytes, operands of 8 or 32 bits contiguous along k, one scheme of scales for
//! A and B, f32 sums of floats and i32 sums of integers; D of i32 with nothing but alpha.

mod launch;
mod variants;

use super::{Check, macros, maps};
use crate::{
    compile::{Build, Listed, Source, source},
    device::NvidiaDevice,
};
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Acc, Addend, Epilogue, Gate, Gemm, GemmProblem, GemmSpec, Order, Repro, Scheme, Sparsity},
    source_hash,
};
use launch::Ready;
pub(super) use launch::{Epilogue as Arguments, Tiles, scale};
use std::{borrow::Cow, sync::Arc};
use variants::{Choice, Stream, VARIANTS, choice};

/// The kernel.
pub(crate) struct Sm90;

static SOURCE: Source = source!(
    "gemm/cuda/sm90.cu",
    "gemm/cuda/sm90_epilogue.cuh",
    "gemm/cuda/sm90_schedule.cuh",
    "common/cuda/math.cuh",
    "common/cuda/ptx.cuh",
    "common/cuda/wgmma.cuh",
);

impl Kernel<Gemm> for Sm90 {
    fn name(&self) -> &'static str {
        "sm90"
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("sm90.rs")) ^ super::hash(&SOURCE).rotate_left(1) }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        supports(caps, p)
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, variant: Variant) -> Nanos {
        variants::estimate(caps, p.spec(), variant)
    }

    fn note(&self, _: &Caps, p: &GemmProblem, variant: Variant) -> Option<Cow<'static, str>> {
        match choice(variant).stream {
            Stream::No if choice(variant).tile.cluster_k > 1 => {
                Some(format!("splits k in {}", choice(variant).tile.cluster_k).into())
            }
            Stream::No => super::padding(p, choice(variant).tile.m),
            Stream::Split(parts) => Some(format!("splits k in {parts}").into()),
            Stream::All => Some("gives all units equal parts of k".into()),
            Stream::Rest => Some("gives all units equal parts of the last tiles".into()),
        }
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        let own: &NvidiaDevice = device.downcast_ref().expect("a device of this backend");
        let (spec, choice) = (p.spec(), choice(variant));
        let function = own.function(&build(spec, choice))?;
        // At most what `supports` guessed: with fewer clusters each has more to do, so that what could be streamed still can.
        let guess = variants::resident(device.caps().units, &choice.tile);
        let resident = launch::resident(own, &function, spec, choice)?.min(guess);
        let cut = choice.cut(spec, resident).expect("`supports` has cut it");
        let code = Ready::new(spec, choice, cut, function, device.caps());
        // SAFETY: maps and epilogue are of the spec's operands; partial sums and flags are in the scratch.
        Ok(unsafe { Plan::new(self.name(), variant, device.id(), p, code.scratch_bytes, Box::new(code)) })
    }
}

/// Which variants run `p` on `caps`.
pub(super) fn supports(caps: &Caps, p: &GemmProblem) -> Support {
    let spec = p.spec();
    if !caps.has("wgmma") {
        return Err(Unsupported::Arch { need: "sm_90a", got: caps.arch.to_string() });
    }
    operands(spec)?;
    super::sizes(spec)?;
    maps::check(&spec.a, ["ld of a", "batch stride of a"], spec.batch, p.align())?;
    maps::check(&spec.b, ["ld of b", "batch stride of b"], spec.batch, p.align())?;
    maps::check(&spec.d, ["ld of d", "batch stride of d"], spec.batch, p.align())?;
    // The copy engine cuts off what it stores at multiples of 16 bytes.
    let per_16 = u64::from(128 / spec.d.dtype().bits());
    if !u64::from(spec.d_cols()).is_multiple_of(per_16) {
        return Err(Unsupported::Align { dim: "columns of d", multiple: per_16, got: spec.d_cols().into() });
    }
    // The distance of A's columns depends on how many rows there are, and so would the kernel.
    if p.repro() == Repro::BatchInvariant && spec.a.order != Order::Row {
        return Err(Unsupported::Layout { operand: "a", got: spec.a.order.to_string() });
    }
    let plain = is_plain(spec);
    let adds = spec.c != Addend::None || spec.epilogue.residual.is_some();
    let columns = u64::from(spec.n);
    let otherwise = Unsupported::Option { option: "gate", got: format!("{} with n={columns}", spec.epilogue.gate) };
    Variants::filter(VARIANTS.len() as u8, otherwise, |v| {
        let choice = choice(v);
        let tile = &choice.tile;
        let width = tile.slab_width(spec.d.dtype(), spec.epilogue.gate);
        let shared = tile.shared_bytes(spec);
        let resident = variants::resident(caps.units, tile);
        // What is contiguous along m or n comes in boxes of 64, which the blocks of a cluster part among them.
        let parts = |rows: u32, blocks: u32| rows.is_multiple_of(64 * blocks);
        let gates = if spec.epilogue.gate == Gate::Halves { 2 } else { 1 };
        let boxes = (spec.a.order == Order::Row || parts(tile.m, tile.cluster.1))
            && (spec.b.order == Order::Col || parts(tile.n, tile.cluster.0.max(gates)));
        width > 0
            && boxes
            && tile.resident * (shared + if tile.resident > 1 { 1024 } else { 0 }) <= caps.shared_bytes
            && (!promotes(spec) || tile.holds_two_sums() && !tile.ping_pong)
            && (plain || choice.general)
            && (!adds || tile.holds_addends())
            && (p.repro() != Repro::BatchInvariant || choice.stream == Stream::No && tile.cluster_k == 1)
            && choice.cut(spec, resident).is_some()
    })
}

/// Whether there is nothing but a plain store.
pub(super) fn is_plain(spec: &GemmSpec) -> bool {
    spec.epilogue == Epilogue::default() && spec.c == Addend::None && spec.d.format.scheme == Scheme::None
}

/// Whether types, layouts, schemes and options are those of the source.
pub(super) fn operands(spec: &GemmSpec) -> Check {
    unscaled(spec)?;
    schemes(spec)
}

/// The same, whatever the schemes of A and B.
pub(super) fn unscaled(spec: &GemmSpec) -> Check {
    use DType::{Bf16, E4m3, E5m2, F16, I8, Tf32};
    let types = (spec.a.dtype(), spec.b.dtype());
    let wide = match types {
        (Bf16, Bf16) | (F16, F16) => true,
        (E4m3 | E5m2, E4m3 | E5m2) | (Tf32, Tf32) | (I8, I8) => false,
        (Bf16 | F16 | E4m3 | E5m2 | Tf32 | I8, got) => return Err(Unsupported::DType { operand: "b", got }),
        (got, _) => return Err(Unsupported::DType { operand: "a", got }),
    };
    let layout = |operand, order: Order| Err(Unsupported::Layout { operand, got: order.to_string() });
    match (spec.a.order, spec.b.order) {
        (Order::Row, Order::Col) => {}
        (Order::Panel { .. }, _) => return layout("a", spec.a.order),
        (_, Order::Panel { .. }) => return layout("b", spec.b.order),
        (Order::Col, _) if !wide => return layout("a", spec.a.order),
        (_, Order::Row) if !wide => return layout("b", spec.b.order),
        _ => {}
    }
    if spec.d.order != Order::Row {
        return layout("d", spec.d.order);
    }
    let whole = types.0 == I8;
    let as_they_are = whole && spec.d.dtype() == DType::I32 && is_plain(spec) && spec.a.format.scheme == Scheme::None;
    if macros::float(spec.d.dtype()).is_none() && !as_they_are {
        return Err(Unsupported::DType { operand: "d", got: spec.d.dtype() });
    }
    if !matches!(spec.d.format.scheme, Scheme::None | Scheme::Tensor) {
        return Err(Unsupported::Scheme { operand: "d", got: spec.d.format.to_string() });
    }
    let sums = if whole { spec.acc == Acc::I32 } else { spec.acc.is_f32() };
    if !sums {
        return Err(Unsupported::Option { option: "acc", got: spec.acc.to_string() });
    }
    if spec.sparsity != Sparsity::Dense {
        return Err(Unsupported::Option { option: "sparse", got: spec.sparsity.to_string() });
    }
    let c = match spec.c {
        Addend::None => None,
        Addend::Given(t) => Some(t),
        Addend::InPlace => Some(spec.d.dtype()),
    };
    for (operand, got) in [("c", c), ("bias", spec.epilogue.bias), ("residual", spec.epilogue.residual)] {
        if let (None, Some(got)) = (macros::addend(got), got) {
            return Err(Unsupported::DType { operand, got });
        }
    }
    Ok(())
}

/// Whether A and B are scaled as the source knows: not at all, by a number each, or by rows and columns.
fn schemes(spec: &GemmSpec) -> Check {
    let (a, b) = (spec.a.format.scheme, spec.b.format.scheme);
    if scale(a, b).is_none() {
        let (operand, format) =
            if matches!(a, Scheme::Tensor | Scheme::Row) { ("b", spec.b.format) } else { ("a", spec.a.format) };
        return Err(Unsupported::Scheme { operand, got: format.to_string() });
    }
    // The scales of one matrix are all that is known of.
    if a == Scheme::Row && spec.batch > 1 {
        return Err(Unsupported::Scheme { operand: "a", got: spec.a.format.to_string() });
    }
    Ok(())
}

/// Whether sums leave the matrix unit after every 128 of k: of 8-bit floats it keeps fewer bits than f32 has.
pub(super) fn promotes(spec: &GemmSpec) -> bool {
    spec.a.dtype().bits() == 8 && spec.acc == Acc::F32
}

/// A type as `KP_TYPES` and `KP_D` say it.
const fn spelled(t: DType) -> Option<&'static str> {
    match t {
        DType::Tf32 => Some("TF32"),
        DType::I8 => Some("S8"),
        DType::I32 => Some("I32"),
        _ => macros::float(t),
    }
}

/// The build of one variant for problems like `spec`.
fn build(spec: &GemmSpec, choice: &Choice) -> Build {
    let name = |t| spelled(t).expect("`supports` has looked at the type").to_owned();
    let (a, b) = (name(spec.a.dtype()), name(spec.b.dtype()));
    let types = if a == b { a } else { format!("{a}_{b}") };
    let c = match spec.c {
        Addend::None => None,
        Addend::Given(t) => Some(t),
        Addend::InPlace => Some(spec.d.dtype()),
    };
    let flag = |on: bool| u8::from(on).to_string();
    let tile = &choice.tile;
    let scale = scale(spec.a.format.scheme, spec.b.format.scheme).expect("`supports` has looked");
    let mut defines = vec![
        ("KP_TYPES", types),
        ("KP_D", name(spec.d.dtype())),
        ("KP_A_MN", flag(spec.a.order == Order::Col)),
        ("KP_B_MN", flag(spec.b.order == Order::Row)),
        ("KP_BM", tile.m.to_string()),
        ("KP_BN", tile.n.to_string()),
        ("KP_STAGES", tile.stages.to_string()),
        ("KP_BUFFERS", tile.buffers.to_string()),
        ("KP_WARPGROUPS", tile.warpgroups.to_string()),
        ("KP_PINGPONG", flag(tile.ping_pong)),
        ("KP_CLUSTER_M", tile.cluster.0.to_string()),
        ("KP_CLUSTER_N", tile.cluster.1.to_string()),
        ("KP_CLUSTER_K", tile.cluster_k.to_string()),
        ("KP_RESIDENT", tile.resident.to_string()),
        ("KP_PROMOTE", flag(promotes(spec))),
        ("KP_SCALE", scale.to_owned()),
        ("KP_C", macros::addend(c).expect("`supports` has looked at the type").to_owned()),
    ];
    defines.extend(macros::epilogue(&spec.epilogue));
    Build { source: &SOURCE, entry: "gemm", defines }
}

/// The builds of plain products, and of the usual epilogues: what to make before a program runs. Others are made when they
/// are planned.
pub(super) fn builds() -> Vec<Listed> {
    let problems = [
        "1x4096x4096x4096 bf16:bf16:bf16 b=col",
        "1x4096x4096x4096 bf16:bf16:bf16",
        "1x4096x4096x4096 bf16:bf16:f32 b=col",
        "1x4096x4096x4096 f16:f16:f16 b=col",
        "1x4096x4096x4096 bf16:bf16:bf16 b=col bias=bf16",
        "1x4096x4096x4096 bf16:bf16:bf16 b=col bias=bf16 act=gelu_tanh",
        "1x4096x4096x4096 bf16:bf16:bf16 b=col act=silu gate=halves",
        "1x4096x4096x4096 bf16:bf16:bf16 b=col residual=bf16",
        "1x4096x4096x4096 e4m3@tensor:e4m3@tensor:bf16 b=col",
        "1x4096x4096x4096 e4m3@row:e4m3@row:bf16 b=col",
        "1x4096x4096x4096 e4m3@tensor:e4m3@tensor:bf16 b=col acc=f32fast",
        "1x4096x4096x4096 e4m3@row:e4m3@row:bf16 b=col acc=f32fast",
        "1x4096x4096x4096 tf32:tf32:f32 b=col",
        "1x4096x4096x4096 i8:i8:i32 b=col",
        "1x4096x4096x4096 i8@row:i8@row:bf16 b=col",
    ];
    super::listed("gemm/sm90", &Sm90, &super::h200(), &problems, |p, variant| build(p.spec(), choice(variant)))
}
