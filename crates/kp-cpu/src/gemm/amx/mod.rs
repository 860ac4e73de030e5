//! What products by AMX tiles have in common.

mod codes;
pub(crate) mod lines;
pub(crate) mod product;
pub(crate) mod source;
pub(crate) mod tile;
