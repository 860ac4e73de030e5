//! Attention, forward.
//!
//! ```text
//! coopmat.rs  f16 on the matrix unit
//! decode.rs   few rows, at the speed of memory
//! coopmat_decode.rs
//!             the same of 16-bit floats on the matrix unit, where queries share keys
//! simt.rs     every type, layout and mask, on any device
//! form.rs     what a problem is to the shaders, and launches of one step or two
//! merge.rs    the second step, where keys are split
//! ```

mod coopmat;
mod coopmat_ahead;
mod coopmat_decode;
mod decode;
pub(crate) mod form;
mod merge;
mod simt;

use kp_hal::{KernelList, op::Attention};

/// Best first.
pub(crate) const LIST: KernelList<Attention> =
    &[&coopmat_decode::CoopmatDecode, &decode::Decode, &coopmat::Coopmat, &simt::Simt];
