//! Where NVRTC may lie: the loader's own path, CUDA toolkits, Python packages.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

/// Names of the library, newest first: a new one knows more devices, and a driver is seldom older than the toolkit beside it.
#[cfg(not(windows))]
pub(super) const NAMES: &[&str] = &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"];
#[cfg(windows)]
pub(super) const NAMES: &[&str] = &["nvrtc64_130_0.dll", "nvrtc64_120_0.dll", "nvrtc64_112_0.dll"];

/// What is tried, in this order.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Places {
    /// Names that the dynamic loader resolves by its own rules: `LD_LIBRARY_PATH`, `ldconfig`, what is loaded already.
    pub(super) names: &'static [&'static str],
    /// Folders in which the same names are looked for.
    pub(super) folders: Vec<PathBuf>,
    /// A file that was named outright.
    pub(super) file: Option<PathBuf>,
}

impl Places {
    /// What the environment says. `KP_NVRTC`, a file or a folder, excludes everything else.
    pub(super) fn new(var: impl Fn(&str) -> Option<OsString>) -> Self {
        let path = |name: &str| var(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        match path("KP_NVRTC") {
            Some(folder) if folder.is_dir() => Self { names: &[], folders: vec![folder], file: None },
            Some(file) => Self { names: &[], folders: Vec::new(), file: Some(file) },
            None => {
                let toolkits = [path("CUDA_HOME"), path("CUDA_PATH"), path("CONDA_PREFIX")].into_iter().flatten();
                let toolkits = toolkits.chain(["/usr/local/cuda".into(), "/opt/cuda".into()]);
                let toolkits = toolkits.flat_map(|root| ["lib64", "lib", "bin"].map(|folder| root.join(folder)));
                let pythons = [path("VIRTUAL_ENV"), path("CONDA_PREFIX"), path("HOME").map(|home| home.join(".local"))];
                let pythons = pythons.into_iter().flatten().chain(["/usr/local".into(), "/usr".into()]);
                let mut folders: Vec<PathBuf> = toolkits.chain(pythons.flat_map(|root| packages(&root))).collect();
                folders.retain(|folder| folder.is_dir());
                Self { names: NAMES, folders, file: None }
            }
        }
    }

    /// Files to open, with what each needs to have been opened before.
    pub(super) fn files(&self) -> impl Iterator<Item = PathBuf> {
        let inside = self.folders.iter().flat_map(|folder| NAMES.iter().map(|name| folder.join(name)));
        self.file.clone().into_iter().chain(inside.filter(|path| path.exists()))
    }

    /// What was looked for, for an error message.
    pub(super) fn describe(&self) -> String {
        let names = NAMES.join(", ");
        let folders: Vec<_> = self.folders.iter().map(|folder| folder.display().to_string()).collect();
        match (&self.file, &folders[..]) {
            (Some(file), _) => format!("KP_NVRTC names {}", file.display()),
            (None, []) => format!("looked for {names} where the loader looks"),
            (None, _) if self.names.is_empty() => format!("looked for {names} in {}", folders.join(", ")),
            (None, _) => format!("looked for {names} where the loader looks and in {}", folders.join(", ")),
        }
    }
}

/// The library that NVRTC opens by itself, and finds only where the loader looks: with it loaded already, NVRTC works from
/// any folder.
pub(super) fn builtins(library: &Path) -> Vec<PathBuf> {
    let Some(entries) = library.parent().and_then(|folder| fs::read_dir(folder).ok()) else { return Vec::new() };
    let is_builtins = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // The `.alt` build belongs to the `.alt` build of NVRTC.
        (name.starts_with("libnvrtc-builtins.so") || name.starts_with("nvrtc-builtins64")) && !name.contains(".alt.")
    };
    entries.flatten().map(|entry| entry.path()).filter(is_builtins).collect()
}

/// Folders below the Python installation `root` in which its packages keep NVRTC.
fn packages(root: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(root.join("lib")) else { return Vec::new() };
    let pythons = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("python3"));
    let mut pythons: Vec<PathBuf> = pythons.map(|entry| entry.path()).collect();
    pythons.sort();
    let sites =
        pythons.iter().rev().flat_map(|python| ["site-packages", "dist-packages"].map(|site| python.join(site)));
    sites.flat_map(|site| ["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"].map(|folder| site.join(folder))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::tests::Scratch;

    fn places(vars: &[(&str, &Path)]) -> Places {
        Places::new(|name| vars.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()))
    }

    #[test]
    fn a_named_place_is_the_only_one() {
        let scratch = Scratch::new("find-named");
        let folder = places(&[("KP_NVRTC", scratch.path()), ("CUDA_HOME", Path::new("/"))]);
        assert_eq!(folder, Places { names: &[], folders: vec![scratch.path().into()], file: None });
        assert_eq!(folder.files().count(), 0, "an empty folder holds no NVRTC");
        let library = scratch.path().join(NAMES[0]);
        fs::write(&library, "").expect("the folder is ours");
        assert_eq!(folder.files().collect::<Vec<_>>(), std::slice::from_ref(&library));

        let file = places(&[("KP_NVRTC", &library)]);
        assert_eq!(file.files().collect::<Vec<_>>(), std::slice::from_ref(&library));
        assert_eq!(file.describe(), format!("KP_NVRTC names {}", library.display()));
    }

    #[cfg(not(windows))]
    #[test]
    fn toolkits_come_before_python_packages_and_builtins_are_found_beside() {
        let scratch = Scratch::new("find-folders");
        let toolkit = scratch.path().join("cuda/lib64");
        let wheel = scratch.path().join("venv/lib/python3.12/site-packages/nvidia/cu13/lib");
        for folder in [&toolkit, &wheel] {
            fs::create_dir_all(folder).expect("the folder is ours");
            fs::write(folder.join("libnvrtc.so.13"), "").expect("the folder is ours");
        }
        for name in ["libnvrtc-builtins.so.13.0", "libnvrtc-builtins.alt.so.13.0", "libcudart.so.13"] {
            fs::write(wheel.join(name), "").expect("the folder is ours");
        }
        let (cuda, venv) = (scratch.path().join("cuda"), scratch.path().join("venv"));
        let places = places(&[("CUDA_HOME", &cuda), ("VIRTUAL_ENV", &venv)]);
        assert_eq!(places.names, NAMES);
        let found: Vec<PathBuf> = places.files().take(2).collect();
        assert_eq!(found[0], toolkit.join("libnvrtc.so.13"));
        assert!(places.files().any(|path| path == wheel.join("libnvrtc.so.13")), "{found:?}");
        assert_eq!(builtins(&wheel.join("libnvrtc.so.13")), [wheel.join("libnvrtc-builtins.so.13.0")]);
        assert!(builtins(&toolkit.join("libnvrtc.so.13")).is_empty());
        let text = places.describe();
        assert!(text.starts_with("looked for libnvrtc.so.13, "), "{text}");
        assert!(text.contains(&*toolkit.to_string_lossy()), "{text}");
    }
}
