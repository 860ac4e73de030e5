//! Copies and fills. They are kernels, because a kernel knows memory by address, as kp does, and moves any number of bytes
//! from and to any address; the driver's own copies want buffers, its fills whole words.

use crate::{
    driver::{Logical, Status},
    launch::{self, push},
    pipelines::{Build, Function, Pipelines},
    queue::VulkanQueue,
    shaders::{Shader, shader},
};
use kp_hal::Result;

static COPY: Shader = shader!("common", "copy");
static FILL: Shader = shader!("common", "fill");

/// Threads of a group, as the sources have it.
const THREADS: u64 = 256;

/// Most groups; each moves several pieces.
const MOST_GROUPS: u32 = 16_384;

/// The two kernels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    copy: Function,
    fill: Function,
    most: u32,
}

push! {
    /// Arguments of `copy.comp`.
    struct CopyPush {
        dst: u64,
        src: u64,
        bytes: u64,
    }
}

push! {
    /// Arguments of `fill.comp`.
    struct FillPush {
        dst: u64,
        bytes: u64,
        /// The byte four times.
        word: u32,
        unused: u32,
    }
}

impl Transfer {
    pub(crate) fn new(device: &Logical, pipelines: &Pipelines) -> std::result::Result<Self, Status> {
        let build = |shader| pipelines.function(&Build { shader, constants: Vec::new(), subgroup: None }, false);
        Ok(Self { copy: build(&COPY)?, fill: build(&FILL)?, most: device.seen.facts.max_groups.min(MOST_GROUPS) })
    }

    /// Pieces of 16 bytes, so many to a thread.
    fn groups(&self, bytes: u64, each: u64) -> u32 {
        launch::groups(bytes.div_ceil(16 * each * THREADS), self.most)
    }
}

impl VulkanQueue {
    /// Enqueues a copy between addresses.
    ///
    /// # Errors
    /// As a launch.
    ///
    /// # Safety
    /// - Both name `bytes` bytes that the device reaches, which nothing unordered with this queue accesses until the copy is
    ///   done.
    pub(crate) unsafe fn enqueue_copy(&mut self, dst: u64, src: u64, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let transfer = self.transfer();
        let (groups, push) = (transfer.groups(bytes, 4), CopyPush { dst, src, bytes });
        self.told(
            |hazards| {
                hazards.access(src, bytes, false);
                hazards.access(dst, bytes, true);
            },
            // SAFETY: the kernel takes a `CopyPush`; the rest is the caller's promise.
            |queue| unsafe { queue.launch("copy", transfer.copy, groups, &push) },
        )
    }

    /// Enqueues setting `bytes` bytes at `dst`.
    ///
    /// # Errors
    /// As a launch.
    ///
    /// # Safety
    /// - As of `enqueue_copy`.
    pub(crate) unsafe fn enqueue_fill(&mut self, dst: u64, bytes: u64, byte: u8) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let (transfer, word) = (self.transfer(), u32::from_ne_bytes([byte; 4]));
        let push = FillPush { dst, bytes, word, unused: 0 };
        self.told(
            |hazards| hazards.access(dst, bytes, true),
            // SAFETY: the kernel takes a `FillPush`; the rest is the caller's promise.
            |queue| unsafe { queue.launch("fill", transfer.fill, transfer.groups(bytes, 1), &push) },
        )
    }
}
