//! The problems that each op is judged on, one file per op: `CASES` by feature, `FLOOR` for all backends.

pub mod pairwise;
