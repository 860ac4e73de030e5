//! Bytes between host and device, all ways and sizes.

use crate::{alloc, contents, device, function, host_bytes, memory::wait_a_while, pattern, queue, whole_device};
use kp_hal::{Buffer, MemoryKind};

const SIZES: &[usize] = &[1, 3, 255, 256, 4099, 65_535, 65_536, 65_537, 1 << 20, (1 << 22) + 5, (48 << 20) + 1];

#[test]
fn bytes_come_back_as_they_went_in() {
    let Some((device, _rest)) = device() else { return };
    let mut queue = queue(&device);
    for &bytes in SIZES {
        let sent = pattern(bytes + 1, 1);
        for kind in [MemoryKind::Device, MemoryKind::Pinned] {
            let mut buffer = device.clone().alloc(bytes as u64, kind).expect("there is room");
            // From an odd address of the host.
            queue.upload(buffer.slice_mut(), &sent[1..]).expect("same length");
            assert!(contents(&mut *queue, &buffer) == sent[1..], "{bytes} bytes of {kind:?} memory");
            queue.fill(buffer.slice_mut(), 0xa5).expect("this device's");
            assert!(contents(&mut *queue, &buffer).iter().all(|&x| x == 0xa5), "{bytes} bytes of {kind:?} memory");
        }
    }
}

#[test]
fn copies_go_between_all_kinds_of_memory() {
    let Some((device, _rest)) = device() else { return };
    let mut queue = queue(&device);
    let kinds = [MemoryKind::Device, MemoryKind::Pinned];
    for (from, to) in kinds.into_iter().flat_map(|from| kinds.map(|to| (from, to))) {
        for &bytes in SIZES {
            let [mut src, mut dst] =
                [from, to].map(|kind| device.clone().alloc(bytes as u64 + 16, kind).expect("room"));
            let sent = pattern(bytes + 16, 2);
            queue.upload(src.slice_mut(), &sent).expect("same length");
            queue.fill(dst.slice_mut(), 7).expect("this device's");
            let (bytes, end) = (bytes as u64, bytes + 3);
            queue.copy(dst.slice_mut().at(3..3 + bytes), src.slice().at(5..5 + bytes)).expect("same length");
            let got = contents(&mut *queue, &dst);
            assert!(got[3..end] == sent[5..end + 2], "{bytes} bytes from {from:?} to {to:?}");
            assert!(got[..3] == [7; 3] && got[end..].iter().all(|&x| x == 7), "{bytes} bytes left their place");
        }
    }
}

#[test]
fn a_source_may_be_reused_on_return() {
    let Some((device, _rest)) = device() else { return };
    let mut queue = queue(&device);
    let mut busy = alloc(&device, 1 << 30);
    for &bytes in SIZES {
        let mut buffers: Vec<Buffer> = (0..4).map(|_| alloc(&device, bytes as u64)).collect();
        let mut source = pattern(bytes, 3);
        let sent = source.clone();
        // Work ahead, so that the copies cannot have been done on return.
        (0..4).for_each(|byte| queue.fill(busy.slice_mut(), byte).expect("this device's"));
        for buffer in &mut buffers {
            queue.upload(buffer.slice_mut(), &source).expect("same length");
            source.fill(0);
            source.copy_from_slice(&sent);
        }
        source.fill(0xff);
        for buffer in &buffers {
            assert!(contents(&mut *queue, buffer) == sent, "{bytes} bytes");
        }
    }
}

/// Of which the driver would take nothing before it returns.
#[test]
fn a_pinned_source_may_be_reused_on_return() {
    let Some((device, _rest)) = device() else { return };
    let mut queue = queue(&device);
    let mut busy = alloc(&device, 1 << 30);
    let pinned = device.clone().alloc(64, MemoryKind::Pinned).expect("there is room");
    host_bytes(&pinned).fill(1);
    let mut there = alloc(&device, 64);
    (0..4).for_each(|byte| queue.fill(busy.slice_mut(), byte).expect("this device's"));
    queue.upload(there.slice_mut(), host_bytes(&pinned)).expect("same length");
    host_bytes(&pinned).fill(2);
    assert!(contents(&mut *queue, &there) == [1; 64]);
}

#[test]
fn the_host_sees_pinned_memory() {
    let Some((device, _rest)) = device() else { return };
    let mut queue = queue(&device);
    let mut pinned = device.clone().alloc(1 << 20, MemoryKind::Pinned).expect("there is room");
    let mut there = alloc(&device, 1 << 20);
    let sent = pattern(1 << 20, 4);
    host_bytes(&pinned).copy_from_slice(&sent);
    queue.copy(there.slice_mut(), pinned.slice()).expect("same length");
    queue.fill(pinned.slice_mut(), 0).expect("this device's");
    queue.copy(pinned.slice_mut().at(0..512), there.slice().at(1024..1536)).expect("same length");
    queue.sync().expect("no fault");
    let seen = host_bytes(&pinned);
    assert!(seen[..512] == sent[1024..1536] && seen[512..].iter().all(|&x| x == 0));
    assert!(contents(&mut *queue, &there) == sent);
}

#[test]
fn an_upload_does_not_wait_for_the_work_before_it() {
    let Some((device, _alone)) = whole_device() else { return };
    let (mut queue, spin) = (queue(&device), function(&device, "spin"));
    let sent = pattern(32 << 20, 10);
    let mut buffer = alloc(&device, 32 << 20);
    // The first upload makes what the second uses.
    queue.upload(buffer.slice_mut(), &sent).expect("same length");
    queue.sync().expect("no fault");
    wait_a_while(&mut *queue, &spin, 3_000_000_000);
    queue.upload(buffer.slice_mut(), &sent).expect("same length");
    let point = queue.mark().expect("no fault");
    assert!(!queue.reached(point).expect("no fault"), "the upload returned after 3 s of work before it");
    assert!(contents(&mut *queue, &buffer) == sent);
}
