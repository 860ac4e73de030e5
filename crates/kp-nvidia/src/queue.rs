//! A queue: one stream, what may be said of its past, and what its launches reuse.

use crate::{
    device::NvidiaDevice,
    driver::{Context, Event, NOT_READY, Status, Stream},
    graph::Recording,
    memory::Held,
    staging::SLOT_BYTES,
    tensor_map::MapCache,
    timeline::Timeline,
};
use kp_hal::{
    ArgError, Device, DeviceId, Error, ErrorKind, Fault, Graph, MemoryKind, Nanos, Point, Queue, Result, Slice,
    SliceMut, device::same_length, fault::Launches,
};
use std::sync::Arc;

/// Bytes that are 0 between launches, for what blocks of one kernel tell each other: a word for each block there can be at
/// a time, and several for each unit.
pub(crate) const FLAGS_BYTES: u64 = 64 << 10;

/// An in-order stream of work on an NVIDIA GPU.
pub struct NvidiaQueue {
    device: Arc<NvidiaDevice>,
    pub(crate) context: Arc<Context>,
    timeline: Arc<Timeline>,
    /// The last mark known to be reached.
    done: u64,
    launches: Launches,
    pub(crate) scratch: Option<Arc<Held>>,
    pub(crate) maps: MapCache,
    pub(crate) recording: Option<Recording>,
    fault: Option<Box<Fault>>,
}

impl NvidiaQueue {
    pub(crate) fn new(device: Arc<NvidiaDevice>, stream: Stream, foreign: bool) -> Self {
        let (context, timeline) = (device.context().clone(), device.timelines().start(stream, foreign));
        let (launches, maps) = (Launches::default(), MapCache::new());
        Self { device, context, timeline, done: 0, launches, scratch: None, maps, recording: None, fault: None }
    }

    /// The CUDA stream, as its pointer value: for other libraries that feed it in turn with kp.
    pub fn stream_ptr(&self) -> u64 {
        self.stream().raw() as u64
    }

    #[inline]
    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn owner(&self) -> &Arc<NvidiaDevice> {
        &self.device
    }

    #[inline]
    pub(crate) fn stream(&self) -> &Stream {
        self.timeline.stream()
    }

    pub(crate) fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// The address of the scratch reserved so far.
    ///
    /// # Panics
    /// If none was reserved, which `Plan::launch` does.
    #[inline]
    pub(crate) fn scratch(&mut self) -> u64 {
        self.flags() + FLAGS_BYTES
    }

    /// The address of [`FLAGS_BYTES`] bytes that are 0 before every launch of this queue, and that a kernel may write if it
    /// leaves them 0: what its blocks tell each other. Part of the scratch, so some must have been reserved.
    ///
    /// # Panics
    /// As [`Self::scratch`].
    #[inline]
    pub(crate) fn flags(&mut self) -> u64 {
        if let Some(recording) = &mut self.recording {
            recording.uses_scratch = true;
        }
        self.scratch.as_ref().expect("scratch was reserved").addr()
    }

    /// Scratch of `bytes` bytes behind the flags, which are cleared in order with this queue.
    ///
    /// # Errors
    /// `OutOfMemory`, `Driver` or `Fault`.
    pub(crate) fn new_scratch(&mut self, bytes: u64) -> Result<Arc<Held>> {
        let held = Arc::new(self.device.memory_pool().alloc(FLAGS_BYTES + bytes, MemoryKind::Device)?);
        let (context, stream, flags) = (&self.context, self.stream().raw(), held.addr());
        // SAFETY: the allocation is new and larger.
        let clear = || unsafe { context.api().cuMemsetD8Async(flags, 0, FLAGS_BYTES as usize, stream) };
        let status = context.retry(clear);
        self.check(status)?;
        Ok(held)
    }

    /// Bytes of scratch behind the flags of `held`.
    pub(crate) fn scratch_bytes(held: &Held) -> u64 {
        held.bytes() - FLAGS_BYTES
    }

    /// Fails if earlier work did.
    #[inline]
    pub(crate) fn usable(&self) -> Result<()> {
        match &self.fault {
            None => Ok(()),
            Some(fault) => Err((**fault).clone().into()),
        }
    }

    /// Notes a launch by name.
    #[inline]
    pub(crate) fn launched(&mut self, name: &'static str) {
        match &mut self.recording {
            None => self.launches.note(name, self.timeline.marks()),
            Some(recording) => recording.kernels.push(name),
        }
    }

    /// The error for a call that failed: a refusal, or, from now on, the fault.
    #[cold]
    pub(crate) fn failed(&mut self, status: Status) -> Error {
        if !status.is_lost() {
            return status.error().into();
        }
        let marks = self.timeline.marks();
        let fault = self.launches.fault(self.done, marks, status.error(), Some(self.device.timelines().lost()));
        self.fault.insert(Box::new(fault)).as_ref().clone().into()
    }

    #[inline]
    pub(crate) fn check(&mut self, status: Status) -> Result<()> {
        if status.is_ok() { Ok(()) } else { Err(self.failed(status)) }
    }

    /// Refuses a call that has to finish now, or that names what was submitted, while recording.
    pub(crate) fn immediate(&self, what: &'static str) -> Result<()> {
        self.usable()?;
        if self.recording.is_some() { Err(ErrorKind::NotCapturable { what }.into()) } else { Ok(()) }
    }

    /// Refuses memory of another device.
    fn here(&self, operand: &'static str, on: DeviceId) -> Result<()> {
        let plan = self.device.id();
        if on == plan { Ok(()) } else { Err(ArgError::WrongDevice { operand, plan, got: on }.into()) }
    }

    /// Enqueues a copy between addresses of the device or the host.
    ///
    /// # Safety
    /// Both name `bytes` bytes, which nothing unordered with this queue accesses until the copy is done.
    unsafe fn enqueue_copy(&mut self, dst: u64, src: u64, bytes: u64) -> Result<()> {
        let (context, stream) = (&self.context, self.stream().raw());
        // Copies, unlike launches, ask the current context which memory they may touch, whatever their stream: with another
        // device's they refuse this one's memory as invalid.
        context.enter()?;
        // SAFETY: the caller's promise.
        let status = unsafe { context.api().cuMemcpyAsync(dst, src, bytes as usize, stream) };
        self.check(status)
    }

    /// Copies `src` to `dst` by way of pinned memory.
    fn upload_staged(&mut self, dst: u64, src: &[u8]) -> Result<()> {
        let device = self.device.clone();
        for (piece, to) in src.chunks(SLOT_BYTES).zip((dst..).step_by(SLOT_BYTES)) {
            let mut slot = device.staging().lend()?;
            slot.write(piece);
            // SAFETY: the slot holds that many bytes and is lent to nobody else before its event is reached; `dst` is
            // borrowed now, and freed only after this queue is past the copy.
            let copied = unsafe { self.enqueue_copy(to, slot.addr(), piece.len() as u64) };
            let noted = copied.and_then(|()| {
                let status = self.stream().record(slot.copied());
                self.check(status)
            });
            match noted {
                Ok(()) => device.staging().take_back(slot),
                Err(_) => device.staging().write_off(slot),
            }
            noted?;
        }
        Ok(())
    }

    fn synchronize(&mut self) -> Result<()> {
        let status = self.stream().synchronize();
        self.check(status)?;
        self.done = self.timeline.marks();
        Ok(())
    }
}

impl Queue for NvidiaQueue {
    fn device(&self) -> DeviceId {
        self.device.id()
    }

    fn upload(&mut self, dst: SliceMut<'_>, src: &[u8]) -> Result<()> {
        self.immediate("upload")?;
        self.here("dst", dst.device())?;
        same_length(dst.bytes(), src.len() as u64)?;
        // Also what is short: `src` may be pinned memory, of which the driver takes nothing before it returns.
        self.upload_staged(dst.addr(), src)
    }

    fn download(&mut self, dst: &mut [u8], src: Slice<'_>) -> Result<()> {
        self.immediate("download")?;
        self.here("src", src.device())?;
        same_length(dst.len() as u64, src.bytes())?;
        if !dst.is_empty() {
            let addr = dst.as_mut_ptr().expose_provenance() as u64;
            // SAFETY: both sides are borrowed and have that many bytes until the queue is empty, below.
            unsafe { self.enqueue_copy(addr, src.addr(), src.bytes()) }?;
        }
        self.synchronize()
    }

    fn copy(&mut self, dst: SliceMut<'_>, src: Slice<'_>) -> Result<()> {
        self.usable()?;
        self.here("dst", dst.device())?;
        self.here("src", src.device())?;
        same_length(dst.bytes(), src.bytes())?;
        if dst.bytes() == 0 {
            return Ok(());
        }
        // SAFETY: both views have that many bytes; they are freed only after this queue is past the copy.
        unsafe { self.enqueue_copy(dst.addr(), src.addr(), dst.bytes()) }
    }

    fn copy_from_peer(&mut self, dst: SliceMut<'_>, src: Slice<'_>) -> Result<()> {
        self.usable()?;
        self.here("dst", dst.device())?;
        same_length(dst.bytes(), src.bytes())?;
        let from = NvidiaDevice::by_id(src.device()).ok_or_else(|| {
            Error::from(ErrorKind::Unavailable { what: "peer copies", why: "src is on no open NVIDIA device".into() })
        })?;
        if from.id() == self.device.id() {
            return self.copy(dst, src);
        }
        self.immediate("a peer copy")?;
        // Either device's copy engine may be the one: ours that reads `src`, or the other's that writes `dst`.
        from.let_in(&self.device)?;
        self.device.let_in(&from)?;
        let (context, stream, bytes) = (&self.context, self.stream().raw(), dst.bytes() as usize);
        let (to, of) = (context.raw(), from.context().raw());
        let last = Event::untimed(context)?;
        context.enter()?;
        // SAFETY: both views have that many bytes; `dst` is freed after this queue is past the copy, and so is `src`,
        // because its device is told of the copy below.
        let status = unsafe { context.api().cuMemcpyPeerAsync(dst.addr(), to, src.addr(), of, bytes, stream) };
        self.check(status)?;
        let status = self.stream().record(&last);
        if status.is_ok() {
            from.timelines().add_visitor(last);
        } else {
            // Nobody may be told when the copy is done, so it has to be now.
            self.synchronize()?;
        }
        self.check(status)
    }

    fn fill(&mut self, dst: SliceMut<'_>, byte: u8) -> Result<()> {
        self.usable()?;
        self.here("dst", dst.device())?;
        if dst.bytes() == 0 {
            return Ok(());
        }
        let (context, stream) = (&self.context, self.stream().raw());
        context.enter()?;
        // SAFETY: the view has that many bytes; they are freed only after this queue is past the fill.
        let status = unsafe { context.api().cuMemsetD8Async(dst.addr(), byte, dst.bytes() as usize, stream) };
        self.check(status)
    }

    fn mark(&mut self) -> Result<Point> {
        self.immediate("a mark")?;
        let (point, status) = self.timeline.mark(&self.context)?;
        self.check(status)?;
        Ok(point)
    }

    fn wait(&mut self, point: Point) -> Result<()> {
        self.immediate("waiting for another queue")?;
        // What this queue was given before comes before anyway; a queue that is not found has no work left.
        let Some(other) = self.device.timelines().find(point.queue).filter(|other| !Arc::ptr_eq(other, &self.timeline))
        else {
            return Ok(());
        };
        let Some(event) = other.at_or_after(point.seq) else { return Ok(()) };
        let status = self.stream().wait(event);
        self.check(status)
    }

    fn reached(&mut self, point: Point) -> Result<bool> {
        self.usable()?;
        if point.queue != self.timeline.number() || point.seq > self.timeline.marks() {
            return Ok(false);
        }
        if point.seq <= self.done {
            return Ok(true);
        }
        let status = self.timeline.at_or_after(point.seq).expect("marks up to the last have events").query();
        if status.code == NOT_READY {
            return Ok(false);
        }
        self.check(status)?;
        self.done = point.seq;
        Ok(true)
    }

    fn elapsed(&mut self, from: Point, to: Point) -> Result<Option<Nanos>> {
        self.usable()?;
        let own = self.timeline.number();
        if from.queue != own || to.queue != own {
            return Ok(None);
        }
        let (Some(from), Some(to)) = (self.timeline.at(from.seq), self.timeline.at(to.seq)) else { return Ok(None) };
        let (time, status) = from.milliseconds_to(to);
        self.check(status)?;
        Ok(Some(Nanos::from_secs(f64::from(time) / 1e3)))
    }

    fn sync(&mut self) -> Result<()> {
        self.immediate("sync")?;
        self.synchronize()?;
        self.device.memory_pool().recycle()
    }

    fn reserve_scratch(&mut self, bytes: u64) -> Result<()> {
        if self.scratch.as_ref().is_some_and(|scratch| Self::scratch_bytes(scratch) >= bytes) {
            return self.usable();
        }
        self.immediate("growing scratch")?;
        // The old one first, so that both need not fit; the pool keeps it from others until this queue is past it.
        self.scratch = None;
        self.scratch = Some(self.new_scratch(bytes)?);
        Ok(())
    }

    fn fill_scratch(&mut self, byte: u8) -> Result<()> {
        self.immediate("filling scratch")?;
        let Some(bytes) = self.scratch.as_deref().map(Self::scratch_bytes).filter(|&bytes| bytes > 0) else {
            return Ok(());
        };
        let (addr, stream) = (self.scratch(), self.stream().raw());
        self.context.enter()?;
        // SAFETY: it is this queue's alone, which frees it only after it is past the fill; the flags stay as they are.
        let status = unsafe { self.context.api().cuMemsetD8Async(addr, byte, bytes as usize, stream) };
        self.check(status)
    }

    fn begin_capture(&mut self) -> Result<()> {
        self.begin_recording()
    }

    fn end_capture(&mut self) -> Result<Box<dyn Graph>> {
        self.end_recording()
    }
}

impl Drop for NvidiaQueue {
    fn drop(&mut self) {
        if self.recording.is_some() {
            // What was recorded is of no use to anybody.
            let _ = self.end_recording();
        }
        self.timeline.end(&self.context);
    }
}
