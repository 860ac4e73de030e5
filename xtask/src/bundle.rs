//! One folder that verifies and measures a machine which has no Rust: programs, suites, and a script that runs them.

use crate::bench::target;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

const SCRIPT: &str = include_str!("bundle.sh");

/// Builds the programs, fills `target/bundle/kp`, packs it, and prints where it is.
///
/// # Errors
/// Something does not build, or a file cannot be written.
pub(crate) fn run(root: &Path) -> Result<()> {
    let home = target(root).join("bundle");
    let folder = home.join("kp");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    fs::create_dir_all(folder.join("suites")).with_context(|| format!("cannot make {}", folder.display()))?;
    let copy = |from: &Path, name: &str| {
        let to = folder.join(name);
        fs::copy(from, &to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display())).map(drop)
    };
    for program in programs(root)? {
        copy(&program.path, &program.name)?;
        strip(&folder.join(&program.name));
    }
    for suite in fs::read_dir(root.join("benches/suites")).context("cannot list benches/suites")? {
        let suite = suite?;
        copy(&suite.path(), &format!("suites/{}", suite.file_name().to_string_lossy()))?;
    }
    fs::write(folder.join("commit"), commit(root) + "\n").context("cannot write the commit")?;
    let script = folder.join("run.sh");
    fs::write(&script, SCRIPT).context("cannot write run.sh")?;
    executable(&script)?;
    let bytes = size(&folder)?;
    println!("{}: {:.1} MB; copy it anywhere and start run.sh", folder.display(), bytes as f64 / 1e6);

    let archive = folder.with_extension("tar.gz");
    let packed = Command::new("tar").arg("-czf").arg(&archive).arg("-C").arg(&home).arg("kp").status();
    match packed {
        Ok(status) if status.success() => {
            println!("{}: {:.1} MB", archive.display(), fs::metadata(&archive)?.len() as f64 / 1e6);
            Ok(())
        }
        Ok(status) => bail!("tar ended with {status}"),
        Err(error) => bail!("the folder is complete, but tar cannot be run to pack it: {error}"),
    }
}

/// Removes what only a debugger reads; without the tool for it, the program is larger and runs as well.
fn strip(program: &Path) {
    match Command::new("strip").arg(program).status() {
        Ok(status) if status.success() => {}
        Ok(status) => println!("{} keeps its symbols: strip ended with {status}", program.display()),
        Err(error) => println!("{} keeps its symbols: strip cannot be run: {error}", program.display()),
    }
}

/// A program of the bundle.
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Program {
    name: String,
    path: PathBuf,
}

/// kp, every backend's conformance suite, and the examples.
fn programs(root: &Path) -> Result<Vec<Program>> {
    let mut programs = build(root, &["build", "-p", "kp-cli"])?;
    for (folder, test) in [("crates", true), ("examples", false)] {
        let mut packages = Vec::new();
        for package in fs::read_dir(root.join(folder)).with_context(|| format!("cannot list {folder}"))? {
            let package = package?;
            let has = |file: &str| package.path().join(file).exists();
            if if test { has("tests/conformance.rs") } else { has("src/main.rs") } {
                packages.push((package.file_name().to_string_lossy().into_owned(), name_of(&package.path())?));
            }
        }
        packages.sort();
        for (_, package) in packages {
            let command: &[&str] =
                if test { &["test", "--no-run", "--test", "conformance", "-p"] } else { &["build", "-p"] };
            let mut built = build(root, &[command, &[&package]].concat())?;
            if test {
                built.iter_mut().for_each(|program| program.name = format!("conformance-{package}"));
            }
            programs.extend(built);
        }
    }
    Ok(programs)
}

fn name_of(package: &Path) -> Result<String> {
    let path = package.join("Cargo.toml");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let manifest: toml_edit::DocumentMut = text.parse().with_context(|| path.display().to_string())?;
    manifest["package"]["name"]
        .as_str()
        .map(str::to_owned)
        .with_context(|| format!("{} names no package", path.display()))
}

fn build(root: &Path, what: &[&str]) -> Result<Vec<Program>> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .current_dir(root)
        .args(what)
        .arg("--release")
        .arg("--message-format=json-render-diagnostics")
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    ensure!(built.status.success(), "cargo {} failed", what.join(" "));
    let programs = executables(&String::from_utf8_lossy(&built.stdout))?;
    ensure!(!programs.is_empty(), "cargo {} built no program", what.join(" "));
    Ok(programs)
}

/// The programs that cargo's messages name.
fn executables(messages: &str) -> Result<Vec<Program>> {
    let mut programs = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Value = serde_json::from_str(line).context("cargo printed a message that is no JSON")?;
        if let (Some(path), Some(name)) = (message["executable"].as_str(), message["target"]["name"].as_str()) {
            programs.push(Program { name: name.to_owned(), path: path.into() });
        }
    }
    Ok(programs)
}

/// The commit the programs are built from; marked if files differ from it.
fn commit(root: &Path) -> String {
    let git = |args: &[&str]| {
        let out = Command::new("git").current_dir(root).args(args).output().ok().filter(|out| out.status.success())?;
        String::from_utf8(out.stdout).ok()
    };
    let Some(hash) = git(&["rev-parse", "--short=12", "HEAD"]) else { return "unknown".to_owned() };
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|changes| !changes.is_empty());
    format!("{}{}", hash.trim(), if changed { "-changed" } else { "" })
}

fn size(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        bytes += if entry.path().is_dir() { size(&entry.path())? } else { entry.metadata()?.len() };
    }
    Ok(bytes)
}

#[cfg(unix)]
fn executable(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("cannot mark {}", path.display()))
}

#[cfg(not(unix))]
fn executable(_: &Path) -> Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_cargos_messages() {
        let messages = concat!(
            "{\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"kp_hal\"},\"executable\":null}\n",
            "{\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"kp\"},\"executable\":\"/t/kp\"}\n",
            "{\"reason\":\"build-finished\",\"success\":true}\n",
        );
        let found = executables(messages).expect("they are JSON");
        assert_eq!(found, [Program { name: "kp".into(), path: "/t/kp".into() }]);
        assert!(executables("{oops").is_err());
    }
}
