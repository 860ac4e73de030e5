//! One folder that verifies and measures a machine which has no Rust: programs, and a script that runs them. The suites are
//! in kp itself.

use crate::bench::target;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

const SCRIPT: &str = include_str!("bundle.sh");

/// What the programs carry.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A pack that `cargo xtask kernels` made, embedded in each program: then the other machine needs no NVRTC.
    #[arg(long, value_name = "FILE")]
    pack: Option<PathBuf>,
}

/// Builds the programs, fills `target/bundle/kp`, packs it, and prints where it is.
///
/// # Errors
/// Something does not build, or a file cannot be read or written.
pub(crate) fn run(root: &Path, args: &Args) -> Result<()> {
    let pack = args.pack.as_ref().map(|pack| {
        fs::canonicalize(pack).with_context(|| format!("no pack at {}; cargo xtask kernels makes one", pack.display()))
    });
    let cargo = Cargo { root, pack: pack.transpose()? };
    let home = target(root).join("bundle");
    let folder = home.join("kp");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for program in programs(&cargo)? {
        let to = folder.join(&program.name);
        fs::copy(&program.path, &to)
            .with_context(|| format!("cannot copy {} to {}", program.path.display(), to.display()))?;
        strip(&to);
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

/// kp with every backend; of each backend its tests that need a device, and its benches.
fn programs(cargo: &Cargo<'_>) -> Result<Vec<Program>> {
    let mut programs = cargo.build("kp-cli", &["--features", "kp-cli/nvidia"])?;
    let crates = cargo.root.join("crates");
    let mut folders = Vec::new();
    for folder in fs::read_dir(&crates).context("cannot list crates")? {
        folders.push(folder?.path());
    }
    folders.sort();
    for folder in folders.iter().filter(|folder| folder.join("tests/conformance.rs").exists()) {
        let package = name_of(folder)?;
        let mut targets = vec![("test", "conformance".to_owned())];
        for more in ["runtime", "random"] {
            let tests = folder.join("tests").join(more);
            if tests.exists() || tests.with_extension("rs").exists() {
                targets.push(("test", more.to_owned()));
            }
        }
        for bench in fs::read_dir(folder.join("benches")).into_iter().flatten() {
            let bench = bench?.path();
            targets.push(("bench", bench.file_stem().unwrap_or_default().to_string_lossy().into_owned()));
        }
        for (kind, target) in targets {
            let built = cargo.build(&package, &[&format!("--{kind}"), &target])?;
            let named = built.into_iter().filter(|program| program.name == target);
            programs.extend(named.map(|program| Program { name: format!("{kind}-{target}-{package}"), ..program }));
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

/// How programs are built.
struct Cargo<'a> {
    root: &'a Path,
    /// Compiled kernels to embed.
    pack: Option<PathBuf>,
}

impl Cargo<'_> {
    fn build(&self, package: &str, what: &[&str]) -> Result<Vec<Program>> {
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(self.root).args(["build", "--release", "-p", package]).args(what);
        command.arg("--message-format=json-render-diagnostics");
        if let (Some(pack), "kp-cli" | "kp-nvidia") = (&self.pack, package) {
            // A feature of a package can be turned on only where the package is asked for.
            command.args(["-p", "kp-nvidia", "--features", "kp-nvidia/pack"]).env("KP_NVIDIA_PACK", pack);
        }
        let built = command.stderr(std::process::Stdio::inherit()).output().context("cannot run cargo")?;
        ensure!(built.status.success(), "{package} does not build with {}", what.join(" "));
        let programs = executables(&String::from_utf8_lossy(&built.stdout))?;
        ensure!(!programs.is_empty(), "{package} has no program with {}", what.join(" "));
        Ok(programs)
    }
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
