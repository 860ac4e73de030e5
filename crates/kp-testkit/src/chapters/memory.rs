//! Buffers: what goes in comes out, and what cannot be is refused.

use super::{Check, ensure, fails, pattern};
use crate::check::Failure;
use kp_hal::{Backend, Buffer, Device, ErrorKind, MemoryKind, Queue, op::ArgError};
use std::sync::Arc;

pub(super) const CHECKS: &[(&str, Check)] = &[
    ("comes back as it went in", round_trips),
    ("is aligned to 256 bytes", aligned),
    ("is filled and copied where asked", parts),
    ("of no bytes is memory too", nothing),
    ("of other lengths is refused", lengths),
    ("that is pinned is seen by the host", pinned),
    ("that does not exist is refused and the device goes on", exhausted),
    ("that nobody holds comes back, also from a queue that was told no more", comes_back),
    ("outlives its queue and its device's other handles", outlives),
];

const KINDS: [MemoryKind; 2] = [MemoryKind::Device, MemoryKind::Pinned];

fn round_trips(_: &'static dyn Backend, device: &Arc<dyn Device>) -> Result<(), Failure> {
    let mut queue = device.clone().queue()?;
    for kind in KINDS {
        // The last is more than is staged at once.
        for bytes in [1, 3, 255, 256, 4099, 1 << 20, (5 << 20) + 3] {
            let (sent, mut got) = (pattern(bytes, 1), vec![0; bytes]);
            let mut buffer = device.clone().alloc(bytes as u64, kind)?;
            ensure(buffer.bytes() == bytes as u64 && buffer.device() == device.id(), || {
                format!("asked for {bytes} bytes of device {}, got {buffer:?}", device.id())
            })?;
            queue.upload(buffer.slice_mut(), &sent)?;
            queue.download(&mut got, buffer.slice())?;
            ensure(sent == got, || format!("{bytes} bytes of {kind:?} memory came back changed"))?;
        }
    }
    Ok(())
}

fn aligned(_: &'static dyn Backend, device: &Arc<dyn Device>) -> Result<(), Failure> {
    let mut held = Vec::new();
    for kind in KINDS {
        for bytes in [1, 7, 100, 257, 5000] {
            held.push(device.clone().alloc(bytes, kind)?);
            let addr = held.last().expect("just pushed").slice().addr();
            ensure(addr.is_multiple_of(256), || format!("{bytes} bytes of {kind:?} memory are at {addr:#x}"))?;
        }
    }
    held.sort_by_key(|b| b.slice().addr());
    let overlap = held.windows(2).find(|p| p[0].slice().addr() + p[0].bytes() > p[1].slice().addr());
    ensure(overlap.is_none(), || format!("two buffers overlap: {overlap:?}"))
}

fn parts(_: &'static dyn Backend, device: &Arc<dyn Device>) -> Result<(), Failure> {
    let mut queue = device.clone().queue()?;
    let mut want = pattern(1000, 7);
    let mut buffer = device.clone().alloc(1000, MemoryKind::Device)?;
    let mut other = device.clone().alloc(1000, MemoryKind::Device)?;
    queue.upload(buffer.slice_mut(), &want)?;
    queue.fill(other.slice_mut(), 0x5c)?;
    queue.fill(buffer.slice_mut().at(101..203), 0xee)?;
    queue.copy(buffer.slice_mut().at(500..533), other.slice().at(3..36))?;
    want[101..203].fill(0xee);
    want[500..533].fill(0x5c);
    let mut got = vec![0; 1000];
    queue.download(&mut got, buffer.slice())?;
    let first = got.iter().zip(&want).position(|(g, w)| g != w);
    ensure(first.is_none(), || format!("byte {first:?} differs after a fill of 101..203 and a copy to 500..533"))
}

fn nothing(_: &'static dyn Backend, device: &Arc<dyn Device>) -> Result<(), Failure> {
    let mut queue = device.clone().queue()?;
    for kind in KINDS {
        let mut empty = device.clone().alloc(0, kind)?;
        let other = device.clone().alloc(0, kind)?;
        queue.upload(empty.slice_mut(), &[])?;
        queue.fill(empty.slice_mut(), 1)?;
        queue.copy(empty.slice_mut(), other.slice())?;
        queue.download(&mut [], empty.slice())?;
    }
    Ok(queue.sync()?)
}

fn lengths(_: &'static dyn Backend, device: &Arc<dyn Device>) -> Result<(), Failure> {
    let mut queue = device.clone().queue()?;
    let mut buffer = device.clone().alloc(16, MemoryKind::Device)?;
    let other = device.clone().alloc(15, MemoryKind::Device)?;
    let length = |kind: &ErrorKind| matches!(kind, ErrorKind::BadArgs(ArgError::Length { .. }));
    fails(queue.upload(buffer.slice_mut(), &[0; 17]), "Length", length)?;
    fails(queue.download(&mut [0; 15], buffer.slice()), "Length", length)?;
    fails(queue.copy(buffer.slice_mut(), other.slice()), "Length", length)?;
    // A refused call leaves the queue as it was.
    Ok(queue.upload(buffer.slice_mut(), &[0; 16])?)
}

fn pinned(_: &'static dyn Backend, device: &Arc<dyn Device>) -> Result<(), Failure> {
    let mut queue = device.clone().queue()?;
    let mut buffer = device.clone().alloc(100, MemoryKind::Pinned)?;
    queue.upload(buffer.slice_mut(), &pattern(100, 3))?;
    queue.sync()?;
    ensure(seen_by_host(&buffer)? == pattern(100, 3), || "the host sees other bytes than were uploaded".into())
}

/// What the host sees of pinned memory that was written and that no queue is to write now.
pub(super) fn seen_by_host(pinned: &Buffer) -> Result<Vec<u8>, Failure> {
    let Some(host) = pinned.host() else { return Err("pinned memory has no host address".to_owned().into()) };
    // SAFETY: the buffer is alive and has so many bytes, which callers have written, by queues that are done.
    Ok(unsafe { std::slice::from_raw_parts(host.as_ptr(), pinned.bytes() as usize) }.to_vec())
}

fn exhausted(_: &'static dyn Backend, device: &Arc<dyn Device>) -> Result<(), Failure> {
    let memory = |kind: &ErrorKind| matches!(kind, ErrorKind::OutOfMemory { wanted, .. } if *wanted > 1 << 60);
    for bytes in [1 << 61, i64::MAX as u64, u64::MAX] {
        for kind in KINDS {
            fails(device.clone().alloc(bytes, kind), "OutOfMemory with the bytes wanted", memory)?;
        }
    }
    let mut queue = device.clone().queue()?;
    fails(queue.reserve_scratch(1 << 61), "OutOfMemory with the bytes wanted", memory)?;
    queue.reserve_scratch(4096)?;
    let mut buffer = device.clone().alloc(64, MemoryKind::Device)?;
    queue.fill(buffer.slice_mut(), 9)?;
    let mut got = [0; 64];
    queue.download(&mut got, buffer.slice())?;
    ensure(got == [9; 64], || "after running out of memory, a fill did not arrive".into())
}

fn comes_back(_: &'static dyn Backend, device: &Arc<dyn Device>) -> Result<(), Failure> {
    let mut queues = [device.clone().queue()?, device.clone().queue()?];
    // Twice as much as the device has for each, of which little is touched; often enough that some commands wait for others.
    let total = device.memory()?.total;
    let bytes = (total / 8).min(device.info().caps.max_buffer_bytes);
    for queue in &mut queues {
        for _ in 0..(2 * total).div_ceil(bytes) {
            let mut buffer = device.clone().alloc(bytes, MemoryKind::Device)?;
            queue.fill(buffer.slice_mut().at(0..4096), 1)?;
        }
    }
    Ok(())
}

fn outlives(backend: &'static dyn Backend, device: &Arc<dyn Device>) -> Result<(), Failure> {
    let other = backend.open(device.info().index)?;
    let mut queue = other.clone().queue()?;
    let mut buffer = other.clone().alloc(64, MemoryKind::Device)?;
    queue.upload(buffer.slice_mut(), &[7; 64])?;
    // Work may still be queued when its memory is dropped: the device defers the release.
    let mut dropped = other.clone().alloc(1 << 16, MemoryKind::Device)?;
    queue.fill(dropped.slice_mut(), 1)?;
    drop(dropped);
    queue.sync()?;
    drop(queue);
    let mut queue: Box<dyn Queue> = other.clone().queue()?;
    drop(other);
    let mut got = [0; 64];
    queue.download(&mut got, buffer.slice())?;
    ensure(got == [7; 64], || "bytes were lost with the queue that wrote them".into())
}
