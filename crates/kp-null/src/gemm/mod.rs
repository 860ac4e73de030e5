//! Kernels of `gemm`, best first.

mod null_tiled;

use crate::every_op::NullAny;
use kp_hal::{KernelList, op::Gemm};
use null_tiled::NullTiled;

/// The list of this op.
pub(crate) const LIST: KernelList<Gemm> = &[&NullTiled, &NullAny];
