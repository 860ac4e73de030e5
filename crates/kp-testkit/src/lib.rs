//! Reference, cases, vectors and the conformance suite that any backend can run.

pub mod cases;
pub mod compare;
pub mod fill;
pub mod formats;
pub mod judge;
pub mod judges;
pub mod operands;
mod reference;
pub mod scaled;
pub mod tensor;
pub mod tolerance;

pub use fill::{Fill, FillKind};
pub use judge::{Depth, Judge, Output, Plain, Property, Want};
pub use judges::{Judged, judge_of};
pub use operands::Operands;
