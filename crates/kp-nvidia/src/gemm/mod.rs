//! Matrix products.
//!
//! ```text
//! cublaslt.rs  the vendor's library
//! simt.rs     every form of the op, on any device
//! sm90.rs     16-bit and 8-bit floats on wgmma
//! macros.rs   how sources spell what a problem says
//! maps.rs     matrices as the copy engine sees them
//! ```

pub(crate) mod cublaslt;
mod macros;
mod maps;
pub(crate) mod simt;
mod sm90;

use crate::compile::{Listed, Source};
use kp_hal::{
    KernelList, Unsupported,
    op::{Gemm, GemmSpec},
    source_hash,
};
use std::borrow::Cow;

/// Whether a part of a problem suits a kernel, or the first reason why not.
type Check = Result<(), Unsupported>;

/// Best first.
pub(crate) const LIST: KernelList<Gemm> = &[&sm90::Sm90, &cublaslt::CublasLt, &simt::Simt];

/// Every build that a kernel of the list may ask for on `arch`; of `sm90`, those for the usual epilogues.
pub(crate) fn builds(arch: &str) -> Vec<Listed> {
    let mut builds = simt::builds();
    if arch == "sm_90a" {
        builds.extend(sm90::builds());
    }
    builds
}

/// A hash of a source with all that it includes.
const fn hash(source: &Source) -> u64 {
    let (mut hash, mut at) = (source_hash(source.text.as_bytes()), 0);
    while at < source.headers.len() {
        hash = hash.rotate_left(1) ^ source_hash(source.headers[at].1.as_bytes());
        at += 1;
    }
    hash
}

/// What tiles of `rows` rows make of `m`, if it is no multiple of them.
fn padding(spec: &GemmSpec, rows: u32) -> Option<Cow<'static, str>> {
    let whole = u64::from(spec.m).next_multiple_of(rows.into());
    (whole != u64::from(spec.m)).then(|| format!("pads m from {} to {whole}", spec.m).into())
}
