//! A queue whose work is done when the call returns.

use crate::{device::NullDevice, memory::Work};
use kp_hal::{
    ArgError, Device, DeviceId, ErrorKind, Fault, Graph, MemoryInfo, Nanos, Point, Queue, Result, Slice, SliceMut,
    device::same_length,
};
use std::{collections::VecDeque, sync::Arc, time::Instant};

/// Marks that `elapsed` remembers.
const MARKS: usize = 1024;

/// An in-order stream of work.
pub struct NullQueue {
    device: Arc<NullDevice>,
    number: u32,
    marks: u64,
    /// When the last marks were made, oldest first.
    times: VecDeque<Instant>,
    scratch_bytes: u64,
    launches: u64,
    recording: Option<Recording>,
    fault: Option<Fault>,
}

impl NullQueue {
    pub(crate) fn new(device: Arc<NullDevice>, number: u32) -> Self {
        let times = VecDeque::with_capacity(MARKS);
        Self { device, number, marks: 0, times, scratch_bytes: 0, launches: 0, recording: None, fault: None }
    }

    /// Kernels launched so far, replays included.
    pub fn launches(&self) -> u64 {
        self.launches
    }

    /// Makes every later call fail with `fault`, as if a kernel had failed on the device.
    pub fn break_with(&mut self, fault: Fault) {
        self.fault = Some(fault);
    }

    /// Enqueues a kernel: counts it, or records that it is to be counted.
    pub(crate) fn launch(&mut self) -> Result<()> {
        self.usable()?;
        match &mut self.recording {
            Some(recording) => recording.launches += 1,
            None => self.launches += 1,
        }
        Ok(())
    }

    #[inline]
    fn usable(&self) -> Result<()> {
        match &self.fault {
            None => Ok(()),
            Some(fault) => Err(fault.clone().into()),
        }
    }

    /// Refuses a call that has to finish now while recording.
    fn immediate(&self, what: &'static str) -> Result<()> {
        self.usable()?;
        if self.recording.is_some() { Err(ErrorKind::NotCapturable { what }.into()) } else { Ok(()) }
    }

    /// Refuses memory of another device.
    fn here(&self, operand: &'static str, on: DeviceId) -> Result<()> {
        let plan = self.device.id();
        if on == plan { Ok(()) } else { Err(ArgError::WrongDevice { operand, plan, got: on }.into()) }
    }

    /// Does the work, or records it.
    ///
    /// # Safety
    /// As [`Work::run`].
    unsafe fn submit(&mut self, work: Work) {
        match &mut self.recording {
            Some(recording) => recording.work.push(work),
            // SAFETY: the caller's promises.
            None => unsafe { work.run() },
        }
    }
}

impl Queue for NullQueue {
    fn device(&self) -> DeviceId {
        self.device.id()
    }

    fn upload(&mut self, dst: SliceMut<'_>, src: &[u8]) -> Result<()> {
        self.immediate("upload")?;
        self.here("dst", dst.device())?;
        same_length(dst.bytes(), src.len() as u64)?;
        let src = src.as_ptr().expose_provenance() as u64;
        // SAFETY: both sides are borrowed for this call and have that many bytes; `dst` exclusively.
        unsafe { self.submit(Work::Copy { dst: dst.addr(), src, bytes: dst.bytes() }) };
        Ok(())
    }

    fn download(&mut self, dst: &mut [u8], src: Slice<'_>) -> Result<()> {
        self.immediate("download")?;
        self.here("src", src.device())?;
        same_length(dst.len() as u64, src.bytes())?;
        let dst = dst.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: both sides are borrowed for this call and have that many bytes; `dst` exclusively.
        unsafe { self.submit(Work::Copy { dst, src: src.addr(), bytes: src.bytes() }) };
        Ok(())
    }

    fn copy(&mut self, dst: SliceMut<'_>, src: Slice<'_>) -> Result<()> {
        self.usable()?;
        self.here("dst", dst.device())?;
        self.here("src", src.device())?;
        same_length(dst.bytes(), src.bytes())?;
        // SAFETY: both views have that many bytes, and are borrowed now or by the promise of whoever replays.
        unsafe { self.submit(Work::Copy { dst: dst.addr(), src: src.addr(), bytes: src.bytes() }) };
        Ok(())
    }

    fn fill(&mut self, dst: SliceMut<'_>, byte: u8) -> Result<()> {
        self.usable()?;
        self.here("dst", dst.device())?;
        // SAFETY: the view has that many bytes, and is borrowed now or by the promise of whoever replays.
        unsafe { self.submit(Work::Fill { dst: dst.addr(), byte, bytes: dst.bytes() }) };
        Ok(())
    }

    fn mark(&mut self) -> Result<Point> {
        self.usable()?;
        self.marks += 1;
        if self.times.len() == MARKS {
            self.times.pop_front();
        }
        self.times.push_back(Instant::now());
        Ok(Point { queue: self.number, seq: self.marks })
    }

    fn wait(&mut self, _: Point) -> Result<()> {
        // Whatever any queue was given is done.
        self.usable()
    }

    fn reached(&mut self, point: Point) -> Result<bool> {
        self.usable()?;
        Ok(point.seq <= self.marks)
    }

    fn elapsed(&mut self, from: Point, to: Point) -> Result<Option<Nanos>> {
        self.usable()?;
        let first = self.marks - self.times.len() as u64 + 1;
        let time = |p: Point| self.times.get(usize::try_from(p.seq.checked_sub(first)?).ok()?).copied();
        Ok(time(from).zip(time(to)).map(|(from, to)| to.saturating_duration_since(from).into()))
    }

    fn sync(&mut self) -> Result<()> {
        self.immediate("sync")
    }

    fn reserve_scratch(&mut self, bytes: u64) -> Result<()> {
        if bytes > self.scratch_bytes {
            self.immediate("growing scratch")?;
            // There is none, since no kernel would use it; but it must not be more than the device has.
            let MemoryInfo { free, total } = self.device.memory()?;
            if bytes > free {
                return Err(ErrorKind::OutOfMemory { wanted: bytes, free, total }.into());
            }
            self.scratch_bytes = bytes;
        }
        self.usable()
    }

    fn fill_scratch(&mut self, _: u8) -> Result<()> {
        // There is none, as said.
        self.immediate("filling scratch")
    }

    fn begin_capture(&mut self) -> Result<()> {
        self.immediate("a capture within a capture")?;
        self.recording = Some(Recording { device: self.device.id(), work: Vec::new(), launches: 0 });
        Ok(())
    }

    fn end_capture(&mut self) -> Result<Box<dyn Graph>> {
        match self.recording.take() {
            Some(recording) => Ok(Box::new(recording)),
            None => Err(ErrorKind::NotCapturable { what: "an end without a beginning" }.into()),
        }
    }
}

/// What a capture saw. Launches touch no memory here, so their place among the work does not matter.
struct Recording {
    device: DeviceId,
    work: Vec<Work>,
    launches: u64,
}

impl Graph for Recording {
    unsafe fn replay(&self, queue: &mut dyn Queue) -> Result<()> {
        if queue.device() != self.device {
            return Err(ArgError::WrongDevice { operand: "queue", plan: self.device, got: queue.device() }.into());
        }
        let queue: &mut NullQueue = queue.downcast_mut().expect("same device, so same backend");
        queue.usable()?;
        for &work in &self.work {
            // SAFETY: the caller keeps every buffer of the recording alive and unshared.
            unsafe { queue.submit(work) };
        }
        (0..self.launches).try_for_each(|_| queue.launch())
    }
}
