//! What kp itself costs on the host: finding a plan and launching it, ranking, reading and writing problems.
//!
//! The kernels are the null backend's, so nothing but kp is timed. `cargo bench -p kp-core --bench dispatch` measures
//! with criterion; `-- --table` prints one line for each, with allocations and the bar it must keep, and fails if one
//! is missed.

use criterion::Criterion;
use kp_core::{
    Engine, Env,
    hal::op::{Gemm, GemmArgs, GemmProblem},
};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    hint::black_box,
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One thing to time.
struct Row<'r> {
    name: &'static str,
    /// Most nanoseconds and allocations it may take; 0 nanoseconds if there is no bar.
    bar: (u64, u64),
    call: Box<dyn FnMut() + 'r>,
}

const TEXT: &str = "gemm 1x4096x7168x2048 e4m3@1x128:e4m3@128x128:bf16 b=col";

fn main() {
    let null = || Engine::builder().only(kp_null::BACKEND).env(Env::default()).open().expect("the null device opens");
    // The backends of this build and, in case there are none, null.
    let open = || Engine::builder().with(kp_null::BACKEND).env(Env::default()).open().expect("some device opens");
    let engine = null();
    let problem: GemmProblem = "gemm 1x64x64x64 e4m3:e4m3:bf16".parse().expect("well formed");
    let problems: Vec<GemmProblem> =
        (1..=16).map(|m| format!("gemm 1x{m}x64x64 e4m3:e4m3:bf16").parse().expect("well formed")).collect();
    let long: GemmProblem = TEXT.parse().expect("well formed");
    let buffer = |bytes| engine.alloc(bytes).expect("there is room");
    let (a, b, mut d) = (buffer(4096), buffer(4096), buffer(8192));
    let d = std::cell::RefCell::new(d.slice_mut());
    let queue = std::cell::RefCell::new(engine.queue().expect("a queue costs nothing"));
    let plan = engine.plan(&problem).expect("planned");
    let (mut one, mut many, mut turn) = (engine.dispatcher::<Gemm>(), engine.dispatcher::<Gemm>(), 0);

    macro_rules! launch {
        ($args:ident, $queue:ident => $launch:expr) => {
            || {
                let (mut d, mut queue) = (d.borrow_mut(), queue.borrow_mut());
                let ($args, $queue) = (GemmArgs::new(a.slice(), b.slice(), d.reborrow()), &mut **queue);
                $launch.expect("the buffers fit");
            }
        };
    }
    let row = |name, bar, call| Row { name, bar, call };
    let mut rows = vec![
        row("held plan", (20, 0), Box::new(launch!(args, queue => plan.launch(queue, &args))) as Box<dyn FnMut()>),
        row(
            "dispatcher, one problem",
            (50, 0),
            Box::new(launch!(args, queue => one.run(queue, black_box(&problem), &args))),
        ),
        row(
            "dispatcher, 16 problems in turn",
            (50, 0),
            Box::new(launch!(args, queue => {
                turn = (turn + 1) % 16;
                many.run(queue, black_box(&problems[turn]), &args)
            })),
        ),
        row(
            "shared cache",
            (100, 0),
            Box::new(
                launch!(args, queue => engine.plan(black_box(&problem)).and_then(|plan| plan.launch(queue, &args))),
            ),
        ),
        row(
            "rank 4 candidates of 2 kernels",
            (0, 9),
            Box::new(|| drop(black_box(engine.candidates(black_box(&problem))))),
        ),
        row("explain", (0, 99), Box::new(|| drop(black_box(engine.explain(black_box(&problem)))))),
        row("parse a problem", (0, 9), Box::new(|| drop(black_box(black_box(TEXT).parse::<GemmProblem>())))),
        row("print a problem", (0, 9), Box::new(|| drop(black_box(black_box(&long).to_string())))),
        row("open an engine", (20_000_000, 999), Box::new(|| drop(black_box(open())))),
    ];

    if std::env::args().any(|arg| arg == "--table") {
        let missed = rows.iter_mut().filter_map(print).count();
        std::process::exit(i32::from(missed > 0));
    }
    let mut criterion = Criterion::default().configure_from_args();
    for Row { name, call, .. } in &mut rows {
        criterion.bench_function(name, |bencher| bencher.iter(&mut *call));
    }
    criterion.final_summary();
}

/// Prints one line; answers whether a bar was missed.
fn print(row: &mut Row<'_>) -> Option<()> {
    let Row { name, bar: (most_ns, most_allocations), call } = row;
    let time = |call: &mut dyn FnMut(), calls: u64| {
        let start = Instant::now();
        (0..calls).for_each(|_| call());
        start.elapsed().as_nanos() as f64 / calls as f64
    };
    // Some rows go through 16 problems, each planned at its first turn.
    (0..16).for_each(|_| call());
    // A reading of about 100 µs fits into one turn on the processor, so the best of many was not interrupted.
    let first = time(&mut **call, 10).max(1.0);
    let calls = (1e5 / first).clamp(1.0, 1e5) as u64;
    // Two thousand of them, or what two seconds hold.
    let readings = (2e9 / (first * calls as f64)).clamp(1.0, 2000.0) as u64;
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    let best = (0..readings).map(|_| time(&mut **call, calls)).fold(f64::MAX, f64::min);
    let allocations = (ALLOCATIONS.load(Ordering::Relaxed) - before) as f64 / (readings * calls) as f64;
    let slow = *most_ns > 0 && best > *most_ns as f64;
    let missed = slow || allocations > *most_allocations as f64;
    let bar = if *most_ns > 0 { format!("≤ {most_ns} ns") } else { String::new() };
    println!("{name:<34} {best:>10.1} ns  {allocations:>4.0} allocs  {bar:<15} {}", if missed { "MISSED" } else { "" });
    missed.then_some(())
}
