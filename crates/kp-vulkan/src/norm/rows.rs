//! Layer, RMS and L2 normalization of rows: see `kernels/norm/glsl/rows.comp`. Limits: f32, f16 and bf16, and results that are not
//! scaled.

use crate::{
    launch::{Arguments, Once, addr, planned, push},
    layouts::{counts, reads, row_runs, stores, whole_runs},
    pipelines::Build,
    shaders::{Shader, shader},
};
use kp_hal::{
    Caps, DType, Device, Kernel, Plan, Result, Support, Variant, Variants,
    op::{Norm, NormArgs, NormProblem},
    source_hash,
};
use std::sync::Arc;

/// The kernel that runs on every device.
pub(crate) struct Rows;

static SHADER: Shader = shader!("norm", "rows", open 9 but [0, 7]);

push! {
    /// Arguments of the shader.
    struct NormPush {
        x: u64,
        y: u64,
        weight: u64,
        bias: u64,
        residual: u64,
        sum: u64,
        rows: u32,
        cols: u32,
        x_ld: u32,
        y_ld: u32,
        eps: f32,
        unused: u32,
    }
}

impl Arguments<Norm> for NormPush {
    fn with(self, args: &NormArgs<'_>) -> Self {
        Self {
            x: args.x.addr(),
            y: args.y.addr(),
            weight: addr(&args.weight),
            bias: addr(&args.bias),
            residual: addr(&args.residual),
            sum: args.sum.as_ref().map_or(0, |sum| sum.addr()),
            ..self
        }
    }
}

impl Kernel<Norm> for Rows {
    fn name(&self) -> &'static str {
        "rows"
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("rows.rs")) ^ SHADER.hash().rotate_left(1) }
    }

    fn supports(&self, _: &Caps, p: &NormProblem) -> Support {
        counts(&[("rows", p.rows), ("cols", p.cols)])?;
        let [weight, bias] = [p.weight, p.bias].map(|dtype| dtype.unwrap_or(DType::F32));
        reads(&[("x", p.x.dtype()), ("weight", weight), ("bias", bias)])?;
        stores("y", p.y.format)?;
        Ok(Variants::ONE)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &NormProblem, variant: Variant) -> Result<Plan<Norm>> {
        let [weight, bias] = [p.weight, p.bias].map(|dtype| dtype.unwrap_or(DType::F32));
        let types = [p.x.dtype(), p.y.dtype(), weight, bias].map(|dtype| dtype as u32);
        let has = [p.weight.is_some(), p.bias.is_some(), p.residual];
        let flags = has.into_iter().zip(0..).map(|(on, bit)| u32::from(on) << bit).sum();
        let (threads, kept) = row_runs(device.caps(), p.cols);
        let align = p.align().bytes();
        let runs = align >= 16 && whole_runs(&p.x, p.cols, align) && whole_runs(&p.y, p.cols, align);
        let constants = [[threads].as_slice(), &types, &[p.kind as u32, flags, kept, runs.into()]].concat();
        let build = Build { shader: &SHADER, constants, subgroup: None };
        let push = NormPush {
            rows: p.rows,
            cols: p.cols,
            x_ld: p.x.ld,
            y_ld: p.y.ld,
            eps: p.eps.get(),
            ..NormPush::default()
        };
        let code = Once::new(device, self.name(), &build, if p.cols > 0 { p.rows.into() } else { 0 }, push)?;
        // SAFETY: the shader touches what the spec names, and has no scratch.
        Ok(unsafe { planned(self.name(), variant, device.id(), p, 0, Box::new(code)) })
    }
}
