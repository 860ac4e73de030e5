//! What Vulkan does not say of a device, asked of the device itself: see `kernels/common/glsl/probe.comp` and `lanes.comp`.

use crate::{
    commands::Commands,
    driver::{Logical, Status},
    launch::{push, record},
    memory::Memory,
    pipelines::{Build, Pipelines},
    shaders::{Shader, shader},
    timeline::Timelines,
};
use kp_hal::{Allocation, MemoryKind, Result};
use std::sync::Arc;

static CONVERSIONS: Shader = shader!("common", "probe");
static LANES: [Shader; 2] = [shader!("common", "lanes"), shader!("common", "lanes_bf16")];

push! {
    /// Arguments of the shaders.
    struct ProbePush {
        wrong: u64,
    }
}

/// Groups that look at all codes of f16.
const GROUPS: u32 = (1 << 16) / 256;

/// A device and what it takes to ask it something.
pub(crate) struct Asked<'a> {
    pub(crate) device: &'a Arc<Logical>,
    pub(crate) pipelines: &'a Pipelines,
    pub(crate) memory: &'a Arc<Memory>,
    pub(crate) timelines: &'a Arc<Timelines>,
}

impl Asked<'_> {
    /// Whether the device's own conversions of numbers are those that kp wants.
    ///
    /// # Errors
    /// `OutOfMemory`, `Driver`: it could not be asked.
    pub(crate) fn is_native(&self) -> Result<bool> {
        let build = Build { shader: &CONVERSIONS, constants: Vec::new(), subgroup: None };
        Ok(self.wrong(&build, GROUPS)? == 0)
    }

    /// Whether lanes have of matrices of 16×`n`×16, of bf16 or of f16, what kernels that fill them from registers want.
    ///
    /// # Errors
    /// `OutOfMemory`, `Driver`: it could not be asked.
    pub(crate) fn has_lanes(&self, bf16: bool, n: u32) -> Result<bool> {
        let build = Build { shader: &LANES[usize::from(bf16)], constants: vec![n], subgroup: Some(32) };
        Ok(self.wrong(&build, 1)? == 0)
    }

    /// The bits that a shader sets for what is not as it should be.
    fn wrong(&self, build: &Build, groups: u32) -> Result<u32> {
        let Self { device, pipelines, memory, timelines } = *self;
        let found = memory.alloc(4, MemoryKind::Pinned)?;
        let host = found.host().expect("pinned memory is the host's").cast::<u32>();
        let asked = || {
            let function = pipelines.function(build, false)?;
            let commands = Commands::start(device, timelines)?;
            // SAFETY: the memory is this function's alone, 4 bytes on a boundary of more.
            unsafe { host.write(0) };
            let push = ProbePush { wrong: found.addr() };
            // SAFETY: the function takes these arguments; the memory outlives the wait below.
            commands.record(|device, buffer| unsafe { record(device, buffer, function, groups, &push) })?;
            commands.finish()
        };
        asked().map_err(Status::error)?;
        // SAFETY: as above, and the device is done with it.
        let wrong = unsafe { host.read() };
        tracing::debug!(wrong, shader = build.shader.name, device = device.seen.facts.name, "a question to the device");
        Ok(wrong)
    }
}
