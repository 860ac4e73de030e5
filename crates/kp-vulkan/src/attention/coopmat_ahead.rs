//! The form of `coopmat` that makes scores a block ahead: see `kernels/attention/glsl/coopmat_ahead.comp`. Limits: matrices of which
//! lanes may have known parts, and do.

use crate::{
    caps::WIDTHS,
    shaders::{Shader, shader},
};
use kp_hal::{DType, caps::MmaShape, source_hash};

static F16: Shader = shader!("attention", "coopmat_ahead");
static BF16: Shader = shader!("attention", "coopmat_ahead_bf16");

pub(super) fn code() -> u64 {
    const { source_hash(include_bytes!("coopmat_ahead.rs")) ^ F16.hash().rotate_left(1) ^ BF16.hash().rotate_left(2) }
}

/// The shader for Q of type `dtype`.
pub(super) fn shader_of(dtype: DType) -> &'static Shader {
    if dtype == DType::F16 { &F16 } else { &BF16 }
}

/// Whether `mma` is one of the shapes of which lanes' parts may be known.
pub(super) fn asked(mma: &MmaShape) -> bool {
    mma.m == 16 && mma.k == 16 && WIDTHS.contains(&mma.n)
}
