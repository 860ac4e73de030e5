//! The folder of what backends can make again: who may write there, and files that are whole or absent.
//!
//! What is found there goes to drivers as code, so a folder that others may write to is refused.

use std::{
    env,
    ffi::OsString,
    fs::{self, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU64, Ordering},
};

/// How files that are being written end, until they are renamed.
pub const UNFINISHED: &str = "tmp";

/// kp's folder in the user's cache folder: `KP_CACHE_DIR`, else `kp` in `XDG_CACHE_HOME` or its default. `None` if `KP_CACHE_DIR` is
/// empty or there is no such place.
pub fn home() -> Option<PathBuf> {
    home_by(|name| env::var_os(name))
}

fn home_by(var: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name| var(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(folder) = var("KP_CACHE_DIR") {
        return Some(PathBuf::from(folder)).filter(|folder| !folder.as_os_str().is_empty());
    }
    let cache = if cfg!(windows) {
        set("LOCALAPPDATA")
    } else {
        // The specification of cache folders ignores relative ones.
        let stated = set("XDG_CACHE_HOME").filter(|path| path.is_absolute());
        stated.or_else(|| set("HOME").map(|home| home.join(".cache")))
    };
    cache.map(|cache| cache.join("kp"))
}

/// Makes the folder and what is above it, or checks that nobody else can put files into the one that is there.
///
/// # Errors
/// `PermissionDenied` if others can; what the system says.
#[cfg(unix)]
pub fn make_private(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let about = fs::metadata(folder)?;
    let refused = |why| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    if about.mode() & 0o022 != 0 {
        return refused(format!("others may write to it: its mode is {:03o}, expected 700", about.mode() & 0o777));
    }
    // The owner of a process's own entry in /proc is its user; systems without it have only the check above.
    match fs::metadata("/proc/self") {
        Ok(process) if process.uid() != about.uid() => {
            refused(format!("it belongs to user {}, and this process to {}", about.uid(), process.uid()))
        }
        _ => Ok(()),
    }
}

/// Makes the folder and what is above it; folders below a user's profile are the user's own.
///
/// # Errors
/// What the system says.
#[cfg(not(unix))]
pub fn make_private(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)
}

/// Writes `file` for this user alone, so that a reader sees all of it, or what was there before. Not synced: what a crash leaves is
/// found out by whoever checks what it reads.
///
/// # Errors
/// What the system says; nothing of the attempt stays.
pub fn replace(file: &Path, bytes: &[u8]) -> io::Result<()> {
    static WRITES: AtomicU64 = AtomicU64::new(0);
    let write = WRITES.fetch_add(1, Ordering::Relaxed);
    let unfinished = file.with_added_extension(format!("{}.{write}.{UNFINISHED}", process::id()));
    let write = || {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        options.open(&unfinished)?.write_all(bytes)?;
        fs::rename(&unfinished, file)
    };
    write().inspect_err(|_| drop(fs::remove_file(&unfinished)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_names_the_folder() {
        let home = |vars: &[(&str, &str)]| {
            home_by(|name| vars.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()))
                .map(|path| path.to_str().expect("it is text").to_owned())
        };
        assert_eq!(home(&[("KP_CACHE_DIR", "/k"), ("HOME", "/h")]).as_deref(), Some("/k"));
        assert_eq!(home(&[("KP_CACHE_DIR", ""), ("HOME", "/h")]), None, "empty turns it off");
        if cfg!(unix) {
            assert_eq!(home(&[("HOME", "/h")]).as_deref(), Some("/h/.cache/kp"));
            assert_eq!(home(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")]).as_deref(), Some("/x/kp"));
            assert_eq!(home(&[("HOME", "/h"), ("XDG_CACHE_HOME", "x")]).as_deref(), Some("/h/.cache/kp"));
        }
        assert_eq!(home(&[]), None);
    }

    /// A folder of this test's, gone with it.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            Self(env::temp_dir().join(format!("kp-hal-{name}-{}", process::id())))
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn files_are_written_whole() {
        let scratch = Scratch::new("whole");
        let folder = scratch.0.join("a/b");
        make_private(&folder).expect("a temporary folder");
        let file = folder.join("c.bin");
        for bytes in [b"one".as_slice(), b"two"] {
            replace(&file, bytes).expect("the folder is ours");
            assert_eq!(fs::read(&file).expect("just written"), bytes);
        }
        assert_eq!(fs::read_dir(&folder).expect("just made").count(), 1, "nothing is left beside it");
        assert!(replace(&folder.join("no/such"), b"three").is_err());
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_that_others_write_to_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let scratch = Scratch::new("private");
        make_private(&scratch.0).expect("a temporary folder");
        let file = scratch.0.join("file");
        replace(&file, b"one").expect("the folder is ours");
        let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
        assert_eq!((mode(&scratch.0), mode(&file)), (0o700, 0o600));
        fs::set_permissions(&scratch.0, fs::Permissions::from_mode(0o770)).expect("it is ours");
        let refused = make_private(&scratch.0).expect_err("anybody in the group could have put anything there");
        assert!(refused.to_string().contains("its mode is 770, expected 700"), "{refused}");
    }
}
