//! D = A·B of whole numbers of 8 bits for up to eight rows, B's columns contiguous as weights are, by the device's own dot product.
//!
//! See `kernels/gemm/glsl/dot_few_rows.comp`. Limits: A and B of I8 or U8, dense, without zero points, their lines whole pieces of 16 bytes
//! that start on as many; m up to 8; scales of whole rows and columns at the finest.

use super::{full::Form, store::STORE};
use crate::{
    caps::{DOT8, FAST_DOT8},
    launch::planned,
    shaders::{Shader, shader},
};
use kp_hal::{
    Caps, DType, Device, DeviceKind, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Acc, Gemm, GemmProblem, GemmSpec, Matrix, Order, Repro, Sparsity, Spec},
    source_hash,
};
use std::sync::Arc;

/// The kernel for few rows of whole numbers.
pub(crate) struct DotFewRows;

static SHADER: Shader = shader!("gemm", "dot_few_rows", open 21 but []);

/// Rows that a form of the shader has: as many as there are, or the next of these.
const ROWS: [u32; 4] = [1, 2, 4, 8];

/// How a group works.
struct Group {
    /// Columns that it makes.
    cols: u32,
    threads: u32,
}

/// Variants; append only, because wisdom names them by their place. On an H200 they are equally fast.
const GROUPS: [Group; 3] =
    [Group { cols: 4, threads: 128 }, Group { cols: 2, threads: 128 }, Group { cols: 8, threads: 64 }];

/// Elements that are loaded at once, and their bytes.
const PIECE: u32 = 16;

/// Threads of a subgroup, at least: as many sums as subgroups have room in shared memory.
const LEAST_LANES: u32 = 4;

/// Whether a product is of codes that the device can multiply four at a time.
pub(super) fn is_dotted(spec: &GemmSpec) -> bool {
    let codes = |matrix: &Matrix| matches!(matrix.dtype(), DType::I8 | DType::U8) && !matrix.format.has_zero();
    spec.acc == Acc::I32 && spec.sparsity == Sparsity::Dense && codes(&spec.a) && codes(&spec.b)
}

/// Whether that is an instruction of the device.
pub(super) fn has_fast_dot(caps: &Caps, spec: &GemmSpec) -> bool {
    let need = match (spec.a.dtype(), spec.b.dtype()) {
        (DType::I8, DType::I8) => FAST_DOT8[0],
        (DType::U8, DType::U8) => FAST_DOT8[1],
        _ => FAST_DOT8[2],
    };
    caps.has(need)
}

fn rows(m: u32) -> u32 {
    ROWS.into_iter().find(|&rows| m <= rows).unwrap_or(ROWS[3])
}

/// Every subgroup's sums.
fn shared_bytes(m: u32, group: &Group) -> u32 {
    4 * rows(m) * group.cols * group.threads.div_ceil(LEAST_LANES)
}

fn form(p: &GemmProblem) -> Form<'_> {
    Form { spec: p.spec(), grouping: None }
}

impl Kernel<Gemm> for DotFewRows {
    fn name(&self) -> &'static str {
        "dot_few_rows"
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("dot_few_rows.rs")) ^ SHADER.hash().rotate_left(1) ^ STORE.hash().rotate_left(2) }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        for (operand, matrix, along) in [("a", &p.a, Order::Row), ("b", &p.b, Order::Col)] {
            if !matches!(matrix.dtype(), DType::I8 | DType::U8) {
                return Err(Unsupported::DType { operand, got: matrix.dtype() });
            }
            let (_, inner) = matrix.format.block();
            if inner < p.k || matrix.format.has_zero() {
                return Err(Unsupported::Scheme { operand, got: matrix.format.to_string() });
            }
            let whole = |elements: u64| elements.is_multiple_of(PIECE.into());
            if matrix.order != along || !whole(matrix.ld.into()) || (p.batch > 1 && !whole(matrix.stride)) {
                return Err(Unsupported::Layout { operand, got: matrix.order.to_string() });
            }
        }
        if p.sparsity != Sparsity::Dense {
            return Err(Unsupported::Option { option: "sparse", got: p.sparsity.to_string() });
        }
        if p.acc != Acc::I32 {
            return Err(Unsupported::Option { option: "acc", got: p.acc.to_string() });
        }
        for (dim, got) in [("k", p.k), ("align", p.align().bytes())] {
            if !got.is_multiple_of(PIECE) {
                return Err(Unsupported::Align { dim, multiple: PIECE.into(), got: got.into() });
            }
        }
        if p.m > ROWS[3] {
            return Err(Unsupported::TooLarge { dim: "m", max: ROWS[3].into(), got: p.m.into() });
        }
        if p.repro() == Repro::BatchInvariant {
            return Err(Unsupported::Repro { asked: p.repro() });
        }
        if !caps.has(DOT8) {
            return Err(Unsupported::Feature { need: DOT8 });
        }
        if caps.lanes < LEAST_LANES {
            let (min, got) = (LEAST_LANES.into(), caps.lanes.into());
            return Err(Unsupported::TooSmall { dim: "subgroup", min, got });
        }
        form(p).known()?;
        let [need, have] = [shared_bytes(p.m, &GROUPS[1]), caps.shared_bytes].map(u64::from);
        // A driver for processors compiles each for seconds, and none is better than another there.
        let variants = if caps.kind == DeviceKind::SoftwareGpu { 1 } else { GROUPS.len() as u8 };
        Variants::filter(variants, Unsupported::SharedMemory { need, have }, |v| {
            let group = &GROUPS[usize::from(v.0)];
            // More sums than these have no registers.
            let sums = rows(p.m) * group.cols <= 32;
            sums && shared_bytes(p.m, group) <= caps.shared_bytes && group.threads <= caps.max_threads
        })
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, variant: Variant) -> Nanos {
        // The more rows there are, the less is left of the memory's speed.
        let fast = if has_fast_dot(caps, p.spec()) { 1.0 } else { 3.0 };
        let slower = 1.0 + 0.05 * fast * f64::from(p.m);
        let other = if variant.0 == 0 { 1.0 } else { 1.2 };
        Nanos::from_secs(caps.launch_ns as f64 * 1e-9 + other * slower * p.bytes() as f64 / caps.bytes_per_s)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        let Group { cols, threads } = GROUPS[usize::from(variant.0)];
        let own = [rows(p.m), cols, threads];
        let code = form(p).ready(device, self.name(), &SHADER, &own, (ROWS[3], cols), None)?;
        // SAFETY: the shaders touch what the spec names, and the scratch that is asked for.
        Ok(unsafe { planned(self.name(), variant, device.id(), p, form(p).scratch_bytes(), Box::new(code)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_runs() {
        let mut caps = Caps::new(DeviceKind::Gpu, "vulkan1.4");
        (caps.max_threads, caps.shared_bytes, caps.lanes) = (1024, 32 << 10, 32);
        let runs = |caps: &Caps, text: &str| DotFewRows.supports(caps, &text.parse().expect(text)).is_ok();
        assert!(!runs(&caps, "gemm 1x1x64x64 i8:i8:i32 b=col"), "no such products");
        caps.set_features([DOT8]);
        assert!(
            runs(&caps, "gemm 1x1x64x64 i8:i8:i32 b=col") && runs(&caps, "gemm 1x8x64x64 i8@row:i8@row:bf16 b=col")
        );
        assert!(!runs(&caps, "gemm 1x9x64x64 i8:i8:i32 b=col"), "nine rows");
        assert!(!runs(&caps, "gemm 1x1x64x72 i8:i8:i32 b=col"), "half a piece");
        assert!(!runs(&caps, "gemm 1x1x64x64 i8:i8:i32"), "B by rows");
        assert!(!runs(&caps, "gemm 1x1x64x128 i8@g64/f32:i8@g64/f32:f32 b=col"), "scales along k");
    }

    #[test]
    fn an_instruction_is_one_for_its_signs() {
        let mut caps = Caps::new(DeviceKind::Gpu, "vulkan1.4");
        caps.set_features([DOT8, FAST_DOT8[0]]);
        let fast = |text: &str| has_fast_dot(&caps, text.parse::<GemmProblem>().expect(text).spec());
        assert!(fast("gemm 1x1x64x64 i8:i8:i32 b=col") && !fast("gemm 1x1x64x64 u8:i8:i32 b=col"));
    }
}
