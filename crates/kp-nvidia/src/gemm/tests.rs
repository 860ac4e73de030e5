//! What would be chosen on devices that are not here.

use super::LIST;
use crate::{caps, grouped_gemm};
use kp_hal::{
    Caps, Kernel, KernelList, Nanos, Variant,
    op::{Gemm, GemmProblem, GroupedGemm, GroupedGemmProblem, Op, Problem, Spec},
};

/// A device by its compute capability.
fn device(version: u32) -> Caps {
    caps::of(&caps::Facts { untried: true, ..facts(version) })
}

fn facts(version: u32) -> caps::Facts {
    // Compute capability, SMs, clock in MHz, shared memory of a block in KiB, L2 in MiB, bits and clock in MHz of memory.
    const DEVICES: [(u32, u32, u32, u32, u32, u32, u32); 9] = [
        (70, 80, 1530, 96, 6, 4096, 877),
        (75, 40, 1590, 64, 4, 256, 5001),
        (80, 108, 1410, 163, 40, 5120, 1215),
        (86, 82, 1695, 99, 6, 384, 9751),
        (89, 128, 2520, 99, 72, 384, 10501),
        (90, 132, 1980, 227, 50, 6144, 3125),
        (100, 148, 1965, 227, 126, 8192, 3996),
        (120, 170, 2407, 99, 96, 512, 14001),
        (121, 48, 2418, 99, 24, 256, 4266),
    ];
    let found = DEVICES.iter().find(|device| device.0 == version).expect("a device of the table");
    let &(_, units, clock, shared, l2, bits, memory_clock) = found;
    caps::Facts {
        name: format!("sm_{version}"),
        major: version / 10,
        minor: version % 10,
        units,
        max_threads: 1024,
        registers: 65536,
        shared_bytes: shared << 10,
        l2_bytes: l2 << 20,
        memory_bytes: 80 << 30,
        clock_khz: clock * 1000,
        memory_clock_khz: memory_clock * 1000,
        memory_bus_bits: bits,
        clusters: version >= 90,
        tensor_maps: version >= 90,
        pools: true,
        ..caps::Facts::default()
    }
}

const ALL: [u32; 9] = [70, 75, 80, 86, 89, 90, 100, 120, 121];

fn candidates<O: Op>(
    list: KernelList<O>,
    caps: &Caps,
    p: &Problem<O::Spec>,
) -> Vec<(&'static dyn Kernel<O>, Variant, Nanos)> {
    let variants = |kernel: &&'static dyn Kernel<O>| {
        let kernel = *kernel;
        let found = kernel.supports(caps, p).map(|v| v.iter().collect::<Vec<_>>()).unwrap_or_default();
        found.into_iter().map(move |v| (kernel, v, kernel.estimate(caps, p, v)))
    };
    list.iter().flat_map(variants).collect()
}

fn best(version: u32, line: &str) -> &'static str {
    let p: GemmProblem = line.parse().expect(line);
    let all = candidates(LIST, &device(version), &p);
    all.iter().min_by_key(|(.., time)| *time).unwrap_or_else(|| panic!("{line} has no kernel")).0.name()
}

fn runs(version: u32, name: &str, line: &str) -> bool {
    let p: GemmProblem = line.parse().expect(line);
    candidates(LIST, &device(version), &p).iter().any(|(kernel, ..)| kernel.name() == name)
}

/// Problems of every kind.
const LINES: [&str; 14] = [
    "gemm 1x4096x4096x4096 bf16:bf16:bf16 b=col",
    "gemm 1x4096x4096x4096 f32:f32:f32",
    "gemm 1x64x64x64 f64:f64:f64",
    "gemm 1x7x9x17 f16:f16:f16",
    "gemm 3x33x15x8 f32:f32:f32 a=col bias=f32 act=relu",
    "gemm 1x64x64x128 e4m3@1x128:e4m3@128x128:bf16 b=col",
    "gemm 1x64x64x128 e2m1@nv^tiles:e2m1@nv^tiles:f32 b=col",
    "gemm 1x64x64x128 bf16:u4@g64/f16z:bf16",
    "gemm 1x64x64x128 i8:i8:i32 b=col",
    "gemm 1x64x64x128 bf16:bf16:e2m1@nv",
    "gemm 1x16x16x64 bf16:bf16:f32 sparse=2:4",
    "gemm 0x0x0x0 f32:f32:f32",
    "gemm 1x5x7x0 bf16:bf16:bf16",
    "gemm 1x3000000000x2x1 i8:i8:i8",
];

#[test]
fn every_problem_has_a_kernel_on_every_device() {
    for (version, line) in ALL.iter().flat_map(|v| LINES.map(|line| (*v, line))) {
        for repro in ["", " repro=fast", " repro=batch-invariant"] {
            let p: GemmProblem = format!("{line}{repro}").parse().expect(line);
            assert!(!candidates(LIST, &device(version), &p).is_empty(), "{p} on sm_{version}");
        }
    }
}

#[test]
fn estimates_are_finite_and_no_faster_than_memory() {
    for (version, line) in ALL.iter().flat_map(|v| LINES.map(|line| (*v, line))) {
        let (caps, p) = (device(version), line.parse::<GemmProblem>().expect(line));
        // L2 may hold all of a small problem, so half the time of main memory is the bound.
        let least = Nanos::floors(&caps, &p).1.0 / 2;
        for (kernel, variant, time) in candidates(LIST, &caps, &p) {
            let name = kernel.name();
            assert!(time.0 < 1 << 60 && (time.0 >= least), "{name}#{} takes {time} for {p} on sm_{version}", variant.0);
            assert!(time.0 > 0 || p.bytes() == 0, "{name} takes no time for {p}");
        }
    }
}

#[test]
fn the_matrix_unit_is_used_where_there_is_one() {
    let bf16 = "gemm 1x4096x4096x4096 bf16:bf16:bf16 b=col";
    for (version, name) in [
        (70, "simt"),
        (75, "simt"),
        (80, "sm80"),
        (86, "sm80"),
        (89, "sm80"),
        (90, "sm90"),
        (100, "sm100"),
        (121, "sm80"),
    ] {
        assert_eq!(best(version, bf16), name, "sm_{version}");
    }
    assert_eq!(best(90, "gemm 1x4096x4096x4096 f32:f32:f32"), "simt");
    assert_eq!(best(90, "gemm 1x4096x4096x4096 e4m3@row:e4m3@row:bf16 b=col"), "sm90");
    assert_eq!(best(90, "gemm 1x4096x4096x4096 e4m3@1x128:e4m3@128x128:bf16 b=col"), "sm90_e4m3_1d2d");
    assert!(best(90, "gemm 1x16x4096x14336 bf16:bf16:bf16 b=col").starts_with("sm90_swap"));
    assert_eq!(best(80, "gemm 1x1x28672x4096 bf16:bf16:bf16 b=col"), "sm80_skinny");
    // Rows of 4095 elements are not 16 bytes apart.
    assert_eq!(best(90, "gemm 1x4096x4096x4095 bf16:bf16:bf16 b=col"), "sm80");
    assert_eq!(best(89, "gemm 1x4096x4096x4096 e4m3:e4m3:bf16 b=col acc=f32fast"), "sm80");
    for types in
        ["e4m3:e5m2:bf16", "e4m3@row:e4m3@row:bf16", "e4m3@1x128^outer:e4m3@128x128:bf16", "e4m3@mx:e4m3@mx:bf16"]
    {
        assert_eq!(best(89, &format!("gemm 1x4096x4096x4096 {types} b=col")), "sm80", "{types}");
    }
    assert_eq!(best(90, "gemm 1x4096x4096x4096 e4m3@mx:e4m3@mx:bf16 b=col"), "sm80");
    assert_eq!(best(80, "gemm 1x4096x4096x4096 i8:i8:i32 b=col"), "sm80");
}

#[test]
fn blocks_with_scales_are_multiplied_as_they_are_on_blackwell() {
    for types in ["e4m3@mx", "e2m1@mx", "e2m1@nv"] {
        let line = |layout: &str| format!("gemm 1x4096x4096x4096 {types}{layout}:{types}{layout}:bf16 b=col");
        assert_eq!((best(100, &line("^tiles")), best(100, &line(""))), ("sm100", "sm100"), "{types}");
        assert_eq!((best(120, &line("^tiles")), best(121, &line(""))), ("sm120", "sm120"), "{types}");
        assert!(!runs(90, "sm100", &line("^tiles")) && !runs(100, "sm120", &line("^tiles")), "{types}");
    }
    assert_eq!(best(100, "gemm 1x4096x4096x4096 e4m3@row:e4m3@row:bf16 b=col"), "sm100");
    assert_eq!(best(120, "gemm 1x4096x4096x4096 bf16:bf16:bf16 b=col"), "sm80");
    // Half a product's k has no scales.
    assert!(!runs(100, "sm100", "gemm 1x64x64x96 e2m1@nv^tiles:e2m1@nv^tiles:f32 b=col"));
    assert!(!runs(120, "sm120", "gemm 1x64x64x96 e4m3@mx:e4m3@mx:f32 b=col"));
    assert!(runs(120, "sm120", "gemm 1x64x64x96 e4m3@mx^tiles:e4m3@mx^tiles:f32 b=col"));
}

#[test]
fn what_no_device_has_run_is_for_those_who_ask() {
    for (version, line) in
        [(100, "gemm 1x4096x4096x4096 bf16:bf16:bf16 b=col"), (120, "gemm 1x4096x4096x4096 e4m3@mx:e4m3@mx:bf16 b=col")]
    {
        let p: GemmProblem = line.parse().expect(line);
        let found = candidates(LIST, &caps::of(&facts(version)), &p);
        assert!(found.iter().all(|(kernel, ..)| kernel.name() != best(version, line)), "{line}");
    }
}

#[test]
fn few_rows_have_kernels_of_their_own() {
    for m in [1, 2, 8, 16, 64, 128] {
        let line = format!("gemm 1x{m}x28672x4096 bf16:bf16:bf16 b=col");
        assert!(runs(90, "sm90_swap", &line) && runs(90, "sm90_swap_stream", &line), "{line}");
    }
    assert!(!runs(90, "sm90_swap", "gemm 1x129x28672x4096 bf16:bf16:bf16 b=col"));
    assert!(!runs(90, "sm90_swap", "gemm 1x16x28672x4096 bf16:bf16:bf16"), "b must be contiguous along k");
}

#[test]
fn one_kernel_takes_a_row_whatever_else_there_is() {
    let types =
        ["bf16:bf16:bf16 b=col", "f16:f16:f32", "e4m3@row:e4m3@row:bf16 b=col", "i8:i8:i32 b=col", "f32:f32:f32"];
    for (version, types) in ALL.iter().flat_map(|v| types.map(|t| (*v, t))) {
        let of = |m: u32| {
            let p: GemmProblem = format!("gemm 1x{m}x512x256 {types} repro=batch-invariant").parse().expect(types);
            let mut names: Vec<_> = candidates(LIST, &device(version), &p).iter().map(|(k, ..)| k.name()).collect();
            names.dedup();
            names
        };
        let one = of(1);
        assert_eq!(one.len(), 1, "{types} on sm_{version}: {one:?}");
        for m in [2, 7, 16, 33, 128, 129, 1000, 8192] {
            assert_eq!(of(m), one, "{types} with m={m} on sm_{version}");
        }
    }
}

#[test]
fn k_of_blocks_is_parted_only_where_a_row_s_bits_may_depend_on_m() {
    let variants = |k: u32, repro: &str| {
        let line = format!("gemm 1x128x4096x{k} e4m3@1x128^outer:e4m3@128x128:bf16 b=col{repro}");
        let p: GemmProblem = line.parse().expect("a problem");
        let all = candidates(LIST, &device(90), &p);
        all.iter().filter(|(kernel, ..)| kernel.name() == "sm90_e4m3_1d2d").count()
    };
    let all = variants(7168, "");
    assert_eq!(all, variants(7168, " repro=batch-invariant") + 3, "three tiles part k");
    assert_eq!(all, variants(128, "") + 3, "a block of k cannot be parted");
    assert_eq!(all, variants(256, ""), "two can");
}

#[test]
fn groups_have_kernels_too() {
    let best = |version: u32, line: &str| {
        let p: GroupedGemmProblem = line.parse().expect(line);
        let all = candidates::<GroupedGemm>(grouped_gemm::LIST, &device(version), &p);
        all.iter()
            .min_by_key(|(.., time)| *time)
            .map(|(kernel, ..)| kernel.name())
            .unwrap_or_else(|| panic!("{line}: no kernel"))
    };
    assert_eq!(best(90, "grouped_gemm 8x16384x4096x7168 bf16:bf16:bf16 b=col"), "sm90_bf16");
    assert_eq!(best(90, "grouped_gemm 8x16384x4096x7168 e4m3@1x128:e4m3@128x128:bf16 b=col"), "sm90_e4m3_1d2d");
    assert_eq!(best(90, "grouped_gemm 8x16384x4096x7168 bf16:bf16:bf16"), "sm80");
    assert_eq!(best(80, "grouped_gemm 8x16384x4096x7168 bf16:bf16:bf16 b=col"), "sm80");
    assert_eq!(best(70, "grouped_gemm 8x16384x4096x7168 bf16:bf16:bf16 b=col grouping=masked"), "simt");
    assert_eq!(best(90, "grouped_gemm 0x0x0x0 f32:f32:f32"), "simt");
}

#[test]
fn reasons_carry_their_numbers() {
    let why = |name: &str, line: &str| {
        let kernel = LIST.iter().find(|kernel| kernel.name() == name).expect(name);
        let p: GemmProblem = line.parse().expect(line);
        kernel.supports(&device(90), &p).err().map(|why| why.to_string()).unwrap_or_default()
    };
    assert_eq!(why("sm90", "gemm 1x64x64x60 bf16:bf16:bf16 b=col"), "ld of a must be a multiple of 8, got 60");
    assert_eq!(
        why("sm90", "gemm 1x64x64x64 bf16:bf16:bf16 b=col align=2"),
        "addresses must be aligned to 16 bytes, got 2"
    );
    assert_eq!(why("sm90", "gemm 1x64x64x64 f32:f32:f32"), "a cannot be f32");
    let odd = "gemm 1x64x60x64 bf16:bf16:bf16 b=col d=row/64";
    assert_eq!(why("sm90", odd), "columns of d must be a multiple of 8, got 60");
    assert_eq!(why("sm90_swap", "gemm 1x200x64x64 bf16:bf16:bf16 b=col"), "m may be at most 128, got 200");
    assert_eq!(why("cublaslt", "gemm 1x64x64x64 bf16:bf16:bf16"), "needs cublaslt");
}

#[test]
fn every_listed_build_is_of_a_kernel_in_a_list() {
    let _: &dyn Kernel<Gemm> = LIST[0];
    for arch in crate::compile::ARCHS {
        let listed = super::builds(arch).into_iter().chain(grouped_gemm::builds(arch));
        for one in listed {
            let (op, name) = one.kernel.split_once('/').expect("op and stem");
            let known = match op {
                // What stores for others is in no list.
                "gemm" => name == "simt_store" || LIST.iter().any(|kernel| kernel.name() == name),
                _ => grouped_gemm::LIST.iter().any(|kernel| kernel.name() == name),
            };
            assert!(known, "{one} on {arch}");
        }
    }
}
