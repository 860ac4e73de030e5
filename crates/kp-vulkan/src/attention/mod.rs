//! Attention, forward.
//!
//! ```text
//! coopmat.rs  f16 on the matrix unit
//! decode.rs   few rows, at the speed of memory
//! simt.rs     every type, layout and mask, on any device
//! form.rs     what a problem is to the shaders, and launches of one step or two
//! merge.rs    the second step, where keys are split
//! ```

mod coopmat;
mod decode;
pub(crate) mod form;
mod merge;
mod simt;

use kp_hal::{KernelList, op::Attention};

/// Best first.
pub(crate) const LIST: KernelList<Attention> = &[&decode::Decode, &coopmat::Coopmat, &simt::Simt];
