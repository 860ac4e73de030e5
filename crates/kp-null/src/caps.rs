//! What the device says it is: a small GPU that does not exist.

use kp_hal::{Caps, DType, DTypes, DeviceKind, Rates};

/// Bytes that may be allocated at once, so that running out of memory can be tested.
pub(crate) const MEMORY_BYTES: u64 = 1 << 30;

/// The facts a real backend would ask its driver for.
pub(crate) fn caps() -> Caps {
    let mut caps = Caps::new(DeviceKind::SoftwareGpu, "null");
    caps.arch_version = 1;
    caps.set_features(["imaginary"]);
    caps.mma = DTypes::of(&[DType::F16, DType::Bf16, DType::E4m3]);
    caps.units = 16;
    caps.lanes = 32;
    caps.max_threads = 1024;
    caps.unit_threads = 2048;
    caps.registers = 65_536;
    caps.shared_bytes = 96 * 1024;
    caps.unit_shared_bytes = 100 * 1024;
    caps.l2_bytes = 4 << 20;
    caps.memory_bytes = MEMORY_BYTES;
    caps.clock_hz = 1e9;
    caps.bytes_per_s = 1e11;
    caps.rates = Rates::uniform(1e12).with(&[DType::F16, DType::Bf16], 4e12).with(&[DType::E4m3], 8e12);
    caps.max_buffer_bytes = MEMORY_BYTES;
    caps.launch_ns = 1000;
    caps
}
