//! What products by AMX tiles have in common.

mod along;
mod asks;
pub(crate) mod bits;
pub(crate) mod chunks;
mod codes;
pub(crate) mod convert;
mod cut;
mod ends;
pub(crate) mod floats;
pub(crate) mod lines;
mod operands;
pub(crate) mod parts;
pub(crate) mod product;
mod room;
pub(crate) mod scaled;
pub(crate) mod source;
pub(crate) mod splits;
pub(crate) mod terms;
pub(crate) mod tile;
mod vectors;
mod weave;
pub(crate) mod woven;
