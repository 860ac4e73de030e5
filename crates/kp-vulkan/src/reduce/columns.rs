//! Each column, or each segment of its rows, to one number: see `kernels/reduce/glsl/columns.comp`. Limits: f32, f16 and bf16.

use super::ReducePush;
use crate::{
    launch::{Once, planned},
    layouts::{RUN, counts, reads, whole_runs},
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

/// Runs of a tile's row: many read memory in longer pieces, few leave work for more groups.
fn across(caps: &Caps, cols: u32, segments: u32) -> u32 {
    let tiles = |across: u32| u64::from(segments) * u64::from(cols.div_ceil(RUN * across));
    [32, 16, 8].into_iter().find(|&across| tiles(across) >= 2 * u64::from(caps.units)).unwrap_or(4)
}

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
        let across = across(device.caps(), p.cols, segments);
        let runs = u32::from(whole_runs(&p.x, p.cols, p.align().bytes()));
        let constants = vec![segmented, p.x.dtype() as u32, p.y as u32, p.op as u32, across, runs];
        let build = Build { shader: &SHADER, constants, subgroup: None };
        let push = ReducePush { rows: p.rows, cols: p.cols, x_ld: p.x.ld, segments, ..ReducePush::default() };
        let items = u64::from(segments) * u64::from(p.cols.div_ceil(RUN * across));
        let code = Once::new(device, self.name(), &build, items, push)?;
        // SAFETY: the shader touches what the spec names, and has no scratch.
        Ok(unsafe { planned(self.name(), variant, device.id(), p, 0, Box::new(code)) })
    }
}
