//! The files that the checks read, held in memory: the repository's, or a test's.

use crate::tidy::{Finding, source::Source};
use anyhow::{Context, Result};
use std::{collections::BTreeMap, fs, path::Path, sync::OnceLock};

/// The text files of a repository by path from its root, with `/` between folders.
#[derive(Default)]
pub(crate) struct Tree {
    files: BTreeMap<String, File>,
}

/// One file. Bytes that are not UTF-8 make it a file without text, which only its path can be asked about.
pub(crate) struct File {
    /// The path from the root.
    pub(crate) path: String,
    /// What it says; empty for a binary file.
    pub(crate) text: String,
    source: OnceLock<Source>,
}

impl Tree {
    /// Reads everything below `root` that a person wrote: neither build output nor version control.
    ///
    /// # Errors
    /// The first folder or file that cannot be read.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let mut tree = Self::default();
        let mut folders = vec![root.to_path_buf()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
                let entry = entry?;
                let name = entry.file_name();
                let kind = entry.file_type()?;
                if NOT_OURS.iter().any(|skip| name == *skip) || kind.is_symlink() {
                    continue;
                }
                if kind.is_dir() {
                    folders.push(entry.path());
                    continue;
                }
                let Ok(bytes) = fs::read(entry.path()) else { continue }; // deleted since it was listed
                let path = entry.path().strip_prefix(root)?.to_string_lossy().replace('\\', "/");
                tree.insert(path, String::from_utf8(bytes).unwrap_or_default());
            }
        }
        Ok(tree)
    }

    /// A tree of `(path, text)` rows.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let mut tree = Self::default();
        for (path, text) in files {
            tree.insert((*path).to_owned(), (*text).to_owned());
        }
        tree
    }

    /// Adds a file, or replaces it.
    pub(crate) fn insert(&mut self, path: String, text: String) {
        self.files.insert(path.clone(), File { path, text, source: OnceLock::new() });
    }

    /// The file at exactly `path`.
    pub(crate) fn get(&self, path: &str) -> Option<&File> {
        self.files.get(path)
    }

    /// Whether `path` is a file, or a folder with a file in it.
    pub(crate) fn has(&self, path: &str) -> bool {
        let folder = format!("{}/", path.trim_end_matches('/'));
        path.is_empty() || self.files.contains_key(path) || self.under(&folder).next().is_some()
    }

    /// Every file whose path starts with `prefix`, in order.
    pub(crate) fn under<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a File> {
        self.files
            .range(prefix.to_owned()..)
            .map(|(_, file)| file)
            .take_while(move |file| file.path.starts_with(prefix))
    }

    /// Every file, in order.
    pub(crate) fn all(&self) -> impl Iterator<Item = &File> {
        self.files.values()
    }

    /// Every file whose name ends in `.rs`, in order.
    pub(crate) fn rust(&self) -> impl Iterator<Item = &File> {
        self.all().filter(|file| file.extension() == "rs")
    }

    /// The names of the folders right below `crates/` that hold a manifest.
    pub(crate) fn crates(&self) -> impl Iterator<Item = &str> {
        self.under("crates/").filter_map(|file| file.path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml"))
    }
}

impl File {
    /// The part of the name after the last dot, or nothing.
    pub(crate) fn extension(&self) -> &str {
        self.name().rsplit_once('.').map_or("", |(_, extension)| extension)
    }

    /// The last part of the path.
    pub(crate) fn name(&self) -> &str {
        self.path.rsplit('/').next().expect("split yields at least one part")
    }

    /// The name up to its first dot.
    pub(crate) fn stem(&self) -> &str {
        self.name().split('.').next().expect("split yields at least one part")
    }

    /// The file as Rust, parsed once.
    pub(crate) fn source(&self) -> &Source {
        self.source.get_or_init(|| Source::parse(&self.text))
    }

    /// A finding in this file, at `line` from 1.
    pub(crate) fn finding(&self, line: usize, message: impl Into<String>) -> Finding {
        Finding { path: self.path.clone(), line, message: message.into() }
    }

    /// The line, from 1, of the first line that contains `text`; 1 if none does.
    pub(crate) fn line_with(&self, text: &str) -> usize {
        self.text.lines().position(|line| line.contains(text)).map_or(1, |at| at + 1)
    }
}

/// Folders of build output, version control and tools.
const NOT_OURS: &[&str] = &[".git", "target", "node_modules", "__pycache__", ".venv", ".vscode", ".idea"];
