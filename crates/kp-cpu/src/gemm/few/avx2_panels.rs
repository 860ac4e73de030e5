//! The loops of [`super::panels`] for processors that have AVX2 and no AVX-512: panels of sixteen columns, two vectors.
//!
//! Nothing is asked for: of four panels, each of which is long, Zen 3 fetches what follows by itself, and columns that it was asked
//! for were read up to a tenth slower.

use super::{
    avx2::{Code, Kind},
    far::Far,
};
use std::arch::x86_64::{
    __m256, _mm_loadu_si128, _mm256_castsi256_ps, _mm256_cvtepu16_epi32, _mm256_cvtph_ps, _mm256_fmadd_ps,
    _mm256_loadu_ps, _mm256_set1_ps, _mm256_setzero_ps, _mm256_slli_epi32, _mm256_storeu_ps,
};

/// Columns of a panel.
pub(crate) const PANEL: usize = 16;

/// Vectors of them.
const VECTORS: usize = PANEL / 8;

/// Adds to `sums` the products of `R` rows `a`, `ld` apart, with some steps of k of `P` panels; panel by panel.
///
/// # Panics
/// If rows, panels or sums are short.
#[expect(clippy::needless_range_loop, reason = "one index serves several squares of registers")]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn panels<T: Code, const R: usize, const P: usize>(
    a: &[f32],
    ld: usize,
    panels: &[&[u8]],
    _: (usize, Far),
    sums: &mut [[f32; PANEL]],
) {
    let panels: &[&[u8]; P] = panels.try_into().expect("as many panels as the loop is for");
    let bytes = T::KIND.step_bytes() * PANEL / super::avx2::STEP;
    let steps = panels[0].len() / bytes;
    assert!(panels.iter().all(|panel| panel.len() == steps * bytes), "panels of one length");
    assert!(a.len() >= (R - 1) * ld + steps, "{R} rows of {steps} numbers");
    let sums = &mut sums[..R * P];
    let mut totals = [[[_mm256_setzero_ps(); VECTORS]; P]; R];
    for r in 0..R {
        for p in 0..P {
            for v in 0..VECTORS {
                // SAFETY: eight of a panel's sums.
                totals[r][p][v] = unsafe { _mm256_loadu_ps(sums[p * R + r].as_ptr().add(8 * v)) };
            }
        }
    }
    for s in 0..steps {
        let mut numbers = [_mm256_setzero_ps(); R];
        for r in 0..R {
            // SAFETY: a number of each row, as asserted.
            numbers[r] = _mm256_set1_ps(unsafe { *a.get_unchecked(r * ld + s) });
        }
        for p in 0..P {
            let step = panels[p].as_ptr().wrapping_add(s * bytes);
            for v in 0..VECTORS {
                // SAFETY: a step of a panel, as asserted.
                let b = unsafe { vector::<T>(step, v) };
                for r in 0..R {
                    totals[r][p][v] = _mm256_fmadd_ps(b, numbers[r], totals[r][p][v]);
                }
            }
        }
    }
    for r in 0..R {
        for p in 0..P {
            for v in 0..VECTORS {
                // SAFETY: as above.
                unsafe { _mm256_storeu_ps(sums[p * R + r].as_mut_ptr().add(8 * v), totals[r][p][v]) };
            }
        }
    }
}

/// Vector `v` of numbers that lie one after the other.
///
/// # Safety
/// It can be read.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn vector<T: Code>(at: *const u8, v: usize) -> __m256 {
    // SAFETY: the caller's promise: eight numbers of as many bytes as their type has.
    unsafe {
        match T::KIND {
            Kind::F32 => _mm256_loadu_ps(at.add(32 * v).cast()),
            Kind::Bf16 => {
                let halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(at.add(16 * v).cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(halves))
            }
            Kind::F16 => _mm256_cvtph_ps(_mm_loadu_si128(at.add(16 * v).cast())),
            _ => unreachable!("numbers of 32 and 16 bits"),
        }
    }
}
