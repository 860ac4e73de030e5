//! Starts something new from what is there: the copy is the template, so the template always compiles.

use anyhow::{Context, Result, bail, ensure};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// What to start.
#[derive(clap::Subcommand)]
pub(crate) enum New {
    /// Start a backend as a copy of kp-null, the one that implements everything and runs nothing.
    Backend {
        /// The backend's name without `kp-`: lower case letters and digits.
        name: String,
    },
}

/// Writes the files, then says what is left to do.
///
/// # Errors
/// A name that cannot be, a crate that exists, a file of which kp-null has no row; nothing is written then.
pub(crate) fn run(root: &Path, new: &New) -> Result<()> {
    let New::Backend { name } = new;
    for (path, text) in backend(root, name)? {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a file stands in a folder"))?;
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    // Other names sort otherwise.
    let formatted =
        Command::new("cargo").args(["fmt", "-p", &format!("kp-{name}"), "-p", "kp-core"]).current_dir(root).status();
    if !formatted.is_ok_and(|status| status.success()) {
        eprintln!("cargo fmt failed; run it before you commit");
    }
    println!(
        "crates/kp-{name} is a copy of kp-null, and kp-core knows it by the feature `{name}`. It compiles and is tidy now; \
         keep it so.\n\
         Left to do:\n\
         1. device.rs, caps.rs: list what the driver finds, without opening it; `Unavailable` says what was looked for\n\
         2. memory.rs, queue.rs: allocate, copy, mark, wait; then take kp-null's mock faults out\n\
         3. src/<op>/<stem>.rs: a kernel, its row in <op>/mod.rs, the op's row in KERNELS; other ops can wait as empty lists\n\
         4. cargo test -p kp-{name} --test conformance: kp-null's kernels compute nothing, so it fails until yours do; with \
         `KERNELS = Kernels::NONE` what remains must pass\n\
         5. docs/dependencies.md: kp-{name} in the rows of what it uses; a row in the README's table once something runs"
    );
    Ok(())
}

/// Files in which each backend has rows, and what a row of kp-null holds. The new backend gets a copy of each row.
const ROWS: &[(&str, &str)] = &[
    ("Cargo.toml", "kp-null"),
    ("crates/kp-core/Cargo.toml", "\"dep:kp-null\""),
    ("crates/kp-core/Cargo.toml", "kp-null = { workspace = true, optional = true }"),
    ("crates/kp-core/src/backends.rs", "kp_null"),
    ("ci/check.sh", "kp-null"),
];

const TEMPLATE: &str = "crates/kp-null";

/// What kp-null, whose kernels compute nothing, does not have: the suite, of a backend whose device may be absent.
const CONFORMANCE: &str = "crates/kp-vulkan/tests/conformance.rs";

/// Every file to write, by path from the root.
fn backend(root: &Path, name: &str) -> Result<BTreeMap<PathBuf, String>> {
    let plain = name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    ensure!(plain, "a backend's name is lower case letters and digits, got {name:?}");
    let home = format!("crates/kp-{name}");
    ensure!(!root.join(&home).exists(), "{home} exists");

    let mut files = BTreeMap::new();
    let mut folders = vec![root.join(TEMPLATE)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let inside = path.strip_prefix(root)?.to_str().context("a path of kp-null is not UTF-8")?;
            files.insert(PathBuf::from(renamed(inside, name)), renamed(&text, name));
        }
    }
    let path = format!("{home}/src/lib.rs");
    let lib = files.get_mut(Path::new(&path)).context("kp-null has no src/lib.rs")?;
    *lib = introduced(lib, name)?;
    let path = format!("{home}/Cargo.toml");
    let manifest = files.get_mut(Path::new(&path)).context("kp-null has no Cargo.toml")?;
    *manifest = judged(manifest, name)?;
    let suite = fs::read_to_string(root.join(CONFORMANCE)).with_context(|| format!("cannot read {CONFORMANCE}"))?;
    files.insert(format!("{home}/tests/conformance.rs").into(), suite.replace("kp_vulkan", &format!("kp_{name}")));
    for &(path, row) in ROWS {
        let text = match files.remove(Path::new(path)) {
            Some(text) => text,
            None => fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {path}"))?,
        };
        let Some(text) = with_twins(&text, row, name) else { bail!("{path} has no row with {row:?} to copy") };
        if path.ends_with(".toml") {
            text.parse::<toml_edit::DocumentMut>()
                .with_context(|| format!("a row of kp-null in {path} cannot be copied"))?;
        }
        files.insert(path.into(), text);
    }
    Ok(files)
}

/// The library's text with an introduction of its own in place of kp-null's, which ends where the list of files begins.
fn introduced(lib: &str, name: &str) -> Result<String> {
    let files = lib.find("//! ```text").context("kp-null's lib.rs lists its files no longer")?;
    let start = format!(
        "//! The {name} backend of kp.\n//!\n//! Started as a copy of kp-null: its memory is the host's, and its kernels compute \
         nothing until they are\n//! replaced.\n//!\n"
    );
    Ok(start + &lib[files..])
}

/// The manifest with a description of its own, and with the conformance suite as a test.
fn judged(manifest: &str, name: &str) -> Result<String> {
    let mut manifest: toml_edit::DocumentMut = manifest.parse().context("kp-null's manifest cannot be read")?;
    manifest["package"]["description"] = toml_edit::value(format!("The {name} backend of kp"));
    let mut text = manifest.to_string();
    let lints = text.find("[lints]").context("kp-null's manifest has no [lints]")?;
    let suite = "[dev-dependencies]\nkp-testkit = { workspace = true }\n\n[[test]]\nname = \"conformance\"\nharness = false\n\n";
    text.insert_str(lints, suite);
    Ok(text)
}

/// `text` with a renamed copy after each row that holds `row`: a line, with the attributes above it. `None` without rows.
fn with_twins(text: &str, row: &str, name: &str) -> Option<String> {
    let (mut out, mut attributes, mut found) = (String::new(), String::new(), false);
    for line in text.split_inclusive('\n') {
        out.push_str(line);
        if line.trim_start().starts_with("#[") {
            attributes.push_str(line);
            continue;
        }
        if line.contains(row) {
            out.push_str(&renamed(&format!("{attributes}{line}"), name));
            found = true;
        }
        attributes.clear();
    }
    found.then_some(out)
}

/// `text` with the words `null`, `Null` and `NULL`, alone or at the start of a name, replaced in the same spelling;
/// `NonNull` and `ptr::null` stay.
fn renamed(text: &str, name: &str) -> String {
    let mut capital = name.to_owned();
    capital[..1].make_ascii_uppercase();
    let spellings = [("null", name), ("Null", &capital), ("NULL", &name.to_ascii_uppercase())];
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let starts = !out.ends_with(|c: char| c.is_alphanumeric()) && !out.ends_with("ptr::");
        let ends = |after: &str| !after.starts_with(|c: char| c.is_lowercase());
        match spellings.iter().find(|(from, _)| starts && rest.strip_prefix(from).is_some_and(ends)) {
            Some((from, to)) => {
                out.push_str(to);
                rest = &rest[from.len()..];
            }
            None => {
                out.push(first);
                rest = &rest[first.len_utf8()..];
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{root, tidy};

    #[test]
    fn words_are_renamed_in_their_spelling() {
        let text = "kp-null kp_null NullDevice NULL_GEMM \"null\" NonNull ptr::null() nullable annulled";
        assert_eq!(
            renamed(text, "metal"),
            "kp-metal kp_metal MetalDevice METAL_GEMM \"metal\" NonNull ptr::null() nullable annulled"
        );
    }

    #[test]
    fn rows_are_copied_with_their_attributes() {
        let text = "[\n    #[cfg(feature = \"cpu\")]\n    &kp_cpu::BACKEND,\n    #[cfg(feature = \"null\")]\n    &kp_null::BACKEND,\n]\n";
        let copied = "[\n    #[cfg(feature = \"cpu\")]\n    &kp_cpu::BACKEND,\n    #[cfg(feature = \"null\")]\n    &kp_null::BACKEND,\n    \
                      #[cfg(feature = \"amd\")]\n    &kp_amd::BACKEND,\n]\n";
        assert_eq!(with_twins(text, "kp_null", "amd").as_deref(), Some(copied));
        assert_eq!(with_twins("[]\n", "kp_null", "amd"), None);
    }

    #[test]
    fn bad_names_are_refused() {
        for name in ["", "Metal", "kp-metal", "../x", "2d"] {
            let error = backend(&root(), name).expect_err("no such backend can be").to_string();
            assert!(error.contains("lower case letters and digits"), "{error}");
        }
        assert_eq!(backend(&root(), "null").expect_err("it is the template").to_string(), "crates/kp-null exists");
    }

    /// A new backend adds no finding, rows of docs/dependencies.md apart: what it will use is for its author to say.
    #[test]
    fn a_new_backend_is_tidy() {
        let files = backend(&root(), "newcomer").expect("kp-null is there to be copied");
        let text = |path: &str| files[Path::new("crates/kp-newcomer").join(path).as_path()].clone();
        assert!(text("src/lib.rs").starts_with("//! The newcomer backend of kp.\n"), "{}", text("src/lib.rs"));
        assert!(text("tests/conformance.rs").contains("kp_testkit::main(kp_newcomer::BACKEND)"));
        let manifest: toml_edit::DocumentMut = text("Cargo.toml").parse().expect("it was made by a parser");
        assert_eq!(manifest["package"]["description"].as_str(), Some("The newcomer backend of kp"));
        assert_eq!(manifest["test"][0]["name"].as_str(), Some("conformance"));
        assert!(manifest["dev-dependencies"]["kp-testkit"].is_inline_table());
        let before = tidy::with(&root(), BTreeMap::new()).expect("the repository can be read");
        let after = tidy::with(&root(), files).expect("the repository can be read");
        // Rows above a finding move its line.
        let known = |found: &&tidy::Finding| {
            before.iter().any(|old| (&old.path, &old.message) == (&found.path, &found.message))
        };
        let new = after.iter().filter(|found| !known(found)).map(ToString::to_string);
        let new: Vec<String> = new.filter(|found| !found.contains("is used by")).collect();
        assert!(new.is_empty(), "{new:#?}");
    }
}
