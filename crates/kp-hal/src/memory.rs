//! Device memory. A kernel argument is a device address and a length: plain data,
//! so passing one costs nothing and needs no downcast. Every backend has device
//! addresses (Vulkan: `bufferDeviceAddress`, core since 1.2).

use crate::device::DeviceId;
use std::{cell::Cell, fmt, marker::PhantomData, ops::Range, ptr::NonNull, sync::Arc};

/// Where a buffer lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MemoryKind {
    /// Fast memory of the device; the host may not be able to address it.
    Device,
    /// Host memory that the device reads and writes, and that the host reads at full speed.
    Pinned,
}

/// Whatever must be dropped to free the memory. Dropping it while queued work
/// still uses the memory is allowed: the device defers the release.
pub trait Allocation: Send + Sync + fmt::Debug {
    /// Where the host sees the first byte, if it can.
    fn host(&self) -> Option<NonNull<u8>> {
        None
    }
}

/// An owned range of device memory. Not `Clone`, so `SliceMut` is exclusive.
#[derive(Debug)]
pub struct Buffer {
    range: Raw,
    owner: Arc<dyn Allocation>,
}

#[derive(Clone, Copy, Debug)]
struct Raw {
    addr: u64,
    bytes: u64,
    device: DeviceId,
}

impl Buffer {
    /// Wraps memory that `owner` keeps alive: a backend's own, or another library's tensor.
    ///
    /// # Safety
    /// - `addr` names `bytes` bytes of `device` for as long as `owner` lives.
    /// - Nothing else writes them while a slice of this buffer is in use, nor reads them while a mutable one is.
    /// - `owner.host()`, if any, addresses the same bytes.
    pub unsafe fn from_raw(device: DeviceId, addr: u64, bytes: u64, owner: Arc<dyn Allocation>) -> Self {
        Self { range: Raw { addr, bytes, device }, owner }
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.range.bytes
    }

    /// The device that holds the memory.
    pub fn device(&self) -> DeviceId {
        self.range.device
    }

    /// Where the host sees the first byte. Reading or writing through it is for the
    /// caller to order against queued work, hence unsafe at the dereference.
    pub fn host(&self) -> Option<NonNull<u8>> {
        self.owner.host()
    }

    /// All of it, shared.
    pub fn slice(&self) -> Slice<'_> {
        Slice { raw: self.range, life: PhantomData }
    }

    /// All of it, exclusive.
    pub fn slice_mut(&mut self) -> SliceMut<'_> {
        SliceMut { raw: self.range, life: PhantomData }
    }
}

/// A shared view of device memory.
#[derive(Clone, Copy, Debug)]
pub struct Slice<'a> {
    raw: Raw,
    life: PhantomData<&'a Buffer>,
}

/// An exclusive view of device memory.
///
/// Another thread may be given it, but not share it: a launch takes arguments by shared reference, and two at once would both write.
///
/// ```compile_fail
/// fn may_be_shared<T: Sync>() {}
/// may_be_shared::<kp_hal::SliceMut<'static>>();
/// ```
#[derive(Debug)]
pub struct SliceMut<'a> {
    raw: Raw,
    life: PhantomData<(&'a mut Buffer, Cell<()>)>,
}

macro_rules! view {
    ($name:ident) => {
        impl $name<'_> {
            /// A view of memory that kp does not own, such as a tensor of another library.
            ///
            /// # Safety
            /// - `addr` names `bytes` bytes of `device` for the view's lifetime.
            /// - For that long nothing else accesses them in a way this view's kind forbids.
            pub unsafe fn external(device: DeviceId, addr: u64, bytes: u64) -> Self {
                Self { raw: Raw { addr, bytes, device }, life: PhantomData }
            }

            /// Device address of the first byte.
            #[inline]
            pub fn addr(&self) -> u64 {
                self.raw.addr
            }

            /// Length in bytes.
            #[inline]
            pub fn bytes(&self) -> u64 {
                self.raw.bytes
            }

            /// The device that holds the memory.
            #[inline]
            pub fn device(&self) -> DeviceId {
                self.raw.device
            }

            /// The part of this view at `range`, in bytes.
            ///
            /// # Panics
            /// If `range` leaves the view.
            #[must_use]
            pub fn at(self, range: Range<u64>) -> Self {
                let Raw { addr, bytes, device } = self.raw;
                assert!(range.start <= range.end && range.end <= bytes, "{range:?} is outside 0..{bytes}");
                Self { raw: Raw { addr: addr + range.start, bytes: range.end - range.start, device }, ..self }
            }
        }
    };
}
view!(Slice);
view!(SliceMut);

impl<'a> SliceMut<'a> {
    /// The same bytes, borrowed again for a shorter time.
    pub fn reborrow(&mut self) -> SliceMut<'_> {
        SliceMut { raw: self.raw, life: PhantomData }
    }

    /// The same bytes, to read.
    pub fn as_slice(&self) -> Slice<'_> {
        Slice { raw: self.raw, life: PhantomData }
    }

    /// The parts before and from byte `mid`.
    ///
    /// # Panics
    /// If `mid` leaves the view.
    pub fn split_at(self, mid: u64) -> (SliceMut<'a>, SliceMut<'a>) {
        let Raw { addr, bytes, device } = self.raw;
        assert!(mid <= bytes, "{mid} is outside 0..={bytes}");
        let part = |addr, bytes| SliceMut { raw: Raw { addr, bytes, device }, life: PhantomData };
        (part(addr, mid), part(addr + mid, bytes - mid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Nothing;
    impl Allocation for Nothing {}

    fn buffer(bytes: u64) -> Buffer {
        // SAFETY: the tests look at addresses only; nothing is ever accessed.
        unsafe { Buffer::from_raw(DeviceId::next(), 4096, bytes, Arc::new(Nothing)) }
    }

    #[test]
    fn views_are_small() {
        assert_eq!(size_of::<Slice<'_>>(), 24);
        assert_eq!(size_of::<Option<Slice<'_>>>(), 24);
    }

    #[test]
    fn parts_name_the_right_bytes() {
        let mut b = buffer(100);
        assert_eq!((b.slice().at(10..20).addr(), b.slice().at(10..20).bytes()), (4106, 10));
        let (x, y) = b.slice_mut().split_at(30);
        assert_eq!((x.bytes(), y.addr(), y.bytes()), (30, 4126, 70));
    }

    #[test]
    #[should_panic(expected = "90..101 is outside 0..100")]
    fn a_view_cannot_be_left() {
        let _ = buffer(100).slice().at(90..101);
    }
}
