//! A queue's command buffers: the one that is open, those under way, those to use again.
//!
//! Commands wait in an open buffer until there are some or somebody wants to know of them: a submission costs many times what
//! recording a launch does. The first after a wait goes at once, the next two together, then four: the device starts soon, and
//! many launches share a submission.
//!
//! A queue records alone, but any thread may submit what it left open: memory that such commands use comes back only when they
//! have run, and the queue's owner may never ask for that.

use crate::{
    driver::{Logical, Status, checked},
    timeline::{Timeline, Timelines},
};
use ash::vk;
use std::{
    any::Any,
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Commands that wait for others, at most.
const MOST: u32 = 64;

/// What a submission uses and must outlive it.
pub(crate) type Kept = Arc<dyn Any + Send + Sync>;

/// One queue's, and its place among the timelines of the device.
pub(crate) struct Commands {
    device: Arc<Logical>,
    timeline: Arc<Timeline>,
    timelines: Arc<Timelines>,
    lane: usize,
    buffers: Mutex<Buffers>,
}

struct Buffers {
    pool: vk::CommandPool,
    open: Option<vk::CommandBuffer>,
    /// Commands in the open buffer.
    count: u32,
    /// As many are submitted.
    enough: u32,
    /// Other queues' values that the next submission waits for.
    waits: Vec<(Arc<Timeline>, u64)>,
    flying: VecDeque<Flight>,
    free: Vec<vk::CommandBuffer>,
    /// Why commands that were accepted will never run.
    broken: Option<Status>,
}

/// A submission that may still run.
struct Flight {
    value: u64,
    buffer: Option<vk::CommandBuffer>,
    kept: Vec<Kept>,
}

impl Commands {
    /// Of a new queue, on a timeline of its own.
    ///
    /// # Errors
    /// What the driver refuses.
    pub(crate) fn start(device: &Arc<Logical>, timelines: &Arc<Timelines>) -> Result<Arc<Self>, Status> {
        let timeline = timelines.make(device)?;
        let buffers = Buffers {
            pool: pool(device, vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER)?,
            open: None,
            count: 0,
            enough: 1,
            waits: Vec::new(),
            flying: VecDeque::new(),
            free: Vec::new(),
            broken: None,
        };
        let (device, lane, buffers) = (device.clone(), device.lane(), Mutex::new(buffers));
        let made = Arc::new(Self { device, timeline, timelines: timelines.clone(), lane, buffers });
        timelines.add(&made);
        Ok(made)
    }

    pub(crate) fn timeline(&self) -> &Arc<Timeline> {
        &self.timeline
    }

    /// Whether commands that were accepted will never run.
    pub(crate) fn is_broken(&self) -> bool {
        self.buffers().broken.is_some()
    }

    /// Lets `record` record a command to the open buffer, opened if need be, and submits that if it is time.
    ///
    /// # Errors
    /// What the driver refuses, of a submission for ever.
    #[inline]
    pub(crate) fn record(&self, record: impl FnOnce(&Logical, vk::CommandBuffer)) -> Result<(), Status> {
        let mut buffers = self.buffers();
        let buffer = match buffers.open {
            Some(buffer) => buffer,
            None => self.open(&mut buffers)?,
        };
        record(&self.device, buffer);
        buffers.count += 1;
        if buffers.count >= buffers.enough {
            buffers.enough = MOST.min(2 * buffers.enough);
            self.submit(&mut buffers, None)?;
        }
        Ok(())
    }

    fn open(&self, buffers: &mut Buffers) -> Result<vk::CommandBuffer, Status> {
        buffers.check()?;
        self.retire(buffers)?;
        let buffer = match buffers.free.pop() {
            Some(buffer) => buffer,
            None => allocate(&self.device, buffers.pool)?,
        };
        let info = vk::CommandBufferBeginInfo::default().flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        // SAFETY: the buffer is not under way; beginning resets it.
        checked("vkBeginCommandBuffer", unsafe { self.device.begin_command_buffer(buffer, &info) })?;
        self.timeline.promise();
        buffers.open = Some(buffer);
        buffers.count = 0;
        Ok(buffer)
    }

    /// Makes the next submission wait for `value` of another queue; what was told before does not.
    ///
    /// # Errors
    /// As [`Self::flush`].
    pub(crate) fn wait_for(&self, other: Arc<Timeline>, value: u64) -> Result<(), Status> {
        let mut buffers = self.buffers();
        self.submit(&mut buffers, None)?;
        buffers.waits.push((other, value));
        Ok(())
    }

    /// Submits what is open.
    ///
    /// # Errors
    /// What the driver refuses, for ever: the commands are lost, and what follows relies on them.
    pub(crate) fn flush(&self) -> Result<(), Status> {
        self.submit(&mut self.buffers(), None)
    }

    /// Submits what is open, and `recorded` behind it, which `kept` keeps alive.
    ///
    /// # Errors
    /// As [`Self::flush`].
    pub(crate) fn replay(&self, recorded: vk::CommandBuffer, kept: Kept) -> Result<(), Status> {
        let mut buffers = self.buffers();
        self.retire(&mut buffers)?;
        self.submit(&mut buffers, Some((recorded, kept)))
    }

    fn submit(&self, buffers: &mut Buffers, recorded: Option<(vk::CommandBuffer, Kept)>) -> Result<(), Status> {
        buffers.check()?;
        let submitted = self.try_submit(buffers, recorded);
        if let Err(status) = submitted {
            buffers.broken = Some(status);
            self.timeline.give_up();
        }
        submitted
    }

    fn try_submit(&self, buffers: &mut Buffers, recorded: Option<(vk::CommandBuffer, Kept)>) -> Result<(), Status> {
        let open = buffers.open.take();
        if let Some(buffer) = open {
            visible_to_host(&self.device, buffer);
            // SAFETY: the buffer is being recorded to.
            checked("vkEndCommandBuffer", unsafe { self.device.end_command_buffer(buffer) })?;
        } else if recorded.is_none() {
            return Ok(());
        }
        let value = self.timeline.submitted() + 1;
        let (recorded, kept) = recorded.unzip();
        let both: [vk::CommandBuffer; 2] = [open.or(recorded), recorded].map(Option::unwrap_or_default);
        let both = &both[..usize::from(open.is_some()) + usize::from(recorded.is_some())];
        let (semaphores, values): (Vec<_>, Vec<_>) =
            buffers.waits.iter().map(|(one, value)| (one.semaphore(), *value)).unzip();
        let stages = vec![vk::PipelineStageFlags::ALL_COMMANDS; semaphores.len()];
        let (signals, signalled) = ([self.timeline.semaphore()], [value]);
        let mut numbers = vk::TimelineSemaphoreSubmitInfo::default()
            .wait_semaphore_values(&values)
            .signal_semaphore_values(&signalled);
        let info = vk::SubmitInfo::default()
            .command_buffers(both)
            .wait_semaphores(&semaphores)
            .wait_dst_stage_mask(&stages)
            .signal_semaphores(&signals)
            .push_next(&mut numbers);
        // SAFETY: the buffers are complete; memory is freed, and graphs and semaphores are dropped, after this flight.
        unsafe { self.device.submit(self.lane, &info) }?;
        self.timeline.submit(value);
        let mut kept: Vec<Kept> = kept.into_iter().collect();
        kept.extend(buffers.waits.drain(..).map(|(one, _)| one as Kept));
        buffers.flying.push_back(Flight { value, buffer: open, kept });
        Ok(())
    }

    /// Takes back the buffers of what has run.
    fn retire(&self, buffers: &mut Buffers) -> Result<(), Status> {
        while let Some(oldest) = buffers.flying.front()
            && self.timeline.has_reached(oldest.value)?
        {
            let Flight { buffer, kept, .. } = buffers.flying.pop_front().expect("it was just there");
            buffers.free.extend(buffer);
            drop(kept);
        }
        Ok(())
    }

    /// Blocks until all that was told is done.
    ///
    /// # Errors
    /// As [`Self::flush`]; what the driver says of a device that is lost.
    pub(crate) fn finish(&self) -> Result<(), Status> {
        let (flushed, waits) = {
            let mut buffers = self.buffers();
            buffers.enough = 1;
            (self.submit(&mut buffers, None), buffers.waits.clone())
        };
        // What was submitted before may be under way even if this was not.
        self.timeline.wait(self.timeline.submitted())?;
        flushed?;
        // Nothing may have been submitted since these were told.
        waits.iter().try_for_each(|(other, value)| other.wait(*value))?;
        self.retire(&mut self.buffers())
    }

    fn buffers(&self) -> MutexGuard<'_, Buffers> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Buffers {
    fn check(&self) -> Result<(), Status> {
        self.broken.map_or(Ok(()), Err)
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        // A failure to submit leaves nothing more under way; any other means that the device is lost, where nothing runs.
        let _ = self.finish();
        self.timelines.end(&self.timeline);
        // SAFETY: nothing of the pool is under way any more.
        unsafe { self.device.destroy_command_pool(self.buffers().pool, None) };
    }
}

/// A pool for buffers of the device's family.
///
/// # Errors
/// What the driver refuses.
pub(crate) fn pool(device: &Logical, flags: vk::CommandPoolCreateFlags) -> Result<vk::CommandPool, Status> {
    let info = vk::CommandPoolCreateInfo::default().queue_family_index(device.seen.family).flags(flags);
    // SAFETY: the device is alive; whoever asked destroys the pool.
    checked("vkCreateCommandPool", unsafe { device.create_command_pool(&info, None) })
}

/// A buffer of `pool`.
///
/// # Errors
/// What the driver refuses.
pub(crate) fn allocate(device: &Logical, pool: vk::CommandPool) -> Result<vk::CommandBuffer, Status> {
    let info = vk::CommandBufferAllocateInfo::default()
        .command_pool(pool)
        .level(vk::CommandBufferLevel::PRIMARY)
        .command_buffer_count(1);
    // SAFETY: the pool is alive and used by this thread alone.
    Ok(checked("vkAllocateCommandBuffers", unsafe { device.allocate_command_buffers(&info) })?[0])
}

/// Orders what follows in `buffer` behind everything before it, of earlier buffers of its lane too.
pub(crate) fn barrier(device: &Logical, buffer: vk::CommandBuffer) {
    use vk::{AccessFlags as Access, PipelineStageFlags as Stage};
    let memory = [vk::MemoryBarrier::default()
        .src_access_mask(Access::SHADER_WRITE)
        .dst_access_mask(Access::SHADER_READ | Access::SHADER_WRITE)];
    let (from, to) = (Stage::COMPUTE_SHADER, Stage::COMPUTE_SHADER);
    // SAFETY: the buffer is being recorded to.
    unsafe { device.cmd_pipeline_barrier(buffer, from, to, vk::DependencyFlags::empty(), &memory, &[], &[]) };
}

/// Makes what kernels wrote visible to the host once it knows that they have run.
pub(crate) fn visible_to_host(device: &Logical, buffer: vk::CommandBuffer) {
    use vk::{AccessFlags as Access, PipelineStageFlags as Stage};
    let memory =
        [vk::MemoryBarrier::default().src_access_mask(Access::SHADER_WRITE).dst_access_mask(Access::HOST_READ)];
    let (from, to) = (Stage::COMPUTE_SHADER, Stage::HOST);
    // SAFETY: the buffer is being recorded to.
    unsafe { device.cmd_pipeline_barrier(buffer, from, to, vk::DependencyFlags::empty(), &memory, &[], &[]) };
}
