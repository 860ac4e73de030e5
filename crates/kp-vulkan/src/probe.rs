//! What Vulkan does not say of a device, asked of the device itself: see `kernels/common/glsl/probe.comp`.

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

static SHADER: Shader = shader!("common", "probe");

push! {
    /// Arguments of the shader.
    struct ProbePush {
        wrong: u64,
    }
}

/// Groups that look at all codes of f16.
const GROUPS: u32 = (1 << 16) / 256;

/// Whether the device's own conversions of numbers are those that kp wants.
///
/// # Errors
/// `OutOfMemory`, `Driver`: it could not be asked.
pub(crate) fn is_native(
    device: &Arc<Logical>,
    pipelines: &Pipelines,
    memory: &Arc<Memory>,
    timelines: &Timelines,
) -> Result<bool> {
    let found = memory.alloc(4, MemoryKind::Pinned)?;
    let host = found.host().expect("pinned memory is the host's").cast::<u32>();
    let asked = || {
        let function = pipelines.function(&Build { shader: &SHADER, constants: Vec::new(), subgroup: None }, false)?;
        let timeline = timelines.start(device)?;
        let mut commands = Commands::new(device, &timeline)?;
        // SAFETY: the memory is this function's alone, 4 bytes on a boundary of more.
        unsafe { host.write(0) };
        let buffer = commands.open()?;
        // SAFETY: the function takes these arguments; the memory outlives the wait below.
        unsafe { record(device, buffer, function, GROUPS, &ProbePush { wrong: found.addr() }) };
        let finished = commands.finish();
        timelines.end(&timeline);
        finished
    };
    asked().map_err(Status::error)?;
    // SAFETY: as above, and the device is done with it.
    let wrong = unsafe { host.read() };
    tracing::debug!(wrong, device = device.seen.facts.name, "conversions of numbers");
    Ok(wrong == 0)
}
