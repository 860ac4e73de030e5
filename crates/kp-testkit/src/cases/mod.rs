//! The problems that each op is judged on, one file per op.

mod activation;
mod attention;
mod attention_backward;
mod attention_laws;
mod beyond;
mod cast;
mod dequantize;
pub(crate) mod found;
mod gather;
mod gemm;
mod gemm_laws;
mod grouped_gemm;
mod norm;
mod norm_backward;
pub mod pairwise;
mod part;
mod quantize;
mod reduce;
mod rope;
#[cfg(test)]
mod sanity;
mod sequences;
pub mod shapes;
mod softmax;
mod tail;
