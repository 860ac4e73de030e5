//! Y = X in another type and layout: see `kernels/cast/glsl/elements.comp`. Limits: types of 8 to 32 bits, of 4 too in X, and of i32
//! only copies.

use crate::{
    launch::{Arguments, Once, planned, push},
    layouts::{counts, form, pushed_ld, reads, stores},
    pipelines::Build,
    shaders::{Shader, shader},
};
use kp_hal::{
    Caps, Device, Kernel, Plan, Result, Support, Variant, Variants,
    op::{Cast, CastArgs, CastProblem, Order, Overflow},
    source_hash,
};
use std::sync::Arc;

/// The kernel that runs on every device.
pub(crate) struct Elements;

static SHADER: Shader = shader!("cast", "elements");

push! {
    /// Arguments of the shader.
    struct CastPush {
        x: u64,
        y: u64,
        x_stride: u64,
        y_stride: u64,
        batch: u32,
        rows: u32,
        cols: u32,
        x_ld: u32,
        y_ld: u32,
        unused: u32,
    }
}

impl Arguments<Cast> for CastPush {
    fn with(self, args: &CastArgs<'_>) -> Self {
        Self { x: args.x.addr(), y: args.y.addr(), ..self }
    }
}

impl Kernel<Cast> for Elements {
    fn name(&self) -> &'static str {
        "elements"
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("elements.rs")) ^ SHADER.hash().rotate_left(1) }
    }

    fn supports(&self, _: &Caps, p: &CastProblem) -> Support {
        counts(&[("batch", p.batch), ("rows", p.rows), ("cols", p.cols)])?;
        if p.x.dtype() != p.y.dtype() {
            reads(&[("x", p.x.dtype())])?;
        }
        stores("y", p.y.format)?;
        Ok(Variants::ONE)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &CastProblem, variant: Variant) -> Result<Plan<Cast>> {
        let propagates = u32::from(p.overflow == Overflow::Propagate);
        let constants = vec![p.x.dtype() as u32, p.y.dtype() as u32, form(&p.x), form(&p.y), propagates];
        let (rows, cols) = match p.y.order {
            Order::Row | Order::Col => (u64::from(p.rows), u64::from(p.cols)),
            Order::Panel { width, depth } => {
                (u64::from(p.rows).next_multiple_of(depth.into()), u64::from(p.cols).next_multiple_of(width.into()))
            }
        };
        let build = Build { shader: &SHADER, constants, subgroup: None };
        let push = CastPush {
            x_stride: p.x.stride,
            y_stride: p.y.stride,
            batch: p.batch,
            rows: p.rows,
            cols: p.cols,
            x_ld: pushed_ld(&p.x),
            y_ld: pushed_ld(&p.y),
            ..CastPush::default()
        };
        let code = Once::new(device, self.name(), &build, (u64::from(p.batch) * rows * cols).div_ceil(256), push)?;
        // SAFETY: the shader touches what the spec names, and has no scratch.
        Ok(unsafe { planned(self.name(), variant, device.id(), p, 0, Box::new(code)) })
    }
}
