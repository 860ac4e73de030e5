//! Free blocks kept for the next allocation of their size: programs ask for the same sizes again and again, and even the
//! driver's pool takes as long as a launch; pinning host memory takes a thousand times that.

use super::Block;
use kp_hal::MemoryKind;
use std::collections::HashMap;

/// Free blocks of one kind of memory, by size.
pub(super) struct Idle {
    kind: MemoryKind,
    by_bytes: HashMap<u64, Vec<u64>>,
    bytes: u64,
    limit: u64,
}

impl Idle {
    /// Keeps at most `limit` bytes.
    pub(super) fn new(kind: MemoryKind, limit: u64) -> Self {
        Self { kind, by_bytes: HashMap::new(), bytes: 0, limit }
    }

    /// Bytes kept.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A block of exactly `bytes`.
    pub(super) fn take(&mut self, bytes: u64) -> Option<Block> {
        let addr = self.by_bytes.get_mut(&bytes)?.pop()?;
        self.bytes -= bytes;
        Some(Block { addr, bytes, kind: self.kind })
    }

    /// Keeps `block`, or gives it back if there are enough.
    pub(super) fn keep(&mut self, block: Block) -> Result<(), Block> {
        if self.bytes + block.bytes > self.limit {
            return Err(block);
        }
        self.bytes += block.bytes;
        self.by_bytes.entry(block.bytes).or_default().push(block.addr);
        Ok(())
    }

    /// Everything kept.
    pub(super) fn drain(&mut self) -> Vec<Block> {
        self.bytes = 0;
        let kind = self.kind;
        let blocks = |(bytes, list): (u64, Vec<u64>)| list.into_iter().map(move |addr| Block { addr, bytes, kind });
        self.by_bytes.drain().flat_map(blocks).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_found_by_its_size_up_to_the_limit() {
        let mut idle = Idle::new(MemoryKind::Pinned, 1000);
        let block = |addr, bytes| Block { addr, bytes, kind: MemoryKind::Pinned };
        assert_eq!(idle.keep(block(1, 256)), Ok(()));
        assert_eq!(idle.keep(block(2, 512)), Ok(()));
        assert_eq!(idle.keep(block(3, 256)), Err(block(3, 256)));
        assert_eq!((idle.take(300), idle.take(512), idle.take(512)), (None, Some(block(2, 512)), None));
        assert_eq!(idle.keep(block(4, 256)), Ok(()));
        assert_eq!(idle.bytes(), 512);
        assert_eq!(idle.drain().len(), 2);
        assert_eq!((idle.bytes(), idle.take(256)), (0, None));
    }
}
