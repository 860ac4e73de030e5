//! Matrix products.

use kp_hal::{KernelList, op::Gemm};

/// Best first.
pub(crate) const LIST: KernelList<Gemm> = &[];
