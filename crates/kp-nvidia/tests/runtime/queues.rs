//! Marks, waiting, many threads.

use crate::{alloc, contents, device, function, memory::wait_a_while, pattern, queue, whole_device};
use kp_hal::{MemoryKind, Nanos, Point};
use std::{sync::Mutex, thread, time::Duration};

#[test]
fn time_between_marks_is_the_device_s() {
    // Alone: a call of the driver may wait while another test's call waits for the device.
    let Some((device, _alone)) = whole_device() else { return };
    let (mut queue, spin) = (queue(&device), function(&device, "spin"));
    let from = queue.mark().expect("no fault");
    wait_a_while(&mut *queue, &spin, 100_000_000);
    let to = queue.mark().expect("no fault");
    assert!(!queue.reached(to).expect("no fault"), "100 ms of work are done at once");
    assert!(queue.elapsed(from, to).is_err(), "a mark that is not reached has no time");
    queue.sync().expect("no fault");
    assert!(queue.reached(to).expect("no fault"));
    let time = queue.elapsed(from, to).expect("no fault").expect("fresh");
    // Other programs may run on the same device, so there is no upper bound to speak of.
    assert!(time >= Nanos(99_800_000) && time < Duration::from_secs(20).into(), "{time}");
    let other = Point { queue: to.queue + 1, ..to };
    assert_eq!(queue.elapsed(from, other).expect("no fault"), None);
    assert!(!queue.reached(other).expect("no fault") && !queue.reached(Point { seq: 99, ..to }).expect("no fault"));
}

#[test]
fn an_old_point_can_be_waited_for() {
    let Some((device, _rest)) = device() else { return };
    let spin = function(&device, "spin");
    let (mut first, mut second) = (queue(&device), queue(&device));
    let (mut a, mut b) = (alloc(&device, 4096), alloc(&device, 4096));
    first.fill(a.slice_mut(), 1).expect("this device's");
    wait_a_while(&mut *first, &spin, 20_000_000);
    first.fill(a.slice_mut(), 2).expect("this device's");
    let point = first.mark().expect("no fault");
    for _ in 0..1500 {
        first.mark().expect("no fault");
    }
    second.wait(point).expect("a point of this device");
    second.copy(b.slice_mut(), a.slice()).expect("same length");
    assert!(contents(&mut *second, &b).iter().all(|&x| x == 2), "did not wait for a point whose event was used again");
    first.sync().expect("no fault");
    assert!(first.reached(point).expect("no fault"));
}

#[test]
fn a_value_passed_around_by_waiting_arrives() {
    let Some((device, _rest)) = device() else { return };
    let mut queues: Vec<_> = (0..6).map(|_| queue(&device)).collect();
    let mut cells: Vec<_> = (0..6).map(|_| alloc(&device, 1 << 20)).collect();
    queues[0].upload(cells[0].slice_mut(), &pattern(1 << 20, 9)).expect("same length");
    let mut last = queues[0].mark().expect("no fault");
    for step in 0..600 {
        let (from, to) = (step % 6, (step + 1) % 6);
        let [source, target] = cells.get_disjoint_mut([from, to]).expect("two cells");
        queues[to].wait(last).expect("a point of this device");
        queues[to].copy(target.slice_mut(), source.slice()).expect("same length");
        queues[to].fill(source.slice_mut(), 0).expect("this device's");
        last = queues[to].mark().expect("no fault");
    }
    assert!(contents(&mut *queues[0], &cells[0]) == pattern(1 << 20, 9));
}

#[test]
fn threads_share_a_device() {
    let Some((device, _rest)) = device() else { return };
    let points = Mutex::new(Vec::<Point>::new());
    thread::scope(|scope| {
        for thread in 0..8_u64 {
            let (device, points) = (&device, &points);
            scope.spawn(move || {
                let mut own = queue(device);
                for round in 0..150 {
                    let bytes = 1 + (thread * 7919 + round * 104_729) % (1 << (10 + round % 12));
                    let sent = pattern(bytes as usize, thread ^ round);
                    let kind = if round % 5 == 0 { MemoryKind::Pinned } else { MemoryKind::Device };
                    let mut a = device.clone().alloc(bytes, kind).expect("there is room");
                    let mut b = alloc(device, bytes);
                    own.upload(a.slice_mut(), &sent).expect("same length");
                    let another = points.lock().expect("no thread failed").pop();
                    another.into_iter().for_each(|point| own.wait(point).expect("a point of this device"));
                    own.copy(b.slice_mut(), a.slice()).expect("same length");
                    own.fill(a.slice_mut(), 0).expect("this device's");
                    drop(a);
                    points.lock().expect("no thread failed").push(own.mark().expect("no fault"));
                    if round % 3 == 0 {
                        own = queue(device);
                        own.sync().expect("no fault");
                        continue;
                    }
                    assert!(contents(&mut *own, &b) == sent, "thread {thread}, round {round}: {bytes} bytes");
                }
            });
        }
    });
}
