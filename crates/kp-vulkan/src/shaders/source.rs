//! GLSL sources as the compiler gets them. The program that compiles them includes this file, and so does the test that asks
//! whether what is embedded is what was compiled.

/// The text of `path`, each file it includes in place of its first `#include`; paths are from `kernels/`.
///
/// # Errors
/// The file that `read` does not find.
pub(crate) fn expanded(path: &str, read: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut text = String::new();
    append(path, read, &mut Vec::new(), &mut text)?;
    Ok(text)
}

fn append(
    path: &str,
    read: &dyn Fn(&str) -> Option<String>,
    seen: &mut Vec<String>,
    text: &mut String,
) -> Result<(), String> {
    if seen.iter().any(|one| one == path) {
        return Ok(());
    }
    seen.push(path.to_owned());
    for line in read(path).ok_or_else(|| format!("there is no {path}"))?.lines() {
        match line.strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"')) {
            Some(included) => append(included, read, seen, text)?,
            // An ability of the preprocessor's that is not used.
            None if line.starts_with("#extension GL_GOOGLE_include_directive") => {}
            None => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    Ok(())
}

/// The forms of an expanded source: as it is, and for each line `// also SUFFIX: NAME=VALUE …` with those macros.
pub(crate) fn forms(text: &str) -> Vec<(String, Vec<(String, String)>)> {
    let also = text.lines().filter_map(|line| line.strip_prefix("// also ")?.split_once(": "));
    let define = |word: &str| word.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    let forms = also.map(|(suffix, words)| (suffix.to_owned(), words.split_whitespace().filter_map(define).collect()));
    std::iter::once((String::new(), Vec::new())).chain(forms).collect()
}

/// The source with macros, behind its `#version`.
pub(crate) fn defined(text: &str, defines: &[(String, String)]) -> String {
    let (version, rest) = text.split_once('\n').unwrap_or((text, ""));
    let defines: String = defines.iter().map(|(name, value)| format!("#define {name} {value}\n")).collect();
    format!("{version}\n{defines}{rest}")
}

/// What a form of `path`, `<op>/glsl/<stem>.comp`, is called.
pub(crate) fn name(path: &str, suffix: &str) -> String {
    let stem = path.replace("/glsl/", "_").replace(".comp", "");
    if suffix.is_empty() { stem } else { format!("{stem}_{suffix}") }
}

/// FNV-1a.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}
