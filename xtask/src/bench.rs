//! Runs suites on everything this machine has, and compares with the records of its class.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// What to run, and what to compare it with.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Suites of benches/suites; those that have a record of this machine's class if none are named, else `smoke`.
    suites: Vec<String>,
    /// A record, or a folder of records by class.
    #[arg(long, default_value = RECORDS, value_name = "RECORD | FOLDER")]
    against: PathBuf,
    /// How much slower than the record a row may be.
    #[arg(long, default_value_t = 1.10)]
    threshold: f64,
    /// Write one HTML page per device; with several devices, their names are added to the file's.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Keep the times as records instead of comparing them.
    #[arg(long)]
    record: bool,
    /// One device instead of all.
    #[arg(long)]
    device: Option<String>,
}

const RECORDS: &str = "benches/record";

/// Builds kp, runs it on every device, and answers whether every row is as fast as before and right.
///
/// # Errors
/// kp does not build or run, or finds no device.
pub(crate) fn run(root: &Path, args: &Args) -> Result<bool> {
    let kp = build(root)?;
    let devices = devices(&kp, args.device.as_deref())?;
    let mut good = true;
    for (name, class) in &devices {
        let suites =
            if args.suites.is_empty() { recorded(&root.join(RECORDS).join(class))? } else { args.suites.clone() };
        println!("{name}, class {class}: {}", suites.join(", "));
        let mut command = Command::new(&kp);
        command.current_dir(root).args(["bench", "--device", name]).args(&suites);
        if args.record {
            command.args(["--record", RECORDS]);
        } else {
            // A folder may not be there before the first record; kp then says how to make one.
            fs::create_dir_all(root.join(RECORDS)).context("cannot make benches/record")?;
            command.arg("--against").arg(&args.against).arg("--threshold").arg(args.threshold.to_string());
        }
        if let Some(report) = &args.report {
            let report = env::current_dir()?.join(report);
            command.arg("--report").arg(if devices.len() == 1 { report } else { named(&report, name) });
        }
        good &= command.status().with_context(|| format!("cannot run {}", kp.display()))?.success();
    }
    Ok(good)
}

fn build(root: &Path) -> Result<PathBuf> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built =
        Command::new(cargo).current_dir(root).args(["build", "--release", "--quiet", "-p", "kp-cli"]).status()?;
    ensure!(built.success(), "kp does not build");
    Ok(target(root).join("release").join(format!("kp{}", env::consts::EXE_SUFFIX)))
}

/// Where cargo builds.
pub(crate) fn target(root: &Path) -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir))
}

/// Every device's name on kp's command line, and its class.
fn devices(kp: &Path, only: Option<&str>) -> Result<Vec<(String, String)>> {
    let mut info = Command::new(kp);
    info.args(["info", "--json"]);
    if let Some(device) = only {
        info.args(["--device", device]);
    }
    let info = info.output().with_context(|| format!("cannot run {}", kp.display()))?;
    ensure!(info.status.success(), "kp info: {}", String::from_utf8_lossy(&info.stderr).trim());
    listed(&info.stdout)
}

fn listed(info: &[u8]) -> Result<Vec<(String, String)>> {
    let info: Value = serde_json::from_slice(info).context("kp info --json printed no JSON")?;
    let devices = info["devices"].as_array().context("kp info --json lists no devices")?;
    let text = |device: &Value, key: &str| {
        device[key].as_str().map(str::to_owned).with_context(|| format!("kp info --json names no {key}"))
    };
    devices.iter().map(|device| Ok((text(device, "device")?, text(device, "class")?))).collect()
}

/// The suites that have a record in `folder`; `smoke` if there is none.
fn recorded(folder: &Path) -> Result<Vec<String>> {
    let mut suites = BTreeSet::new();
    if folder.is_dir() {
        for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
            let name = entry?.file_name();
            // `2026-11-21-gemm-small.jsonl`: ten characters of date, then the suite.
            let suite = name.to_str().and_then(|name| name.get(11..)).and_then(|rest| rest.strip_suffix(".jsonl"));
            suites.extend(suite.map(str::to_owned));
        }
    }
    if suites.is_empty() {
        suites.insert("smoke".to_owned());
    }
    Ok(suites.into_iter().collect())
}

/// `report.html` for device `nvidia:0` is `report-nvidia-0.html`.
fn named(report: &Path, device: &str) -> PathBuf {
    let stem = report.file_stem().unwrap_or_default().to_string_lossy();
    let extension =
        report.extension().map_or_else(String::new, |extension| format!(".{}", extension.to_string_lossy()));
    report.with_file_name(format!("{stem}-{}{extension}", device.replace(':', "-")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_from_what_kp_prints() {
        let info = br#"{"devices":[{"device":"cpu:0","class":"x-2c","name":"X"},{"device":"nvidia:1","class":"h"}]}"#;
        let pair = |name: &str, class: &str| (name.to_owned(), class.to_owned());
        assert_eq!(listed(info).expect("two devices"), [pair("cpu:0", "x-2c"), pair("nvidia:1", "h")]);
        let error = listed(br#"{"devices":[{}]}"#).expect_err("no name").to_string();
        assert_eq!(error, "kp info --json names no device");
    }

    #[test]
    fn suites_are_read_from_the_names_of_records() {
        let folder = env::temp_dir().join(format!("xtask-bench-{}", std::process::id()));
        assert_eq!(recorded(&folder).expect("no folder is no error"), ["smoke"]);
        fs::create_dir_all(&folder).expect("it can be made");
        for name in ["2026-11-21-gemm-small.jsonl", "2026-11-22-gemm-small.jsonl", "2026-11-22-rowwise.jsonl.part", "x"]
        {
            fs::write(folder.join(name), "").expect("it can be written");
        }
        assert_eq!(recorded(&folder).expect("it can be listed"), ["gemm-small"]);
        fs::remove_dir_all(folder).expect("it can be removed");
    }

    #[test]
    fn each_device_has_its_own_report() {
        assert_eq!(named(Path::new("/a/report.html"), "nvidia:0"), Path::new("/a/report-nvidia-0.html"));
    }
}
