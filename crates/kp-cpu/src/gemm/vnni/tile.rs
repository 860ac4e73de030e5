//! Register tiles of products of bytes: some rows of i8 codes and a panel of unsigned ones.
//!
//! ```text
//!    A, rows of codes        B, panel          a step: four elements of k
//!   ┌────────────┐          ┌─┬─┬─┬─┐
//! R │ 4 │ 4 │ …  │        k │ │ │ │ │  each column's four bytes side by side, 16 columns a vector
//!   └────────────┘          └─┴─┴─┴─┘
//! ```

use std::arch::x86_64::{
    __m512, _mm512_cvtepi32_ps, _mm512_dpbusd_epi32, _mm512_fmadd_ps, _mm512_fnmadd_ps, _mm512_loadu_ps,
    _mm512_loadu_si512, _mm512_mul_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512,
    _mm512_storeu_ps, _mm512_storeu_si512,
};

/// Most rows of a tile: six by four vectors of sums, four of B and one of A are all registers but three.
pub(crate) const MOST: usize = 6;

/// Vectors of a panel's width without scales along k, and with them: sums are then kept twice.
pub(crate) const WIDE: usize = 4;
pub(crate) const NARROW: usize = 2;

/// Some rows of A, and where each begins.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    /// Codes of whole steps.
    pub(crate) codes: &'a [i8],
    /// Bytes from one row to the next.
    pub(crate) ld: usize,
}

impl Rows<'_> {
    /// The first codes of `R` rows of `steps` steps.
    ///
    /// # Panics
    /// If they are not there.
    fn starts<const R: usize>(self, steps: usize) -> [*const i8; R] {
        assert!((R - 1) * self.ld + 4 * steps <= self.codes.len(), "{R} rows of {steps} steps");
        let mut starts = [std::ptr::null(); R];
        for (r, start) in starts.iter_mut().enumerate() {
            *start = self.codes[r * self.ld..].as_ptr();
        }
        starts
    }
}

/// Adds the products of `R` rows with a panel of `WIDE` vectors to `sums`, rows of a panel's width.
///
/// # Panics
/// If rows, panel or sums are short.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(crate) fn whole<const R: usize>(a: Rows<'_>, b: &[u8], sums: &mut [i32]) {
    let steps = b.len() / (64 * WIDE);
    let mut rows = a.starts::<R>(steps);
    let sums = &mut sums[..R * 16 * WIDE];
    let mut tile = [[_mm512_setzero_si512(); WIDE]; R];
    for (r, tile) in tile.iter_mut().enumerate() {
        for (v, tile) in tile.iter_mut().enumerate() {
            // SAFETY: sixteen of the sums.
            *tile = unsafe { _mm512_loadu_si512(sums.as_ptr().add((r * WIDE + v) * 16).cast()) };
        }
    }
    for panel in b.chunks_exact(64 * WIDE) {
        // SAFETY: a step of the panel, and of each row, of which there are as many.
        unsafe {
            let mut b = [_mm512_setzero_si512(); WIDE];
            for (v, b) in b.iter_mut().enumerate() {
                *b = _mm512_loadu_si512(panel.as_ptr().add(64 * v).cast());
            }
            for r in 0..R {
                let a = _mm512_set1_epi32(rows[r].cast::<i32>().read_unaligned());
                for v in 0..WIDE {
                    tile[r][v] = _mm512_dpbusd_epi32(tile[r][v], b[v], a);
                }
                rows[r] = rows[r].add(4);
            }
        }
    }
    for (r, tile) in tile.iter().enumerate() {
        for (v, &tile) in tile.iter().enumerate() {
            // SAFETY: as above.
            unsafe { _mm512_storeu_si512(sums.as_mut_ptr().add((r * WIDE + v) * 16).cast(), tile) };
        }
    }
}

/// What changes along k, segment by segment.
#[derive(Clone, Copy)]
pub(crate) struct Segments<'a> {
    /// Steps of a segment.
    pub(crate) steps: usize,
    /// Of each row, for each segment: − offset · the sum of its codes; that sum as f32 if there are zero points.
    pub(crate) taken: &'a [u32],
    /// Of each row, for each segment: its scale; empty if they do not change.
    pub(crate) row_scales: &'a [f32],
    /// From one row to the next of both.
    pub(crate) ld: usize,
    /// For each segment, as many scales as the panel has columns.
    pub(crate) scales: &'a [f32],
    /// Zero points alike, or nothing.
    pub(crate) zeros: &'a [f32],
}

/// Adds the products of `R` rows with a panel of `NARROW` vectors to `sums`, rows of a panel's width; scales change along
/// k, those of rows too if there are some.
///
/// # Panics
/// If any part is short.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(crate) fn scaled<const R: usize>(a: Rows<'_>, b: &[u8], by: Segments<'_>, sums: &mut [f32]) {
    const COLUMNS: usize = 16 * NARROW;
    let steps = b.len() / (64 * NARROW);
    let mut rows = a.starts::<R>(steps);
    let segments = steps.div_ceil(by.steps);
    let sums = &mut sums[..R * COLUMNS];
    // Asked at run time, to have fewer loops.
    let (vary, shifted) = (!by.row_scales.is_empty(), !by.zeros.is_empty());
    assert!(by.scales.len() >= segments * COLUMNS && (!shifted || by.zeros.len() >= segments * COLUMNS), "scales");
    assert!(by.taken.len() >= (R - 1) * by.ld + segments, "sums of rows");
    assert!(!vary || by.row_scales.len() >= (R - 1) * by.ld + segments, "scales of rows");
    let mut totals = [[_mm512_setzero_ps(); NARROW]; R];
    for (s, segment) in b.chunks(by.steps * 64 * NARROW).enumerate() {
        let mut tile = [[_mm512_setzero_si512(); NARROW]; R];
        if !shifted {
            for (r, tile) in tile.iter_mut().enumerate() {
                *tile = [_mm512_set1_epi32(by.taken[r * by.ld + s] as i32); NARROW];
            }
        }
        for panel in segment.chunks_exact(64 * NARROW) {
            // SAFETY: a step of the panel, and of each row, of which there are as many.
            unsafe {
                let mut b = [_mm512_setzero_si512(); NARROW];
                for (v, b) in b.iter_mut().enumerate() {
                    *b = _mm512_loadu_si512(panel.as_ptr().add(64 * v).cast());
                }
                for r in 0..R {
                    let a = _mm512_set1_epi32(rows[r].cast::<i32>().read_unaligned());
                    for v in 0..NARROW {
                        tile[r][v] = _mm512_dpbusd_epi32(tile[r][v], b[v], a);
                    }
                    rows[r] = rows[r].add(4);
                }
            }
        }
        let of = |list: &[f32], v: usize| -> __m512 {
            // SAFETY: a segment's scales or zero points, as asserted.
            unsafe { _mm512_loadu_ps(list.as_ptr().add(s * COLUMNS + 16 * v)) }
        };
        for v in 0..NARROW {
            let scale = of(by.scales, v);
            let zero = if shifted { of(by.zeros, v) } else { _mm512_setzero_ps() };
            for r in 0..R {
                let mut sum = _mm512_cvtepi32_ps(tile[r][v]);
                if shifted {
                    // Whole numbers, mostly below 2²⁴.
                    sum = _mm512_fnmadd_ps(zero, _mm512_set1_ps(f32::from_bits(by.taken[r * by.ld + s])), sum);
                }
                if vary {
                    sum = _mm512_mul_ps(sum, _mm512_set1_ps(by.row_scales[r * by.ld + s]));
                }
                totals[r][v] = _mm512_fmadd_ps(sum, scale, totals[r][v]);
            }
        }
    }
    for (r, totals) in totals.iter().enumerate() {
        for (v, &total) in totals.iter().enumerate() {
            let at = (r * NARROW + v) * 16;
            // SAFETY: sixteen of the sums.
            unsafe {
                let before = _mm512_loadu_ps(sums.as_ptr().add(at));
                _mm512_storeu_ps(sums.as_mut_ptr().add(at), std::arch::x86_64::_mm512_add_ps(before, total));
            }
        }
    }
}
