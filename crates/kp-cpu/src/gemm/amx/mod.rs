//! What products by AMX tiles have in common.

mod codes;
mod cut;
pub(crate) mod lines;
pub(crate) mod product;
pub(crate) mod source;
pub(crate) mod tile;
mod vectors;
