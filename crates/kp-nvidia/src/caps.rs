//! What the driver says of a device → `Caps`. A pure function: tested with facts written down, for hardware that is not
//! here.

use kp_hal::{Caps, DType, DTypes, DeviceKind, Rates};

use DType::{Bf16, E2m1, E4m3, E5m2, F16, F32, F64, I4, I8, Tf32, U4, U8};

/// What the driver says, in its units.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) name: String,
    /// Compute capability.
    pub(crate) major: u32,
    pub(crate) minor: u32,
    /// SMs.
    pub(crate) units: u32,
    pub(crate) max_threads: u32,
    /// Of one SM.
    pub(crate) registers: u32,
    /// Of one block, at most, with leave.
    pub(crate) shared_bytes: u32,
    pub(crate) l2_bytes: u32,
    pub(crate) memory_bytes: u64,
    /// Highest.
    pub(crate) clock_khz: u32,
    /// 0 where memory is the host's.
    pub(crate) memory_clock_khz: u32,
    pub(crate) memory_bus_bits: u32,
    pub(crate) integrated: bool,
    pub(crate) clusters: bool,
    pub(crate) tensor_maps: bool,
    pub(crate) pools: bool,
    /// Whether kernels that no device has run yet may run.
    pub(crate) untried: bool,
}

/// One generation of SMs: dense operations a cycle of one of them, a multiply-add being two.
struct Generation {
    /// Compute capabilities, major · 10 + minor.
    of: &'static [u32],
    l1_bytes: u64,
    f64: f64,
    f32: f64,
    /// The matrix unit's, 0 where it lacks the type. 16-bit types add up in f32.
    tf32: f64,
    f16: f64,
    fp8: f64,
    fp4: f64,
    i8: f64,
    i4: f64,
    /// GeForce cards add up in f32 at half the rate of the same chip in a workstation.
    geforce_halves: bool,
    /// The clock that datasheets rate the matrix unit at, over the highest.
    matrix_clock: f64,
}

/// From the architectures' whitepapers; where a figure is given for a product, divided by its SMs and clock. Oldest first.
const GENERATIONS: &[Generation] = &[
    Generation { of: &[70, 72], l1_bytes: 128 << 10, f64: 64.0, f16: 1024.0, ..PLAIN },
    Generation { of: &[75], l1_bytes: 96 << 10, f16: 1024.0, i8: 2048.0, i4: 4096.0, ..PLAIN },
    Generation {
        of: &[80],
        l1_bytes: 192 << 10,
        f64: 128.0,
        tf32: 1024.0,
        f16: 2048.0,
        i8: 4096.0,
        i4: 8192.0,
        ..PLAIN
    },
    Generation {
        of: &[87],
        l1_bytes: 192 << 10,
        f32: 256.0,
        tf32: 1024.0,
        f16: 2048.0,
        i8: 4096.0,
        i4: 8192.0,
        ..PLAIN
    },
    Generation { of: &[86], geforce_halves: true, ..AMPERE },
    Generation { of: &[88], ..AMPERE },
    Generation { of: &[89], fp8: 2048.0, geforce_halves: true, ..AMPERE },
    // 989 Tflop/s of an H100 are 132 SMs at 1.83 of its 1.98 GHz.
    Generation {
        of: &[90],
        l1_bytes: 256 << 10,
        f64: 256.0,
        f32: 256.0,
        tf32: 2048.0,
        f16: 4096.0,
        fp8: 8192.0,
        i8: 8192.0,
        matrix_clock: 0.924,
        ..PLAIN
    },
    Generation { of: &[100], ..BLACKWELL },
    // More FP4 in the place of f64 and int8.
    Generation { of: &[103], f64: 4.0, fp4: 49152.0, i8: 512.0, ..BLACKWELL },
    Generation { of: &[101, 110], f64: 4.0, matrix_clock: 1.0, ..BLACKWELL },
    Generation { of: &[120, 121], fp8: 2048.0, fp4: 4096.0, i4: 0.0, geforce_halves: true, ..AMPERE },
];

const PLAIN: Generation = Generation {
    of: &[],
    l1_bytes: 128 << 10,
    f64: 4.0,
    f32: 128.0,
    tf32: 0.0,
    f16: 0.0,
    fp8: 0.0,
    fp4: 0.0,
    i8: 0.0,
    i4: 0.0,
    geforce_halves: false,
    matrix_clock: 1.0,
};

const AMPERE: Generation = Generation { f32: 256.0, tf32: 512.0, f16: 1024.0, i8: 2048.0, i4: 4096.0, ..PLAIN };

const BLACKWELL: Generation = Generation {
    l1_bytes: 256 << 10,
    f64: 128.0,
    f32: 256.0,
    tf32: 4096.0,
    f16: 8192.0,
    fp8: 16384.0,
    fp4: 32768.0,
    i8: 16384.0,
    matrix_clock: 0.944,
    ..PLAIN
};

/// What one more launch costs, in nanoseconds: the driver's call took 2700 to 3500 on an H200's host, and more often than not it
/// is what a short kernel waits for.
const LAUNCH_NS: u64 = 3000;

/// What the device can do.
pub(crate) fn of(facts: &Facts) -> Caps {
    let version = facts.major * 10 + facts.minor;
    let generation = generation(version);
    let kind = if facts.integrated { DeviceKind::IntegratedGpu } else { DeviceKind::Gpu };
    let mut caps = Caps::new(kind, arch(version));
    caps.arch_version = version;
    caps.set_features(features(facts, version));
    caps.mma = mma(version, generation);
    caps.units = facts.units;
    caps.lanes = 32;
    caps.max_threads = facts.max_threads;
    caps.registers = facts.registers;
    caps.shared_bytes = facts.shared_bytes;
    caps.l1_bytes = generation.l1_bytes;
    caps.l2_bytes = facts.l2_bytes.into();
    caps.memory_bytes = facts.memory_bytes;
    caps.max_buffer_bytes = facts.memory_bytes;
    caps.launch_ns = LAUNCH_NS;
    let clock_hz = f64::from(facts.clock_khz) * 1e3;
    caps.clock_hz = clock_hz;
    // Two transfers a clock, on each wire.
    let bytes_per_s = f64::from(facts.memory_bus_bits) / 8.0 * f64::from(facts.memory_clock_khz) * 1e3 * 2.0;
    if bytes_per_s > 0.0 {
        caps.bytes_per_s = bytes_per_s;
    }
    if facts.units > 0 && clock_hz > 0.0 {
        caps.rates = rates(generation, f64::from(facts.units) * clock_hz, facts.name.contains("GeForce"));
    }
    caps
}

/// The compiler's name: with an `a` where there are instructions that no later architecture is promised to have.
fn arch(version: u32) -> String {
    format!("sm_{version}{}", if version >= 90 { "a" } else { "" })
}

/// The generation of that capability; of one that is unknown, the last before it.
fn generation(version: u32) -> &'static Generation {
    let exact = GENERATIONS.iter().find(|generation| generation.of.contains(&version));
    let before = |generation: &&Generation| generation.of.iter().all(|&of| of < version);
    exact.or_else(|| GENERATIONS.iter().rev().find(before)).unwrap_or(&PLAIN)
}

fn features(facts: &Facts, version: u32) -> Vec<&'static str> {
    let datacenter_blackwell = (100..120).contains(&version);
    [
        // Products of a warp whose blocks have scales.
        ("block_scale", (120..130).contains(&version)),
        ("clusters", facts.clusters),
        ("cp.async", version >= 80),
        ("fp4", version >= 100),
        ("fp8", version >= 89),
        ("pdl", version >= 90),
        ("tcgen05", datacenter_blackwell),
        ("tma", facts.tensor_maps),
        ("untried", facts.untried),
        ("wgmma", facts.major == 9),
    ]
    .into_iter()
    .filter_map(|(name, has)| has.then_some(name))
    .collect()
}

fn mma(version: u32, generation: &Generation) -> DTypes {
    let rows: [(&[DType], bool); 7] = [
        (&[F16], generation.f16 > 0.0),
        (&[I8, U8], generation.i8 > 0.0),
        (&[I4, U4], generation.i4 > 0.0),
        (&[F64, Bf16], version >= 80),
        (&[Tf32], generation.tf32 > 0.0),
        (&[E4m3, E5m2], generation.fp8 > 0.0),
        (&[E2m1], generation.fp4 > 0.0),
    ];
    let types: Vec<DType> = rows.iter().filter(|(_, has)| *has).flat_map(|(types, _)| types.iter().copied()).collect();
    DTypes::of(&types)
}

/// Peaks at `cycles` cycles a second of all units together. A type that the matrix unit lacks has the rate of the type it
/// is widened to.
fn rates(generation: &Generation, cycles: f64, geforce: bool) -> Rates {
    let Generation { f64: f64s, f32: f32s, tf32, f16, fp8, fp4, i8: i8s, i4, geforce_halves, matrix_clock, .. } =
        *generation;
    let half = if geforce_halves && geforce { 0.5 } else { 1.0 };
    let matrix = |per_cycle: f64| per_cycle * cycles * matrix_clock;
    let or = |own: f64, wider: f64| if own > 0.0 { own } else { wider };
    let f32s = f32s * cycles;
    let f16s = or(matrix(f16 * half), f32s);
    let fp8s = or(matrix(fp8 * half), f16s);
    let fp4s = or(matrix(fp4), fp8s);
    // Without a unit for them, four int8 products are one instruction (dp4a) of the ordinary arithmetic.
    let i8s = or(matrix(i8s), 4.0 * f32s);
    let bf16s = if generation.tf32 > 0.0 { f16s } else { f32s };
    Rates::uniform(f32s)
        .with(&[F32], f32s)
        .with(&[F64], f64s * cycles)
        .with(&[Tf32], or(matrix(tf32 * half), f32s))
        .with(&[F16], f16s)
        .with(&[Bf16], bf16s)
        .with(&[E4m3, E5m2], fp8s)
        .with(&[E2m1], fp4s)
        .with(&[I8, U8], i8s)
        .with(&[I4, U4], or(matrix(i4), i8s))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name, compute capability, SMs, clocks in MHz, bus in bits, then peaks as datasheets give them, in Tflop/s: f32, dense
    /// bf16 or f16, dense FP8, dense FP4, dense int8; and memory in GB/s. 0 where there is none.
    type Card = (&'static str, u32, u32, [u32; 2], u32, [f64; 5], f64);

    const CARDS: &[Card] = &[
        ("Tesla V100-SXM2-16GB", 70, 80, [1530, 877], 4096, [15.7, 125.0, 0.0, 0.0, 0.0], 900.0),
        ("Tesla T4", 75, 40, [1590, 5001], 256, [8.1, 65.0, 0.0, 0.0, 130.0], 320.0),
        ("NVIDIA A100-SXM4-80GB", 80, 108, [1410, 1593], 5120, [19.5, 312.0, 0.0, 0.0, 624.0], 2039.0),
        ("NVIDIA GeForce RTX 3090", 86, 82, [1695, 9751], 384, [35.6, 71.0, 0.0, 0.0, 284.0], 936.0),
        ("NVIDIA A40", 86, 84, [1740, 7251], 384, [37.4, 149.7, 0.0, 0.0, 299.3], 696.0),
        ("NVIDIA GeForce RTX 4090", 89, 128, [2520, 10501], 384, [82.6, 165.2, 330.3, 0.0, 660.6], 1008.0),
        ("NVIDIA L40S", 89, 142, [2520, 9001], 384, [91.6, 362.0, 733.0, 0.0, 733.0], 864.0),
        ("NVIDIA H100 80GB HBM3", 90, 132, [1980, 2619], 5120, [66.9, 989.4, 1978.9, 0.0, 1978.9], 3350.0),
        ("NVIDIA H200", 90, 132, [1980, 3201], 6144, [66.9, 989.4, 1978.9, 0.0, 1978.9], 4800.0),
        ("NVIDIA B200", 100, 148, [1965, 3996], 8192, [75.0, 2250.0, 4500.0, 9000.0, 4500.0], 8000.0),
        ("NVIDIA GeForce RTX 5090", 120, 170, [2407, 14001], 512, [104.8, 209.5, 419.0, 1676.0, 838.0], 1792.0),
    ];

    fn facts(&(name, version, units, [clock, memory_clock], bus, ..): &Card) -> Facts {
        Facts {
            name: name.into(),
            major: version / 10,
            minor: version % 10,
            units,
            max_threads: 1024,
            registers: 65_536,
            shared_bytes: 99 << 10,
            l2_bytes: 4 << 20,
            memory_bytes: 16 << 30,
            clock_khz: clock * 1000,
            memory_clock_khz: memory_clock * 1000,
            memory_bus_bits: bus,
            clusters: version >= 90,
            tensor_maps: version >= 90,
            pools: true,
            ..Facts::default()
        }
    }

    #[test]
    fn peaks_are_those_of_datasheets() {
        for card in CARDS {
            let (name, .., peaks, gigabytes) = *card;
            let caps = of(&facts(card));
            for (t, tera) in [F32, F16, E4m3, E2m1, I8].into_iter().zip(peaks) {
                assert_eq!(caps.mma.contains(t), tera > 0.0 && t != F32, "{name}: {t}");
                let ratio = caps.rates.get(t) / (tera * 1e12);
                assert!(tera == 0.0 || (0.95..1.08).contains(&ratio), "{name}: {t} is {ratio} of the datasheet's");
            }
            let ratio = caps.bytes_per_s / (gigabytes * 1e9);
            assert!((0.97..1.03).contains(&ratio), "{name}: bandwidth is {ratio} of the datasheet's");
        }
    }

    #[test]
    fn each_architecture_has_its_name_and_instructions() {
        let of = |version| {
            of(&Facts {
                major: version / 10,
                minor: version % 10,
                clusters: version >= 90,
                tensor_maps: version >= 90,
                ..Facts::default()
            })
        };
        for (version, arch, features) in [
            (70, "sm_70", &[][..]),
            (75, "sm_75", &[]),
            (80, "sm_80", &["cp.async"]),
            (86, "sm_86", &["cp.async"]),
            (87, "sm_87", &["cp.async"]),
            (88, "sm_88", &["cp.async"]),
            (89, "sm_89", &["cp.async", "fp8"]),
            (90, "sm_90a", &["clusters", "cp.async", "fp8", "pdl", "tma", "wgmma"]),
            (100, "sm_100a", &["clusters", "cp.async", "fp4", "fp8", "pdl", "tcgen05", "tma"]),
            (103, "sm_103a", &["clusters", "cp.async", "fp4", "fp8", "pdl", "tcgen05", "tma"]),
            (110, "sm_110a", &["clusters", "cp.async", "fp4", "fp8", "pdl", "tcgen05", "tma"]),
            (120, "sm_120a", &["block_scale", "clusters", "cp.async", "fp4", "fp8", "pdl", "tma"]),
            (121, "sm_121a", &["block_scale", "clusters", "cp.async", "fp4", "fp8", "pdl", "tma"]),
        ] {
            let caps = of(version);
            assert_eq!((&*caps.arch, caps.arch_version), (arch, version));
            assert_eq!(caps.features, features, "{arch}");
            assert_eq!(caps.mma.contains(Bf16), version >= 80, "{arch}");
            assert_eq!(caps.mma.contains(E5m2), version >= 89, "{arch}");
            assert_eq!(caps.mma.contains(E2m1), version >= 100, "{arch}");
        }
    }

    #[test]
    fn a_generation_that_is_not_known_is_taken_for_the_last_before_it() {
        assert!(generation(130).of.contains(&120) && generation(79).of.contains(&75) && generation(60).of.is_empty());
    }

    #[test]
    fn unknown_clocks_leave_rooflines_finite() {
        let caps = of(&Facts { name: "NVIDIA GB10".into(), major: 12, minor: 1, integrated: true, ..Facts::default() });
        assert_eq!(caps.kind, DeviceKind::IntegratedGpu);
        assert!(DType::ALL.iter().all(|&t| caps.rates.get(t) > 0.0) && caps.bytes_per_s > 0.0);
    }

    #[test]
    fn capabilities_agree_with_those_that_dispatch_is_tested_with() {
        for (name, version) in [("h200", 90), ("b200", 100), ("rtx_4090", 89), ("rtx_5090", 120)] {
            let written = kp_testkit::caps::ALL.iter().find(|(other, _)| *other == name).expect("it is there").1();
            let own =
                CARDS.iter().rev().find(|card| card.1 == version && !card.0.contains("L40S")).expect("it is there");
            let caps = of(&facts(own));
            assert_eq!((caps.arch, caps.units, caps.lanes), (written.arch, written.units, written.lanes));
            for t in written.mma.iter() {
                let ratio = caps.rates.get(t) / written.rates.get(t);
                assert!((0.9..1.1).contains(&ratio), "{name}: {t} is {ratio} of what is written");
            }
        }
    }
}
