//! GEMM in f64.
