//! Reference, cases, vectors and the conformance suite that any backend can run.
//!
//! A backend proves itself with three lines ([`main`]); a program that verifies a machine asks about one kernel and one
//! problem ([`check()`]). What a test is called says how to run it again: `cpu/gemm/portable#0/gemm 1x64x64x64
//! f32:f32:f32`.
//!
//! Of every kernel and variant, on every problem it supports:
//!
//! - `supports`, `estimate` and `note` answer twice alike; the plan says what was asked for.
//! - Results agree with f64 loops within a bound derived from types and lengths ([`tolerance`]); on small whole numbers
//!   they are equal; NaN and infinities are where they belong. Past [`judge::REFERENCE_LIMIT`] laws take their place.
//! - Operands lie between guard bytes, no better aligned than promised; gaps between rows hold NaN; scratch is dirty.
//! - Two runs are equal to the bit unless the problem asks for less, and rows alone if it asks for more.
//! - Arguments that do not fit are refused.
//! - Golden vectors of outside libraries agree with kernel and reference ([`vectors`]).
//!
//! Besides, devices, memory, queues, recordings and threads each have a chapter. How an op is judged is a [`Judge`].

pub mod caps;
pub mod cases;
mod chapters;
pub mod check;
mod cli;
pub mod compare;
mod expected;
pub mod fill;
pub mod formats;
pub mod judge;
pub mod judges;
pub mod load;
pub mod operands;
#[cfg(feature = "random")]
mod random;
mod reference;
mod runner;
pub mod scaled;
mod suite;
pub mod tensor;
pub mod tolerance;
pub mod vectors;

pub use check::{Failure, Report, check, inputs};
pub use fill::{Fill, FillKind};
pub use judge::{Depth, Judge, Output, Plain, Property, Want};
pub use judges::{Judged, judge_of};
pub use load::Loaded;
pub use operands::Operands;
#[cfg(feature = "random")]
pub use random::random;
pub use suite::{Suite, main, required};
