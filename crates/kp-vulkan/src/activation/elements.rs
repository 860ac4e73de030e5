//! y = act(x) · factor + residual, run by run: see `kernels/activation/glsl/elements.comp`. Limits: f32, f16 and bf16, and
//! results that are not scaled.

use crate::{
    launch::{Arguments, Once, addr, planned, push},
    layouts::{counts, reads, stores, tiles, whole_runs},
    pipelines::Build,
    shaders::{Shader, shader},
};
use kp_hal::{
    Caps, DType, Device, Kernel, Plan, Result, Support, Variant, Variants,
    op::{Activation, ActivationArgs, ActivationProblem, Gate, Rows},
    source_hash,
};
use std::sync::Arc;

/// The kernel that runs on every device.
pub(crate) struct Elements;

static SHADER: Shader = shader!("activation", "elements");

push! {
    /// Arguments of the shader.
    struct ActivationPush {
        x: u64,
        y: u64,
        factor: u64,
        residual: u64,
        rows: u32,
        cols: u32,
        x_ld: u32,
        y_ld: u32,
        tiles_across: u32,
        unused: u32,
    }
}

impl Arguments<Activation> for ActivationPush {
    fn with(self, args: &ActivationArgs<'_>) -> Self {
        Self { x: args.x.addr(), y: args.y.addr(), factor: addr(&args.factor), residual: addr(&args.residual), ..self }
    }
}

impl Kernel<Activation> for Elements {
    fn name(&self) -> &'static str {
        "elements"
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("elements.rs")) ^ SHADER.hash().rotate_left(1) }
    }

    fn supports(&self, _: &Caps, p: &ActivationProblem) -> Support {
        counts(&[("rows", p.rows), ("cols", p.cols)])?;
        let [factor, residual] = [p.factor, p.residual].map(|dtype| dtype.unwrap_or(DType::F32));
        reads(&[("x", p.x.dtype()), ("factor", factor), ("residual", residual)])?;
        stores("y", p.y.format)?;
        Ok(Variants::ONE)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &ActivationProblem, variant: Variant) -> Result<Plan<Activation>> {
        let [factor, residual] = [p.factor, p.residual].map(|dtype| dtype.unwrap_or(DType::F32));
        let types = [p.x.dtype(), p.y.dtype(), factor, residual].map(|dtype| dtype as u32);
        let flags = u32::from(p.factor.is_some()) | u32::from(p.residual.is_some()) << 1;
        let align = p.align().bytes();
        let tight = [p.factor, p.residual].into_iter().flatten().map(|dtype| Rows::tight(dtype, p.cols));
        // The second half of a row starts where rows of as many numbers do.
        let half = (p.gate == Gate::Halves).then(|| Rows::tight(p.x.dtype(), p.cols));
        let runs = [p.x, p.y].into_iter().chain(tight).chain(half).all(|rows| whole_runs(&rows, p.cols, align));
        let parts = if p.gate == Gate::None { 1 } else { 2 };
        let tiles = tiles(device.caps(), p.rows, p.cols, parts * p.x.dtype().bits());
        let own = [p.act as u32, p.gate as u32, flags, tiles.across, tiles.deep, runs.into()];
        let build = Build { shader: &SHADER, constants: [types.as_slice(), &own].concat(), subgroup: None };
        let push = ActivationPush {
            rows: p.rows,
            cols: p.cols,
            x_ld: p.x.ld,
            y_ld: p.y.ld,
            tiles_across: tiles.tiles_across,
            ..ActivationPush::default()
        };
        let code = Once::new(device, self.name(), &build, tiles.count, push)?;
        // SAFETY: the shader touches what the spec names, and has no scratch.
        Ok(unsafe { planned(self.name(), variant, device.id(), p, 0, Box::new(code)) })
    }
}
