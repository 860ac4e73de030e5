//! The kernels of `gemm`, best first.

pub(crate) mod blocks;
mod few_rows;
pub(crate) mod finish;
pub(crate) mod packed;
pub(crate) mod product;
pub(crate) mod side;

#[cfg(test)]
mod tests;

use few_rows::FewRows;
use kp_hal::{KernelList, op::Gemm};
use packed::Packed;

pub(crate) const KERNELS: KernelList<Gemm> = &[&FewRows, &Packed];
