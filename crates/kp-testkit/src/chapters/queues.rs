//! Queues and points on their timelines.

use super::{Check, ensure, memory::seen_by_host, pattern};
use crate::{Fill, FillKind, check::Failure};
use kp_hal::{Backend, Device, MemoryKind};
use std::{sync::Arc, time::Duration};

pub(super) const CHECKS: &[(&str, Check)] = &[
    ("keep their order", in_order),
    ("keep their order where it matters", in_any_order),
    ("name points that grow and are reached", points),
    ("wait for each other", waits),
    ("are done with what they waited for", waited),
    ("measure time between points", times),
    ("forget points older than 1024 marks", forgets),
    ("are told apart by their points", distinct),
];

fn in_order(_: &'static dyn Backend, device: &Arc<dyn Device>) -> Result<(), Failure> {
    let mut queue = device.clone().queue()?;
    ensure(queue.device() == device.id(), || format!("a queue of device {} says {}", device.id(), queue.device()))?;
    let mut a = device.clone().alloc(4096, MemoryKind::Device)?;
    let mut b = device.clone().alloc(4096, MemoryKind::Device)?;
    for round in 0..50 {
        queue.fill(a.slice_mut(), round)?;
        queue.copy(b.slice_mut(), a.slice())?;
        queue.fill(a.slice_mut(), 0xff)?;
        queue.copy(a.slice_mut(), b.slice())?;
    }
    let mut got = vec![0; 4096];
    queue.download(&mut got, a.slice())?;
    ensure(got.iter().all(|&x| x == 49), || format!("the last round wrote 49, found {}", got[0]))
}

/// Fills and copies of parts of three buffers, some of which share bytes with those before them, against the host's own.
fn in_any_order(_: &'static dyn Backend, device: &Arc<dyn Device>) -> Result<(), Failure> {
    const BYTES: u64 = 1 << 20;
    let mut queue = device.clone().queue()?;
    let alloc = || device.clone().alloc(BYTES, MemoryKind::Device);
    let mut buffers = [alloc()?, alloc()?, alloc()?];
    let mut wanted = [vec![0_u8; BYTES as usize], vec![0; BYTES as usize], vec![0; BYTES as usize]];
    for buffer in &mut buffers {
        queue.fill(buffer.slice_mut(), 0)?;
    }
    let mut random = Fill::new(FillKind::Exact, 5);
    for step in 0..400 {
        // Quarters, or whatever bytes.
        let (from, to, len) = match random.below(3) {
            0 => (random.below(BYTES / 2), random.below(BYTES / 2), random.below(BYTES / 2)),
            _ => (random.below(4) * BYTES / 4, random.below(4) * BYTES / 4, BYTES / 4),
        };
        let (source, target) = (random.below(3) as usize, random.below(3) as usize);
        let range = |first: u64| first as usize..(first + len) as usize;
        match buffers.get_disjoint_mut([source, target]) {
            Ok([source_buffer, target_buffer]) => {
                queue.copy(target_buffer.slice_mut().at(to..to + len), source_buffer.slice().at(from..from + len))?;
                let bytes = wanted[source][range(from)].to_vec();
                wanted[target][range(to)].copy_from_slice(&bytes);
            }
            Err(_) => {
                queue.fill(buffers[target].slice_mut().at(to..to + len), step as u8)?;
                wanted[target][range(to)].fill(step as u8);
            }
        }
    }
    let mut got = vec![0; BYTES as usize];
    for (i, (buffer, wanted)) in buffers.iter().zip(&wanted).enumerate() {
        queue.download(&mut got, buffer.slice())?;
        let wrong = got.iter().zip(wanted).position(|(got, wanted)| got != wanted);
        ensure(wrong.is_none(), || format!("buffer {i} is wrong from byte {} on", wrong.unwrap_or_default()))?;
    }
    Ok(())
}

fn points(_: &'static dyn Backend, device: &Arc<dyn Device>) -> Result<(), Failure> {
    let mut queue = device.clone().queue()?;
    let mut buffer = device.clone().alloc(1 << 20, MemoryKind::Device)?;
    let mut last = queue.mark()?;
    for i in 0..10 {
        queue.fill(buffer.slice_mut(), i)?;
        let point = queue.mark()?;
        ensure(point.queue == last.queue && point.seq > last.seq, || format!("{point:?} follows {last:?}"))?;
        last = point;
    }
    queue.sync()?;
    ensure(queue.reached(last)?, || format!("{last:?} is not reached after sync"))
}

fn waits(_: &'static dyn Backend, device: &Arc<dyn Device>) -> Result<(), Failure> {
    let (mut first, mut second) = (device.clone().queue()?, device.clone().queue()?);
    let bytes = 1 << 22;
    let mut a = device.clone().alloc(bytes, MemoryKind::Device)?;
    let mut b = device.clone().alloc(bytes, MemoryKind::Device)?;
    let sent = pattern(bytes as usize, 5);
    for round in 0..5 {
        first.fill(a.slice_mut(), 0)?;
        first.upload(a.slice_mut(), &sent)?;
        let done = first.mark()?;
        second.wait(done)?;
        second.copy(b.slice_mut(), a.slice())?;
        let copied = second.mark()?;
        first.wait(copied)?;
        let mut got = vec![0; bytes as usize];
        second.download(&mut got, b.slice())?;
        ensure(got == sent, || format!("round {round}: a queue did not wait for the other's upload"))?;
    }
    Ok(())
}

/// A queue that waits for another and is told nothing more: when it is in step with the host, so is what it waited for.
fn waited(_: &'static dyn Backend, device: &Arc<dyn Device>) -> Result<(), Failure> {
    let (mut first, mut second) = (device.clone().queue()?, device.clone().queue()?);
    let mut pinned = device.clone().alloc(1 << 24, MemoryKind::Pinned)?;
    for round in 1..=8 {
        for byte in 0..16 {
            first.fill(pinned.slice_mut(), byte)?;
        }
        first.fill(pinned.slice_mut(), 0x10 + round)?;
        let last = first.mark()?;
        second.wait(last)?;
        second.sync()?;
        let seen = seen_by_host(&pinned)?;
        ensure(seen.iter().all(|&x| x == 0x10 + round), || format!("round {round}: the last fill has not been"))?;
    }
    Ok(first.sync()?)
}

fn times(_: &'static dyn Backend, device: &Arc<dyn Device>) -> Result<(), Failure> {
    let mut queue = device.clone().queue()?;
    let mut buffer = device.clone().alloc(1 << 24, MemoryKind::Device)?;
    let from = queue.mark()?;
    queue.fill(buffer.slice_mut(), 1)?;
    let to = queue.mark()?;
    queue.sync()?;
    let Some(time) = queue.elapsed(from, to)? else { return Err("two fresh points have no time".to_owned().into()) };
    let sensible = time.0 > 0 && time < Duration::from_secs(60).into();
    ensure(sensible, || format!("filling 16 MiB took {time}"))
}

fn forgets(_: &'static dyn Backend, device: &Arc<dyn Device>) -> Result<(), Failure> {
    let mut queue = device.clone().queue()?;
    let first = queue.mark()?;
    let mut recent = first;
    for i in 0..1100 {
        let point = queue.mark()?;
        if i == 600 {
            recent = point;
        }
    }
    let last = queue.mark()?;
    queue.sync()?;
    let known = queue.elapsed(recent, last)?;
    ensure(known.is_some(), || "a point 500 marks ago has no time".into())?;
    let old = queue.elapsed(first, last)?;
    ensure(old.is_none(), || format!("a point 1101 marks ago has a time: {old:?}"))?;
    ensure(queue.reached(first)?, || "an old point is no longer reached".into())
}

fn distinct(_: &'static dyn Backend, device: &Arc<dyn Device>) -> Result<(), Failure> {
    let (mut first, mut second) = (device.clone().queue()?, device.clone().queue()?);
    let (a, b) = (first.mark()?, second.mark()?);
    ensure(a.queue != b.queue, || format!("two queues of a device both make {a:?}"))
}
