//! What the kernels on `sm90_swap.cuh` have in common: few rows of A along the free side of the matrix unit.

pub(super) use super::sm90::is_plain;
use super::{
    blocks, macros,
    maps::Map,
    sm90::{Arguments, operands, promotes, scale, unscaled},
};
use crate::{compile::Build, compile::Source, tensor_map::Swizzle};
use kp_hal::{
    Caps, DType, Nanos, Unsupported,
    op::{Addend, Gate, GemmProblem, GemmSpec, Order, Repro, Scheme, Spec},
};

/// Rows up to which such a kernel is worth its name.
const MOST_ROWS: u32 = 128;

/// One variant: macros of the sources. Tiles have 64 · `groups` columns of the product.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tile {
    /// Warpgroups.
    pub(super) groups: u32,
    /// Blocks of a cluster, which part k.
    pub(super) split: u32,
    /// Blocks that a unit holds at a time.
    pub(super) resident: u32,
    /// Boxes of 128 bytes of k in a stage.
    pub(super) steps: u32,
    /// Whether problems with more than a plain store have it too: each epilogue is a build of its own.
    pub(super) general: bool,
}

/// `Problem` of the header.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Params {
    pub(super) epilogue: Arguments,
    pub(super) d: u64,
    pub(super) stages_k: u32,
    pub(super) a_batched: u32,
    pub(super) b_batched: u32,
    pub(super) b_streams: u32,
    pub(super) a_scale_batch: i64,
    pub(super) b_scale_batch: i64,
    pub(super) a_scale_row: u32,
    pub(super) a_scale_k: u32,
    pub(super) b_scale_row: u32,
    pub(super) b_scale_k: u32,
    pub(super) blocks_k: u32,
}

const _: () = assert!(size_of::<Params>() == 160);

impl Tile {
    /// Rows of B in a tile.
    pub(super) const fn rows(&self) -> u32 {
        64 * self.groups
    }

    /// Threads of a block: those that multiply, a warp that copies, and one more for scales of blocks.
    pub(super) fn threads(&self, spec: &GemmSpec) -> u32 {
        128 * self.groups + if b_block(spec).is_some() { 64 } else { 32 }
    }

    /// Elements along k of a stage.
    pub(super) const fn stage_k(&self, spec: &GemmSpec) -> u32 {
        1024 / spec.a.format.dtype.bits() * self.steps
    }

    /// Bytes of a stage, and of the sums that leave through shared memory.
    const fn bytes(&self, tokens: u32) -> (u32, u32) {
        (self.steps * 128 * (self.rows() + tokens), self.groups * tokens * 68 * 4)
    }

    /// Bytes of a stage's scales of blocks, which have shared memory of their own.
    fn scale_bytes(&self, spec: &GemmSpec) -> u32 {
        let of_b = match b_block(spec) {
            None => return 0,
            Some(1) => self.rows(),
            Some(_) => self.groups,
        };
        self.steps * (tokens(spec.m) + of_b).next_multiple_of(2) * 4
    }

    /// Bytes of what the blocks of a cluster send each other: each finishes every `split`-th eight of the rows.
    const fn inbox(&self, tokens: u32) -> u32 {
        self.groups * (self.split - 1) * (tokens / 8).div_ceil(self.split) * 2048
    }

    /// Stages that fit beside `resident - 1` other blocks, and the dynamic shared memory of a block; `apart` if sums do not
    /// take the place of stages.
    pub(super) fn stages(&self, caps_bytes: u32, spec: &GemmSpec, apart: bool) -> (u32, u32) {
        let (stage, sums) = self.bytes(tokens(spec.m));
        let inbox = self.inbox(tokens(spec.m));
        let kept = if apart { sums } else { inbox };
        let room = (caps_bytes / self.resident).saturating_sub(2048 + 256 + kept);
        let stages = (room / (stage + self.scale_bytes(spec))).min(16);
        (stages, 1024 + if apart { stages * stage + sums } else { sums.max(stages * stage + inbox) })
    }
}

/// Problems to compile for beforehand: each number of tokens that is compiled, for plain stores; one with more.
pub(super) const USUAL: &[&str] = &[
    "1x8x4096x4096 bf16:bf16:bf16 b=col",
    "1x16x4096x4096 bf16:bf16:bf16 b=col",
    "1x32x4096x4096 bf16:bf16:bf16 b=col",
    "1x64x4096x4096 bf16:bf16:bf16 b=col",
    "1x96x4096x4096 bf16:bf16:bf16 b=col",
    "1x128x4096x4096 bf16:bf16:bf16 b=col",
    "1x16x4096x4096 e4m3@row:e4m3@row:bf16 b=col acc=f32fast",
    "1x64x4096x4096 e4m3@row:e4m3@row:bf16 b=col",
    "1x128x4096x4096 e4m3@tensor:e4m3@tensor:bf16 b=col acc=f32fast",
    "1x16x4096x4096 e4m3@1x128^outer:e4m3@128x128:bf16 b=col",
    "1x64x4096x4096 e4m3@1x128^outer:e4m3@128x128:bf16 b=col",
    "1x64x4096x4096 e4m3@1x128:e4m3@1x128:bf16 b=col",
    "1x64x4096x4096 bf16:bf16:bf16 b=col bias=bf16 act=gelu_tanh residual=bf16",
];

/// Rows of A in a tile: those there are, rounded up to what is compiled.
pub(super) fn tokens(m: u32) -> u32 {
    [8, 16, 32, 64, 96, 128].into_iter().find(|&tokens| m <= tokens).unwrap_or(MOST_ROWS)
}

/// What every variant asks of a problem.
///
/// # Errors
/// The first reason why not.
pub(super) fn check(caps: &Caps, p: &GemmProblem) -> super::Check {
    let spec = p.spec();
    if !caps.has("wgmma") {
        return Err(Unsupported::Arch { need: "sm_90a", got: caps.arch.to_string() });
    }
    if spec.m > MOST_ROWS {
        return Err(Unsupported::TooLarge { dim: "m", max: MOST_ROWS.into(), got: spec.m.into() });
    }
    // Larger products have another kernel, whose sums go another way.
    if p.repro() == Repro::BatchInvariant {
        return Err(Unsupported::Repro { asked: p.repro() });
    }
    match b_block(spec) {
        None => operands(spec)?,
        Some(_) => unscaled(spec)?,
    }
    // The two halves of a tile of a gate have scales of their own.
    if let (Some(_), gate @ Gate::Halves) = (b_block(spec), spec.epilogue.gate) {
        return Err(Unsupported::Option { option: "gate", got: gate.to_string() });
    }
    for (operand, got) in [("a", spec.a.dtype()), ("d", spec.d.dtype())] {
        if macros::float(got).is_none() {
            return Err(Unsupported::DType { operand, got });
        }
    }
    if spec.a.order != Order::Row {
        return Err(Unsupported::Layout { operand: "a", got: spec.a.order.to_string() });
    }
    if spec.b.order != Order::Col {
        return Err(Unsupported::Layout { operand: "b", got: spec.b.order.to_string() });
    }
    super::sizes(spec)?;
    if spec.batch >= 1 << 16 {
        return Err(Unsupported::TooLarge { dim: "batch", max: (1 << 16) - 1, got: spec.batch.into() });
    }
    super::maps::check(&spec.a, ["ld of a", "batch stride of a"], spec.batch, p.align())?;
    super::maps::check(&spec.b, ["ld of b", "batch stride of b"], spec.batch, p.align())
}

/// Rows of B that share a scale for 128 of k, if A has one per row and 128 of k.
fn b_block(spec: &GemmSpec) -> Option<u16> {
    match (spec.a.format.scheme, spec.b.format.scheme) {
        (Scheme::Block { outer: 1, inner: 128 }, Scheme::Block { outer: outer @ (1 | 128), inner: 128 })
            if (spec.a.dtype(), spec.b.dtype()) == (DType::E4m3, DType::E4m3) =>
        {
            Some(outer)
        }
        _ => None,
    }
}

/// Whether the sums of 128 of k are added in registers.
fn adds_apart(spec: &GemmSpec) -> bool {
    promotes(spec) || b_block(spec).is_some()
}

/// The build of `tile` for problems like `spec`, whose blocks have `stages` stages.
pub(super) fn build(source: &'static Source, spec: &GemmSpec, tile: &Tile, stages: u32) -> Build {
    let name = |t| macros::float(t).expect("`operands` has looked at the type").to_owned();
    // B takes the matrix unit's first side.
    let (first, second) = (name(spec.b.dtype()), name(spec.a.dtype()));
    let types = if first == second { first } else { format!("{first}_{second}") };
    let c = match spec.c {
        Addend::None => None,
        Addend::Given(t) => Some(t),
        Addend::InPlace => Some(spec.d.dtype()),
    };
    let of_blocks = b_block(spec);
    let scale =
        scale(spec.a.format.scheme, spec.b.format.scheme).or(of_blocks.map(|_| "BLOCKS")).expect("`check` has looked");
    let mut defines = vec![
        ("KP_TYPES", types),
        ("KP_D", name(spec.d.dtype())),
        ("KP_TOKENS", tokens(spec.m).to_string()),
        ("KP_SLABS", "1".to_owned()),
        ("KP_GROUPS", tile.groups.to_string()),
        ("KP_SPLIT", tile.split.to_string()),
        ("KP_STEPS", tile.steps.to_string()),
        ("KP_STAGES", stages.to_string()),
        ("KP_PROMOTE", u8::from(adds_apart(spec)).to_string()),
        ("KP_SCALE", scale.to_owned()),
        ("KP_PREFETCH", u8::from(tile.resident == 1).to_string()),
        ("KP_EARLY", "1".to_owned()),
        ("KP_C", macros::addend(c).expect("`operands` has looked at the type").to_owned()),
        ("KP_BLOCKS_PER_SM", tile.resident.to_string()),
    ];
    defines.extend(of_blocks.map(|rows| ("KP_B_BLOCK", rows.to_string())));
    defines.extend(macros::epilogue(&spec.epilogue));
    Build { source, entry: "gemm", defines }
}

/// Maps of A and B.
pub(super) fn maps(spec: &GemmSpec, tile: &Tile, tokens: u32) -> [Map; 2] {
    let GemmSpec { batch, m, n, k, a, b, .. } = *spec;
    let step = 1024 / a.dtype().bits();
    let rows = if spec.epilogue.gate == Gate::Halves { 32 } else { tile.rows() };
    [
        Map::of(&a, (m, k, batch), [step, tokens], Swizzle::Bytes128),
        Map::of(&b, (k, n, batch), [step, rows], Swizzle::Bytes128),
    ]
}

/// What does not change from launch to launch.
pub(super) fn params(spec: &GemmSpec, tile: &Tile, caps: &Caps) -> Params {
    let is_batched = |stride: u64| u32::from(spec.batch > 1 && stride != 0);
    let of_blocks = b_block(spec).is_some();
    let ((a_row, a_k, a_batch), (b_row, b_k, b_batch)) = if of_blocks {
        (blocks::steps(spec.a.format, (spec.m, spec.k)), blocks::steps(spec.b.format, (spec.n, spec.k)))
    } else {
        Default::default()
    };
    Params {
        epilogue: Arguments::of(spec),
        stages_k: spec.k.div_ceil(tile.stage_k(spec)),
        a_batched: is_batched(spec.a.stride),
        b_batched: is_batched(spec.b.stride),
        b_streams: u32::from(super::b_passes(spec, caps)),
        a_scale_batch: a_batch,
        b_scale_batch: b_batch,
        a_scale_row: a_row,
        a_scale_k: a_k,
        b_scale_row: b_row,
        b_scale_k: b_k,
        blocks_k: spec.k.div_ceil(128),
        ..Params::default()
    }
}

/// Whether a launch should begin before the kernel before it has ended. Blocks that share a unit would take the place of whichever
/// blocks end first, and leave units unequally busy: long launches lose more by that than they gain.
pub(super) fn overlaps(spec: &GemmSpec, tile: &Tile, caps: &Caps) -> bool {
    tile.resident == 1 || (spec.bytes() as f64) < caps.bytes_per_s * LONG
}

/// What memory delivers, what one unit's copies take, their latency one stage after the other, and products, of which the
/// longest counts, and the others a little; `streamed` if all units get equal parts.
pub(super) fn estimate(caps: &Caps, spec: &GemmSpec, tile: &Tile, streamed: bool) -> Nanos {
    let units = f64::from(caps.units.max(1));
    let clock = if caps.clock_hz > 0.0 { caps.clock_hz } else { 1.5e9 };
    let (tokens, resident, split) = (tokens(spec.m), f64::from(tile.resident), f64::from(tile.split));
    let tiles = f64::from(spec.batch) * f64::from(spec.n.div_ceil(tile.rows())) * f64::from(spec.m.div_ceil(tokens));
    let waves = tiles * split / (units * resident);
    let rounds = if streamed { waves } else { waves.ceil() };
    let line = f64::from(spec.k) * f64::from(spec.a.dtype().bits()) / 8.0 / split;

    let copies = rounds * f64::from(tile.rows() + tokens) * line * resident / (UNIT_PER_CYCLE * clock);
    let stages = rounds.max(1.0) * line / f64::from(128 * tile.steps);
    let per_unit = caps.rates.get(spec.rate_dtype()) / units * POWER;
    let products = 2.0 * f64::from(tile.rows() * tokens) * f64::from(spec.k) / split;
    let multiply = rounds.max(1.0) * resident * products / per_unit;
    // A last wave that is not full asks for less than memory could deliver.
    let full = if streamed { 1.0 } else { waves / waves.ceil() };
    let memory = spec.bytes() as f64 / (caps.bytes_per_s * MEMORY) * full.powf(-TAIL);
    let warpgroups = f64::from(tile.groups) * resident;
    let scaling = match b_block(spec) {
        None => 0.0,
        Some(_) => {
            rounds.max(1.0) * line / 128.0
                * (SCALING + SCALING_ROW * f64::from(tokens) * (1.0 + SHARED * (warpgroups - 1.0)))
        }
    };
    let parts = [copies, stages * STAGE, multiply, memory, scaling];
    let longest = parts.iter().map(|t| t.powf(SHARPNESS)).sum::<f64>().powf(1.0 / SHARPNESS);

    // Where the next launch's blocks have room beside these, they begin while these end.
    let room = units / 2.0..=units * resident / 2.0;
    let beside = tokens <= 32 && !streamed && overlaps(spec, tile, caps) && room.contains(&(tiles * split));
    let hidden = if beside { BESIDE.min(longest / 2.0) } else { 0.0 };

    let rows = f64::from(tokens);
    let end = rows * ROW * rounds + (split - 1.0) * SPLIT + if streamed { FIX_UP + rows * FIX_UP_ROW } else { 0.0 };
    Nanos::from_secs(START + end + longest - hidden)
}

// Fitted, with those of `sm90`, to the times of 35 problems on an H200 in bf16, and then parts put together to those of e4m3, whose memory
// takes half as long: over 150 problems in both types, what is chosen takes 1.03 times as long as the fastest of four candidates and
// cuBLASLt on average, 1.26 times at worst. In seconds unless said.

/// Bytes per cycle that one unit gets when the others do not compete.
const UNIT_PER_CYCLE: f64 = 200.0;
/// Of one box of a stage.
const STAGE: f64 = 0.086e-6;
/// Of the matrix unit's peak.
const POWER: f64 = 1.42;
/// Of the memory's peak, and what an unfull last wave costs.
const MEMORY: f64 = 0.846;
const TAIL: f64 = 0.0304;
/// The power mean's exponent.
const SHARPNESS: f64 = 2.32;
/// A launch until the first copy; a row of a tile's end; a further block of a cluster; parts of a tile put together, and a row
/// of that.
const START: f64 = 0.05e-6;
/// Of what the launch before hides, where it has been seen: up to 32 rows, and blocks for half of the units. With it, of 22 variants the choice
/// takes 1.00 to 1.05 times as long as the fastest for 16 rows and four weights of 34 to 59 MB, and took up to 1.39 times as long without.
const BESIDE: f64 = 1.0e-6;
const ROW: f64 = 0.0242e-6;
const SPLIT: f64 = 0.413e-6;
const FIX_UP: f64 = 0.3e-6;
const FIX_UP_ROW: f64 = 0.03e-6;
/// Of scaling the sums of 128 of k, and of each row of them; what each further warpgroup of a unit adds to that. Fitted to 18 problems of
/// 16 to 128 rows: with them, what is chosen of these kernels and those on `sm90_blocks.cuh` takes 1.02 times as long as the best on
/// average, 1.15 times at worst.
const SCALING: f64 = 36e-9;
const SCALING_ROW: f64 = 2.9e-9;
const SHARED: f64 = 0.86;
/// Of memory's time, from which on a launch is long.
const LONG: f64 = 20e-6;

/// Whether a type that a tile of `tokens` rows stores leaves registers for `resident` blocks.
pub(super) fn fits(tile: &Tile, spec: &GemmSpec, caps: &Caps, apart: bool) -> bool {
    let tokens = tokens(spec.m);
    let factors = if b_block(spec).is_some() { tokens / 4 } else { 0 };
    let sums = tokens / 2 * if adds_apart(spec) { 2 } else { 1 } + factors;
    // Of 64 K registers, with what addresses and the epilogue take.
    let registers = caps.registers.max(1 << 16) / (tile.threads(spec) * tile.resident);
    let (stages, _) = tile.stages(caps.shared_bytes, spec, apart);
    sums + 56 <= registers && stages >= 2 && (tile.split == 1 || spec.k > tile.stage_k(spec) * tile.split)
}
