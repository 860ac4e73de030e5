//! Products of a few rows of numbers with panels of a B that was packed ahead, as they lie in memory.
//!
//! ```text
//!             64 columns, four vectors          P panels at once, since memory is fastest read in several places
//!            ┌────────────────┐
//!        k   │                │
//!            └────────────────┘
//!   R rows, each number in all lanes: R × P × 4 vectors of sums
//! ```

use super::{
    dots::{Code, ask, vector},
    far::Far,
};
use std::arch::x86_64::{
    _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_storeu_ps,
};

/// Columns of a panel.
pub(crate) const PANEL: usize = 64;

/// Vectors of them.
const VECTORS: usize = PANEL / 16;

/// How far ahead of its use memory is asked for, in bytes.
const AHEAD: usize = 1024;

/// Adds to `sums` the products of `R` rows `a`, `ld` apart, with some steps of k of `P` panels; panel by panel. Each step asks for
/// `lines` lines of `far` if these are any, else for what its panels have further on.
///
/// # Panics
/// If rows, panels or sums are short.
#[expect(clippy::needless_range_loop, reason = "one index serves several squares of registers")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
pub(crate) fn panels<T: Code, const R: usize, const P: usize>(
    a: &[f32],
    ld: usize,
    panels: &[&[u8]],
    (lines, mut far): (usize, Far),
    sums: &mut [[f32; PANEL]],
) {
    let panels: &[&[u8]; P] = panels.try_into().expect("as many panels as the loop is for");
    let bytes = T::KIND.step_bytes() * PANEL / super::dots::STEP;
    let steps = panels[0].len() / bytes;
    assert!(panels.iter().all(|panel| panel.len() == steps * bytes), "panels of one length");
    assert!(a.len() >= (R - 1) * ld + steps, "{R} rows of {steps} numbers");
    let sums = &mut sums[..R * P];
    let none = [_mm512_setzero_si512(); 4];
    let mut totals = [[[_mm512_setzero_ps(); VECTORS]; P]; R];
    for r in 0..R {
        for p in 0..P {
            for v in 0..VECTORS {
                // SAFETY: sixteen of a panel's sums.
                totals[r][p][v] = unsafe { _mm512_loadu_ps(sums[p * R + r].as_ptr().add(16 * v)) };
            }
        }
    }
    for s in 0..steps {
        far.ask::<true>(lines);
        let mut numbers = [_mm512_setzero_ps(); R];
        for r in 0..R {
            // SAFETY: a number of each row, as asserted.
            numbers[r] = _mm512_set1_ps(unsafe { *a.get_unchecked(r * ld + s) });
        }
        for p in 0..P {
            let step = panels[p].as_ptr().wrapping_add(s * bytes);
            if lines == 0 {
                ask(step, AHEAD, bytes);
            }
            for v in 0..VECTORS {
                // SAFETY: a step of a panel, as asserted: numbers of these types lie one after the other.
                let b = unsafe { vector::<T>(&none, step, 0, v) };
                for r in 0..R {
                    totals[r][p][v] = _mm512_fmadd_ps(b, numbers[r], totals[r][p][v]);
                }
            }
        }
    }
    for r in 0..R {
        for p in 0..P {
            for v in 0..VECTORS {
                // SAFETY: as above.
                unsafe { _mm512_storeu_ps(sums[p * R + r].as_mut_ptr().add(16 * v), totals[r][p][v]) };
            }
        }
    }
}
