//! The kernels of `grouped_gemm`, best first.

mod packed;

use kp_hal::{KernelList, op::GroupedGemm};
use packed::Packed;

pub(crate) const KERNELS: KernelList<GroupedGemm> = &[&Packed];
