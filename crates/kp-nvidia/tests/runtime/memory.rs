//! Allocating, running out, and dropping what is still in use.

use crate::{alloc, contents, device, function, pattern, queue, whole_device};
use kp_hal::{Buffer, Error, ErrorKind, MemoryKind};
use kp_nvidia::{Config, NvidiaQueue};
use std::ffi::c_void;

#[test]
fn running_out_is_told_with_numbers_and_survived() {
    let Some((device, _alone)) = whole_device() else { return };
    let before = device.memory().expect("a working device");
    let chunk = 4 << 30;
    let mut held: Vec<Buffer> = Vec::new();
    let error = loop {
        match device.clone().alloc(chunk, MemoryKind::Device) {
            Ok(buffer) => held.push(buffer),
            Err(e) => break e,
        }
        assert!((held.len() as u64) * chunk <= before.total, "more than there is");
    };
    let ErrorKind::OutOfMemory { wanted, free, total } = *error.kind() else { panic!("{error}") };
    println!("{} of {chunk} bytes, then: {error}", held.len());
    assert_eq!((wanted, total), (chunk, before.total));
    assert!(free < chunk, "{error}");
    assert!(
        (held.len() as u64 + 1) * chunk > before.free - (1 << 30),
        "{} chunks of {} free bytes",
        held.len(),
        before.free
    );
    // The device goes on working, with what is left and with what comes back.
    let mut queue = queue(&device);
    let mut small = alloc(&device, 1 << 20);
    queue.fill(small.slice_mut(), 3).expect("this device's");
    assert!(contents(&mut *queue, &small).iter().all(|&x| x == 3));
    let scratch = queue.reserve_scratch(chunk).err().map(Error::into_kind);
    assert!(matches!(scratch, Some(ErrorKind::OutOfMemory { .. })), "{scratch:?}");
    held.truncate(held.len() - 2);
    queue.reserve_scratch(chunk).expect("two chunks came back");
    drop(held);
    let after = device.memory().expect("a working device");
    assert!(after.free + chunk + (1 << 30) > before.free, "before {before:?}, after {after:?}");
}

#[test]
fn dropped_buffers_do_not_pile_up() {
    let Some((device, _alone)) = whole_device() else { return };
    let total = device.memory().expect("a working device").total;
    let (mut queue, bytes) = (queue(&device), 1_u64 << 30);
    let mut least = u64::MAX;
    // Four times the memory there is, at the speed of the host.
    for round in 0..4 * total / bytes {
        let mut buffer = alloc(&device, bytes);
        queue.fill(buffer.slice_mut(), round as u8).expect("this device's");
        if round % 16 == 0 {
            least = least.min(device.memory().expect("a working device").free);
        }
    }
    queue.sync().expect("no fault");
    println!("at least {least} of {total} bytes were free");
    assert!(least > total / 2, "the host ran {} bytes ahead", total - least);
}

#[test]
fn memory_dropped_in_use_is_kept_from_others() {
    let Some((device, _rest)) = device() else { return };
    let (bytes, spin) = (8 << 20, function(&device, "spin"));
    let mut slow = queue(&device);
    let mut quick = queue(&device);
    for round in 0..20 {
        let sent = pattern(bytes as usize, round);
        let (mut from, mut to) = (alloc(&device, bytes), alloc(&device, bytes));
        slow.upload(from.slice_mut(), &sent).expect("same length");
        wait_a_while(&mut *slow, &spin, 2_000_000);
        slow.copy(to.slice_mut(), from.slice()).expect("same length");
        drop(from);
        // Would be the same memory if the drop had freed it.
        let mut others: Vec<Buffer> = (0..4).map(|_| alloc(&device, bytes)).collect();
        for other in &mut others {
            quick.fill(other.slice_mut(), 0xee).expect("this device's");
        }
        quick.sync().expect("no fault");
        assert!(contents(&mut *slow, &to) == sent, "round {round}: another queue wrote what was dropped in use");
    }
}

#[test]
fn a_queue_dropped_at_work_keeps_its_memory() {
    let Some((device, _rest)) = device() else { return };
    let (bytes, spin) = (8 << 20, function(&device, "spin"));
    for round in 0..10 {
        let sent = pattern(bytes as usize, round);
        let (mut from, mut to) = (alloc(&device, bytes), alloc(&device, bytes));
        let mut gone = queue(&device);
        gone.upload(from.slice_mut(), &sent).expect("same length");
        wait_a_while(&mut *gone, &spin, 2_000_000);
        gone.copy(to.slice_mut(), from.slice()).expect("same length");
        let done = gone.mark().expect("no fault");
        drop(gone);
        drop(from);
        let mut quick = queue(&device);
        let mut other = alloc(&device, bytes);
        quick.fill(other.slice_mut(), 0xee).expect("this device's");
        quick.wait(done).expect("a point of this device");
        assert!(contents(&mut *quick, &to) == sent, "round {round}");
    }
}

/// Occupies the device for a time.
pub(crate) fn wait_a_while(queue: &mut dyn kp_hal::Queue, spin: &kp_nvidia::Function, mut nanos: u64) {
    let queue: &mut NvidiaQueue = queue.downcast_mut().expect("a queue of this backend");
    let mut params = [(&raw mut nanos).cast::<c_void>()];
    // SAFETY: external to all memory; one 64-bit parameter, as the kernel has.
    unsafe { queue.launch("spin", spin, &Config::new([1, 1, 1], 1), &mut params) }.expect("a plain launch");
}
