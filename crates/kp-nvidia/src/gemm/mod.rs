//! Matrix products.
//!
//! ```text
//! sm120.rs    blocks of 8 and 4 bits on the warps' matrix unit of sm_120
//! sm100.rs    floats of 16, 8 and 4 bits, and blocks of 8 and 4 bits, on tcgen05
//! sm90.rs     16-bit and 8-bit floats on wgmma
//! sm90_swap.rs, sm90_swap_stream.rs       the same for up to 128 rows; swap.rs is what they have in common
//! sm90_e4m3_1d2d.rs, sm90_e4m3_1d1d.rs    e4m3 scaled by blocks; blocks.rs is what they and groups have in common
//! cublaslt.rs the vendor's library
//! sm80.rs     the matrix unit of any device since sm_80; sm80_skinny.rs for up to 16 rows
//! simt.rs     every form of the op, on any device; simt_store.rs is how it and sm80 end
//! macros.rs   how sources spell what a problem says
//! maps.rs     matrices as the copy engine sees them
//! ```

pub(crate) mod blocks;
pub(crate) mod cublaslt;
mod macros;
mod maps;
pub(crate) mod simt;
pub(crate) mod simt_store;
mod sm100;
mod sm120;
pub(crate) mod sm80;
mod sm80_skinny;
mod sm90;
mod sm90_e4m3_1d1d;
mod sm90_e4m3_1d2d;
mod sm90_swap;
mod sm90_swap_stream;
mod swap;
#[cfg(test)]
mod tests;

use crate::compile::{Build, Listed, Source};
use kp_hal::{
    Caps, DeviceKind, Kernel, KernelList, Unsupported, Variant,
    op::{Gemm, GemmProblem, GemmSpec, Op, Problem, Repro},
    source_hash,
};
use std::borrow::Cow;

/// Whether a part of a problem suits a kernel, or the first reason why not.
type Check = Result<(), Unsupported>;

/// Best first.
pub(crate) const LIST: KernelList<Gemm> = &[
    &sm90_e4m3_1d2d::KERNEL,
    &sm90_e4m3_1d1d::KERNEL,
    &sm80_skinny::Sm80Skinny,
    &sm90_swap::Sm90Swap,
    &sm90_swap_stream::Sm90SwapStream,
    &sm120::Sm120,
    &sm100::Sm100,
    &sm90::Sm90,
    &cublaslt::CublasLt,
    &sm80::Sm80,
    &simt::Simt,
];

/// Every build that a kernel of the list may ask for on `arch`; where epilogues or rows are compiled in, those for the usual ones.
pub(crate) fn builds(arch: &str) -> Vec<Listed> {
    let mut builds = simt::builds();
    builds.extend(simt_store::builds());
    builds.extend(sm80::builds(arch));
    builds.extend(sm80_skinny::builds(arch));
    if arch == "sm_90a" {
        builds.extend(sm90::builds());
        builds.extend(sm90_swap::builds());
        builds.extend(sm90_swap_stream::builds());
        builds.extend(sm90_e4m3_1d2d::KERNEL.builds("gemm/sm90_e4m3_1d2d", &[None]));
        builds.extend(sm90_e4m3_1d1d::KERNEL.builds("gemm/sm90_e4m3_1d1d", &[None]));
    }
    if ["sm_100a", "sm_103a", "sm_110a"].contains(&arch) {
        builds.extend(sm100::builds());
    }
    if ["sm_120a", "sm_121a"].contains(&arch) {
        builds.extend(sm120::builds());
    }
    builds
}

/// What `kernel` builds for `problems`, written without `gemm`, on a device like `caps`: each variant that runs one. Variants may
/// share a build.
fn listed(
    name: &'static str,
    kernel: &dyn Kernel<Gemm>,
    caps: &Caps,
    problems: &[&str],
    build: impl Fn(&GemmProblem, Variant) -> Build,
) -> Vec<Listed> {
    let mut listed: Vec<Listed> = Vec::new();
    for line in problems {
        let problem: GemmProblem = format!("gemm {line}").parse().expect("a problem");
        for variant in kernel.supports(caps, &problem).iter().flat_map(|variants| variants.iter()) {
            let build = build(&problem, variant);
            if listed.iter().all(|other| other.build != build) {
                listed.push(Listed::new(name, variant, build));
            }
        }
    }
    listed
}

/// Whether B, if one row of tiles reads it, is read once, and is too large to stay in L2 until the next launch: then it had better leave L2
/// first. Of an H200's 60 MiB, 48 still help; 56 do not.
fn b_passes(spec: &GemmSpec, caps: &Caps) -> bool {
    let bytes = spec.b.span(spec.k, spec.n, spec.batch).saturating_mul(spec.b.dtype().bits().into()) / 8;
    (spec.batch == 1 || spec.b.stride != 0) && bytes > caps.l2_bytes / 8 * 7
}

/// Enough of an H200 to ask kernels what they build there.
fn h200() -> Caps {
    let mut caps = Caps::new(DeviceKind::Gpu, "sm_90a");
    caps.set_features(["cp.async", "fp8", "wgmma"]);
    (caps.units, caps.shared_bytes) = (132, 227 << 10);
    caps
}

/// A hash of a source with all that it includes.
pub(crate) const fn hash(source: &Source) -> u64 {
    let (mut hash, mut at) = (source_hash(source.text.as_bytes()), 0);
    while at < source.headers.len() {
        hash = hash.rotate_left(1) ^ source_hash(source.headers[at].1.as_bytes());
        at += 1;
    }
    hash
}

/// Whether a kernel before `name` in `list` runs `p` whatever m is, and a row's bits may not depend on m.
///
/// Kernels add in orders of their own. So that bits do not depend on m, one kernel takes a row for every m: the first that
/// promises it. Nothing in their answers depends on m, but for sizes of 0.
pub(crate) fn is_invariant_elsewhere<O: Op>(
    list: KernelList<O>,
    caps: &Caps,
    p: &Problem<O::Spec>,
    name: &str,
) -> bool {
    let before = || list.iter().take_while(|kernel| kernel.name() != name);
    p.repro() == Repro::BatchInvariant && before().any(|kernel| kernel.supports(caps, p).is_ok())
}

/// Whether no size is 0, nor past what signed 32-bit numbers count.
fn sizes(spec: &GemmSpec) -> Check {
    for (dim, got) in [("batch", spec.batch), ("m", spec.m), ("n", spec.n), ("k", spec.k)] {
        if got == 0 {
            return Err(Unsupported::TooSmall { dim, min: 1, got: 0 });
        }
        if got >= 1 << 31 {
            return Err(Unsupported::TooLarge { dim, max: (1 << 31) - 1, got: got.into() });
        }
    }
    Ok(())
}

/// What tiles of `rows` rows make of `m`, if it is no multiple of them.
fn padding(spec: &GemmSpec, rows: u32) -> Option<Cow<'static, str>> {
    let whole = u64::from(spec.m).next_multiple_of(rows.into());
    (whole != u64::from(spec.m)).then(|| format!("pads m from {} to {whole}", spec.m).into())
}

/// Refuses a kernel that no device has run yet, unless such were asked for.
fn untried(caps: &Caps) -> Check {
    if caps.has("untried") {
        Ok(())
    } else {
        Err(Unsupported::Feature { need: "KP_UNTRIED=1: no device has run it yet" })
    }
}

/// The note of a kernel that no device has run yet, see `kernels/gemm/blackwell.md`.
fn never_run(note: Option<Cow<'static, str>>) -> Option<Cow<'static, str>> {
    Some(note.map_or("never run yet".into(), |note| format!("never run yet, {note}").into()))
}
