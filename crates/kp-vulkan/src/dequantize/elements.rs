//! y = code · scale (· global), or (code − zero) · scale: see `kernels/dequantize/glsl/elements.comp`. Limits: results of f32, f16
//! and bf16.

use crate::{
    launch::{Arguments, Once, addr, planned, push},
    layouts::{RUN, counts, reads, scale_order, tile_bits, tiles, whole_runs},
    pipelines::Build,
    shaders::{Shader, shader},
};
use kp_hal::{
    Caps, DType, Device, Kernel, Plan, Result, Support, Variant, Variants,
    op::{Dequantize, DequantizeArgs, DequantizeProblem},
    source_hash,
};
use std::sync::Arc;

/// The kernel that runs on every device.
pub(crate) struct Elements;

static SHADER: Shader = shader!("dequantize", "elements");

push! {
    /// Arguments of the shader.
    struct DequantizePush {
        q: u64,
        y: u64,
        scales: u64,
        global: u64,
        zeros: u64,
        rows: u32,
        cols: u32,
        q_ld: u32,
        y_ld: u32,
        block_rows: u32,
        block_cols: u32,
        blocks_down: u32,
        blocks_across: u32,
        tiles_across: u32,
        unused: u32,
    }
}

impl Arguments<Dequantize> for DequantizePush {
    fn with(self, args: &DequantizeArgs<'_>) -> Self {
        let (scales, global, zeros) = (addr(&args.scale), addr(&args.global), addr(&args.zero));
        Self { q: args.q.addr(), y: args.y.addr(), scales, global, zeros, ..self }
    }
}

impl Kernel<Dequantize> for Elements {
    fn name(&self) -> &'static str {
        "elements"
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("elements.rs")) ^ SHADER.hash().rotate_left(1) }
    }

    fn supports(&self, _: &Caps, p: &DequantizeProblem) -> Support {
        counts(&[("rows", p.rows), ("cols", p.cols)])?;
        reads(&[("q", p.q.dtype()), ("y", p.y.dtype())])?;
        Ok(Variants::ONE)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &DequantizeProblem, variant: Variant) -> Result<Plan<Dequantize>> {
        let format = p.q.format;
        let scale = format.scale_dtype();
        let has = [scale.is_some(), format.has_global(), format.has_zero()];
        let flags = has.into_iter().zip(0..).map(|(on, bit)| u32::from(on) << bit).sum();
        let types = [p.q.dtype(), p.y.dtype(), scale.unwrap_or(DType::F32)].map(|dtype| dtype as u32);
        let ((block_rows, block_cols), (blocks_down, blocks_across)) = (format.block(), format.blocks(p.rows, p.cols));
        let align = p.align().bytes();
        let runs = whole_runs(&p.q, p.cols, align) && whole_runs(&p.y, p.cols, align);
        // Where all columns share a scale, whole runs do.
        let block = if block_cols == u32::MAX { 1 << 31 } else { block_cols };
        let block = if block.is_multiple_of(RUN) { block } else { 0 };
        // More than four runs in a thread have no registers, however few bytes they are.
        let tiles = tiles(device.caps(), p.rows, p.cols, tile_bits(p.q.dtype(), p.y.dtype()).max(16));
        let own = [scale_order(format), flags, tiles.across, tiles.deep, runs.into(), block, block_rows];
        let build = Build { shader: &SHADER, constants: [types.as_slice(), &own].concat(), subgroup: None };
        let push = DequantizePush {
            rows: p.rows,
            cols: p.cols,
            q_ld: p.q.ld,
            y_ld: p.y.ld,
            block_rows,
            block_cols,
            blocks_down,
            blocks_across,
            tiles_across: tiles.tiles_across,
            ..DequantizePush::default()
        };
        let code = Once::new(device, self.name(), &build, tiles.count, push)?;
        // SAFETY: the shader touches what the spec names, and has no scratch.
        Ok(unsafe { planned(self.name(), variant, device.id(), p, 0, Box::new(code)) })
    }
}
