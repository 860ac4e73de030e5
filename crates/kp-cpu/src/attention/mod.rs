//! The kernels of `attention`, best first.

mod arith;
mod chunk;
mod machine;
mod places;
mod portable;
mod product;
mod sight;
#[cfg(test)]
mod tests;

use kp_hal::{KernelList, op::Attention};

pub(crate) const KERNELS: KernelList<Attention> = &[&portable::Portable];
