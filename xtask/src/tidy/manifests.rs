//! What the manifests of the workspace have in common, and what the documents say of them.

use super::{
    Finding,
    manifest::{Manifest, Use},
    tree::{File, Tree},
};
use std::collections::{BTreeMap, BTreeSet};

/// Every package takes its common facts, its lints and the versions of its dependencies from the workspace.
pub(crate) fn inherit(tree: &Tree) -> Vec<Finding> {
    const COMMON: &[&[&str]] = &[
        &["package", "version"],
        &["package", "edition"],
        &["package", "rust-version"],
        &["package", "license"],
        &["lints"],
    ];
    let mut findings = Vec::new();
    let broken = tree.all().filter(|file| file.name() == "Cargo.toml").filter_map(|file| Manifest::parse(file).err());
    findings.extend(broken);
    for manifest in members(tree) {
        for key in COMMON {
            let inherited = manifest.at(&[key, &["workspace"][..]].concat()).and_then(|item| item.as_bool());
            if inherited != Some(true) {
                let key = key.last().expect("no key is empty");
                findings.push(
                    manifest.file.finding(manifest.file.line_with(key), format!("expected {key}.workspace = true")),
                );
            }
        }
        for dependency in manifest.dependencies().iter().filter(|dependency| !dependency.is_inherited()) {
            let line = manifest.file.line_with(&dependency.name);
            findings.push(
                manifest
                    .file
                    .finding(line, format!("{} must come from the workspace: workspace = true", dependency.name)),
            );
        }
    }
    findings
}

/// The packages of this workspace; one with a `[workspace]` of its own is not of it.
fn members(tree: &Tree) -> Vec<Manifest<'_>> {
    let packages = Manifest::packages(tree).into_iter();
    packages.filter(|manifest| manifest.at(&["workspace"]).is_none()).collect()
}

const LIST: &str = "docs/dependencies.md";

/// The table of `docs/dependencies.md` has one row for each dependency from outside, with the crates that use it: `kp-core`, or
/// `kp-core (tests)` if it is for its tests and benches only.
pub(crate) fn listed(tree: &Tree) -> Vec<Finding> {
    let Some(root) = Manifest::root(tree) else { return Vec::new() };
    let Some(list) = tree.get(LIST) else { return vec![root.file.finding(1, format!("{LIST} is missing"))] };
    // By dependency, its users, and whether each has it for its tests only.
    let mut users: BTreeMap<String, BTreeMap<String, bool>> = BTreeMap::new();
    for manifest in members(tree) {
        for dependency in manifest.dependencies() {
            let for_tests = dependency.used == Use::Dev;
            let of = users.entry(dependency.name).or_default().entry(manifest.name().to_owned());
            of.and_modify(|only| *only &= for_tests).or_insert(for_tests);
        }
    }
    let rows = rows(list);
    let mut findings = Vec::new();
    let declared = root.at(&["workspace", "dependencies"]).and_then(|item| item.as_table_like());
    let outside = declared.into_iter().flat_map(|table| table.iter()).filter(|(_, item)| item.get("path").is_none());
    let outside: BTreeSet<&str> =
        outside.map(|(key, item)| item.get("package").and_then(|name| name.as_str()).unwrap_or(key)).collect();
    for name in &outside {
        let user = |(user, for_tests): (&String, &bool)| format!("{user}{}", if *for_tests { " (tests)" } else { "" });
        let used = users.get(*name).map(|users| users.iter().map(user).collect::<Vec<_>>().join(", "));
        let line = root.file.line_with(name);
        match (used, rows.get(*name)) {
            (None, _) => findings.push(root.file.finding(line, format!("no crate uses {name}"))),
            (Some(used), None) => {
                findings.push(root.file.finding(line, format!("{LIST} has no row for {name}, used by {used}")))
            }
            (Some(used), Some((at, said))) if used != *said => {
                findings.push(list.finding(*at, format!("{name} is used by {used}; the row says {said}")));
            }
            _ => {}
        }
    }
    for (name, (at, _)) in rows.iter().filter(|(name, _)| !outside.contains(&***name)) {
        findings.push(list.finding(*at, format!("{name} is no dependency of the workspace")));
    }
    findings
}

/// The rows ``| `name` | users | reason |``: by name, the line and the users.
fn rows(list: &File) -> BTreeMap<String, (usize, String)> {
    let lines = list.text.lines().enumerate();
    let rows = lines.filter_map(|(at, line)| {
        let mut cells = line.strip_prefix("| `")?.split('|').map(str::trim);
        Some((cells.next()?.strip_suffix('`')?.to_owned(), (at + 1, cells.next()?.to_owned())))
    });
    rows.collect()
}

/// Documents that may name the Rust version.
const VERSION_DOCUMENTS: &[&str] = &["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "ci/README.md"];

/// The workspace's `rust-version` is the one the documents name; the README does name it.
pub(crate) fn rust_version(tree: &Tree) -> Vec<Finding> {
    let Some(root) = Manifest::root(tree) else { return Vec::new() };
    let Some(version) = root.str_at(&["workspace", "package", "rust-version"]) else {
        return vec![root.file.finding(1, "expected a rust-version in [workspace.package]")];
    };
    let mut findings = Vec::new();
    for file in VERSION_DOCUMENTS.iter().filter_map(|path| tree.get(path)) {
        let mut stated = false;
        for (at, line) in file.text.lines().enumerate() {
            for rest in line.match_indices("Rust 1.").map(|(at, _)| &line[at + "Rust ".len()..]) {
                let said: String = rest.chars().take_while(|&c| c.is_ascii_digit() || c == '.').collect();
                stated = true;
                if said.trim_end_matches('.') != version {
                    findings.push(file.finding(at + 1, format!("says Rust {said}, but rust-version is {version}")));
                }
            }
        }
        if file.path == "README.md" && !stated {
            findings.push(file.finding(1, format!("must say which compiler it needs: Rust {version}")));
        }
    }
    findings
}
