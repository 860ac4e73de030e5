//! What was measured before, as text with one fact per line.
//!
//! ```text
//! kp-wisdom 1
//! device nvidia sm_90a "NVIDIA H200" driver "570.86"
//! peaks memory 4100000000000 f32 55000000000000 bf16 790000000000000
//! gemm 1x4096x7168x2048 e4m3:e4m3:bf16 = sm90_e4m3_1d2d#2 41234 code 9f3c1a5500d1e2b7
//! ```
//! A fact belongs to the device above it: that kernel and variant took so many nanoseconds for that problem, and
//! `code` is the hash of the kernel's source then. With another driver or another source it says nothing. Peaks are
//! what the device itself was measured to reach, if that was asked for.
//!
//! Lines come from disk, so none is trusted: what does not parse is reported and kept out.

mod peaks;
pub mod store;

pub use peaks::Peaks;

use kp_hal::{AnyProblem, Backend, DeviceInfo, Label, Nanos, Variant};
use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    fmt,
};

/// The first line.
const HEADER: &str = "kp-wisdom 1";

/// Longest line that can be a fact, in bytes.
const MAX_LINE: usize = 4096;

/// Most warnings kept; past that they are only counted.
const MAX_WARNINGS: usize = 64;

/// The device and driver that facts hold for.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Machine {
    /// The backend: `nvidia`.
    pub backend: String,
    /// The architecture: `sm_90a`. Without blanks.
    pub arch: String,
    /// The product's name.
    pub name: String,
    /// Driver and version.
    pub driver: String,
}

impl Machine {
    /// The machine that `info`, listed by `backend`, describes.
    pub fn new(backend: &dyn Backend, info: &DeviceInfo) -> Self {
        let arch: String = info.caps.arch.split_whitespace().collect::<Vec<_>>().join("_");
        Self {
            backend: backend.name().into(),
            arch: if arch.is_empty() { "unknown".into() } else { arch },
            name: info.name.clone(),
            driver: info.driver.clone(),
        }
    }
}

/// Its line in a wisdom file.
impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { backend, arch, name, driver } = self;
        write!(f, "device {backend} {arch} {} driver {}", Quoted(name), Quoted(driver))
    }
}

/// One measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fact {
    /// Median time of one launch.
    pub time: Nanos,
    /// `Kernel::code` when it was measured.
    pub code: u64,
}

/// The facts of one problem, by kernel and variant.
pub type Facts = BTreeMap<(String, u8), Fact>;

/// Everything measured, by machine and problem.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Wisdom {
    machines: BTreeMap<Machine, BTreeMap<String, Facts>>,
    peaks: BTreeMap<Machine, Peaks>,
}

impl Wisdom {
    /// The facts of `problem` on `machine`.
    pub fn facts(&self, machine: &Machine, problem: impl fmt::Display) -> Option<&Facts> {
        self.machines.get(machine)?.get(&problem.to_string())
    }

    /// Every problem measured on `machine`, with its facts.
    pub fn problems<'w>(&'w self, machine: &Machine) -> impl Iterator<Item = (&'w str, &'w Facts)> {
        self.machines.get(machine).into_iter().flatten().map(|(problem, facts)| (problem.as_str(), facts))
    }

    /// Every machine anything is known of, in order.
    pub fn machines(&self) -> impl Iterator<Item = &Machine> {
        let all: BTreeSet<_> = self.machines.keys().chain(self.peaks.keys()).collect();
        all.into_iter()
    }

    /// What `machine` was measured to reach.
    pub fn peaks(&self, machine: &Machine) -> Option<&Peaks> {
        self.peaks.get(machine)
    }

    /// Adds what `machine` was measured to reach; what was higher before stays.
    pub fn record_peaks(&mut self, machine: &Machine, peaks: &Peaks) {
        self.peaks.entry(machine.clone()).and_modify(|best| best.raise(peaks)).or_insert_with(|| peaks.clone());
    }

    /// How many facts there are.
    pub fn len(&self) -> usize {
        self.machines.values().flat_map(BTreeMap::values).map(Facts::len).sum()
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.machines.is_empty() && self.peaks.is_empty()
    }

    /// Adds a fact, in place of an earlier one of the same machine, problem, kernel and variant.
    pub fn record(&mut self, machine: &Machine, problem: &AnyProblem, label: Label, fact: Fact) {
        self.insert(machine.clone(), problem.to_string(), (label.kernel.into(), label.variant.0), fact);
    }

    fn insert(&mut self, machine: Machine, problem: String, label: (String, u8), fact: Fact) {
        self.machines.entry(machine).or_default().entry(problem).or_default().insert(label, fact);
    }

    /// Adds every fact of `newer`, which wins where both know, and the higher of the peaks.
    pub fn merge(&mut self, newer: &Self) {
        newer.peaks.iter().for_each(|(machine, peaks)| self.record_peaks(machine, peaks));
        for (machine, problems) in &newer.machines {
            for (problem, facts) in problems {
                for (label, &fact) in facts {
                    self.insert(machine.clone(), problem.clone(), label.clone(), fact);
                }
            }
        }
    }

    /// Drops the facts of `machine` for which `keep` does not hold.
    pub fn retain(&mut self, machine: &Machine, mut keep: impl FnMut(&str, &str, Variant, &Fact) -> bool) {
        let Entry::Occupied(mut of) = self.machines.entry(machine.clone()) else { return };
        of.get_mut().retain(|problem, facts| {
            facts.retain(|(kernel, variant), fact| keep(problem, kernel, Variant(*variant), fact));
            !facts.is_empty()
        });
        if of.get().is_empty() {
            of.remove();
        }
    }

    /// Reads a file's bytes: the facts that parse, and a warning for each line that does not.
    ///
    /// # Errors
    /// The first line, clipped, if it is not that of a wisdom file of this version; an empty file is empty wisdom.
    pub fn parse(bytes: &[u8]) -> Result<(Self, Warnings), NotWisdom> {
        let (mut wisdom, mut warnings) = (Self::default(), Warnings::default());
        let mut lines = bytes.split(|&b| b == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line)).enumerate();
        match lines.next() {
            Some((_, first)) if first == HEADER.as_bytes() => {}
            _ if bytes.is_empty() => return Ok((wisdom, warnings)),
            first => return Err(NotWisdom { first: clip(first.map_or(&[], |(_, line)| line)) }),
        }
        let mut machine = None;
        for (at, line) in lines.filter(|(_, line)| !line.is_empty()) {
            let read = text(line).and_then(|line| {
                if let Some(rest) = line.strip_prefix("device ") {
                    // Facts below a device that cannot be read are nobody's.
                    machine = None;
                    machine = Some(read_machine(rest)?);
                    return Ok(());
                }
                let machine = || machine.clone().ok_or_else(|| "no device stands above it".to_owned());
                if let Some(rest) = line.strip_prefix("peaks ") {
                    let peaks = Peaks::read(rest)?;
                    wisdom.record_peaks(&machine()?, &peaks);
                    return Ok(());
                }
                let (problem, label, fact) = read_fact(line)?;
                wisdom.insert(machine()?, problem, label, fact);
                Ok(())
            });
            if let Err(why) = read {
                warnings.add(Warning { line: at + 1, text: clip(line), why });
            }
        }
        Ok((wisdom, warnings))
    }
}

/// The whole file.
impl fmt::Display for Wisdom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEADER}")?;
        for machine in self.machines() {
            writeln!(f, "{machine}")?;
            if let Some(peaks) = self.peaks.get(machine) {
                writeln!(f, "{peaks}")?;
            }
            for (problem, facts) in self.machines.get(machine).into_iter().flatten() {
                for ((kernel, variant), Fact { time, code }) in facts {
                    writeln!(f, "{problem} = {kernel}#{variant} {} code {code:016x}", time.0)?;
                }
            }
        }
        Ok(())
    }
}

/// A line that was kept out; prints as ``line 7: expected `=`, got `..` ``.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Warning {
    /// Counted from 1; 0 if it is about the file.
    pub line: usize,
    /// The line, clipped and without control characters.
    pub text: String,
    /// What is wrong with it.
    pub why: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, text, why } = self;
        match line {
            0 => f.write_str(why),
            _ => write!(f, "line {line}: {why}, got `{text}`"),
        }
    }
}

/// The first lines that were kept out, and how many there were.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Warnings {
    /// At most 64.
    pub shown: Vec<Warning>,
    /// All.
    pub count: usize,
}

impl Warnings {
    fn add(&mut self, warning: Warning) {
        self.count += 1;
        if self.shown.len() < MAX_WARNINGS {
            self.shown.push(warning);
        }
    }
}

/// A file that is no wisdom of this version, so that nothing of it may be read or replaced.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotWisdom {
    /// Its first line, clipped.
    pub first: String,
}

impl std::error::Error for NotWisdom {}

impl fmt::Display for NotWisdom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the first line must be `{HEADER}`, got `{}`", self.first)
    }
}

fn text(line: &[u8]) -> Result<&str, String> {
    if line.len() > MAX_LINE {
        return Err(format!("a line may have {MAX_LINE} bytes, this one has {}", line.len()));
    }
    std::str::from_utf8(line).map_err(|_| "expected UTF-8".into())
}

/// `nvidia sm_90a "NVIDIA H200" driver "570.86"`.
fn read_machine(rest: &str) -> Result<Machine, String> {
    let form = || "expected device BACKEND ARCH \"NAME\" driver \"DRIVER\"".to_owned();
    let (backend, rest) = rest.split_once(' ').ok_or_else(form)?;
    let (arch, rest) = rest.split_once(' ').ok_or_else(form)?;
    let (name, rest) = unquote(rest).ok_or_else(form)?;
    let (driver, rest) = rest.strip_prefix(" driver ").and_then(unquote).ok_or_else(form)?;
    let word = |w: &str| !w.is_empty() && !w.contains(|c: char| c.is_whitespace() || c.is_control());
    if !rest.is_empty() || !word(backend) || !word(arch) {
        return Err(form());
    }
    Ok(Machine { backend: backend.into(), arch: arch.into(), name, driver })
}

/// `gemm .. = sm90_e4m3_1d2d#2 41234 code 9f3c1a5500d1e2b7`.
fn read_fact(line: &str) -> Result<(String, (String, u8), Fact), String> {
    let form = || "expected PROBLEM = KERNEL#VARIANT NANOSECONDS code HASH".to_owned();
    let (problem, rest) = line.rsplit_once(" = ").ok_or_else(form)?;
    let words: Vec<&str> = rest.split(' ').take(5).collect();
    let [label, time, "code", code] = words[..] else { return Err(form()) };
    let (kernel, variant) = label.split_once('#').ok_or_else(form)?;
    let name = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if kernel.is_empty() || !kernel.chars().all(name) {
        return Err(form());
    }
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    let number = |s: &str| if digits(s) { s.parse::<u64>().ok() } else { None };
    let variant = number(variant).filter(|&v| v < 64).ok_or("a variant is 0 to 63")?;
    let time = number(time).filter(|&t| t > 0).ok_or("a time is a whole number of nanoseconds above 0")?;
    let hex = |s: &str| s.len() == 16 && s.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let code = Some(code).filter(|s| hex(s)).and_then(|s| u64::from_str_radix(s, 16).ok());
    let code = code.ok_or("a hash is 16 digits 0-9a-f")?;
    let problem: AnyProblem = problem.parse().map_err(|bad: kp_hal::BadProblem| bad.to_string())?;
    Ok((problem.to_string(), (kernel.into(), variant as u8), Fact { time: Nanos(time), code }))
}

/// A string in quotes, with `"`, `\` and control characters escaped so that it stays on its line.
struct Quoted<'s>(&'s str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                c if c.is_control() => write!(f, "\\{:x};", u32::from(c))?,
                c => write!(f, "{c}")?,
            }
        }
        f.write_str("\"")
    }
}

/// The string that `text` starts with, and what follows it.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut rest = text.strip_prefix('"')?;
    let mut out = String::new();
    loop {
        let c = rest.chars().next()?;
        rest = &rest[c.len_utf8()..];
        match c {
            '"' => return Some((out, rest)),
            '\\' => match rest.chars().next()? {
                c @ ('"' | '\\') => {
                    out.push(c);
                    rest = &rest[1..];
                }
                _ => {
                    let (code, after) = rest.split_once(';')?;
                    out.push(u32::from_str_radix(code, 16).ok().and_then(char::from_u32)?);
                    rest = after;
                }
            },
            c => out.push(c),
        }
    }
}

/// At most 60 characters of a foreign line, printable.
fn clip(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(&line[..line.len().min(240)]);
    let shown: String = text.chars().take(60).flat_map(char::escape_debug).collect();
    if text.chars().nth(60).is_some() { shown + "…" } else { shown }
}
