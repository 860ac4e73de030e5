//! A launch that was planned and run before allocates nothing, on no thread: every op, kernel and variant.

use kp_hal::{
    AnyProblem, Device,
    op::{EachOp, Op, OpVisitor, Problem, each_op},
};
use kp_testkit::{Loaded, inputs, judge_of};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

/// Counts the allocations of all threads, since launches are parallel.
struct Counting;

static COUNT: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, SeqCst);
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

/// Problems that take other ways than those of the floors: parallel, staged, by chunk and by tile, in batches.
const MORE: &[&str] = &[
    "gemm 1x1x512x512 bf16:bf16:bf16 b=col",
    "gemm 1x4x512x256 bf16:i4@g32/f16z:bf16 b=col",
    "gemm 1x8x256x300 f32:f32:f32",
    "gemm 1x200x300x600 bf16:bf16:bf16 b=col bias=f32 act=gelu gate=halves residual=bf16",
    "gemm 1x40x256x128 e4m3@1x128:e4m3@128x128:e4m3@1x128 b=col",
    "gemm 1x2x64x128 i8:i8:i32",
    "gemm 9x16x16x16 f64:f64:f64",
    "gemm 1x16x16x64 bf16:bf16:f32 sparse=2:4",
    "grouped_gemm 4x40x64x96 bf16:bf16:e4m3@row b=col",
    "attention 1x8:2x1:700x64 bf16:bf16:bf16",
    "attention 4x8:2x65:130x64 f32:f32:f32 mask=causal lse",
    "attention 3x4:2x5:20x16 bf16:e4m3@row:bf16 lens=padded page=4/17",
    "attention 1x2x16x32 f32:f32:f32 mask=(q%3!=k%3||b==1) softcap=50.0 sinks alibi",
    "attention_backward 2x4:2x70:150x64 bf16:bf16:bf16 mask=causal sinks",
    "norm 100x1000 bf16:e4m3@1x128 kind=rms weight=bf16",
    "norm_backward 200x300 bf16:bf16 kind=layer weight=bf16 bias",
    "quantize 40x512 bf16:e2m1@nv",
    "quantize 40x512 bf16:e4m3@128x128",
    "quantize 40x512 f32:i8@tensor",
    "quantize 40x512 f32:nf4@g64/f32",
    "reduce 300x200 bf16:f32 op=mean over=rows",
    "cast 3x100x200 bf16:f32 x=col",
    "activation 100x300 bf16:e4m3@row act=silu gate=pairs",
];

/// Allocations of launches after two that warm up, by kernel and problem, where there are any.
fn allocating<O: Op>(device: &Arc<dyn Device>, problem: &Problem<O::Spec>) -> Vec<String> {
    let mut found = Vec::new();
    let operands = inputs::<O>(problem, 1).expect("every op has a judge");
    for &kernel in O::kernels(kp_cpu::BACKEND.kernels()) {
        let Ok(variants) = kernel.supports(device.caps(), problem) else { continue };
        for variant in variants.iter() {
            let plan = kernel.plan(device, problem, variant).expect("what is supported can be planned");
            let mut queue = device.clone().queue().expect("a queue costs little");
            let mut loaded = Loaded::new(device, &mut *queue, &operands).expect("there is room");
            let args = loaded.args::<O>(&operands);
            let mut launch = || plan.launch(&mut *queue, &args).expect("the buffers fit");
            (0..2).for_each(|_| launch());
            let before = COUNT.load(SeqCst);
            (0..3).for_each(|_| launch());
            let count = COUNT.load(SeqCst) - before;
            if count > 0 {
                found.push(format!("{count} in three launches of {plan:?}"));
            }
        }
    }
    found
}

struct Ask<'d>(&'d Arc<dyn Device>);

impl OpVisitor for Ask<'_> {
    type Out = Vec<String>;
    fn visit<O: Op>(self, problem: &Problem<O::Spec>) -> Vec<String> {
        allocating::<O>(self.0, problem)
    }
}

struct Floors(Vec<&'static str>);

impl EachOp for Floors {
    fn op<O: Op>(&mut self) {
        self.0.extend((judge_of::<O>().expect("every op has a judge").floor)());
    }
}

// Alone in its file: another test would count too.
#[test]
fn a_steady_launch_allocates_nothing() {
    let device = kp_cpu::BACKEND.open(0).expect("the processor is always there");
    let before = COUNT.load(SeqCst);
    drop(std::hint::black_box(Box::new(1)));
    assert!(COUNT.load(SeqCst) > before, "the counter counts");
    let mut lines = Floors(MORE.to_vec());
    each_op(&mut lines);
    let parse = |line: &str| line.parse::<AnyProblem>().unwrap_or_else(|e| panic!("{line}: {e}"));
    // The first parallel launch starts threads, which allocate for themselves when the system first lets them run.
    parse(MORE[0]).visit(Ask(&device));
    std::thread::sleep(std::time::Duration::from_millis(300));
    let found: Vec<String> = lines.0.into_iter().flat_map(|line| parse(line).visit(Ask(&device))).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}
