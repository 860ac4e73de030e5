//! Where `unsafe` may stand, and what must be said there.

use super::{
    Finding,
    arrows::is_backend,
    source::Source,
    tree::{File, Tree},
};

/// How far above its block a `SAFETY:` comment may start, in lines.
const REACH: usize = 8;

/// Every `unsafe` block and impl has a `SAFETY:` comment; every `unsafe fn` that is not a trait's has a `# Safety`
/// section.
pub(crate) fn comments(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        let source = file.source();
        for at in source.find_all("unsafe") {
            let line = source.line_of(at);
            let message = match form(source, at) {
                Form::Block if !above(file, line, "SAFETY:", REACH) => "this unsafe block has no SAFETY comment",
                Form::Impl if !above(file, line, "SAFETY:", REACH) => "this unsafe impl has no SAFETY comment",
                Form::Function | Form::Trait if !doc_above(file, line).contains("# Safety") => {
                    "its documentation lacks a # Safety section"
                }
                _ => continue,
            };
            findings.push(file.finding(line, message));
        }
    }
    findings
}

enum Form {
    Block,
    Impl,
    /// A function of its own, or of a type, or one that a trait declares.
    Function,
    /// A trait whose implementors promise something.
    Trait,
    /// A trait's function in an impl, whose duties stand at the trait; a pointer type; an attribute.
    Told,
}

fn form(source: &Source, at: usize) -> Form {
    let rest = source.code[at + "unsafe".len()..].trim_start();
    let next: String = rest.chars().take_while(|c| c.is_alphanumeric()).collect();
    match &*next {
        "" if rest.starts_with('{') => Form::Block,
        "impl" => Form::Impl,
        "trait" => Form::Trait,
        "fn" | "extern" | "const" if is_pointer(rest) => Form::Told,
        "fn" | "extern" | "const" => match source.block_header(at) {
            Some(header) if header.contains("impl") && header.contains(" for ") => Form::Told,
            _ => Form::Function,
        },
        _ => Form::Told,
    }
}

/// `fn(..)` and `extern "C" fn(..)` name no function; neither does a block of foreign items, `extern "C" {`.
fn is_pointer(rest: &str) -> bool {
    let Some((before, after)) = rest.split_once("fn") else { return true };
    before.contains('{') || after.trim_start().starts_with('(')
}

/// Whether one of the `reach` lines above `line`, or `line` itself, has a comment that holds `text`.
fn above(file: &File, line: usize, text: &str, reach: usize) -> bool {
    let first = line.saturating_sub(reach + 1);
    file.source().comments.lines().skip(first).take(line - first).any(|comment| comment.contains(text))
}

/// The comment right above `line`, past attributes.
fn doc_above(file: &File, line: usize) -> String {
    let lines: Vec<&str> = file.text.lines().take(line - 1).collect();
    let belongs = |text: &&&str| {
        let text = text.trim_start();
        text.starts_with("//") || text.starts_with('#') || text.ends_with(")]")
    };
    lines.iter().rev().take_while(belongs).copied().collect::<Vec<_>>().join("\n")
}

/// Files outside backends that may hold `unsafe`: the plan, and the traits of which a driver must promise more than types say.
const PLACES: &[&str] = &["crates/kp-hal/src/kernel.rs", "crates/kp-hal/src/device.rs"];

/// Files of a backend that are facts and lists. The others speak to its driver, its threads or its memory, or are kernels
/// and what kernels share.
const FACTS: &[&str] = &["lib.rs", "caps.rs"];

/// What a test, a bench or kp-testkit may be unsafe for: an allocator that counts, the promises of kp-hal, and kernels of
/// its own, loaded and launched by their backend.
const IN_TESTS: &[&str] =
    &["GlobalAlloc", "NvidiaDevice", "NvidiaQueue", "Plan::new", "adopt_queue", "external", "from_raw", "replay"];

/// `unsafe` stands in the places above, in a backend's driver and kernels, in any `memory.rs`; in tests and benches for little.
pub(crate) fn places(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust().filter(|file| !may_be_unsafe(file)) {
        let source = file.source();
        let first =
            source.find_all("unsafe").find(|&at| !matches!(form(source, at), Form::Told) || in_impl(source, at));
        if let Some(at) = first {
            findings.push(file.finding(
                source.line_of(at),
                "unsafe may not stand in this file; move it to a driver file, memory.rs or a kernel",
            ));
        }
    }
    findings
}

fn in_impl(source: &Source, at: usize) -> bool {
    source.block_header(at).is_some_and(|header| header.contains("impl"))
}

fn may_be_unsafe(file: &File) -> bool {
    if PLACES.contains(&&*file.path) || file.name() == "memory.rs" {
        return true;
    }
    let folders: Vec<&str> = file.path.split('/').collect();
    if folders.iter().any(|folder| matches!(*folder, "tests" | "benches" | "kp-testkit")) {
        return IN_TESTS.iter().any(|name| file.source().find_all(name).next().is_some());
    }
    matches!(folders[..], ["crates", name, "src", ..] if is_backend(name)) && !FACTS.contains(&file.name())
}
