//! Which kernel wins, for machines written down and shapes of real models: a change of winner shows as a change of a
//! file in `dispatch_table/`. `KP_BLESS=1 cargo test -p kp-core --test dispatch_table` writes them anew.

use kp_core::{
    candidates,
    hal::{AnyProblem, Caps, DType, DTypes, DeviceKind, Kernels, Op, Problem, Rates, op::OpVisitor},
    rank,
};
use std::{env, fmt::Write, fs, path::Path};

/// Decode and prefill of Llama-3 8B, batches of BERT-base, an odd size, a type that few multiply.
const PRODUCTS: &[&str] = &[
    "gemm 1x1x6144x4096 bf16:bf16:bf16 b=col",
    "gemm 1x1x28672x4096 bf16:bf16:bf16 b=col",
    "gemm 1x64x4096x14336 bf16:bf16:bf16 b=col",
    "gemm 1x512x28672x4096 bf16:bf16:bf16 b=col",
    "gemm 1x4096x4096x14336 bf16:bf16:bf16 b=col",
    "gemm 1x4096x4096x14336 e4m3:e4m3:bf16 b=col",
    "gemm 1x4096x4096x14336 e4m3@1x128:e4m3@128x128:bf16 b=col",
    "gemm 96x128x128x64 f16:f16:f16 b=col",
    "gemm 1x1000x1000x1000 bf16:bf16:f32",
    "gemm 1x1000x1000x1008 bf16:bf16:f32",
    "gemm 1x4096x4096x4096 f32:f32:f32",
];

/// Weights of fewer bits, experts, and what stands between products.
#[cfg(feature = "cpu")]
const OTHERS: &[&str] = &[
    "gemm 1x1x4096x14336 bf16:e2m1@mx:bf16 b=col",
    "gemm 1x1x4096x14336 bf16:i4@g128/f16:bf16 b=col",
    "gemm 1x1x4096x14336 bf16:i4@g128/f16:bf16 b=col acc=f32q8",
    "gemm 1x8x4096x4096 f32:i4@g32/f16:f32 b=col acc=f32q8",
    "gemm 1x128x4096x4096 f32:u4@g32/f16z:f32 b=col acc=f32q8",
    "gemm 1x8x4096x14336 bf16:bf16:bf16 b=col",
    "gemm 1x9x4096x14336 bf16:bf16:bf16 b=col",
    "gemm 1x8x4096x14336 bf16:bf16:bf16 b=col repro=batch-invariant",
    "gemm 1x1024x1024x1024 f64:f64:f64",
    "grouped_gemm 8x512x14336x4096 bf16:bf16:bf16 b=col",
    "attention 1x32:8x1:4096x128 bf16:bf16:bf16",
    "attention 1x32:8x2048:2048x128 bf16:bf16:bf16 mask=causal",
    "attention_backward 1x32:8x2048:2048x128 bf16:bf16:bf16 mask=causal",
    "norm 4096x4096 bf16:bf16 kind=rms weight=bf16",
    "quantize 4096x4096 bf16:e4m3@1x128",
];

/// Few rows, scales of every kind, experts.
const GPU_PRODUCTS: &[&str] = &[
    "gemm 1x16x6144x4096 bf16:bf16:bf16 b=col",
    "gemm 1x128x7168x16384 bf16:bf16:bf16 b=col",
    "gemm 1x8192x8192x8192 bf16:bf16:bf16 b=col",
    "gemm 1x8192x8192x8192 bf16:bf16:bf16 b=col repro=batch-invariant",
    "gemm 1x4096x4096x14336 e4m3@tensor:e4m3@tensor:bf16 b=col acc=f32fast",
    "gemm 1x4096x4096x14336 e4m3@row:e4m3@row:bf16 b=col",
    "gemm 1x64x7168x2048 e4m3@1x128^outer:e4m3@128x128:bf16 b=col",
    "gemm 1x4096x7168x2048 e4m3@1x128^outer:e4m3@128x128:bf16 b=col",
    "gemm 1x4096x4096x14336 e4m3@mx:e4m3@mx:bf16 b=col",
    "gemm 1x4096x4096x14336 e2m1@nv:e2m1@nv:bf16 b=col",
    "gemm 1x4096x4096x4096 i8:i8:i32 b=col",
    "gemm 1x4096x4096x4096 f64:f64:f64",
    "grouped_gemm 8x16384x4096x7168 bf16:bf16:bf16 b=col",
    "grouped_gemm 8x16384x4096x7168 e4m3@1x128^outer:e4m3@128x128:bf16 b=col",
];

/// The winner of each problem on each machine; without its time where `times` is false.
fn table(kernels: &'static Kernels, machines: &[(&str, Caps)], problems: &[&str], times: bool) -> String {
    struct Winner<'c>(&'static Kernels, &'c Caps);
    impl OpVisitor for Winner<'_> {
        type Out = (String, String, usize);
        fn visit<O: Op>(self, problem: &Problem<O::Spec>) -> Self::Out {
            let mut found = candidates(self.0, self.1, problem);
            rank(&mut found, |_| None);
            let first = found.accepted.first();
            let label = first.map_or_else(|| "nobody".to_owned(), |winner| winner.label().to_string());
            (label, first.map_or_else(String::new, |winner| winner.time().to_string()), found.accepted.len())
        }
    }
    let mut table = String::new();
    for (name, caps) in machines {
        writeln!(table, "{name}").expect("strings grow");
        for text in problems {
            let problem: AnyProblem = text.parse().expect(text);
            let (label, time, of) = problem.visit(Winner(kernels, caps));
            let time = if times { format!(" {time:>8}") } else { String::new() };
            writeln!(table, "  {text:<66} {label:<13}{time}  of {of}").expect("strings grow");
        }
    }
    table
}

/// Compares with what was written, line by line, or writes it.
fn compare(name: &str, table: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/dispatch_table").join(name);
    if env::var_os("KP_BLESS").is_some() {
        fs::write(&path, table).expect("the repository is writable");
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    for (now, then) in table.lines().zip(written.lines()) {
        assert_eq!(now, then, "a winner changed; if that is meant, run with KP_BLESS=1");
    }
    assert_eq!(table.len(), written.len(), "rows were added or removed; if that is meant, run with KP_BLESS=1");
}

/// Kernels that run nowhere, on machines that do not exist: how candidates, estimates and ties are ranked.
#[test]
fn winners_of_the_null_backend_are_as_written() {
    let small = kp_null::BACKEND.devices().expect("always there").remove(0).caps;
    let mut large = small.clone();
    large.units = 132;
    large.bytes_per_s = 4.8e12;
    large.shared_bytes = 227 * 1024;
    large.rates = Rates::uniform(6.7e13).with(&[DType::F16, DType::Bf16], 9.9e14).with(&[DType::E4m3], 1.98e15);
    large.launch_ns = 2000;
    let mut cramped = small.clone();
    cramped.shared_bytes = 20 * 1024;
    let mut plain = Caps::new(DeviceKind::Gpu, "plain");
    plain.mma = DTypes::NONE;
    let machines =
        [("null small", small), ("null large", large), ("null cramped", cramped), ("null without mma", plain)];
    compare("null.txt", &table(&kp_null::KERNELS, &machines, PRODUCTS, true));
}

/// Real processors, wherever the test runs. Winners alone: estimates are tuned more often than they change a winner.
#[cfg(feature = "cpu")]
#[test]
fn winners_of_the_processors_are_as_written() {
    use kp_testkit::caps::{apple_m2, epyc_9654, xeon_8480};
    let mut old = epyc_9654();
    old.set_features(["sse4.1"]);
    let machines = [
        ("AMD EPYC 9654", epyc_9654()),
        ("Intel Xeon 8480+", xeon_8480()),
        ("Apple M2", apple_m2()),
        ("x86-64 without AVX", old),
    ];
    let problems = [PRODUCTS, OTHERS].concat();
    compare("cpu.txt", &table(kp_cpu::BACKEND.kernels(), &machines, &problems, false));
}

/// GPUs that need not be here. Winners alone, as above.
#[test]
fn winners_of_nvidia_gpus_are_as_written() {
    use kp_testkit::caps::{b200, h200, rtx_4090, rtx_5090};
    let machines = [("H200", h200()), ("B200", b200()), ("RTX 4090", rtx_4090()), ("RTX 5090", rtx_5090())];
    let problems = [PRODUCTS, GPU_PRODUCTS].concat();
    compare("nvidia.txt", &table(kp_nvidia::BACKEND.kernels(), &machines, &problems, false));
}
