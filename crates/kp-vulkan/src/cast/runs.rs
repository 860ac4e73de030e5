//! Y = X in another type, both with rows contiguous or both with columns: see `kernels/cast/glsl/runs.comp`. Limits: types of 8 to 32
//! bits, of 4 too in X, and of i32 only copies; matrices of a batch one behind the other.

use crate::{
    launch::{Arguments, Once, planned, push},
    layouts::{counts, reads, stores, tile_bits, tiles, whole_runs},
    pipelines::Build,
    shaders::{Shader, shader},
};
use kp_hal::{
    Caps, Device, Kernel, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Cast, CastArgs, CastProblem, Matrix, Order, Overflow, Rows},
    source_hash,
};
use std::sync::Arc;

/// The kernel for matrices that lie alike.
pub(crate) struct Runs;

static SHADER: Shader = shader!("cast", "runs");

push! {
    /// Arguments of the shader.
    struct CastPush {
        x: u64,
        y: u64,
        rows: u32,
        cols: u32,
        x_ld: u32,
        y_ld: u32,
        tiles_across: u32,
        unused: u32,
    }
}

impl Arguments<Cast> for CastPush {
    fn with(self, args: &CastArgs<'_>) -> Self {
        Self { x: args.x.addr(), y: args.y.addr(), ..self }
    }
}

/// Lines of all matrices of a batch, and numbers of a line.
fn lines(p: &CastProblem) -> (u64, u32) {
    let (lines, numbers) = if p.y.order == Order::Row { (p.rows, p.cols) } else { (p.cols, p.rows) };
    (u64::from(p.batch) * u64::from(lines), numbers)
}

/// A matrix as lines one behind the other.
fn rows(matrix: &Matrix) -> Rows {
    Rows { format: matrix.format, ld: matrix.ld }
}

impl Kernel<Cast> for Runs {
    fn name(&self) -> &'static str {
        "runs"
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("runs.rs")) ^ SHADER.hash().rotate_left(1) }
    }

    fn supports(&self, _: &Caps, p: &CastProblem) -> Support {
        if p.x.order != p.y.order || !matches!(p.y.order, Order::Row | Order::Col) {
            return Err(Unsupported::Layout { operand: "y", got: p.y.order.to_string() });
        }
        let (all, numbers) = lines(p);
        let of_one = all / u64::from(p.batch.max(1));
        for (operand, matrix) in [("x", &p.x), ("y", &p.y)] {
            if p.batch > 1 && matrix.stride != of_one * u64::from(matrix.ld) {
                return Err(Unsupported::Option { option: operand, got: format!("a batch {} apart", matrix.stride) });
            }
        }
        counts(&[("rows of all matrices", u32::try_from(all).unwrap_or(u32::MAX)), ("cols", numbers)])?;
        if p.x.dtype() != p.y.dtype() {
            reads(&[("x", p.x.dtype())])?;
        }
        stores("y", p.y.format)?;
        Ok(Variants::ONE)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &CastProblem, variant: Variant) -> Result<Plan<Cast>> {
        let (all, cols) = lines(p);
        let lines = u32::try_from(all).expect("`supports` counted them");
        let align = p.align().bytes();
        let runs = whole_runs(&rows(&p.x), cols, align) && whole_runs(&rows(&p.y), cols, align);
        let tiles = tiles(device.caps(), lines, cols, tile_bits(p.x.dtype(), p.y.dtype()));
        let propagates = u32::from(p.overflow == Overflow::Propagate);
        let types = [p.x.dtype(), p.y.dtype()].map(|dtype| dtype as u32);
        let own = [propagates, tiles.across, tiles.deep, runs.into()];
        let build = Build { shader: &SHADER, constants: [types.as_slice(), &own].concat(), subgroup: None };
        let push = CastPush {
            rows: lines,
            cols,
            x_ld: p.x.ld,
            y_ld: p.y.ld,
            tiles_across: tiles.tiles_across,
            ..CastPush::default()
        };
        let code = Once::new(device, self.name(), &build, tiles.count, push)?;
        // SAFETY: the shader touches what the spec names, and has no scratch.
        Ok(unsafe { planned(self.name(), variant, device.id(), p, 0, Box::new(code)) })
    }
}
