//! Loops of products of few rows.

pub(crate) mod avx2;
pub(crate) mod avx2_byte_lanes;
pub(crate) mod avx2_bytes;
pub(crate) mod avx2_lanes;
pub(crate) mod avx2_nibbles;
pub(crate) mod avx2_opened;
pub(crate) mod avx2_panels;
pub(crate) mod avx2_shares;
pub(crate) mod byte_dots;
pub(crate) mod byte_lanes;
pub(crate) mod byte_panels;
pub(crate) mod byte_row;
pub(crate) mod bytes;
pub(crate) mod codes;
pub(crate) mod columns;
pub(crate) mod dots;
pub(crate) mod far;
pub(crate) mod lanes;
pub(crate) mod lists;
pub(crate) mod number_rows;
pub(crate) mod numbers;
pub(crate) mod pairs;
pub(crate) mod panel_rows;
pub(crate) mod panels;
pub(crate) mod sets;
pub(crate) mod unpack;
