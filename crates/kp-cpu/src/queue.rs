//! A stream of work that is done when it was submitted.
//!
//! Launches are parallel inside but return when they are finished. Device memory is host memory
//! here: a launch that went on behind the caller's back would race with ordinary Rust code.

use crate::{
    device::CpuDevice,
    memory::{Host, bytes, bytes_mut},
};
use kp_hal::{DeviceId, ErrorKind, Nanos, Point, Queue, Result, Slice, SliceMut, device::same_length, op::ArgError};
use std::{sync::Arc, time::Instant};

/// How many marks keep their time.
const REMEMBERED: usize = 1024;

/// A CPU queue.
pub(crate) struct CpuQueue {
    device: Arc<CpuDevice>,
    id: u32,
    marks: u64,
    times: Box<[Option<Instant>; REMEMBERED]>,
    scratch: Option<Host>,
}

impl CpuQueue {
    pub(crate) fn new(device: Arc<CpuDevice>, id: u32) -> Self {
        Self { device, id, marks: 0, times: Box::new([None; REMEMBERED]), scratch: None }
    }

    /// The scratch reserved so far.
    pub(crate) fn scratch(&mut self) -> &mut [u8] {
        match &mut self.scratch {
            Some(host) => host.as_mut_slice(),
            None => &mut [],
        }
    }

    fn here(&self, operand: &'static str, got: DeviceId) -> Result<()> {
        let plan = self.device();
        if got == plan { Ok(()) } else { Err(ArgError::WrongDevice { operand, plan, got }.into()) }
    }

    fn time(&self, seq: u64) -> Option<Instant> {
        let remembered = seq <= self.marks && self.marks - seq < REMEMBERED as u64;
        if remembered { self.times[seq as usize % REMEMBERED] } else { None }
    }
}

impl Queue for CpuQueue {
    fn device(&self) -> DeviceId {
        self.device.id
    }

    fn upload(&mut self, dst: SliceMut<'_>, src: &[u8]) -> Result<()> {
        same_length(dst.bytes(), src.len() as u64)?;
        self.here("dst", dst.device())?;
        // SAFETY: it is this device's; `dst` is exclusive.
        unsafe { bytes_mut(&dst) }.copy_from_slice(src);
        Ok(())
    }

    fn download(&mut self, dst: &mut [u8], src: Slice<'_>) -> Result<()> {
        same_length(dst.len() as u64, src.bytes())?;
        self.here("src", src.device())?;
        // SAFETY: it is this device's; `src` is shared, so nothing writes it.
        dst.copy_from_slice(unsafe { bytes(&src) });
        Ok(())
    }

    fn copy(&mut self, dst: SliceMut<'_>, src: Slice<'_>) -> Result<()> {
        same_length(dst.bytes(), src.bytes())?;
        self.here("dst", dst.device())?;
        self.here("src", src.device())?;
        // SAFETY: both are this device's; one is exclusive, the other shared, so they do not overlap.
        unsafe { bytes_mut(&dst).copy_from_slice(bytes(&src)) };
        Ok(())
    }

    fn copy_from_peer(&mut self, dst: SliceMut<'_>, src: Slice<'_>) -> Result<()> {
        same_length(dst.bytes(), src.bytes())?;
        self.here("dst", dst.device())?;
        if !crate::device::is_cpu(src.device()) {
            return Err(ErrorKind::Unavailable { what: "peer copies", why: "src is on no CPU device".into() }.into());
        }
        // SAFETY: both are CPU devices'; one is exclusive, the other shared, so they do not overlap.
        unsafe { bytes_mut(&dst).copy_from_slice(bytes(&src)) };
        Ok(())
    }

    fn fill(&mut self, dst: SliceMut<'_>, byte: u8) -> Result<()> {
        self.here("dst", dst.device())?;
        // SAFETY: it is this device's; `dst` is exclusive.
        unsafe { bytes_mut(&dst) }.fill(byte);
        Ok(())
    }

    fn mark(&mut self) -> Result<Point> {
        self.marks += 1;
        self.times[self.marks as usize % REMEMBERED] = Some(Instant::now());
        Ok(Point { queue: self.id, seq: self.marks })
    }

    fn wait(&mut self, _: Point) -> Result<()> {
        // Whatever another queue marked was finished when it was marked.
        Ok(())
    }

    fn reached(&mut self, point: Point) -> Result<bool> {
        Ok(point.queue == self.id && point.seq <= self.marks)
    }

    fn elapsed(&mut self, from: Point, to: Point) -> Result<Option<Nanos>> {
        if from.queue != self.id || to.queue != self.id {
            return Ok(None);
        }
        let (from, to) = (self.time(from.seq), self.time(to.seq));
        Ok(from.zip(to).map(|(from, to)| to.saturating_duration_since(from).into()))
    }

    fn sync(&mut self) -> Result<()> {
        Ok(())
    }

    fn reserve_scratch(&mut self, wanted: u64) -> Result<()> {
        if self.scratch.as_ref().is_some_and(|host| host.bytes() as u64 >= wanted) || wanted == 0 {
            return Ok(());
        }
        let memory = self.device.memory_now();
        let full = || ErrorKind::OutOfMemory { wanted, free: memory.free, total: memory.total };
        if wanted > memory.free {
            return Err(full().into());
        }
        self.scratch = None;
        self.scratch = Some(usize::try_from(wanted).ok().and_then(Host::new).ok_or_else(full)?);
        Ok(())
    }

    fn fill_scratch(&mut self, byte: u8) -> Result<()> {
        self.scratch().fill(byte);
        Ok(())
    }
}
