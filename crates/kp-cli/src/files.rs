//! Files that are whole or not there.

use anyhow::{Context, Result, bail};
use std::{
    ffi::OsString,
    fs::{self, TryLockError},
    io::Write,
    path::{Path, PathBuf},
    process,
};

/// Writes `text` to `path` by way of a file beside it, so that a reader sees the old file or the new one, never a part.
///
/// # Errors
/// The path, and what the system said. The file beside it is gone then.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    let beside = with_suffix(path, &format!(".{}.tmp", process::id()));
    let written = fs::File::create(&beside)
        .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        // The file may not even have been made; what matters is the first error.
        let _ = fs::remove_file(&beside);
    }
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Refuses a path that could not be written to at the end of a long run.
///
/// # Errors
/// The folder that is missing or may not be written to, or the path that is a folder.
pub(crate) fn check_writable(path: &Path) -> Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    anyhow::ensure!(parent.is_dir(), "cannot write {}: {} is no folder", path.display(), parent.display());
    anyhow::ensure!(!path.is_dir(), "cannot write {}: it is a folder", path.display());
    let beside = with_suffix(path, &format!(".{}.tmp", process::id()));
    fs::File::create(&beside)
        .and_then(|_| fs::remove_file(&beside))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// A file that grows by whole lines and gets its name when it is complete. Until then, and for good if the program is
/// interrupted, it is called `NAME.part`.
pub(crate) struct Lines {
    file: fs::File,
    part: PathBuf,
    path: PathBuf,
}

impl Lines {
    /// Starts the file, making its folder.
    ///
    /// # Errors
    /// The path, and what the system said, or that another process is writing it.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        let part = with_suffix(path, ".part");
        let cannot = || format!("cannot write {}", part.display());
        // Emptied only once it is locked: it may be another's, and growing.
        let file = fs::File::options().create(true).truncate(false).write(true).open(&part).with_context(cannot)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => bail!("{}: another process is writing it", cannot()),
            // Some file systems have no locks: two writers are rarer there than users.
            Ok(()) | Err(TryLockError::Error(_)) => file.set_len(0).with_context(cannot)?,
        }
        Ok(Self { file, part, path: path.to_owned() })
    }

    /// Adds a line, in one write.
    ///
    /// # Errors
    /// The path, and what the system said.
    pub(crate) fn push(&mut self, line: &str) -> Result<()> {
        debug_assert!(!line.contains('\n'), "a line holds no line break");
        self.file
            .write_all(format!("{line}\n").as_bytes())
            .with_context(|| format!("cannot write {}", self.part.display()))
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// The path, and what the system said.
    pub(crate) fn finish(self) -> Result<PathBuf> {
        self.file
            .sync_all()
            .and_then(|()| fs::rename(&self.part, &self.path))
            .with_context(|| format!("cannot write {}", self.path.display()))?;
        Ok(self.path)
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::env;

    fn folder(name: &str) -> PathBuf {
        let folder = env::temp_dir().join(format!("kp-files-{}-{name}", process::id()));
        fs::create_dir_all(&folder).expect("the temporary folder can be made");
        folder
    }

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_beside_it() {
        let folder = folder("old");
        let path = folder.join("report.html");
        write(&path, "old").expect("it can be written");
        let blocked = folder.join("blocked");
        fs::create_dir_all(blocked.join("full")).expect("a folder that rename cannot replace");
        let error = write(&blocked, "new").expect_err("a folder is in the way").to_string();
        assert!(error.starts_with("cannot write "), "{error}");
        assert_eq!(fs::read_to_string(&path).expect("it is there"), "old");
        assert_eq!(fs::read_dir(&folder).expect("it can be listed").count(), 2);
        fs::remove_dir_all(folder).expect("it can be removed");
    }

    #[test]
    fn lines_have_their_name_only_when_complete() {
        let folder = folder("lines");
        let path = folder.join("deep/x.jsonl");
        let mut lines = Lines::create(&path).expect("it can be made");
        lines.push("{}").expect("it can be written");
        assert!(!path.exists() && with_suffix(&path, ".part").exists());
        let second = Lines::create(&path).map(|_| ()).expect_err("it is being written").to_string();
        assert!(second.ends_with("x.jsonl.part: another process is writing it"), "{second}");
        lines.finish().expect("it can be renamed");
        assert_eq!(fs::read_to_string(&path).expect("it is there"), "{}\n");
        fs::remove_dir_all(folder).expect("it can be removed");
    }

    #[test]
    fn paths_that_cannot_be_are_refused_early() {
        let message = |path: &str| check_writable(Path::new(path)).map_err(|e| e.to_string());
        assert_eq!(message("report.html"), Ok(()));
        assert_eq!(message("/no/such/x.html"), Err("cannot write /no/such/x.html: /no/such is no folder".into()));
        assert_eq!(message("/"), Err("cannot write /: it is a folder".into()));
    }
}
