//! Finds the hardware, ranks its kernels, plans once, launches fast.

pub mod buckets;
