//! Rows of a table by index: see `kernels/gather/glsl/elements.comp`. Limits: types of 8 to 32 bits, of 4 too in the table, and of
//! i32 only copies.

use crate::{
    launch::{Arguments, Once, planned, push},
    layouts::{counts, reads, stores, tiles, whole_runs},
    pipelines::Build,
    shaders::{Shader, shader},
};
use kp_hal::{
    Caps, Device, Kernel, Plan, Result, Support, Variant, Variants,
    op::{Gather, GatherArgs, GatherProblem},
    source_hash,
};
use std::sync::Arc;

/// The kernel that runs on every device.
pub(crate) struct Elements;

static SHADER: Shader = shader!("gather", "elements");

push! {
    /// Arguments of the shader.
    struct GatherPush {
        table: u64,
        index: u64,
        y: u64,
        rows: u32,
        cols: u32,
        table_rows: u32,
        table_ld: u32,
        y_ld: u32,
        tiles_across: u32,
    }
}

impl Arguments<Gather> for GatherPush {
    fn with(self, args: &GatherArgs<'_>) -> Self {
        Self { table: args.table.addr(), index: args.index.addr(), y: args.y.addr(), ..self }
    }
}

impl Kernel<Gather> for Elements {
    fn name(&self) -> &'static str {
        "elements"
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("elements.rs")) ^ SHADER.hash().rotate_left(1) }
    }

    fn supports(&self, _: &Caps, p: &GatherProblem) -> Support {
        counts(&[("rows", p.rows), ("cols", p.cols), ("table_rows", p.table_rows)])?;
        if p.table.dtype() != p.y.dtype() {
            reads(&[("table", p.table.dtype())])?;
        }
        stores("y", p.y.format)?;
        Ok(Variants::ONE)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GatherProblem, variant: Variant) -> Result<Plan<Gather>> {
        let (align, bits) = (p.align().bytes(), p.table.dtype().bits());
        let runs = whole_runs(&p.table, p.cols, align) && whole_runs(&p.y, p.cols, align);
        let tiles = tiles(device.caps(), p.rows, p.cols, bits);
        let constants = vec![p.table.dtype() as u32, p.y.dtype() as u32, tiles.across, tiles.deep, runs.into()];
        let build = Build { shader: &SHADER, constants, subgroup: None };
        let push = GatherPush {
            rows: p.rows,
            cols: p.cols,
            table_rows: p.table_rows,
            table_ld: p.table.ld,
            y_ld: p.y.ld,
            tiles_across: tiles.tiles_across,
            ..GatherPush::default()
        };
        let code = Once::new(device, self.name(), &build, tiles.count, push)?;
        // SAFETY: the shader touches what the spec names, and has no scratch.
        Ok(unsafe { planned(self.name(), variant, device.id(), p, 0, Box::new(code)) })
    }
}
