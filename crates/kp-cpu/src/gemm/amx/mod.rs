//! What products by AMX tiles have in common.

mod codes;
mod cut;
mod ends;
pub(crate) mod floats;
pub(crate) mod lines;
mod operands;
pub(crate) mod parts;
pub(crate) mod product;
pub(crate) mod source;
pub(crate) mod tile;
mod vectors;
