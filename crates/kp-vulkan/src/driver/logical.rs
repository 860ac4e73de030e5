//! An open device: its functions and its queues.

use super::{
    Loader, Seen,
    newer::{Bfloat16Features, CooperativeMatrix2Features},
    status::{Status, checked},
};
use ash::vk;
use std::{
    ffi::c_char,
    ops::Deref,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

/// A `VkDevice` with the queues of one family. Destroyed when the last who uses it drops it.
pub(crate) struct Logical {
    raw: ash::Device,
    pub(crate) seen: Seen,
    pub(crate) loader: &'static Loader,
    lanes: Vec<Mutex<vk::Queue>>,
    next: AtomicUsize,
    pub(crate) layout: vk::PipelineLayout,
}

/// Bytes of a kernel's arguments: what every driver has room for.
pub(crate) const PUSH_BYTES: u32 = 128;

/// Numbers that may follow them where shaders are open, as drivers for processors have room for.
pub(crate) const OPEN_NUMBERS: usize = 32;
pub(crate) const OPEN_BYTES: u32 = PUSH_BYTES + 4 * OPEN_NUMBERS as u32;

/// Most queues of the driver that kp's queues are spread over.
const LANES: u32 = 8;

impl Logical {
    pub(crate) fn open(loader: &'static Loader, seen: Seen) -> Result<Self, Status> {
        let can = seen.facts.can;
        let lanes = seen.queues.clamp(1, LANES);
        let priorities = [1.0; LANES as usize];
        let queues = [vk::DeviceQueueCreateInfo::default()
            .queue_family_index(seen.family)
            .queue_priorities(&priorities[..lanes as usize])];
        let names: Vec<*const c_char> = seen.extensions.iter().map(|name| name.as_ptr()).collect();
        let base = vk::PhysicalDeviceFeatures::default().shader_int64(true).shader_float64(can.f64);
        let mut eleven = vk::PhysicalDeviceVulkan11Features::default().storage_buffer16_bit_access(true);
        let mut twelve = vk::PhysicalDeviceVulkan12Features::default()
            .buffer_device_address(true)
            .timeline_semaphore(true)
            .storage_buffer8_bit_access(true)
            .shader_float16(can.f16)
            .shader_int8(can.i8)
            .vulkan_memory_model(can.coopmat)
            .vulkan_memory_model_device_scope(can.coopmat);
        let mut control = vk::PhysicalDeviceSubgroupSizeControlFeatures::default().subgroup_size_control(true);
        let mut dot = vk::PhysicalDeviceShaderIntegerDotProductFeatures::default().shader_integer_dot_product(true);
        let mut coopmat = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default().cooperative_matrix(true);
        let mut bf16 = Bfloat16Features::default();
        bf16.shader_bfloat16_type = can.bf16.into();
        bf16.shader_bfloat16_cooperative_matrix = can.bf16_coopmat.into();
        let mut coopmat2 = CooperativeMatrix2Features::default();
        (coopmat2.reductions, coopmat2.conversions, coopmat2.per_element_operations) = (vk::TRUE, vk::TRUE, vk::TRUE);
        let mut info = vk::DeviceCreateInfo::default()
            .queue_create_infos(&queues)
            .enabled_extension_names(&names)
            .enabled_features(&base)
            .push_next(&mut eleven)
            .push_next(&mut twelve);
        if can.subgroup_size {
            info = info.push_next(&mut control);
        }
        if can.dot8 {
            info = info.push_next(&mut dot);
        }
        if can.coopmat {
            info = info.push_next(&mut coopmat);
        }
        if can.coopmat2 {
            info = info.push_next(&mut coopmat2);
        }
        if can.bf16 {
            info = info.push_next(&mut bf16);
        }
        // SAFETY: the chain holds structures that the device knows, and asks for what it offers.
        let raw = checked("vkCreateDevice", unsafe { loader.instance.create_device(seen.raw, &info, None) })?;
        // SAFETY: the family has that many queues, which were just created.
        let queue = |index| unsafe { raw.get_device_queue(seen.family, index) };
        let lanes = (0..lanes).map(|index| Mutex::new(queue(index))).collect();
        let bytes = if seen.is_open() { OPEN_BYTES } else { PUSH_BYTES };
        let push = [vk::PushConstantRange::default().stage_flags(vk::ShaderStageFlags::COMPUTE).size(bytes)];
        let info = vk::PipelineLayoutCreateInfo::default().push_constant_ranges(&push);
        // SAFETY: the device is alive; destroyed by `drop`.
        let layout = checked("vkCreatePipelineLayout", unsafe { raw.create_pipeline_layout(&info, None) });
        let layout = layout.inspect_err(|_| {
            // SAFETY: nothing else was made of it.
            unsafe { raw.destroy_device(None) };
        })?;
        Ok(Self { raw, seen, loader, lanes, next: AtomicUsize::new(0), layout })
    }

    /// The lane for a new queue: each in turn.
    pub(crate) fn lane(&self) -> usize {
        self.next.fetch_add(1, Ordering::Relaxed) % self.lanes.len()
    }

    /// Submits to a lane, which one thread at a time may do.
    ///
    /// # Errors
    /// What the driver refuses.
    ///
    /// # Safety
    /// - The command buffers are complete, of this device, and what they use is alive until they have run.
    pub(crate) unsafe fn submit(&self, lane: usize, info: &vk::SubmitInfo<'_>) -> Result<(), Status> {
        let queue = self.lanes[lane].lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the caller's promise; the lock makes this thread the only one.
        let done = unsafe { self.raw.queue_submit(*queue, std::slice::from_ref(info), vk::Fence::null()) };
        checked("vkQueueSubmit", done)
    }
}

impl Deref for Logical {
    type Target = ash::Device;

    fn deref(&self) -> &ash::Device {
        &self.raw
    }
}

impl Drop for Logical {
    fn drop(&mut self) {
        // SAFETY: whoever used the device held it alive, and is gone with all that was made of it.
        unsafe {
            // A failure means that the device is lost, where nothing runs.
            let _ = self.raw.device_wait_idle();
            self.raw.destroy_pipeline_layout(self.layout, None);
            self.raw.destroy_device(None);
        }
    }
}
