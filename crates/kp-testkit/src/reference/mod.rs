//! What each op should compute: f64 loops that can be checked by eye, one file per op.

pub(crate) mod activation;
pub(crate) mod attention;
pub(crate) mod attention_backward;
pub(crate) mod ball;
pub(crate) mod copy;
pub(crate) mod dequantize;
pub(crate) mod gemm;
pub(crate) mod grouped_gemm;
pub(crate) mod heads;
pub(crate) mod norm;
pub(crate) mod norm_backward;
pub(crate) mod quantize;
pub(crate) mod reduce;
pub(crate) mod rope;
pub(crate) mod softmax;
