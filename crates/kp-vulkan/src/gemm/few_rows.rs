//! D = A·B for up to eight rows, B's columns contiguous as weights are, at the speed of memory.
//!
//! See `kernels/gemm/glsl/few_rows.comp`. Limits: m up to 8; scales of B only, of blocks of eight elements of a column at least.

use super::form::{Main, product, weighed};
use crate::{
    launch::planned,
    layouts::{RUN, reads},
    shaders::{Shader, shader},
};
use kp_hal::{
    Caps, Device, DeviceKind, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Format, Gemm, GemmProblem, Matrix, Order, Repro, Spec},
    source_hash,
};
use std::sync::Arc;

/// The kernel for few rows.
pub(crate) struct FewRows;

static SHADER: Shader = shader!("gemm", "few_rows", open 12 but [], and [12, 15, 32, 33, 34, 35]);

/// Most rows: each is a sum for every column in every thread.
const MOST_ROWS: u32 = 8;

/// How a group works.
struct Group {
    /// Columns that it makes.
    cols: u32,
    threads: u32,
    /// Pieces of each column that a thread has under way.
    steps: u32,
    /// Bytes of a piece, at most.
    bytes: u32,
}

/// Variants; append only, because wisdom names them by their place. On an H200 the first is best for one row of 16-bit weights, the
/// second for 4 bits, the third for 8, the last for eight rows: few registers and many threads beat more loads under way.
const GROUPS: [Group; 4] = [
    Group { cols: 2, threads: 256, steps: 1, bytes: 16 },
    Group { cols: 4, threads: 128, steps: 1, bytes: 16 },
    Group { cols: 4, threads: 128, steps: 1, bytes: 8 },
    Group { cols: 2, threads: 128, steps: 2, bytes: 16 },
];

/// Threads of a subgroup, at least: as many sums as subgroups have room in shared memory.
const LEAST_LANES: u32 = 4;

/// Whether pieces of `per` runs of a line can be loaded at once: lines and matrices start where they may.
fn runs(matrix: &Matrix, batch: u32, align: u32, per: u32) -> bool {
    let bits = matrix.dtype().bits();
    let bytes = u64::from((per * bits).min(16));
    let starts = |elements: u64| (elements * u64::from(bits) / 8).is_multiple_of(bytes);
    u64::from(align) >= bytes && starts(matrix.ld.into()) && (batch == 1 || starts(matrix.stride))
}

/// A table of 16 numbers besides.
fn shared_bytes(rows: u32, group: &Group) -> u32 {
    4 * rows * group.cols * group.threads.div_ceil(LEAST_LANES) + 64
}

/// Runs of a piece: as many as have `bytes` bytes and share a scale.
fn per(format: Format, bytes: u32) -> u32 {
    let (_, depth) = format.block();
    let whole = |per: &u32| depth == u32::MAX || depth.is_multiple_of(RUN * per);
    [4, 2].into_iter().find(|per| per * format.dtype.bits() <= bytes && whole(per)).unwrap_or(1)
}

impl Kernel<Gemm> for FewRows {
    fn name(&self) -> &'static str {
        "few_rows"
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("few_rows.rs")) ^ SHADER.hash().rotate_left(1) }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        weighed(p.spec())?;
        reads(&[("a", p.a.dtype()), ("b", p.b.dtype())])?;
        let (_, depth) = p.b.format.block();
        if depth != u32::MAX && !depth.is_multiple_of(RUN) {
            let (multiple, got) = (RUN.into(), depth.into());
            return Err(Unsupported::Align { dim: "elements that share a scale", multiple, got });
        }
        if caps.lanes < LEAST_LANES {
            let (need, got) = (LEAST_LANES.into(), caps.lanes.into());
            return Err(Unsupported::TooSmall { dim: "subgroup", min: need, got });
        }
        if p.m > MOST_ROWS {
            return Err(Unsupported::TooLarge { dim: "m", max: MOST_ROWS.into(), got: p.m.into() });
        }
        if p.b.order != Order::Col {
            return Err(Unsupported::Layout { operand: "b", got: p.b.order.to_string() });
        }
        if p.repro() == Repro::BatchInvariant {
            return Err(Unsupported::Repro { asked: p.repro() });
        }
        let [need, have] = [shared_bytes(p.m, &GROUPS[1]), caps.shared_bytes].map(u64::from);
        let fits = |group: &Group| {
            // More sums than these have no registers.
            let sums = p.m * group.cols <= 32;
            sums && shared_bytes(p.m, group) <= caps.shared_bytes && group.threads <= caps.max_threads
        };
        // A driver for processors compiles each for seconds, and none is better than another there.
        let first = GROUPS.iter().position(fits).filter(|_| caps.kind == DeviceKind::SoftwareGpu);
        Variants::filter(GROUPS.len() as u8, Unsupported::SharedMemory { need, have }, |v| {
            let at = usize::from(v.0);
            fits(&GROUPS[at]) && first.is_none_or(|first| at == first)
        })
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, variant: Variant) -> Nanos {
        // The more codes a byte has and the more rows there are, the less is left of the memory's speed.
        let (best, slower, each) = match p.b.dtype().bits() {
            4 => (1, 2.6, 1.2),
            8 => (2, 1.5, 0.5),
            _ if p.m > 2 => (3, 1.2, 0.25),
            _ => (0, 1.2, 0.25),
        };
        let other = if variant.0 == best { 1.0 } else { 1.2 };
        let slower = slower + each * (f64::from(p.m) - 1.0).max(0.0);
        let moved = slower * p.bytes() as f64 / caps.bytes_per_s;
        Nanos::from_secs(caps.launch_ns as f64 * 1e-9 + other * moved)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        let Group { cols, threads, steps, bytes } = GROUPS[usize::from(variant.0)];
        let align = p.align().bytes();
        let along = p.a.order == Order::Row;
        let per = per(p.b.format, bytes);
        let [of_a, of_b] = [along && runs(&p.a, p.batch, align, 1), runs(&p.b, p.batch, align, 1)];
        let at_once = u32::from(of_a) | u32::from(of_b) << 1 | u32::from(runs(&p.b, p.batch, align, per)) << 2;
        let main = Main {
            name: self.name(),
            shader: &SHADER,
            constants: vec![p.m.max(1), cols, threads, at_once, steps, per],
            subgroup: None,
            tile: (MOST_ROWS, cols),
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

    #[test]
    fn runs_start_where_they_may() {
        let runs = |text: &str| {
            let p: GemmProblem = text.parse().expect(text);
            runs(&p.b, p.batch, p.align().bytes(), 1)
        };
        assert!(runs("gemm 1x1x8x64 bf16:bf16:bf16 b=col") && runs("gemm 2x1x8x64 f32:f32:f32 b=col"));
        assert!(!runs("gemm 1x1x8x60 bf16:bf16:bf16 b=col"), "every second column starts on 8 bytes");
        assert!(runs("gemm 1x1x8x60 f32:f32:f32 b=col"));
        assert!(!runs("gemm 1x1x8x64 bf16:bf16:bf16 b=col align=2"));
        assert!(!runs("gemm 2x1x8x64 bf16:bf16:bf16 b=col/64/513"));
        assert!(
            runs("gemm 1x1x8x64 f16:i4@g32/f16:f16 b=col align=4") && !runs("gemm 1x1x8x60 f16:i4@g32/f16:f16 b=col")
        );
    }
}
