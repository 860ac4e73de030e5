//! Which crate may know which: the arrows of the design, and never back.

use super::{
    Finding,
    manifest::{Dependency, Manifest, Use},
    tree::Tree,
};

/// What one crate of `crates/` may depend on.
struct Row {
    name: &'static str,
    /// Crates of this workspace; `BACKENDS` stands for every backend.
    kp: &'static [&'static str],
    /// More of this workspace, for its tests only.
    kp_in_tests: &'static [&'static str],
    /// Crates from outside, if the list is closed.
    outside: Option<&'static [&'static str]>,
}

const BACKENDS: &str = "a backend";

/// A crate of `crates/` without a row is a backend.
const ROWS: &[Row] = &[
    Row { name: "kp-hal", kp: &[], kp_in_tests: &[], outside: Some(&["half", "serde"]) },
    Row { name: "kp-testkit", kp: &["kp-hal"], kp_in_tests: &[BACKENDS], outside: None },
    Row { name: "kp-core", kp: &["kp-hal", BACKENDS], kp_in_tests: &["kp-testkit"], outside: None },
    Row { name: "kp-cli", kp: &["kp-hal", "kp-core", "kp-testkit"], kp_in_tests: &[], outside: None },
];

const BACKEND: Row = Row { name: BACKENDS, kp: &["kp-hal"], kp_in_tests: &["kp-testkit"], outside: None };

/// Whether the crate `name` of `crates/` is a backend.
pub(crate) fn is_backend(name: &str) -> bool {
    name.starts_with("kp-") && ROWS.iter().all(|row| row.name != name)
}

/// Every dependency below `crates/` is one its crate may have.
pub(crate) fn crates(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for manifest in Manifest::packages(tree).iter().filter(|manifest| manifest.file.path.starts_with("crates/")) {
        let row = ROWS.iter().find(|row| row.name == manifest.name()).unwrap_or(&BACKEND);
        for dependency in manifest.dependencies() {
            if let Some(why) = refusal(row, manifest.name(), &dependency) {
                let line = manifest.file.line_with(&dependency.name);
                findings.push(
                    manifest
                        .file
                        .finding(line, format!("{} may not depend on {}: {why}", manifest.name(), dependency.name)),
                );
            }
        }
    }
    findings
}

fn refusal(row: &Row, of: &str, on: &Dependency<'_>) -> Option<String> {
    let names = |list: &[&str]| list.contains(&&*on.name) || (list.contains(&BACKENDS) && is_backend(&on.name));
    let in_tests = on.used == Use::Dev;
    if on.name.starts_with("kp-") {
        let allowed = names(row.kp) || (in_tests && names(row.kp_in_tests));
        let list = if row.kp.is_empty() { "nothing of this workspace".to_owned() } else { row.kp.join(", ") };
        return (!allowed).then(|| format!("{} may know {list}", if row.name == of { of } else { row.name }));
    }
    let outside = row.outside.filter(|_| !in_tests)?;
    if !names(outside) {
        return Some(format!("only {} from outside", outside.join(" and ")));
    }
    (on.name == "serde" && !on.is_optional()).then(|| "serde must be optional".to_owned())
}

/// kp-core names its backends in one file, and every backend that a feature turns on stands there.
pub(crate) fn names(tree: &Tree) -> Vec<Finding> {
    const HOME: &str = "crates/kp-core/src/backends.rs";
    let mut findings = Vec::new();
    let backends: Vec<&str> = tree.crates().filter(|name| is_backend(name)).collect();
    for file in tree.under("crates/kp-core/src/").filter(|file| file.extension() == "rs" && file.path != HOME) {
        for name in &backends {
            let module = name.replace('-', "_");
            for at in file.source().find_all(&module) {
                let line = file.source().line_of(at);
                findings.push(file.finding(line, format!("names {module}; only backends.rs knows backends")));
            }
        }
    }
    let Some(core) = tree.get("crates/kp-core/Cargo.toml").and_then(|file| Manifest::parse(file).ok()) else {
        return findings;
    };
    for dependency in core.dependencies().iter().filter(|on| on.used == Use::Normal && is_backend(&on.name)) {
        let line = core.file.line_with(&dependency.name);
        if !dependency.is_optional() {
            findings
                .push(core.file.finding(line, format!("{} must be optional, turned on by a feature", dependency.name)));
        }
        let module = dependency.name.replace('-', "_");
        if tree.get(HOME).is_none_or(|home| home.source().find_all(&module).next().is_none()) {
            findings.push(core.file.finding(line, format!("{} has no row in {HOME}", dependency.name)));
        }
    }
    findings
}
