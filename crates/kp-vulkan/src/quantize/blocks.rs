//! Codes and scales, block by block: see `kernels/quantize/glsl/blocks.comp`. Limits: no f64; blocks of an even number of columns where
//! two codes share a byte.

use crate::{
    device::VulkanDevice,
    launch::{addr, groups, planned, push},
    layouts::{MOST_KEPT, RUN, counts, reads, scale_order, whole_runs},
    pipelines::{Build, Function},
    queue::VulkanQueue,
    shaders::{Shader, shader},
};
use kp_hal::{
    Caps, DType, Device, Error, Kernel, Launch, Plan, Queue, Result, SliceMut, Support, Unsupported, Variant, Variants,
    op::{Overflow, Quantize, QuantizeArgs, QuantizeProblem, ScaleLayout, Scales, Scheme},
    source_hash,
};
use std::sync::Arc;

/// The kernel that runs on every device.
pub(crate) struct Blocks;

static SHADER: Shader = shader!("quantize", "blocks", open 11 but [7]);

push! {
    /// Arguments of the shader.
    struct QuantizePush {
        x: u64,
        q: u64,
        scales: u64,
        global: u64,
        zeros: u64,
        whole: u64,
        rows: u32,
        cols: u32,
        x_ld: u32,
        q_ld: u32,
        block_rows: u32,
        block_cols: u32,
        blocks_down: u32,
        blocks_across: u32,
        across_inverse: u32,
        across_shift: u32,
    }
}

/// Threads of a group.
const THREADS: u32 = 256;

/// Columns that a group takes where blocks do not say: as many as its lanes keep.
const PIECE: u32 = THREADS * RUN * MOST_KEPT;

/// Whether one scale, or a part of all scales, needs the largest number of all.
fn has_whole(p: &QuantizeProblem) -> bool {
    p.scales == Scales::Computed && matches!(p.q.format.scheme, Scheme::Tensor | Scheme::Nv)
}

/// Pieces of rows, of `PIECE` columns each: where blocks do not matter.
fn pieces(p: &QuantizeProblem) -> ((u32, u32), (u32, u32)) {
    ((1, PIECE), (p.rows, p.cols.div_ceil(PIECE)))
}

/// What is worked on at once: blocks of so many rows and columns, so many down and across.
fn blocks(p: &QuantizeProblem) -> ((u32, u32), (u32, u32)) {
    // Somebody stores what belongs to all, even where there is nothing else.
    let least = u32::from(has_whole(p));
    let (block, (down, across)) = match p.q.format.scheme {
        Scheme::None | Scheme::Tensor => pieces(p),
        _ => {
            let ((rows, cols), counts) = (p.q.format.block(), p.q.format.blocks(p.rows, p.cols));
            ((rows, cols.min(p.cols)), counts)
        }
    };
    (block, (down.max(least), across.max(least)))
}

/// `n / divisor` as a product and a shift of 64 bits, for `n` below 2^31.
fn inverse(divisor: u32) -> (u32, u32) {
    let shift = 31 + divisor.max(1).next_power_of_two().ilog2();
    let inverse = (1 << shift) / u64::from(divisor.max(1)) + 1;
    (u32::try_from(inverse).expect("a divisor is more than half of the next power of two"), shift)
}

/// Runs that a lane keeps, at most.
const MOST: u64 = 8;

/// Lanes of a block, and runs that each keeps; 0 if they are too many. Every lane works out its block's scale, so several runs are
/// better than one, where there are `blocks` enough for all of a device's units.
fn lanes((rows, cols): (u32, u32), blocks: u64, units: u32) -> (u32, u32) {
    let runs = (u64::from(rows) * u64::from(cols.div_ceil(RUN))).max(1);
    // A block of many lanes has neighbours enough for loads in long pieces, however many runs each has.
    let most = if runs >= 512 { MOST } else { MOST_KEPT.into() };
    let each = if runs <= 2 { runs } else { (runs / 2).min(most) };
    let few = blocks * runs.div_ceil(each) < 1024 * u64::from(units) && runs <= 64;
    let wanted = if few { runs } else { runs.div_ceil(each) };
    let lanes = wanted.next_power_of_two().min(THREADS.into()) as u32;
    let kept = runs.div_ceil(lanes.into());
    (lanes, if kept <= MOST { kept as u32 } else { 0 })
}

impl Kernel<Quantize> for Blocks {
    fn name(&self) -> &'static str {
        "blocks"
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("blocks.rs")) ^ SHADER.hash().rotate_left(1) }
    }

    fn supports(&self, caps: &Caps, p: &QuantizeProblem) -> Support {
        counts(&[("rows", p.rows), ("cols", p.cols)])?;
        reads(&[("x", p.x.dtype())])?;
        if caps.max_threads < THREADS {
            let max = caps.max_threads.into();
            return Err(Unsupported::TooLarge { dim: "threads of a workgroup", max, got: THREADS.into() });
        }
        let (_, (down, across)) = blocks(p);
        let got = u64::from(down) * u64::from(across);
        if got >= 1 << 31 {
            return Err(Unsupported::TooLarge { dim: "blocks", max: (1 << 31) - 1, got });
        }
        let (_, cols) = p.q.format.block();
        if p.q.dtype().bits() == 4 && cols < p.cols && !cols.is_multiple_of(2) {
            return Err(Unsupported::Align { dim: "columns of a block", multiple: 2, got: cols.into() });
        }
        Ok(Variants::ONE)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &QuantizeProblem, variant: Variant) -> Result<Plan<Quantize>> {
        let vulkan: &VulkanDevice = device.downcast_ref().expect("a device of this backend");
        let format = p.q.format;
        let has = [
            format.scale_dtype().is_some(),
            format.has_global(),
            format.has_zero(),
            p.scales == Scales::Given,
            p.overflow == Overflow::Propagate,
            has_whole(p),
        ];
        let flags = has.into_iter().zip(0..).map(|(on, bit)| u32::from(on) << bit).sum();
        let align = p.align().bytes();
        let types = [p.x.dtype(), p.q.dtype(), format.scale_dtype().unwrap_or(DType::F32)].map(|dtype| dtype as u32);
        let launch = |look: bool| {
            let (block, (blocks_down, blocks_across)) = if look { pieces(p) } else { blocks(p) };
            let all = u64::from(blocks_down) * u64::from(blocks_across);
            let (lanes, kept) = lanes(block, all, device.caps().units);
            let whole = block.1.is_multiple_of(RUN) || block.1 >= p.cols;
            let runs = [&p.x, &p.q].map(|rows| whole && whole_runs(rows, p.cols, align));
            let full = p.rows > 0
                && p.cols > 0
                && p.rows.is_multiple_of(block.0)
                && p.cols.is_multiple_of(block.1)
                && u64::from(block.0) * u64::from(block.1) == u64::from(lanes * kept * RUN);
            let (order, flat) = (scale_order(format), block.0 == 1);
            let plain = [p.x.ld, p.q.ld] == [p.cols; 2] && [ScaleLayout::Inner as u32, 3].contains(&order);
            // Runs that are not loaded and stored at once are counted from a block's column.
            let tight = flat && full && plain && runs == [true; 2];
            let bits = [runs[0], runs[1], full, tight].into_iter().zip(0..);
            let runs = bits.map(|(on, bit)| u32::from(on) << bit).sum();
            let choices = [order, flags, p.rule as u32, lanes, kept, runs, look.into(), flat.into()];
            let constants = [types.as_slice(), &choices].concat();
            let (across_inverse, across_shift) = inverse(blocks_across);
            let push = QuantizePush {
                rows: p.rows,
                cols: p.cols,
                x_ld: p.x.ld,
                q_ld: p.q.ld,
                block_rows: block.0,
                block_cols: block.1,
                blocks_down,
                blocks_across,
                across_inverse,
                across_shift,
                ..QuantizePush::default()
            };
            let function = vulkan.function(&Build { shader: &SHADER, constants, subgroup: None })?;
            let groups = groups(all.div_ceil((THREADS / lanes).into()), vulkan.max_groups());
            Ok::<_, Error>(Part { function, groups, push })
        };
        let scratch = if has_whole(p) { 4 } else { 0 };
        let look = has_whole(p).then(|| launch(true)).transpose()?;
        let code = Code { name: self.name(), look, store: launch(false)?, scales: p.scales };
        // SAFETY: the shader touches what the spec names, and of scratch the number that is asked for.
        Ok(unsafe { planned(self.name(), variant, device.id(), p, scratch, Box::new(code)) })
    }
}

/// One launch of a plan.
struct Part {
    function: Function,
    groups: u32,
    push: QuantizePush,
}

/// The launches of a plan.
struct Code {
    name: &'static str,
    /// Finds the largest number of all.
    look: Option<Part>,
    store: Part,
    scales: Scales,
}

impl Launch<Quantize> for Code {
    unsafe fn launch(&self, queue: &mut dyn Queue, args: &QuantizeArgs<'_>) -> Result<()> {
        if self.store.groups == 0 {
            return Ok(());
        }
        let queue: &mut VulkanQueue = queue.downcast_mut().expect("same device, so same backend");
        let written = |slice: &Option<SliceMut<'_>>| slice.as_ref().map_or(0, |slice| slice.addr());
        let (scales, zeros) = match self.scales {
            Scales::Computed => (written(&args.scale), written(&args.zero)),
            Scales::Given => (addr(&args.given_scale), addr(&args.given_zero)),
        };
        let whole = if self.look.is_some() { queue.scratch_addr() } else { 0 };
        let (x, q, global) = (args.x.addr(), args.q.addr(), written(&args.global));
        let with = |push| QuantizePush { x, q, scales, global, zeros, whole, ..push };
        if let Some(look) = &self.look {
            // SAFETY: scratch has that many bytes, and lives as long as the queue.
            unsafe { queue.enqueue_fill(whole, 4, 0) }?;
            if look.groups > 0 {
                // SAFETY: the function takes these arguments and came from the plan's device; the rest is the caller's promise.
                unsafe { queue.launch(self.name, look.function, look.groups, &with(look.push)) }?;
            }
        }
        // SAFETY: as above.
        unsafe { queue.launch(self.name, self.store.function, self.store.groups, &with(self.store.push)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_divide_as_divisions_do() {
        for divisor in [1, 2, 3, 5, 7, 63, 64, 65, 1000, 4095, 65_537, (1 << 30) + 1, (1 << 31) - 1] {
            let (inverse, shift) = inverse(divisor);
            for n in [0, 1, divisor - 1, divisor, divisor + 1, 2 * divisor - 1, 123_456_789, (1 << 31) - 1] {
                let n = n.min((1 << 31) - 1);
                assert_eq!((u64::from(n) * u64::from(inverse)) >> shift, u64::from(n / divisor), "{n} / {divisor}");
            }
        }
    }

    #[test]
    fn lanes_keep_what_they_can() {
        let of = |block, blocks| lanes(block, blocks, 132);
        assert_eq!([(1, 16), (1, 32), (1, 128)].map(|block| of(block, 1)), [(2, 1), (4, 1), (16, 1)]);
        assert_eq!([(1, 16), (1, 32), (1, 128)].map(|block| of(block, 1 << 24)), [(1, 2), (2, 2), (4, 4)]);
        assert_eq!([(1, 4096), (1, 8192), (128, 128)].map(|block| of(block, 1)), [(64, 8), (128, 8), (256, 8)]);
        assert_eq!((of((1, 3), 1), of((256, 128), 1)), ((1, 1), (256, 0)));
    }
}
