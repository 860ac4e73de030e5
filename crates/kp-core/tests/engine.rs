//! Opening, choosing, explaining, and staying usable when things fail.

mod common;

use common::{ODD, engine, problem};
use kp_core::{
    Engine, Env, Error,
    hal::{
        Backend, Caps, Device, DeviceInfo, DeviceKind, DriverError, ErrorKind, Fault, Kernels, PciAddress, Result,
        op::{Gemm, GemmArgs},
    },
};
use kp_null::NullQueue;
use std::sync::{Arc, Barrier};

/// A backend that lists what a test says, and opens null devices.
struct Listing {
    name: &'static str,
    devices: fn() -> Result<Vec<DeviceInfo>>,
}

impl Backend for Listing {
    fn name(&self) -> &'static str {
        self.name
    }
    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        (self.devices)()
    }
    fn open(&self, index: u32) -> Result<Arc<dyn Device>> {
        // Index 9 is listed and does not open.
        if index == 9 { kp_null::BACKEND.open(9) } else { kp_null::BACKEND.open(0) }
    }
    fn kernels(&self) -> &'static Kernels {
        kp_null::BACKEND.kernels()
    }
}

fn info(name: &str, index: u32, kind: DeviceKind, bytes_per_s: f64, bus: Option<u8>) -> DeviceInfo {
    let mut caps = Caps::new(kind, "test");
    caps.bytes_per_s = bytes_per_s;
    let pci = bus.map(|bus| PciAddress { domain: 0, bus, device: 0, function: 0 });
    DeviceInfo { name: name.into(), index, driver: "1".into(), pci, uuid: None, caps }
}

static VENDOR: Listing = Listing {
    name: "vendor",
    devices: || {
        Ok(vec![
            info("Small GPU", 0, DeviceKind::Gpu, 1e11, Some(1)),
            info("Large GPU", 1, DeviceKind::Gpu, 1e12, Some(2)),
            info("Broken GPU", 9, DeviceKind::Gpu, 1e13, Some(3)),
        ])
    },
};
static PORTABLE: Listing = Listing {
    name: "portable",
    devices: || {
        Ok(vec![
            info("Large GPU (portable)", 0, DeviceKind::Gpu, 1e12, Some(2)),
            info("Integrated", 1, DeviceKind::IntegratedGpu, 1e14, None),
        ])
    },
};
static HOST: Listing =
    Listing { name: "host", devices: || Ok(vec![info("Processor", 0, DeviceKind::Cpu, 1e15, None)]) };
static ABSENT: Listing = Listing {
    name: "absent",
    devices: || {
        let why = "libabsent.so not found".into();
        Err(ErrorKind::Unavailable { what: "absent", why }.into())
    },
};

fn open(device: Option<&str>) -> kp_core::Result<Engine> {
    let env = Env { device: device.map(Into::into), wisdom: None };
    Engine::builder().only(&ABSENT).with(&HOST).with(&PORTABLE).with(&VENDOR).env(env).open()
}

#[test]
fn devices_are_ranked_once_and_each_card_is_listed_once() {
    let engine = open(None).expect("several devices open");
    let listed: Vec<String> = engine.devices().iter().map(ToString::to_string).collect();
    let expected = [
        r#"vendor:9 "Broken GPU""#,
        r#"vendor:1 "Large GPU""#,
        r#"vendor:0 "Small GPU""#,
        r#"portable:1 "Integrated""#,
        r#"host:0 "Processor""#,
    ];
    assert_eq!(listed, expected);
    // The best one does not open, so the next was taken, and both absences are remembered.
    assert_eq!(engine.backend().name(), "vendor");
    let absent: Vec<String> = engine.unavailable().iter().map(ToString::to_string).collect();
    assert_eq!(absent, ["absent (libabsent.so not found)", "vendor:9 (there is one device, index 0, got 9)"]);
}

#[test]
fn a_device_is_chosen_by_backend_number_or_name() {
    for (wanted, backend) in [
        ("vendor:1", "vendor"),
        ("portable", "portable"),
        ("portable:0", "portable"),
        ("host", "host"),
        ("integrated", "portable"),
        ("PROCESS", "host"),
        (" host ", "host"),
    ] {
        assert_eq!(open(Some(wanted)).expect(wanted).backend().name(), backend, "{wanted}");
    }
}

#[test]
fn an_unknown_device_is_answered_with_those_there_are() {
    for wanted in ["cuda", "vendor:2", "vendor:x", "host:", ":", "absent"] {
        let error = open(Some(wanted)).expect_err(wanted);
        assert!(matches!(error, Error::NoDevice(_)), "{error:?}");
        assert_eq!(
            error.to_string(),
            format!(
                "no device {wanted:?}: there is vendor:9 \"Broken GPU\", vendor:1 \"Large GPU\", vendor:0 \"Small GPU\", \
                 portable:1 \"Integrated\", host:0 \"Processor\", portable:0 \"Large GPU (portable)\"; \
                 unavailable: absent (libabsent.so not found); backends of this build: vendor, portable, host, absent"
            )
        );
    }
    let error = open(Some("vendor:9")).expect_err("asked for by name, so no other is taken");
    assert!(matches!(&error, Error::Hal(hal) if hal.is_unavailable()), "{error:?}");
    let none = Engine::builder().only(&ABSENT).env(Env::default()).open().expect_err("no device at all");
    assert_eq!(none.to_string(), "no device: there is none; unavailable: absent (libabsent.so not found)");
}

#[test]
fn the_winner_is_planned_once_and_named() {
    let engine = engine();
    let problem = problem("gemm 1x64x4096x4096 bf16:bf16:bf16");
    let plan = engine.plan(&problem).expect("the null device solves everything");
    assert_eq!(engine.how(&plan), "null/gemm/null_tiled#0");
    assert!(Arc::ptr_eq(&plan, &engine.plan(&problem).expect("planned before")));
    let mut site = engine.dispatcher::<Gemm>();
    assert!(Arc::ptr_eq(&plan, site.plan(&problem).expect("planned before")));
    engine.forget_plans();
    assert!(!Arc::ptr_eq(&plan, site.plan(&problem).expect("planned again")));
}

#[test]
fn explain_prints_a_table() {
    let text = engine().explain(&problem("gemm 1x64x4096x4096 bf16:bf16:bf16")).to_string();
    let expected = "\
Null Device (null, 16 units, 100 GB/s)          floor 537 µs: compute, 2.15 Gflop, stated peaks
  1  null_tiled#0    538 µs  estimated   3.99 Tflop/s  100% of peak speed
  2  null_tiled#1    538 µs  estimated   3.99 Tflop/s  100% of peak speed
  3  null_tiled#2   1.07 ms  estimated   2.00 Tflop/s   50% of peak speed  pads m from 64 to 128
  4  null_any#0     2.15 ms  estimated   1.00 Tflop/s   25% of peak speed
";
    assert_eq!(text, expected);
    let text = engine().explain(&problem("gemm 1x1x100x100 f32:f32:f32")).to_string();
    let expected = "\
Null Device (null, 16 units, 100 GB/s)          floor 408 ns: memory, 40.8 kB, stated peaks
  1  null_any#0   2.63 µs  estimated      15.5 GB/s   16% of peak speed
  –  null_tiled  a cannot be f32
";
    assert_eq!(text, expected);
}

#[test]
fn a_kernel_that_cannot_be_planned_gives_way_and_is_shown() {
    let engine = Engine::builder().only(&ODD).memory_only().device("odd").open().expect("the device opens");
    let problem = problem("gemm 1x8x8x8 f32:f32:f32");
    let plan = engine.plan(&problem).expect("the next kernel plans");
    assert_eq!(plan.label().to_string(), "slow#0");
    let explained = engine.explain(&problem);
    let text = explained.to_string();
    assert!(
        text.contains("!  unplannable#0  cannot be planned: out of memory: wanted 7 bytes, 3 of 5 are free"),
        "{text}"
    );
    assert!(text.contains("–  picky          k must be a multiple of 1000, got 8"), "{text}");
    assert_eq!(explained.winner().map(|row| &*row.label), Some("slow#0"));
}

#[test]
fn a_problem_nobody_solves_names_every_reason() {
    let engine = Engine::builder().only(&ODD).memory_only().device("odd").open().expect("the device opens");
    let softmax = "softmax 4x8 f32:f32".parse::<kp_core::hal::op::SoftmaxProblem>().expect("well formed");
    let error = engine.plan(&softmax).expect_err("the backend has no softmax");
    assert_eq!(error.to_string(), "unsupported: the backend has no kernel of this op");
    assert!(engine.explain(&softmax).to_string().contains("the backend has no kernel of this op"));
    // Only f32 is planned by any kernel: all refuse, none is left out.
    let error = engine.plan(&problem("gemm 1x8x8x8 f16:f16:f16")).expect_err("nobody multiplies f16");
    let ErrorKind::Unsupported(reasons) = error.kind() else { panic!("{error}") };
    assert_eq!(reasons.iter().map(|(kernel, _)| *kernel).collect::<Vec<_>>(), ["unplannable", "picky", "slow"]);
}

#[test]
fn no_memory_is_an_error_and_no_end() {
    let engine = engine();
    for bytes in [u64::MAX, 1 << 40] {
        let error = engine.alloc(bytes).expect_err("more than there is");
        assert!(matches!(error.kind(), ErrorKind::OutOfMemory { wanted, .. } if *wanted == bytes), "{error}");
    }
    assert!(engine.alloc(64).is_ok());
}

#[test]
fn a_panic_while_the_queue_is_locked_ends_nothing() {
    let engine = engine();
    let panicked = std::thread::scope(|scope| {
        let held = scope.spawn(|| {
            let _queue = engine.default_queue();
            panic!("of a user");
        });
        held.join()
    });
    assert!(panicked.is_err());
    engine.default_queue().sync().expect("the queue works on");
}

#[test]
fn a_faulted_queue_can_be_replaced() {
    let engine = engine();
    let driver = DriverError { call: "launch", code: 700, text: "illegal address".into() };
    let fault = Fault { last_good: 0, suspect: 1, kernels: vec!["null_any"], driver, device_lost: false };
    engine.default_queue().downcast_mut::<NullQueue>().expect("a null queue").break_with(fault);
    assert!(engine.default_queue().sync().is_err());
    assert!(engine.default_queue().sync().is_err(), "a fault stays");
    engine.renew_default_queue().expect("a queue costs nothing");
    assert!(engine.default_queue().sync().is_ok());
}

/// More problems than a dispatcher has places and than the cache keeps, from many threads at once, while plans are
/// forgotten: every plan must be for the problem asked.
#[test]
fn many_threads_get_the_plans_they_ask_for() {
    const THREADS: u32 = 8;
    let engine = engine();
    let start = Barrier::new(THREADS as usize);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (engine, start) = (engine.clone(), &start);
            scope.spawn(move || {
                let mut queue = engine.queue().expect("a queue for each thread");
                let mut site = engine.dispatcher::<Gemm>();
                let (a, b) = (engine.alloc(6000 * 64).expect("room"), engine.alloc(64 * 64).expect("room"));
                let mut d = engine.alloc(6000 * 64).expect("room");
                let problems: Vec<_> = (1..=700)
                    .map(|m| problem(&format!("gemm 1x{}x16x16 f32:f32:f32", m * (1 + thread % 2 * 7))))
                    .collect();
                start.wait();
                for round in 0..6 {
                    for problem in &problems {
                        let plan = engine.plan(problem).expect("the null device solves everything");
                        assert_eq!(plan.problem(), problem);
                        assert_eq!(site.plan(problem).expect("as above").problem(), problem);
                        let args = GemmArgs::new(a.slice(), b.slice(), d.slice_mut());
                        site.run(&mut *queue, problem, &args).expect("the buffers are large enough");
                    }
                    if thread == 0 && round % 2 == 1 {
                        engine.forget_plans();
                    }
                }
            });
        }
    });
}
