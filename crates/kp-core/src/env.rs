//! The environment variables of this crate, read in one place, so that tests pass values instead of setting variables.
//! Backends read their own; `docs/environment.md` lists all.

use std::{env, ffi::OsString, path::PathBuf};

/// What the environment says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Env {
    /// `KP_DEVICE`: a backend (`cpu`), one device of it (`nvidia:1`), or part of a device's name.
    pub device: Option<String>,
    /// Where wisdom is kept: `KP_WISDOM`, else `kp/wisdom` in the user's cache folder. `None` keeps it in memory only.
    pub wisdom: Option<PathBuf>,
}

impl Env {
    /// What this process was started with.
    pub fn process() -> Self {
        Self::read(|name| env::var_os(name))
    }

    /// The same from any source of variables. An empty `KP_DEVICE` is none; an empty `KP_WISDOM` means memory only.
    pub fn read(var: impl Fn(&str) -> Option<OsString>) -> Self {
        let set = |name| var(name).filter(|value| !value.is_empty());
        // The specification of cache folders ignores relative ones.
        let cache = set("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let cache = cache.or_else(|| set("HOME").map(|home| PathBuf::from(home).join(".cache")));
        let wisdom = match var("KP_WISDOM") {
            Some(path) if path.is_empty() => None,
            Some(path) => Some(PathBuf::from(path)),
            None => cache.map(|cache| cache.join("kp").join("wisdom")),
        };
        Self { device: set("KP_DEVICE").map(|name| name.to_string_lossy().into_owned()), wisdom }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(vars: &[(&str, &str)]) -> Env {
        Env::read(|name| vars.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()))
    }

    #[test]
    fn wisdom_has_one_place() {
        let wisdom = |vars: &[_]| read(vars).wisdom.map(|path| path.display().to_string());
        assert_eq!(wisdom(&[]), None);
        assert_eq!(wisdom(&[("HOME", "/h")]).as_deref(), Some("/h/.cache/kp/wisdom"));
        assert_eq!(wisdom(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")]).as_deref(), Some("/x/kp/wisdom"));
        assert_eq!(wisdom(&[("HOME", "/h"), ("XDG_CACHE_HOME", "x")]).as_deref(), Some("/h/.cache/kp/wisdom"));
        assert_eq!(wisdom(&[("HOME", "/h"), ("KP_WISDOM", "w")]).as_deref(), Some("w"));
        assert_eq!(wisdom(&[("HOME", "/h"), ("KP_WISDOM", "")]), None);
    }

    #[test]
    fn an_empty_device_is_no_choice() {
        assert_eq!(read(&[("KP_DEVICE", "")]).device, None);
        assert_eq!(read(&[("KP_DEVICE", "cpu")]).device.as_deref(), Some("cpu"));
    }
}
