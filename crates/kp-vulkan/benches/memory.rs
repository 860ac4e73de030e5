//! Kernels that move more than they compute, against a copy of the same card: `cargo bench -p kp-vulkan --bench memory`.
//!
//! Each line is a problem and a kernel's variant: bytes moved per second, alone and over those of a copy. Times are between marks
//! around launches back to back, the median of several, after launches enough to wake the device; what is moved exceeds every
//! cache. Arguments are problems to take in place of the list; `--only=PART` takes the kernels whose names contain PART.

use kp_hal::{
    AnyProblem, Args, Buffer, DType, Device, MemoryKind, Op, Plan, Problem, Queue, Result,
    op::{OpVisitor, Spec, View, needs},
};
use kp_vulkan::{BACKEND, KERNELS};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

const LAUNCHES: u32 = 10;
const ROUNDS: usize = 5;

/// How long a kernel runs before it is timed: right after one was compiled, the device is slow for a while.
const WARM: Duration = Duration::from_millis(120);

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
    let only = std::env::args().find_map(|arg| Some(arg.strip_prefix("--only=")?.to_owned())).unwrap_or_default();
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
    let copy = copy_rate(&device).expect("a copy");
    let rates = device.clone().measure().expect("its peaks").rates;
    let [f32, f16, bf16] = [DType::F32, DType::F16, DType::Bf16].map(|dtype| rates.get(dtype) / 1e12);
    println!(
        "{}, driver {}, copies {:.2} TB/s; f32 {f32:.1}, f16 {f16:.1}, bf16 {bf16:.1} TFLOP/s",
        device.info().name,
        device.info().driver,
        copy / 1e12
    );
    for line in lines {
        match line.parse::<AnyProblem>() {
            Ok(problem) => problem.visit(Measure { device: &device, line, copy, only: &only }),
            Err(e) => println!("{line}: {e}"),
        }
    }
}

struct Measure<'a> {
    device: &'a Arc<dyn Device>,
    line: &'a str,
    copy: f64,
    /// A part of the names of kernels.
    only: &'a str,
}

impl OpVisitor for Measure<'_> {
    type Out = ();

    fn visit<O: Op>(self, problem: &Problem<O::Spec>) {
        let Self { device, line, .. } = self;
        let mut operands = match Operands::new::<O>(device, problem) {
            Ok(operands) => operands,
            Err(e) => return println!("{line}: {e}"),
        };
        for kernel in O::kernels(&KERNELS).iter().filter(|kernel| kernel.name().contains(self.only)) {
            let variants = match kernel.supports(device.caps(), problem) {
                Ok(variants) => variants,
                Err(why) => {
                    println!("{line:56} {:10} {why}", kernel.name());
                    continue;
                }
            };
            for variant in variants.iter() {
                let timed = kernel
                    .plan(device, problem, variant)
                    .and_then(|plan| self.time(&plan, problem.bytes(), &mut operands));
                match timed {
                    Ok(secs) => {
                        let rate = problem.bytes() as f64 / secs;
                        println!(
                            "{line:56} {:8}#{} {:9.1} us {:6.3} TB/s {:5.2}",
                            kernel.name(),
                            variant.0,
                            secs * 1e6,
                            rate / 1e12,
                            rate / self.copy
                        );
                    }
                    Err(e) => println!("{line:56} {:8}#{} {e}", kernel.name(), variant.0),
                }
            }
        }
    }
}

impl Measure<'_> {
    /// Seconds of a launch; of one alone where it takes many times as long as memory would.
    fn time<O: Op>(&self, plan: &Plan<O>, bytes: u64, operands: &mut Operands) -> Result<f64> {
        let Operands { queue, buffers } = operands;
        let args = O::Args::bind(buffers.iter_mut().map(|(output, buffer)| view(*output, buffer.as_mut())).collect())?;
        queue.reserve_scratch(plan.scratch_bytes())?;
        let mut launch = |queue: &mut dyn Queue| plan.launch(queue, &args);
        launch(&mut **queue)?;
        let first = round(&mut **queue, 1, &mut launch)?;
        if first > 20.0 * bytes as f64 / self.copy {
            return Ok(first);
        }
        median(&mut **queue, &mut launch)
    }
}

/// Bytes per second of a copy, read and written.
fn copy_rate(device: &Arc<dyn Device>) -> Result<f64> {
    const BYTES: u64 = 1 << 29;
    let bytes = BYTES.min(device.memory()?.free / 8);
    let mut queue = device.clone().queue()?;
    let from = device.clone().alloc(bytes, MemoryKind::Device)?;
    let mut to = device.clone().alloc(bytes, MemoryKind::Device)?;
    let secs = median(&mut *queue, &mut |queue| queue.copy(to.slice_mut(), from.slice()))?;
    Ok(2.0 * bytes as f64 / secs)
}

/// Seconds of a launch, once the device is awake: the median of several rounds.
fn median(queue: &mut dyn Queue, launch: &mut dyn FnMut(&mut dyn Queue) -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    while start.elapsed() < WARM {
        round(queue, LAUNCHES, launch)?;
    }
    let mut times = (0..ROUNDS).map(|_| round(queue, LAUNCHES, launch)).collect::<Result<Vec<_>>>()?;
    times.sort_by(f64::total_cmp);
    Ok(times[ROUNDS / 2])
}

fn round(queue: &mut dyn Queue, launches: u32, launch: &mut dyn FnMut(&mut dyn Queue) -> Result<()>) -> Result<f64> {
    let from = queue.mark()?;
    (0..launches).try_for_each(|_| launch(queue))?;
    let to = queue.mark()?;
    queue.sync()?;
    Ok(queue.elapsed(from, to)?.map_or(f64::NAN, |time| time.as_secs()) / f64::from(launches))
}

/// A problem's operands, and whether each is written.
struct Operands {
    queue: Box<dyn Queue>,
    buffers: Vec<(bool, Option<Buffer>)>,
}

impl Operands {
    fn new<O: Op>(device: &Arc<dyn Device>, problem: &Problem<O::Spec>) -> Result<Self> {
        let mut queue = device.clone().queue()?;
        let needs = needs::<O>(problem);
        let mut buffers = Vec::new();
        for (at, operand) in <O::Args<'_> as Args<'_>>::OPERANDS.iter().enumerate() {
            let need = needs.get(at);
            if !need.is_present() {
                buffers.push((operand.output, None));
                continue;
            }
            let mut buffer = device.clone().alloc(need.bytes, MemoryKind::Device)?;
            if need.dtype == DType::I32 {
                // Indices and positions: each row's own.
                let numbers: Vec<u8> = (0..need.bytes as u32 / 4).flat_map(u32::to_ne_bytes).collect();
                queue.upload(buffer.slice_mut().at(0..numbers.len() as u64), &numbers)?;
            } else {
                upload_numbers(&mut *queue, &mut buffer, need.dtype)?;
            }
            buffers.push((operand.output, Some(buffer)));
        }
        Ok(Self { queue, buffers })
    }
}

/// Fills a buffer with numbers between 2^-15 and 2, different ones, since kernels may take equal ones faster; of either sign where that
/// is what a float's last bit, or a code's, says.
fn upload_numbers(queue: &mut dyn Queue, buffer: &mut Buffer, dtype: DType) -> Result<()> {
    let signed = !matches!(dtype, DType::E8m0 | DType::Ue4m3 | DType::U8);
    let mut state = 1_u32;
    let mut number = |at: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // Every type's last byte of a number is the second of two.
        let sign = if signed && at % 2 == 1 { (state >> 24 & 1) << 7 } else { 0 };
        (0x38 | (state >> 20 & 7) | sign) as u8
    };
    let piece: Vec<u8> = (0..1 << 22).map(&mut number).collect();
    let bytes = buffer.slice().bytes();
    for from in (0..bytes).step_by(piece.len()) {
        let size = (bytes - from).min(piece.len() as u64);
        queue.upload(buffer.slice_mut().at(from..from + size), &piece[..size as usize])?;
    }
    Ok(())
}

fn view(output: bool, buffer: Option<&mut Buffer>) -> Option<View<'_>> {
    let buffer = buffer?;
    Some(if output { View::Out(buffer.slice_mut()) } else { View::In(buffer.slice()) })
}
