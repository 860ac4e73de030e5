//! Why a problem is solved the way it is.

use crate::{candidates::Candidates, plan_cache::Failures, wisdom::Peaks};
use kp_hal::{DeviceInfo, DeviceKind, Nanos, OpSpec, Problem};
use std::fmt;

/// Every candidate with its time and every rejection with its reason, as plain data; prints as a table.
#[derive(Clone, PartialEq, Debug)]
pub struct Explanation {
    /// The problem's text.
    pub problem: String,
    /// The device's name.
    pub device: String,
    /// Its architecture.
    pub arch: String,
    /// What kind of device it is.
    pub kind: DeviceKind,
    /// Its compute units.
    pub units: u32,
    /// Its memory bandwidth.
    pub bytes_per_s: f64,
    /// Whether bandwidth and floor are by peaks measured here; else by what the device states.
    pub measured_peaks: bool,
    /// The time no kernel can beat at the device's peaks.
    pub floor: Nanos,
    /// What sets the floor.
    pub bound: Bound,
    /// Bytes that must cross main memory.
    pub bytes: u64,
    /// Arithmetic operations.
    pub flops: f64,
    /// The candidates, the winner first.
    pub candidates: Vec<Row>,
    /// The kernels that cannot, in the backend's order.
    pub rejected: Vec<Rejected>,
}

/// What sets a floor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bound {
    /// Bandwidth of main memory.
    Memory,
    /// Arithmetic.
    Compute,
}

/// One candidate.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// Kernel and variant: `sm90_e4m3_1d2d#3`.
    pub label: String,
    /// Its time.
    pub time: Nanos,
    /// Whether the time was measured on this device; else the kernel estimates it.
    pub measured: bool,
    /// The floor over this time, so its speed as a part of what the peaks allow: 0.5 takes twice the floor, more than 1 is faster, as
    /// from a cache. Of an estimate, which is made of stated peaks, the floor by stated peaks.
    pub of_floor: f64,
    /// What the kernel says of the choice: `pads m from 1 to 64`.
    pub note: Option<String>,
    /// Why it could not be planned, if it was tried and could not.
    pub failed: Option<String>,
}

/// One kernel that cannot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rejected {
    /// Its name.
    pub kernel: String,
    /// The reason: `k must be a multiple of 128, got 100`.
    pub why: String,
}

impl Explanation {
    /// Puts into words what was found for `problem` on the device that `info` describes and that reached `peaks` when
    /// they were measured; needs no device.
    pub fn new<S: OpSpec>(
        info: &DeviceInfo,
        peaks: Option<&Peaks>,
        problem: &Problem<S>,
        found: &Candidates<S::Op>,
        failed: &Failures,
    ) -> Self {
        let stated = &info.caps;
        let measured = peaks.map(|peaks| peaks.on(stated));
        let caps = measured.as_ref().unwrap_or(stated);
        let (compute, memory) = Nanos::floors(caps, problem);
        let (floor, stated_floor) = (compute.max(memory), Nanos::roofline(stated, problem));
        let floor_under = |c: &crate::Candidate<S::Op>| if c.measured.is_some() { floor } else { stated_floor };
        let row = |c: &crate::Candidate<S::Op>| Row {
            label: c.label().to_string(),
            time: c.time(),
            measured: c.measured.is_some(),
            of_floor: floor_under(c).0 as f64 / c.time().0.max(1) as f64,
            note: c.kernel.note(stated, problem, c.variant).map(Into::into),
            failed: failed.iter().find(|(label, _)| *label == c.label()).map(|(_, why)| why.clone()),
        };
        Self {
            problem: problem.to_string(),
            device: info.name.clone(),
            arch: caps.arch.clone().into_owned(),
            kind: caps.kind,
            units: caps.units,
            bytes_per_s: caps.bytes_per_s,
            measured_peaks: measured.is_some(),
            floor,
            bound: if compute > memory { Bound::Compute } else { Bound::Memory },
            bytes: problem.bytes(),
            flops: problem.flops(),
            candidates: found.accepted.iter().map(row).collect(),
            rejected: found.rejected.iter().map(|(kernel, why)| rejected(kernel, why)).collect(),
        }
    }

    /// The candidate that is launched: the best of those that could be planned.
    pub fn winner(&self) -> Option<&Row> {
        self.candidates.iter().find(|row| row.failed.is_none())
    }

    /// What a time means for this problem: bytes or operations per second, whichever sets the floor.
    fn rate(&self, time: Nanos) -> String {
        let secs = time.0.max(1) as f64 / 1e9;
        match self.bound {
            Bound::Memory => format!("{}B/s", scaled(self.bytes as f64 / secs)),
            Bound::Compute => format!("{}flop/s", scaled(self.flops / secs)),
        }
    }
}

fn rejected(kernel: &str, why: &kp_hal::Unsupported) -> Rejected {
    Rejected { kernel: kernel.into(), why: why.to_string() }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = match self.kind {
            DeviceKind::Cpu => "cores",
            _ => "units",
        };
        let device =
            format!("{} ({}, {} {units}, {}B/s)", self.device, self.arch, self.units, scaled(self.bytes_per_s));
        let (bound, amount) = match self.bound {
            Bound::Memory => ("memory", format!("{}B", scaled(self.bytes as f64))),
            Bound::Compute => ("compute", format!("{}flop", scaled(self.flops))),
        };
        let peaks = if self.measured_peaks { "measured" } else { "stated" };
        writeln!(f, "{device:<47} floor {}: {bound}, {amount}, {peaks} peaks", self.floor)?;
        let names = self.candidates.iter().map(|r| &r.label).chain(self.rejected.iter().map(|r| &r.kernel));
        let width = names.map(|name| name.chars().count()).max().unwrap_or(0);
        let mut place = 0;
        for row in &self.candidates {
            let Row { label, time, measured, of_floor, note, failed } = row;
            if let Some(why) = failed {
                writeln!(f, "  !  {label:<width$}  cannot be planned: {why}")?;
                continue;
            }
            place += 1;
            let how = if *measured { "measured" } else { "estimated" };
            write!(f, "{place:>3}  {label:<width$}  {:>8}  {how:<9}", time.to_string())?;
            write!(f, "  {:>13}  {:>3.0}% of peak speed", self.rate(*time), 100.0 * of_floor)?;
            match note {
                Some(note) => writeln!(f, "  {note}")?,
                None => writeln!(f)?,
            }
        }
        for Rejected { kernel, why } in &self.rejected {
            writeln!(f, "  –  {kernel:<width$}  {why}")?;
        }
        if self.candidates.is_empty() && self.rejected.is_empty() {
            writeln!(f, "  –  the backend has no kernel of this op")?;
        }
        Ok(())
    }
}

/// Three digits and a prefix: `4.37 T`.
fn scaled(value: f64) -> String {
    // What rounds to 1000 belongs to the next prefix.
    let (value, prefix) = match value {
        v if v >= 999.5e12 => (v / 1e15, "P"),
        v if v >= 999.5e9 => (v / 1e12, "T"),
        v if v >= 999.5e6 => (v / 1e9, "G"),
        v if v >= 999.5e3 => (v / 1e6, "M"),
        v if v >= 999.5 => (v / 1e3, "k"),
        v => return format!("{v:.0} "),
    };
    let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.digits$} {prefix}")
}

#[cfg(test)]
mod tests {
    use super::scaled;

    #[test]
    fn three_digits_and_a_prefix() {
        for (value, text) in
            [(7.0, "7 "), (999.4, "999 "), (999.6, "1.00 k"), (4.37e12, "4.37 T"), (9.999e11, "1.00 T")]
        {
            assert_eq!(scaled(value), text);
        }
    }
}
