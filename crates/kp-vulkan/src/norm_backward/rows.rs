//! Gradients of norms by their input, row by row, then by weight and bias, column by column: see `kernels/norm_backward/glsl`.
//! Limits: f32, f16 and bf16.

use super::columns::COLUMNS;
use crate::{
    device::VulkanDevice,
    launch::{addr, groups, planned, push},
    layouts::{at_once, counts, reads, row_runs},
    pipelines::{Build, Function},
    queue::VulkanQueue,
    shaders::{Shader, shader},
};
use kp_hal::{
    Caps, DType, Device, Kernel, Launch, Plan, Queue, Result, SliceMut, Support, Variant, Variants,
    op::{NormBackward, NormBackwardArgs, NormBackwardProblem, Rows as Lines},
    source_hash,
};
use std::sync::Arc;

/// The kernel that runs on every device.
pub(crate) struct Rows;

static ROWS: Shader = shader!("norm_backward", "rows", open 6 but [0]);

push! {
    /// Arguments of `rows.comp`.
    struct RowsPush {
        x: u64,
        grad_y: u64,
        grad_x: u64,
        weight: u64,
        kept: u64,
        rows: u32,
        cols: u32,
        x_ld: u32,
        grad_ld: u32,
        eps: f32,
        unused: u32,
    }
}

push! {
    /// Arguments of `columns.comp`.
    struct ColumnsPush {
        x: u64,
        grad_y: u64,
        grad_weight: u64,
        grad_bias: u64,
        kept: u64,
        parts: u64,
        rows: u32,
        cols: u32,
        x_ld: u32,
        grad_ld: u32,
        runs: u32,
        run_rows: u32,
    }
}

/// Threads of a group of `columns.comp`, and so columns.
const COLUMN_THREADS: u32 = 64;

/// Rows of a run, and runs: a function of how many rows there are alone, so that the order of sums is.
fn runs(rows: u32) -> (u32, u32) {
    let run_rows = rows.div_ceil(64).max(16);
    (run_rows, rows.div_ceil(run_rows))
}

impl Kernel<NormBackward> for Rows {
    fn name(&self) -> &'static str {
        "rows"
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("rows.rs")) ^ ROWS.hash().rotate_left(1) ^ COLUMNS.hash().rotate_left(2) }
    }

    fn supports(&self, _: &Caps, p: &NormBackwardProblem) -> Support {
        counts(&[("rows", p.rows), ("cols", p.cols)])?;
        reads(&[("x", p.x.dtype()), ("grad_y", p.grad_y.dtype()), ("weight", p.weight.unwrap_or(DType::F32))])?;
        Ok(Variants::ONE)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &NormBackwardProblem, variant: Variant) -> Result<Plan<NormBackward>> {
        let vulkan: &VulkanDevice = device.downcast_ref().expect("a device of this backend");
        let (most, align) = (vulkan.max_groups(), p.align().bytes());
        let [x, grad, weight] = [p.x.dtype(), p.grad_y.dtype(), p.weight.unwrap_or(DType::F32)].map(|t| t as u32);
        let by_column = p.weight.is_some() || p.bias;
        let tight = Lines { ld: p.cols, ..p.x };
        let wide = align >= 16 && [&p.x, &p.grad_y, &tight].iter().all(|lines| at_once(lines, align));
        let flags = u32::from(p.weight.is_some()) | u32::from(by_column) << 1 | u32::from(wide) << 2;
        let (threads, _) = row_runs(device.caps(), p.cols);
        let constants = vec![threads, x, grad, weight, p.kind as u32, flags];
        let rows = vulkan.function(&Build { shader: &ROWS, constants, subgroup: None })?;
        let wanted = u32::from(p.weight.is_some()) | u32::from(p.bias) << 1;
        let step = |last: bool| {
            let constants = vec![x, grad, wanted, last.into()];
            vulkan.function(&Build { shader: &COLUMNS, constants, subgroup: None })
        };
        let (run_rows, runs) = runs(p.rows);
        let pieces = u64::from(p.cols.div_ceil(COLUMN_THREADS));
        let columns = match by_column && p.cols > 0 {
            true => Some([(step(false)?, groups(pieces * u64::from(runs), most)), (step(true)?, groups(pieces, most))]),
            false => None,
        };
        let (rows_of, cols) = (p.rows, p.cols);
        let code = Code {
            rows: (rows, if cols > 0 { groups(rows_of.into(), most) } else { 0 }),
            columns,
            kept_bytes: 8 * u64::from(rows_of),
            row_push: RowsPush {
                rows: rows_of,
                cols,
                x_ld: p.x.ld,
                grad_ld: p.grad_y.ld,
                eps: p.eps.get(),
                ..RowsPush::default()
            },
            column_push: ColumnsPush {
                rows: rows_of,
                cols,
                x_ld: p.x.ld,
                grad_ld: p.grad_y.ld,
                runs,
                run_rows,
                ..ColumnsPush::default()
            },
        };
        let scratch = if by_column { code.kept_bytes + 8 * u64::from(runs) * u64::from(cols) } else { 0 };
        // SAFETY: the shaders touch what the spec names, and of scratch the parts that were counted.
        Ok(unsafe { planned(self.name(), variant, device.id(), p, scratch, Box::new(code)) })
    }
}

/// The launches of a plan: functions with their groups.
struct Code {
    rows: (Function, u32),
    /// Runs, then all of them; if weight or bias have gradients.
    columns: Option<[(Function, u32); 2]>,
    /// Bytes of scratch before the runs' sums.
    kept_bytes: u64,
    row_push: RowsPush,
    column_push: ColumnsPush,
}

impl Launch<NormBackward> for Code {
    unsafe fn launch(&self, queue: &mut dyn Queue, args: &NormBackwardArgs<'_>) -> Result<()> {
        let queue: &mut VulkanQueue = queue.downcast_mut().expect("same device, so same backend");
        let written = |slice: &Option<SliceMut<'_>>| slice.as_ref().map_or(0, SliceMut::addr);
        // Without rows there may be none, and nobody looks at it.
        let scratch = if self.columns.is_some() && self.column_push.rows > 0 { queue.scratch_addr() } else { 0 };
        let (mut row, mut column) = (self.row_push, self.column_push);
        (row.x, row.grad_y, row.grad_x) = (args.x.addr(), args.grad_y.addr(), args.grad_x.addr());
        (row.weight, row.kept) = (addr(&args.weight), scratch);
        (column.x, column.grad_y) = (row.x, row.grad_y);
        (column.grad_weight, column.grad_bias) = (written(&args.grad_weight), written(&args.grad_bias));
        (column.kept, column.parts) = (scratch, scratch + self.kept_bytes);
        if self.rows.1 > 0 {
            // SAFETY: the function takes these arguments and came from the plan's device; the rest is the caller's promise.
            unsafe { queue.launch("rows", self.rows.0, self.rows.1, &row) }?;
        }
        for (function, groups) in self.columns.into_iter().flatten().filter(|(_, groups)| *groups > 0) {
            // SAFETY: as above.
            unsafe { queue.launch("columns", function, groups, &column) }?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn runs_are_few_and_not_short() {
        assert_eq!([0, 1, 17, 4096, 1 << 20].map(super::runs), [(16, 0), (16, 1), (16, 2), (64, 64), (1 << 14, 64)]);
    }
}
