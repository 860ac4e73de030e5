//! Blocks on their way back: noted when dropped, then behind fences, then free.

use super::Block;
use std::collections::VecDeque;

/// Something that queues pass: an event, or a test's.
pub(super) trait Passing {
    /// Whether all work before it is done.
    fn is_passed(&self) -> bool;
    /// Blocks the host until it is.
    fn wait(&self);
}

/// What was dropped and is not free.
pub(super) struct Dropped<F> {
    noted: Vec<Block>,
    noted_bytes: u64,
    /// Oldest first.
    fenced: VecDeque<Batch<F>>,
    fenced_bytes: u64,
}

/// Blocks that are free when all fences are passed.
pub(super) struct Batch<F> {
    pub(super) blocks: Vec<Block>,
    pub(super) fences: Vec<F>,
    bytes: u64,
}

/// A fence costs about as much as a launch, so small blocks share one: this many,
const NOTED: usize = 32;
/// or this many bytes.
const NOTED_BYTES: u64 = 16 << 20;

impl<F: Passing> Dropped<F> {
    pub(super) fn new() -> Self {
        Self { noted: Vec::new(), noted_bytes: 0, fenced: VecDeque::new(), fenced_bytes: 0 }
    }

    /// Notes a block that was dropped.
    pub(super) fn note(&mut self, block: Block) {
        self.noted_bytes += block.bytes;
        self.noted.push(block);
    }

    /// Whether nothing was noted since the last fence.
    pub(super) fn is_fenced(&self) -> bool {
        self.noted.is_empty()
    }

    /// Whether enough was noted to be worth a fence.
    pub(super) fn wants_fence(&self) -> bool {
        self.noted.len() >= NOTED || self.noted_bytes >= NOTED_BYTES
    }

    /// Puts what was noted behind `fences`: one for each queue that was busy since.
    pub(super) fn fence(&mut self, fences: Vec<F>) {
        let (blocks, bytes) = (std::mem::take(&mut self.noted), std::mem::take(&mut self.noted_bytes));
        self.fenced_bytes += bytes;
        self.fenced.push_back(Batch { blocks, fences, bytes });
    }

    /// The oldest batch, if its fences are passed, or if more than `backlog` bytes wait for theirs: then after waiting.
    pub(super) fn take(&mut self, backlog: u64) -> Option<Batch<F>> {
        let oldest = self.fenced.front()?;
        if self.fenced_bytes > backlog {
            oldest.fences.iter().for_each(F::wait);
        } else if !oldest.fences.iter().all(F::is_passed) {
            return None;
        }
        self.fenced_bytes -= oldest.bytes;
        self.fenced.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kp_hal::MemoryKind;
    use std::{cell::Cell, rc::Rc};

    /// A fence that is passed when the test, or who waits, says so.
    #[derive(Clone, Default)]
    struct Gate(Rc<Cell<bool>>);

    impl Passing for Gate {
        fn is_passed(&self) -> bool {
            self.0.get()
        }
        fn wait(&self) {
            self.0.set(true);
        }
    }

    fn block(addr: u64) -> Block {
        Block { addr, bytes: 100, kind: MemoryKind::Device }
    }

    fn taken(dropped: &mut Dropped<Gate>, backlog: u64) -> Vec<u64> {
        std::iter::from_fn(|| dropped.take(backlog)).flat_map(|batch| batch.blocks).map(|block| block.addr).collect()
    }

    #[test]
    fn a_block_is_free_when_every_queue_is_past_it() {
        let mut dropped = Dropped::new();
        let (a, b) = (Gate::default(), Gate::default());
        dropped.note(block(1));
        dropped.note(block(2));
        dropped.fence(vec![a.clone(), b.clone()]);
        dropped.note(block(3));
        dropped.fence(vec![a.clone()]);
        assert_eq!(taken(&mut dropped, u64::MAX), [0; 0]);
        a.0.set(true);
        // The second batch waits for the first: they go in the order in which they came.
        assert_eq!(taken(&mut dropped, u64::MAX), [0; 0]);
        b.0.set(true);
        assert_eq!(taken(&mut dropped, u64::MAX), [1, 2, 3]);
    }

    #[test]
    fn a_backlog_is_waited_for_from_its_old_end() {
        let mut dropped = Dropped::new();
        let gates: Vec<Gate> = (0..5).map(|_| Gate::default()).collect();
        for (gate, addr) in gates.iter().zip(0..) {
            dropped.note(block(addr));
            dropped.fence(vec![gate.clone()]);
        }
        assert_eq!(taken(&mut dropped, 250), [0, 1, 2]);
        assert!(!gates[3].is_passed());
        assert_eq!(taken(&mut dropped, 0), [3, 4]);
    }

    #[test]
    fn small_blocks_share_a_fence() {
        let mut dropped = Dropped::<Gate>::new();
        assert!(dropped.is_fenced());
        for addr in 0..NOTED as u64 {
            assert!(!dropped.wants_fence());
            dropped.note(block(addr));
        }
        assert!(dropped.wants_fence() && !dropped.is_fenced());
        dropped.fence(Vec::new());
        assert!(!dropped.wants_fence());
        dropped.note(Block { bytes: NOTED_BYTES, ..block(0) });
        assert!(dropped.wants_fence());
    }
}
