//! Reference, cases, vectors and the conformance suite that any backend can run.

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
pub use suite::{Suite, main};
