//! One stem for each kernel: its file, its `name()`, its row in the op's list, its device source.

use super::{
    Finding,
    arrows::is_backend,
    source::is_word,
    tree::{File, Tree},
};
use std::collections::BTreeSet;

/// In each op folder of each backend, a file that implements `Kernel` names the kernel after itself, and the folder's
/// `mod.rs` lists it. A kernel of every op stands above the folders. A family implements `Kernel` for constants that stand
/// in files of their own, one for each kernel.
pub(crate) fn stems(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for name in tree.crates().filter(|name| is_backend(name)) {
        let src = format!("crates/{name}/src/");
        let sources = || tree.under(&src).filter(|file| file.extension() == "rs");
        let families: BTreeSet<String> = sources().filter(|file| is_family(file)).flat_map(kernel_types).collect();
        for file in sources().filter(|file| !is_family(file)) {
            let mut types = kernel_types(file);
            types.extend(constants(file, &families).into_iter().map(|(_, of)| of));
            if types.is_empty() {
                continue;
            }
            let Some((op, _)) = file.path[src.len()..].rsplit_once('/') else {
                findings.extend(shared(tree, &src, file, &types));
                continue;
            };
            if file.name() == "mod.rs" {
                findings.push(file.finding(1, "a kernel stands in a file of its own, beside mod.rs"));
                continue;
            }
            if let Some(word) = file.stem().split('_').find(|word| says_nothing(word)) {
                findings.push(
                    file.finding(1, format!("{word} in a kernel's name; it says what it needs, its types, its idea")),
                );
            }
            findings.extend(wrong_name(file));
            findings.extend(wrong_hash(file));
            let list = format!("{src}{op}/mod.rs");
            match tree.get(&list) {
                None => findings.push(file.finding(1, format!("its op has no list: {list} is missing"))),
                Some(list) => findings.extend(unlisted(file, &types, list)),
            }
        }
    }
    findings
}

/// For a kernel of every op, `src/<stem>.rs`: each op that lists it says in `src/<op>/<stem>.rs` what is its own, and each
/// that says so lists it.
fn shared(tree: &Tree, src: &str, file: &File, types: &BTreeSet<String>) -> Vec<Finding> {
    if !file.source().code.contains("impl<") {
        return vec![file.finding(1, "a kernel of one op stands in its folder: src/<op>/<stem>.rs")];
    }
    let mut findings = wrong_name(file);
    let lists = tree.under(src).filter(|list| list.name() == "mod.rs");
    for list in lists {
        let own = list.path.replace("mod.rs", file.name());
        let listed = types.iter().find(|name| list.source().find_all(name).next().is_some());
        match (listed, tree.get(&own)) {
            (Some(name), None) => {
                findings.push(list.finding(list.line_with(name), format!("lists {name}, but {own} is missing")))
            }
            // An op may have a kernel of its own by the same name.
            (_, Some(own)) if !kernel_types(own).is_empty() => {}
            (None, Some(own)) => {
                findings.push(own.finding(1, format!("its kernel is not in the list of {}", list.path)))
            }
            (Some(_), Some(own)) => findings.extend(wrong_hash(own)),
            (None, None) => {}
        }
    }
    findings
}

/// `fast_gemm_v2`: praise and counting age badly.
fn says_nothing(word: &str) -> bool {
    let version =
        word.strip_prefix('v').is_some_and(|rest| !rest.is_empty() && rest.chars().all(|c| c.is_ascii_digit()));
    version || matches!(word, "fast" | "new" | "old" | "opt" | "optimized" | "better" | "best" | "impl")
}

/// The types that implement `Kernel` in this file.
fn kernel_types(file: &File) -> BTreeSet<String> {
    let code = &file.source().code;
    let mut types = BTreeSet::new();
    for at in file.source().find_all("Kernel") {
        let start = code[..at].rfind(['}', ';', '{', ']']).map_or(0, |end| end + 1);
        let end = code[at..].find('{').map_or(code.len(), |len| at + len);
        let header = code[start..end].trim();
        let Some((of, name)) = header.split_once(" for ") else { continue };
        if header.starts_with("impl") && of.contains("Kernel<") {
            types.insert(name.trim().chars().take_while(|&c| is_word(c)).collect());
        }
    }
    types
}

/// Whether what this file implements are kernels that each say their own name elsewhere, in a field.
fn is_family(file: &File) -> bool {
    let code = &file.source().code;
    let mut bodies = file.source().find_all("fn name").filter_map(|at| code[at..].split('}').next()).peekable();
    bodies.peek().is_some() && bodies.all(|body| body.contains("self.name"))
}

/// The names a file gives its kernels: literals in `fn name`, in `NAME` constants and in a field `name`.
fn wrong_name(file: &File) -> Vec<Finding> {
    let code = &file.source().code;
    let ends = |word: &'static str, end: char| {
        file.source().find_all(word).filter_map(move |at| Some((at, at + code[at..].find(end)?)))
    };
    let mut literals = Vec::new();
    for (start, end) in ends("fn name", '}').chain(ends("NAME", ';')).chain(ends("name:", ',')) {
        // The code keeps the quotes and blanks what they hold; the text has it.
        let quotes: Vec<usize> = code[start..end].match_indices('"').map(|(at, _)| start + at).collect();
        literals.extend(quotes.chunks_exact(2).map(|pair| (pair[0], &file.text[pair[0] + 1..pair[1]])));
    }
    if literals.is_empty() {
        return vec![file.finding(1, format!("names no kernel: expected fn name or NAME to hold \"{}\"", file.stem()))];
    }
    let wrong = literals.into_iter().filter(|(_, name)| *name != file.stem());
    wrong
        .map(|(at, name)| {
            file.finding(file.source().line_of(at), format!("kernel \"{name}\" stands in {}", file.name()))
        })
        .collect()
}

/// A kernel whose measurements hang on a file of another stem: the copy that forgot to change its `include_bytes!`.
fn wrong_hash(file: &File) -> Option<Finding> {
    let source = file.source();
    let hashed = |at: usize| {
        let open = at + source.code[at..].find('"')? + 1;
        let path = &file.text[open..open + source.code[open..].find('"')?];
        Some((at, path.rsplit('/').next()?.split('.').next()?))
    };
    let hashed: Vec<(usize, &str)> = source.find_all("include_bytes!").filter_map(hashed).collect();
    let (at, stem) = hashed.first().filter(|_| hashed.iter().all(|(_, stem)| *stem != file.stem()))?;
    Some(file.finding(
        source.line_of(*at),
        format!("hashes {stem}, not {}: measurements would outlive changes", file.stem()),
    ))
}

/// The constants of this file's kernel types, or the types where it has no constants, that the op's list lacks.
fn unlisted(file: &File, types: &BTreeSet<String>, list: &File) -> Vec<Finding> {
    let mut names = constants(file, types);
    for kind in types {
        if !names.iter().any(|(_, of)| of == kind) {
            names.push((kind.clone(), kind.clone()));
        }
    }
    // Every file of a family may call its constant the same.
    let path = |name: &str| format!("{}::{name}", file.stem());
    let listed = |name: &str| match name {
        "KERNEL" => list.source().find_all(&path(name)).next().is_some(),
        _ => list.source().find_all(name).next().is_some(),
    };
    names.retain(|(name, _)| !listed(name));
    names
        .into_iter()
        .map(|(name, _)| file.finding(file.line_with(&name), format!("{name} is not in the list of {}", list.path)))
        .collect()
}

/// This file's constants of these types: name and type.
fn constants(file: &File, types: &BTreeSet<String>) -> Vec<(String, String)> {
    let of =
        |kind: &'static str| file.source().find_all(kind).filter_map(|at| declared(&file.source().code[at..], types));
    of("const").chain(of("static")).collect()
}

/// For code at `const NAME: Type` with a kernel's type, the name and the type.
fn declared(code: &str, types: &BTreeSet<String>) -> Option<(String, String)> {
    let (head, _) = code.split_once('=')?;
    let (name, of) = head.split_once(char::is_whitespace)?.1.split_once(':')?;
    let of: String = of.trim().trim_start_matches(['&', '[']).chars().take_while(|&c| is_word(c)).collect();
    (name.trim().chars().all(is_word) && types.contains(&of)).then(|| (name.trim().to_owned(), of))
}

/// Device sources that are no kernels: shared by several.
const SHARED: &[&str] = &["common", "include", "simt"];

/// Every kernel of `kernels/<op>/<language>/` has a host file `<op>/<stem>.rs` in some backend.
pub(crate) fn device(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.under("kernels/").filter(|file| matches!(file.extension(), "cu" | "hip" | "comp")) {
        let mut folders = file.path.split('/').skip(1);
        let op = folders.next().expect("a path below kernels/ has a second part");
        if file.path.split('/').any(|folder| SHARED.contains(&folder)) {
            continue;
        }
        let host = format!("src/{op}/{}.rs", file.stem());
        if !tree.crates().any(|name| is_backend(name) && tree.has(&format!("crates/{name}/{host}"))) {
            findings.push(file.finding(1, format!("no backend has a host file {host}")));
        }
    }
    findings
}
