//! What the device does, measured: the bandwidth of its memory, which no driver tells. Rates of arithmetic stay guesses.

use crate::device::VulkanDevice;
use kp_hal::{Caps, Device, MemoryKind, Nanos, Result};
use std::sync::Arc;

/// Bytes copied at once: many times any cache.
const COPIED: u64 = 256 << 20;

/// Copies timed, after one that is not. The median counts.
const COPIES: usize = 9;

/// The capabilities of `device`, with the bandwidth at which it copies within its memory.
///
/// # Errors
/// `OutOfMemory`, `Driver` or `Fault`.
pub(crate) fn measure(device: &Arc<VulkanDevice>) -> Result<Caps> {
    let mut caps = device.caps().clone();
    let bytes = COPIED.min(device.memory()?.free / 8).min(caps.max_buffer_bytes);
    let from = device.clone().alloc(bytes, MemoryKind::Device)?;
    let mut to = device.clone().alloc(bytes, MemoryKind::Device)?;
    let mut queue = device.clone().queue()?;
    queue.copy(to.slice_mut(), from.slice())?;
    let mut before = queue.mark()?;
    let mut times = Vec::with_capacity(COPIES);
    for _ in 0..COPIES {
        queue.copy(to.slice_mut(), from.slice())?;
        let after = queue.mark()?;
        queue.sync()?;
        times.extend(queue.elapsed(before, after)?);
        before = queue.mark()?;
    }
    times.sort_unstable();
    // None where the driver has no timestamps.
    if let Some(&median) = times.get(times.len() / 2).filter(|time| **time > Nanos(0)) {
        // Each byte is read and written.
        caps.bytes_per_s = 2.0 * bytes as f64 / median.as_secs();
    }
    Ok(caps)
}
