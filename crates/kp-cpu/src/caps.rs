//! What this processor can do, from the ISA's own feature bits and the kernel's files.

#[cfg(target_arch = "x86_64")]
use crate::amx;
use crate::{gemm, threads};
use kp_hal::{Caps, DType, DTypes, DeviceInfo, DeviceKind, MemoryInfo, Rates};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};

/// The processor as a device.
pub(crate) fn info() -> DeviceInfo {
    let cpu_info = read("/proc/cpuinfo");
    let name = field(&cpu_info, &["model name", "Model", "Hardware"]).unwrap_or_else(|| std::env::consts::ARCH.into());
    DeviceInfo {
        name,
        index: 0,
        driver: format!("{} threads", threads::count()),
        pci: None,
        uuid: None,
        caps: caps(&cpu_info),
    }
}

fn caps(cpu_info: &str) -> Caps {
    let mut caps = Caps::new(DeviceKind::Cpu, arch());
    caps.set_features(features());
    caps.units = threads::count() as u32;
    caps.l1_bytes = cache(1).unwrap_or(32 << 10);
    caps.l2_bytes = cache(2).unwrap_or(512 << 10);
    caps.l3_bytes = l3_bytes().unwrap_or(0);
    caps.memory_bytes = limit("/proc/meminfo", "MemTotal:").unwrap_or(0).min(cgroup_limit().unwrap_or(u64::MAX));
    caps.clock_hz = field(cpu_info, &["cpu MHz"]).and_then(|mhz| mhz.parse::<f64>().ok()).unwrap_or(2000.0) * 1e6;
    // Peaks as the instruction set allows: lanes × multiply-adds a cycle × 2. `measure` replaces them.
    let bits = if caps.has("avx512f") {
        512.0
    } else if caps.has("avx2") && caps.has("fma") {
        256.0
    } else {
        128.0
    };
    let ops = |lane_bits: f64| bits / lane_bits * 2.0 * 2.0 * caps.clock_hz * f64::from(caps.units);
    let (f64s, f32s) = (ops(64.0), ops(32.0));
    let int8 = if caps.has("avx512vnni") || caps.has("avxvnni") || caps.has("dotprod") { 4.0 * f32s } else { f32s };
    let is_amd = is_amd(cpu_info);
    // AMD multiplies as many pairs of bf16 as numbers of f32; for Intel it is faster, outside tiles, to widen them.
    let has_pairs = caps.has("bf16") || caps.has("avx512bf16") && is_amd;
    let bf16 = if has_pairs { 2.0 * f32s } else { f32s };
    caps.rates = Rates::uniform(f32s)
        .with(&[DType::F64], f64s)
        .with(&[DType::Bf16], bf16)
        .with(&[DType::I8, DType::U8, DType::I4, DType::U4], int8);
    // A tile of sums takes 16 cycles for 64 bytes of k: 16 and 32 times what two units of 512 bits do in f32.
    let mut in_tiles = Vec::new();
    if caps.has("amx-bf16") {
        caps.rates = caps.rates.with(&[DType::Bf16], 16.0 * f32s);
        in_tiles.push(DType::Bf16);
    }
    if caps.has("amx-int8") {
        caps.rates = caps.rates.with(&[DType::I8, DType::U8, DType::I4, DType::U4], 32.0 * f32s);
        in_tiles.extend([DType::I8, DType::U8]);
    }
    caps.mma = DTypes::of(&in_tiles);
    // Two to eight channels of DDR4/5 feed 10–20 GB/s to each of the first cores.
    caps.bytes_per_s = 12e9 * f64::from(caps.units.min(16));
    // A plain loop of one Ice Lake core read 10.0 GB/s of one place, 12.7 of four and 13.7 of eight; one of Zen 3 13, 17 and 16; one
    // of Zen 5 46 of one, 36 of four and 32 of eight, if they lie a few kilobytes apart.
    caps.read_places = match Core::of(cpu_info) {
        Core::Other => 8,
        Core::Zen3 => 4,
        Core::Zen4 | Core::Amd => 1,
    };
    caps.launch_ns = 300;
    caps.panels = gemm::panels(&caps);
    caps
}

/// Operations a second of dot products of AVX-512 of pairs of bf16: the rate of bf16, unless tiles have that, or numbers that
/// are widened. Intel's, where both are, take twice as long as widened numbers.
pub(crate) fn pairs_rate(caps: &Caps) -> f64 {
    let (bf16, f32s) = (caps.rates.get(DType::Bf16), caps.rates.get(DType::F32));
    if bf16 > f32s && !caps.has("amx-bf16") { bf16 } else { f32s / 2.0 }
}

/// Whether what is wanted soon is best asked of the first cache, not of the second. AMD's processors do not bring much of what
/// is asked of the second: on Zen 5, 128 rows by a B that is read from memory took 0.86 of the cycles when it was asked of the
/// first, and as long as without asking when of the second. Intel's do, and keep their first cache for what is in use.
pub(crate) fn asks_first_cache() -> bool {
    Core::here() != Core::Other
}

/// Whether what streams by is best asked of the second cache: by Zen 4, which read keys and values of 16 heads of 128 numbers in f32 at
/// 22 GB/s so, and at 14 when it asked the first, which holds little more than what is in use. Of Zen 3 heads of 64 numbers took 1.3
/// times as long, and Zen 5 brings little of what is asked of the second.
pub(crate) fn streams_by_second_cache() -> bool {
    Core::here() == Core::Zen4
}

/// Whether a processor brings several long columns that are read at once by itself, and is only kept from it by being asked: Zen 3 read
/// four columns of 4096 numbers of f32 at 18.5 GB/s, and at 15 when half a kilobyte ahead of each was asked for.
pub(crate) fn fetches_columns() -> bool {
    Core::here() == Core::Zen3
}

/// Whether a processor fetches what follows in several long runs by itself, when they are read side by side, faster than in a single one: Intel's,
/// of which Emerald Rapids read 20 GB/s of sixteen so, and 15 to 18 of one, or when it was asked for what comes next, and Granite Rapids 13, and 10.5 of one.
pub(crate) fn fetches_runs() -> bool {
    Core::here() == Core::Other
}

/// The same where so few threads read that nothing else keeps memory busy: four and sixteen mostly took 1.1 to 1.7 times as long by whole lines and several panels.
pub(crate) fn fetches_runs_of(caps: &Caps) -> bool {
    fetches_runs() && caps.units <= 2
}

/// Processors that differ in what they do about memory that is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Core {
    Zen3,
    Zen4,
    /// Of AMD, such as Zen 5.
    Amd,
    Other,
}

impl Core {
    fn here() -> Self {
        static HERE: OnceLock<Core> = OnceLock::new();
        *HERE.get_or_init(|| Self::of(&read("/proc/cpuinfo")))
    }

    fn of(cpu_info: &str) -> Self {
        let value = |name: &str| field(cpu_info, &[name]);
        let has_avx512 = value("flags").is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "avx512f"));
        match (is_amd(cpu_info), value("cpu family").as_deref()) {
            (false, _) => Self::Other,
            (true, Some("25")) if has_avx512 => Self::Zen4,
            (true, Some("25")) => Self::Zen3,
            (true, _) => Self::Amd,
        }
    }
}

fn is_amd(cpu_info: &str) -> bool {
    field(cpu_info, &["vendor_id"]).as_deref() == Some("AuthenticAMD")
}

fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "x86-64",
        other => other,
    }
}

/// The names of an architecture's features, and which of them this processor has.
macro_rules! features {
    ($arch:literal $names:ident $detected:ident: $($feature:tt)*) => {
        const $names: &[&str] = &[$($feature),*];

        #[cfg(target_arch = $arch)]
        fn detected() -> impl Iterator<Item = &'static str> {
            [$(($feature, std::arch::$detected!($feature))),*].into_iter().filter_map(|(name, has)| has.then_some(name))
        }
    };
}
features!("x86_64" OF_X86 is_x86_feature_detected: "sse4.1" "avx" "avx2" "fma" "f16c" "bmi2" "gfni" "avx512f" "avx512bw"
    "avx512dq" "avx512vl" "avx512vbmi" "avx512vbmi2" "avx512vnni" "avx512bf16" "avx512fp16" "avx512vpopcntdq" "avxvnni");
features!("aarch64" OF_ARM is_aarch64_feature_detected: "neon" "fp16" "dotprod" "bf16" "i8mm" "sve" "sve2");

/// Tiles, which are detected apart: their use is permitted by the system.
const OF_TILES: &[&str] = &["amx-tile", "amx-bf16", "amx-int8"];

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn detected() -> impl Iterator<Item = &'static str> {
    std::iter::empty()
}

fn features() -> Vec<&'static str> {
    let found = detected();
    #[cfg(target_arch = "x86_64")]
    let found = found.chain(amx::features());
    found.filter(|name| !is_hidden(name)).collect()
}

/// Whether `KP_CPU_WITHOUT` hides a feature: it lists beginnings of names, so that `avx512` hides all of them. For tests of
/// what runs on lesser processors.
pub(crate) fn is_hidden(feature: &str) -> bool {
    hides(hidden(), feature)
}

fn hidden() -> &'static str {
    static HIDDEN: OnceLock<String> = OnceLock::new();
    HIDDEN.get_or_init(|| std::env::var_os("KP_CPU_WITHOUT").unwrap_or_default().to_string_lossy().into_owned())
}

fn hides(list: &str, feature: &str) -> bool {
    beginnings(list).any(|start| feature.starts_with(start))
}

fn beginnings(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|start| !start.is_empty())
}

/// Refuses what would hide nothing on any processor, so that nobody measures one that is whole and takes it for a lesser one.
///
/// # Errors
/// The word of `KP_CPU_WITHOUT` with which no feature's name begins.
pub(crate) fn check_hidden() -> Result<(), String> {
    all_hide(hidden())
}

fn all_hide(list: &str) -> Result<(), String> {
    let known = || [OF_X86, OF_ARM, OF_TILES].into_iter().flatten();
    match beginnings(list).find(|start| !known().any(|name| name.starts_with(start))) {
        Some(word) => {
            let known: Vec<&str> = known().copied().collect();
            Err(format!("KP_CPU_WITHOUT must list beginnings of {}, got {word:?}", known.join(" ")))
        }
        None => Ok(()),
    }
}

/// Ways of the second cache of the first core.
pub(crate) fn l2_ways() -> Option<u64> {
    static WAYS: OnceLock<Option<u64>> = OnceLock::new();
    *WAYS.get_or_init(|| read(cache_folder(2)?.join("ways_of_associativity")).trim().parse().ok())
}

/// Bytes of the last cache that the first core sees, if it has a third.
fn l3_bytes() -> Option<u64> {
    static BYTES: OnceLock<Option<u64>> = OnceLock::new();
    *BYTES.get_or_init(|| cache(3))
}

/// Most bytes that an operation may count on the last cache to keep for the next: one of hundreds of megabytes is shared by dozens of
/// cores. Of Emerald Rapids' 300 MB two virtual cores read 8 to 32 MB again at 22 GB/s, 64 MB at 13 and 128 MB at 12.
const KEPT: u64 = 64 << 20;

/// Whether an operation on `bytes` bytes leaves nothing of them in the caches for the next; unit tests have little memory.
pub(crate) fn exceeds_caches(bytes: u64) -> bool {
    bytes > if cfg!(test) { 1 << 20 } else { l3_bytes().unwrap_or(32 << 20).min(KEPT) }
}

/// Bytes of the data or unified cache of `level` that the first core sees.
fn cache(level: u32) -> Option<u64> {
    let size = read(cache_folder(level)?.join("size"));
    let size = size.trim();
    let digits = size.trim_end_matches(['K', 'M', 'G']);
    let unit = match &size[digits.len()..] {
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => 1,
    };
    digits.parse::<u64>().ok().map(|n| n * unit)
}

/// Where the kernel tells of it.
fn cache_folder(level: u32) -> Option<PathBuf> {
    let root = Path::new("/sys/devices/system/cpu/cpu0/cache");
    (0..8).map(|i| root.join(format!("index{i}"))).find(|folder| {
        let text = |file: &str| read(folder.join(file));
        text("level").trim() == level.to_string() && text("type").trim() != "Instruction"
    })
}

/// Memory that an allocation may still get, as the kernel and the control group see it.
pub(crate) fn memory_now(total: u64) -> MemoryInfo {
    let available = limit("/proc/meminfo", "MemAvailable:").unwrap_or(total);
    let group = cgroup_limit().map(|limit| limit.saturating_sub(number(CGROUP_USED).unwrap_or(0)));
    // Where the kernel tells nothing, the allocator has the last word.
    let free = available.min(group.unwrap_or(u64::MAX));
    let total = if total == 0 { u64::MAX } else { total };
    MemoryInfo { free: if available == 0 { total } else { free }, total }
}

const CGROUP_USED: &str = "/sys/fs/cgroup/memory.current";

fn cgroup_limit() -> Option<u64> {
    number("/sys/fs/cgroup/memory.max")
}

fn number(path: &str) -> Option<u64> {
    read(path).trim().parse().ok()
}

/// Bytes on the line of `path` that starts with `key` and counts kilobytes.
fn limit(path: &str, key: &str) -> Option<u64> {
    let text = read(path);
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim().trim_end_matches("kB").trim().parse::<u64>().ok().map(|kb| kb << 10)
}

/// The value of the first of `keys` in a file of `key : value` lines.
fn field(text: &str, keys: &[&str]) -> Option<String> {
    keys.iter().find_map(|key| {
        text.lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(k, _)| k.trim() == *key)
            .map(|(_, v)| v.trim().into())
    })
}

/// A file's text, empty if it cannot be read: absent on other systems and in some containers.
fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// What the processor has, and tiles, which tests imitate where there are none but the vectors that go with them.
#[cfg(test)]
pub(crate) fn with_tiles() -> Caps {
    let mut caps = info().caps;
    #[cfg(target_arch = "x86_64")]
    if amx::is_imitated() && crate::gemm::amx_bf16::VECTORS.into_iter().all(|feature| caps.has(feature)) {
        let tiles = ["amx-tile", "amx-bf16", "amx-int8"].map(Into::into);
        caps.set_features(caps.features.clone().into_iter().chain(tiles));
    }
    caps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_has_a_name_memory_and_rates() {
        let info = info();
        assert!(!info.name.is_empty());
        assert!(info.caps.units >= 1 && info.caps.bytes_per_s > 0.0);
        assert!(info.caps.rates.get(DType::F32) >= info.caps.rates.get(DType::F64));
        let memory = memory_now(info.caps.memory_bytes);
        assert!(memory.free <= memory.total, "{memory:?}");
    }

    #[test]
    fn features_hide_by_their_beginnings() {
        assert!(hides("avx512", "avx512vnni") && hides("fma, avx2", "avx2"));
        assert!(!hides("avx512", "avx2") && !hides("", "fma") && !hides(",", "fma"));
    }

    #[test]
    fn what_hides_nothing_is_refused() {
        for list in ["", ",", "avx512, amx", "neon", "sse,avx,fma,f16c,bmi2,gfni,amx"] {
            assert_eq!(all_hide(list), Ok(()), "{list}");
        }
        for (list, word) in [("avx-512", "avx-512"), ("amx,AVX512", "AVX512"), ("avx512 amx", "avx512 amx")] {
            let why = all_hide(list).expect_err(list);
            assert!(why.ends_with(&format!(" amx-int8, got {word:?}")), "{why}");
        }
        #[cfg(target_arch = "x86_64")]
        assert!(amx::features().all(|name| OF_TILES.contains(&name)));
    }

    #[test]
    fn cores_are_their_makers_families() {
        let core = |vendor: &str, family: u32, flags: &str| {
            Core::of(&format!("vendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: 17\nflags\t\t: {flags}\n"))
        };
        assert_eq!(core("AuthenticAMD", 25, "fpu avx2 fma"), Core::Zen3);
        assert_eq!(core("AuthenticAMD", 25, "fpu avx2 fma avx512f avx512bw"), Core::Zen4);
        assert_eq!(core("AuthenticAMD", 26, "fpu avx2 avx512f"), Core::Amd);
        assert_eq!(core("GenuineIntel", 25, "fpu avx2"), Core::Other);
    }

    #[test]
    fn fields_are_found_by_their_whole_key() {
        assert_eq!(field("model\t\t: 1\nmodel name\t: X 2\n", &["model name"]), Some("X 2".into()));
        assert_eq!(field("", &["model name"]), None);
    }
}
