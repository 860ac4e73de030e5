//! Host time of what a program does between kernels, beside the driver's own calls: `cargo bench -p kp-nvidia`.
//!
//! Each line is the median over rounds of the time per call, in nanoseconds. A round makes its calls back to back into an
//! idle stream, fewer than the driver queues up, and its wait for the device is not counted.

use cudarc::driver::sys;
use kp_hal::{Device, MemoryKind, Queue};
use kp_nvidia::{BACKEND, Config, Function, NvidiaDevice, NvidiaQueue};
use std::{ffi::c_void, ptr, sync::Arc, time::Instant};

const ROUNDS: usize = 400;
const CALLS: usize = 200;

const PTX: &str = "
.version 7.8
.target sm_70
.address_size 64
.visible .entry nothing(.param .u64 a, .param .u64 b, .param .u64 c)
{
    ret;
}
.visible .entry spin(.param .u64 ns)
{
    .reg .u64 %n, %from, %to, %d;
    .reg .pred %more;
    ld.param.u64 %n, [ns];
    mov.u64 %from, %globaltimer;
again:
    mov.u64 %to, %globaltimer;
    sub.u64 %d, %to, %from;
    setp.lt.u64 %more, %d, %n;
    @%more bra again;
    ret;
}
\0";

fn main() {
    // cargo test runs benches too, to see that they start.
    let rounds = if std::env::args().any(|arg| arg == "--bench") { ROUNDS } else { 2 };
    let device = BACKEND.devices().and_then(|list| match list.first() {
        Some(info) => BACKEND.open(info.index).map(Some),
        None => Ok(None),
    });
    match device {
        Ok(Some(device)) => measure(&device, rounds),
        Ok(None) => println!("skipped: the driver has no device"),
        Err(e) => println!("skipped: {e}"),
    }
}

fn measure(device: &Arc<dyn Device>, rounds: usize) {
    let ours: &NvidiaDevice = device.downcast_ref().expect("a device of this backend");
    // SAFETY: PTX that ends with NUL.
    let function = unsafe { ours.load(PTX.as_bytes(), "nothing") }.expect("the driver takes plain PTX");
    let mut queue = device.clone().queue().expect("a queue");
    println!("{}, driver {}, {rounds} rounds of {CALLS} calls, ns per call", device.info().name, device.info().driver);
    let plain = Config::new([1, 1, 1], 32);
    let full = Config { cluster: 2, programmatic: true, ..Config::new([2, 1, 1], 32) };
    for (what, config) in [("plain", plain), ("cluster and programmatic", full)] {
        if config.cluster > 1 && !device.caps().has("clusters") {
            continue;
        }
        let [mut kp, mut driver, mut same] = [const { Vec::new() }; 3];
        for _ in 0..rounds {
            driver.push(timed(&mut *queue, |queue| raw_launch(queue, &function, &config)));
            kp.push(timed(&mut *queue, |queue| kp_launch(queue, &function, &config)));
            same.push(timed(&mut *queue, |queue| raw_launch(queue, &function, &config)));
        }
        let [kp, driver, same] = [kp, driver, same].map(median);
        println!("launch, {what}: kp {kp:.0}, driver {driver:.0} and {same:.0}, kp adds {:.0}", kp - driver.min(same));
    }
    let mut one = |what: &str, call: &mut dyn FnMut(&mut dyn Queue)| {
        println!("{what}: {:.0}", median((0..rounds).map(|_| timed(&mut *queue, &mut *call)).collect()));
    };
    let mut buffer = device.clone().alloc(1 << 20, MemoryKind::Device).expect("there is room");
    one("mark", &mut |queue| assert!(queue.mark().expect("no fault").seq > 0));
    one("fill of 1 KiB", &mut |queue| queue.fill(buffer.slice_mut().at(0..1024), 1).expect("this device's"));
    for bytes in [64_usize, 4096, 65_536, 1 << 20] {
        let source = vec![1; bytes];
        let part = 0..bytes as u64;
        let upload = &mut |queue: &mut dyn Queue| {
            queue.upload(buffer.slice_mut().at(part.clone()), &source).expect("same length")
        };
        one(&format!("upload of {bytes} bytes"), upload);
    }
    for bytes in [1 << 10, 1 << 20, 1 << 26] {
        let alloc = || device.clone().alloc(bytes, MemoryKind::Device).expect("there is room");
        one(&format!("alloc and drop of {bytes} bytes, unused"), &mut |_| drop(alloc()));
        one(&format!("alloc, launch and drop of {bytes} bytes"), &mut |queue| {
            let used = alloc();
            kp_launch(queue, &function, &plain);
            drop(used);
        });
    }
    one("sync of an idle queue", &mut |queue| queue.sync().expect("no fault"));
    one("launch and sync", &mut |queue| {
        kp_launch(queue, &function, &plain);
        queue.sync().expect("no fault");
    });
    let context = current();
    // SAFETY: the context that is current already.
    one("driver: cuCtxSetCurrent", &mut |_| assert_eq!(unsafe { sys::cuCtxSetCurrent(context) }, OK));
    one("driver: cuCtxGetCurrent", &mut |_| assert_eq!(current(), context));
    transfers(device, &mut *queue, rounds.min(10));
}

const OK: sys::CUresult = sys::CUresult::CUDA_SUCCESS;

fn current() -> sys::CUcontext {
    let mut context = ptr::null_mut();
    // SAFETY: asks for a pointer.
    assert_eq!(unsafe { sys::cuCtxGetCurrent(&mut context) }, OK);
    context
}

/// Bytes between the host and the device, and whether the host waits for the work before them.
fn transfers(device: &Arc<dyn Device>, queue: &mut dyn Queue, rounds: usize) {
    let ours: &NvidiaDevice = device.downcast_ref().expect("a device of this backend");
    // SAFETY: PTX that ends with NUL.
    let spin = unsafe { ours.load(PTX.as_bytes(), "spin") }.expect("the driver takes plain PTX");
    for bytes in [64 << 10, 1 << 20, 16 << 20, 256 << 20] {
        let mut there = device.clone().alloc(bytes, MemoryKind::Device).expect("there is room");
        let pinned = device.clone().alloc(bytes, MemoryKind::Pinned).expect("there is room");
        let mut here = vec![1; bytes as usize];
        let [mut up, mut down, mut copied, mut behind] = [const { Vec::new() }; 4];
        for _ in 0..rounds {
            let seconds = |queue: &mut dyn Queue, work: &mut dyn FnMut(&mut dyn Queue)| {
                queue.sync().expect("no fault");
                let start = Instant::now();
                work(queue);
                let host = start.elapsed();
                queue.sync().expect("no fault");
                (host.as_secs_f64(), start.elapsed().as_secs_f64())
            };
            up.push(seconds(queue, &mut |queue| queue.upload(there.slice_mut(), &here).expect("same length")).1);
            down.push(seconds(queue, &mut |queue| queue.download(&mut here, there.slice()).expect("same length")).1);
            copied.push(
                seconds(queue, &mut |queue| queue.copy(there.slice_mut(), pinned.slice()).expect("same length")).1,
            );
            behind.push(
                seconds(queue, &mut |queue| {
                    spin_for(queue, &spin, 20_000_000);
                    queue.upload(there.slice_mut(), &here).expect("same length");
                })
                .0,
            );
        }
        let rate = |times: Vec<f64>| bytes as f64 / median(times) / 1e9;
        let (up, down, copied) = (rate(up), rate(down), rate(copied));
        println!(
            "{bytes} bytes: upload {up:.1}, download {down:.1}, copy from pinned {copied:.1} GB/s; \
             an upload behind 20 ms of work returns after {:.2} ms",
            median(behind) * 1e3
        );
    }
}

fn spin_for(queue: &mut dyn Queue, spin: &Function, mut nanos: u64) {
    let queue: &mut NvidiaQueue = queue.downcast_mut().expect("a queue of this backend");
    let mut params = [(&raw mut nanos).cast::<c_void>()];
    // SAFETY: external to all memory; one 64-bit parameter, as the kernel has.
    unsafe { queue.launch("spin", spin, &Config::new([1, 1, 1], 1), &mut params) }.expect("a plain launch");
}

/// Nanoseconds per call.
fn timed(queue: &mut dyn Queue, mut call: impl FnMut(&mut dyn Queue)) -> f64 {
    queue.sync().expect("no fault");
    let start = Instant::now();
    (0..CALLS).for_each(|_| call(queue));
    let time = start.elapsed();
    queue.sync().expect("no fault");
    time.as_nanos() as f64 / CALLS as f64
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn kp_launch(queue: &mut dyn Queue, function: &Function, config: &Config) {
    let queue: &mut NvidiaQueue = queue.downcast_mut().expect("a queue of this backend");
    let mut values = [1_u64, 2, 3];
    let mut params = values.each_mut().map(|value| ptr::from_mut(value).cast::<c_void>());
    // SAFETY: external to all memory; three 64-bit parameters, as the kernel has.
    unsafe { queue.launch("nothing", function, config, &mut params) }.expect("a plain launch");
}

/// The least a program can do: the same call with everything at hand.
fn raw_launch(queue: &mut dyn Queue, function: &Function, config: &Config) {
    let queue: &mut NvidiaQueue = queue.downcast_mut().expect("a queue of this backend");
    let mut values = [1_u64, 2, 3];
    let mut params = values.each_mut().map(|value| ptr::from_mut(value).cast::<c_void>());
    let cluster = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: config.cluster, y: 1, z: 1 };
    let mut attributes = [
        sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { clusterDim: cluster },
        },
        sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        },
    ];
    let raw = sys::CUlaunchConfig {
        gridDimX: config.grid[0],
        gridDimY: config.grid[1],
        gridDimZ: config.grid[2],
        blockDimX: config.block,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: config.shared_bytes,
        hStream: queue.stream_ptr() as sys::CUstream,
        attrs: attributes.as_mut_ptr(),
        numAttrs: if config.cluster > 1 { 2 } else { 0 },
    };
    // SAFETY: stream and function are alive; the driver copies the rest before it returns.
    let result = unsafe {
        sys::cuLaunchKernelEx(&raw, function.raw_ptr() as sys::CUfunction, params.as_mut_ptr(), ptr::null_mut())
    };
    assert_eq!(result, OK);
}
