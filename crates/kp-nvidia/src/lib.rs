//! The NVIDIA backend of kp.
//!
//! The CUDA driver is opened when the program runs; without one, the backend says what it looked for. Kernels are CUDA
//! C++, compiled for the device's exact architecture when first planned, or before.
//!
//! ```text
//! lib.rs         BACKEND and KERNELS: all the crate offers
//! driver/        libcuda: functions found by name, results in words, contexts, streams, events
//! caps.rs        what the driver says of a device → Caps, a pure function
//! device.rs      listing, opening
//! memory.rs      a stream-ordered pool; what is dropped is freed when the queues are past it
//! modules.rs     kernels, compiled and loaded once
//! timeline.rs    what a device knows of its queues: streams, marks, fences
//! peaks.rs       what the device does, measured
//! staging.rs     pinned memory for uploads on their way
//! queue.rs       copies, marks, waiting, scratch
//! graph.rs       recording and replaying
//! launch.rs      the shortest way from a plan to the driver
//! tensor_map.rs  descriptors of tensors for TMA, remembered per queue
//! compile/       CUDA C++ → cubin
//! gemm/ …        an op's list, best first; one kernel per file
//! ```

pub mod compile;

mod caps;
mod device;
mod driver;
mod gemm;
mod graph;
mod grouped_gemm;
mod launch;
mod memory;
mod modules;
mod peaks;
mod queue;
mod staging;
mod tensor_map;
mod timeline;

pub use device::NvidiaDevice;
pub use launch::{Config, Function, Resources};
pub use queue::NvidiaQueue;

use kp_hal::{Backend, Kernels};

/// What the backend is called.
pub(crate) const NAME: &str = "nvidia";

/// The backend: `nvidia`, with every GPU that the driver shows this process.
pub static BACKEND: &dyn Backend = &device::Nvidia;

/// Every kernel, best first within an op.
pub static KERNELS: Kernels = Kernels { gemm: gemm::LIST, grouped_gemm: grouped_gemm::LIST, ..Kernels::NONE };
