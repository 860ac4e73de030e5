//! D = A·B of whole numbers of 8 bits on the matrix unit, through `VK_KHR_cooperative_matrix`.
//!
//! See `kernels/gemm/glsl/coopmat_whole.comp`. Limits: A and B of I8, dense, without zero points, with scales of whole rows and columns
//! at the finest, on a device whose driver lists a shape of I8 with sums of I32.

use super::{
    coopmat::{READING, TILES, Tile, countable},
    full::Form,
    store::STORE,
};
use crate::{
    caps::{COOPMAT, INT8, mma_shape},
    launch::planned,
    shaders::{Shader, shader},
};
use kp_hal::{
    Caps, DType, Device, DeviceKind, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    caps::MmaShape,
    op::{Acc, Gate, Gemm, GemmProblem, Matrix, Order, Sparsity, Spec},
    source_hash,
};
use std::sync::Arc;

/// The kernel for whole numbers on matrix units that subgroups share.
pub(crate) struct CoopmatWhole;

static SHADER: Shader = shader!("gemm", "coopmat_whole", open 21 but [], and [30]);

fn form(p: &GemmProblem) -> Form<'_> {
    Form { spec: p.spec(), grouping: None }
}

fn bits<const N: usize>(bits: [bool; N]) -> u32 {
    bits.into_iter().zip(0..).map(|(on, bit)| u32::from(on) << bit).sum()
}

/// Whether A and B lie across k, as `SIDES` of the shader.
fn sides(p: &GemmProblem) -> u32 {
    bits([p.a.order == Order::Col, p.b.order == Order::Row])
}

/// How A and B are brought, as `RUNS` of the shader.
fn runs(tile: &Tile, caps: &Caps, mma: &MmaShape, p: &GemmProblem) -> u32 {
    let align = p.align().bytes();
    let at_once = |matrix: &Matrix| {
        let whole = matrix.ld.is_multiple_of(PIECE) && (p.batch == 1 || matrix.stride.is_multiple_of(PIECE.into()));
        align >= PIECE && whole && !matches!(matrix.order, Order::Panel { .. })
    };
    // Halves of B's columns alternate, so that those of a piece are not neighbours.
    let neighbours = p.epilogue.gate != Gate::Halves || p.b.order == Order::Col;
    let (of_a, of_b) = (at_once(&p.a), neighbours && at_once(&p.b));
    let (a_across, b_across) = (p.a.order == Order::Col, p.b.order == Order::Row);
    let sides = (!a_across || p.m.is_multiple_of(PIECE)) && (!b_across || p.n.is_multiple_of(PIECE));
    let whole = of_a && of_b && sides && p.k.is_multiple_of(tile.depth(caps, mma)) && p.k > 0;
    bits([of_a, of_b, whole])
}

/// Elements that are brought at once, and their bytes.
const PIECE: u32 = 16;

impl Kernel<Gemm> for CoopmatWhole {
    fn name(&self) -> &'static str {
        "coopmat_whole"
    }

    fn code(&self) -> u64 {
        const {
            source_hash(include_bytes!("coopmat_whole.rs"))
                ^ SHADER.hash().rotate_left(1)
                ^ STORE.hash().rotate_left(2)
                ^ source_hash(include_bytes!("coopmat.rs")).rotate_left(3)
        }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        for (operand, matrix) in [("a", &p.a), ("b", &p.b)] {
            if matrix.dtype() != DType::I8 {
                return Err(Unsupported::DType { operand, got: matrix.dtype() });
            }
            let (_, inner) = matrix.format.block();
            if inner < p.k || matrix.format.has_zero() {
                return Err(Unsupported::Scheme { operand, got: matrix.format.to_string() });
            }
        }
        if p.sparsity != Sparsity::Dense {
            return Err(Unsupported::Option { option: "sparse", got: p.sparsity.to_string() });
        }
        if p.acc != Acc::I32 {
            return Err(Unsupported::Option { option: "acc", got: p.acc.to_string() });
        }
        let need = if caps.has(COOPMAT) { INT8 } else { COOPMAT };
        let mma = mma_shape(caps, DType::I8).filter(|_| caps.has(need)).ok_or(Unsupported::Feature { need })?;
        form(p).known()?;
        countable(p.spec())?;
        // In shared memory matrices start with 16 bytes of their lines, or with 8 of them where the shader has a form for that.
        let piece = if caps.kind == DeviceKind::SoftwareGpu { 8 } else { 16 };
        let starts = [
            ("a", &p.a, p.a.order != Order::Col || mma.m.is_multiple_of(piece)),
            ("b", &p.b, p.b.order != Order::Row || mma.n.is_multiple_of(piece)),
        ];
        for (operand, matrix, across) in starts {
            if !mma.k.is_multiple_of(piece) || !across {
                return Err(Unsupported::Layout { operand, got: matrix.order.to_string() });
            }
        }
        let need = TILES.iter().map(|tile| tile.shared_bytes(mma)).min().unwrap_or(0).into();
        let never = Unsupported::SharedMemory { need, have: caps.shared_bytes.into() };
        Variants::filter(TILES.len() as u8, never, |v| TILES[usize::from(v.0)].fits(caps, mma))
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, variant: Variant) -> Nanos {
        let bytes = READING * p.bytes() as f64 / caps.bytes_per_s;
        Nanos::from_secs(
            caps.launch_ns as f64 * 1e-9 + TILES[usize::from(variant.0)].seconds_in(caps, p.spec(), 1).max(bytes),
        )
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        let (caps, tile) = (device.caps(), &TILES[usize::from(variant.0)]);
        let mma = mma_shape(caps, DType::I8).expect("supported, so there is a shape");
        let own = [tile.constants(caps, mma, runs(tile, caps, mma, p)), vec![sides(p)]].concat();
        let code = form(p).ready(device, self.name(), &SHADER, &own, tile.size(), Some(caps.lanes))?;
        // SAFETY: the shaders touch what the spec names, and the scratch that is asked for.
        Ok(unsafe { planned(self.name(), variant, device.id(), p, form(p).scratch_bytes(), Box::new(code)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kp_hal::caps::MmaScope;

    #[test]
    fn what_the_driver_does_not_list_is_not_run() {
        let mut caps = Caps::new(DeviceKind::Gpu, "vulkan1.4");
        (caps.max_threads, caps.shared_bytes, caps.lanes) = (1024, 48 << 10, 32);
        let runs = |caps: &Caps, types: &str| {
            let p: GemmProblem = format!("gemm 1x64x64x64 {types}").parse().expect("a problem");
            CoopmatWhole.supports(caps, &p).is_ok()
        };
        let (a, d) = (DType::I8, DType::I32);
        caps.mma_shapes = vec![MmaShape { m: 16, n: 16, k: 32, a, b: a, d, scope: MmaScope::Subgroup }];
        caps.set_features([COOPMAT]);
        assert!(!runs(&caps, "i8:i8:i32"), "a type that no shader may name");
        caps.set_features([COOPMAT, INT8]);
        assert!(runs(&caps, "i8:i8:i32") && runs(&caps, "i8@row:i8@row:bf16"));
        assert!(!runs(&caps, "u8:i8:i32") && !runs(&caps, "i8@g32/f32:i8@g32/f32:f32"));
        caps.mma_shapes[0].d = DType::F32;
        assert!(!runs(&caps, "i8:i8:i32"), "sums of another type");
    }
}
