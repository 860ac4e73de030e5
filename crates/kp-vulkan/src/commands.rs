//! A queue's command buffers: the one that is open, those under way, those to use again.
//!
//! Commands wait in an open buffer until there are some or somebody wants to know of them: a submission costs many times what
//! recording a launch does. The first after a wait goes at once, the next two together, then four: the device starts soon, and
//! many launches share a submission.

use crate::{
    driver::{Logical, Status, checked},
    timeline::Timeline,
};
use ash::vk;
use std::{any::Any, collections::VecDeque, sync::Arc};

/// Commands that wait for others, at most.
const MOST: u32 = 64;

/// What a submission uses and must outlive it.
pub(crate) type Kept = Arc<dyn Any + Send + Sync>;

pub(crate) struct Commands {
    device: Arc<Logical>,
    timeline: Arc<Timeline>,
    lane: usize,
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
}

/// A submission that may still run.
struct Flight {
    value: u64,
    buffer: Option<vk::CommandBuffer>,
    kept: Vec<Kept>,
}

impl Commands {
    pub(crate) fn new(device: &Arc<Logical>, timeline: &Arc<Timeline>) -> Result<Self, Status> {
        Ok(Self {
            device: device.clone(),
            timeline: timeline.clone(),
            lane: device.lane(),
            pool: pool(device, vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER)?,
            open: None,
            count: 0,
            enough: 1,
            waits: Vec::new(),
            flying: VecDeque::new(),
            free: Vec::new(),
        })
    }

    /// The open buffer, opened if need be.
    ///
    /// # Errors
    /// What the driver refuses.
    pub(crate) fn open(&mut self) -> Result<vk::CommandBuffer, Status> {
        if let Some(buffer) = self.open {
            return Ok(buffer);
        }
        self.retire()?;
        let buffer = match self.free.pop() {
            Some(buffer) => buffer,
            None => allocate(&self.device, self.pool)?,
        };
        let info = vk::CommandBufferBeginInfo::default().flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        // SAFETY: the buffer is not under way; beginning resets it.
        checked("vkBeginCommandBuffer", unsafe { self.device.begin_command_buffer(buffer, &info) })?;
        self.timeline.promise();
        self.open = Some(buffer);
        self.count = 0;
        Ok(buffer)
    }

    /// Counts a command in the open buffer and submits it if it is time.
    ///
    /// # Errors
    /// What the driver refuses.
    pub(crate) fn added(&mut self) -> Result<(), Status> {
        self.count += 1;
        if self.count >= self.enough {
            self.enough = MOST.min(2 * self.enough);
            self.flush(None)?;
        }
        Ok(())
    }

    /// Makes the next submission wait for `value` of another queue; what was told before does not.
    ///
    /// # Errors
    /// What the driver refuses.
    pub(crate) fn wait_for(&mut self, other: Arc<Timeline>, value: u64) -> Result<(), Status> {
        self.flush(None)?;
        self.waits.push((other, value));
        Ok(())
    }

    /// Submits what is open, and `recorded` behind it, which keeps itself alive.
    ///
    /// # Errors
    /// What the driver refuses.
    pub(crate) fn flush(&mut self, recorded: Option<(vk::CommandBuffer, Kept)>) -> Result<(), Status> {
        let open = self.open.take();
        if let Some(buffer) = open {
            visible_to_host(&self.device, buffer);
            // SAFETY: the buffer is being recorded to.
            checked("vkEndCommandBuffer", unsafe { self.device.end_command_buffer(buffer) })?;
        } else if recorded.is_none() {
            return Ok(());
        }
        let value = self.timeline.submitted() + 1;
        let (recorded, kept) = recorded.unzip();
        let buffers: [vk::CommandBuffer; 2] = [open.or(recorded), recorded].map(Option::unwrap_or_default);
        let buffers = &buffers[..usize::from(open.is_some()) + usize::from(recorded.is_some())];
        let (semaphores, values): (Vec<_>, Vec<_>) =
            self.waits.iter().map(|(one, value)| (one.semaphore(), *value)).unzip();
        let stages = vec![vk::PipelineStageFlags::ALL_COMMANDS; semaphores.len()];
        let (signals, signalled) = ([self.timeline.semaphore()], [value]);
        let mut numbers = vk::TimelineSemaphoreSubmitInfo::default()
            .wait_semaphore_values(&values)
            .signal_semaphore_values(&signalled);
        let info = vk::SubmitInfo::default()
            .command_buffers(buffers)
            .wait_semaphores(&semaphores)
            .wait_dst_stage_mask(&stages)
            .signal_semaphores(&signals)
            .push_next(&mut numbers);
        // SAFETY: the buffers are complete; memory is freed, and graphs and semaphores are dropped, after this flight.
        unsafe { self.device.submit(self.lane, &info) }?;
        self.timeline.submit(value);
        let mut kept: Vec<Kept> = kept.into_iter().collect();
        kept.extend(self.waits.drain(..).map(|(one, _)| one as Kept));
        self.flying.push_back(Flight { value, buffer: open, kept });
        Ok(())
    }

    /// Takes back the buffers of what has run.
    fn retire(&mut self) -> Result<(), Status> {
        while let Some(oldest) = self.flying.front()
            && self.timeline.has_reached(oldest.value)?
        {
            let Flight { buffer, kept, .. } = self.flying.pop_front().expect("it was just there");
            self.free.extend(buffer);
            drop(kept);
        }
        Ok(())
    }

    /// Blocks until all that was told is done.
    ///
    /// # Errors
    /// What the driver says of a device that is lost.
    pub(crate) fn finish(&mut self) -> Result<(), Status> {
        let flushed = self.flush(None);
        self.enough = 1;
        // What was submitted before may be under way even if this was not.
        self.timeline.wait(self.timeline.submitted())?;
        flushed?;
        // Nothing may have been submitted since these were told.
        self.waits.iter().try_for_each(|(other, value)| other.wait(*value))?;
        self.retire()
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        // A failure to submit leaves nothing more under way; any other means that the device is lost, where nothing runs.
        let _ = self.finish();
        // SAFETY: nothing of the pool is under way any more.
        unsafe { self.device.destroy_command_pool(self.pool, None) };
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
