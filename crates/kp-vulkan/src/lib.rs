//! The Vulkan backend of kp.
//!
//! Any GPU with a driver of Vulkan 1.2 that has buffer addresses, timeline semaphores, 8 and 16-bit storage and 64-bit
//! integers: see `docs/vulkan.md`. The loader is opened when the program runs; without one, the backend says what it looked
//! for. Shaders are GLSL, compiled to SPIR-V when kp is developed, and embedded.
//!
//! ```text
//! lib.rs         BACKEND and KERNELS: all the crate offers
//! driver/        the loader and its instance, what drivers say, open devices, results in words
//! caps.rs        what a driver says of a device → Caps, a pure function
//! device.rs      listing, opening
//! memory.rs      blocks of device memory, given out in ranges; what is dropped is freed when the queues are past it
//! timeline.rs    how far each queue is: one semaphore, its marks
//! commands.rs    command buffers: what a queue was told and has not submitted, what it has
//! queue.rs       copies, marks, waiting, scratch
//! peaks.rs       what the device does, measured
//! staging.rs     pinned memory for copies from and to the host
//! graph.rs       recording and replaying
//! hazards.rs     which launches must wait for others
//! pipelines.rs   shaders made ready, once; the driver's cache of them on disk
//! probe.rs       what Vulkan does not say of a device, asked of the device
//! shaders.rs     SPIR-V
//! launch.rs      from a plan to a command buffer
//! transfer.rs    copies and fills, which are kernels here
//! layouts.rs     where operands lie and what they are, as shaders are told; what all of them refuse
//! gemm/ …        an op's list, best first; one kernel per file
//! ```

mod activation;
mod attention;
mod attention_backward;
mod caps;
mod cast;
mod commands;
mod dequantize;
mod device;
mod driver;
mod gather;
mod gemm;
mod graph;
mod grouped_gemm;
mod hazards;
mod launch;
mod layouts;
mod memory;
mod norm;
mod norm_backward;
mod peaks;
mod pipelines;
mod probe;
mod quantize;
mod queue;
mod reduce;
mod rope;
mod shaders;
mod softmax;
mod staging;
mod timeline;
mod transfer;

pub use device::VulkanDevice;
pub use queue::VulkanQueue;

use kp_hal::{Backend, Kernels};

/// What the backend is called.
pub(crate) const NAME: &str = "vulkan";

/// The backend: `vulkan`, with every physical device that the loader shows this process and that has what kp needs.
pub static BACKEND: &dyn Backend = &device::Vulkan;

/// Every kernel, best first within an op.
#[allow(clippy::needless_update, reason = "an op that is new breaks no backend")]
pub static KERNELS: Kernels = Kernels {
    activation: activation::LIST,
    attention: attention::LIST,
    attention_backward: attention_backward::LIST,
    cast: cast::LIST,
    dequantize: dequantize::LIST,
    gather: gather::LIST,
    gemm: gemm::LIST,
    grouped_gemm: grouped_gemm::LIST,
    norm: norm::LIST,
    norm_backward: norm_backward::LIST,
    quantize: quantize::LIST,
    reduce: reduce::LIST,
    rope: rope::LIST,
    softmax: softmax::LIST,
    ..Kernels::NONE
};
