//! What becomes of sums that blocks leave in shared memory: D, or finished numbers that wait in scratch to be scaled.
//!
//! `simt` and `sm80` have one argument block and end alike; see `kernels/gemm/cuda/simt_finish.cuh`. Scales that serve many
//! tiles, and bytes that hold two codes, are stored by the kernels of `simt_store.cu`, launched afterwards.

use super::simt::params::{Buffers, Params};
use crate::{
    compile::{Build, Listed, Source, source},
    device::NvidiaDevice,
    launch::{Config, Function},
    queue::NvidiaQueue,
};
use kp_hal::{
    DType, Device, Launch, Queue, Result, Variant,
    op::{Addend, Align, Gemm, GemmArgs, GemmSpec, GroupedGemm, GroupedGemmArgs, Grouping, Scheme},
};
use std::{ffi::c_void, sync::Arc};

static STORE: Source = source!("gemm/cuda/simt_store.cu", "gemm/cuda/simt.cuh", "common/cuda/numbers.cuh");

/// What a result depends on besides the code of the kernel that sums.
pub(crate) const CODE: u64 = super::hash(&STORE).rotate_left(2);

/// The kernels that store what waits in the scratch.
fn build(entry: &'static str, finish: &'static str) -> Build {
    Build { source: &STORE, entry, defines: vec![("FINISH", finish.to_owned())] }
}

/// Every build there is.
pub(super) fn builds() -> Vec<Listed> {
    let stores =
        ["float", "double"].into_iter().flat_map(|finish| ["simt_scales", "simt_codes"].map(|e| build(e, finish)));
    stores.map(|build| Listed::new("gemm/simt_store", Variant(0), build)).collect()
}

/// Whether what follows the sums is computed in f64: where f32 would lose what an operand holds.
pub(crate) fn finishes_wide(spec: &GemmSpec) -> bool {
    let wide = |t: DType| matches!(t, DType::F64 | DType::I32 | DType::I64);
    let epilogue = [spec.epilogue.bias, spec.epilogue.residual];
    let c = matches!(spec.c, Addend::Given(t) if wide(t));
    wide(spec.d.dtype()) || c || epilogue.into_iter().flatten().any(wide)
}

/// Whether D waits in scratch: for scales that serve many tiles, or the other half of its bytes.
pub(crate) fn is_staged(spec: &GemmSpec) -> bool {
    spec.d.format.scheme != Scheme::None || spec.d.dtype().bits() == 4
}

/// A product made ready.
pub(crate) struct Form {
    name: &'static str,
    params: Params,
    gemm: Stage,
    /// Scales and codes of a D that waits in scratch.
    scales: Option<Stage>,
    codes: Option<Stage>,
    pub(crate) scratch_bytes: u64,
}

/// One launch.
struct Stage {
    function: Function,
    config: Config,
}

impl Stage {
    fn new(device: &NvidiaDevice, build: &Build, blocks: u64, threads: u32) -> Result<Self> {
        // What is more than a grid holds, each block does in turn.
        let grid = blocks.min(i32::MAX as u64) as u32;
        Ok(Self { function: device.function(build)?, config: Config::new([grid, 1, 1], threads) })
    }
}

/// The launch that sums, of whichever kernel.
pub(crate) struct Main {
    pub(crate) name: &'static str,
    pub(crate) build: Build,
    /// Rows and columns of A·B that one block makes.
    pub(crate) tile: (u32, u32),
    pub(crate) threads: u32,
    /// Dynamic shared memory.
    pub(crate) shared_bytes: u32,
    /// Elements that are loaded at once where all are aligned.
    pub(crate) run: fn(DType) -> u32,
    /// `FINISH` of the source.
    pub(crate) finish: &'static str,
}

impl Form {
    pub(crate) fn new(
        device: &Arc<dyn Device>,
        spec: &GemmSpec,
        grouping: Option<Grouping>,
        align: Align,
        main: &Main,
    ) -> Result<Self> {
        let device: &NvidiaDevice = device.downcast_ref().expect("a device of this backend");
        let params = Params::of(spec, grouping, align, main.tile, main.run);
        let row_batch = if grouping == Some(Grouping::Contiguous) { 1 } else { u64::from(spec.batch) };
        let (m, cols, format) = (u64::from(spec.m), u64::from(spec.d_cols()), spec.d.format);
        let elements = row_batch * m * cols;
        let staged = is_staged(spec) && elements > 0;
        let written = staged && !matches!(format.scheme, Scheme::None | Scheme::Tensor);
        let (blocks_o, blocks_i) = format.blocks(spec.m, spec.d_cols());
        let blocks = row_batch * u64::from(blocks_o) * u64::from(blocks_i);
        let element = if main.finish == "double" { 8 } else { 4 };
        let stage = |entry, units: u64, per_block: u64| {
            let grid = units.div_ceil(per_block).min(MOST_STORING);
            Stage::new(device, &build(entry, main.finish), grid, 256)
        };
        let mut gemm = Stage::new(device, &main.build, params.tiles(), main.threads)?;
        gemm.config.shared_bytes = main.shared_bytes;
        Ok(Self {
            name: main.name,
            params,
            gemm,
            scales: written.then(|| stage("simt_scales", blocks, 8)).transpose()?,
            codes: staged.then(|| stage("simt_codes", elements, 256)).transpose()?,
            scratch_bytes: if staged { elements * element } else { 0 },
        })
    }

    /// # Safety
    /// As `Launch::launch`, whose arguments `buffers` are.
    unsafe fn enqueue(&self, queue: &mut dyn Queue, buffers: &Buffers) -> Result<()> {
        if self.params.tiles() == 0 {
            return Ok(());
        }
        let queue: &mut NvidiaQueue = queue.downcast_mut().expect("same device, so same backend");
        let stage = if self.scratch_bytes > 0 { queue.scratch() } else { 0 };
        let mut params = self.params.with(buffers, stage);
        let mut pointers = [(&raw mut params).cast::<c_void>()];
        for Stage { function, config } in
            [Some(&self.gemm), self.scales.as_ref(), self.codes.as_ref()].into_iter().flatten()
        {
            // SAFETY: the functions came from the plan's device and take `Params` alone; the rest is the caller's promise.
            unsafe { queue.launch(self.name, function, config, &mut pointers) }?;
        }
        Ok(())
    }
}

/// Most blocks of the kernels that store; their threads take several elements each.
const MOST_STORING: u64 = 1 << 16;

impl Launch<Gemm> for Form {
    unsafe fn launch(&self, queue: &mut dyn Queue, args: &GemmArgs<'_>) -> Result<()> {
        // SAFETY: passed on.
        unsafe { self.enqueue(queue, &Buffers::from(args)) }
    }
}

impl Launch<GroupedGemm> for Form {
    unsafe fn launch(&self, queue: &mut dyn Queue, args: &GroupedGemmArgs<'_>) -> Result<()> {
        // SAFETY: passed on.
        unsafe { self.enqueue(queue, &Buffers::from(args)) }
    }
}
