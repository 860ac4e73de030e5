//! Shape buckets: few sizes that many sizes are padded up to, so that few plans serve all.
//!
//! [`solve()`] chooses the best set for sizes that are known; [`Buckets`] learns one while a program runs;
//! [`Tensor::in_bucket`](crate::Tensor::in_bucket) pads, runs and unpads.

mod learn;
mod solve;

pub use learn::{Buckets, Waste};
pub use solve::{BadCost, BucketSet, Observed, solve};
