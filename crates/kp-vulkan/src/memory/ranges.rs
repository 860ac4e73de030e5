//! Which ranges of a block are free.

use std::collections::BTreeMap;

/// The free ranges of one block: start → length, no two of them touching.
#[derive(Debug)]
pub(super) struct Ranges {
    free: BTreeMap<u64, u64>,
    bytes: u64,
    used: u64,
}

impl Ranges {
    /// All of `bytes` free.
    pub(super) fn new(bytes: u64) -> Self {
        Self { free: BTreeMap::from([(0, bytes)]), bytes, used: 0 }
    }

    /// The start of `bytes` that are now taken: of the smallest range that holds them, so that large ones stay large.
    pub(super) fn take(&mut self, bytes: u64) -> Option<u64> {
        let fits = self.free.iter().filter(|&(_, &length)| length >= bytes);
        let (&start, &length) = fits.min_by_key(|&(_, &length)| length)?;
        self.free.remove(&start);
        if length > bytes {
            self.free.insert(start + bytes, length - bytes);
        }
        self.used += bytes;
        Some(start)
    }

    /// Frees what `take` gave.
    pub(super) fn give(&mut self, start: u64, bytes: u64) {
        let (mut from, mut to) = (start, start + bytes);
        if let Some((&before, &length)) = self.free.range(..start).next_back() {
            assert!(before + length <= start, "{start} is freed twice");
            if before + length == start {
                self.free.remove(&before);
                from = before;
            }
        }
        if let Some(length) = self.free.remove(&to) {
            to += length;
        }
        self.free.insert(from, to - from);
        self.used -= bytes;
    }

    /// Whether nothing is taken.
    pub(super) fn is_unused(&self) -> bool {
        self.used == 0
    }

    /// Bytes in all.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that are taken.
    pub(super) fn used(&self) -> u64 {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_become_one() {
        let mut ranges = Ranges::new(1024);
        let [a, b, c] = [256, 512, 256].map(|bytes| ranges.take(bytes).expect("there is room"));
        assert_eq!(([a, b, c], ranges.take(1)), ([0, 256, 768], None));
        ranges.give(a, 256);
        ranges.give(c, 256);
        assert_eq!(ranges.take(512), None, "two halves do not touch");
        ranges.give(b, 512);
        assert!(ranges.is_unused());
        assert_eq!(ranges.take(1024), Some(0));
    }

    #[test]
    fn the_tightest_range_is_taken() {
        let mut ranges = Ranges::new(4096);
        let small = ranges.take(512).expect("there is room");
        let _ = ranges.take(256);
        ranges.give(small, 512);
        assert_eq!(ranges.take(512), Some(small), "and not a part of the large rest");
        assert_eq!((ranges.used(), ranges.bytes()), (768, 4096));
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn freeing_twice_is_noticed() {
        let mut ranges = Ranges::new(1024);
        let at = ranges.take(256).expect("there is room");
        let _ = ranges.take(256);
        ranges.give(at, 256);
        ranges.give(at + 128, 128);
    }
}
