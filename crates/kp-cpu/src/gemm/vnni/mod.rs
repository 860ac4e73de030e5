//! Loops of products of bytes in register tiles.

pub(crate) mod avx2;
pub(crate) mod end;
pub(crate) mod pack;
pub(crate) mod place;
pub(crate) mod product;
pub(crate) mod rows;
pub(crate) mod tile;
