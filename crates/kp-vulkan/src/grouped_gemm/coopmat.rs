//! Products of groups of rows on the matrix unit, by the shaders of `gemm`'s `coopmat` and `coopmat_weights`: each group has tiles of its
//! own, which are found on the device.

use crate::{
    caps::COOPMAT,
    gemm::{
        coopmat::{self, READING, TILES},
        coopmat_weights::{self, WIDENING},
    },
    shaders::Shader,
};
use kp_hal::{
    Caps, Device, DeviceKind, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{GemmSpec, GroupedGemm, GroupedGemmProblem, Spec},
    source_hash,
};
use std::sync::Arc;

/// A kernel of plain products whose tiles serve groups.
pub(crate) struct Coopmat {
    name: &'static str,
    code: u64,
    supports: fn(&Caps, &GemmSpec) -> Support,
    shader: fn(&GemmSpec) -> &'static Shader,
    /// Times what tiles of 16-bit floats take.
    slower: f64,
}

/// A and B of f16 or bf16.
pub(crate) static PLAIN: Coopmat =
    Coopmat { name: "coopmat", code: coopmat::CODE, supports: coopmat::supports, shader: coopmat::shader, slower: 1.0 };

/// B of 8 or 4 bits.
pub(crate) static WEIGHTS: Coopmat = Coopmat {
    name: "coopmat_weights",
    code: coopmat_weights::CODE,
    supports: coopmat_weights::supports,
    shader: coopmat_weights::shader,
    slower: WIDENING,
};

impl Kernel<GroupedGemm> for Coopmat {
    fn name(&self) -> &'static str {
        self.name
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("coopmat.rs")) }.rotate_left(9) ^ self.code
    }

    fn supports(&self, caps: &Caps, p: &GroupedGemmProblem) -> Support {
        let all = (self.supports)(caps, &p.spec().gemm)?;
        // A driver for processors compiles each for seconds, and none is better than another there.
        let first = all.iter().next().filter(|_| caps.kind == DeviceKind::SoftwareGpu);
        let never = Unsupported::Feature { need: COOPMAT };
        Variants::filter(TILES.len() as u8, never, |v| all.contains(v) && first.is_none_or(|first| v == first))
    }

    fn estimate(&self, caps: &Caps, p: &GroupedGemmProblem, variant: Variant) -> Nanos {
        let work = self.slower * TILES[usize::from(variant.0)].grouped_seconds(caps, p);
        let bytes = READING * p.bytes() as f64 / caps.bytes_per_s;
        Nanos::from_secs(caps.launch_ns as f64 * 1e-9 + work.max(bytes))
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GroupedGemmProblem, variant: Variant) -> Result<Plan<GroupedGemm>> {
        let shader = (self.shader)(&p.spec().gemm);
        let code = TILES[usize::from(variant.0)].grouped(device, p, self.name, shader)?;
        // SAFETY: the shader touches what the spec names, and has no scratch.
        Ok(unsafe { Plan::new(self.name, variant, device.id(), p, 0, code) })
    }
}
