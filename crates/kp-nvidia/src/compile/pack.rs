//! Cubins made beforehand: one file for many kernels and architectures, embedded in the program.
//!
//! ```text
//! bytes 0..8   "kp pack1"
//! bytes 8..12  number of entries, little endian like all numbers here
//! then         per entry, by key: key (32), offset of its data in the file (8), length there (8), length of the cubin (8)
//! then         the data: each cubin compressed with DEFLATE, which divides its size by about four
//! ```
//! An entry's key holds its source, options and architecture, so an entry of an older source is never found.

use super::Key;
use std::collections::BTreeMap;

const MAGIC: &[u8; 8] = b"kp pack1";
const HEADER: usize = 12;
const ENTRY: usize = 56;

/// A pack in memory.
#[derive(Clone, Copy, Debug)]
pub struct Pack<'a> {
    bytes: &'a [u8],
    /// The table of entries, whole.
    table: &'a [u8],
}

impl<'a> Pack<'a> {
    /// Reads the beginning of a pack. `None` if it is none, or the table is cut short.
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        let (header, rest) = bytes.split_at_checked(HEADER)?;
        let count = u32::from_le_bytes(header.strip_prefix(MAGIC)?.try_into().ok()?);
        let table = rest.get(..ENTRY.checked_mul(count.try_into().ok()?)?)?;
        Some(Self { bytes, table })
    }

    /// How many cubins it holds.
    pub fn len(&self) -> usize {
        self.table.len() / ENTRY
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// The cubin with this key, decompressed. `None` if there is none, or its data are damaged.
    pub fn find(&self, key: &Key) -> Option<Vec<u8>> {
        let entries: &[[u8; ENTRY]] = self.table.as_chunks().0;
        let entry = &entries[entries.binary_search_by(|entry| entry[..32].cmp(&key.0)).ok()?];
        let number = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().expect("8 bytes")).try_into().ok();
        let (start, stored, length): (usize, usize, usize) = (number(32)?, number(40)?, number(48)?);
        let data = self.bytes.get(start..start.checked_add(stored)?)?;
        let cubin = miniz_oxide::inflate::decompress_to_vec_with_limit(data, length).ok()?;
        (cubin.len() == length).then_some(cubin)
    }
}

/// A pack of these cubins: what [`Pack::new`] reads.
pub fn pack(cubins: &BTreeMap<Key, Vec<u8>>) -> Vec<u8> {
    let count = u32::try_from(cubins.len()).expect("fewer than 2^32 kernels");
    let mut bytes = [&MAGIC[..], &count.to_le_bytes()].concat();
    let data = HEADER + ENTRY * cubins.len();
    let (mut table, mut stored) = (Vec::new(), Vec::new());
    for (key, cubin) in cubins {
        let small = miniz_oxide::deflate::compress_to_vec(cubin, LEVEL);
        table.extend_from_slice(&key.0);
        for number in [data + stored.len(), small.len(), cubin.len()] {
            table.extend_from_slice(&(number as u64).to_le_bytes());
        }
        stored.extend_from_slice(&small);
    }
    bytes.extend_from_slice(&table);
    bytes.extend_from_slice(&stored);
    bytes
}

/// Of 1 to 10; the highest costs a second for hundreds of cubins, once.
const LEVEL: u8 = 9;

/// The pack in this program, if it was built with the feature `pack`.
pub fn embedded() -> Option<&'static Pack<'static>> {
    #[cfg(feature = "pack")]
    {
        static BYTES: &[u8] = include_bytes!(env!(
            "KP_NVIDIA_PACK",
            "the feature `pack` embeds the file that KP_NVIDIA_PACK names; `cargo xtask kernels` makes it"
        ));
        static PACK: std::sync::LazyLock<Option<Pack<'static>>> = std::sync::LazyLock::new(|| {
            let pack = Pack::new(BYTES);
            if pack.is_none() {
                tracing::warn!(bytes = BYTES.len(), "the embedded file is no pack of kernels");
            }
            pack
        });
        PACK.as_ref()
    }
    #[cfg(not(feature = "pack"))]
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> Key {
        Key([byte; 32])
    }

    #[test]
    fn what_is_packed_is_found() {
        let cubins: BTreeMap<Key, Vec<u8>> =
            [(key(7), vec![1; 1000]), (key(3), Vec::new()), (key(9), (0..=255).collect())].into();
        let bytes = pack(&cubins);
        let pack = Pack::new(&bytes).expect("it was just made");
        assert_eq!(pack.len(), 3);
        for (key, cubin) in &cubins {
            assert_eq!(pack.find(key).as_ref(), Some(cubin));
        }
        assert_eq!(pack.find(&key(8)), None, "a stale or foreign key is not there");
    }

    #[test]
    fn an_empty_pack_is_a_pack() {
        let bytes = pack(&BTreeMap::new());
        assert!(Pack::new(&bytes).is_some_and(|pack| pack.is_empty() && pack.find(&key(0)).is_none()));
    }

    /// Whatever is cut off or altered, nothing panics, and no cubin comes out that did not go in.
    #[test]
    fn damage_is_no_panic() {
        let cubin: Vec<u8> = (0..2000_u32).map(|i| ((i * i) >> 3) as u8).collect();
        let bytes = pack(&[(key(7), cubin.clone())].into());
        for length in 0..bytes.len() {
            let found = Pack::new(&bytes[..length]).and_then(|pack| pack.find(&key(7)));
            assert_eq!(found, None, "cut to {length} bytes");
        }
        for at in 0..HEADER + ENTRY {
            let mut bytes = bytes.clone();
            bytes[at] ^= 0x80;
            let found = Pack::new(&bytes).and_then(|pack| pack.find(&key(7)));
            assert!(found.is_none_or(|found| found == cubin), "byte {at} altered");
        }
    }

    /// In a program that embeds a pack: each entry is a build of today's sources, and comes before any compiler.
    #[cfg(feature = "pack")]
    #[test]
    fn the_embedded_pack_serves_this_crate() {
        use crate::compile::{ARCHS, builds, cubin};
        let pack = embedded().expect("KP_NVIDIA_PACK names a pack");
        let mut served = std::collections::BTreeSet::new();
        for (arch, listed) in ARCHS.iter().flat_map(|arch| builds(arch).into_iter().map(move |listed| (arch, listed))) {
            let key = Key::new(&listed.build, arch);
            if let Some(found) = pack.find(&key) {
                assert!(found.starts_with(b"\x7fELF"), "{listed} for {arch}");
                assert!(cubin(&listed.build, arch).is_ok_and(|cubin| cubin == found), "{listed} for {arch}");
                served.insert(key);
            }
        }
        assert!(
            !served.is_empty() && served.len() == pack.len(),
            "{} of {} entries are served",
            served.len(),
            pack.len()
        );
    }
}
