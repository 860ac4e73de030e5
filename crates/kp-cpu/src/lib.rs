//! The CPU backend of kp: every op on any machine, in portable Rust.
//!
//! Memory of the device is memory of the process, an address is a pointer, and a launch is finished
//! when it returns: parallel inside, on one pool of threads for the whole process.
//! `KP_THREADS` bounds the pool.

mod act;
mod activation;
#[cfg(target_arch = "x86_64")]
mod amx;
mod attention;
mod attention_backward;
mod caps;
mod cast;
mod dequantize;
mod device;
mod gather;
mod gemm;
mod grouped_gemm;
mod kernel;
mod memory;
mod norm;
mod norm_backward;
mod numbers;
mod peaks;
mod portable;
mod quantize;
mod queue;
mod reduce;
mod rope;
mod rows;
mod simd;
mod softmax;
mod store;
mod threads;

pub use device::Cpu;

use kp_hal::{Backend, Kernels};

const BACKEND_NAME: &str = "cpu";

/// The backend.
pub static BACKEND: &dyn Backend = &Cpu;

/// Every kernel, best first within an op.
#[allow(clippy::needless_update, reason = "an op that is new breaks no backend")]
pub const KERNELS: Kernels = Kernels {
    activation: activation::KERNELS,
    attention: attention::KERNELS,
    attention_backward: attention_backward::KERNELS,
    cast: cast::KERNELS,
    dequantize: dequantize::KERNELS,
    gather: gather::KERNELS,
    gemm: gemm::KERNELS,
    grouped_gemm: grouped_gemm::KERNELS,
    norm: norm::KERNELS,
    norm_backward: norm_backward::KERNELS,
    quantize: quantize::KERNELS,
    reduce: reduce::KERNELS,
    rope: rope::KERNELS,
    softmax: softmax::KERNELS,
    ..Kernels::NONE
};
