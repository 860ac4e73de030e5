//! Each column, or each segment of its rows, to one number: see `kernels/reduce/glsl/columns.comp`. Limits: f32, f16 and bf16.

use super::ReducePush;
use crate::{
    launch::Once,
    layouts::{counts, reads},
    pipelines::Build,
    shaders::{Shader, shader},
};
use kp_hal::{
    Caps, Device, Kernel, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Reduce, ReduceProblem, Reduced},
    source_hash,
};
use std::sync::Arc;

/// The kernel for columns and their segments.
pub(crate) struct Columns;

static SHADER: Shader = shader!("reduce", "columns");

impl Kernel<Reduce> for Columns {
    fn name(&self) -> &'static str {
        "columns"
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("columns.rs")) ^ SHADER.hash().rotate_left(1) }
    }

    fn supports(&self, _: &Caps, p: &ReduceProblem) -> Support {
        if p.over == Reduced::Cols {
            return Err(Unsupported::Option { option: "over", got: p.over.to_string() });
        }
        counts(&[("rows", p.rows), ("cols", p.cols)])?;
        reads(&[("x", p.x.dtype()), ("y", p.y)])?;
        Ok(Variants::ONE)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &ReduceProblem, variant: Variant) -> Result<Plan<Reduce>> {
        let (segmented, segments) = match p.over {
            Reduced::Segments(segments) => (1, segments),
            Reduced::Rows | Reduced::Cols => (0, 1),
        };
        let constants = vec![segmented, p.x.dtype() as u32, p.y as u32, p.op as u32];
        let build = Build { shader: &SHADER, constants, subgroup: None };
        let push = ReducePush { rows: p.rows, cols: p.cols, x_ld: p.x.ld, segments, ..ReducePush::default() };
        let code =
            Once::new(device, self.name(), &build, (u64::from(segments) * u64::from(p.cols)).div_ceil(256), push)?;
        // SAFETY: the shader touches what the spec names, and has no scratch.
        Ok(unsafe { Plan::new(self.name(), variant, device.id(), p, 0, Box::new(code)) })
    }
}
