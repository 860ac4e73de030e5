//! Pinned memory for copies from and to the host, a few slots for each queue.

use crate::{memory::Held, queue::VulkanQueue};
use kp_hal::{Allocation, MemoryKind, Result};
use std::{collections::VecDeque, ptr::NonNull};

/// Bytes of one slot.
pub(crate) const SLOT_BYTES: usize = 1 << 20;

/// Slots of one queue: so many bytes may be under way before a copy waits for the device.
const SLOTS: usize = 16;

/// One queue's slots, the one used last at the end.
#[derive(Default)]
pub(crate) struct Staging(VecDeque<Slot>);

struct Slot {
    held: Held,
    host: NonNull<u8>,
    /// Bytes that copies were given; the rest is free.
    used: usize,
    /// The value behind the last copy.
    until: u64,
    /// Whether the host is still to read what a copy brings, however long that has been done.
    unread: bool,
}

// SAFETY: the memory belongs to `held`, which is `Send`; the pointer is only where the host sees it.
unsafe impl Send for Slot {}

/// A piece of pinned memory that is nobody else's until the queue is past the next submission.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// Where the device sees it.
    pub(crate) addr: u64,
    host: NonNull<u8>,
    bytes: usize,
}

impl VulkanQueue {
    /// A piece of `bytes` bytes, at most [`SLOT_BYTES`], for a copy that the next submission carries. Waits for older copies
    /// when there are too many under way.
    ///
    /// # Errors
    /// `OutOfMemory` or `Driver` making a slot; `Fault`.
    pub(crate) fn place(&mut self, bytes: usize) -> Result<Place> {
        assert!(bytes <= SLOT_BYTES, "{bytes} bytes into a slot");
        let timeline = self.timeline().clone();
        if self.staging.0.back().is_none_or(|slot| SLOT_BYTES - slot.used < bytes) {
            let submitted = timeline.submitted();
            let oldest = self.staging.0.front().filter(|slot| slot.until <= submitted && !slot.unread);
            let again = match oldest.map(|slot| slot.until) {
                None => false,
                Some(until) => {
                    let reached = timeline.has_reached(until);
                    self.checked(reached)? || self.staging.0.len() >= SLOTS
                }
            };
            if again {
                let mut slot = self.staging.0.pop_front().expect("there is an oldest");
                let waited = timeline.wait(slot.until);
                self.checked(waited)?;
                slot.used = 0;
                self.staging.0.push_back(slot);
            } else {
                let held = self.owner().memory_pool().alloc(SLOT_BYTES as u64, MemoryKind::Pinned)?;
                let host = held.host().expect("pinned memory is the host's");
                self.staging.0.push_back(Slot { held, host, used: 0, until: 0, unread: false });
            }
        }
        let slot = self.staging.0.back_mut().expect("one was just made or found");
        let at = slot.used;
        // Copies are fastest from and to whole pieces of 16 bytes.
        slot.used = SLOT_BYTES.min((at + bytes).next_multiple_of(16));
        // SAFETY: the slot is longer than that.
        let host = unsafe { slot.host.add(at) };
        Ok(Place { addr: slot.held.addr() + at as u64, host, bytes })
    }

    /// Notes that the copy which the last place was for is recorded.
    pub(crate) fn placed(&mut self) {
        let until = self.timeline().promised();
        self.staging.0.back_mut().expect("it has the place").until = until;
    }

    /// The same for a copy to the host: it stays nobody else's until [`Self::all_read`].
    ///
    /// # Errors
    /// As [`Self::place`].
    pub(crate) fn place_to_read(&mut self, bytes: usize) -> Result<Place> {
        let place = self.place(bytes)?;
        self.staging.0.back_mut().expect("it has the place").unread = true;
        Ok(place)
    }

    /// Notes that the host has read all that copies brought.
    pub(crate) fn all_read(&mut self) {
        self.staging.0.iter_mut().for_each(|slot| slot.unread = false);
    }
}

impl Place {
    /// Writes what a copy will take.
    pub(crate) fn write(&self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.bytes, "a piece is written whole");
        // SAFETY: the place has room for them, and no copy uses it yet.
        unsafe { self.host.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
    }

    /// Reads what a copy brought, which must be done.
    pub(crate) fn read(&self, bytes: &mut [u8]) {
        assert_eq!(bytes.len(), self.bytes, "a piece is read whole");
        // SAFETY: the place has that many, and the copy is done.
        unsafe { NonNull::from(bytes).cast::<u8>().copy_from_nonoverlapping(self.host, self.bytes) };
    }
}
