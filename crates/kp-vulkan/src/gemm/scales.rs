//! The step before products of `coopmat_weights` where A is f16, of which the range is narrower than that of scales along k: those near 1,
//! and what sums are multiplied by instead. See `kernels/gemm/glsl/scales.comp`.

use crate::{
    device::VulkanDevice,
    launch::{groups, push},
    layouts::scale_order,
    pipelines::{Build, Function},
    queue::VulkanQueue,
    shaders::{Shader, shader},
};
use kp_hal::{
    DType, Device, Result,
    op::{Addend, GemmSpec, Scheme},
};

pub(super) static SCALES: Shader = shader!("gemm", "scales");

push! {
    /// Arguments, as the source declares them.
    struct ScalesPush {
        from: u64,
        global: u64,
        to: u64,
        factors: u64,
        all: u64,
        n: u32,
        cols: u32,
        blocks_across: u32,
        blocks_down: u32,
        from_type: u32,
        to_type: u32,
        order: u32,
        unit: f32,
    }
}

/// The type of the scales that products take, if they are made before.
pub(super) fn dtype(p: &GemmSpec) -> Option<DType> {
    let (format, (_, depth)) = (p.b.format, p.b.format.block());
    // Products of E2M1 and its scales are all numbers of f16 over 256.
    let exact = format.dtype == DType::E2m1 && format.scheme == Scheme::Nv;
    if p.a.dtype() != DType::F16 || depth == u32::MAX || exact {
        return None;
    }
    format.scale_dtype().map(|dtype| match dtype {
        DType::F16 | DType::E8m0 | DType::Ue4m3 => DType::F16,
        _ => DType::F32,
    })
}

/// Bytes of a float for each column, in whole pieces.
fn factor_bytes(p: &GemmSpec) -> u64 {
    (4 * u64::from(p.batch) * u64::from(p.n)).next_multiple_of(16)
}

/// Bytes of scratch that they take.
pub(super) fn bytes(p: &GemmSpec) -> u64 {
    dtype(p).map_or(0, |dtype| {
        let count = u64::from(p.batch) * p.b.format.scale_count(p.n, p.k);
        factor_bytes(p) + count * u64::from(dtype.bits() / 8)
    })
}

/// Where B's scales stand among the operands that a product does not always have: as `AT_B_SCALE` in `kernels/gemm/glsl/finish.glsl`.
fn at_scale(p: &GemmSpec) -> usize {
    let before = [matches!(p.c, Addend::Given(_)), p.epilogue.bias.is_some(), p.epilogue.residual.is_some()];
    before.into_iter().filter(|&has| has).count()
}

/// Threads of a group.
const THREADS: u32 = 256;

/// The launch of that step.
#[derive(Debug)]
pub(super) struct Scales {
    function: Function,
    groups: u32,
    push: ScalesPush,
    /// Where in scratch factors of columns start, and scales.
    factors: u64,
    at: u64,
    /// Where scales stand among a product's operands.
    operand: usize,
    has_global: bool,
}

impl Scales {
    /// Made ready for `p`, if it has the step and scales to make, its results in scratch from `at`.
    ///
    /// # Errors
    /// `Driver` if the driver refuses the kernel.
    pub(super) fn new(device: &VulkanDevice, p: &GemmSpec, at: u64) -> Result<Option<Self>> {
        let Some(to) = dtype(p) else { return Ok(None) };
        let (format, (cols, _)) = (p.b.format, p.b.format.block());
        let (blocks_across, blocks_down) = format.blocks(p.n, p.k);
        let all = u64::from(p.batch) * u64::from(blocks_across);
        // Of no columns or no groups there is no scratch either.
        if all == 0 {
            return Ok(None);
        }
        let build =
            Build { shader: &SCALES, constants: vec![format.has_global().into()], subgroup: Some(device.caps().lanes) };
        let push = ScalesPush {
            all,
            n: p.n,
            cols,
            blocks_across,
            blocks_down,
            from_type: format.scale_dtype().expect("scaled, as its scales have a type to become") as u32,
            to_type: to as u32,
            order: scale_order(format),
            // As `unit` in `kernels/gemm/glsl/coopmat_weights.glsl`.
            unit: match format.dtype {
                DType::E2m1 => 16384.0,
                DType::E4m3 => 256.0,
                _ => 1.0,
            },
            ..ScalesPush::default()
        };
        let items = all.div_ceil(u64::from(THREADS / device.caps().lanes));
        Ok(Some(Self {
            function: device.function(&build)?,
            groups: groups(items, device.max_groups()),
            push,
            factors: at + factor_bytes(p) - 4 * u64::from(p.batch) * u64::from(p.n),
            at: at + factor_bytes(p),
            operand: at_scale(p),
            has_global: format.has_global(),
        }))
    }

    /// Enqueues it: among a product's operands that not every problem has, scales are then what it makes.
    ///
    /// # Errors
    /// As [`VulkanQueue::launch`].
    ///
    /// # Safety
    /// - As for the launch of the product, of which the plan has asked for the scratch.
    pub(super) unsafe fn launch(&self, queue: &mut VulkanQueue, operands: &mut [u64]) -> Result<()> {
        let [factors, to] = [self.factors, self.at].map(|at| queue.scratch_addr() + at);
        let given = &mut operands[self.operand..];
        let global = if self.has_global { given[1] } else { 0 };
        let push = ScalesPush { from: given[0], global, to, factors, ..self.push };
        given[0] = to;
        // SAFETY: the caller's promise.
        unsafe { queue.launch("scales", self.function, self.groups, &push) }
    }
}
