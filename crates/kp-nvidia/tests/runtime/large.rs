//! Products of which one operand has more elements than 31 bits count: each kernel that runs one, in the variant that ranks first.

use crate::{alloc, queue, whole_device};
use kp_hal::{
    Buffer, DType, Device, Queue, Spec,
    op::{GemmArgs, GemmProblem},
};
use kp_nvidia::KERNELS;
use std::sync::Arc;

/// Of every shape, D, A or B is the large one.
const PROBLEMS: [&str; 7] = [
    "gemm 1x65536x40960x64 bf16:bf16:bf16 b=col",
    "gemm 1x40960x128x65536 bf16:bf16:bf16 b=col",
    "gemm 1x16x40960x65536 bf16:bf16:bf16 b=col",
    "gemm 1x65536x40960x64 f32:f32:f32 b=col",
    "gemm 1x65536x40960x128 e4m3@1x128^outer:e4m3@128x128:bf16 b=col",
    "gemm 1x20480x256x131072 e4m3@1x128^outer:e4m3@128x128:bf16 b=col",
    "gemm 1x16x40960x65536 e4m3@1x128^outer:e4m3@128x128:bf16 b=col",
];

/// Rows of A and columns of B repeat after so many, which divide nothing that tiles do.
const PERIODS: [usize; 2] = [61, 59];

#[test]
fn products_past_2_31_elements_are_right_where_it_was_sampled() {
    let Some((device, _alone)) = whole_device() else { return };
    for line in PROBLEMS {
        let problem: GemmProblem = line.parse().expect("a problem");
        let free = device.memory().expect("a working device").free;
        if problem.bytes() > free / 4 * 3 {
            println!("skipped: {line} needs {} bytes, {free} are free", problem.bytes());
            continue;
        }
        check(&device, line, &problem);
    }
}

fn check(device: &Arc<dyn Device>, line: &str, problem: &GemmProblem) {
    let [m, n, k] = [problem.m, problem.n, problem.k].map(|size| size as usize);
    let [a_type, b_type, d_type] = [problem.a.dtype(), problem.b.dtype(), problem.d.dtype()];
    let mut queue = queue(device);
    let (a_numbers, b_numbers) = (numbers(PERIODS[0], k, 1), numbers(PERIODS[1], k, 2));
    let a = repeated(device, &mut *queue, &encoded(&a_numbers, a_type), m * k * bytes_of(a_type));
    let b = repeated(device, &mut *queue, &encoded(&b_numbers, b_type), n * k * bytes_of(b_type));
    let ones = 1.0_f32.to_le_bytes().repeat(1 << 16);
    let mut scales = [(problem.a.format, (m, k)), (problem.b.format, (n, k))].map(|(format, (outer, inner))| {
        let count = format.scale_count(outer as u32, inner as u32) as usize;
        (count > 0).then(|| repeated(device, &mut *queue, &ones, count * 4))
    });
    let mut d = alloc(device, (m * n * bytes_of(d_type)) as u64);
    let expected = sums(&a_numbers, &b_numbers, k);
    let mut ran = 0;
    for kernel in KERNELS.gemm {
        let caps = device.caps();
        let Ok(variants) = kernel.supports(caps, problem) else { continue };
        let best = variants.iter().min_by_key(|&variant| kernel.estimate(caps, problem, variant));
        let variant = best.expect("who supports a problem has a variant for it");
        let plan = kernel.plan(device, problem, variant).unwrap_or_else(|e| panic!("{line}, {}: {e}", kernel.name()));
        queue.fill(d.slice_mut(), 0xff).expect("this device's");
        let [a_scale, b_scale] = &mut scales;
        let args = GemmArgs {
            a_scale: a_scale.as_ref().map(Buffer::slice),
            b_scale: b_scale.as_ref().map(Buffer::slice),
            ..GemmArgs::new(a.slice(), b.slice(), d.slice_mut())
        };
        plan.launch(&mut *queue, &args).unwrap_or_else(|e| panic!("{line}, {}: {e}", kernel.name()));
        let past = (1_usize << 31) / n;
        for row in [0, m / 2 + 1, past.saturating_sub(1), past, m - 1] {
            let row = row.min(m - 1);
            let width = n * bytes_of(d_type);
            let mut bytes = vec![0; width];
            queue.download(&mut bytes, d.slice().at((row * width) as u64..((row + 1) * width) as u64)).expect("a row");
            let sums = &expected[row % PERIODS[0] * PERIODS[1]..][..PERIODS[1]];
            let wanted: Vec<f32> = (0..n).map(|column| sums[column % PERIODS[1]] as f32).collect();
            let wrong = bytes.iter().zip(&encoded(&wanted, d_type)).position(|(found, wanted)| found != wanted);
            let at = wrong.map(|byte| byte / bytes_of(d_type));
            assert_eq!(at, None, "{line}, {}#{}: row {row}, first wrong column", kernel.name(), variant.0);
        }
        println!("{line}: {}#{}", kernel.name(), variant.0);
        ran += 1;
    }
    assert!(ran > 0, "no kernel runs {line}");
}

/// -1, 0, 1 or 2, of which all sums here are exact in f32.
fn numbers(rows: usize, k: usize, seed: u64) -> Vec<f32> {
    crate::pattern(rows * k, seed).into_iter().map(|byte| f32::from(byte % 4) - 1.0).collect()
}

/// Those small numbers, or sums of them, rounded to `dtype`.
fn encoded(numbers: &[f32], dtype: DType) -> Vec<u8> {
    let e4m3 = |x: f32| match x as i32 {
        -1 => 0xb8,
        1 => 0x38,
        2 => 0x40,
        _ => 0,
    };
    let bf16 = |x: f32| ((x.to_bits() + 0x7fff + (x.to_bits() >> 16 & 1)) >> 16) as u16;
    match dtype {
        DType::E4m3 => numbers.iter().map(|&x| e4m3(x)).collect(),
        DType::Bf16 => numbers.iter().flat_map(|&x| bf16(x).to_le_bytes()).collect(),
        _ => numbers.iter().flat_map(|x| x.to_le_bytes()).collect(),
    }
}

fn bytes_of(dtype: DType) -> usize {
    dtype.bits() as usize / 8
}

/// A buffer of `bytes` bytes that repeats `block`.
fn repeated(device: &Arc<dyn Device>, queue: &mut dyn Queue, block: &[u8], bytes: usize) -> Buffer {
    let (mut all, mut one) = (alloc(device, bytes as u64), alloc(device, block.len() as u64));
    queue.upload(one.slice_mut(), block).expect("as long as the block");
    for start in (0..bytes).step_by(block.len()) {
        let end = bytes.min(start + block.len());
        let part = one.slice().at(0..(end - start) as u64);
        queue.copy(all.slice_mut().at(start as u64..end as u64), part).expect("as long as its part");
    }
    queue.sync().expect("no fault");
    all
}

/// The product of each row of A and column of B, before they repeat.
fn sums(a: &[f32], b: &[f32], k: usize) -> Vec<i32> {
    let rows = |matrix: &[f32]| -> Vec<Vec<i32>> {
        matrix.chunks(k).map(|row| row.iter().map(|&x| x as i32).collect()).collect()
    };
    let (a, b) = (rows(a), rows(b));
    let product = |row: &Vec<i32>, column: &Vec<i32>| row.iter().zip(column).map(|(x, y)| x * y).sum();
    a.iter().flat_map(|row| b.iter().map(move |column| product(row, column))).collect()
}
