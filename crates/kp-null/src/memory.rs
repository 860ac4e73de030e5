//! Host memory that plays device memory, and the only code that follows its addresses.

use kp_hal::Allocation;
use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// What every buffer's address is a multiple of.
const ALIGN: usize = 256;

/// One allocation; gives its bytes back to the device's count when dropped.
#[derive(Debug)]
pub(crate) struct Host {
    /// The first aligned byte of `block`.
    at: NonNull<u8>,
    block: NonNull<u8>,
    layout: Layout,
    bytes: u64,
    used: Arc<AtomicU64>,
}

// SAFETY: the memory belongs to this value alone, and `Buffer`'s borrows order who touches it.
unsafe impl Send for Host {}
// SAFETY: as above; a shared `Host` only says where the memory is.
unsafe impl Sync for Host {}

impl Host {
    /// `bytes` bytes, already counted in `used`; `None` if the host has no room.
    pub(crate) fn new(bytes: u64, used: Arc<AtomicU64>) -> Option<Self> {
        // Aligned by hand: asking the allocator for aligned zeros makes it write them all, asking for
        // zeros alone takes fresh pages from the system.
        let layout = Layout::from_size_align(usize::try_from(bytes).ok()?.checked_add(ALIGN)?, 1).ok()?;
        // SAFETY: the layout is not empty.
        let block = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        // SAFETY: less than ALIGN bytes further, and the block has that many more than `bytes`.
        let at = unsafe { block.add(block.as_ptr().align_offset(ALIGN)) };
        Some(Self { at, block, layout, bytes, used })
    }

    pub(crate) fn addr(&self) -> u64 {
        self.at.as_ptr().expose_provenance() as u64
    }
}

impl Allocation for Host {
    fn host(&self) -> Option<NonNull<u8>> {
        Some(self.at)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with this layout, freed once.
        unsafe { dealloc(self.block.as_ptr(), self.layout) };
        // Relaxed: a count that guards nothing.
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Work on memory, kept by address so that a recording can do it again.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    Copy { dst: u64, src: u64, bytes: u64 },
    Fill { dst: u64, byte: u8, bytes: u64 },
}

impl Work {
    /// Does it.
    ///
    /// # Safety
    /// - Both addresses name `bytes` bytes of live allocations of this backend, or of host memory.
    /// - Nobody else accesses the target meanwhile.
    pub(crate) unsafe fn run(self) {
        // SAFETY: the caller's two promises, for each arm; `copy` allows overlap.
        unsafe {
            match self {
                Self::Copy { dst, src, bytes } => std::ptr::copy(pointer(src), pointer(dst), bytes as usize),
                Self::Fill { dst, byte, bytes } => std::ptr::write_bytes(pointer(dst), byte, bytes as usize),
            }
        }
    }
}

fn pointer(addr: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(addr as usize)
}
