//! Capabilities of real machines, written down: dispatch is tested on hardware the test machine does not have.
//!
//! Peaks are dense (without structured sparsity) and as the vendor rates them; where a datasheet gives only the
//! sparse figure, half of it. Multiplying types that a unit lacks is given the rate of the type it is widened to.
//! Each machine names its sources. A test checks that peaks are units × clock × operations a cycle, so that a mistaken
//! figure stands out. Launch times are what samples of the vendors typically measure, not rated by anyone.

use kp_hal::{Caps, DType, DTypes, DeviceKind, Rates};

use DType::{Bf16, E2m1, E4m3, E4m3Fnuz, E5m2, E5m2Fnuz, F16, F32, F64, I4, I8, Tf32, U4, U8};

/// A name and the capabilities behind it.
pub type Machine = (&'static str, fn() -> Caps);

/// Every machine of this module.
pub const ALL: &[Machine] = &[
    ("h100_sxm", h100_sxm),
    ("h200", h200),
    ("b200", b200),
    ("rtx_4090", rtx_4090),
    ("rtx_5090", rtx_5090),
    ("mi300x", mi300x),
    ("rx_7900_xtx", rx_7900_xtx),
    ("arc_b580", arc_b580),
    ("epyc_9654", epyc_9654),
    ("xeon_8480", xeon_8480),
    ("apple_m2", apple_m2),
];

const FP8: [DType; 2] = [E4m3, E5m2];
const BYTES: [DType; 2] = [I8, U8];
const NIBBLES: [DType; 2] = [I4, U4];

/// Peaks in units of 10¹² operations a second.
fn tera(uniform: f64, exceptions: &[(&[DType], f64)]) -> Rates {
    exceptions.iter().fold(Rates::uniform(uniform * 1e12), |rates, (types, peak)| rates.with(types, peak * 1e12))
}

fn gpu(arch: &'static str, version: u32) -> Caps {
    let mut caps = Caps::new(DeviceKind::Gpu, arch);
    caps.arch_version = version;
    caps.max_threads = 1024;
    caps
}

/// What all recent NVIDIA GPUs share: CUDA C++ programming guide, "Technical specifications per compute capability".
/// `resident` threads and `shared` KiB on an SM; a block may have all but 1 KiB of the latter.
fn nvidia(arch: &'static str, version: u32, resident: u32, shared: u32) -> Caps {
    let mut caps = gpu(arch, version);
    caps.lanes = 32;
    caps.registers = 65536;
    caps.unit_threads = resident;
    caps.unit_shared_bytes = shared << 10;
    caps.shared_bytes = (shared - 1) << 10;
    // A launch from an idle stream, as vendors' own samples measure it: a few microseconds.
    caps.launch_ns = 3000;
    caps
}

/// NVIDIA H100 SXM5 80 GB: H100 datasheet, and the Hopper architecture whitepaper for SMs, caches and shared memory.
pub fn h100_sxm() -> Caps {
    let mut caps = nvidia("sm_90a", 90, 2048, 228);
    caps.set_features(["tma", "wgmma", "cp.async", "clusters", "fp8"]);
    caps.mma = DTypes::of(&[F64, Tf32, F16, Bf16, E4m3, E5m2, I8, U8]);
    caps.units = 132;
    caps.l1_bytes = 256 << 10;
    caps.l2_bytes = 50 << 20;
    caps.memory_bytes = 80 << 30;
    // 989.4 TFLOP/s over 132 SMs of 4096 operations a cycle.
    caps.clock_hz = 1.83e9;
    caps.bytes_per_s = 3.35e12;
    caps.rates = tera(
        67.0,
        &[
            (&[F64], 67.0),
            (&[Tf32], 494.7),
            (&[F16, Bf16], 989.4),
            (&FP8, 1978.9),
            (&BYTES, 1978.9),
            (&NIBBLES, 1978.9),
            (&[E2m1], 989.4),
        ],
    );
    caps
}

/// NVIDIA H200 SXM 141 GB: H200 datasheet; the die is that of H100.
pub fn h200() -> Caps {
    let mut caps = h100_sxm();
    caps.memory_bytes = 141 << 30;
    caps.bytes_per_s = 4.8e12;
    caps
}

/// NVIDIA B200 SXM 180 GB: HGX B200 datasheet, per GPU; Blackwell tuning guide for shared memory and caches.
pub fn b200() -> Caps {
    let mut caps = nvidia("sm_100a", 100, 2048, 228);
    caps.set_features(["tma", "tcgen05", "cp.async", "clusters", "fp8", "fp4"]);
    caps.mma = DTypes::of(&[F64, Tf32, F16, Bf16, E4m3, E5m2, E2m1, I8, U8]);
    caps.units = 148;
    caps.l1_bytes = 256 << 10;
    caps.l2_bytes = 126 << 20;
    caps.memory_bytes = 180 << 30;
    caps.clock_hz = 1.85e9;
    caps.bytes_per_s = 7.7e12;
    caps.rates = tera(
        75.0,
        &[
            (&[F64], 37.0),
            (&[Tf32], 1100.0),
            (&[F16, Bf16], 2250.0),
            (&FP8, 4500.0),
            (&[E2m1], 9000.0),
            (&BYTES, 4500.0),
            (&NIBBLES, 4500.0),
        ],
    );
    caps
}

/// NVIDIA GeForce RTX 4090: Ada GPU architecture whitepaper, appendix A; tensor rates with f32 sums.
pub fn rtx_4090() -> Caps {
    let mut caps = nvidia("sm_89", 89, 1536, 100);
    caps.set_features(["cp.async", "fp8"]);
    caps.mma = DTypes::of(&[F64, Tf32, F16, Bf16, E4m3, E5m2, I8, U8, I4, U4]);
    caps.units = 128;
    caps.l1_bytes = 128 << 10;
    caps.l2_bytes = 72 << 20;
    caps.memory_bytes = 24 << 30;
    caps.clock_hz = 2.52e9;
    caps.bytes_per_s = 1.008e12;
    caps.rates = tera(
        82.6,
        &[(&[F64], 1.3), (&[F16, Bf16], 165.2), (&FP8, 330.3), (&[E2m1], 165.2), (&BYTES, 660.6), (&NIBBLES, 1321.2)],
    );
    caps
}

/// NVIDIA GeForce RTX 5090: RTX Blackwell GPU architecture whitepaper, appendix A; tensor rates with f32 sums.
pub fn rtx_5090() -> Caps {
    let mut caps = nvidia("sm_120a", 120, 1536, 100);
    caps.set_features(["tma", "cp.async", "block_scale", "fp8", "fp4"]);
    caps.mma = DTypes::of(&[F64, Tf32, F16, Bf16, E4m3, E5m2, E2m1, I8, U8]);
    caps.units = 170;
    caps.l1_bytes = 128 << 10;
    caps.l2_bytes = 96 << 20;
    caps.memory_bytes = 32 << 30;
    caps.clock_hz = 2.407e9;
    caps.bytes_per_s = 1.792e12;
    caps.rates = tera(
        104.8,
        &[(&[F64], 1.64), (&[F16, Bf16], 209.5), (&FP8, 419.0), (&[E2m1], 1676.0), (&BYTES, 838.0), (&NIBBLES, 838.0)],
    );
    caps
}

/// AMD Instinct MI300X: MI300X datasheet, the CDNA 3 whitepaper for registers and caches, and ROCm's "MI300 series
/// microarchitecture" for dies and their caches. A unit holds 8 waves of 64 on each of four SIMDs.
pub fn mi300x() -> Caps {
    let mut caps = gpu("gfx942", 942);
    caps.set_features(["mfma", "fp8-fnuz", "xf32"]);
    caps.mma = DTypes::of(&[F64, F32, Tf32, F16, Bf16, E4m3Fnuz, E5m2Fnuz, I8]);
    caps.units = 304;
    caps.lanes = 64;
    caps.registers = 131_072;
    caps.unit_threads = 2048;
    caps.shared_bytes = 64 << 10;
    caps.unit_shared_bytes = 64 << 10;
    caps.l1_bytes = 32 << 10;
    // 4 MiB in each of eight dies; behind them the shared cache.
    caps.l2_bytes = 32 << 20;
    caps.l3_bytes = 256 << 20;
    caps.memory_bytes = 192 << 30;
    caps.clock_hz = 2.1e9;
    caps.bytes_per_s = 5.3e12;
    caps.launch_ns = 5000;
    caps.rates = tera(
        163.4,
        &[
            (&[F64], 163.4),
            (&[Tf32], 653.7),
            (&[F16, Bf16, E4m3, E5m2, E2m1], 1307.4),
            (&[E4m3Fnuz, E5m2Fnuz], 2614.9),
            (&BYTES, 2614.9),
            (&NIBBLES, 2614.9),
        ],
    );
    caps
}

/// AMD Radeon RX 7900 XTX: product page, and the RDNA 3 ISA guide for the wave, registers and LDS. A unit holds 16 waves
/// of 32 on each of two SIMDs; of the 128 KiB that two units share, half.
pub fn rx_7900_xtx() -> Caps {
    let mut caps = gpu("gfx1100", 1100);
    caps.set_features(["wmma"]);
    caps.mma = DTypes::of(&[F16, Bf16, I8, U8, I4, U4]);
    caps.units = 96;
    caps.lanes = 32;
    caps.registers = 98_304;
    caps.unit_threads = 1024;
    caps.shared_bytes = 64 << 10;
    caps.unit_shared_bytes = 64 << 10;
    caps.l1_bytes = 32 << 10;
    caps.l2_bytes = 6 << 20;
    caps.l3_bytes = 96 << 20;
    caps.memory_bytes = 24 << 30;
    caps.clock_hz = 2.5e9;
    caps.bytes_per_s = 9.6e11;
    caps.launch_ns = 5000;
    caps.rates =
        tera(61.4, &[(&[F64], 1.9), (&[F16, Bf16, E4m3, E5m2, E2m1], 122.8), (&BYTES, 122.8), (&NIBBLES, 245.6)]);
    caps
}

/// Intel Arc B580: product specifications (233 TOPS of int8, 456 GB/s), 20 Xe2 cores at 2.67 GHz, each with eight vector
/// engines of eight threads of 16 lanes; f64 at an eighth of f32.
pub fn arc_b580() -> Caps {
    let mut caps = gpu("bmg_g21", 20);
    caps.set_features(["xmx"]);
    caps.mma = DTypes::of(&[Tf32, F16, Bf16, I8, U8, I4, U4]);
    caps.units = 20;
    caps.lanes = 16;
    caps.unit_threads = 1024;
    caps.shared_bytes = 64 << 10;
    caps.unit_shared_bytes = 128 << 10;
    caps.l1_bytes = 256 << 10;
    caps.l2_bytes = 18 << 20;
    caps.memory_bytes = 12 << 30;
    caps.clock_hz = 2.67e9;
    caps.bytes_per_s = 4.56e11;
    caps.launch_ns = 8000;
    // 256 lanes a core, a multiply-add each; the matrix unit does 8 (f16) and 16 (int8) times as much.
    caps.rates = tera(
        13.7,
        &[(&[F64], 1.7), (&[Tf32], 58.2), (&[F16, Bf16, E4m3, E5m2, E2m1], 116.5), (&BYTES, 233.0), (&NIBBLES, 466.0)],
    );
    caps
}

fn cpu(arch: &'static str, units: u32, clock_hz: f64, f32_per_cycle: f64) -> Caps {
    let mut caps = Caps::new(DeviceKind::Cpu, arch);
    caps.units = units;
    caps.clock_hz = clock_hz;
    caps.launch_ns = 300;
    let f32s = f64::from(units) * clock_hz * f32_per_cycle;
    caps.rates = Rates::uniform(f32s).with(&[F64], f32s / 2.0);
    caps
}

/// What Zen 4 and Sapphire Rapids have alike.
const AVX512: [&str; 16] = [
    "sse4.1",
    "avx",
    "avx2",
    "fma",
    "f16c",
    "bmi2",
    "gfni",
    "avx512f",
    "avx512bw",
    "avx512dq",
    "avx512vl",
    "avx512vbmi",
    "avx512vbmi2",
    "avx512vnni",
    "avx512bf16",
    "avx512vpopcntdq",
];

/// AMD EPYC 9654 (Zen 4, 96 cores, all-core boost 3.55 GHz, 12 channels of DDR5-4800): product page, and the Zen 4
/// optimization guide for two 256-bit multiply-adds a cycle.
pub fn epyc_9654() -> Caps {
    let mut caps = cpu("x86-64", 96, 3.55e9, 32.0);
    caps.set_features(AVX512);
    caps.l1_bytes = 32 << 10;
    caps.l2_bytes = 1 << 20;
    caps.l3_bytes = 384 << 20;
    caps.memory_bytes = 768 << 30;
    caps.bytes_per_s = 4.608e11;
    let f32s = caps.rates.get(F32);
    caps.rates = caps.rates.with(&[Bf16], 2.0 * f32s).with(&BYTES, 4.0 * f32s).with(&NIBBLES, 4.0 * f32s);
    caps
}

/// Intel Xeon Platinum 8480+ (Sapphire Rapids, 56 cores at 2 GHz base, 8 channels of DDR5-4800): product page; AMX
/// does 1024 bf16 and 2048 int8 operations a cycle (Intel 64 optimization reference manual, chapter on AMX).
pub fn xeon_8480() -> Caps {
    let mut caps = cpu("x86-64", 56, 2.0e9, 64.0);
    caps.set_features(AVX512.into_iter().chain(["avx512fp16", "avxvnni", "amx-tile", "amx-bf16", "amx-int8"]));
    caps.mma = DTypes::of(&[Bf16, I8, U8]);
    caps.l1_bytes = 48 << 10;
    caps.l2_bytes = 2 << 20;
    caps.l3_bytes = 105 << 20;
    caps.memory_bytes = 512 << 30;
    caps.bytes_per_s = 3.072e11;
    caps.read_places = 8;
    let cycles = f64::from(caps.units) * caps.clock_hz;
    let rates = caps.rates.with(&[F16], 128.0 * cycles).with(&[Bf16], 1024.0 * cycles);
    caps.rates = rates.with(&BYTES, 2048.0 * cycles).with(&NIBBLES, 2048.0 * cycles);
    caps
}

/// Apple M2 (four fast and four small cores, LPDDR5-6400): product specifications; four 128-bit multiply-adds a cycle
/// on a fast core, of which alone the peak speaks.
pub fn apple_m2() -> Caps {
    let mut caps = cpu("aarch64", 4, 3.49e9, 32.0);
    caps.set_features(["neon", "fp16", "dotprod", "bf16", "i8mm"]);
    caps.l1_bytes = 128 << 10;
    // Shared by the four fast cores.
    caps.l2_bytes = 16 << 20;
    caps.l3_bytes = 8 << 20;
    caps.memory_bytes = 16 << 30;
    caps.bytes_per_s = 1.0e11;
    let f32s = caps.rates.get(F32);
    caps.rates = caps.rates.with(&[F16, Bf16], 2.0 * f32s).with(&BYTES, 4.0 * f32s).with(&NIBBLES, 4.0 * f32s);
    caps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_machine_makes_sense() {
        for (name, caps) in ALL {
            let caps = caps();
            assert!(caps.units > 0 && caps.lanes > 0 && caps.l2_bytes > 0 && caps.memory_bytes > 0, "{name}");
            assert!(caps.bytes_per_s > 5e10 && caps.clock_hz > 1e9, "{name}");
            assert!(caps.shared_bytes <= caps.unit_shared_bytes, "{name}");
            assert!(caps.kind == DeviceKind::Cpu || caps.unit_threads >= caps.max_threads, "{name}");
            assert!(caps.features.is_sorted() && caps.features.iter().all(|f| caps.has(f)), "{name}");
            // Narrower operands of the matrix unit are never slower than f32, and never 200 times as fast.
            let f32s = caps.rates.get(F32);
            for t in caps.mma.iter().filter(|t| *t != F64) {
                let ratio = caps.rates.get(t) / f32s;
                assert!((1.0..200.0).contains(&ratio), "{name}: {t} is {ratio} times as fast as f32");
            }
        }
    }

    #[test]
    fn peaks_follow_from_units_and_clock() {
        // Each figure is computed from the architecture, not copied: operations per unit and cycle.
        for (caps, t, per_cycle) in [
            (h100_sxm(), F16, 4096.0),
            (h200(), E4m3, 8192.0),
            (b200(), F16, 8192.0),
            (b200(), E2m1, 32768.0),
            (rtx_4090(), F32, 256.0),
            (rtx_4090(), F16, 512.0),
            (rtx_4090(), I8, 2048.0),
            (rtx_5090(), F32, 256.0),
            (rtx_5090(), E4m3, 1024.0),
            (rtx_5090(), E2m1, 4096.0),
            (mi300x(), F32, 256.0),
            (mi300x(), F16, 2048.0),
            (mi300x(), E4m3Fnuz, 4096.0),
            (rx_7900_xtx(), F32, 256.0),
            (rx_7900_xtx(), F16, 512.0),
            (arc_b580(), F32, 256.0),
            (arc_b580(), F64, 32.0),
            (arc_b580(), I8, 4352.0),
        ] {
            let computed = f64::from(caps.units) * caps.clock_hz * per_cycle;
            let ratio = caps.rates.get(t) / computed;
            assert!((0.97..1.03).contains(&ratio), "{} {t}: {ratio}", caps.arch);
        }
    }
}
