//! Which kernel wins, for devices written down and shapes of real models: a change of winner shows as a change of
//! `dispatch_table.txt`. `KP_BLESS=1 cargo test -p kp-core --test dispatch_table` writes it anew.

use kp_core::{
    candidates,
    hal::{Caps, DType, DTypes, DeviceKind, Kernels, Rates, op::GemmProblem},
    rank,
};
use std::{env, fmt::Write, fs, path::Path};

/// A backend's kernels, and a device that it drives, without either being here.
struct Device {
    name: &'static str,
    kernels: &'static Kernels,
    caps: Caps,
}

fn devices() -> Vec<Device> {
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
    let null = &kp_null::KERNELS;
    [("null small", small), ("null large", large), ("null cramped", cramped), ("null without mma", plain)]
        .map(|(name, caps)| Device { name, kernels: null, caps })
        .into()
}

/// Decode and prefill of Llama-3 8B, batches of BERT-base, an odd size, a type that few multiply.
const PROBLEMS: &[&str] = &[
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

#[test]
fn winners_are_as_written() {
    let mut table = String::new();
    for Device { name, kernels, caps } in devices() {
        writeln!(table, "{name}").expect("strings grow");
        for text in PROBLEMS {
            let problem: GemmProblem = text.parse().expect(text);
            let mut found = candidates(kernels, &caps, &problem);
            rank(&mut found, |_| None);
            let (winner, of) = (&found.accepted[0], found.accepted.len());
            let (label, time) = (winner.label().to_string(), winner.time());
            writeln!(table, "  {text:<58} {label:<13} {time:>8}  of {of}").expect("strings grow");
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/dispatch_table.txt");
    if env::var_os("KP_BLESS").is_some() {
        fs::write(&path, &table).expect("the repository is writable");
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    for (now, then) in table.lines().zip(written.lines()) {
        assert_eq!(now, then, "a winner changed; if that is meant, run with KP_BLESS=1");
    }
    assert_eq!(table.len(), written.len(), "rows were added or removed; if that is meant, run with KP_BLESS=1");
}
