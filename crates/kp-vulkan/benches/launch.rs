//! Host time of what a program does between kernels: `cargo bench -p kp-vulkan --bench launch`.
//!
//! Each line is the median over rounds of the time per call, in nanoseconds. A round makes its calls back to back into an idle
//! queue; its wait for the device is not counted. The second number is with that wait.

use kp_hal::{
    Device, Kernel, MemoryKind, Queue, Variant,
    op::{Cast, CastArgs, CastProblem},
};
use kp_vulkan::{BACKEND, KERNELS};
use std::{sync::Arc, time::Instant};

const ROUNDS: usize = 200;
const CALLS: usize = 200;

fn main() {
    // cargo test runs benches too, to see that they start.
    let rounds = if std::env::args().any(|arg| arg == "--bench") { ROUNDS } else { 2 };
    match BACKEND.open(0) {
        Ok(device) => measure(&device, rounds),
        Err(e) => println!("skipped: {e}"),
    }
}

fn measure(device: &Arc<dyn Device>, rounds: usize) {
    println!("{}, driver {}, {rounds} rounds, ns per call", device.info().name, device.info().driver);
    let problem: CastProblem = "cast 1x1x64 f32:f32".parse().expect("a problem");
    let kernel: &dyn Kernel<Cast> =
        KERNELS.cast.iter().find(|one| one.supports(device.caps(), &problem).is_ok()).copied().expect("a kernel");
    let plan = kernel.plan(device, &problem, Variant(0)).expect("a plan");
    let alloc = || device.clone().alloc(256, MemoryKind::Device).expect("there is room");
    let (x, mut y) = (alloc(), alloc());
    let mut queue = device.clone().queue().expect("a queue");
    let mut one = |what: &str, calls: usize, call: &mut dyn FnMut(&mut dyn Queue)| {
        let times: Vec<_> = (0..rounds).map(|_| timed(&mut *queue, calls, &mut *call)).collect();
        let (told, done) = (median(times.iter().map(|t| t.0)), median(times.iter().map(|t| t.1)));
        println!("{what}: {told:.0}, {done:.0} when done");
    };
    for calls in [1, 10, 100, 200, 1000] {
        one(&format!("launch, {calls} in a row"), calls, &mut |queue| {
            let args = CastArgs { x: x.slice(), y: y.slice_mut() };
            plan.launch(queue, &args).expect("no fault");
        });
    }
    one("mark", CALLS, &mut |queue| assert!(queue.mark().expect("no fault").seq > 0));
    one("fill of 256 bytes", CALLS, &mut |queue| queue.fill(y.slice_mut(), 1).expect("this device's"));
    one("sync of an idle queue", CALLS, &mut |queue| queue.sync().expect("no fault"));
    one("launch and sync", CALLS, &mut |queue| {
        let args = CastArgs { x: x.slice(), y: y.slice_mut() };
        plan.launch(queue, &args).expect("no fault");
        queue.sync().expect("no fault");
    });
    let mut queue = device.clone().queue().expect("a queue");
    let mut args = CastArgs { x: x.slice(), y: y.slice_mut() };
    let graph = plan.record(&mut *queue, &mut args, 100).expect("a recording");
    for calls in [1, 10, 100] {
        let times: Vec<_> =
            (0..rounds).map(|_| timed(&mut *queue, calls, |queue| graph.replay(queue).expect("no fault"))).collect();
        let (told, done) = (median(times.iter().map(|t| t.0)), median(times.iter().map(|t| t.1)));
        println!("replay of 100 launches, {calls} in a row: {told:.0}, {done:.0} when done");
    }
}

/// Nanoseconds per call: until all were made, and until all are done.
fn timed(queue: &mut dyn Queue, calls: usize, mut call: impl FnMut(&mut dyn Queue)) -> (f64, f64) {
    queue.sync().expect("no fault");
    let start = Instant::now();
    (0..calls).for_each(|_| call(queue));
    let told = start.elapsed();
    queue.sync().expect("no fault");
    let done = start.elapsed();
    (told.as_nanos() as f64 / calls as f64, done.as_nanos() as f64 / calls as f64)
}

fn median(times: impl Iterator<Item = f64>) -> f64 {
    let mut times: Vec<f64> = times.collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
