//! A backend's files: the same names in each, so that who knows one knows where to look in the next.

use super::{Finding, arrows::is_backend, tree::Tree};

const FILES: &[&str] = &["lib.rs", "caps.rs", "device.rs", "queue.rs", "memory.rs"];

/// What `lib.rs` declares, as a `static` or a `const`.
const STATICS: &[&str] = &["BACKEND", "KERNELS"];

/// Every backend has the files of the design, and its two statics in `lib.rs`.
pub(crate) fn files(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for name in tree.crates().filter(|name| is_backend(name)) {
        let manifest = tree.get(&format!("crates/{name}/Cargo.toml")).expect("crates() found it");
        for file in FILES.iter().filter(|file| !tree.has(&format!("crates/{name}/src/{file}"))) {
            findings.push(manifest.finding(1, format!("{name} lacks src/{file}, which every backend has")));
        }
        let Some(lib) = tree.get(&format!("crates/{name}/src/lib.rs")) else { continue };
        for name in STATICS {
            if !["static", "const"].iter().any(|kind| lib.source().code.contains(&format!("pub {kind} {name}:"))) {
                findings.push(lib.finding(1, format!("must declare `pub static {name}`")));
            }
        }
    }
    findings
}
