//! What can be told from a file's text alone: its length, its blanks, what it leaves for later, how it speaks.

use super::{
    Finding,
    source::{Source, is_word},
    tree::{File, Tree},
};

/// Extensions of code, with the most lines a file may have.
const LENGTHS: &[(&str, usize)] =
    &[("rs", 500), ("cu", 800), ("cuh", 800), ("hip", 800), ("h", 800), ("comp", 800), ("glsl", 800)];

/// No source file is longer than its language's limit.
pub(crate) fn lengths(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.all() {
        let Some(&(_, limit)) = LENGTHS.iter().find(|(extension, _)| *extension == file.extension()) else { continue };
        let lines = file.text.lines().count();
        if lines > limit {
            findings.push(file.finding(limit + 1, format!("{lines} lines, at most {limit}: look for the seam")));
        }
    }
    findings
}

/// Extensions of text that people write.
const WRITTEN: &[&str] =
    &["rs", "toml", "md", "sh", "py", "yml", "yaml", "html", "css", "js", "cu", "cuh", "hip", "h", "comp", "glsl"];

/// No trailing blanks, no tabs in Rust, exactly one newline at the end.
pub(crate) fn whitespace(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.all().filter(|file| WRITTEN.contains(&file.extension()) && !file.text.is_empty()) {
        for (at, line) in file.text.split('\n').enumerate() {
            if line.ends_with([' ', '\t', '\r']) {
                findings.push(file.finding(at + 1, "blanks at the end of the line"));
            }
            if file.extension() == "rs" && line.contains('\t') {
                findings.push(file.finding(at + 1, "a tab; four spaces are meant"));
            }
        }
        let lines = file.text.lines().count();
        if !file.text.ends_with('\n') {
            findings.push(file.finding(lines, "no newline at the end of the file"));
        } else if file.text.ends_with("\n\n") {
            findings.push(file.finding(lines, "empty lines at the end of the file"));
        }
    }
    findings
}

/// Macros that stand for code that is not there, or for looking at code that is.
const STAND_INS: &[&str] = &["todo!", "unimplemented!", "dbg!"];

/// Words that promise work.
const PROMISES: &[&str] = &["TODO", "FIXME", "XXX", "HACK"];

/// No stand-ins in Rust, no promises in its comments, no code switched off in device code, no folder of old code.
pub(crate) fn unfinished(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        let source = file.source();
        for name in STAND_INS {
            for at in source.find_all(name) {
                findings.push(file.finding(source.line_of(at), format!("{name}(..) may not be committed")));
            }
        }
        for (at, line) in source.comments.lines().enumerate() {
            let said =
                PROMISES.iter().find(|word| line.split(|c: char| !c.is_alphanumeric()).any(|part| part == **word));
            findings
                .extend(said.map(|word| file.finding(at + 1, format!("{word} in a comment; do it, or say why not"))));
        }
    }
    for file in tree.all() {
        if matches!(file.extension(), "cu" | "cuh" | "hip" | "h" | "comp" | "glsl") {
            let off =
                file.text.lines().position(|line| line.split_whitespace().collect::<String>().starts_with("#if0"));
            findings.extend(off.map(|at| file.finding(at + 1, "#if 0: delete the alternative")));
        }
        if file.path.split('/').any(|folder| folder == "old") {
            findings.push(file.finding(1, "a folder of old code; version control remembers it"));
        }
    }
    findings
}

/// Every `#[allow]` and `#[expect]` has a `reason`, every `#[ignore]` a text.
pub(crate) fn reasons(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        let source = file.source();
        for (at, _) in source.code.match_indices("#[").chain(source.code.match_indices("#![")) {
            let attribute = attribute(source, at);
            let lint = ["allow(", "expect("].iter().any(|name| attribute.contains(name));
            if lint && !attribute.contains("reason") {
                findings.push(file.finding(source.line_of(at), "this attribute needs a reason = \"..\""));
            }
            if attribute.trim_start_matches(['#', '[']).trim() == "ignore]" {
                findings.push(file.finding(source.line_of(at), "an ignored test says why: #[ignore = \"..\"]"));
            }
        }
    }
    findings
}

/// The attribute that starts at `at`, up to its closing bracket.
fn attribute(source: &Source, at: usize) -> &str {
    let mut depth = 0;
    for (i, c) in source.code[at..].char_indices() {
        match c {
            '[' => depth += 1,
            ']' if depth == 1 => return &source.code[at..=at + i],
            ']' => depth -= 1,
            _ => {}
        }
    }
    &source.code[at..]
}

/// Names with `get_` that the standard library uses too, where they mean the variant of a lookup.
const LOOKUPS: &[&str] = &["get_mut", "get_unchecked", "get_unchecked_mut", "get_or_insert_with", "get_or_init"];

/// What a method returns is its name: `plan.problem()`.
pub(crate) fn names(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        let source = file.source();
        for (at, _) in source.code.match_indices("fn get_") {
            let name: String = source.code[at + "fn ".len()..].chars().take_while(|&c| is_word(c)).collect();
            if !LOOKUPS.contains(&&*name) {
                findings.push(
                    file.finding(source.line_of(at), format!("{name}: name it after what it returns, without get_")),
                );
            }
        }
    }
    findings
}

/// Every Rust file of a crate's `src` says first what it is.
pub(crate) fn openings(tree: &Tree) -> Vec<Finding> {
    let ours = |file: &&File| file.path.contains("src/") && !file.text.starts_with("//!");
    tree.rust().filter(ours).map(|file| file.finding(1, "must open with //! and what this file is")).collect()
}

/// Where a message of an error is written: what stands before its string.
const MESSAGES: &[&str] = &["#[error(", "bail!(", "anyhow!(", ".context(", ".expect(", "panic!("];

/// Messages of errors and panics start in lower case and have no full stop: they stand in the middle of longer ones.
pub(crate) fn messages(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        let source = file.source();
        for at in
            MESSAGES.iter().flat_map(|before| source.code.match_indices(before)).map(|(at, before)| at + before.len())
        {
            let Some(message) = literal(file, at) else { continue };
            let mut first = message.chars();
            let sentence = first.next().is_some_and(char::is_uppercase) && first.next().is_some_and(char::is_lowercase);
            if sentence || (message.ends_with('.') && !message.ends_with("..")) {
                findings.push(
                    file.finding(source.line_of(at), format!("{message:?} must be lower case, without a full stop")),
                );
            }
        }
    }
    findings
}

/// The string that starts at `at`, if one does, blanks apart.
fn literal(file: &File, at: usize) -> Option<&str> {
    let code = &file.source().code;
    let open = at + code[at..].find(|c: char| !c.is_whitespace())?;
    let inside = code[open..].strip_prefix('"')?;
    Some(&file.text[open + 1..open + 1 + inside.find('"')?])
}

/// Outside tests, a panic names the invariant that was broken: `.expect("..")`, not `.unwrap()`.
pub(crate) fn unwraps(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust().filter(|file| file.path.contains("src/") && file.stem() != "tests") {
        let source = file.source();
        let tests = source.code.find("#[cfg(test)]").unwrap_or(source.code.len());
        for (at, _) in source.code[..tests].match_indices(".unwrap()") {
            findings.push(file.finding(source.line_of(at), "name the invariant: .expect(\"..\")"));
        }
    }
    findings
}
