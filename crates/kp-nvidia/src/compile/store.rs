//! Cubins on disk: one file each, named by its key, written whole or not at all.
//!
//! Nothing found here is believed: a file that is cut short, altered, of another version or another key counts as absent,
//! and the next write replaces it. Nothing that goes wrong here is an error either: without the folder, kp compiles.
//!
//! ```text
//! bytes 0..8     "kp cubin"
//! bytes 8..40    key
//! bytes 40..72   SHA-256 of what follows
//! bytes 72..80   length of the cubin, little endian
//! then           the cubin, and after it the compiler's log
//! ```

use super::{Compiled, Key};
use kp_hal::cache;
use sha2::{Digest, Sha256};
use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, SystemTime},
};

/// A folder of cubins, shared by processes; private to one user.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    most_bytes: u64,
    /// Writing failed: said once, then left alone.
    gave_up: AtomicBool,
}

/// Largest folder, in bytes. A cubin has some 50 kB.
pub const MOST_BYTES: u64 = 512 << 20;

/// Largest file that is read, in bytes.
const MOST_ENTRY_BYTES: u64 = 64 << 20;

const MAGIC: &[u8; 8] = b"kp cubin";
const HEADER: usize = 80;

impl Store {
    /// In the user's cache folder: `KP_CACHE_DIR`, else `kp` in `XDG_CACHE_HOME` or its default.
    ///
    /// `None` if `KP_CACHE_DIR` is empty, there is no such place, or the folder cannot be trusted, which is logged.
    pub fn process() -> Option<Self> {
        Self::open(&cache::home()?.join("cubin"))
    }

    /// In `folder`, made if it is missing. `None`, with a warning, if it cannot be made or others may write to it.
    pub fn open(folder: &Path) -> Option<Self> {
        Self::bounded(folder, MOST_BYTES)
    }

    pub(super) fn bounded(folder: &Path, most_bytes: u64) -> Option<Self> {
        match cache::make_private(folder) {
            Ok(()) => Some(Self { folder: folder.to_owned(), most_bytes, gave_up: AtomicBool::new(false) }),
            Err(why) => {
                tracing::warn!(folder = %folder.display(), %why, "compiled kernels are not kept: set KP_CACHE_DIR");
                None
            }
        }
    }

    /// What is kept under `key`, if it is whole.
    pub fn read(&self, key: &Key) -> Option<Compiled> {
        let path = self.path(key);
        let read = || -> io::Result<Compiled> {
            let file = File::open(&path)?;
            let mut bytes = Vec::new();
            (&file).take(MOST_ENTRY_BYTES).read_to_end(&mut bytes)?;
            let compiled = decode(key, &bytes)?;
            touch(&file);
            Ok(compiled)
        };
        match read() {
            Ok(compiled) => Some(compiled),
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => None,
            Err(why) => {
                tracing::warn!(path = %path.display(), %why, "a kept kernel is compiled again");
                None
            }
        }
    }

    /// Keeps `compiled` under `key`, and removes what was not used for longest if the folder grew too large.
    pub fn write(&self, key: &Key, compiled: &Compiled) {
        if self.gave_up.load(Ordering::Relaxed) {
            return;
        }
        if let Err(why) = cache::replace(&self.path(key), &encode(key, compiled)).and_then(|()| self.prune()) {
            self.gave_up.store(true, Ordering::Relaxed);
            tracing::warn!(folder = %self.folder.display(), %why, "compiled kernels are not kept from now on");
        }
    }

    /// Removes files, the longest unused first, until the folder is a quarter below its bound; and what crashes left.
    fn prune(&self) -> io::Result<()> {
        let now = SystemTime::now();
        let (mut files, mut total) = (Vec::new(), 0);
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            // Another process may have removed it since.
            let Ok(about) = fs::symlink_metadata(&path) else { continue };
            let used = about.modified()?;
            let age = now.duration_since(used).unwrap_or_default();
            if path.extension().is_some_and(|extension| extension == cache::UNFINISHED) {
                if age > ABANDONED {
                    drop(fs::remove_file(&path));
                }
                continue;
            }
            total += about.len();
            files.push((used, about.len(), path));
        }
        if total <= self.most_bytes {
            return Ok(());
        }
        files.sort();
        for (_, bytes, path) in files {
            if total <= self.most_bytes / 4 * 3 {
                break;
            }
            // Whoever reads it now keeps the file open and reads on.
            drop(fs::remove_file(&path));
            total -= bytes;
        }
        Ok(())
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.folder.join(key.to_string())
    }
}

/// After this time, a temporary file belongs to a process that ended while writing.
const ABANDONED: Duration = Duration::from_secs(3600);

/// Marks the file as used, not more than once an hour.
fn touch(file: &File) {
    let now = SystemTime::now();
    let old = |used: SystemTime| now.duration_since(used).is_ok_and(|age| age > Duration::from_secs(3600));
    if file.metadata().and_then(|about| about.modified()).is_ok_and(old) {
        // A folder that may only be read is not pruned by us either.
        drop(file.set_modified(now));
    }
}

fn encode(key: &Key, compiled: &Compiled) -> Vec<u8> {
    let mut body = (compiled.cubin.len() as u64).to_le_bytes().to_vec();
    body.extend_from_slice(&compiled.cubin);
    body.extend_from_slice(compiled.log.as_bytes());
    let sum: [u8; 32] = Sha256::digest(&body).into();
    [&MAGIC[..], &key.0, &sum, &body].concat()
}

fn decode(key: &Key, bytes: &[u8]) -> io::Result<Compiled> {
    let bad = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    if bytes.len() < HEADER {
        return Err(bad(format!("expected at least {HEADER} bytes, got {}", bytes.len())));
    }
    let (magic, rest) = bytes.split_at(MAGIC.len());
    let (found, rest) = rest.split_at(32);
    let (sum, body) = rest.split_at(32);
    if magic != MAGIC {
        return Err(bad("not a kept kernel".to_owned()));
    }
    if found != key.0 {
        return Err(bad("it belongs to another key".to_owned()));
    }
    if Sha256::digest(body).as_slice() != sum {
        return Err(bad(format!("the checksum of its {} bytes is wrong", bytes.len())));
    }
    let (length, body) = body.split_at(8);
    let length = u64::from_le_bytes(length.try_into().expect("split at 8"));
    let split = usize::try_from(length).ok().and_then(|length| body.split_at_checked(length));
    let (cubin, log) = split.ok_or_else(|| bad(format!("a cubin of {length} bytes in {}", body.len())))?;
    let log = std::str::from_utf8(log).map_err(|why| bad(why.to_string()))?;
    Ok(Compiled { cubin: cubin.to_vec(), log: log.to_owned() })
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
