//! Rotates pairs of numbers by the token's position, run of eight by run of eight: see `kernels/rope/glsl/runs.comp`. Limits: f32, f16
//! and bf16; heads of which runs start on 16 bytes.

use crate::{
    launch::{Arguments, Once, planned, push},
    layouts::{RUN, at_once, counts, reads, tiles},
    pipelines::Build,
    shaders::{Shader, shader},
};
use kp_hal::{
    Caps, Device, Kernel, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Rope, RopeArgs, RopePairs, RopeProblem},
    source_hash,
};
use std::sync::Arc;

/// The kernel for heads of whole runs.
pub(crate) struct Runs;

static SHADER: Shader = shader!("rope", "runs");

push! {
    /// Arguments of the shader.
    struct RopePush {
        x: u64,
        y: u64,
        turns: u64,
        cosines: u64,
        sines: u64,
        rows: u32,
        cols: u32,
        positions: u32,
        x_ld: u32,
        y_ld: u32,
        tiles_across: u32,
    }
}

/// Heads that a thread has, at most, as a power of two: more have no registers.
const MOST_TOGETHER: u32 = 2;

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

impl Kernel<Rope> for Runs {
    fn name(&self) -> &'static str {
        "runs"
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("runs.rs")) ^ SHADER.hash().rotate_left(1) }
    }

    fn supports(&self, _: &Caps, p: &RopeProblem) -> Support {
        counts(&[("tokens", p.tokens), ("heads", p.heads), ("dim", p.dim)])?;
        reads(&[("x", p.x.dtype()), ("y", p.y.dtype())])?;
        counts(&[("heads of all tokens", p.tokens.saturating_mul(p.heads))])?;
        for (dim, size, multiple) in [("rotated", p.rotated, 2 * RUN), ("dim", p.dim, RUN)] {
            if !size.is_multiple_of(multiple) {
                return Err(Unsupported::Align { dim, multiple: multiple.into(), got: size.into() });
            }
        }
        for (operand, rows) in [("x", &p.x), ("y", &p.y)] {
            if !at_once(rows, p.align().bytes()) {
                return Err(Unsupported::Layout { operand, got: format!("rows {} apart", rows.ld) });
            }
        }
        Ok(Variants::ONE)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &RopeProblem, variant: Variant) -> Result<Plan<Rope>> {
        let adjacent = u32::from(p.pairs == RopePairs::Adjacent);
        let (rows, cols) = (p.tokens * p.heads, p.rotated / 2 + (p.dim - p.rotated));
        // Heads that a thread turns by the same angles, so they divide those of a token.
        let together = 1 << p.heads.trailing_zeros().min(MOST_TOGETHER);
        let tiles = tiles(device.caps(), rows, cols, 64 / together);
        let types = [p.x.dtype(), p.y.dtype()].map(|dtype| dtype as u32);
        let own = [adjacent, p.inverse.into(), tiles.across, tiles.deep, p.heads, p.dim, p.rotated];
        let build = Build { shader: &SHADER, constants: [types.as_slice(), &own].concat(), subgroup: None };
        let push = RopePush {
            rows,
            cols,
            positions: p.positions,
            x_ld: p.x.ld,
            y_ld: p.y.ld,
            tiles_across: tiles.tiles_across,
            ..RopePush::default()
        };
        let code = Once::new(device, self.name(), &build, tiles.count, push)?;
        // SAFETY: the shader touches what the spec names, and has no scratch.
        Ok(unsafe { planned(self.name(), variant, device.id(), p, 0, Box::new(code)) })
    }
}
