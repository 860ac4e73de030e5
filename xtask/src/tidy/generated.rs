//! Committed files that a program makes.

use super::{Finding, tree::Tree};

/// A committed file, and how to make it from the rest of the tree.
pub(crate) struct Generated {
    /// Where it is committed.
    pub(crate) path: &'static str,
    /// The command that writes it, for the message.
    pub(crate) command: &'static str,
    /// What it should say.
    pub(crate) make: fn(&Tree) -> String,
}

/// Every generated file that is text; nothing is generated yet.
const GENERATED: &[Generated] = &[];

/// Every committed generated file says what its generator would write now.
pub(crate) fn fresh(tree: &Tree) -> Vec<Finding> {
    stale(GENERATED, tree)
}

/// Those of `list` that are missing or say something else.
pub(crate) fn stale(list: &[Generated], tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for one in list {
        let made = (one.make)(tree);
        let committed = tree.get(one.path).map(|file| &*file.text);
        if committed == Some(&made) {
            continue;
        }
        let differs = committed.unwrap_or_default().lines().zip(made.lines()).position(|(is, should)| is != should);
        let line =
            differs.unwrap_or_else(|| committed.unwrap_or_default().lines().count().min(made.lines().count())) + 1;
        let message = format!("not what `{}` writes; run it and commit the result", one.command);
        findings.push(Finding { path: one.path.to_owned(), line, message });
    }
    findings
}
