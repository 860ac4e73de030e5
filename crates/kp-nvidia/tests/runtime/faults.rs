//! Work that fails on the device: each in a process of its own, which the failure ends the use of.

use crate::{alloc, device, function, queue};
use kp_hal::{Device, Error, ErrorKind, Fault, MemoryKind, Queue};
use kp_nvidia::{Config, Function, NvidiaQueue};
use std::{env, ffi::c_void, process::Command, sync::Arc};

/// Set for the process in which something is to fail.
const CHILD: &str = "KP_TEST_FAULT";

/// Runs the test of that name in a process of its own; whether it is that process.
fn in_child(name: &str) -> bool {
    if env::var_os(CHILD).is_some() {
        return true;
    }
    if device().is_some() {
        let program = env::current_exe().expect("a test is a program");
        let full = format!("faults::{name}");
        let output = Command::new(program).args(["--exact", &full, "--nocapture"]).env(CHILD, "1").output();
        let output = output.expect("the same program starts");
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        println!("{said}");
        assert!(
            output.status.success() && said.contains("1 passed"),
            "{name} in a process of its own: {}",
            output.status
        );
    }
    false
}

fn store(queue: &mut dyn Queue, function: &Function, name: &'static str, mut addr: u64) -> kp_hal::Result<()> {
    let queue: &mut NvidiaQueue = queue.downcast_mut().expect("a queue of this backend");
    let mut value = 1_u32;
    let mut params = [(&raw mut addr).cast::<c_void>(), (&raw mut value).cast()];
    // SAFETY: external to Rust's memory: a wrong address is what the test is about, in a process that has nothing to lose.
    unsafe { queue.launch(name, function, &Config::new([1, 1, 1], 1), &mut params) }
}

/// An address that no allocation has.
const NOWHERE: u64 = 0x10;

fn fault(error: Error) -> Fault {
    match error.into_kind() {
        ErrorKind::Fault(fault) => fault,
        other => panic!("not a fault: {other}"),
    }
}

/// A device to be lost, a queue to lose it with, and `store`.
type Victim = (Arc<dyn Device>, Box<dyn Queue>, Function);

fn victim() -> Option<Victim> {
    let (device, _rest) = device()?;
    let function = function(&device, "store");
    let queue = queue(&device);
    Some((device, queue, function))
}

#[test]
fn an_illegal_address_names_its_kernel() {
    if !in_child("an_illegal_address_names_its_kernel") {
        return;
    }
    let Some((device, mut first, kernel)) = victim() else { return };
    let mut cell = alloc(&device, 4);
    let mut second = queue(&device);
    second.fill(cell.slice_mut(), 0).expect("this device's");
    second.sync().expect("no fault");
    let addr = cell.slice().addr();
    store(&mut *first, &kernel, "good", addr).expect("a plain launch");
    let good = first.mark().expect("no fault");
    first.sync().expect("no fault");
    store(&mut *first, &kernel, "bad", NOWHERE).expect("the launch itself is fine");
    store(&mut *first, &kernel, "innocent", addr).expect("it has not failed yet, or says so");
    let suspect = first.mark();
    let error = first.sync().expect_err("an illegal address");
    println!("{error}");
    let said = fault(error);
    assert_eq!((said.last_good, said.device_lost), (good.seq, true));
    assert!(said.kernels.contains(&"bad") && !said.kernels.contains(&"good"), "{said:?}");
    assert_eq!((said.driver.code, said.suspect), (700, suspect.map_or(2, |point| point.seq)));
    assert!(said.driver.text.contains("ILLEGAL_ADDRESS"), "{said:?}");
    // Sticky, and the same.
    for again in [first.fill(cell.slice_mut(), 1), first.sync(), first.mark().map(|_| ()), first.reserve_scratch(1)] {
        assert_eq!(fault(again.expect_err("the queue is lost")), said);
    }
    // Others learn of it as clearly.
    let other = second.sync().expect_err("the device is lost");
    println!("{other}");
    let other = fault(other);
    assert!(other.kernels.is_empty() && other.device_lost && other.driver.code == 700, "{other:?}");
    assert!(other.driver.text.contains("not by work of this queue"), "{other:?}");
    for kind in [MemoryKind::Device, MemoryKind::Pinned] {
        let refused = device.clone().alloc(64, kind).expect_err("the device is lost");
        println!("{refused}");
        assert!(fault(refused).device_lost);
    }
    assert!(device.memory().is_err() && device.clone().queue().is_err());
    // And everything can be dropped.
}

#[test]
fn a_fault_that_nobody_saw_can_be_dropped() {
    if !in_child("a_fault_that_nobody_saw_can_be_dropped") {
        return;
    }
    let Some((device, mut first, kernel)) = victim() else { return };
    let (held, second) = (alloc(&device, 1 << 20), queue(&device));
    let pinned = device.clone().alloc(1 << 20, MemoryKind::Pinned).expect("there is room");
    let graph = first.capture(|queue| store(queue, &kernel, "bad", NOWHERE)).expect("it is only recorded");
    // SAFETY: replayed to fail, in a process that has nothing to lose.
    unsafe { graph.replay(&mut *first) }.expect("the replay itself is fine");
    drop(held);
    drop((first, pinned, second, graph));
    drop(device);
}

#[test]
fn a_replayed_kernel_is_named_too() {
    if !in_child("a_replayed_kernel_is_named_too") {
        return;
    }
    let Some((device, mut first, kernel)) = victim() else { return };
    let graph = first.capture(|queue| store(queue, &kernel, "recorded", NOWHERE)).expect("it is only recorded");
    // SAFETY: replayed to fail, in a process that has nothing to lose.
    unsafe { graph.replay(&mut *first) }.expect("the replay itself is fine");
    let said = fault(first.download(&mut [], nothing(&device)).expect_err("an illegal address"));
    assert_eq!(said.kernels, ["recorded"]);
}

/// A view of no bytes.
fn nothing(device: &Arc<dyn Device>) -> kp_hal::Slice<'static> {
    // SAFETY: external, and of no bytes.
    unsafe { kp_hal::Slice::external(device.id(), 0, 0) }
}
