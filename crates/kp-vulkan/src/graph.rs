//! Recording a queue's work, and submitting it again: a command buffer that is kept.

use crate::{
    commands::{self, Kept},
    driver::{Logical, Status, checked},
    hazards::Hazards,
    memory::Held,
    queue::VulkanQueue,
};
use ash::vk;
use kp_hal::{ArgError, DeviceId, ErrorKind, Graph, MemoryKind, Queue, Result};
use std::sync::Arc;

/// What a queue keeps in mind while it records.
pub(crate) struct Recording {
    recorded: Recorded,
    /// The queue's own scratch. What is recorded gets scratch of its own, because it may run beside the queue's later work.
    set_aside: Option<Arc<Held>>,
    pub(crate) uses_scratch: bool,
    pub(crate) hazards: Hazards,
    /// Names of the kernels seen.
    pub(crate) kernels: Vec<&'static str>,
}

impl Recording {
    pub(crate) fn buffer(&self) -> vk::CommandBuffer {
        self.recorded.buffer
    }
}

/// A command buffer with a pool of its own, so that it may be dropped by any thread.
struct Recorded {
    device: Arc<Logical>,
    pool: vk::CommandPool,
    buffer: vk::CommandBuffer,
}

impl Recorded {
    fn begin(device: &Arc<Logical>) -> std::result::Result<Self, Status> {
        let pool = commands::pool(device, vk::CommandPoolCreateFlags::empty())?;
        let mut recorded = Self { device: device.clone(), pool, buffer: vk::CommandBuffer::null() };
        recorded.buffer = commands::allocate(device, pool)?;
        // It may be submitted again before it has run.
        let info = vk::CommandBufferBeginInfo::default().flags(vk::CommandBufferUsageFlags::SIMULTANEOUS_USE);
        // SAFETY: the buffer is new.
        checked("vkBeginCommandBuffer", unsafe { device.begin_command_buffer(recorded.buffer, &info) })?;
        Ok(recorded)
    }

    fn end(&self) -> std::result::Result<(), Status> {
        commands::visible_to_host(&self.device, self.buffer);
        // SAFETY: the buffer is being recorded to.
        checked("vkEndCommandBuffer", unsafe { self.device.end_command_buffer(self.buffer) })
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        // SAFETY: whoever submitted the buffer holds it until it has run.
        unsafe { self.device.destroy_command_pool(self.pool, None) };
    }
}

impl VulkanQueue {
    /// Starts recording.
    ///
    /// # Errors
    /// `NotCapturable` while recording; `OutOfMemory`, because a recording has as much scratch as its queue; `Driver`.
    pub(crate) fn begin_recording(&mut self) -> Result<()> {
        self.immediate("a capture within a capture")?;
        let memory = self.owner().memory_pool();
        let own = |scratch: &Arc<Held>| memory.alloc(scratch.bytes(), MemoryKind::Device).map(Arc::new);
        let own = self.scratch.as_ref().map(own).transpose()?;
        let begun = Recorded::begin(self.owner().logical());
        let recorded = self.checked(begun)?;
        let set_aside = std::mem::replace(&mut self.scratch, own);
        self.recording = Some(Recording {
            recorded,
            set_aside,
            uses_scratch: false,
            // Of what comes before a replay.
            hazards: Hazards::after_unknown(),
            kernels: Vec::new(),
        });
        Ok(())
    }

    /// Ends recording, whatever became of it: the queue runs again.
    ///
    /// # Errors
    /// `NotCapturable` if nothing was being recorded; `Driver` if the recording is broken.
    pub(crate) fn end_recording(&mut self) -> Result<Box<dyn Graph>> {
        let Some(Recording { recorded, set_aside, uses_scratch, kernels, .. }) = self.recording.take() else {
            return Err(ErrorKind::NotCapturable { what: "an end without a beginning" }.into());
        };
        let scratch = std::mem::replace(&mut self.scratch, set_aside).filter(|_| uses_scratch);
        let ended = recorded.end();
        self.checked(ended)?;
        let recorded = Arc::new(recorded);
        Ok(Box::new(Replay { recorded, device: self.device(), kernels, _scratch: scratch }))
    }
}

/// Recorded work, ready to be submitted.
struct Replay {
    recorded: Arc<Recorded>,
    device: DeviceId,
    kernels: Vec<&'static str>,
    /// Its kernels write there.
    _scratch: Option<Arc<Held>>,
}

impl Graph for Replay {
    unsafe fn replay(&self, queue: &mut dyn Queue) -> Result<()> {
        if queue.device() != self.device {
            return Err(ArgError::WrongDevice { operand: "queue", plan: self.device, got: queue.device() }.into());
        }
        let queue: &mut VulkanQueue = queue.downcast_mut().expect("same device, so same backend");
        queue.immediate("a replay")?;
        // The buffers it uses are alive, as the caller promises, and its own are kept with the submission.
        let kept: Kept = self.recorded.clone();
        let replayed = queue.commands.replay(self.recorded.buffer, kept);
        queue.checked(replayed)?;
        queue.hazards().add_unknown();
        self.kernels.iter().for_each(|kernel| queue.launched(kernel));
        Ok(())
    }
}
