//! The builds that `cargo xtask kernels` checks and packs: every variant of every kernel, in the forms that people ask for.

use super::Build;
use crate::{gemm, grouped_gemm};
use kp_hal::Variant;
use std::fmt;

/// Architectures for which a pack is made, oldest first: each that kp has kernels for and NVRTC 13.0 knows. Those with `a`
/// have instructions of their own, which no later device runs; all others, every later one runs.
pub const ARCHS: &[&str] =
    &["sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_110a", "sm_120a", "sm_121a"];

/// One build, and what a check should know of it.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The kernel that asks for it, as op and stem: `gemm/sm90_bf16`.
    pub kernel: &'static str,
    /// The kernel's variant that asks for it, the first if several do.
    pub variant: Variant,
    /// What is compiled.
    pub build: Build,
    /// Why it is better with local memory than without, if it may have some. A reason may stand for all variants of a kernel,
    /// as long as one of them needs it.
    pub local_memory: Option<&'static str>,
}

impl Listed {
    /// A build that keeps everything in registers.
    pub fn new(kernel: &'static str, variant: Variant, build: Build) -> Self {
        Self { kernel, variant, build, local_memory: None }
    }
}

/// `gemm/sm90_bf16 gemm TILE=1 GATE=0`: kernel, entry, macros.
impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kernel, self.build.entry)?;
        self.build.defines.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}

/// What to compile beforehand for `arch`, spelt as in [`ARCHS`]: each kernel that runs there, each of its variants.
///
/// Each op makes the list by asking its kernels, so it cannot disagree with them. Where types, layouts or epilogues are
/// macros too, an op lists the usual ones; what it leaves out is compiled when it is planned, or not at all without NVRTC.
pub fn builds(arch: &str) -> Vec<Listed> {
    OPS.iter().flat_map(|op| op(arch)).collect()
}

/// One row an op.
const OPS: &[fn(&str) -> Vec<Listed>] = &[gemm::builds, grouped_gemm::builds];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// The names in quotes after `#include`.
    fn includes(text: &str) -> impl Iterator<Item = &str> {
        let included = text.lines().filter_map(|line| line.trim_start().strip_prefix("#include"));
        included.map(|name| name.trim().trim_matches(['"', '<', '>']))
    }

    /// A header too few does not compile; one too many makes keys change for nothing.
    #[test]
    fn sources_list_the_headers_they_reach() {
        for listed in ARCHS.iter().flat_map(|arch| builds(arch)) {
            let source = listed.build.source;
            let texts: BTreeMap<&str, &str> = source.headers.iter().copied().collect();
            let (mut reached, mut left) = (BTreeSet::new(), vec![source.text]);
            while let Some(text) = left.pop() {
                for name in includes(text).filter(|name| reached.insert(*name)) {
                    let header = texts.get(name);
                    left.push(header.unwrap_or_else(|| panic!("{} lists no header {name:?}", source.name)));
                }
            }
            let listed: BTreeSet<&str> = texts.keys().copied().collect();
            assert_eq!(listed, reached, "{}: listed and included headers", source.name);
        }
    }
}
