//! Register tiles of products of bytes: some rows of codes and a panel, one of them signed and the other not.
//!
//! ```text
//!    A, rows of codes        B, panel          a step: four elements of k
//!   ┌────────────┐          ┌─┬─┬─┬─┐
//! R │ 4 │ 4 │ …  │        k │ │ │ │ │  each column's four bytes side by side, 16 columns a vector
//!   └────────────┘          └─┴─┴─┴─┘
//! ```

use super::avx2;
use crate::gemm::{
    few::codes::Set,
    tile::{Ahead, GROUP},
};
use std::arch::x86_64::{
    __m512i, _mm512_cvtepi32_ps, _mm512_dpbusd_epi32, _mm512_fmadd_ps, _mm512_fnmadd_ps, _mm512_loadu_ps,
    _mm512_loadu_si512, _mm512_maskz_loadu_epi8, _mm512_mul_ps, _mm512_set1_epi8, _mm512_set1_epi32, _mm512_set1_ps,
    _mm512_setzero_ps, _mm512_setzero_si512, _mm512_storeu_ps, _mm512_storeu_si512,
};

/// Most rows of a tile: six by four vectors of sums, four of B and one of A are all registers but three.
pub(crate) const MOST: usize = 6;

/// Vectors of a panel's width.
pub(crate) const WIDE: usize = 4;

/// Steps that are unrolled where scales change along k.
const SHORT: usize = 4;

/// [`whole`] for some number of rows.
pub(crate) type Whole = unsafe fn(Rows<'_>, &[u8], Ahead, bool, &mut [i32], &mut [[i32; 16]]);
/// [`scaled`] likewise.
pub(crate) type Scaled = unsafe fn(Rows<'_>, &[u8], Segments<'_>, &mut [f32]);

/// One for each number of rows from 1 to [`MOST`].
#[derive(Clone, Copy)]
pub(crate) enum Loops {
    Whole([Whole; MOST]),
    Scaled([Scaled; MOST]),
}

impl Loops {
    /// Of the instructions of `set`, for panels made of codes of `bits` bits and scales that change along k if they are `scaled`.
    pub(crate) fn of(set: Set, bits: usize, scaled: bool, panel_signed: bool) -> Self {
        match set {
            Set::Avx512 if scaled => Self::scaled(),
            Set::Avx512 => Self::whole(panel_signed),
            Set::Vnni => avx2::vnni_loops(scaled),
            Set::Plain if bits == 4 => avx2::narrow_loops(scaled),
            Set::Plain => avx2::plain_loops(scaled),
        }
    }

    /// For scales that do not change along k.
    fn whole(panel_signed: bool) -> Self {
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
    fn scaled() -> Self {
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

/// Adds the products of `R` rows with a panel of `WIDE` vectors to `sums`, rows of a panel's width, or stores them there if
/// they are the `first`. Either the rows' codes are signed or, if `PANEL_SIGNED`, the panel's. Signed codes of each row are added
/// to the sixteen numbers of `counts` that are its own, unless that is empty.
///
/// # Panics
/// If rows, panel, sums or counts are short.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(crate) fn whole<const R: usize, const PANEL_SIGNED: bool>(
    a: Rows<'_>,
    b: &[u8],
    mut ahead: Ahead,
    first: bool,
    sums: &mut [i32],
    counts: &mut [[i32; 16]],
) {
    let steps = b.len() / (64 * WIDE);
    let (mut row, mut panel, ld) = (a.starts::<R>(steps)[0], b.as_ptr(), a.ld);
    let sums = &mut sums[..R * 16 * WIDE];
    let mut tile = [[_mm512_setzero_si512(); WIDE]; R];
    if !first {
        for (r, tile) in tile.iter_mut().enumerate() {
            for (v, tile) in tile.iter_mut().enumerate() {
                // SAFETY: sixteen of the sums.
                *tile = unsafe { _mm512_loadu_si512(sums.as_ptr().add((r * WIDE + v) * 16).cast()) };
            }
        }
    }
    let mut counts = counts.first_chunk_mut::<R>();
    // One step at a time would spend a sixth of its instructions on addresses.
    for group in 0..steps / GROUP {
        ahead.ask();
        for _ in 0..GROUP {
            // SAFETY: a step of the panel, and of each row, of which there are as many.
            unsafe { step::<R, PANEL_SIGNED>(&mut tile, row, ld, panel) };
            (row, panel) = (row.wrapping_add(4), panel.wrapping_add(64 * WIDE));
        }
        // A line is counted while it is in L1.
        if let (Some(counts), 1) = (&mut counts, group % 2) {
            // SAFETY: it was just read.
            unsafe { count(row.wrapping_sub(64), ld, !0, counts) };
        }
    }
    for _ in 0..steps % GROUP {
        // SAFETY: as above.
        unsafe { step::<R, PANEL_SIGNED>(&mut tile, row, ld, panel) };
        (row, panel) = (row.wrapping_add(4), panel.wrapping_add(64 * WIDE));
    }
    if let (Some(counts), 1..) = (counts, steps % 16) {
        let rest = 4 * steps % 64;
        // SAFETY: as above.
        unsafe { count(row.wrapping_sub(rest), ld, (1 << rest) - 1, counts) };
    }
    for (r, tile) in tile.iter().enumerate() {
        for (v, &tile) in tile.iter().enumerate() {
            // SAFETY: as above.
            unsafe { _mm512_storeu_si512(sums.as_mut_ptr().add((r * WIDE + v) * 16).cast(), tile) };
        }
    }
}

/// Adds bytes `there` of a line of each row to its numbers of `counts`.
///
/// # Safety
/// `row` points to those bytes, as do `R` pointers from there `ld` bytes apart.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn count<const R: usize>(row: *const u8, ld: usize, there: u64, counts: &mut [[i32; 16]; R]) {
    let ones = _mm512_set1_epi8(1);
    for (r, counts) in counts.iter_mut().enumerate() {
        // SAFETY: passed on; sixteen numbers.
        unsafe {
            let codes = _mm512_maskz_loadu_epi8(there, row.wrapping_add(r * ld).cast());
            let before = _mm512_loadu_si512(counts.as_ptr().cast());
            _mm512_storeu_si512(counts.as_mut_ptr().cast(), _mm512_dpbusd_epi32(before, ones, codes));
        }
    }
}

/// A step: four elements of k.
///
/// # Safety
/// `row` points to four codes, as do `R` pointers from there `ld` bytes apart, `panel` to `WIDE` vectors.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn step<const R: usize, const PANEL_SIGNED: bool>(
    tile: &mut [[__m512i; WIDE]; R],
    row: *const u8,
    ld: usize,
    panel: *const u8,
) {
    let mut b = [_mm512_setzero_si512(); WIDE];
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

impl Segments<'_> {
    /// Those from segment `s` on, of panels of so many columns.
    fn from(self, s: usize, columns: usize) -> Self {
        Self {
            taken: &self.taken[s..],
            row_scales: self.row_scales.get(s..).unwrap_or(&[]),
            scales: &self.scales[s * columns..],
            zeros: self.zeros.get(s * columns..).unwrap_or(&[]),
            ..self
        }
    }
}

/// Adds the products of `R` rows with a panel to `sums`, rows of a panel's width; scales change along k, those of rows too if
/// there are some. Sums of a segment fill the registers, and complete ones wait in L1.
///
/// # Panics
/// If any part is short.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(crate) fn scaled<const R: usize>(a: Rows<'_>, b: &[u8], by: Segments<'_>, sums: &mut [f32]) {
    const COLUMNS: usize = 16 * WIDE;
    let steps = b.len() / (64 * WIDE);
    let (mut row, ld) = (a.starts::<R>(steps)[0], a.ld);
    let segments = steps.div_ceil(by.steps);
    let sums = &mut sums[..R * COLUMNS];
    // Asked at run time, to have fewer loops.
    let (vary, shifted) = (!by.row_scales.is_empty(), !by.zeros.is_empty());
    assert!(by.scales.len() >= segments * COLUMNS && (!shifted || by.zeros.len() >= segments * COLUMNS), "scales");
    assert!(by.taken.len() >= (R - 1) * by.ld + segments, "sums of rows");
    assert!(!vary || by.row_scales.len() >= (R - 1) * by.ld + segments, "scales of rows");
    for (s, segment) in b.chunks(by.steps * 64 * WIDE).enumerate() {
        let by = by.from(s, COLUMNS);
        let mut tile = [[_mm512_setzero_si512(); WIDE]; R];
        if !shifted {
            for (r, tile) in tile.iter_mut().enumerate() {
                // SAFETY: as many as were asserted.
                *tile = [_mm512_set1_epi32(unsafe { *by.taken.as_ptr().add(r * by.ld) } as i32); WIDE];
            }
        }
        // Segments are of sixteen elements at least.
        for panel in segment.chunks_exact(SHORT * 64 * WIDE) {
            for s in 0..SHORT {
                // SAFETY: a step of the panel, and of each row, of which there are as many.
                unsafe {
                    let panel = panel.as_ptr().add(s * 64 * WIDE);
                    step::<R, false>(&mut tile, row.wrapping_add(4 * s), ld, panel);
                }
            }
            row = row.wrapping_add(4 * SHORT);
        }
        // SAFETY: lists are as long as asserted, and so are the sums.
        unsafe { end::<R>(&tile, by, (shifted, vary), sums) };
    }
}

/// Adds a segment's sums, scaled, to `sums`; what is `shifted` has zero points, and scales of rows may `vary`.
///
/// # Safety
/// There are as many scales, zero points and sums as `R` rows and a panel's columns have.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn end<const R: usize>(
    tile: &[[__m512i; WIDE]; R],
    by: Segments<'_>,
    (shifted, vary): (bool, bool),
    sums: &mut [f32],
) {
    for v in 0..WIDE {
        // SAFETY: the caller's promise.
        unsafe {
            let scale = _mm512_loadu_ps(by.scales.as_ptr().add(16 * v));
            let mut column = [_mm512_setzero_ps(); R];
            for (sum, tile) in column.iter_mut().zip(tile) {
                *sum = _mm512_cvtepi32_ps(tile[v]);
            }
            if shifted {
                let zero = _mm512_loadu_ps(by.zeros.as_ptr().add(16 * v));
                for (r, sum) in column.iter_mut().enumerate() {
                    // Whole numbers, mostly below 2²⁴.
                    let taken = f32::from_bits(*by.taken.as_ptr().add(r * by.ld));
                    *sum = _mm512_fnmadd_ps(zero, _mm512_set1_ps(taken), *sum);
                }
            }
            if vary {
                for (r, sum) in column.iter_mut().enumerate() {
                    *sum = _mm512_mul_ps(*sum, _mm512_set1_ps(*by.row_scales.as_ptr().add(r * by.ld)));
                }
            }
            for (r, sum) in column.into_iter().enumerate() {
                let place = sums.as_mut_ptr().add((r * WIDE + v) * 16);
                _mm512_storeu_ps(place, _mm512_fmadd_ps(sum, scale, _mm512_loadu_ps(place)));
            }
        }
    }
}
