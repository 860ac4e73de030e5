//! A queue: its commands, what may be said of its past, and what its launches reuse.

use crate::{
    commands::{self, Commands},
    device::VulkanDevice,
    driver::{self, Logical, Status, checked},
    graph::Recording,
    hazards::Hazards,
    memory::Held,
    staging::{SLOT_BYTES, Staging},
    timeline::{MARKS, Timeline},
    transfer::Transfer,
};
use ash::vk;
use kp_hal::{
    ArgError, Device, DeviceId, Error, ErrorKind, Fault, Graph, MemoryKind, Nanos, Point, Queue, Result, Slice,
    SliceMut, device::same_length, fault::Launches,
};
use std::sync::Arc;

/// An in-order stream of work on a Vulkan device.
///
/// Dropping it waits for its work.
pub struct VulkanQueue {
    pub(crate) commands: Arc<Commands>,
    pub(crate) staging: Staging,
    pub(crate) scratch: Option<Arc<Held>>,
    pub(crate) recording: Option<Recording>,
    hazards: Hazards,
    launches: Launches,
    queries: vk::QueryPool,
    /// The last mark known to be reached.
    done: u64,
    fault: Option<Box<Fault>>,
    device: Arc<VulkanDevice>,
}

impl VulkanQueue {
    pub(crate) fn new(device: Arc<VulkanDevice>) -> Result<Self> {
        let made = || -> std::result::Result<_, Status> {
            let logical = device.logical();
            let commands = Commands::start(logical, device.timelines())?;
            let info =
                vk::QueryPoolCreateInfo::default().query_type(vk::QueryType::TIMESTAMP).query_count(MARKS as u32);
            // SAFETY: the device is alive; destroyed by `drop`.
            let queries = checked("vkCreateQueryPool", unsafe { logical.create_query_pool(&info, None) })?;
            Ok((commands, queries))
        };
        let (commands, queries) = made().map_err(|status: Status| status.refused(device.lost()))?;
        Ok(Self {
            commands,
            staging: Staging::default(),
            scratch: None,
            recording: None,
            hazards: Hazards::default(),
            launches: Launches::default(),
            queries,
            done: 0,
            fault: None,
            device,
        })
    }

    pub(crate) fn owner(&self) -> &Arc<VulkanDevice> {
        &self.device
    }

    pub(crate) fn timeline(&self) -> &Arc<Timeline> {
        self.commands.timeline()
    }

    pub(crate) fn transfer(&self) -> Transfer {
        self.device.transfer()
    }

    /// The address of the scratch reserved so far.
    ///
    /// # Panics
    /// If none was reserved, which `Plan::launch` does.
    pub(crate) fn scratch_addr(&mut self) -> u64 {
        if let Some(recording) = &mut self.recording {
            recording.uses_scratch = true;
        }
        let scratch = self.scratch.as_ref().expect("scratch was reserved");
        let (addr, bytes) = (scratch.addr(), scratch.bytes());
        self.hazards().access(addr, bytes, true);
        addr
    }

    /// What must wait for what, of the recording if there is one.
    #[inline]
    pub(crate) fn hazards(&mut self) -> &mut Hazards {
        match &mut self.recording {
            Some(recording) => &mut recording.hazards,
            None => &mut self.hazards,
        }
    }

    /// Fails if earlier work did.
    #[inline]
    pub(crate) fn usable(&self) -> Result<()> {
        match &self.fault {
            None => Ok(()),
            Some(fault) => Err((**fault).clone().into()),
        }
    }

    /// The error for a call that failed: a refusal, or, from now on, the fault.
    #[cold]
    fn failed(&mut self, status: Status) -> Error {
        let lost = status.is_lost();
        if !lost && !self.commands.is_broken() {
            return status.error().into();
        }
        let device = lost.then(|| self.device.lost());
        let fault = self.launches.fault(self.done, self.timeline().marks(), status.error(), device);
        self.fault.insert(Box::new(fault)).as_ref().clone().into()
    }

    #[inline]
    pub(crate) fn checked<T>(&mut self, result: std::result::Result<T, Status>) -> Result<T> {
        result.map_err(|status| self.failed(status))
    }

    /// Lets `record` record a command by name: to the recording if there is one, else to what is submitted next, which that may be.
    #[inline]
    pub(crate) fn record(
        &mut self,
        name: &'static str,
        record: impl FnOnce(&Logical, vk::CommandBuffer),
    ) -> Result<()> {
        if let Some(recording) = &mut self.recording {
            record(self.device.logical(), recording.buffer());
            recording.kernels.push(name);
            return Ok(());
        }
        self.launched(name);
        let recorded = self.commands.record(record);
        self.checked(recorded)
    }

    /// Notes a launch by name.
    pub(crate) fn launched(&mut self, name: &'static str) {
        self.launches.note(name, self.timeline().marks());
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

    /// Blocks until everything is done.
    fn finish(&mut self) -> Result<()> {
        let finished = self.commands.finish();
        self.checked(finished)?;
        self.done = self.timeline().marks();
        self.hazards.passed();
        driver::complaint()
    }
}

impl Queue for VulkanQueue {
    fn device(&self) -> DeviceId {
        self.device.id()
    }

    fn upload(&mut self, dst: SliceMut<'_>, src: &[u8]) -> Result<()> {
        self.immediate("upload")?;
        self.here("dst", dst.device())?;
        same_length(dst.bytes(), src.len() as u64)?;
        for (piece, to) in src.chunks(SLOT_BYTES).zip((dst.addr()..).step_by(SLOT_BYTES)) {
            let place = self.place(piece.len())?;
            place.write(piece);
            // SAFETY: the place holds that many bytes and is given to nobody else before the copy is done; `dst` is borrowed
            // now, and freed only after this queue is past the copy.
            unsafe { self.enqueue_copy(to, place.addr, piece.len() as u64) }?;
            self.placed();
        }
        Ok(())
    }

    fn download(&mut self, dst: &mut [u8], src: Slice<'_>) -> Result<()> {
        self.immediate("download")?;
        self.here("src", src.device())?;
        same_length(dst.len() as u64, src.bytes())?;
        // A download that failed read nothing.
        self.all_read();
        // All slots but one are on their way while the host waits for the first of them.
        const TURN: usize = 8 * SLOT_BYTES;
        for (turn, from) in dst.chunks_mut(TURN).zip((src.addr()..).step_by(TURN)) {
            let mut places = Vec::with_capacity(TURN / SLOT_BYTES);
            for (piece, from) in turn.chunks(SLOT_BYTES).zip((from..).step_by(SLOT_BYTES)) {
                let place = self.place_to_read(piece.len())?;
                // SAFETY: `src` is borrowed until the queue is empty, below; the place is given to nobody else before.
                unsafe { self.enqueue_copy(place.addr, from, piece.len() as u64) }?;
                self.placed();
                places.push(place);
            }
            self.finish()?;
            turn.chunks_mut(SLOT_BYTES).zip(places).for_each(|(piece, place)| place.read(piece));
            self.all_read();
        }
        self.finish()
    }

    fn copy(&mut self, dst: SliceMut<'_>, src: Slice<'_>) -> Result<()> {
        self.usable()?;
        self.here("dst", dst.device())?;
        self.here("src", src.device())?;
        same_length(dst.bytes(), src.bytes())?;
        // SAFETY: both views have that many bytes; they are freed only after this queue is past the copy.
        unsafe { self.enqueue_copy(dst.addr(), src.addr(), dst.bytes()) }
    }

    fn fill(&mut self, dst: SliceMut<'_>, byte: u8) -> Result<()> {
        self.usable()?;
        self.here("dst", dst.device())?;
        // SAFETY: the view has that many bytes; they are freed only after this queue is past the fill.
        unsafe { self.enqueue_fill(dst.addr(), dst.bytes(), byte) }
    }

    fn mark(&mut self) -> Result<Point> {
        self.immediate("a mark")?;
        let (queries, seq) = (self.queries, self.timeline().marks() + 1);
        let recorded = self.commands.record(|device, buffer| {
            commands::barrier(device, buffer);
            if device.seen.timestamp_bits > 0 {
                let slot = (seq % MARKS) as u32;
                // SAFETY: the buffer is being recorded to; the slot is of the pool, and its last use is earlier on this queue.
                unsafe {
                    device.cmd_reset_query_pool(buffer, queries, slot, 1);
                    device.cmd_write_timestamp(buffer, vk::PipelineStageFlags::BOTTOM_OF_PIPE, queries, slot);
                }
            }
        });
        let flushed = recorded.and_then(|()| self.commands.flush());
        self.checked(flushed)?;
        self.hazards.passed();
        self.timeline().mark(self.timeline().submitted());
        Ok(Point { queue: self.timeline().number(), seq })
    }

    fn wait(&mut self, point: Point) -> Result<()> {
        self.immediate("waiting for another queue")?;
        // What this queue was given before comes before anyway; a queue that is not found has no work left.
        let other = self.device.timelines().find(point.queue).filter(|other| !Arc::ptr_eq(other, self.timeline()));
        let Some(other) = other else { return Ok(()) };
        let Some(value) = other.value_of(point.seq) else { return Ok(()) };
        let waits = self.commands.wait_for(other, value);
        self.checked(waits)
    }

    fn reached(&mut self, point: Point) -> Result<bool> {
        self.usable()?;
        if point.queue != self.timeline().number() {
            return Ok(false);
        }
        if point.seq <= self.done {
            return Ok(true);
        }
        let Some(value) = self.timeline().value_of(point.seq) else { return Ok(false) };
        let reached = self.timeline().has_reached(value);
        let reached = self.checked(reached)?;
        if reached {
            self.done = point.seq;
        }
        Ok(reached)
    }

    fn elapsed(&mut self, from: Point, to: Point) -> Result<Option<Nanos>> {
        self.usable()?;
        let known = |point: Point| point.queue == self.timeline().number() && self.timeline().remembers(point.seq);
        let device = self.device.logical();
        let bits = device.seen.timestamp_bits;
        if !known(from) || !known(to) || bits == 0 {
            return Ok(None);
        }
        let ticks = |point: Point| {
            let (mut ticks, slot) = ([0_u64], (point.seq % MARKS) as u32);
            let flags = vk::QueryResultFlags::TYPE_64 | vk::QueryResultFlags::WAIT;
            // SAFETY: the pool is alive and the slot's timestamp was submitted.
            let asked = unsafe { device.get_query_pool_results(self.queries, slot, &mut ticks, flags) };
            checked("vkGetQueryPoolResults", asked).map(|()| ticks[0])
        };
        let both = ticks(from).and_then(|from| Ok((from, ticks(to)?)));
        let period = device.seen.timestamp_period;
        let (from, to) = self.checked(both)?;
        // The counter has so many bits and goes round.
        let passed = to.wrapping_sub(from) & u64::MAX >> (64 - bits.min(64));
        Ok(Some(Nanos::from_secs(passed as f64 * period * 1e-9)))
    }

    fn sync(&mut self) -> Result<()> {
        self.immediate("sync")?;
        self.finish()
    }

    fn reserve_scratch(&mut self, bytes: u64) -> Result<()> {
        if self.scratch.as_ref().is_some_and(|scratch| scratch.bytes() >= bytes) {
            return self.usable();
        }
        self.immediate("growing scratch")?;
        // The old one first, so that both need not fit; nobody gets it until this queue is past it.
        self.scratch = None;
        self.scratch = Some(Arc::new(self.device.memory_pool().alloc(bytes, MemoryKind::Device)?));
        Ok(())
    }

    fn fill_scratch(&mut self, byte: u8) -> Result<()> {
        self.immediate("filling scratch")?;
        let Some((addr, bytes)) = self.scratch.as_ref().map(|scratch| (scratch.addr(), scratch.bytes())) else {
            return Ok(());
        };
        // SAFETY: it is this queue's alone, which frees it only after it is past the fill.
        unsafe { self.enqueue_fill(addr, bytes, byte) }
    }

    fn begin_capture(&mut self) -> Result<()> {
        self.begin_recording()
    }

    fn end_capture(&mut self) -> Result<Box<dyn Graph>> {
        self.end_recording()
    }
}

impl Drop for VulkanQueue {
    fn drop(&mut self) {
        // A failure to submit leaves nothing more under way; any other means that the device is lost, where nothing runs.
        let _ = self.commands.finish();
        // SAFETY: nothing that was submitted uses the pool any more.
        unsafe { self.device.logical().destroy_query_pool(self.queries, None) };
    }
}
