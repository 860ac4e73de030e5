//! Facts about one device. Data, never methods that ask a driver: a `Caps` can be
//! written down in a test for hardware the test machine does not have.

use crate::{
    dtype::{DType, DTypes},
    op::Order,
};
use std::{borrow::Cow, fmt};

/// What kind of machine a device is; also how devices are ranked when nothing else is known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum DeviceKind {
    /// A GPU with memory of its own.
    Gpu,
    /// A GPU that shares the host's memory.
    IntegratedGpu,
    /// The host's processor.
    Cpu,
    /// A processor playing a GPU: correct, slow, for tests.
    SoftwareGpu,
}

/// What one device can do.
///
/// Unknown numbers are 0 and mean "do not rely on it": a kernel that needs the fact
/// refuses, an estimate that needs it falls back to a guess it names.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Caps {
    /// Kind of device.
    pub kind: DeviceKind,
    /// Architecture tag as the vendor spells it: `sm_90a`, `gfx942`, `x86-64`, `aarch64`.
    pub arch: Cow<'static, str>,
    /// The tag as a number that grows with capability, within one vendor: 90, 942.
    pub arch_version: u32,
    /// Named abilities as the vendor or the ISA spells them, sorted: `avx512f`, `tma`, `coopmat2`.
    pub features: Vec<Cow<'static, str>>,
    /// Types the matrix unit multiplies.
    pub mma: DTypes,
    /// Tile shapes of the matrix unit where the driver names them (Vulkan cooperative matrix).
    pub mma_shapes: Vec<MmaShape>,
    /// Types the ordinary arithmetic units can load, store and convert.
    pub vector: DTypes,
    /// Compute units: SMs, CUs, Xe cores or CPU cores available to this process.
    pub units: u32,
    /// Threads per warp, wave or subgroup; 1 on a CPU.
    pub lanes: u32,
    /// Most threads of one workgroup; 1 on a CPU.
    pub max_threads: u32,
    /// Most threads that one compute unit holds at a time.
    pub unit_threads: u32,
    /// 32-bit registers of one compute unit.
    pub registers: u32,
    /// Shared memory one workgroup may use, in bytes.
    pub shared_bytes: u32,
    /// Shared memory of one compute unit, in bytes: what the workgroups that it holds at a time have together.
    pub unit_shared_bytes: u32,
    /// First-level data cache of one unit, in bytes.
    pub l1_bytes: u64,
    /// Second-level cache, in bytes: of one core on a CPU, of the whole device on a GPU.
    pub l2_bytes: u64,
    /// Last-level cache shared by all cores, in bytes.
    pub l3_bytes: u64,
    /// Main memory of the device, in bytes.
    pub memory_bytes: u64,
    /// Sustained clock, in hertz.
    pub clock_hz: f64,
    /// Peak of main memory, in bytes per second, reads plus writes.
    pub bytes_per_s: f64,
    /// Places from which one core reads main memory fastest when it reads them in turn; 1 where one place after the other is
    /// as fast.
    pub read_places: u32,
    /// Peak arithmetic rates.
    pub rates: Rates,
    /// How a constant B of each type is best arranged ahead of its products with an A of the same type: the panels that
    /// kernels read where they lie. A type that is not listed gains nothing from being arranged.
    pub panels: Vec<(DType, Order)>,
    /// Most bytes one buffer may hold.
    pub max_buffer_bytes: u64,
    /// Time from the host's call until a kernel with no work has run, in nanoseconds.
    pub launch_ns: u64,
}

impl Caps {
    /// A device of which nothing is known but its kind and tag; fill in what is.
    ///
    /// Rates and bandwidth start at 1 Tflop/s and 100 GB/s so that a roofline is finite.
    pub fn new(kind: DeviceKind, arch: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            arch: arch.into(),
            arch_version: 0,
            features: Vec::new(),
            mma: DTypes::NONE,
            mma_shapes: Vec::new(),
            vector: DTypes::of(DType::ALL),
            units: 1,
            lanes: 1,
            max_threads: 1,
            unit_threads: 0,
            registers: 0,
            shared_bytes: 0,
            unit_shared_bytes: 0,
            l1_bytes: 0,
            l2_bytes: 0,
            l3_bytes: 0,
            memory_bytes: 0,
            clock_hz: 0.0,
            bytes_per_s: 1e11,
            read_places: 1,
            rates: Rates::uniform(1e12),
            panels: Vec::new(),
            max_buffer_bytes: i64::MAX as u64,
            launch_ns: 0,
        }
    }

    /// Whether the device names `feature`.
    pub fn has(&self, feature: &str) -> bool {
        self.features.binary_search_by(|f| (**f).cmp(feature)).is_ok()
    }

    /// The panels of [`panels`](Self::panels) for numbers or codes of `dtype`.
    pub fn panel(&self, dtype: DType) -> Option<Order> {
        self.panels.iter().find(|(of, _)| *of == dtype).map(|(_, order)| *order)
    }

    /// Replaces the features, sorted and without repeats, as `has` expects them.
    pub fn set_features<F: Into<Cow<'static, str>>>(&mut self, features: impl IntoIterator<Item = F>) {
        self.features = features.into_iter().map(Into::into).collect();
        self.features.sort();
        self.features.dedup();
    }
}

/// Peak arithmetic by operand type, in operations per second (a multiply-add is two).
#[derive(Clone, Copy, PartialEq)]
pub struct Rates([f64; DType::COUNT]);

impl Rates {
    /// The same peak for every type.
    pub const fn uniform(per_s: f64) -> Self {
        Self([per_s; DType::COUNT])
    }

    /// The peak for operands of type `t`.
    pub const fn get(&self, t: DType) -> f64 {
        self.0[t as usize]
    }

    /// This table with the peak of each type in `list` replaced.
    #[must_use]
    pub const fn with(mut self, list: &[DType], per_s: f64) -> Self {
        let mut i = 0;
        while i < list.len() {
            self.0[list[i] as usize] = per_s;
            i += 1;
        }
        self
    }
}

impl fmt::Debug for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(DType::ALL.iter().map(|&t| (t.name(), self.get(t)))).finish()
    }
}

/// One shape that a cooperative matrix unit offers: D = A·B + C.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MmaShape {
    /// Rows of A and D.
    pub m: u32,
    /// Columns of B and D.
    pub n: u32,
    /// Columns of A, rows of B.
    pub k: u32,
    /// Type of A.
    pub a: DType,
    /// Type of B.
    pub b: DType,
    /// Type of C and D.
    pub d: DType,
    /// Who holds the matrix together.
    pub scope: MmaScope,
}

/// The threads that hold one matrix together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MmaScope {
    /// One subgroup (warp, wave).
    Subgroup,
    /// The whole workgroup.
    Workgroup,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_found_whatever_their_order() {
        let mut caps = Caps::new(DeviceKind::Cpu, "x86-64");
        caps.set_features(["fma", "avx2", "fma"]);
        assert!(caps.has("avx2") && caps.has("fma") && !caps.has("avx"));
        assert_eq!(caps.features, ["avx2", "fma"]);
    }

    #[test]
    fn rates_replace_only_what_is_named() {
        let rates = Rates::uniform(1.0).with(&[DType::Bf16], 2.0);
        assert_eq!((rates.get(DType::Bf16), rates.get(DType::F32)), (2.0, 1.0));
    }
}
