//! What the device does, measured, since no driver tells: the bandwidth of its memory, and what it multiplies and adds in a second.

use crate::{
    caps::{COOPMAT, COOPMAT_BF16, mma_shape},
    device::VulkanDevice,
    launch::push,
    pipelines::Build,
    queue::VulkanQueue,
    shaders::{Shader, shader},
};
use kp_hal::{Caps, DType, Device, MemoryKind, Nanos, Queue, Rates, Result};
use std::sync::Arc;

static NUMBERS: Shader = shader!("common", "multiply");
static MATRICES: [Shader; 2] = [shader!("common", "multiply_coopmat"), shader!("common", "multiply_coopmat_bf16")];

push! {
    /// Arguments of these shaders.
    struct MultiplyPush {
        result: u64,
        rounds: u32,
        x: f32,
        y: f32,
        unused: u32,
    }
}

/// Bytes copied at once: many times any cache.
const COPIED: u64 = 256 << 20;

/// Copies timed, after one that is not. The median counts.
const COPIES: usize = 9;

/// Threads of a group that multiplies, where the device has so many.
const THREADS: u32 = 256;

/// Groups for each unit: enough for its registers' sake.
const GROUPS: u32 = 8;

/// What a thread, or a subgroup with its matrices, adds up in a round: `CHAINS` · `STEPS` of the shader.
const PRODUCTS: f64 = 64.0;

/// A launch that lasts so long is long enough, and a device that works so long is awake.
const LASTS: Nanos = Nanos(4_000_000);

/// The capabilities of `device`, with the bandwidth at which it copies within its memory, and its rates of multiplications and
/// additions: of f32, and of the types of which it multiplies matrices for kp. Other types have the rate of f32, since kernels convert them.
///
/// # Errors
/// `OutOfMemory`, `Driver` or `Fault`.
pub(crate) fn measure(device: &Arc<VulkanDevice>) -> Result<Caps> {
    let mut caps = device.caps().clone();
    let mut queue = VulkanQueue::new(device.clone())?;
    if let Some(rate) = copies(device, &mut queue)? {
        caps.bytes_per_s = rate;
    }
    let threads = THREADS.min(caps.max_threads) / caps.lanes * caps.lanes;
    let numbers = Build { shader: &NUMBERS, constants: vec![threads], subgroup: None };
    if let Some(rate) = products(device, &mut queue, &numbers, 2.0 * f64::from(threads))? {
        caps.rates = Rates::uniform(rate);
    }
    for (dtype, need, shader) in [(DType::F16, COOPMAT, &MATRICES[0]), (DType::Bf16, COOPMAT_BF16, &MATRICES[1])] {
        let Some(shape) = mma_shape(&caps, dtype).filter(|_| caps.has(need)) else { continue };
        let constants = vec![threads, shape.m, shape.n, shape.k];
        let each = [threads / caps.lanes, 2, shape.m, shape.n, shape.k].into_iter().map(f64::from).product();
        let matrices = Build { shader, constants, subgroup: Some(caps.lanes) };
        if let Some(rate) = products(device, &mut queue, &matrices, each)? {
            caps.rates = caps.rates.with(&[dtype], rate);
        }
    }
    Ok(caps)
}

/// Bytes per second of copies, of which each byte is read and written; none where the driver has no timestamps.
fn copies(device: &Arc<VulkanDevice>, queue: &mut VulkanQueue) -> Result<Option<f64>> {
    let bytes = COPIED.min(device.memory()?.free / 8).min(device.caps().max_buffer_bytes);
    let from = device.clone().alloc(bytes, MemoryKind::Device)?;
    let mut to = device.clone().alloc(bytes, MemoryKind::Device)?;
    queue.copy(to.slice_mut(), from.slice())?;
    let mut times = Vec::with_capacity(COPIES);
    for _ in 0..COPIES {
        times.extend(timed(queue, |queue| queue.copy(to.slice_mut(), from.slice()))?);
    }
    times.sort_unstable();
    Ok(times.get(times.len() / 2).map(|median| 2.0 * bytes as f64 / median.as_secs()))
}

/// Operations per second of the kernel that `build` describes, a group of which does `each` of them for each product; the best of
/// launches that take longer and longer.
fn products(device: &Arc<VulkanDevice>, queue: &mut VulkanQueue, build: &Build, each: f64) -> Result<Option<f64>> {
    let function = device.function(build)?;
    let result = device.clone().alloc(4, MemoryKind::Device)?;
    let groups = (GROUPS * device.caps().units).min(device.max_groups());
    let mut best: Option<f64> = None;
    let mut push = MultiplyPush { result: result.slice().addr(), rounds: 1, x: 0.5, y: 1e-3, unused: 0 };
    while push.rounds < 1 << 24 {
        // SAFETY: the function takes these arguments and is of the queue's device; the result outlives the wait.
        let launch = |queue: &mut VulkanQueue| unsafe { queue.launch("multiply", function, groups, &push) };
        let Some(time) = timed(queue, launch)? else { return Ok(None) };
        let rate = f64::from(groups) * f64::from(push.rounds) * PRODUCTS * each / time.as_secs();
        best = Some(best.map_or(rate, |best| best.max(rate)));
        if time >= LASTS {
            break;
        }
        push.rounds *= 2;
    }
    Ok(best)
}

/// How long the device takes for `work`; nothing if the driver does not say.
fn timed(queue: &mut VulkanQueue, work: impl FnOnce(&mut VulkanQueue) -> Result<()>) -> Result<Option<Nanos>> {
    let before = queue.mark()?;
    work(queue)?;
    let after = queue.mark()?;
    queue.sync()?;
    Ok(queue.elapsed(before, after)?.filter(|time| *time > Nanos(0)))
}
