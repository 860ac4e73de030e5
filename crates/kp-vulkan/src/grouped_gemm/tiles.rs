//! What the kernels of groups on the matrix unit have in common: tiles of `gemm`'s `coopmat`, found on the device.

use crate::{
    caps::COOPMAT,
    gemm::coopmat::{READING, TILES, Tile},
    launch::planned,
    shaders::Shader,
};
use kp_hal::{
    Caps, Device, DeviceKind, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{GroupedGemm, GroupedGemmProblem, Spec},
};
use std::sync::Arc;

/// Of the variants that suit the products those that suit groups.
pub(super) fn supports(caps: &Caps, products: Support) -> Support {
    let all = products?;
    // A driver for processors compiles each for seconds, and none is better than another there.
    let first = all.iter().next().filter(|_| caps.kind == DeviceKind::SoftwareGpu);
    let never = Unsupported::Feature { need: COOPMAT };
    Variants::filter(TILES.len() as u8, never, |v| all.contains(v) && first.is_none_or(|first| v == first))
}

/// Tiles that take `slower` times what those of 16-bit floats do, or memory.
pub(super) fn estimate(caps: &Caps, p: &GroupedGemmProblem, variant: Variant, slower: impl Fn(&Tile) -> f64) -> Nanos {
    let tile = &TILES[usize::from(variant.0)];
    let work = slower(tile) * tile.grouped_seconds(caps, p);
    let bytes = READING * p.bytes() as f64 / caps.bytes_per_s;
    Nanos::from_secs(caps.launch_ns as f64 * 1e-9 + work.max(bytes))
}

/// The plan of kernel `name`.
///
/// # Errors
/// `Driver` if the driver refuses the kernel.
pub(super) fn plan(
    device: &Arc<dyn Device>,
    p: &GroupedGemmProblem,
    variant: Variant,
    name: &'static str,
    shader: &'static Shader,
) -> Result<Plan<GroupedGemm>> {
    let (code, scratch) = TILES[usize::from(variant.0)].grouped(device, p, name, shader)?;
    // SAFETY: the shaders touch what the spec names, and the scratch that is asked for.
    Ok(unsafe { planned(name, variant, device.id(), p, scratch, code) })
}
