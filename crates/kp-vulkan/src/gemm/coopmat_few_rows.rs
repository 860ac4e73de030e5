//! D = A·B for few rows on the matrix unit, B's columns contiguous as weights are, scaled or not, at the speed of memory.
//!
//! See `kernels/gemm/glsl/coopmat_few_rows.comp`. Limits: A of f16 or bf16 for which the driver lists matrices of 16×8×16 or 16×16×16
//! with sums of f32, and no more rows than their width; B of the same type, of 8 or of 4 bits, with scales of whole columns or of
//! blocks of as many elements as four pieces have.

use super::form::{Main, product, weighed};
use crate::{
    caps::{COOPMAT, COOPMAT_BF16, widths},
    device::VulkanDevice,
    launch::planned,
    layouts::RUN,
    shaders::{Shader, shader},
};
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Format, Gemm, GemmProblem, Matrix, Order, Repro, ScaleLayout, Scheme, Spec},
    source_hash,
};
use std::sync::Arc;

/// The kernel for few rows on matrix units that subgroups share.
pub(crate) struct CoopmatFewRows;

static F16: Shader = shader!("gemm", "coopmat_few_rows");
static BF16: Shader = shader!("gemm", "coopmat_few_rows_bf16");

/// Columns of B that a matrix has, and elements along k.
const M: u32 = 16;
const K: u32 = 16;

/// Lanes of a subgroup that loads what it has of matrices.
const LANES: u32 = 32;

/// What B may be beside A's own type.
const NARROW: [DType; 8] =
    [DType::E4m3, DType::E5m2, DType::E2m1, DType::Nf4, DType::I4, DType::U4, DType::I8, DType::U8];

/// How a group works.
struct Group {
    /// Matrices across that it makes.
    cols: u32,
    /// Subgroups that share k.
    subgroups: u32,
    /// Tiles that it makes at once, each by as many subgroups.
    teams: u32,
    /// Pieces of each line that a lane has under way.
    steps: u32,
    /// `AHEAD` of the shader.
    ahead: u32,
}

/// Variants; append only, because wisdom names them by their place. On an H100 the sixth is best for few columns, of which the others would
/// make too few groups, the seventh for 16 and 8 bits, the eighth for 4 bits but for NF4, of which the tenth has one table for all that a
/// unit has registers for, and MXFP4, of which it is the last.
const GROUPS: [Group; 11] = [
    Group { cols: 1, subgroups: 4, teams: 1, steps: 2, ahead: 0 },
    Group { cols: 1, subgroups: 4, teams: 2, steps: 1, ahead: 1 },
    Group { cols: 2, subgroups: 4, teams: 1, steps: 1, ahead: 1 },
    Group { cols: 4, subgroups: 4, teams: 1, steps: 1, ahead: 5 },
    Group { cols: 1, subgroups: 1, teams: 16, steps: 2, ahead: 4 },
    Group { cols: 1, subgroups: 8, teams: 1, steps: 1, ahead: 1 },
    Group { cols: 1, subgroups: 4, teams: 1, steps: 2, ahead: 8 },
    Group { cols: 2, subgroups: 2, teams: 2, steps: 2, ahead: 8 },
    Group { cols: 2, subgroups: 2, teams: 2, steps: 2, ahead: 9 },
    Group { cols: 2, subgroups: 2, teams: 8, steps: 2, ahead: 5 },
    Group { cols: 2, subgroups: 2, teams: 1, steps: 2, ahead: 8 },
];

/// Whether lanes have scales of their own, as `OWN_SCALES` of the shader: f16 holds a code of E2M1 times a scale of either scheme.
fn own_scales(format: Format) -> u32 {
    match format.scheme {
        Scheme::Mx if format.dtype == DType::E2m1 => 1,
        Scheme::Nv if format.dtype == DType::E2m1 => 2,
        _ => 0,
    }
}

/// Words of a lane's piece, and blocks with a scale that four lanes' pieces are of: as many words as leave them one block, or two of codes
/// of 4 bits; none if a block has too few elements.
fn words(format: Format) -> Option<(u32, u32)> {
    let (_, depth) = format.block();
    let bits = format.dtype.bits();
    if own_scales(format) != 0 {
        return Some((4, 1));
    }
    // Eight elements at least, those of two products; a matrix of numbers filled one by one has a scale in common too.
    let fits = |(words, blocks): &(u32, u32)| {
        let shared = (128 * words / bits / blocks).next_multiple_of(K);
        let whole = depth == u32::MAX || depth.is_multiple_of(shared);
        let two = bits == 4 && depth == shared;
        32 * words >= RUN * bits && if *blocks == 1 { whole } else { two }
    };
    [(4, 1), (4, 2), (2, 1), (2, 2), (1, 1)].into_iter().find(fits)
}

/// Bytes of the scales that a line's pieces under way have, if they can be loaded at once: they lie one behind the other along k, and start
/// where so many may. Not of short pieces with one scale each, which are slower with it on an H200.
fn together(p: &GemmProblem, group: &Group, (words, blocks): (u32, u32)) -> Option<u32> {
    let format = p.b.format;
    let (_, depth) = format.block();
    let span = 128 * words / format.dtype.bits();
    let scale = format.scale_dtype()?.bits() / 8;
    let faster = own_scales(format) != 0 || scale > 1 && (words == 4 || blocks == 2);
    let in_order = !format.has_zero() && format.scales == ScaleLayout::Inner && span.is_multiple_of(depth);
    if !faster || !in_order || group.steps == 1 {
        return None;
    }
    let bytes = span / depth * scale * group.steps;
    (matches!(bytes, 4 | 8 | 16) && (p.k.div_ceil(depth) * scale).is_multiple_of(bytes)).then_some(bytes)
}

/// Whether `bytes` can be loaded at once wherever a line or a matrix starts.
fn starts(matrix: &Matrix, batch: u32, align: u32, bytes: u32) -> bool {
    let fits = |elements: u64| (elements * u64::from(matrix.dtype().bits()) / 8).is_multiple_of(bytes.into());
    align >= bytes && fits(matrix.ld.into()) && (batch == 1 || fits(matrix.stride))
}

/// Whether pieces of A's and B's lines can be loaded at once, and two scales of a line where they are neighbours; and there are as many
/// columns as a tile has.
fn by_steps(p: &GemmProblem, group: &Group) -> bool {
    let align = p.align().bytes();
    let (_, depth) = p.b.format.block();
    let Some((words, blocks)) = words(p.b.format) else { return false };
    let pairs = own_scales(p.b.format) == 2 || blocks == 2 && p.b.format.scale_dtype() == Some(DType::F32);
    let alone = !pairs || p.b.format.scales != ScaleLayout::Inner;
    (alone || p.k.div_ceil(depth).is_multiple_of(2))
        && p.n >= group.cols * M
        && p.a.order == Order::Row
        && starts(&p.a, p.batch, align, 16)
        && starts(&p.b, p.batch, align, 4 * words)
}

impl Group {
    /// Elements of a line that a subgroup takes at once.
    fn stride(&self, format: Format, words: u32) -> u32 {
        128 * words / format.dtype.bits() * self.steps
    }

    fn threads(&self, caps: &Caps) -> u32 {
        self.teams * self.subgroups * caps.lanes
    }

    /// Every subgroup's sums, in the place of each lane's pairs of NF4, and a matrix of numbers.
    fn shared_bytes(&self, width: u32, dtype: DType) -> u32 {
        let pairs = if dtype == DType::Nf4 { 4 * 256 * LANES } else { 4 };
        pairs.max(4 * self.teams * self.subgroups * self.cols * M * width) + 2 * M * K
    }
}

impl Kernel<Gemm> for CoopmatFewRows {
    fn name(&self) -> &'static str {
        "coopmat_few_rows"
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("coopmat_few_rows.rs")) ^ F16.hash().rotate_left(1) ^ BF16.hash().rotate_left(2) }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        weighed(p.spec())?;
        let need = match p.a.dtype() {
            DType::F16 => COOPMAT,
            DType::Bf16 => COOPMAT_BF16,
            got => return Err(Unsupported::DType { operand: "a", got }),
        };
        let b = p.b.dtype();
        if b != p.a.dtype() && !NARROW.contains(&b) {
            return Err(Unsupported::DType { operand: "b", got: b });
        }
        let width = widths(caps, p.a.dtype()).next().filter(|_| caps.has(need)).ok_or(Unsupported::Feature { need })?;
        if p.m > width {
            return Err(Unsupported::TooLarge { dim: "m", max: width.into(), got: p.m.into() });
        }
        if p.b.order != Order::Col {
            return Err(Unsupported::Layout { operand: "b", got: p.b.order.to_string() });
        }
        if words(p.b.format).is_none() {
            let got = p.b.format.block().1.into();
            return Err(Unsupported::Align {
                dim: "elements that share a scale",
                multiple: (128 / b.bits()).into(),
                got,
            });
        }
        if p.repro() == Repro::BatchInvariant {
            return Err(Unsupported::Repro { asked: p.repro() });
        }
        let [need, have] = [GROUPS[0].shared_bytes(width, b), caps.shared_bytes].map(u64::from);
        Variants::filter(GROUPS.len() as u8, Unsupported::SharedMemory { need, have }, |v| {
            let group = &GROUPS[usize::from(v.0)];
            group.threads(caps) <= caps.max_threads && group.shared_bytes(width, b) <= caps.shared_bytes
        })
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, variant: Variant) -> Nanos {
        let group = &GROUPS[usize::from(variant.0)];
        let (best, slower) = match (p.b.dtype(), p.b.dtype().bits()) {
            (_, 16) => (6, 1.05),
            (_, 8) => (6, 1.15),
            (DType::E2m1, _) if own_scales(p.b.format) == 1 => (10, 1.3),
            (DType::Nf4, _) => (9, 1.6),
            _ => (7, 1.3),
        };
        let other = if variant.0 == best { 1.0 } else { 1.2 };
        // Fewer subgroups than units need for the memory's whole speed bring a part of it.
        let tiles = f64::from(p.batch) * f64::from(p.n.div_ceil(M * group.cols));
        let share = (tiles * f64::from(group.subgroups) / (8.0 * f64::from(caps.units))).min(1.0);
        // What is no whole step is many times slower.
        let (words, _) = words(p.b.format).unwrap_or((1, 1));
        let whole = if by_steps(p, group) { p.k - p.k % group.stride(p.b.format, words) } else { 0 };
        let left = 1.0 - f64::from(whole) / f64::from(p.k.max(1));
        let moved = (slower + 20.0 * left) / share.max(1e-3) * p.bytes() as f64 / caps.bytes_per_s;
        Nanos::from_secs(caps.launch_ns as f64 * 1e-9 + other * moved)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        let (caps, group) = (device.caps(), &GROUPS[usize::from(variant.0)]);
        let width = widths(caps, p.a.dtype()).next().expect("supported, so there is a shape");
        let (words, blocks) = words(p.b.format).expect("supported, so pieces suit scales");
        let vulkan: &VulkanDevice = device.downcast_ref().expect("a device of this backend");
        let by_steps = by_steps(p, group) && vulkan.has_lanes(p.a.dtype(), width);
        let by_numbers = !by_steps || !p.k.is_multiple_of(group.stride(p.b.format, words));
        let main = Main {
            name: self.name(),
            shader: if p.a.dtype() == DType::F16 { &F16 } else { &BF16 },
            constants: vec![
                width,
                group.cols,
                group.subgroups,
                group.threads(caps),
                u32::from(by_steps) | u32::from(by_numbers) << 1,
                words,
                group.steps,
                own_scales(p.b.format),
                group.teams,
                group.ahead,
                blocks,
                together(p, group, (words, blocks)).unwrap_or(0),
            ],
            subgroup: Some(caps.lanes),
            tile: (width, group.teams * group.cols * M),
            weighs: false,
        };
        let code = product(device, p.spec(), main)?;
        // SAFETY: the shader touches what the spec names, and has no scratch.
        Ok(unsafe { planned(self.name(), variant, device.id(), p, 0, code) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kp_hal::{
        DeviceKind,
        caps::{MmaScope, MmaShape},
    };

    fn problem(text: &str) -> GemmProblem {
        text.parse().expect("a problem")
    }

    #[test]
    fn pieces_are_as_long_as_they_have_a_scale() {
        let of = |b: &str| words(problem(&format!("gemm 1x1x8x256 f16:{b}:f16 b=col")).b.format);
        let one = ["f16", "e4m3@1x128", "i4@g128/f16", "e2m1@mx", "e2m1@nv", "e4m3@mx"];
        assert_eq!(one.map(of), [4, 4, 4, 4, 4, 2].map(|words| Some((words, 1))));
        assert_eq!(["nf4@g64/f32", "i4@g64/f16", "i4@g32/f16"].map(of), [4, 4, 2].map(|words| Some((words, 2))));
    }

    #[test]
    fn scales_come_together_where_they_lie_together() {
        let of = |b: &str, k: u32| {
            let p = problem(&format!("gemm 1x1x64x{k} f16:{b}:f16 b=col"));
            together(&p, &GROUPS[7], words(p.b.format).expect("pieces suit scales"))
        };
        let all = [
            "i4@g128/f16",
            "i4@g64/f16",
            "i4@g32/f16",
            "e2m1@mx",
            "nf4@g64/f32",
            "e2m1@nv",
            "u4@g128/f16z",
            "e4m3@1x128",
            "f16",
        ];
        assert_eq!(all.map(|b| of(b, 512)), [4, 8, 8, 8, 16, 16, 0, 0, 0].map(|bytes| (bytes > 0).then_some(bytes)));
        assert_eq!(of("i4@g128/f16", 384), None, "the next column's start between two of four bytes");
        assert_eq!(of("e2m1@mx^outer", 512), None);
    }

    #[test]
    fn what_the_driver_does_not_list_is_not_run() {
        let mut caps = Caps::new(DeviceKind::Gpu, "vulkan1.4");
        (caps.max_threads, caps.shared_bytes, caps.lanes) = (1024, 48 << 10, 32);
        let mma =
            |n| MmaShape { m: 16, n, k: 16, a: DType::F16, b: DType::F16, d: DType::F32, scope: MmaScope::Subgroup };
        let supports = |caps: &Caps, m: u32| {
            CoopmatFewRows.supports(caps, &problem(&format!("gemm 1x{m}x8x64 f16:f16:f16 b=col")))
        };
        caps.mma_shapes = vec![mma(8)];
        assert_eq!(supports(&caps, 1), Err(Unsupported::Feature { need: COOPMAT }), "shapes without the feature");
        caps.set_features([COOPMAT]);
        assert!(supports(&caps, 8).is_ok() && supports(&caps, 9).is_err());
        caps.mma_shapes = vec![mma(16)];
        assert!(supports(&caps, 16).is_ok());
        caps.mma_shapes = vec![MmaShape { k: 8, ..mma(8) }];
        assert!(supports(&caps, 1).is_err(), "another depth");
    }
}
