//! The CPU backend of kp: every op on any machine, in portable Rust.
//!
//! Memory of the device is memory of the process, an address is a pointer, and a launch is finished
//! when it returns: parallel inside, on one pool of threads for the whole process.
//! `KP_THREADS` bounds the pool.

mod act;
mod caps;
mod device;
mod kernel;
mod memory;
mod numbers;
mod peaks;
mod queue;
mod store;
mod threads;

pub use device::Cpu;

use kp_hal::{Backend, Kernels};

const BACKEND_NAME: &str = "cpu";

/// The backend.
pub static BACKEND: &dyn Backend = &Cpu;

/// Every kernel, best first within an op.
pub const KERNELS: Kernels = Kernels { ..Kernels::NONE };
