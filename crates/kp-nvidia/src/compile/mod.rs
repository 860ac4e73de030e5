//! From CUDA C++ to a cubin for the device's exact architecture.

use kp_hal::{ErrorKind, Result};

/// A translation unit and what it includes.
#[derive(Debug)]
pub(crate) struct Source {
    /// Unique among sources: `gemm/cuda/sm90_bf16.cu`.
    pub(crate) name: &'static str,
    /// The source itself.
    pub(crate) text: &'static str,
    /// Headers by the name under which they are included, and their text.
    pub(crate) headers: &'static [(&'static str, &'static str)],
}

/// One kernel to be made.
#[derive(Clone, Debug)]
pub(crate) struct Build {
    /// From what.
    pub(crate) source: &'static Source,
    /// Its name: an `extern "C"` function of the source.
    pub(crate) entry: &'static str,
    /// `-D` options: name and value.
    pub(crate) defines: Vec<(&'static str, String)>,
}

/// The cubin of `build` for `arch`, such as `sm_90a`.
///
/// # Errors
/// `Unavailable` if neither a compiler nor a cubin made before is there.
pub(crate) fn cubin(build: &Build, arch: &str) -> Result<Vec<u8>> {
    let why = format!("no compiler for {} {} on {arch}", build.source.name, build.entry);
    Err(ErrorKind::Unavailable { what: "NVRTC", why: why.into() }.into())
}
