//! Where work runs.

use crate::{
    caps::Caps,
    error::{Error, ErrorKind, Result},
    kernel::{Kernels, Nanos},
    memory::{Buffer, MemoryKind, Slice, SliceMut},
};
use std::{
    any::Any,
    cell::Cell,
    fmt,
    marker::PhantomData,
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

/// A driver API, compiled in. `static`, stateless, cheap to hold.
pub trait Backend: Sync {
    /// Lower case, unique: `nvidia`.
    fn name(&self) -> &'static str;

    /// Lists devices without creating contexts, best first.
    ///
    /// # Errors
    /// `Unavailable`, naming what was looked for, when the driver is absent. Never panics.
    fn devices(&self) -> Result<Vec<DeviceInfo>>;

    /// Opens device `index` of `devices`.
    ///
    /// # Errors
    /// `Unavailable` if there is no such device, `Driver` if the driver refuses.
    fn open(&self, index: u32) -> Result<Arc<dyn Device>>;

    /// Every kernel of this backend, best first within an op.
    fn kernels(&self) -> &'static Kernels;
}

/// Unique among the devices opened by this process; never reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct DeviceId(NonZeroU32);

impl DeviceId {
    /// An id that no other device of this process has. For backends, when opening.
    ///
    /// # Panics
    /// After 2³² − 1 devices.
    pub fn next() -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let id = LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        Self(NonZeroU32::new(id).expect("fewer than 2^32 devices are opened"))
    }

    /// The id as a number, from 1.
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A device that could be opened.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// The product's name: `NVIDIA H200`.
    pub name: String,
    /// What to pass to `Backend::open`.
    pub index: u32,
    /// Driver and its version as the vendor writes them.
    pub driver: String,
    /// Place on the PCI bus, by which two backends recognise one card.
    pub pci: Option<PciAddress>,
    /// The driver's identifier of the card.
    pub uuid: Option<[u8; 16]>,
    /// What it can do.
    pub caps: Caps,
}

/// A place on the PCI bus; prints as `0000:17:00.0`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct PciAddress {
    /// Segment.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Slot.
    pub device: u8,
    /// Function.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

/// Bytes of device memory, as the driver counts them now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryInfo {
    /// Bytes an allocation may still get.
    pub free: u64,
    /// Bytes there are.
    pub total: u64,
}

/// An open device. Shared by threads; queues and buffers keep what they need of it alive. A plan knows it by its `DeviceId`, since it
/// is launched through a queue.
pub trait Device: Any + Send + Sync {
    /// Who it is.
    fn id(&self) -> DeviceId;

    /// What it is.
    fn info(&self) -> &DeviceInfo;

    /// What it can do.
    fn caps(&self) -> &Caps {
        &self.info().caps
    }

    /// Memory now. Another process may take it before an allocation does.
    ///
    /// # Errors
    /// `Driver` or `Fault`.
    fn memory(&self) -> Result<MemoryInfo>;

    /// Allocates `bytes` bytes, aligned to at least 256; 0 is allowed. The contents are arbitrary.
    ///
    /// # Errors
    /// `OutOfMemory` with the numbers; the device goes on working.
    fn alloc(self: Arc<Self>, bytes: u64, kind: MemoryKind) -> Result<Buffer>;

    /// Its capabilities with peak rates and bandwidth measured here and now, which may take a second.
    ///
    /// `caps` holds what the driver or a datasheet says; a report of "fraction of the peak" wants these.
    ///
    /// # Errors
    /// `Driver`, `Fault` or `OutOfMemory`.
    fn measure(self: Arc<Self>) -> Result<Caps> {
        Ok(self.caps().clone())
    }

    /// A new stream of work.
    ///
    /// # Errors
    /// `Driver` or `Fault`.
    fn queue(self: Arc<Self>) -> Result<Box<dyn Queue>>;

    /// A queue over a stream that another library made (`CUstream`, `hipStream_t`), as its pointer value.
    ///
    /// # Errors
    /// `Unavailable` on backends without foreign streams.
    ///
    /// # Safety
    /// - `stream` belongs to this device and outlives the queue.
    /// - It is not used from another thread at the same time.
    unsafe fn adopt_queue(self: Arc<Self>, stream: u64) -> Result<Box<dyn Queue>> {
        let _ = stream;
        Err(ErrorKind::Unavailable { what: "foreign streams", why: "this backend has none".into() }.into())
    }
}

/// A moment on one queue's timeline. Plain data: nothing to create or free.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Point {
    /// The queue, unique within its device.
    pub queue: u32,
    /// How many marks that queue had made.
    pub seq: u64,
}

/// An in-order stream of work. One thread at a time: `Send`, used through `&mut`.
///
/// # Errors
/// Every method may return `ErrorKind::Fault` for work submitted earlier. A faulted
/// queue keeps returning the same fault until it is dropped.
pub trait Queue: Any + Send {
    /// The device it feeds.
    fn device(&self) -> DeviceId;

    /// Copies host bytes to the device. `src` may be reused on return.
    ///
    /// # Errors
    /// `BadArgs` if the lengths differ, `NotCapturable` while capturing.
    fn upload(&mut self, dst: SliceMut<'_>, src: &[u8]) -> Result<()>;

    /// Copies device bytes to the host; blocks until they have arrived.
    ///
    /// # Errors
    /// `BadArgs` if the lengths differ, `NotCapturable` while capturing.
    fn download(&mut self, dst: &mut [u8], src: Slice<'_>) -> Result<()>;

    /// Copies within the device.
    ///
    /// # Errors
    /// `BadArgs` if the lengths or devices differ.
    fn copy(&mut self, dst: SliceMut<'_>, src: Slice<'_>) -> Result<()>;

    /// Copies from another device of the same backend into this queue's device.
    ///
    /// # Errors
    /// `Unavailable` if the two devices cannot reach each other.
    fn copy_from_peer(&mut self, dst: SliceMut<'_>, src: Slice<'_>) -> Result<()> {
        let _ = (dst, src);
        Err(ErrorKind::Unavailable { what: "peer copies", why: "this backend has none".into() }.into())
    }

    /// Sets every byte of `dst` to `byte`.
    ///
    /// # Errors
    /// `BadArgs` if `dst` is on another device.
    fn fill(&mut self, dst: SliceMut<'_>, byte: u8) -> Result<()>;

    /// Names the work submitted so far.
    ///
    /// # Errors
    /// `Driver` or `Fault`.
    fn mark(&mut self) -> Result<Point>;

    /// Later work on this queue starts after `point`, of any queue of this device.
    ///
    /// # Errors
    /// `Driver` or `Fault`.
    fn wait(&mut self, point: Point) -> Result<()>;

    /// Whether `point` of this queue has been reached.
    ///
    /// # Errors
    /// `Driver` or `Fault`.
    fn reached(&mut self, point: Point) -> Result<bool>;

    /// Device time from `from` to `to`, two points of this queue that have been reached and are among its
    /// last 1024; `None` if either is older.
    ///
    /// # Errors
    /// `Driver` or `Fault`.
    fn elapsed(&mut self, from: Point, to: Point) -> Result<Option<Nanos>>;

    /// Blocks the host until the queue is empty.
    ///
    /// # Errors
    /// `NotCapturable` while capturing.
    fn sync(&mut self) -> Result<()>;

    /// Makes sure of at least `bytes` of scratch, reused by later launches of this queue.
    ///
    /// # Errors
    /// `NotCapturable` if it would have to grow while capturing; `OutOfMemory`.
    fn reserve_scratch(&mut self, bytes: u64) -> Result<()>;

    /// Sets every byte of the scratch reserved so far to `byte`. Kernels find in it what earlier ones left; a test that
    /// fills it finds those that read what they did not write.
    ///
    /// # Errors
    /// `NotCapturable` while capturing.
    fn fill_scratch(&mut self, byte: u8) -> Result<()>;

    /// Starts recording instead of running. Use `capture`, which cannot forget the end.
    ///
    /// Other threads go on allocating, planning and working on queues of their own; a backend whose driver forbids
    /// that unless asked, asks.
    ///
    /// # Errors
    /// `NotCapturable` on backends without graphs.
    fn begin_capture(&mut self) -> Result<()> {
        Err(ErrorKind::NotCapturable { what: "work of this backend" }.into())
    }

    /// Ends recording.
    ///
    /// # Errors
    /// `NotCapturable` if nothing was being recorded.
    fn end_capture(&mut self) -> Result<Box<dyn Graph>> {
        Err(ErrorKind::NotCapturable { what: "work of this backend" }.into())
    }
}

/// Recorded work.
pub trait Graph: Any + Send {
    /// Submits the recorded work again.
    ///
    /// # Errors
    /// `BadArgs` if `queue` is of another device.
    ///
    /// # Safety
    /// - Every buffer seen while capturing is alive.
    /// - No other queue is writing one of them, nor reading one that the recording writes.
    unsafe fn replay(&self, queue: &mut dyn Queue) -> Result<()>;
}

impl dyn Device {
    /// For backends: the concrete device, or `None` if it is another backend's.
    pub fn downcast_ref<D: Device>(&self) -> Option<&D> {
        (self as &dyn Any).downcast_ref()
    }
}

impl dyn Queue {
    /// For backends: the concrete queue, or `None` if it is another backend's.
    #[inline]
    pub fn downcast_mut<Q: Queue>(&mut self) -> Option<&mut Q> {
        (self as &mut dyn Any).downcast_mut()
    }

    /// Records what `record` submits, even if it fails or panics midway: the queue is usable afterwards.
    ///
    /// Inside, whatever cannot be recorded is `NotCapturable`: `upload`, `download`, `sync`, growing scratch, and
    /// planning what was not planned before. So launch once, then record.
    ///
    /// # Errors
    /// What `record` returned, or what ending the recording did.
    pub fn capture(&mut self, record: impl FnOnce(&mut dyn Queue) -> Result<()>) -> Result<Box<dyn Graph>> {
        /// Ends the recording when `record` unwinds.
        struct End<'q>(&'q mut dyn Queue);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                // Unwinding: the graph is of no use and its failure would hide the panic.
                let _ = self.0.end_capture();
            }
        }
        let _here = Capturing::begin();
        self.begin_capture()?;
        let end = End(self);
        let recorded = record(&mut *end.0);
        let graph = std::mem::ManuallyDrop::new(end).0.end_capture();
        recorded.and(graph)
    }
}

thread_local! {
    /// How many recordings this thread is inside of.
    static CAPTURES: Cell<u32> = const { Cell::new(0) };
}

/// Whether this thread is inside [`capture`](trait.Queue.html#method.capture), of whichever queue.
///
/// A fact of the thread and not of a queue, because what must wait until the recording has ended (planning, which
/// compiles, allocates and uploads) knows no queue; drivers draw the same line.
pub fn capturing() -> bool {
    CAPTURES.get() > 0
}

/// While it lives, its thread is recording.
struct Capturing(PhantomData<*const ()>);

impl Capturing {
    fn begin() -> Self {
        CAPTURES.set(CAPTURES.get() + 1);
        Self(PhantomData)
    }
}

impl Drop for Capturing {
    fn drop(&mut self) {
        CAPTURES.set(CAPTURES.get() - 1);
    }
}

/// Bytes that a copy was asked to move must be as many as there is room for.
///
/// For backends: the check every `upload`, `download` and `copy` starts with.
///
/// # Errors
/// `BadArgs` naming both lengths.
pub fn same_length(dst_bytes: u64, src_bytes: u64) -> Result<()> {
    if dst_bytes == src_bytes {
        return Ok(());
    }
    Err(Error::from(crate::op::ArgError::Length { operand: "dst", need: src_bytes, got: dst_bytes }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_knows_that_it_records_until_it_ends_or_panics() {
        let outer = Capturing::begin();
        drop(Capturing::begin());
        assert!(capturing());
        assert!(!std::thread::spawn(capturing).join().expect("it only asks"));
        drop(outer);
        assert!(!capturing());
        let panicked = std::panic::catch_unwind(|| {
            let _here = Capturing::begin();
            std::panic::resume_unwind(Box::new(()));
        });
        assert!(panicked.is_err() && !capturing());
    }
}
