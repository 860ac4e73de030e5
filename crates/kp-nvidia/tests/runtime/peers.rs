//! Copies between two devices.

use crate::{alloc, contents, device, function, memory::wait_a_while, pattern, queue};
use kp_hal::{Device, ErrorKind};
use kp_nvidia::BACKEND;
use std::sync::Arc;

/// A second device; `None` if there is none, which was printed.
pub(crate) fn another() -> Option<Arc<dyn Device>> {
    let list = BACKEND.devices().expect("one device is open");
    match list.get(1) {
        Some(info) => Some(BACKEND.open(info.index).expect("it was listed")),
        None => {
            println!("skipped: there is one device");
            None
        }
    }
}

#[test]
fn bytes_go_from_one_device_to_another() {
    let Some((here, _rest)) = device() else { return };
    let Some(there) = another() else { return };
    let spin = function(&here, "spin");
    for bytes in [1, 4099, 1 << 20, (64 << 20) + 3] {
        let (mut from, mut to) = (alloc(&there, bytes), alloc(&here, bytes));
        let (mut theirs, mut ours) = (queue(&there), queue(&here));
        let sent = pattern(bytes as usize, 12);
        theirs.upload(from.slice_mut(), &sent).expect("same length");
        theirs.sync().expect("no fault");
        wait_a_while(&mut *ours, &spin, 5_000_000);
        ours.copy_from_peer(to.slice_mut(), from.slice()).expect("both are open");
        // Used by a queue of the other device, so not to be given to anybody yet.
        drop(from);
        let mut next = alloc(&there, bytes);
        theirs.fill(next.slice_mut(), 0xee).expect("that device's");
        theirs.sync().expect("no fault");
        assert!(contents(&mut *ours, &to) == sent, "{bytes} bytes");
        let refused = ours.copy(to.slice_mut(), next.slice()).expect_err("not this device's");
        assert!(matches!(refused.kind(), ErrorKind::BadArgs(_)), "{refused}");
    }
}

#[test]
fn a_device_is_its_own_peer() {
    let Some((device, _rest)) = device() else { return };
    let mut queue = queue(&device);
    let (mut a, mut b) = (alloc(&device, 1000), alloc(&device, 1000));
    queue.fill(a.slice_mut(), 5).expect("this device's");
    queue.copy_from_peer(b.slice_mut(), a.slice()).expect("same length");
    assert_eq!(contents(&mut *queue, &b), [5; 1000]);
    let other = BACKEND.open(device.info().index).expect("it is open already");
    let (mut theirs, mut filling) = (alloc(&other, 1000), crate::queue(&other));
    filling.fill(theirs.slice_mut(), 6).expect("that device's");
    filling.sync().expect("no fault");
    queue.copy_from_peer(b.slice_mut(), theirs.slice()).expect("the same card, opened twice");
    assert_eq!(contents(&mut *queue, &b), [6; 1000]);
}
