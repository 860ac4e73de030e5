//! Loops of products of bytes in register tiles.

pub(crate) mod avx2;
pub(crate) mod end;
pub(crate) mod pack;
pub(crate) mod place;
pub(crate) mod product;
pub(crate) mod rows;
pub(crate) mod tile;

use super::{few::codes::Set, product::ends_wide};
use crate::kernel;
use kp_hal::{
    Device, Kernel, Plan, Variant,
    op::{Gemm, GemmProblem},
};
use product::Tiles;
use std::sync::Arc;

/// The plan of `kernel` for `p`, with loops of `set`.
pub(crate) fn plan(
    kernel: &dyn Kernel<Gemm>,
    device: &Arc<dyn Device>,
    p: &GemmProblem,
    variant: Variant,
    set: Set,
) -> Plan<Gemm> {
    macro_rules! plan {
        ($end:ty) => {{
            let code = Tiles::<$end>::new(p, set);
            // SAFETY: the loops touch what the spec names, and the scratch that `scratch_bytes` counts.
            unsafe { kernel::plan(kernel, device, p, variant, code.scratch_bytes(), code) }
        }};
    }
    if ends_wide(p) { plan!(f64) } else { plan!(f32) }
}
