//! The class of a machine: what two machines must share for their times to be compared.

use kp_hal::{DeviceInfo, DeviceKind};
use std::fs;

/// A folder's name for machines like this device's: `nvidia-h200`, `intel-xeon-icelake-2c`. Never a host's name.
pub(crate) fn class(info: &DeviceInfo) -> String {
    let name = words(&info.name);
    match info.caps.kind {
        DeviceKind::Cpu => {
            let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
            of_cpu(name, microarchitecture(&cpuinfo, has_avx10()), &info.caps.arch, info.caps.units)
        }
        DeviceKind::Gpu | DeviceKind::IntegratedGpu | DeviceKind::SoftwareGpu => name.join("-"),
    }
}

fn of_cpu(mut name: Vec<String>, core: Option<String>, arch: &str, units: u32) -> String {
    if let Some(core) = core.filter(|core| !name.contains(core)) {
        name.push(core);
    }
    if name.is_empty() {
        name = words(arch);
    }
    name.push(format!("{units}c"));
    name.join("-")
}

/// The words of a product's name that tell one class from another: no marks, clocks, core counts or filler.
fn words(name: &str) -> Vec<String> {
    let name = name.split('@').next().unwrap_or_default().to_lowercase().replace("(r)", " ").replace("(tm)", " ");
    name.split(|c: char| !c.is_ascii_alphanumeric() && c != '.')
        .filter(|word| !word.is_empty() && !FILLER.contains(word) && !word.ends_with("ghz") && !word.ends_with("-core"))
        .map(str::to_owned)
        .collect()
}

const FILLER: &[&str] = &["cpu", "processor", "core", "with", "graphics", "corporation", "inc", "the"];

/// What the vendor calls the cores, by the numbers in `/proc/cpuinfo`; virtual machines hide the model's name, and some its number, but of
/// family 6 Granite Rapids alone is `with_avx10`.
fn microarchitecture(cpuinfo: &str, with_avx10: bool) -> Option<String> {
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name))?;
        Some(line.split_once(':')?.1.trim())
    };
    let (vendor, family, model) = (field("vendor_id")?, field("cpu family")?, field("model")?);
    let (family, model): (u32, u32) = (family.parse().ok()?, model.parse().ok()?);
    if vendor == INTEL && family == 6 && with_avx10 {
        return Some("graniterapids".to_owned());
    }
    let known = CORES.iter().find(|row| row.vendor == vendor && row.family == family && row.models.contains(&model));
    Some(known.map_or_else(|| format!("f{family}m{model}"), |row| row.name.to_owned()))
}

/// Whether the processor says that it has AVX10, which neither the standard library nor older kernels tell.
fn has_avx10() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{__cpuid, __cpuid_count};
        __cpuid(0).eax >= 7 && __cpuid_count(7, 0).eax >= 1 && __cpuid_count(7, 1).edx >> 19 & 1 == 1
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

struct Core {
    vendor: &'static str,
    family: u32,
    models: &'static [u32],
    name: &'static str,
}

const INTEL: &str = "GenuineIntel";
const AMD: &str = "AuthenticAMD";

/// Server cores and the desktop cores of the same years; others are named by their numbers.
const CORES: &[Core] = &[
    Core { vendor: INTEL, family: 6, models: &[63, 60, 69, 70], name: "haswell" },
    Core { vendor: INTEL, family: 6, models: &[79, 86, 61, 71], name: "broadwell" },
    Core { vendor: INTEL, family: 6, models: &[85], name: "skylake" },
    Core { vendor: INTEL, family: 6, models: &[106, 108], name: "icelake" },
    Core { vendor: INTEL, family: 6, models: &[143], name: "sapphirerapids" },
    Core { vendor: INTEL, family: 6, models: &[207], name: "emeraldrapids" },
    Core { vendor: INTEL, family: 6, models: &[173, 174], name: "graniterapids" },
    Core { vendor: INTEL, family: 6, models: &[175], name: "sierraforest" },
    Core { vendor: AMD, family: 23, models: &[1, 8], name: "zen" },
    Core { vendor: AMD, family: 23, models: &[49, 96, 104, 113], name: "zen2" },
    Core { vendor: AMD, family: 25, models: &[0, 1, 33, 80], name: "zen3" },
    Core { vendor: AMD, family: 25, models: &[16, 17, 24, 97, 116, 117, 120, 160, 170], name: "zen4" },
    Core { vendor: AMD, family: 26, models: &[0, 1, 2, 16, 17, 36, 68, 96, 112], name: "zen5" },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_names_the_product_and_the_cores() {
        let of = |name: &str, cpuinfo: &str| of_cpu(words(name), microarchitecture(cpuinfo, false), "x86-64", 2);
        let icelake = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 106\nmodel name\t: x\n";
        assert_eq!(of("Intel(R) Xeon(R) Processor @ 2.80GHz", icelake), "intel-xeon-icelake-2c");
        let zen4 = "vendor_id : AuthenticAMD\ncpu family : 25\nmodel : 17\n";
        assert_eq!(of("AMD EPYC 9R14", zen4), "amd-epyc-9r14-zen4-2c");
        let new = "vendor_id : GenuineIntel\ncpu family : 19\nmodel : 3\n";
        assert_eq!(of("Intel(R) Xeon(R) 6 CPU", new), "intel-xeon-6-f19m3-2c");
        assert_eq!(of("", ""), "x86-64-2c");
        let masked = "vendor_id : GenuineIntel\ncpu family : 6\nmodel : 167\n";
        assert_eq!(microarchitecture(masked, true).as_deref(), Some("graniterapids"));
        assert_eq!(microarchitecture(masked, false).as_deref(), Some("f6m167"));
        assert_eq!(words("NVIDIA H200").join("-"), "nvidia-h200");
    }
}
