//! What the device does, measured: the bandwidth of its memory. Rates of the matrix unit stay as stated, because only a
//! kernel that reaches them could measure them, and then it would be the judge of itself.

use crate::device::NvidiaDevice;
use kp_hal::{Caps, Device, MemoryKind, Nanos, Result};
use std::sync::Arc;

/// Bytes copied at once: many times any cache, and little beside the memory of any device that has kernels here.
const COPIED: u64 = 512 << 20;

/// Copies timed, after one that is not. The median counts.
const COPIES: usize = 15;

/// The capabilities of `device`, with the bandwidth at which it copies within its memory.
///
/// # Errors
/// `OutOfMemory`, `Driver` or `Fault`.
pub(crate) fn measure(device: &Arc<NvidiaDevice>) -> Result<Caps> {
    let mut caps = device.caps().clone();
    let bytes = COPIED.min(device.memory()?.free / 4);
    let from = device.clone().alloc(bytes, MemoryKind::Device)?;
    let mut to = device.clone().alloc(bytes, MemoryKind::Device)?;
    let mut queue = device.clone().queue()?;
    queue.copy(to.slice_mut(), from.slice())?;
    let mut marks = vec![queue.mark()?];
    for _ in 0..COPIES {
        queue.copy(to.slice_mut(), from.slice())?;
        marks.push(queue.mark()?);
    }
    queue.sync()?;
    let mut times = Vec::with_capacity(COPIES);
    for pair in marks.windows(2) {
        times.extend(queue.elapsed(pair[0], pair[1])?);
    }
    times.sort();
    if let Some(median) = times.get(times.len() / 2).filter(|time| **time > Nanos(0)) {
        // Each byte is read and written.
        caps.bytes_per_s = 2.0 * bytes as f64 / median.as_secs();
    }
    Ok(caps)
}
