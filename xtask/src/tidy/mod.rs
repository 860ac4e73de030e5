//! Everything a machine can check of how this repository is built and written. Each rule is a row of [`CHECKS`]; the
//! rest is for the reader's eye.

mod arrows;
mod backends;
mod docs;
mod generated;
mod kernels;
mod manifest;
mod manifests;
mod safety;
mod source;
mod text;
mod tree;

use anyhow::Result;
use std::{fmt, path::Path};
use tree::Tree;

/// One rule, and the function that finds where it is broken.
pub(crate) struct Check {
    /// Its name on the command line and in a report.
    pub(crate) name: &'static str,
    /// What it asks for, in one line.
    pub(crate) rule: &'static str,
    run: fn(&Tree) -> Vec<Finding>,
}

/// Every check, in the order in which a report lists them.
pub(crate) const CHECKS: &[Check] = &[
    Check { name: "arrows", rule: "crates depend on those below them only", run: arrows::crates },
    Check {
        name: "backend-names",
        rule: "kp-core names backends in backends.rs only, each of them",
        run: arrows::names,
    },
    Check {
        name: "manifests",
        rule: "crates inherit version, edition, licence, lints, dependencies",
        run: manifests::inherit,
    },
    Check { name: "dependencies", rule: "docs/dependencies.md lists what the workspace uses", run: manifests::listed },
    Check { name: "rust-version", rule: "one rust-version, stated alike everywhere", run: manifests::rust_version },
    Check { name: "backend-files", rule: "every backend has the same files and statics", run: backends::files },
    Check { name: "stems", rule: "a kernel's file, name() and row in its op's list agree", run: kernels::stems },
    Check { name: "device-stems", rule: "a device kernel has a host file of its stem", run: kernels::device },
    Check {
        name: "unsafe-places",
        rule: "unsafe stands in driver files, memory.rs and kernels only",
        run: safety::places,
    },
    Check { name: "safety-comments", rule: "each unsafe says why it is sound", run: safety::comments },
    Check { name: "lengths", rule: "a file has at most 500 lines, device code 800", run: text::lengths },
    Check {
        name: "whitespace",
        rule: "no trailing blanks, no tabs in Rust, a newline at the end",
        run: text::whitespace,
    },
    Check { name: "unfinished", rule: "nothing is left for later in the code", run: text::unfinished },
    Check { name: "reasons", rule: "a lint that is allowed, or a test that is ignored, says why", run: text::reasons },
    Check { name: "names", rule: "no get_ before what a method returns", run: text::names },
    Check { name: "openings", rule: "a Rust file says first what it is", run: text::openings },
    Check { name: "messages", rule: "errors speak in lower case, without a full stop", run: text::messages },
    Check { name: "unwraps", rule: "a panic names the broken invariant", run: text::unwraps },
    Check { name: "links", rule: "links between documents lead somewhere", run: docs::links },
    Check { name: "commands", rule: "the README's test command is the one CI runs", run: docs::commands },
    Check { name: "ci-features", rule: "CI checks each feature of kp-core alone", run: docs::features },
    Check {
        name: "generated",
        rule: "committed generated files are what their generators make",
        run: generated::fresh,
    },
];

/// A place where a rule is broken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Finding {
    /// The file, from the root of the repository.
    pub(crate) path: String,
    /// The line, from 1.
    pub(crate) line: usize,
    /// What was expected, and what was found.
    pub(crate) message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// Runs the checks over the repository at `root` and prints what they find; the number of findings.
///
/// # Errors
/// A folder or file that cannot be read.
pub(crate) fn report(root: &Path) -> Result<usize> {
    let tree = Tree::read(root)?;
    let mut total = 0;
    for check in CHECKS {
        let findings = (check.run)(&tree);
        total += findings.len();
        if !findings.is_empty() {
            println!("{} ({}): {}", check.name, findings.len(), check.rule);
        }
        for finding in findings {
            println!("  {finding}");
        }
    }
    match total {
        0 => println!("tidy: {} checks over {} files, nothing found", CHECKS.len(), tree.all().count()),
        _ => println!("tidy: {total} findings"),
    }
    Ok(total)
}

/// What the checks find in the repository at `root` if `files`, by path from there, are written over it.
#[cfg(test)]
pub(crate) fn with(root: &Path, files: std::collections::BTreeMap<std::path::PathBuf, String>) -> Result<Vec<Finding>> {
    let mut tree = Tree::read(root)?;
    for (path, text) in files {
        tree.insert(path.to_string_lossy().replace('\\', "/"), text);
    }
    Ok(CHECKS.iter().flat_map(|check| (check.run)(&tree)).collect())
}

#[cfg(test)]
mod tests;
