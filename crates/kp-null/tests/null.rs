//! What is real about a backend that runs nothing: its memory, its queues, its recordings.

use kp_hal::{
    Device, DriverError, ErrorKind, Fault, MemoryKind, Queue, Variant,
    op::{Gemm, GemmArgs, GemmProblem, Op},
};
use kp_null::{BACKEND, NullQueue};
use std::sync::Arc;

fn device() -> Arc<dyn Device> {
    BACKEND.open(0).expect("the null device opens")
}

fn queue(device: &Arc<dyn Device>) -> Box<dyn Queue> {
    device.clone().queue().expect("a queue costs nothing")
}

#[test]
fn bytes_survive_the_way_there_and_back() {
    let device = device();
    let mut q = queue(&device);
    let alloc = |bytes| device.clone().alloc(bytes, MemoryKind::Device).expect("there is room");
    let (mut a, mut b) = (alloc(300), alloc(300));
    let bytes: Vec<u8> = (0..300).map(|i| i as u8).collect();
    q.upload(a.slice_mut(), &bytes).expect("same length");
    q.copy(b.slice_mut(), a.slice()).expect("same length");
    q.fill(b.slice_mut().at(0..10), 7).expect("in range");
    let mut back = vec![0; 300];
    q.download(&mut back, b.slice()).expect("same length");
    assert_eq!(back[..10], [7; 10]);
    assert_eq!(back[10..], bytes[10..]);
    assert!(q.upload(a.slice_mut(), &bytes[1..]).is_err());
    assert_eq!(a.slice().addr() % 256, 0);
}

#[test]
fn memory_is_counted_and_runs_out() {
    let device = device();
    let total = device.memory().expect("counted").total;
    let half = device.clone().alloc(total / 2, MemoryKind::Device).expect("half fits");
    for wanted in [total / 2 + 1, u64::MAX] {
        let error = device.clone().alloc(wanted, MemoryKind::Device).expect_err("more than is left");
        assert_eq!(*error.kind(), ErrorKind::OutOfMemory { wanted, free: total - total / 2, total });
    }
    drop(half);
    assert_eq!(device.memory().expect("counted").free, total);
}

#[test]
fn a_recording_runs_when_replayed_and_not_before() {
    let device = device();
    let mut q = queue(&device);
    let mut a = device.clone().alloc(4, MemoryKind::Device).expect("there is room");
    q.fill(a.slice_mut(), 1).expect("in range");
    let graph = q.capture(|q| q.fill(a.slice_mut(), 2)).expect("fills are recorded");
    let refused = q.capture(|q| q.sync()).err().expect("nothing to wait for while recording");
    assert!(matches!(refused.kind(), ErrorKind::NotCapturable { .. }));
    let mut back = [0; 4];
    q.download(&mut back, a.slice()).expect("same length");
    assert_eq!(back, [1; 4]);
    // SAFETY: `a` is alive and no other queue exists.
    unsafe { graph.replay(&mut *q) }.expect("same device");
    q.download(&mut back, a.slice()).expect("same length");
    assert_eq!(back, [2; 4]);
}

#[test]
fn marks_are_reached_and_timed() {
    let device = device();
    let mut q = queue(&device);
    let first = q.mark().expect("no fault");
    std::thread::sleep(std::time::Duration::from_millis(2));
    let last = q.mark().expect("no fault");
    assert!(q.reached(last).expect("no fault"));
    assert!(q.elapsed(first, last).expect("no fault").expect("both are recent").0 >= 2_000_000);
    for _ in 0..1024 {
        q.mark().expect("no fault");
    }
    assert_eq!(q.elapsed(first, last), Ok(None));
}

#[test]
fn every_gemm_kernel_plans_and_launches() {
    let device = device();
    let mut q = queue(&device);
    let problem: GemmProblem = "gemm 1x16x32x64 bf16:bf16:f32".parse().expect("well formed");
    let alloc = |bytes| device.clone().alloc(bytes, MemoryKind::Device).expect("there is room");
    let (a, b, mut d) = (alloc(16 * 64 * 2), alloc(64 * 32 * 2), alloc(16 * 32 * 4));
    let mut expected = 0;
    for kernel in Gemm::kernels(BACKEND.kernels()) {
        let variants = kernel.supports(device.caps(), &problem).expect("a plain problem");
        for variant in variants.iter() {
            let plan = kernel.plan(&device, &problem, variant).expect("planning costs nothing");
            plan.launch(&mut *q, &GemmArgs::new(a.slice(), b.slice(), d.slice_mut())).expect("the buffers fit");
            expected += 1;
        }
    }
    assert_eq!(expected, 4);
    let null: &mut NullQueue = q.downcast_mut().expect("a queue of this backend");
    assert_eq!(null.launches(), expected);
    assert!(Gemm::kernels(BACKEND.kernels())[0].plan(&device, &problem, Variant(0)).is_ok());
}

#[test]
fn a_fault_stays() {
    let device = device();
    let mut q = queue(&device);
    let driver = DriverError { call: "launch", code: 700, text: "illegal address".into() };
    let fault = Fault { last_good: 0, suspect: 1, kernels: vec!["null_any"], driver, device_lost: false };
    q.downcast_mut::<NullQueue>().expect("a queue of this backend").break_with(fault.clone());
    for _ in 0..2 {
        assert_eq!(*q.sync().expect_err("faulted").kind(), ErrorKind::Fault(fault.clone()));
    }
    assert!(queue(&device).sync().is_ok());
}
