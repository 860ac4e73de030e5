//! Products of one input that wait for each other, and that do not: `cargo bench -p kp-vulkan --bench beside`.
//!
//! Each line is the time of a launch among many in a recording, each of which has weights of its own: where all of them write to one place, so that
//! each waits for the one before, and where each has a result of its own. The medians of several in turns, after launches enough to wake the device;
//! operands are random.

use kp_hal::{
    Buffer, DType, Device, Graph, Kernel, MemoryKind, Result,
    op::{Gemm, GemmArgs, GemmProblem, needs},
};
use kp_testkit::{Fill, FillKind};
use kp_vulkan::{BACKEND, KERNELS};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

const PROBLEMS: &[&str] = &[
    "gemm 1x1x4096x4096 f16:f16:f16 b=col",
    "gemm 1x8x4096x4096 f16:f16:f16 b=col",
    "gemm 1x1x16384x8192 f16:f16:f16 b=col",
    "gemm 1x1x4096x4096 f16:i4@g128/f16:f16 b=col",
    "gemm 1x1x32768x8192 f16:i4@g128/f16:f16 b=col",
    "gemm 1x8x32768x8192 f16:i4@g128/f16:f16 b=col",
    "gemm 1x1x32768x8192 f16:e2m1@mx:f16 b=col",
    "gemm 1x8x32768x8192 f16:e2m1@mx:f16 b=col",
    "gemm 1x1x32768x8192 f16:e2m1@nv:f16 b=col",
    "gemm 1x8x32768x8192 f16:e2m1@nv:f16 b=col",
    "gemm 1x1x32768x8192 f16:nf4@g64/f32:f16 b=col",
    "gemm 1x8x32768x8192 f16:nf4@g64/f32:f16 b=col",
    "gemm 1x64x4096x4096 f16:f16:f16 b=col",
    "gemm 1x512x4096x4096 f16:f16:f16 b=col",
    "gemm 1x1024x1024x4096 f16:f16:f16 b=col",
];

/// Weights, each with a result.
const SETS: usize = 8;

/// Launches of a recording.
const LAUNCHES: usize = 64;
const ROUNDS: usize = 31;

/// Before the first: a card sleeps while operands are made.
const WARM: Duration = Duration::from_secs(1);

fn main() {
    let is_bench = std::env::args().any(|arg| arg == "--bench");
    let device = match BACKEND.open(0) {
        Ok(device) => device,
        Err(e) => return println!("skipped: {e}"),
    };
    println!("{}, driver {}", device.info().name, device.info().driver);
    // cargo test runs benches too, to see that they start.
    for problem in if is_bench { PROBLEMS } else { &["gemm 1x1x256x256 f16:f16:f16 b=col"] } {
        match measure(&device, problem, is_bench) {
            Ok(line) => println!("{problem}: {line}"),
            Err(e) => println!("{problem}: {e}"),
        }
    }
}

fn measure(device: &Arc<dyn Device>, text: &str, is_bench: bool) -> Result<String> {
    let problem: GemmProblem = text.parse().expect("a problem");
    let listed = KERNELS.gemm.iter().copied();
    let ranked = listed.filter_map(|kernel| {
        let variants = kernel.supports(device.caps(), &problem).ok()?;
        let of = |variant| (kernel.estimate(device.caps(), &problem, variant), kernel, variant);
        variants.iter().map(of).min_by_key(|one| one.0)
    });
    let (_, kernel, variant): (_, &dyn Kernel<Gemm>, _) = ranked.min_by_key(|one| one.0).expect("a kernel");
    let plan = kernel.plan(device, &problem, variant)?;
    let needs = needs::<Gemm>(&problem);
    let alloc = |i: usize| -> Result<Option<Buffer>> {
        let need = needs.get(i);
        need.is_present().then(|| device.clone().alloc(need.bytes, MemoryKind::Device)).transpose()
    };
    let names = <GemmArgs<'_> as kp_hal::Args<'_>>::OPERANDS;
    let place = |name: &str| names.iter().position(|operand| operand.name == name).expect("an operand");
    let mut queue = device.clone().queue()?;
    let mut random = Fill::new(FillKind::Normal, 7);
    let mut several = |name| {
        let need = needs.get(place(name));
        let mut filled = || {
            let mut buffer = alloc(place(name))?;
            if let Some(buffer) = &mut buffer {
                queue.upload(buffer.slice_mut(), &numbers(need.dtype, need.bytes, &mut random))?;
            }
            Ok(buffer)
        };
        (0..SETS).map(|_| filled()).collect::<Result<Vec<_>>>()
    };
    let a = several("a")?.swap_remove(0).expect("A");
    let (b, scales, global) = (several("b")?, several("b_scale")?, several("b_global")?);
    let mut d = several("d")?;
    queue.reserve_scratch(plan.scratch_bytes())?;
    let mut record = |own: bool| {
        queue.capture(|queue| {
            (0..LAUNCHES).try_for_each(|i| {
                let (set, result) = (i % SETS, if own { i % SETS } else { 0 });
                let b = b[set].as_ref().expect("B").slice();
                let mut args = GemmArgs::new(a.slice(), b, d[result].as_mut().expect("D").slice_mut());
                args.b_scale = scales[set].as_ref().map(Buffer::slice);
                args.b_global = global[set].as_ref().map(Buffer::slice);
                plan.launch(queue, &args)
            })
        })
    };
    let graphs = [record(false)?, record(true)?];
    let mut replay = |graph: &dyn Graph| -> Result<f64> {
        let from = queue.mark()?;
        // SAFETY: what was recorded is of buffers that are alive.
        unsafe { graph.replay(&mut *queue) }?;
        let to = queue.mark()?;
        queue.sync()?;
        Ok(queue.elapsed(from, to)?.map_or(f64::NAN, |time| time.as_secs() * 1e6 / LAUNCHES as f64))
    };
    let start = Instant::now();
    while is_bench && start.elapsed() < WARM {
        replay(&*graphs[0])?;
    }
    let mut rounds = [[0.0; ROUNDS]; 2];
    for round in 0..ROUNDS {
        for (graph, times) in graphs.iter().zip(&mut rounds) {
            times[round] = replay(&**graph)?;
        }
    }
    let times = rounds.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[ROUNDS / 2]
    });
    let [waiting, beside] = times;
    Ok(format!(
        "{} {waiting:.1} µs one after the other, {beside:.1} beside each other, {:.2}",
        plan.label(),
        beside / waiting
    ))
}

/// So many bytes of random numbers of a type, a megabyte again and again, since the card falls asleep while many are made: codes of
/// four bits, or numbers between 1/8 and 2, of which floats of 16 bits have either sign.
fn numbers(dtype: DType, bytes: u64, random: &mut Fill) -> Vec<u8> {
    let mut next = || random.bits() as u32;
    let some = bytes.min(1 << 20);
    let mut numbers: Vec<u8> = match dtype {
        DType::F32 => (0..some / 4).flat_map(|_| (0.125 + (next() % 1024) as f32 / 546.0).to_le_bytes()).collect(),
        DType::F16 => (0..some / 2).flat_map(|_| (0x3000 | (next() & 0x8fff) as u16).to_le_bytes()).collect(),
        DType::E8m0 => (0..some).map(|_| 124 + (next() % 4) as u8).collect(),
        DType::Ue4m3 => (0..some).map(|_| 0x20 + (next() % 32) as u8).collect(),
        _ => (0..some).map(|_| next() as u8).collect(),
    };
    while numbers.len() < bytes as usize {
        let more = numbers.len().min(bytes as usize - numbers.len());
        numbers.extend_from_within(..more);
    }
    numbers
}
