//! D = A·B of blocks of 8-bit and 4-bit floats on the matrix unit of sm_120, with every epilogue and layout of D that there is.
//!
//! See `kernels/gemm/cuda/sm120.cu` and `kernels/gemm/blackwell.md`. Never run. Limits: A and B contiguous along k and scaled alike (`@mx`, `@nv`);
//! k a multiple of 32, of 64 if elements have 4 bits, and of four scales unless they lie in tiles.

use super::{
    Check,
    simt_store::{self, Form, Main},
    sm80,
};
use crate::compile::{Build, Listed, Source, source};
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Gemm, GemmProblem, GemmSpec, Matrix, Order, ScaleLayout, Scheme, Sparsity},
    source_hash,
};
use std::{borrow::Cow, sync::Arc};

/// The kernel.
pub(crate) struct Sm120;

static SOURCE: Source = source!(
    "gemm/cuda/sm120.cu",
    "gemm/cuda/simt.cuh",
    "gemm/cuda/simt_finish.cuh",
    "gemm/cuda/sm80_stages.cuh",
    "common/cuda/numbers.cuh",
);

/// Edge of the tile and stages, `TILE` of the source; append only, because wisdom names variants by their place.
const TILES: [(u32, u32); 2] = [(128, 3), (64, 4)];

impl Kernel<Gemm> for Sm120 {
    fn name(&self) -> &'static str {
        "sm120"
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("sm120.rs")) ^ super::hash(&SOURCE).rotate_left(1) ^ simt_store::CODE }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        if !caps.has("block_scale") {
            return Err(Unsupported::Arch { need: "sm_120a", got: caps.arch.to_string() });
        }
        super::untried(caps)?;
        operands(p.spec())?;
        // A word of four scales.
        if p.align().bytes() < 4 {
            return Err(Unsupported::Address { need: 4, got: p.align().bytes() });
        }
        let shared = |v: Variant| shared_bytes(TILES[usize::from(v.0)]);
        let otherwise = Unsupported::SharedMemory { need: shared(Variant(1)).into(), have: caps.shared_bytes.into() };
        Variants::filter(TILES.len() as u8, otherwise, |v| shared(v) <= caps.shared_bytes)
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, variant: Variant) -> Nanos {
        // Tiles, stages and warps are the same.
        sm80::estimate(caps, p.spec(), p.batch, variant)
    }

    fn note(&self, _: &Caps, p: &GemmProblem, variant: Variant) -> Option<Cow<'static, str>> {
        super::never_run(super::padding(p, TILES[usize::from(variant.0)].0))
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        let code = Form::new(device, p.spec(), None, p.align(), &main(p.spec(), variant))?;
        // SAFETY: the kernels touch what the spec names, and the scratch that `scratch_bytes` counts.
        Ok(unsafe { Plan::new(self.name(), variant, device.id(), p, code.scratch_bytes, Box::new(code)) })
    }
}

fn shared_bytes((edge, stages): (u32, u32)) -> u32 {
    stages * 2 * edge * 128
}

/// What an instruction multiplies, by its name in the source, and how much of k it takes.
fn kind(spec: &GemmSpec) -> Option<(&'static str, u32)> {
    use DType::{E2m1, E4m3, E5m2};
    match (spec.a.dtype(), spec.b.dtype(), spec.a.format.scheme, spec.b.format.scheme) {
        (E4m3 | E5m2, E4m3 | E5m2, Scheme::Mx, Scheme::Mx) => Some(("MXF8F6F4", 32)),
        (E2m1, E2m1, Scheme::Mx, Scheme::Mx) => Some(("MXF4", 64)),
        (E2m1, E2m1, Scheme::Nv, Scheme::Nv) => Some(("MXF4NVF4", 64)),
        _ => None,
    }
}

fn operands(spec: &GemmSpec) -> Check {
    let scaled = |matrix: &Matrix| matches!(matrix.format.scheme, Scheme::Mx | Scheme::Nv);
    let Some((_, multiple)) = kind(spec) else {
        // Either is not of such a kind, or they are of two.
        return match (scaled(&spec.a), scaled(&spec.b)) {
            (true, true) => Err(Unsupported::DType { operand: "b", got: spec.b.dtype() }),
            (true, false) => Err(Unsupported::Scheme { operand: "b", got: spec.b.format.to_string() }),
            (false, _) => Err(Unsupported::Scheme { operand: "a", got: spec.a.format.to_string() }),
        };
    };
    for (operand, matrix, along_k) in [("a", &spec.a, Order::Row), ("b", &spec.b, Order::Col)] {
        if matrix.order != along_k {
            return Err(Unsupported::Layout { operand, got: matrix.order.to_string() });
        }
        // Four scales of a row are loaded at once.
        let (_, inner) = matrix.format.block();
        let multiple = match matrix.format.scales {
            ScaleLayout::Inner => 4 * inner,
            ScaleLayout::Tiles => multiple,
            ScaleLayout::Outer => return Err(Unsupported::Scheme { operand, got: matrix.format.to_string() }),
        };
        if !spec.k.is_multiple_of(multiple) {
            return Err(Unsupported::Align { dim: "k", multiple: multiple.into(), got: spec.k.into() });
        }
    }
    if !spec.acc.is_f32() {
        return Err(Unsupported::Option { option: "acc", got: spec.acc.to_string() });
    }
    if spec.sparsity != Sparsity::Dense {
        return Err(Unsupported::Option { option: "sparse", got: spec.sparsity.to_string() });
    }
    Ok(())
}

/// What sums `spec` in `variant`.
fn main(spec: &GemmSpec, variant: Variant) -> Main {
    let tile = TILES[usize::from(variant.0)];
    let finish = if simt_store::finishes_wide(spec) { "double" } else { "float" };
    Main {
        name: "sm120",
        build: build(spec, finish, variant),
        tile: (tile.0, tile.0),
        threads: 256,
        shared_bytes: shared_bytes(tile),
        run: |t| 128 / t.bits(),
        finish,
    }
}

fn build(spec: &GemmSpec, finish: &'static str, variant: Variant) -> Build {
    let (kind, _) = kind(spec).expect("`supports` has looked");
    let defines = vec![
        ("KP_KIND", kind.to_owned()),
        ("KP_A", spec.a.dtype().to_string()),
        ("KP_B", spec.b.dtype().to_string()),
        ("FINISH", finish.to_owned()),
        ("TILE", variant.0.to_string()),
        ("KP_STAGES", TILES[usize::from(variant.0)].1.to_string()),
    ];
    Build { source: &SOURCE, entry: "sm120", defines }
}

/// The builds for all types, but for those of wide numbers after the sums.
pub(super) fn builds() -> Vec<Listed> {
    let types = [
        "e4m3@mx:e4m3@mx",
        "e4m3@mx:e5m2@mx",
        "e5m2@mx:e4m3@mx",
        "e5m2@mx:e5m2@mx",
        "e2m1@mx:e2m1@mx",
        "e2m1@nv:e2m1@nv",
    ];
    let mut builds = Vec::new();
    for types in types {
        let problem: GemmProblem = format!("gemm 1x128x128x128 {types}:f32 b=col").parse().expect("a problem");
        let variants = (0..TILES.len() as u8).map(Variant);
        builds.extend(variants.map(|v| Listed::new("gemm/sm120", v, build(problem.spec(), "float", v))));
    }
    builds
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows and columns of the fragments that lanes of a warp hold scales of, and which lanes an instruction takes them from.
    ///
    /// Sections 9.7.14.3 (which threads of a quad contribute) and 9.7.14.5.10, 9.7.14.5.11 (rows and columns of a quad's elements) of the PTX
    /// ISA: of the two threads that contribute A's, the first has the row of the quad's first elements, the second that of its last.
    #[test]
    fn lanes_hold_the_scales_that_instructions_take_from_them() {
        for (edge, _) in TILES {
            let (fragments_m, fragments_n) = (edge / 2 / 16, edge / 4 / 8);
            // As the source has them: register i of A, j of B, in each lane.
            let row = |i: u32, lane: u32| (2 * i + lane % 4 / 2) * 16 + lane % 4 % 2 * 8 + lane / 4;
            let column = |j: u32, lane: u32| (4 * j + lane % 4) * 8 + lane / 4;
            for (fragment, quad) in (0..fragments_m).flat_map(|f| (0..8).map(move |q| (f, q))) {
                let (register, thread) = (fragment / 2, fragment % 2);
                for (half, from) in [(0, 2 * thread), (1, 2 * thread + 1)] {
                    assert_eq!(row(register, quad * 4 + from), fragment * 16 + quad + 8 * half);
                }
            }
            for (fragment, quad) in (0..fragments_n).flat_map(|f| (0..8).map(move |q| (f, q))) {
                let (register, thread) = (fragment / 4, fragment % 4);
                assert_eq!(column(register, quad * 4 + thread), fragment * 8 + quad);
            }
        }
    }

    /// Words of four scales, and the first of them that an instruction needs.
    #[test]
    fn instructions_need_scales_of_one_word() {
        for (scales, k, block) in [(1_u32, 32_u32, 32_u32), (2, 64, 32), (4, 64, 16)] {
            assert_eq!(scales * block, k);
            for step in 0..8 {
                let (stage, in_stage) = (step / 4, step % 4);
                let (word, first) = (stage * scales + in_stage * scales / 4, in_stage * scales % 4);
                assert_eq!(word * 4 + first, step * scales, "scales from the beginning of k");
                assert!(first + scales <= 4 && first.is_multiple_of(scales));
            }
        }
    }
}
