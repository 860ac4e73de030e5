//! What the documents say that a machine can follow: links and commands.

use super::{
    Finding,
    manifest::Manifest,
    tree::{File, Tree},
};

/// Every link to a file leads to one, and every link to a heading to a heading.
pub(crate) fn links(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.all().filter(|file| file.extension() == "md") {
        for (line, target) in targets(file) {
            let (path, heading) =
                target.split_once('#').map_or((&*target, None), |(path, heading)| (path, Some(heading)));
            let Some(to) = resolve(&file.path, path) else {
                findings.push(file.finding(line, format!("{target} leads out of the repository")));
                continue;
            };
            if !tree.has(&to) {
                findings.push(file.finding(line, format!("{target} leads nowhere: {to} is missing")));
            } else if let (Some(heading), Some(document)) = (heading, tree.get(&to))
                && document.extension() == "md"
                && !prose(document).any(|(_, text)| text.starts_with('#') && slug(&text) == heading)
            {
                findings.push(file.finding(line, format!("{to} has no heading #{heading}")));
            }
        }
    }
    findings
}

/// The lines of a document that are not code, with their numbers, and without what stands between backquotes.
fn prose(file: &File) -> impl Iterator<Item = (usize, String)> {
    let mut fenced = false;
    let text = move |(at, line): (usize, &str)| {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            return None;
        }
        (!fenced).then(|| (at + 1, line.to_owned()))
    };
    file.text.lines().enumerate().filter_map(text)
}

/// The local targets of `[text](target)` and `[name]: target`, with their lines.
fn targets(file: &File) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (at, line) in prose(file) {
        // Code between backquotes holds no links: keep every other part.
        let line: String = line.split('`').step_by(2).collect::<Vec<_>>().join("``");
        let inline = line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
        let reference = line.strip_prefix('[').and_then(|rest| rest.split_once("]: ")).map(|(_, target)| target.trim());
        found.extend(inline.chain(reference).map(|target| (at, target.to_owned())));
    }
    found.retain(|(_, target)| !target.contains("://") && !target.starts_with("mailto:"));
    found
}

/// `path`, written in `from`, as a path from the root; `None` if it climbs above it.
fn resolve(from: &str, path: &str) -> Option<String> {
    if path.is_empty() {
        return Some(from.to_owned());
    }
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            _ => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// A heading as an anchor: `## To add an op` is `to-add-an-op`.
fn slug(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|&c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Before the fenced command of the README that `.ci/run` takes from there.
const MARK: &str = "<!-- ci: test -->";

/// The README marks its test command, and `.ci/run` looks for the mark.
pub(crate) fn commands(tree: &Tree) -> Vec<Finding> {
    let Some(readme) = tree.get("README.md") else { return Vec::new() };
    let mut lines = readme.text.lines().skip_while(|line| *line != MARK).skip(1);
    let command = lines.next().filter(|fence| fence.starts_with("```")).and_then(|_| lines.next());
    let mut findings = Vec::new();
    if !command.is_some_and(|command| command.starts_with("cargo test")) || lines.next() != Some("```") {
        findings.push(
            readme.finding(readme.line_with(MARK), format!("expected {MARK}, then one fenced line with cargo test")),
        );
    }
    if let Some(run) = tree.get(".ci/run").filter(|run| !run.text.contains(MARK)) {
        findings.push(run.finding(1, format!("must take its test command from {MARK} in the README")));
    }
    findings
}

/// The list of kp-core's features in `ci/check.sh` has a line for each that its manifest has, which starts with its name.
pub(crate) fn features(tree: &Tree) -> Vec<Finding> {
    let (Some(core), Some(check)) = (tree.get("crates/kp-core/Cargo.toml"), tree.get("ci/check.sh")) else {
        return Vec::new();
    };
    let Ok(core) = Manifest::parse(core) else { return Vec::new() };
    let features = core.at(&["features"]).and_then(|item| item.as_table_like());
    let names =
        features.into_iter().flat_map(|table| table.iter()).map(|(name, _)| name).filter(|name| *name != "default");
    let listed: Vec<&str> =
        check.text.lines().skip_while(|line| *line != "features=(").take_while(|line| *line != ")").collect();
    let lacks = names.filter(|name| !listed.iter().any(|line| line.split_whitespace().next() == Some(name)));
    lacks
        .map(|name| check.finding(check.line_with("features=("), format!("lacks the feature {name} of kp-core")))
        .collect()
}
