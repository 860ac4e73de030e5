//! Starting a kernel: the shortest way from a plan to the driver.

use crate::{device::NvidiaDevice, queue::NvidiaQueue};
use cudarc::driver::sys::{
    CUfunction, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue,
    CUlaunchAttributeValue_union__bindgen_ty_1, CUlaunchConfig,
};
use kp_hal::Result;
use std::{ffi::c_void, mem::MaybeUninit, ptr};

/// A kernel of a loaded module. Its device keeps the module for as long as it lives, and a launch needs a queue of that
/// device, so a copy of the handle is enough.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    pub(crate) raw: CUfunction,
    pub(crate) resources: Resources,
}

// SAFETY: a function is a handle that the driver lets any thread use.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    /// What the compiler gave it.
    pub fn resources(&self) -> Resources {
        self.resources
    }

    /// The `CUfunction`, as its pointer value: for other libraries that launch it.
    pub fn raw_ptr(&self) -> u64 {
        self.raw as u64
    }
}

/// What one kernel takes of a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Resources {
    /// 32-bit registers of a thread.
    pub registers: u32,
    /// Shared memory fixed when compiling, in bytes of a block.
    pub static_shared_bytes: u32,
    /// Spills and arrays in local memory, in bytes of a thread.
    pub local_bytes: u32,
    /// Most threads a block may have.
    pub max_threads: u32,
}

/// The shape of one launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Blocks along x, y and z; none may be 0.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// Blocks of a cluster, along x; 1 for none. Divides `grid[0]`.
    pub cluster: u32,
    /// Programmatic dependent launch: may start before the kernel ahead of it in the stream has ended, and waits for its
    /// results with `griddepcontrol.wait`.
    pub programmatic: bool,
    /// All blocks run at once and may wait for one another.
    pub cooperative: bool,
}

impl Config {
    /// `grid` blocks of `block` threads, and nothing special.
    pub const fn new(grid: [u32; 3], block: u32) -> Self {
        Self { grid, block, shared_bytes: 0, cluster: 1, programmatic: false, cooperative: false }
    }
}

impl NvidiaDevice {
    /// Clusters of `function`, launched so, that the device holds at a time when nothing else runs.
    ///
    /// # Errors
    /// `Driver` if no such cluster fits.
    pub(crate) fn resident_clusters(&self, function: &Function, config: &Config) -> Result<u32> {
        let context = self.context();
        context.enter()?;
        let shape = CUlaunchAttributeValue_union__bindgen_ty_1 { x: config.cluster, y: 1, z: 1 };
        let mut attribute = CUlaunchAttribute {
            id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
            pad: [0; 4],
            value: CUlaunchAttributeValue { clusterDim: shape },
        };
        let raw = CUlaunchConfig {
            gridDimX: config.cluster,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: config.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: config.shared_bytes,
            hStream: ptr::null_mut(),
            attrs: &mut attribute,
            numAttrs: 1,
        };
        let mut clusters = 0;
        // SAFETY: the function is of this device, and the driver only reads the launch's shape.
        unsafe { context.api().cuOccupancyMaxActiveClusters(&mut clusters, function.raw, &raw) }.ok()?;
        Ok(clusters.max(0) as u32)
    }
}

impl NvidiaQueue {
    /// Enqueues `function`. Does not allocate, look up or wait; `name` is what a fault will call it.
    ///
    /// # Errors
    /// `Fault` if earlier work failed, `Driver` if the driver refuses the launch, which leaves the queue usable.
    ///
    /// # Safety
    /// - `function` came from this queue's device.
    /// - `params` has a pointer to a value of the right type for each of its parameters, in order.
    /// - The memory that it reads and writes is alive until it has run, and nothing unordered with it writes what it
    ///   reads, or accesses what it writes.
    #[inline]
    pub unsafe fn launch(
        &mut self,
        name: &'static str,
        function: &Function,
        config: &Config,
        params: &mut [*mut c_void],
    ) -> Result<()> {
        self.usable()?;
        let context = self.context();
        let mut attributes = [const { MaybeUninit::<CUlaunchAttribute>::uninit() }; 3];
        let mut count = 0;
        let mut set = |id, value| {
            attributes[count].write(CUlaunchAttribute { id, pad: [0; 4], value });
            count += 1;
        };
        if config.cluster > 1 {
            let shape = CUlaunchAttributeValue_union__bindgen_ty_1 { x: config.cluster, y: 1, z: 1 };
            set(
                CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                CUlaunchAttributeValue { clusterDim: shape },
            );
        }
        if config.programmatic {
            let allowed = CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 };
            set(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, allowed);
        }
        if config.cooperative {
            set(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, CUlaunchAttributeValue { cooperative: 1 });
        }
        let raw = CUlaunchConfig {
            gridDimX: config.grid[0],
            gridDimY: config.grid[1],
            gridDimZ: config.grid[2],
            blockDimX: config.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: config.shared_bytes,
            hStream: self.stream().raw(),
            attrs: attributes.as_mut_ptr().cast(),
            numAttrs: count as u32,
        };
        // SAFETY: the driver copies attributes and parameters before it returns; the rest are the caller's promises.
        let status = context.retry(|| unsafe {
            context.api().cuLaunchKernelEx(&raw, function.raw, params.as_mut_ptr(), ptr::null_mut())
        });
        if status.is_ok() {
            self.launched(name);
            return Ok(());
        }
        Err(self.failed(status))
    }
}
