//! The `Cargo.toml` files: what a crate is, and what it depends on.

use crate::tidy::{
    Finding,
    tree::{File, Tree},
};
use toml_edit::{DocumentMut, Item, TableLike};

/// One parsed `Cargo.toml`.
pub(crate) struct Manifest<'a> {
    /// The file it was parsed from.
    pub(crate) file: &'a File,
    toml: DocumentMut,
}

/// What a dependency is for; which section names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    /// The crate itself.
    Normal,
    /// Its tests, benches and examples.
    Dev,
    /// Its build script.
    Build,
}

/// One dependency of one crate.
pub(crate) struct Dependency<'a> {
    /// The crate depended on, by its name in the registry or the workspace.
    pub(crate) name: String,
    /// What for.
    pub(crate) used: Use,
    /// Its value in the manifest.
    pub(crate) item: &'a Item,
}

impl<'a> Manifest<'a> {
    /// Parses `file`; a finding says where the syntax is wrong.
    pub(crate) fn parse(file: &'a File) -> Result<Self, Finding> {
        match file.text.parse::<DocumentMut>() {
            Ok(toml) => Ok(Self { file, toml }),
            Err(error) => {
                let at = error.span().map_or(0, |span| span.start);
                Err(file.finding(file.text[..at].matches('\n').count() + 1, error.message()))
            }
        }
    }

    /// Every package below `crates/` and beside it, those that parse; `syntax` reports the others.
    pub(crate) fn packages(tree: &'a Tree) -> Vec<Self> {
        let manifests = tree.all().filter(|file| file.name() == "Cargo.toml" && file.path != "Cargo.toml");
        manifests
            .filter_map(|file| Self::parse(file).ok())
            .filter(|manifest| manifest.toml.contains_key("package"))
            .collect()
    }

    /// The workspace's own manifest, if it is there and parses.
    pub(crate) fn root(tree: &'a Tree) -> Option<Self> {
        Self::parse(tree.get("Cargo.toml")?).ok()
    }

    /// The value at `path`, one key a step.
    pub(crate) fn at(&self, path: &[&str]) -> Option<&Item> {
        let mut item = self.toml.as_item();
        for key in path {
            item = item.as_table_like()?.get(key)?;
        }
        Some(item)
    }

    /// The string at `path`.
    pub(crate) fn str_at(&self, path: &[&str]) -> Option<&str> {
        self.at(path)?.as_str()
    }

    /// The package's name; empty for a workspace without a package.
    pub(crate) fn name(&self) -> &str {
        self.str_at(&["package", "name"]).unwrap_or_default()
    }

    /// Every dependency of every kind, those of particular targets included.
    pub(crate) fn dependencies(&self) -> Vec<Dependency<'_>> {
        let mut found = section(self.toml.as_table());
        for (_, target) in self.at(&["target"]).and_then(Item::as_table_like).into_iter().flat_map(TableLike::iter) {
            found.extend(target.as_table_like().into_iter().flat_map(section));
        }
        found
    }
}

fn section(table: &dyn TableLike) -> Vec<Dependency<'_>> {
    let kinds = [("dependencies", Use::Normal), ("dev-dependencies", Use::Dev), ("build-dependencies", Use::Build)];
    let mut found = Vec::new();
    for (key, used) in kinds {
        for (name, item) in table.get(key).and_then(Item::as_table_like).into_iter().flat_map(TableLike::iter) {
            let renamed = item.get("package").and_then(Item::as_str);
            found.push(Dependency { name: renamed.unwrap_or(name).to_owned(), used, item });
        }
    }
    found
}

impl Dependency<'_> {
    /// Whether it takes its version from the workspace.
    pub(crate) fn is_inherited(&self) -> bool {
        self.item.get("workspace").and_then(Item::as_bool) == Some(true)
    }

    /// Whether a feature turns it on.
    pub(crate) fn is_optional(&self) -> bool {
        self.item.get("optional").and_then(Item::as_bool) == Some(true)
    }
}
