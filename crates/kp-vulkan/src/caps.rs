//! What a driver says of a device → `Caps`. A pure function: tested with facts written down, for hardware that is not here.

use kp_hal::{
    Caps, DType, DTypes, DeviceKind, PciAddress, Rates,
    caps::{MmaScope, MmaShape},
};

use DType::{Bf16, F16, I8, U8};

/// What the driver says, in its units.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// Major and minor.
    pub(crate) api: (u32, u32),
    /// The driver's name and version as it writes them.
    pub(crate) driver: String,
    pub(crate) pci: Option<PciAddress>,
    pub(crate) uuid: [u8; 16],
    /// What this device lacks of what kp cannot do without, as the registry spells it.
    pub(crate) lacks: Vec<&'static str>,
    /// Smallest, usual and largest subgroup.
    pub(crate) subgroup: (u32, u32, u32),
    pub(crate) max_threads: u32,
    pub(crate) shared_bytes: u32,
    /// Workgroups along x.
    pub(crate) max_groups: u32,
    /// SMs, CUs; 0 if the driver does not say.
    pub(crate) units: u32,
    /// Largest heap of the device's own memory.
    pub(crate) memory_bytes: u64,
    pub(crate) max_buffer_bytes: u64,
    pub(crate) can: Can,
    /// Tile shapes of the matrix unit; empty without one.
    pub(crate) shapes: Vec<MmaShape>,
}

/// What kind of machine the driver calls it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Kind {
    Discrete,
    Integrated,
    /// A virtual GPU, or one that says nothing.
    #[default]
    Other,
    Cpu,
}

/// Abilities that kernels ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Can {
    pub(crate) f16: bool,
    pub(crate) f64: bool,
    pub(crate) i8: bool,
    pub(crate) bf16: bool,
    /// Products of four numbers of 8 bits with four, summed, and those of them that are instructions: of signed numbers, of unsigned
    /// ones, of the two.
    pub(crate) dot8: bool,
    pub(crate) fast_dot8: [bool; 3],
    pub(crate) coopmat: bool,
    pub(crate) bf16_coopmat: bool,
    /// Reductions over a matrix of a subgroup, functions of each element by its place, sums as operands.
    pub(crate) coopmat2: bool,
    /// A pipeline may name its subgroup's size, of those between smallest and largest.
    pub(crate) subgroup_size: bool,
    pub(crate) memory_budget: bool,
}

/// The feature that a kernel of cooperative matrices asks for.
pub(crate) const COOPMAT: &str = "coopmat";
/// The same of bf16.
pub(crate) const COOPMAT_BF16: &str = "coopmat-bf16";
/// Numbers of 8 bits in shaders.
pub(crate) const INT8: &str = "int8";
/// Numbers of 64 bits in shaders.
pub(crate) const FLOAT64: &str = "float64";
/// Dot products of numbers of 8 bits in shaders.
pub(crate) const DOT8: &str = "dot8";
/// Those that the driver calls accelerated: of signed numbers, of unsigned ones, of the two.
pub(crate) const FAST_DOT8: [&str; 3] = ["fast-dot8-signed", "fast-dot8-unsigned", "fast-dot8-mixed"];
/// What `VK_NV_cooperative_matrix2` adds to matrices of subgroups.
pub(crate) const COOPMAT_2: &str = "coopmat2";

/// Capabilities of a device.
pub(crate) fn of(facts: &Facts) -> Caps {
    let Facts { can, .. } = *facts;
    let kind = match facts.kind {
        Kind::Integrated => DeviceKind::IntegratedGpu,
        Kind::Cpu => DeviceKind::SoftwareGpu,
        Kind::Discrete | Kind::Other => DeviceKind::Gpu,
    };
    let mut caps = Caps::new(kind, format!("vulkan{}.{}", facts.api.0, facts.api.1));
    caps.arch_version = facts.api.0 * 10 + facts.api.1;
    let named = [
        (can.f16, "float16"),
        (can.f64, FLOAT64),
        (can.i8, INT8),
        (can.bf16, "bfloat16"),
        (can.dot8, DOT8),
        (can.fast_dot8[0], FAST_DOT8[0]),
        (can.fast_dot8[1], FAST_DOT8[1]),
        (can.fast_dot8[2], FAST_DOT8[2]),
        (can.coopmat, COOPMAT),
        (can.bf16_coopmat, COOPMAT_BF16),
        (can.coopmat2, COOPMAT_2),
        (can.subgroup_size, "subgroup-size"),
    ];
    caps.set_features(named.into_iter().filter_map(|(has, name)| has.then_some(name)));
    caps.mma_shapes = facts.shapes.clone();
    caps.mma = DTypes::of(&facts.shapes.iter().map(|shape| shape.a).collect::<Vec<_>>());
    caps.units = facts.units.max(1);
    caps.lanes = facts.subgroup.1.max(1);
    caps.max_threads = facts.max_threads;
    caps.shared_bytes = facts.shared_bytes;
    caps.memory_bytes = facts.memory_bytes;
    caps.max_buffer_bytes = facts.max_buffer_bytes;
    (caps.rates, caps.bytes_per_s) = guess(kind, &caps);
    caps.launch_ns = 6_000;
    caps
}

/// The shape of subgroups' matrices to use for products of `dtype`, with sums of f32, or of I32 if it is I8: of those listed the largest,
/// of two as large the one that the driver lists first.
pub(crate) fn mma_shape(caps: &Caps, dtype: DType) -> Option<&MmaShape> {
    let sums = if dtype == I8 { DType::I32 } else { DType::F32 };
    let fits = |one: &&MmaShape| {
        one.scope == MmaScope::Subgroup && (one.a, one.b, one.d) == (dtype, dtype, sums) && one.n.is_multiple_of(2)
    };
    caps.mma_shapes.iter().rev().filter(fits).max_by_key(|one| one.m * one.n * one.k)
}

/// Widths of matrices that kernels fill from registers: see `kernels/common/glsl/lanes.comp`.
pub(crate) const WIDTHS: [u32; 2] = [8, 16];

/// Widths n for which the driver lists subgroups' matrices of 16×n×16 of `dtype` with sums of f32, of those above.
pub(crate) fn widths(caps: &Caps, dtype: DType) -> impl Iterator<Item = u32> {
    let lists = move |n: &u32| {
        caps.mma_shapes.iter().any(|one| {
            (one.m, one.n, one.k, one.scope) == (16, *n, 16, MmaScope::Subgroup)
                && (one.a, one.b, one.d) == (dtype, dtype, DType::F32)
        })
    };
    WIDTHS.into_iter().filter(lists)
}

/// Peaks that no Vulkan driver tells: orders of magnitude by kind, for estimates that are only compared with one another.
/// `Device::measure` finds the device's own.
fn guess(kind: DeviceKind, caps: &Caps) -> (Rates, f64) {
    let (f32_rate, matrix, bandwidth) = match kind {
        DeviceKind::Gpu => (20e12, 80e12, 500e9),
        DeviceKind::IntegratedGpu => (2e12, 8e12, 60e9),
        DeviceKind::Cpu | DeviceKind::SoftwareGpu => (20e9, 20e9, 10e9),
    };
    let mut rates = Rates::uniform(f32_rate);
    for t in [F16, Bf16, I8, U8].into_iter().filter(|&t| caps.mma.contains(t)) {
        rates = rates.with(&[t], matrix);
    }
    (rates, bandwidth)
}

#[cfg(test)]
mod tests {
    use super::*;
    use DType::F32;

    fn discrete() -> Facts {
        let shape = MmaShape { m: 16, n: 16, k: 16, a: F16, b: F16, d: F32, scope: MmaScope::Subgroup };
        Facts {
            kind: Kind::Discrete,
            api: (1, 4),
            subgroup: (32, 32, 32),
            max_threads: 1024,
            shared_bytes: 48 << 10,
            units: 132,
            memory_bytes: 80 << 30,
            max_buffer_bytes: 4 << 30,
            can: Can { f16: true, coopmat: true, ..Can::default() },
            shapes: vec![shape],
            ..Facts::default()
        }
    }

    #[test]
    fn facts_become_capabilities() {
        let caps = of(&discrete());
        assert_eq!((caps.kind, &*caps.arch, caps.arch_version), (DeviceKind::Gpu, "vulkan1.4", 14));
        assert_eq!(caps.features, [COOPMAT, "float16"]);
        assert!(caps.mma.contains(F16) && !caps.mma.contains(Bf16));
        assert!(caps.rates.get(F16) > caps.rates.get(F32));
        assert_eq!(caps.mma_shapes.len(), 1);
    }

    #[test]
    fn a_driver_that_says_little_makes_sense_all_the_same() {
        let caps = of(&Facts { max_threads: 128, max_buffer_bytes: 1 << 27, ..Facts::default() });
        assert!(caps.units > 0 && caps.lanes > 0 && caps.mma_shapes.is_empty() && caps.features.is_empty());
        assert_eq!(of(&Facts { kind: Kind::Cpu, ..Facts::default() }).kind, DeviceKind::SoftwareGpu);
    }
}
