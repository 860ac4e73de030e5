//! What every kernel of this backend does alike: become a plan, and see its operands as bytes.

use crate::queue::CpuQueue;
use kp_hal::{Device, Kernel, Launch, Op, Plan, Problem, Queue, Slice, SliceMut, Variant};
use std::sync::Arc;

/// Wraps `code` as the plan of `kernel`.
///
/// # Safety
/// `code` solves `problem` and accesses only the bytes that the problem's needs name, and `scratch_bytes` of scratch.
pub(crate) unsafe fn plan<O: Op>(
    kernel: &dyn Kernel<O>,
    device: &Arc<dyn Device>,
    problem: &Problem<O::Spec>,
    variant: Variant,
    scratch_bytes: u64,
    code: impl Launch<O> + 'static,
) -> Plan<O> {
    // SAFETY: the caller's promise; `code` was made for this problem and device.
    unsafe { Plan::new(kernel.name(), variant, device.id(), problem, scratch_bytes, Box::new(code)) }
}

/// The queue as this backend's.
pub(crate) fn own(queue: &mut dyn Queue) -> &mut CpuQueue {
    queue.downcast_mut().expect("same device, so same backend")
}

/// The bytes of an input.
///
/// # Safety
/// As [`crate::memory::bytes`]: within `Launch::launch`, whose arguments were checked.
pub(crate) unsafe fn input<'a>(view: &Slice<'a>) -> &'a [u8] {
    // SAFETY: passed on.
    unsafe { crate::memory::bytes(view) }
}

/// The bytes of an input that the problem may lack; empty then.
///
/// # Safety
/// As [`input`].
pub(crate) unsafe fn optional<'a>(view: &Option<Slice<'a>>) -> &'a [u8] {
    // SAFETY: passed on.
    view.as_ref().map_or(&[], |view| unsafe { crate::memory::bytes(view) })
}

/// The bytes of an output, for parallel loops whose iterations write disjoint parts of it.
#[derive(Clone, Copy)]
pub(crate) struct Output<'a> {
    first: *mut u8,
    bytes: usize,
    life: std::marker::PhantomData<&'a mut [u8]>,
}

// SAFETY: it stands for an exclusive borrow of bytes, and `part` makes its users promise to share them disjointly.
unsafe impl Send for Output<'_> {}
// SAFETY: as above.
unsafe impl Sync for Output<'_> {}

impl<'a> Output<'a> {
    /// # Safety
    /// As [`crate::memory::bytes_mut`].
    pub(crate) unsafe fn new(view: &'a SliceMut<'_>) -> Self {
        // SAFETY: passed on.
        Self::of(unsafe { crate::memory::bytes_mut(view) })
    }

    /// An output the problem may lack; empty then.
    ///
    /// # Safety
    /// As [`crate::memory::bytes_mut`].
    pub(crate) unsafe fn optional(view: &'a Option<SliceMut<'_>>) -> Self {
        match view {
            // SAFETY: passed on.
            Some(view) => unsafe { Self::new(view) },
            None => Self::of(&mut []),
        }
    }

    /// The same of ordinary memory, such as scratch.
    pub(crate) fn of(bytes: &'a mut [u8]) -> Self {
        Self { first: bytes.as_mut_ptr(), bytes: bytes.len(), life: std::marker::PhantomData }
    }

    /// Length in bytes.
    pub(crate) fn bytes(self) -> usize {
        self.bytes
    }

    /// Bytes `range`.
    ///
    /// # Safety
    /// No two results that live at the same time overlap.
    ///
    /// # Panics
    /// If `range` leaves the output.
    #[expect(clippy::mut_from_ref, reason = "the disjointness is the caller's promise")]
    pub(crate) unsafe fn part(&self, range: std::ops::Range<usize>) -> &'a mut [u8] {
        assert!(range.start <= range.end && range.end <= self.bytes, "{range:?} is outside 0..{}", self.bytes);
        // SAFETY: inside the borrow `self` stands for; disjoint from all others by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.first.add(range.start), range.len()) }
    }
}
