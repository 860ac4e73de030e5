//! A launch that was planned before allocates nothing, whichever way the plan is found.

mod common;

use common::engine;
use kp_core::hal::op::{Gemm, GemmArgs, GemmProblem};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

/// Counts this thread's allocations, so that others of the test harness do not matter.
struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
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

/// Allocations of a thousand calls after one that warms up.
fn allocations(mut call: impl FnMut()) -> u64 {
    call();
    let before = COUNT.get();
    (0..1000).for_each(|_| call());
    COUNT.get() - before
}

#[test]
fn a_steady_launch_allocates_nothing() {
    let engine = engine();
    let mut queue = engine.queue().expect("a queue costs nothing");
    let (a, b) = (engine.alloc(64 * 64 * 4).expect("room"), engine.alloc(64 * 64 * 4).expect("room"));
    let mut d = engine.alloc(64 * 64 * 4).expect("room");
    let problems: Vec<GemmProblem> =
        (1..=16).map(|m| format!("gemm 1x{m}x64x64 bf16:bf16:f32").parse().expect("well formed")).collect();
    let plan = engine.plan(&problems[0]).expect("planned");

    assert_eq!(1000, allocations(|| drop(std::hint::black_box(Box::new(1)))), "the counter counts");

    let held = allocations(|| {
        plan.launch(&mut *queue, &GemmArgs::new(a.slice(), b.slice(), d.slice_mut())).expect("the buffers fit");
    });
    assert_eq!(held, 0, "a held plan");

    let mut site = engine.dispatcher::<Gemm>();
    let one = allocations(|| {
        let args = GemmArgs::new(a.slice(), b.slice(), d.slice_mut());
        site.run(&mut *queue, &problems[0], &args).expect("the buffers fit");
    });
    assert_eq!(one, 0, "a dispatcher, one problem");

    let many = allocations(|| {
        for problem in &problems {
            let args = GemmArgs::new(a.slice(), b.slice(), d.slice_mut());
            site.run(&mut *queue, problem, &args).expect("the buffers fit");
        }
    });
    assert_eq!(many, 0, "a dispatcher, 16 problems");

    let shared = allocations(|| {
        for problem in &problems {
            let args = GemmArgs::new(a.slice(), b.slice(), d.slice_mut());
            engine.plan(problem).expect("planned").launch(&mut *queue, &args).expect("the buffers fit");
        }
    });
    assert_eq!(shared, 0, "the shared cache");

    // More than a dispatcher has places: the others come from the shared cache, still without allocating.
    let crowd: Vec<GemmProblem> = (1..=1000)
        .map(|m| format!("gemm 1x64x64x{} bf16:bf16:f32", m % 64 + 1).parse().expect("well formed"))
        .collect();
    let crowded = allocations(|| {
        for problem in &crowd {
            let args = GemmArgs::new(a.slice(), b.slice(), d.slice_mut());
            site.run(&mut *queue, problem, &args).expect("the buffers fit");
        }
    });
    assert_eq!(crowded, 0, "a dispatcher, more problems than places");
}
