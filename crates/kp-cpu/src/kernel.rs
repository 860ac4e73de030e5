//! What every kernel of this backend does alike: become a plan, and see its operands as bytes.

use crate::queue::CpuQueue;
use kp_hal::{Device, Kernel, Launch, Op, Plan, Problem, Queue, Slice, SliceMut, Variant};
use std::{borrow::Cow, sync::Arc};

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

/// What padding each of `dims` (name, size, multiple) does to it, in words; `None` if nothing is padded.
pub(crate) fn pads<const N: usize>(dims: [(&'static str, usize, usize); N]) -> Option<Cow<'static, str>> {
    let padded = dims.map(|(dim, size, multiple)| (dim, size, size.next_multiple_of(multiple)));
    let each = padded.iter().filter(|(_, size, whole)| size != whole);
    let each: Vec<_> = each.map(|(dim, size, whole)| format!("{dim} from {size} to {whole}")).collect();
    (!each.is_empty()).then(|| format!("pads {}", each.join(", ")).into())
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

/// Elements for parallel loops whose iterations write disjoint parts of them.
pub(crate) struct Disjoint<'a, T> {
    first: *mut T,
    len: usize,
    life: std::marker::PhantomData<&'a mut [T]>,
}

/// The bytes of an output.
pub(crate) type Output<'a> = Disjoint<'a, u8>;

impl<T> Clone for Disjoint<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Disjoint<'_, T> {}

// SAFETY: it stands for an exclusive borrow of elements, and `part` makes its users promise to share them disjointly.
unsafe impl<T: Send> Send for Disjoint<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}

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

    /// Length in bytes.
    pub(crate) fn bytes(self) -> usize {
        self.len
    }
}

impl<'a, T> Disjoint<'a, T> {
    /// Of ordinary memory, such as scratch.
    pub(crate) fn of(elements: &'a mut [T]) -> Self {
        Self { first: elements.as_mut_ptr(), len: elements.len(), life: std::marker::PhantomData }
    }

    /// Elements `range`, to be divided further.
    ///
    /// # Panics
    /// If `range` leaves the elements.
    pub(crate) fn range(self, range: std::ops::Range<usize>) -> Self {
        self.check(&range);
        // SAFETY: inside the borrow `self` stands for.
        Self { first: unsafe { self.first.add(range.start) }, len: range.len(), life: self.life }
    }

    /// Elements `range`.
    ///
    /// # Safety
    /// No two results that live at the same time overlap.
    ///
    /// # Panics
    /// If `range` leaves the elements.
    #[inline(always)]
    pub(crate) unsafe fn part(&self, range: std::ops::Range<usize>) -> &'a mut [T] {
        self.check(&range);
        // SAFETY: inside the borrow `self` stands for; disjoint from all others by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.first.add(range.start), range.len()) }
    }

    /// Where elements `range` lie, for writes that are not runs. They may be accessed as the parts of [`Self::part`] may.
    ///
    /// # Panics
    /// If `range` leaves the elements.
    pub(crate) fn pointer(&self, range: std::ops::Range<usize>) -> *mut T {
        self.check(&range);
        self.first.wrapping_add(range.start)
    }

    /// Elements `range`, to read.
    ///
    /// # Safety
    /// Nothing writes them for as long as the result lives.
    ///
    /// # Panics
    /// If `range` leaves the elements.
    #[inline(always)]
    pub(crate) unsafe fn shared(&self, range: std::ops::Range<usize>) -> &'a [T] {
        self.check(&range);
        // SAFETY: inside the borrow `self` stands for; not written by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.first.add(range.start), range.len()) }
    }

    #[inline(always)]
    fn check(&self, range: &std::ops::Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} is outside 0..{}", self.len);
    }
}

#[cfg(test)]
mod tests {
    use super::pads;

    #[test]
    fn padding_is_told_where_there_is_some() {
        assert_eq!(pads([("m", 1, 12), ("n", 64, 32)]).as_deref(), Some("pads m from 1 to 12"));
        assert_eq!(pads([("m", 13, 12), ("n", 33, 32)]).as_deref(), Some("pads m from 13 to 24, n from 33 to 64"));
        assert_eq!(pads([("m", 12, 12), ("n", 0, 32)]), None);
    }
}
