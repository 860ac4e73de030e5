//! y = exp(scale · x − max) / Σ exp(scale · x − max) over each row, or its logarithm: see `kernels/softmax/glsl/rows.comp`.
//! Limits: f32, f16 and bf16.

use crate::{
    launch::{Arguments, Once, planned, push},
    layouts::{counts, reads, row_runs, whole_runs},
    pipelines::Build,
    shaders::{Shader, shader},
};
use kp_hal::{
    Caps, Device, Kernel, Plan, Result, Support, Variant, Variants,
    op::{Softmax, SoftmaxArgs, SoftmaxProblem},
    source_hash,
};
use std::sync::Arc;

/// The kernel that runs on every device.
pub(crate) struct Rows;

static SHADER: Shader = shader!("softmax", "rows", open 6 but [0, 4]);

push! {
    /// Arguments of the shader.
    struct SoftmaxPush {
        x: u64,
        y: u64,
        rows: u32,
        cols: u32,
        x_ld: u32,
        y_ld: u32,
        scale: f32,
        unused: u32,
    }
}

impl Arguments<Softmax> for SoftmaxPush {
    fn with(self, args: &SoftmaxArgs<'_>) -> Self {
        Self { x: args.x.addr(), y: args.y.addr(), ..self }
    }
}

impl Kernel<Softmax> for Rows {
    fn name(&self) -> &'static str {
        "rows"
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("rows.rs")) ^ SHADER.hash().rotate_left(1) }
    }

    fn supports(&self, _: &Caps, p: &SoftmaxProblem) -> Support {
        counts(&[("rows", p.rows), ("cols", p.cols)])?;
        reads(&[("x", p.x.dtype()), ("y", p.y.dtype())])?;
        Ok(Variants::ONE)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &SoftmaxProblem, variant: Variant) -> Result<Plan<Softmax>> {
        let (threads, kept) = row_runs(device.caps(), p.cols);
        let align = p.align().bytes();
        let runs = whole_runs(&p.x, p.cols, align) && whole_runs(&p.y, p.cols, align);
        let types = [p.x.dtype(), p.y.dtype()].map(|dtype| dtype as u32);
        let constants = [[threads].as_slice(), &types, &[p.log.into(), kept, runs.into()]].concat();
        let build = Build { shader: &SHADER, constants, subgroup: None };
        let push = SoftmaxPush {
            rows: p.rows,
            cols: p.cols,
            x_ld: p.x.ld,
            y_ld: p.y.ld,
            scale: p.scale.get(),
            ..SoftmaxPush::default()
        };
        let code = Once::new(device, self.name(), &build, if p.cols > 0 { p.rows.into() } else { 0 }, push)?;
        // SAFETY: the shader touches what the spec names, and has no scratch.
        Ok(unsafe { planned(self.name(), variant, device.id(), p, 0, Box::new(code)) })
    }
}
