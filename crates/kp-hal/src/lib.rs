//! The narrow waist of kp: what can be asked of a device, of what, and how it fails.
//!
//! The backend is chosen while the program runs, so it is erased (`dyn`).
//! The operation is known where the code is written, so it stays typed (`O: Op`).
//!
//! ```text
//! Problem ─ supports ▶ candidates ─ estimate ▶ rank ─ plan ▶ Plan ─ launch ▶ Queue
//! ```
//!
//! A [`Problem`] is plain data with one text form; a [`Kernel`] is a constant with two pure
//! questions and one slow act; a [`Plan`] launches with no lookup, no allocation and no blocking.
//! This crate has no dependencies and does no arithmetic on tensor data. It is also the only place
//! where problems and arguments are checked: backends do none of it.
//!
//! ```
//! use kp_hal::op::GemmProblem;
//! let problem: GemmProblem = "gemm 1x4096x7168x2048 e4m3@1x128:e4m3@128x128:bf16 b=col".parse()?;
//! assert_eq!((problem.m, problem.n, problem.k), (4096, 7168, 2048));
//! assert_eq!(problem.to_string().parse(), Ok(problem));
//! # Ok::<(), kp_hal::op::BadProblem>(())
//! ```

pub mod cache;
pub mod caps;
pub mod device;
pub mod dtype;
pub mod error;
pub mod fault;
pub mod kernel;
pub mod memory;
pub mod op;
pub mod support;
pub mod text;

pub use caps::{Caps, DeviceKind, Rates};
pub use device::{Backend, Device, DeviceId, DeviceInfo, Graph, MemoryInfo, PciAddress, Point, Queue};
pub use dtype::{DType, DTypes};
pub use error::{BadOperands, DriverError, Error, ErrorKind, Result};
pub use fault::Fault;
pub use kernel::{Kernel, KernelList, Kernels, Label, Launch, Nanos, Plan, Recording, source_hash};
pub use memory::{Allocation, Buffer, MemoryKind, Slice, SliceMut};
pub use op::{AnyProblem, ArgError, Args, BadProblem, Op, OpSpec, Problem, Repro, Spec};
pub use support::{Support, Unsupported, Variant, Variants};
pub use text::{Real, Unread};
