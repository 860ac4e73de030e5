//! D = A·B for up to eight rows, B's columns contiguous as weights are, at the speed of memory.
//!
//! See `kernels/gemm/glsl/few_rows.comp`. Limits: m up to 8; operands and results without scales.

use super::form::{Main, plain, product};
use crate::{
    layouts::reads,
    shaders::{Shader, shader},
};
use kp_hal::{
    Caps, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Gemm, GemmProblem, Matrix, Order, Repro, Spec},
    source_hash,
};
use std::sync::Arc;

/// The kernel for few rows.
pub(crate) struct FewRows;

static SHADER: Shader = shader!("gemm", "few_rows");

/// Most rows: each is a sum for every column in every thread.
const MOST_ROWS: u32 = 8;

/// Variants: columns and threads of a group; append only, because wisdom names them by their place.
const GROUPS: [(u32, u32); 2] = [(4, 64), (2, 128)];

/// Whether 16 bytes of a line can be loaded at once wherever a run starts: lines and matrices start on 16 bytes.
fn runs(matrix: &Matrix, batch: u32, align: u32) -> bool {
    let per_quad = 128 / matrix.dtype().bits();
    let whole = matrix.ld.is_multiple_of(per_quad) && (batch == 1 || matrix.stride.is_multiple_of(per_quad.into()));
    align >= 16 && whole
}

fn shared_bytes(rows: u32, (cols, threads): (u32, u32)) -> u32 {
    4 * rows * cols * threads
}

impl Kernel<Gemm> for FewRows {
    fn name(&self) -> &'static str {
        "few_rows"
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("few_rows.rs")) ^ SHADER.hash().rotate_left(1) }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        plain(p.spec())?;
        reads(&[("a", p.a.dtype()), ("b", p.b.dtype())])?;
        if p.m > MOST_ROWS {
            return Err(Unsupported::TooLarge { dim: "m", max: MOST_ROWS.into(), got: p.m.into() });
        }
        if p.b.order != Order::Col {
            return Err(Unsupported::Layout { operand: "b", got: p.b.order.to_string() });
        }
        if p.repro() == Repro::BatchInvariant {
            return Err(Unsupported::Repro { asked: p.repro() });
        }
        let [need, have] = [shared_bytes(p.m, GROUPS[1]), caps.shared_bytes].map(u64::from);
        Variants::filter(GROUPS.len() as u8, Unsupported::SharedMemory { need, have }, |v| {
            let group = GROUPS[usize::from(v.0)];
            shared_bytes(p.m, group) <= caps.shared_bytes && group.1 <= caps.max_threads
        })
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, variant: Variant) -> Nanos {
        // Memory, and arithmetic that is mostly unpacking, as often as there are rows; larger groups for small matrices.
        let rows = 1.0 + f64::from(p.m.max(1)) / 16.0;
        let few = f64::from(p.n / GROUPS[usize::from(variant.0)].0) < 4.0 * f64::from(caps.units);
        let busy = if few && variant.0 == 0 { 1.1 } else { 1.0 };
        Nanos::from_secs(caps.launch_ns as f64 * 1e-9 + rows * busy * p.bytes() as f64 / caps.bytes_per_s)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        let (cols, threads) = GROUPS[usize::from(variant.0)];
        let align = p.align().bytes();
        // Where a run of B starts, a quad of A must start too.
        let along = p.a.order == Order::Row && p.a.dtype().bits() >= p.b.dtype().bits();
        let at_once = u32::from(along && runs(&p.a, p.batch, align)) | u32::from(runs(&p.b, p.batch, align)) << 1;
        let main = Main {
            name: self.name(),
            shader: &SHADER,
            constants: vec![p.m.max(1), cols, threads, at_once],
            subgroup: None,
            tile: (MOST_ROWS, cols),
        };
        let code = product(device, p.spec(), main)?;
        // SAFETY: the shader touches what the spec names, and has no scratch.
        Ok(unsafe { Plan::new(self.name(), variant, device.id(), p, 0, code) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_start_on_sixteen_bytes() {
        let runs = |text: &str| {
            let p: GemmProblem = text.parse().expect(text);
            runs(&p.b, p.batch, p.align().bytes())
        };
        assert!(runs("gemm 1x1x8x64 bf16:bf16:bf16 b=col") && runs("gemm 2x1x8x64 f32:f32:f32 b=col"));
        assert!(!runs("gemm 1x1x8x60 bf16:bf16:bf16 b=col"), "every second column starts on 8 bytes");
        assert!(runs("gemm 1x1x8x60 f32:f32:f32 b=col"));
        assert!(!runs("gemm 1x1x8x64 bf16:bf16:bf16 b=col align=2"));
        assert!(!runs("gemm 2x1x8x64 bf16:bf16:bf16 b=col/64/513"));
    }
}
