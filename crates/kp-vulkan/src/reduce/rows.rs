//! Each row to one number: see `kernels/reduce/glsl/rows.comp`. Limits: f32, f16 and bf16.

use super::ReducePush;
use crate::{
    launch::{Once, planned},
    layouts::{counts, reads, row_runs, whole_runs},
    pipelines::Build,
    shaders::{Shader, shader},
};
use kp_hal::{
    Caps, Device, Kernel, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Reduce, ReduceProblem, Reduced},
    source_hash,
};
use std::sync::Arc;

/// The kernel for rows.
pub(crate) struct Rows;

static SHADER: Shader = shader!("reduce", "rows");

impl Kernel<Reduce> for Rows {
    fn name(&self) -> &'static str {
        "rows"
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("rows.rs")) ^ SHADER.hash().rotate_left(1) }
    }

    fn supports(&self, _: &Caps, p: &ReduceProblem) -> Support {
        if p.over != Reduced::Cols {
            return Err(Unsupported::Option { option: "over", got: p.over.to_string() });
        }
        counts(&[("rows", p.rows), ("cols", p.cols)])?;
        reads(&[("x", p.x.dtype()), ("y", p.y)])?;
        Ok(Variants::ONE)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &ReduceProblem, variant: Variant) -> Result<Plan<Reduce>> {
        let (threads, _) = row_runs(device.caps(), p.cols);
        let runs = whole_runs(&p.x, p.cols, p.align().bytes());
        let constants = vec![threads, p.x.dtype() as u32, p.y as u32, p.op as u32, runs.into()];
        let build = Build { shader: &SHADER, constants, subgroup: None };
        let push = ReducePush { rows: p.rows, cols: p.cols, x_ld: p.x.ld, segments: 1, ..ReducePush::default() };
        let code = Once::new(device, self.name(), &build, p.rows.into(), push)?;
        // SAFETY: the shader touches what the spec names, and has no scratch.
        Ok(unsafe { planned(self.name(), variant, device.id(), p, 0, Box::new(code)) })
    }
}
