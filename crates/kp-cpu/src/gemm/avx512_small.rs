//! D = alpha · A·B of small matrices of f32 with AVX-512; see [`super::small`].

use super::small::{self, Tile, Tiles};
use crate::{kernel, simd::Avx512};
use kp_hal::{
    Caps, Device, Kernel, Nanos, Plan, Result, Support, Variant, Variants,
    op::{Gemm, GemmProblem},
    source_hash,
};
use std::{
    arch::x86_64::{_mm512_mask_storeu_ps, _mm512_maskz_loadu_ps},
    sync::Arc,
};

/// The kernel for matrices of a few dozen rows and columns.
pub(crate) struct Avx512Small;

impl Kernel<Gemm> for Avx512Small {
    fn name(&self) -> &'static str {
        "avx512_small"
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("avx512_small.rs")) ^ source_hash(include_bytes!("small.rs")).rotate_left(1) }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        small::suits::<Avx512>(caps, p)?;
        Ok(Variants::ONE)
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, _: Variant) -> Nanos {
        small::estimate::<Avx512>(caps, p)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        // SAFETY: the loops touch what the spec names.
        Ok(unsafe { kernel::plan(self, device, p, variant, 0, small::code::<Avx512>(p)) })
    }
}

impl Tiles for Avx512 {
    const VECTORS: usize = 4;
    type Mask = u16;

    #[inline(always)]
    fn mask(lanes: usize) -> u16 {
        u16::MAX >> (16 - lanes)
    }

    #[inline(always)]
    unsafe fn load_some(mask: u16, at: *const f32) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { _mm512_maskz_loadu_ps(mask, at) }
    }

    #[inline(always)]
    unsafe fn store_some(v: Self::V, _: usize, mask: u16, at: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { _mm512_mask_storeu_ps(at, mask, v) };
    }

    #[inline(always)]
    unsafe fn tile(vectors: usize, tile: &Tile<Self>) {
        // SAFETY: the caller's promise.
        unsafe {
            match vectors {
                1 => tile.rows::<8, 1>(),
                2 => tile.rows::<8, 2>(),
                3 => tile.rows::<8, 3>(),
                _ => tile.rows::<6, 4>(),
            }
        }
    }
}
