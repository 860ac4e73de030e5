//! From CUDA C++ to code that a device runs.
//!
//! ```text
//! Build ─ key ▶ embedded pack ─ else ▶ store on disk ─ else ▶ NVRTC ─▶ cubin
//! ```
//! A cubin is made for one exact architecture (`sm_90a`), so that the driver has nothing left to compile. The pack needs
//! neither compiler nor disk; the store needs a compiler's version to look with, but no compiling.

mod find;
mod key;
mod list;
mod nvrtc;
mod pack;
mod report;
mod store;

pub use key::Key;
pub use list::{ARCHS, Listed, builds};
pub use nvrtc::Nvrtc;
pub use pack::{Pack, embedded, pack};
pub use report::{Report, warnings};
pub use store::{MOST_BYTES, Store};

use kp_hal::Result;
use std::sync::OnceLock;

/// A translation unit with everything it includes.
///
/// Nothing else can be included: a machine that compiles has NVRTC but need not have CUDA's headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its path in the repository, as compilers' messages print it: `kernels/gemm/cuda/simt_f32.cu`.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
    /// Headers: the name as `#include "…"` spells it, and the text.
    pub headers: &'static [(&'static str, &'static str)],
}

/// A [`Source`] by its path from `kernels/`, and those of the headers that it includes, directly or through others.
macro_rules! source {
    ($name:literal $(, $header:literal)* $(,)?) => {
        $crate::compile::Source {
            name: concat!("kernels/", $name),
            text: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../kernels/", $name)),
            headers: &[$(($header, include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../kernels/", $header)))),*],
        }
    };
}
#[allow(unused_imports, reason = "a crate without kernels has no sources")]
pub(crate) use source;

/// One kernel to compile: a source, and what makes it this variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Build {
    /// What is compiled.
    pub source: &'static Source,
    /// The kernel's name in the source, declared `extern "C"`.
    pub entry: &'static str,
    /// Macros, defined before the first line.
    pub defines: Vec<(&'static str, String)>,
}

/// What the compiler made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// An ELF file for one architecture, to be loaded as a module.
    pub cubin: Vec<u8>,
    /// What the compiler said of it; see [`Report::of`] and [`warnings`].
    pub log: String,
}

/// The cubin of `build` for `arch`, spelt as in `sm_90a`: embedded, kept on disk, or compiled now, which takes 0.05 s to
/// several seconds.
///
/// # Errors
/// `Unavailable` if it must be compiled and no NVRTC is found, or none that knows the architecture; `Driver` with the
/// compiler's log if the source is bad.
pub fn cubin(build: &Build, arch: &str) -> Result<Vec<u8>> {
    static STORE: OnceLock<Option<Store>> = OnceLock::new();
    let key = Key::new(build, arch);
    if let Some(cubin) = embedded().and_then(|pack| pack.find(&key)) {
        return Ok(cubin);
    }
    let store = STORE.get_or_init(Store::process).as_ref();
    compile(build, arch, store).map(|compiled| compiled.cubin)
}

/// The same with the compiler's log, from `store` or compiled now and kept there.
///
/// # Errors
/// As [`cubin`].
pub fn compile(build: &Build, arch: &str, store: Option<&Store>) -> Result<Compiled> {
    let nvrtc = Nvrtc::get()?;
    let key = Key::new(build, arch).by(nvrtc.version());
    if let Some(kept) = store.and_then(|store| store.read(&key)) {
        return Ok(kept);
    }
    let start = std::time::Instant::now();
    let compiled = nvrtc.compile(build, arch)?;
    tracing::info!(source = build.source.name, arch, defines = ?build.defines, time = ?start.elapsed(), "compiled");
    // Our sources have none with the compiler they are checked with; an older one may understand them less.
    for remark in warnings(&compiled.log) {
        tracing::warn!(source = build.source.name, arch, nvrtc = nvrtc.library(), %remark, "a slower kernel than it should be");
    }
    if let Some(store) = store {
        store.write(&key, &compiled);
    }
    Ok(compiled)
}

#[cfg(test)]
mod tests;
