//! A backend that implements everything and runs nothing.
//!
//! Its memory is real: what is uploaded, copied or filled can be downloaded again, marks are reached,
//! recordings replay. Its kernels answer every question and enqueue, but **they compute nothing**: outputs keep
//! what they held. That is enough to test `kp-core` without hardware, and to copy as the skeleton of a backend.
//!
//! ```text
//! lib.rs      BACKEND and KERNELS: everything the crate offers
//! caps.rs     what the driver says → Caps
//! device.rs   listing, opening, allocating
//! memory.rs   one allocation, and how its bytes are reached
//! queue.rs    copies, marks, scratch, recording, faults
//! gemm/       this op's list, best first; one kernel per file
//! every_op/   the kernel that accepts any problem of any op
//! ```
//! A backend of real hardware has the same files, and a folder per op instead of `every_op`.

mod caps;
mod device;
mod every_op;
mod gemm;
mod memory;
mod queue;

pub use device::NullDevice;
pub use queue::NullQueue;

use every_op::NullAny;
use kp_hal::{Backend, Kernels};

/// The backend: `null`, with one device.
pub static BACKEND: &dyn Backend = &device::NullBackend;

/// Every kernel, best first within an op.
pub static KERNELS: Kernels = Kernels {
    activation: &[&NullAny],
    attention: &[&NullAny],
    attention_backward: &[&NullAny],
    cast: &[&NullAny],
    dequantize: &[&NullAny],
    gather: &[&NullAny],
    gemm: gemm::LIST,
    grouped_gemm: &[&NullAny],
    norm: &[&NullAny],
    norm_backward: &[&NullAny],
    quantize: &[&NullAny],
    reduce: &[&NullAny],
    rope: &[&NullAny],
    softmax: &[&NullAny],
};
