//! `kp info`: the devices, and what was looked for and not found.

use crate::{Global, hardware, output::Output, units};
use anyhow::Result;
use kp_core::{
    Engine, Env,
    registry::{Listed, Registry},
};
use kp_hal::{
    Backend, Caps, DType, DeviceKind,
    op::{EachOp, Op, each_op},
};
use serde_json::{Value, json};
use std::{fmt::Write, sync::Arc};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Measure each device's peaks instead of showing what it states
    #[arg(long)]
    measure: bool,
}

/// Prints every device, or the one asked for.
///
/// # Errors
/// A device that is not there, or cannot be measured.
pub(crate) fn run(global: &Global, args: &Args, out: &mut Output) -> Result<bool> {
    let found = Engine::builder().survey();
    let chosen: Vec<&Listed> = match &global.device {
        Some(name) => found.choose(Some(name)).map_err(|none| crate::no_device(&none))?,
        None => found.devices.iter().collect(),
    };
    let asked = Env::process().device;
    let usual = found.choose(asked.as_deref()).ok().map(|those| those[0]);
    let usual = Usual { asked: asked.as_deref(), device: usual };
    let mut described = Vec::new();
    for device in chosen {
        let caps = match args.measure {
            true => device.backend.open(device.info.index).and_then(measured)?,
            false => device.info.caps.clone(),
        };
        described.push((device, caps));
    }
    match out.json {
        true => out.print_json(&as_json(&found, &described, &usual, args.measure))?,
        false => out.print(&as_text(&found, &described, &usual, args.measure))?,
    }
    Ok(!described.is_empty())
}

/// What kp uses if nothing is said.
struct Usual<'f> {
    /// What `KP_DEVICE` says.
    asked: Option<&'f str>,
    /// `None` if that names no device.
    device: Option<&'f Listed>,
}

impl Usual<'_> {
    /// What is to be said of `device`.
    fn remark(&self, device: &Listed) -> &'static str {
        match (self.device, self.asked) {
            (Some(usual), None) if std::ptr::eq(usual, device) => "  (kp uses this one unless told otherwise)",
            (Some(usual), Some(_)) if std::ptr::eq(usual, device) => "  (KP_DEVICE chooses this one)",
            _ => "",
        }
    }
}

/// `cpu:0`.
fn name(device: &Listed) -> String {
    format!("{}:{}", device.backend.name(), device.info.index)
}

fn measured(device: Arc<dyn kp_hal::Device>) -> kp_hal::Result<Caps> {
    device.measure()
}

/// How many kernels a backend has, by op.
fn kernels(backend: &'static dyn Backend) -> Vec<(&'static str, usize)> {
    struct Count(&'static dyn Backend, Vec<(&'static str, usize)>);
    impl EachOp for Count {
        fn op<O: Op>(&mut self) {
            self.1.push((O::NAME, O::kernels(self.0.kernels()).len()));
        }
    }
    let mut count = Count(backend, Vec::new());
    each_op(&mut count);
    count.1
}

const fn kind(caps: &Caps) -> &'static str {
    match caps.kind {
        DeviceKind::Gpu => "gpu",
        DeviceKind::IntegratedGpu => "integrated gpu",
        DeviceKind::Cpu => "cpu",
        DeviceKind::SoftwareGpu => "software gpu",
    }
}

fn as_json(found: &Registry, described: &[(&Listed, Caps)], usual: &Usual<'_>, measured: bool) -> Value {
    let devices = described.iter().map(|(device, caps)| {
        let rates: serde_json::Map<_, _> =
            DType::ALL.iter().map(|&t| (t.to_string(), caps.rates.get(t).into())).collect();
        let kernels: serde_json::Map<_, _> =
            kernels(device.backend).into_iter().map(|(op, n)| (op.to_owned(), n.into())).collect();
        json!({
            "device": name(device),
            "backend": device.backend.name(),
            "name": device.info.name,
            "class": hardware::class(&device.info),
            "kind": kind(caps),
            "driver": device.info.driver,
            "pci": device.info.pci.map(|pci| pci.to_string()),
            "arch": caps.arch,
            "features": caps.features,
            "mma": DType::ALL.iter().filter(|&&t| caps.mma.contains(t)).map(|t| t.name()).collect::<Vec<_>>(),
            "best_type": best_type(caps).map(DType::name),
            "units": caps.units,
            "lanes": caps.lanes,
            "unit_threads": caps.unit_threads,
            "registers": caps.registers,
            "shared_bytes": caps.shared_bytes,
            "unit_shared_bytes": caps.unit_shared_bytes,
            "l1_bytes": caps.l1_bytes,
            "l2_bytes": caps.l2_bytes,
            "l3_bytes": caps.l3_bytes,
            "memory_bytes": caps.memory_bytes,
            "clock_hz": caps.clock_hz,
            "bytes_per_s": caps.bytes_per_s,
            "flops_per_s": rates,
            "peaks": if measured { "measured" } else { "stated" },
            "kernels": kernels,
        })
    });
    json!({
        "kp": env!("CARGO_PKG_VERSION"),
        "usual": usual.device.map(name),
        "devices": devices.collect::<Vec<_>>(),
        "twins": found.twins.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "unavailable": found.unavailable.iter().map(|one| json!({ "what": one.what, "why": one.why })).collect::<Vec<_>>(),
    })
}

fn as_text(found: &Registry, described: &[(&Listed, Caps)], usual: &Usual<'_>, measured: bool) -> String {
    let mut text = String::new();
    for (device, caps) in described {
        let _ = writeln!(text, "{}  {}{}", name(device), device.info.name, usual.remark(device));
        for (what, value) in facts(device, caps, measured) {
            if !value.is_empty() {
                wrapped(&mut text, what, &value);
            }
        }
        text.push('\n');
    }
    if described.is_empty() {
        text.push_str("no device\n\n");
    }
    if let Usual { asked: Some(asked), device: None } = usual {
        let _ = writeln!(text, "KP_DEVICE={asked:?} names no device: kp opens none unless told otherwise");
    }
    for twin in &found.twins {
        let _ = writeln!(text, "{twin}: a device of the list again, seen by another driver");
    }
    for one in &found.unavailable {
        let _ = writeln!(text, "not here: {}: {}", one.what, one.why);
    }
    text.truncate(text.trim_end().len());
    text + "\n"
}

fn facts(device: &Listed, caps: &Caps, measured: bool) -> Vec<(&'static str, String)> {
    let size = |bytes: u64| if bytes == 0 { "unknown".to_owned() } else { units::binary(bytes) };
    let peaks = if measured { "measured" } else { "stated" };
    let units = match caps.kind {
        DeviceKind::Cpu => format!("{} cores", caps.units),
        _ => format!("{} units of {} lanes", caps.units, caps.lanes),
    };
    let clock = if caps.clock_hz > 0.0 { format!(" at {:.2} GHz", caps.clock_hz / 1e9) } else { String::new() };
    let mut caches = vec![format!("L1 {}", size(caps.l1_bytes)), format!("L2 {}", size(caps.l2_bytes))];
    if caps.l3_bytes > 0 {
        caches.push(format!("L3 {}", size(caps.l3_bytes)));
    }
    if caps.shared_bytes > 0 {
        caches.push(format!("shared {}", size(caps.shared_bytes.into())));
    }
    let kernels = kernels(device.backend).into_iter().filter(|(_, n)| *n > 0).map(|(op, n)| format!("{op} {n}"));
    let mma: Vec<&str> = DType::ALL.iter().filter(|&&t| caps.mma.contains(t)).map(|t| t.name()).collect();
    let best = best_type(caps).map(|t| format!("{t} at {} {peaks}", units::flops(caps.rates.get(t))));
    vec![
        ("kind", format!("{}, {}, class {}", kind(caps), caps.arch, hardware::class(&device.info))),
        ("units", units + &clock),
        ("memory", format!("{} at {} {peaks}", size(caps.memory_bytes), units::bandwidth(caps.bytes_per_s))),
        ("caches", caches.join(", ")),
        ("peaks", format!("{}, {peaks}", rates(caps))),
        ("matrix unit", mma.join(" ")),
        ("best type", best.unwrap_or_default()),
        ("features", caps.features.join(" ")),
        ("driver", device.info.driver.clone()),
        ("pci", device.info.pci.map_or_else(String::new, |pci| pci.to_string())),
        ("kernels", kernels.collect::<Vec<_>>().join(", ")),
    ]
}

/// The floating-point type that the matrix unit multiplies fastest, if there is such a unit; of equals the first.
fn best_type(caps: &Caps) -> Option<DType> {
    let floats = DType::ALL.iter().copied().filter(|&t| t.is_float() && caps.mma.contains(t));
    floats.reduce(|best, t| if caps.rates.get(t) > caps.rates.get(best) { t } else { best })
}

/// Types of one rate together, the fastest first.
fn rates(caps: &Caps) -> String {
    let mut levels: Vec<(f64, Vec<&str>)> = Vec::new();
    for &t in DType::ALL.iter().filter(|t| !t.is_scale()) {
        let rate = caps.rates.get(t);
        match levels.iter_mut().find(|(level, _)| *level == rate) {
            Some((_, names)) => names.push(t.name()),
            None => levels.push((rate, vec![t.name()])),
        }
    }
    levels.sort_by(|a, b| b.0.total_cmp(&a.0));
    let level = |(rate, names): &(f64, Vec<&str>)| format!("{} {}", units::flops(*rate), names.join(" "));
    levels.iter().map(level).collect::<Vec<_>>().join("; ")
}

/// `what` and its value, continued below itself past 110 columns.
fn wrapped(text: &mut String, what: &str, value: &str) {
    let mut column = 0;
    for (at, word) in value.split(' ').enumerate() {
        let width = word.chars().count() + 1;
        if at == 0 {
            let _ = write!(text, "  {what:<12}");
            column = 14;
        } else if column + width > 110 {
            let _ = write!(text, "\n{:14}", "");
            column = 14;
        } else {
            text.push(' ');
        }
        text.push_str(word);
        column += width;
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use kp_testkit::caps;

    #[test]
    fn the_best_type_is_the_fastest_float_of_the_matrix_unit() {
        for (caps, best) in [
            (caps::h200(), Some(DType::E4m3)),
            (caps::b200(), Some(DType::E2m1)),
            (caps::mi300x(), Some(DType::E4m3Fnuz)),
            (caps::rx_7900_xtx(), Some(DType::F16)),
            (caps::apple_m2(), None),
        ] {
            assert_eq!(best_type(&caps), best, "{}", caps.arch);
        }
    }
}
