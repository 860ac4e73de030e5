//! What a cubin is known by: a hash of everything that it was made from.

use super::{Build, nvrtc::options};
use sha2::{Digest, Sha256};
use std::fmt;

/// SHA-256 over all that decides a cubin. Equal keys mean equal cubins, so nothing else of an entry need be compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub(super) [u8; 32]);

impl Key {
    /// Of a build for one architecture, whatever compiler makes it: what a pack is searched by.
    pub fn new(build: &Build, arch: &str) -> Self {
        let mut hash = Sha256::new();
        let mut field = |text: &str| {
            // With its length before it, no two lists of fields make the same bytes.
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        };
        // Raised when the meaning of an entry changes otherwise than by its options.
        field("kp cubin 1");
        field(build.source.name);
        field(build.source.text);
        field(build.entry);
        for (name, text) in build.source.headers {
            field(name);
            field(text);
        }
        // Headers and options are told apart by an option's dash, which no header's name starts with.
        options(build, arch).for_each(|option| field(&option));
        Self(hash.finalize().into())
    }

    /// Of the same build made by one compiler: what the cache is searched by.
    pub fn by(self, version: (u32, u32)) -> Self {
        let mut hash = Sha256::new();
        hash.update(self.0);
        hash.update(version.0.to_le_bytes());
        hash.update(version.1.to_le_bytes());
        Self(hash.finalize().into())
    }
}

/// 64 hexadecimal digits.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::Source;

    #[test]
    fn everything_changes_the_key() {
        static PLAIN: Source = Source { name: "a.cu", text: "x", headers: &[("h", "y")] };
        static OTHERS: &[Source] = &[
            Source { name: "b.cu", ..PLAIN },
            Source { text: "xx", ..PLAIN },
            Source { headers: &[], ..PLAIN },
            Source { headers: &[("hy", "")], ..PLAIN },
            Source { headers: &[("h", "z")], ..PLAIN },
        ];
        let build = |source: &'static Source| Build { source, entry: "k", defines: vec![("N", "1".to_owned())] };
        let plain = Key::new(&build(&PLAIN), "sm_90a");
        assert_eq!(plain, Key::new(&build(&PLAIN), "sm_90a"));
        let mut keys: Vec<Key> = OTHERS.iter().map(|source| Key::new(&build(source), "sm_90a")).collect();
        keys.push(Key::new(&build(&PLAIN), "sm_90"));
        keys.push(Key::new(&Build { entry: "l", ..build(&PLAIN) }, "sm_90a"));
        keys.push(Key::new(&Build { defines: vec![("N", "2".to_owned())], ..build(&PLAIN) }, "sm_90a"));
        keys.push(Key::new(&Build { defines: Vec::new(), ..build(&PLAIN) }, "sm_90a"));
        keys.push(plain.by((13, 0)));
        keys.push(plain.by((13, 1)));
        keys.push(plain);
        let total = keys.len();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), total);
        assert_eq!(plain.to_string().len(), 64);
    }
}
