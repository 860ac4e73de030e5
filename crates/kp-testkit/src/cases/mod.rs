//! The problems that each op is judged on, one file per op.

mod gemm;
pub mod pairwise;
pub mod shapes;
