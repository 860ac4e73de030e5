//! What each op should compute: f64 loops that can be checked by eye, one file per op.

pub(crate) mod gemm;
