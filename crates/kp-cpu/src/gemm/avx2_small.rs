//! D = alpha · A·B of small matrices of f32 with AVX2; see [`super::small`].

use super::small::{self, Tile, Tiles};
use crate::{kernel, simd::Avx2};
use kp_hal::{
    Caps, Device, Kernel, Nanos, Plan, Result, Support, Variant, Variants,
    op::{Gemm, GemmProblem},
    source_hash,
};
use std::{
    arch::x86_64::{
        __m256i, _mm256_cmpgt_epi32, _mm256_maskload_ps, _mm256_set1_epi32, _mm256_setr_epi32, _mm256_storeu_ps,
    },
    sync::Arc,
};

/// The kernel for matrices of a few dozen rows and columns.
pub(crate) struct Avx2Small;

impl Kernel<Gemm> for Avx2Small {
    fn name(&self) -> &'static str {
        "avx2_small"
    }

    fn code(&self) -> u64 {
        const { source_hash(include_bytes!("avx2_small.rs")) ^ source_hash(include_bytes!("small.rs")).rotate_left(1) }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        small::suits::<Avx2>(caps, p)?;
        Ok(Variants::ONE)
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, _: Variant) -> Nanos {
        small::estimate::<Avx2>(caps, p)
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        // SAFETY: the loops touch what the spec names.
        Ok(unsafe { kernel::plan(self, device, p, variant, 0, small::code::<Avx2>(p)) })
    }
}

impl Tiles for Avx2 {
    const VECTORS: usize = 2;
    type Mask = __m256i;

    #[inline(always)]
    fn mask(lanes: usize) -> __m256i {
        // SAFETY: `Avx2::run` alone calls this.
        unsafe { _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)) }
    }

    #[inline(always)]
    unsafe fn load_some(mask: __m256i, at: *const f32) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { _mm256_maskload_ps(at, mask) }
    }

    #[inline(always)]
    unsafe fn store_some(v: Self::V, lanes: usize, _: __m256i, at: *mut f32) {
        // Stores under a mask are a program of their own on some processors.
        // SAFETY: the caller's promise.
        unsafe {
            if lanes == 8 {
                _mm256_storeu_ps(at, v);
            } else {
                let mut all = [0.0_f32; 8];
                _mm256_storeu_ps(all.as_mut_ptr(), v);
                all.as_ptr().copy_to_nonoverlapping(at, lanes);
            }
        }
    }

    #[inline(always)]
    unsafe fn tile(vectors: usize, tile: &Tile<Self>) {
        // Beside the mask and what is multiplied, registers do not hold the sums of six rows.
        // SAFETY: the caller's promise.
        unsafe { if vectors == 1 { tile.rows::<8, 1>() } else { tile.rows::<4, 2>() } }
    }
}
