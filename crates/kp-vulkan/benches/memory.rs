//! Kernels that move more than they compute, against a copy of the same card: `cargo bench -p kp-vulkan --bench memory`.
//!
//! Each line is a problem and a kernel's variant: bytes moved per second, alone and over those of a copy. Times are between marks
//! around launches back to back, the median of several; what is moved exceeds every cache. Arguments are problems to take in place
//! of the list.

use kp_hal::{
    AnyProblem, Args, Buffer, DType, Device, MemoryKind, Op, Problem, Queue, Result,
    op::{OpVisitor, Spec, View, needs},
};
use kp_vulkan::{BACKEND, KERNELS};
use std::sync::Arc;

const LAUNCHES: u32 = 10;
const ROUNDS: usize = 5;

const PROBLEMS: &[&str] = &[
    "gemm 1x1x8192x8192 f16:f16:f16 b=col",
    "gemm 1x1x16384x8192 bf16:bf16:bf16 b=col",
    "gemm 1x8x16384x8192 f16:f16:f16 b=col",
    "gemm 1x1x32768x8192 f16:i4@g128/f16:f16 b=col",
    "gemm 1x1x32768x8192 f16:nf4@g64/f32:f16 b=col",
    "gemm 1x1x32768x8192 f16:e2m1@mx:f16 b=col",
    "gemm 1x1x32768x8192 f16:e2m1@nv:f16 b=col",
    "gemm 1x1x32768x8192 f16:e4m3@row:f16 b=col",
    "gemm 1x4x32768x8192 f16:i4@g128/f16:f16 b=col",
    "gemm 1x8x32768x8192 f16:i4@g128/f16:f16 b=col",
    "attention 1x32:8x1:65536x128 bf16:bf16:bf16",
    "attention 1x32:8x1:65536x128 f16:f16:f16",
    "attention 4x32x1:65536x128 f16:f16:f16",
    "norm 16384x8192 bf16:bf16 kind=rms weight=bf16",
    "norm 65536x4096 f16:f16 kind=layer weight=f16 bias=f16",
    "norm 16384x8192 bf16:bf16 kind=rms weight=bf16 residual",
    "quantize 16384x8192 bf16:e4m3@row",
    "quantize 16384x8192 bf16:e4m3@1x128",
    "quantize 16384x8192 bf16:e4m3@tensor",
    "quantize 16384x8192 bf16:e2m1@mx",
    "quantize 16384x8192 bf16:e2m1@nv",
    "quantize 16384x8192 f16:i4@g128/f16",
    "activation 16384x8192 bf16:bf16 act=silu gate=halves",
    "activation 16384x8192 f16:f16 act=gelu",
    "cast 1x16384x8192 f32:bf16",
    "cast 1x16384x8192 bf16:f32",
    "cast 1x16384x8192 f16:e4m3",
    "dequantize 16384x8192 e4m3@1x128:bf16",
    "dequantize 32768x8192 i4@g128/f16:f16",
    "dequantize 32768x8192 e2m1@mx:bf16",
    "softmax 16384x8192 bf16:bf16",
    "rope 16384x32x128 bf16:bf16 positions=16384",
    "reduce 16384x8192 bf16:f32 op=sum",
    "reduce 16384x8192 bf16:f32 op=sum over=rows",
    "gather 16384x8192 bf16:bf16 from=16384",
];

fn main() {
    let given: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    // cargo test runs benches too, to see that they start.
    let full = std::env::args().any(|arg| arg == "--bench");
    let lines: Vec<&str> = match (given.is_empty(), full) {
        (false, _) => given.iter().map(String::as_str).collect(),
        (true, true) => PROBLEMS.to_vec(),
        (true, false) => Vec::new(),
    };
    let device = match BACKEND.open(0) {
        Ok(device) => device,
        Err(e) => return println!("skipped: {e}"),
    };
    let copy = device.clone().measure().expect("a copy").bytes_per_s;
    println!("{}, driver {}, copies {:.2} TB/s", device.info().name, device.info().driver, copy / 1e12);
    for line in lines {
        match line.parse::<AnyProblem>() {
            Ok(problem) => problem.visit(Measure { device: &device, line, copy }),
            Err(e) => println!("{line}: {e}"),
        }
    }
}

struct Measure<'a> {
    device: &'a Arc<dyn Device>,
    line: &'a str,
    copy: f64,
}

impl OpVisitor for Measure<'_> {
    type Out = ();

    fn visit<O: Op>(self, problem: &Problem<O::Spec>) {
        let Self { device, line, copy } = self;
        for kernel in O::kernels(&KERNELS) {
            let variants = match kernel.supports(device.caps(), problem) {
                Ok(variants) => variants,
                Err(why) => {
                    println!("{line:60} {:10} {why}", kernel.name());
                    continue;
                }
            };
            for variant in variants.iter() {
                let timed = kernel.plan(device, problem, variant).and_then(|plan| time(device, &plan, problem));
                match timed {
                    Ok(secs) => {
                        let rate = problem.bytes() as f64 / secs;
                        let (us, share) = (secs * 1e6, rate / copy);
                        println!(
                            "{line:60} {:8}#{} {us:9.1} us {:6.3} TB/s {share:5.2}",
                            kernel.name(),
                            variant.0,
                            rate / 1e12
                        );
                    }
                    Err(e) => println!("{line:60} {:8}#{} {e}", kernel.name(), variant.0),
                }
            }
        }
    }
}

/// Seconds of a launch.
fn time<O: Op>(device: &Arc<dyn Device>, plan: &kp_hal::Plan<O>, problem: &Problem<O::Spec>) -> Result<f64> {
    let mut queue = device.clone().queue()?;
    let needs = needs::<O>(problem);
    let operands = <O::Args<'_> as Args<'_>>::OPERANDS;
    let mut buffers = Vec::new();
    for (at, operand) in operands.iter().enumerate() {
        let need = needs.get(at);
        let buffer = need.is_present().then(|| device.clone().alloc(need.bytes, MemoryKind::Device)).transpose()?;
        buffers.push((operand.output, need.dtype, buffer));
    }
    for (_, dtype, buffer) in &mut buffers {
        let Some(buffer) = buffer else { continue };
        if *dtype == DType::I32 {
            // Indices and positions: each row's own.
            let numbers: Vec<u8> = (0..buffer.bytes() as u32 / 4).flat_map(u32::to_ne_bytes).collect();
            queue.upload(buffer.slice_mut().at(0..numbers.len() as u64), &numbers)?;
        } else {
            // A small number of every float type.
            queue.fill(buffer.slice_mut(), 0x35)?;
        }
    }
    let args = O::Args::bind(buffers.iter_mut().map(|(output, _, buffer)| view(*output, buffer.as_mut())).collect())?;
    queue.reserve_scratch(plan.scratch_bytes())?;
    let round = |queue: &mut dyn Queue| -> Result<f64> {
        let from = queue.mark()?;
        for _ in 0..LAUNCHES {
            plan.launch(queue, &args)?;
        }
        let to = queue.mark()?;
        queue.sync()?;
        Ok(queue.elapsed(from, to)?.map_or(f64::NAN, |time| time.as_secs()) / f64::from(LAUNCHES))
    };
    round(&mut *queue)?;
    let mut times = (0..ROUNDS).map(|_| round(&mut *queue)).collect::<Result<Vec<_>>>()?;
    times.sort_by(f64::total_cmp);
    Ok(times[ROUNDS / 2])
}

fn view(output: bool, buffer: Option<&mut Buffer>) -> Option<View<'_>> {
    let buffer = buffer?;
    Some(if output { View::Out(buffer.slice_mut()) } else { View::In(buffer.slice()) })
}
