//! The wisdom file: read whole, replaced whole, shared by processes.

use super::{Warning, Warnings, Wisdom};
use crate::error::{Error, Result};
use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Largest file that is read, in bytes.
pub const MAX_BYTES: u64 = 16 << 20;

/// Links that are followed from one to the next.
const MAX_LINKS: u32 = 8;

/// How long to wait for another process that is saving.
const PATIENCE: Duration = Duration::from_secs(10);

/// A wisdom file, which need not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    path: PathBuf,
}

impl Store {
    /// The file at `path`; a link is followed, so that saving replaces what it points to, or makes it.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let mut path = path.into();
        for _ in 0..MAX_LINKS {
            let Ok(target) = fs::read_link(&path) else { break };
            path.set_file_name(target);
        }
        Self { path: fs::canonicalize(&path).unwrap_or(path) }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the file holds; nothing if there is none.
    ///
    /// # Errors
    /// `Wisdom` if it cannot be read, is larger than [`MAX_BYTES`], or is something else than wisdom of this version.
    pub fn load(&self) -> Result<(Wisdom, Warnings)> {
        let read = || -> io::Result<(Wisdom, Warnings)> {
            match fs::metadata(&self.path) {
                // Opening a pipe would wait for a writer.
                Ok(about) if !about.is_file() => return Err(invalid("not a regular file")),
                Err(missing) if missing.kind() == io::ErrorKind::NotFound => return Ok(Default::default()),
                Err(error) => return Err(error),
                Ok(_) => {}
            }
            let mut bytes = Vec::new();
            File::open(&self.path)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
            if bytes.len() as u64 > MAX_BYTES {
                return Err(invalid(format!("it may have {MAX_BYTES} bytes, and has more")));
            }
            Wisdom::parse(&bytes).map_err(invalid)
        };
        let (wisdom, warnings) = read().map_err(|why| self.error("read", why))?;
        for warning in &warnings.shown {
            tracing::warn!(path = %self.path.display(), %warning, "wisdom kept out");
        }
        Ok((wisdom, warnings))
    }

    /// As `load`, but whatever is wrong with the file is one more warning: opening an engine never fails for wisdom.
    pub fn load_or_warn(&self) -> (Wisdom, Warnings) {
        self.load().unwrap_or_else(|error| {
            tracing::warn!(%error, "wisdom ignored");
            let mut warnings = Warnings::default();
            warnings.add(Warning { line: 0, text: String::new(), why: error.to_string() });
            (Wisdom::default(), warnings)
        })
    }

    /// Lets `change` work on what the file holds now, then replaces the file with the result and returns it.
    ///
    /// The file is locked against other processes, written beside itself and renamed, so that a reader or a crash
    /// sees the old or the new one, never a part.
    ///
    /// # Errors
    /// `Wisdom` if the folder or file cannot be written, another process holds the lock for 10 s, the result is
    /// larger than [`MAX_BYTES`], or the file is something else than wisdom: then it is left alone.
    pub fn update(&self, change: impl FnOnce(&mut Wisdom)) -> Result<(Wisdom, Warnings)> {
        let _lock = self.lock().map_err(|why| self.error("lock", why))?;
        let (mut wisdom, warnings) = self.load()?;
        change(&mut wisdom);
        self.replace(&wisdom.to_string()).map_err(|why| self.error("write", why))?;
        Ok((wisdom, warnings))
    }

    /// Whether `update` could work, tried as far as the lock: before measuring for minutes what cannot be kept.
    ///
    /// # Errors
    /// As `update`.
    pub fn check_writable(&self) -> Result<()> {
        let _lock = self.lock().map_err(|why| self.error("lock", why))?;
        self.load()?;
        self.probe().map_err(|why| self.error("write", why))
    }

    /// Waits for the lock, which is that of a file beside; it is left there, because removing it would race.
    fn lock(&self) -> io::Result<File> {
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(self.beside("lock"))?;
        let start = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if start.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        format!("another process holds the lock for {PATIENCE:?}"),
                    ));
                }
                Err(TryLockError::Error(none)) if none.kind() == io::ErrorKind::Unsupported => {
                    tracing::warn!(path = %self.path.display(), "this file system has no locks: two savers may race");
                    return Ok(file);
                }
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
    }

    fn replace(&self, text: &str) -> io::Result<()> {
        if text.len() as u64 > MAX_BYTES {
            return Err(invalid(format!("it may have {MAX_BYTES} bytes, and would have {}", text.len())));
        }
        let temporary = self.beside(&format!("{}.tmp", std::process::id()));
        let write = || {
            let mut file = File::create(&temporary)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&temporary, &self.path)
        };
        write().inspect_err(|_| drop(fs::remove_file(&temporary)))
    }

    fn probe(&self) -> io::Result<()> {
        let temporary = self.beside(&format!("{}.tmp", std::process::id()));
        let written = fs::write(&temporary, b"a full disk refuses this");
        drop(fs::remove_file(&temporary));
        written
    }

    /// `wisdom` → `wisdom.lock`, in the same folder.
    fn beside(&self, ending: &str) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(".");
        path.push(ending);
        path.into()
    }

    fn error(&self, act: &'static str, why: io::Error) -> Error {
        Error::Wisdom { act, path: self.path.clone(), why }
    }
}

fn invalid(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
