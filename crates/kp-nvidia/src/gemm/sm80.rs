//! D = A·B on the matrix unit of any device since sm_80, with every epilogue and layout of D that there is.
//!
//! See `kernels/gemm/cuda/sm80.cu`. Limits: A and B of one type, 16 or 8 bits or TF32, or of two 8-bit floats; no panels, and
//! those of 8 and 32 bits contiguous along k; scales along k for 8-bit floats only, both of 128 in f32 or both `mx`.

use super::simt_store::{self, Form, Main};
use crate::compile::{Build, Listed, Source, source};
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Acc, Gemm, GemmProblem, GemmSpec, Order, Scheme, Sparsity, Spec},
    source_hash,
};
use std::{borrow::Cow, sync::Arc};

/// The kernel.
pub(crate) struct Sm80;

static SOURCE: Source = source!(
    "gemm/cuda/sm80.cu",
    "gemm/cuda/simt.cuh",
    "gemm/cuda/simt_finish.cuh",
    "gemm/cuda/sm80_stages.cuh",
    "common/cuda/numbers.cuh",
);

/// Everything that a result of this kernel depends on.
pub(crate) const CODE: u64 =
    source_hash(include_bytes!("sm80.rs")) ^ super::hash(&SOURCE).rotate_left(1) ^ simt_store::CODE;

/// Edge of the tile and stages, `TILE` of the source; append only, because wisdom names variants by their place.
const TILES: [(u32, u32); 2] = [(128, 3), (64, 4)];

impl Kernel<Gemm> for Sm80 {
    fn name(&self) -> &'static str {
        "sm80"
    }

    fn code(&self) -> u64 {
        CODE
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        if super::is_invariant_elsewhere(super::LIST, caps, p, "sm80") {
            return Err(Unsupported::Repro { asked: p.repro() });
        }
        supports(caps, p.spec())
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, variant: Variant) -> Nanos {
        estimate(caps, p.spec(), p.batch, variant)
    }

    fn note(&self, _: &Caps, p: &GemmProblem, variant: Variant) -> Option<Cow<'static, str>> {
        super::padding(p, TILES[usize::from(variant.0)].0)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        let code = Form::new(device, p.spec(), None, p.align(), &main(p.spec(), variant))?;
        // SAFETY: the kernels touch what the spec names, and the scratch that `scratch_bytes` counts.
        Ok(unsafe { Plan::new(self.name(), variant, device.id(), p, code.scratch_bytes, Box::new(code)) })
    }
}

/// Types of A and B by their names in the source.
const TYPES: [(DType, &str); 6] = [
    (DType::Bf16, "BF16"),
    (DType::F16, "F16"),
    (DType::Tf32, "TF32"),
    (DType::E4m3, "E4M3"),
    (DType::E5m2, "E5M2"),
    (DType::I8, "S8"),
];

fn name_of(t: DType) -> Option<&'static str> {
    TYPES.iter().find(|(of, _)| *of == t).map(|(_, name)| *name)
}

/// Which variants run a product, whose rows may be grouped.
pub(crate) fn supports(caps: &Caps, spec: &GemmSpec) -> Support {
    if !caps.has("cp.async") {
        return Err(Unsupported::Arch { need: "sm_80", got: caps.arch.to_string() });
    }
    let sums = operands(caps, spec)?;
    let shared = |v: Variant| shared_bytes(TILES[usize::from(v.0)], sums);
    let otherwise = Unsupported::SharedMemory { need: shared(Variant(1)).into(), have: caps.shared_bytes.into() };
    Variants::filter(TILES.len() as u8, otherwise, |v| shared(v) <= caps.shared_bytes)
}

/// Dynamic shared memory: the stages, and two stages' scales of each row and column.
fn shared_bytes((edge, stages): (u32, u32), sums: Sums) -> u32 {
    let scales = if matches!(sums, Sums::Blocks | Sums::Mx) { 2 * 2 * edge * 4 } else { 0 };
    stages * 2 * edge * 128 + scales
}

/// Where sums are kept, and what they are multiplied by on the way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sums {
    Unit,
    Stage,
    Blocks,
    Mx,
}

impl Sums {
    /// How a product of operands that this kernel takes is summed, if their scales agree.
    fn of(spec: &GemmSpec) -> Option<Self> {
        let is_fp8 = is_fp8(spec.a.dtype());
        let by_row = |s: Scheme| matches!(s, Scheme::None | Scheme::Tensor | Scheme::Row);
        match (spec.a.format.scheme, spec.b.format.scheme) {
            (a, b) if by_row(a) && by_row(b) => {
                Some(if is_fp8 && spec.acc == Acc::F32 { Self::Stage } else { Self::Unit })
            }
            (Scheme::Block { inner: 128, .. }, Scheme::Block { inner: 128, .. }) if is_fp8 => Some(Self::Blocks),
            (Scheme::Mx, Scheme::Mx) if is_fp8 => Some(Self::Mx),
            _ => None,
        }
    }

    /// `KP_SUMS` of the source.
    const fn define(self) -> &'static str {
        match self {
            Self::Unit => "UNIT",
            Self::Stage => "STAGE",
            Self::Blocks => "BLOCKS",
            Self::Mx => "MX",
        }
    }
}

fn is_fp8(t: DType) -> bool {
    t.is_float() && t.bits() == 8
}

fn operands(caps: &Caps, spec: &GemmSpec) -> std::result::Result<Sums, Unsupported> {
    let (t, of_b) = (spec.a.dtype(), spec.b.dtype());
    if name_of(t).is_none() || !caps.mma.contains(t) {
        return Err(Unsupported::DType { operand: "a", got: t });
    }
    if of_b != t && !(is_fp8(t) && is_fp8(of_b) && name_of(of_b).is_some()) {
        return Err(Unsupported::DType { operand: "b", got: of_b });
    }
    for (operand, matrix, along_k) in [("a", &spec.a, Order::Row), ("b", &spec.b, Order::Col)] {
        let across = matrix.order != along_k;
        if matches!(matrix.order, Order::Panel { .. }) || across && t.bits() != 16 {
            return Err(Unsupported::Layout { operand, got: matrix.order.to_string() });
        }
    }
    let sums = Sums::of(spec).ok_or(Unsupported::Scheme { operand: "a", got: spec.a.format.to_string() })?;
    let fits = if t.is_float() { spec.acc.is_f32() } else { spec.acc == Acc::I32 };
    if !fits {
        return Err(Unsupported::Option { option: "acc", got: spec.acc.to_string() });
    }
    if spec.sparsity != Sparsity::Dense {
        return Err(Unsupported::Option { option: "sparse", got: spec.sparsity.to_string() });
    }
    Ok(sums)
}

/// What sums `spec` in `variant`.
pub(crate) fn main(spec: &GemmSpec, variant: Variant) -> Main {
    let (tile, sums) = (TILES[usize::from(variant.0)], Sums::of(spec).expect("`supports` has looked at the scales"));
    let wide = spec.acc == Acc::I32 || simt_store::finishes_wide(spec);
    let finish = if wide { "double" } else { "float" };
    let outer = [spec.a.order == Order::Col, spec.b.order == Order::Row];
    Main {
        name: "sm80",
        build: build([spec.a.dtype(), spec.b.dtype()], sums, finish, variant, outer),
        tile: (tile.0, tile.0),
        threads: 256,
        shared_bytes: shared_bytes(tile, sums),
        run: |t| 128 / t.bits(),
        finish,
    }
}

fn build(
    [t, of_b]: [DType; 2],
    sums: Sums,
    finish: &'static str,
    variant: Variant,
    [a_outer, b_outer]: [bool; 2],
) -> Build {
    let flag = |on: bool| u8::from(on).to_string();
    let name = |t| name_of(t).expect("`supports` has looked at the type").to_owned();
    let defines = vec![
        ("KP_TYPE", name(t)),
        ("KP_B_TYPE", name(of_b)),
        ("KP_SUMS", sums.define().to_owned()),
        ("FINISH", finish.to_owned()),
        ("TILE", variant.0.to_string()),
        ("KP_STAGES", TILES[usize::from(variant.0)].1.to_string()),
        ("KP_A_OUTER", flag(a_outer)),
        ("KP_B_OUTER", flag(b_outer)),
        ("KP_WHOLE", flag(!t.is_float())),
        ("KP_FP8", flag(is_fp8(t))),
    ];
    Build { source: &SOURCE, entry: "sm80", defines }
}

/// Every build there is for `arch`.
pub(crate) fn builds(arch: &str) -> Vec<Listed> {
    let version: u32 = arch.trim_start_matches("sm_").trim_end_matches('a').parse().unwrap_or(0);
    let variants = || (0..TILES.len() as u8).map(Variant);
    let mut builds = Vec::new();
    let fp8 = TYPES.map(|(t, _)| t).into_iter().filter(|&t| is_fp8(t));
    let pairs = TYPES.into_iter().flat_map(|(a, _)| {
        let others = fp8.clone().filter(move |_| is_fp8(a));
        let same = (!is_fp8(a)).then_some(a);
        others.chain(same).map(move |b| [a, b])
    });
    for types @ [t, _] in pairs {
        if version < if is_fp8(t) { 89 } else { 80 } {
            continue;
        }
        let sums: &[_] = if is_fp8(t) { &[Sums::Unit, Sums::Stage, Sums::Blocks, Sums::Mx] } else { &[Sums::Unit] };
        let finishes: &[_] = if t.is_float() { &["float", "double"] } else { &["double"] };
        let orders: &[_] = match t.bits() {
            16 => &[[false; 2], [false, true], [true, false], [true; 2]],
            _ => &[[false; 2]],
        };
        for ((finish, order), sums) in each(&each(finishes, orders), sums) {
            builds.extend(variants().map(|v| Listed::new("gemm/sm80", v, build(types, sums, finish, v, order))));
        }
    }
    // Fragments of 8-bit floats are unpacked to 16 bits where the matrix unit has no such fragments, as on sm_90.
    let why = |build: &Build| build.defines.contains(&("KP_FP8", "1".to_owned())).then_some("fragments are unpacked");
    builds.into_iter().map(|listed| Listed { local_memory: why(&listed.build), ..listed }).collect()
}

/// Every pair of one of `a` and one of `b`.
fn each<A: Copy, B: Copy>(a: &[A], b: &[B]) -> Vec<(A, B)> {
    a.iter().flat_map(|&x| b.iter().map(move |&y| (x, y))).collect()
}

/// Waves of tiles at a share of the peak, or memory's pace; `row_batch` counts how often `m` repeats.
pub(crate) fn estimate(caps: &Caps, spec: &GemmSpec, row_batch: u32, variant: Variant) -> Nanos {
    let (edge, _) = TILES[usize::from(variant.0)];
    let units = f64::from(caps.units.max(1));
    let tiles = f64::from(row_batch) * f64::from(spec.m.div_ceil(edge)) * f64::from(spec.n.div_ceil(edge));
    // `wgmma` reads shared memory less often than registers can be filled from it.
    let is_behind = caps.has("wgmma") || caps.has("tcgen05");
    let reach = match (is_behind, is_fp8(spec.a.dtype())) {
        (false, _) => 0.75,
        // 154 TFLOP/s on an H100: bf16, 2048 rows in 8 groups, n = 4096, k = 7168, in four waves.
        (true, false) => 0.16,
        // Fragments are unpacked to 16 bits.
        (true, true) => 0.08,
    };
    let summing = match Sums::of(spec) {
        Some(Sums::Mx) => 0.6,
        Some(Sums::Blocks | Sums::Stage) => 0.8,
        Some(Sums::Unit) | None => 1.0,
    };
    let share = reach * summing * if edge == 128 { 1.0 } else { 0.6 };
    let per_unit = caps.rates.get(spec.rate_dtype()) / units * share;
    let work = 2.0 * f64::from(edge) * f64::from(edge) * f64::from(spec.k) / per_unit;
    let steps = f64::from(spec.k) * f64::from(spec.a.dtype().bits()) / 1024.0;
    // Copies are ahead by the stages, so that a step takes a part of memory's latency at least.
    let waves = (tiles / units).ceil();
    let sums = waves * work.max(steps * 0.25e-6) + 2.0e-6;
    let bytes = spec.bytes() as f64 / (caps.bytes_per_s * 0.85);
    let launches = if simt_store::is_staged(spec) { 3.0 } else { 1.0 };
    Nanos::from_secs(launches * caps.launch_ns as f64 * 1e-9 + sums.max(bytes))
}
