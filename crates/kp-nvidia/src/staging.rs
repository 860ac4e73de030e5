//! Pinned memory for uploads on their way: the driver copies from pageable memory in step with the stream once there is
//! more of it than it has room for, which blocks the host; from pinned memory it copies when the stream comes to it.

use crate::{
    driver::{Context, Event, NOT_READY},
    memory::{Held, Memory},
};
use kp_hal::{Allocation, MemoryKind, Result};
use std::{
    collections::VecDeque,
    ptr::NonNull,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Bytes of one slot: copying into one takes some ten times as long as handing it to the driver.
pub(crate) const SLOT_BYTES: usize = 1 << 20;

/// Slots of one device: so many bytes may be under way before an upload waits for the device.
const SLOTS: usize = 64;

/// The slots of one device, shared by its queues. Made when first needed.
pub(crate) struct Staging {
    context: Arc<Context>,
    memory: Arc<Memory>,
    slots: Mutex<Slots>,
}

#[derive(Default)]
struct Slots {
    /// The one given back first comes first.
    free: VecDeque<Slot>,
    /// Free or lent.
    made: usize,
}

/// A piece of pinned memory, and the event behind the last copy from it.
pub(crate) struct Slot {
    held: Held,
    host: NonNull<u8>,
    copied: Event,
}

// SAFETY: the memory belongs to `held`, which is `Send`; the pointer is only where the host sees it.
unsafe impl Send for Slot {}

impl Staging {
    pub(crate) fn new(context: Arc<Context>, memory: Arc<Memory>) -> Self {
        Self { context, memory, slots: Mutex::default() }
    }

    /// Lends a slot from which nothing is being copied.
    ///
    /// # Errors
    /// `OutOfMemory` or `Driver`, making it.
    pub(crate) fn lend(&self) -> Result<Slot> {
        let mut slots = self.slots();
        let oldest_is_done = slots.free.front().is_some_and(|slot| slot.copied.query().code != NOT_READY);
        if !oldest_is_done && slots.made < SLOTS {
            slots.made += 1;
            drop(slots);
            return self.make().inspect_err(|_| self.slots().made -= 1);
        }
        match slots.free.pop_front() {
            Some(slot) => {
                drop(slots);
                // A failed wait means a dead context, which the copy will tell.
                let _ = slot.copied.synchronize();
                Ok(slot)
            }
            // All are lent, to as many threads: one more does no harm.
            None => {
                slots.made += 1;
                drop(slots);
                self.make().inspect_err(|_| self.slots().made -= 1)
            }
        }
    }

    fn make(&self) -> Result<Slot> {
        let held = self.memory.alloc(SLOT_BYTES as u64, MemoryKind::Pinned)?;
        let host = held.host().expect("pinned memory is the host's");
        Ok(Slot { held, host, copied: Event::untimed(&self.context)? })
    }

    /// Takes a slot back, whose event is behind the copy from it.
    pub(crate) fn take_back(&self, slot: Slot) {
        self.slots().free.push_back(slot);
    }

    /// Drops a slot whose event is not behind the copy from it. The memory comes back when every queue is past what it was told.
    pub(crate) fn write_off(&self, slot: Slot) {
        drop(slot);
        self.slots().made -= 1;
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// The device's address of the first byte.
    pub(crate) fn addr(&self) -> u64 {
        self.held.addr()
    }

    /// The event to put behind the copy.
    pub(crate) fn copied(&self) -> &Event {
        &self.copied
    }

    /// Writes `bytes`, at most [`SLOT_BYTES`], to the front.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= SLOT_BYTES, "{} bytes into a slot", bytes.len());
        // SAFETY: the slot has room for them, and nothing is being copied from it while it is lent and not handed on.
        unsafe { self.host.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
    }
}
