//! Register tiles of products of bytes: some rows of codes and a panel, one of them signed and the other not.
//!
//! ```text
//!    A, rows of codes        B, panel          a step: four elements of k
//!   ┌────────────┐          ┌─┬─┬─┬─┐
//! R │ 4 │ 4 │ …  │        k │ │ │ │ │  each column's four bytes side by side, 16 columns a vector
//!   └────────────┘          └─┴─┴─┴─┘
//! ```

use crate::gemm::tile::{Ahead, GROUP};
use std::arch::x86_64::{
    __m512, __m512i, _mm512_cvtepi32_ps, _mm512_dpbusd_epi32, _mm512_fmadd_ps, _mm512_fnmadd_ps, _mm512_loadu_ps,
    _mm512_loadu_si512, _mm512_mul_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512,
    _mm512_storeu_ps, _mm512_storeu_si512,
};

/// Most rows of a tile: six by four vectors of sums, four of B and one of A are all registers but three.
pub(crate) const MOST: usize = 6;

/// Vectors of a panel's width without scales along k, and with them: sums are then kept twice.
pub(crate) const WIDE: usize = 4;
pub(crate) const NARROW: usize = 2;

/// [`whole`] for some number of rows.
pub(crate) type Whole = unsafe fn(Rows<'_>, &[u8], Ahead, &mut [i32]);
/// [`scaled`] likewise.
pub(crate) type Scaled = unsafe fn(Rows<'_>, &[u8], Segments<'_>, &mut [f32]);

/// One for each number of rows from 1 to [`MOST`].
#[derive(Clone, Copy)]
pub(crate) enum Loops {
    Whole([Whole; MOST]),
    Scaled([Scaled; MOST]),
}

impl Loops {
    /// For scales that do not change along k.
    pub(crate) fn whole(panel_signed: bool) -> Self {
        macro_rules! heights {
            ($($rows:literal)*) => {
                match panel_signed {
                    true => [$(whole::<$rows, true> as Whole),*],
                    false => [$(whole::<$rows, false> as Whole),*],
                }
            };
        }
        Self::Whole(heights!(1 2 3 4 5 6))
    }

    /// For those that do.
    pub(crate) fn scaled() -> Self {
        Self::Scaled([scaled::<1>, scaled::<2>, scaled::<3>, scaled::<4>, scaled::<5>, scaled::<6>])
    }
}

/// Some rows of A, and where each begins.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    /// Codes of whole steps.
    pub(crate) codes: &'a [u8],
    /// Bytes from one row to the next.
    pub(crate) ld: usize,
}

impl Rows<'_> {
    /// The first codes of `R` rows of `steps` steps.
    ///
    /// # Panics
    /// If they are not there.
    fn starts<const R: usize>(self, steps: usize) -> [*const u8; R] {
        assert!((R - 1) * self.ld + 4 * steps <= self.codes.len(), "{R} rows of {steps} steps");
        let mut starts = [std::ptr::null(); R];
        for (r, start) in starts.iter_mut().enumerate() {
            *start = self.codes[r * self.ld..].as_ptr();
        }
        starts
    }
}

/// Adds the products of `R` rows with a panel of `WIDE` vectors to `sums`, rows of a panel's width. Either the rows' codes
/// are signed or, if `PANEL_SIGNED`, the panel's.
///
/// # Panics
/// If rows, panel or sums are short.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(crate) fn whole<const R: usize, const PANEL_SIGNED: bool>(
    a: Rows<'_>,
    b: &[u8],
    mut ahead: Ahead,
    sums: &mut [i32],
) {
    let steps = b.len() / (64 * WIDE);
    let (mut row, mut panel, ld) = (a.starts::<R>(steps)[0], b.as_ptr(), a.ld);
    let sums = &mut sums[..R * 16 * WIDE];
    let mut tile = [[_mm512_setzero_si512(); WIDE]; R];
    for (r, tile) in tile.iter_mut().enumerate() {
        for (v, tile) in tile.iter_mut().enumerate() {
            // SAFETY: sixteen of the sums.
            *tile = unsafe { _mm512_loadu_si512(sums.as_ptr().add((r * WIDE + v) * 16).cast()) };
        }
    }
    // One step at a time would spend a sixth of its instructions on addresses.
    for _ in 0..steps / GROUP {
        ahead.ask();
        for _ in 0..GROUP {
            // SAFETY: a step of the panel, and of each row, of which there are as many.
            unsafe { step::<R, WIDE, PANEL_SIGNED>(&mut tile, row, ld, panel) };
            (row, panel) = (row.wrapping_add(4), panel.wrapping_add(64 * WIDE));
        }
    }
    for _ in 0..steps % GROUP {
        // SAFETY: as above.
        unsafe { step::<R, WIDE, PANEL_SIGNED>(&mut tile, row, ld, panel) };
        (row, panel) = (row.wrapping_add(4), panel.wrapping_add(64 * WIDE));
    }
    for (r, tile) in tile.iter().enumerate() {
        for (v, &tile) in tile.iter().enumerate() {
            // SAFETY: as above.
            unsafe { _mm512_storeu_si512(sums.as_mut_ptr().add((r * WIDE + v) * 16).cast(), tile) };
        }
    }
}

/// A step: four elements of k.
///
/// # Safety
/// `row` points to four codes, as do `R` pointers from there `ld` bytes apart, `panel` to `NV` vectors.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn step<const R: usize, const NV: usize, const PANEL_SIGNED: bool>(
    tile: &mut [[__m512i; NV]; R],
    row: *const u8,
    ld: usize,
    panel: *const u8,
) {
    let mut b = [_mm512_setzero_si512(); NV];
    for (v, b) in b.iter_mut().enumerate() {
        // SAFETY: passed on.
        *b = unsafe { _mm512_loadu_si512(panel.add(64 * v).cast()) };
    }
    for (r, tile) in tile.iter_mut().enumerate() {
        // SAFETY: passed on.
        let a = _mm512_set1_epi32(unsafe { row.wrapping_add(r * ld).cast::<i32>().read_unaligned() });
        for (tile, &b) in tile.iter_mut().zip(&b) {
            *tile = if PANEL_SIGNED { _mm512_dpbusd_epi32(*tile, a, b) } else { _mm512_dpbusd_epi32(*tile, b, a) };
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
    let (mut row, ld) = (a.starts::<R>(steps)[0], a.ld);
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
        // Segments are of sixteen elements at least.
        for panel in segment.chunks_exact(4 * 64 * NARROW) {
            for s in 0..4 {
                // SAFETY: a step of the panel, and of each row, of which there are as many.
                unsafe {
                    step::<R, NARROW, false>(
                        &mut tile,
                        row.wrapping_add(4 * s),
                        ld,
                        panel.as_ptr().add(s * 64 * NARROW),
                    );
                }
            }
            row = row.wrapping_add(16);
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
