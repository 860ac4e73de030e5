//! The commands, one file each.

pub(crate) mod bench;
pub(crate) mod explain;
pub(crate) mod info;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod tour;
pub(crate) mod tune;
pub(crate) mod verify;
