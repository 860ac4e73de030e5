//! Products of a few rows of bytes with panels of a B that was packed ahead, as they lie in memory, summed exactly in i32.
//!
//! ```text
//!              64 columns × 4 of k
//!            ┌─────────┬─────────┐
//!     4 of k │         │         │   a step: four lines. Rows that leave registers for half of the sums meet first one half of
//!            ├─────────┼─────────┤   a run of steps, then the other, which is in L1 by then
//!            │         │         │
//!            └─────────┴─────────┘
//!   R rows, four bytes in all lanes: R × V vectors of sums
//! ```
//! Codes of B are moved up until none is negative, unless those of rows are not, see [`super::byte_dots`].

use super::{dots::ask, far::Far, panels::PANEL};
use std::arch::x86_64::{
    _mm512_dpbusd_epi32, _mm512_loadu_si512, _mm512_set1_epi8, _mm512_set1_epi32, _mm512_setzero_si512,
    _mm512_storeu_si512, _mm512_xor_si512,
};

/// Bytes of a step, and vectors.
pub(crate) const STEP_BYTES: usize = 4 * PANEL;
const VECTORS: usize = STEP_BYTES / 64;

/// Bytes of steps that are read at a time: in L1 beside those that are asked for, and what rows have of them.
const RUN: usize = 16 << 10;

/// How far ahead memory is asked for where a run is read once.
const AHEAD: usize = 4 << 10;

/// Adds to `sums` the products of `R` rows `a`, of bytes with signs if they are `SIGNED`, step by step, with `P` panels, bits of whose bytes are turned around as `flip` says,
/// `V` vectors of a step at a time; panel by panel; sums wrap. Parts of a run are asked of the second cache alone if panels stream `by_second`.
///
/// # Panics
/// If there are fewer rows of sums, or steps of `a`, or panels are not of one length.
#[expect(clippy::needless_range_loop, reason = "one index serves several squares of registers")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(crate) fn byte_panels<const R: usize, const V: usize, const P: usize, const SIGNED: bool>(
    flip: u8,
    a: &[u32],
    panels: &[&[u8]],
    by_second: bool,
    sums: &mut [[i32; PANEL]],
) {
    let panels: &[&[u8]; P] = panels.try_into().expect("as many panels as the loop is for");
    let bytes = panels[0].len();
    assert!(panels.iter().all(|panel| panel.len() == bytes), "panels of one length");
    let (a, sums) = (&a[..bytes / STEP_BYTES * R], &mut sums[..R * P]);
    let flip = _mm512_set1_epi8(flip as i8);
    let once = const { V == VECTORS };
    for (run, a) in a.chunks(RUN / STEP_BYTES * R).enumerate() {
        let starts = panels.map(|panel| panel[run * RUN..].as_ptr());
        let mut far = match (once, by_second) {
            (true, _) => Far::NONE,
            (false, false) => Far::new(starts[0].wrapping_add(RUN), RUN, RUN),
            (false, true) => Far::behind(starts[0], RUN),
        };
        for first in (0..VECTORS).step_by(V) {
            let mut totals = [[[_mm512_setzero_si512(); V]; P]; R];
            // SAFETY: vectors of sums, of a step of each panel and of each row that are there.
            unsafe {
                for r in 0..R {
                    for p in 0..P {
                        for v in 0..V {
                            totals[r][p][v] = _mm512_loadu_si512(sums[p * R + r].as_ptr().add(16 * (first + v)).cast());
                        }
                    }
                }
                for step in 0..a.len() / R {
                    far.ask::<true>(V);
                    for p in 0..P {
                        let at = starts[p].add(step * STEP_BYTES + 64 * first);
                        if once || !by_second {
                            ask(at, if once { AHEAD } else { RUN }, 64 * V);
                        }
                        let mut b = [flip; V];
                        for v in 0..V {
                            b[v] = _mm512_xor_si512(_mm512_loadu_si512(at.add(64 * v).cast()), flip);
                        }
                        for r in 0..R {
                            let a = _mm512_set1_epi32(*a.get_unchecked(step * R + r) as i32);
                            for v in 0..V {
                                let (unsigned, signed) = if SIGNED { (b[v], a) } else { (a, b[v]) };
                                totals[r][p][v] = _mm512_dpbusd_epi32(totals[r][p][v], unsigned, signed);
                            }
                        }
                    }
                }
                for r in 0..R {
                    for p in 0..P {
                        for v in 0..V {
                            _mm512_storeu_si512(
                                sums[p * R + r].as_mut_ptr().add(16 * (first + v)).cast(),
                                totals[r][p][v],
                            );
                        }
                    }
                }
            }
        }
    }
}
