//! Rotates pairs of numbers by the token's position: see `kernels/rope/glsl/pairs.comp`. Limits: f32, f16 and bf16.

use crate::{
    launch::{Arguments, Once, planned, push},
    layouts::{counts, reads},
    pipelines::Build,
    shaders::{Shader, shader},
};
use kp_hal::{
    Caps, Device, Kernel, Plan, Result, Support, Variant, Variants,
    op::{Rope, RopeArgs, RopePairs, RopeProblem},
    source_hash,
};
use std::sync::Arc;

/// The kernel that runs on every device.
pub(crate) struct Pairs;

static SHADER: Shader = shader!("rope", "pairs");

push! {
    /// Arguments of the shader.
    struct RopePush {
        x: u64,
        y: u64,
        turns: u64,
        cosines: u64,
        sines: u64,
        tokens: u32,
        heads: u32,
        dim: u32,
        rotated: u32,
        positions: u32,
        x_ld: u32,
        y_ld: u32,
        unused: u32,
    }
}

impl Arguments<Rope> for RopePush {
    fn with(self, args: &RopeArgs<'_>) -> Self {
        Self {
            x: args.x.addr(),
            y: args.y.addr(),
            turns: args.positions.addr(),
            cosines: args.cos.addr(),
            sines: args.sin.addr(),
            ..self
        }
    }
}

impl Kernel<Rope> for Pairs {
    fn name(&self) -> &'static str {
        "pairs"
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("pairs.rs")) ^ SHADER.hash().rotate_left(1) }
    }

    fn supports(&self, _: &Caps, p: &RopeProblem) -> Support {
        counts(&[("tokens", p.tokens), ("heads", p.heads), ("dim", p.dim)])?;
        reads(&[("x", p.x.dtype()), ("y", p.y.dtype())])?;
        Ok(Variants::ONE)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &RopeProblem, variant: Variant) -> Result<Plan<Rope>> {
        let adjacent = u32::from(p.pairs == RopePairs::Adjacent);
        let constants = vec![p.x.dtype() as u32, p.y.dtype() as u32, adjacent, p.inverse.into()];
        let per_head = u64::from(p.rotated / 2 + (p.dim - p.rotated));
        let items = (u64::from(p.tokens) * u64::from(p.heads)).saturating_mul(per_head).div_ceil(256);
        let build = Build { shader: &SHADER, constants, subgroup: None };
        let push = RopePush {
            tokens: p.tokens,
            heads: p.heads,
            dim: p.dim,
            rotated: p.rotated,
            positions: p.positions,
            x_ld: p.x.ld,
            y_ld: p.y.ld,
            ..RopePush::default()
        };
        let code = Once::new(device, self.name(), &build, items, push)?;
        // SAFETY: the shader touches what the spec names, and has no scratch.
        Ok(unsafe { planned(self.name(), variant, device.id(), p, 0, Box::new(code)) })
    }
}
