//! The loops of [`super::tile`] and [`super::pack`] for processors that have AVX2 and no AVX-512, sixteen columns at a time.
//!
//! ```text
//!    A, rows of codes        B, a quarter of a panel     a step: four bytes of each row and column, which are four elements of k, or two
//!   ┌────────────┐          ┌───────┐
//! R │ 4 │ 4 │ …  │        k │       │  16 of 64 columns, the steps of which lie line behind line: R × 2 vectors of sums
//!   └────────────┘          └───────┘
//! ```
//! With AVX-VNNI both sides are bytes. Without it they are words, of each four codes the first and the third, then the others: products
//! of pairs of words are exact, where those of pairs of bytes are not. By columns of four bits they are, and so small that 16 bits
//! hold those of four steps: both sides are bytes, and half as many instructions multiply them.

use super::{
    pack::columns_of,
    tile::{Loops, Rows, Segments},
};
use crate::gemm::{
    across::Turned,
    few::{
        avx2_bytes::{Lifting, Plain, Vnni},
        byte_dots::Lift,
    },
    side::Side,
    tile::Ahead,
};
use std::{
    arch::x86_64::{
        __m256i, _mm256_add_epi16, _mm256_add_epi32, _mm256_and_si256, _mm256_cvtepi32_ps, _mm256_dpbusd_avx_epi32,
        _mm256_fmadd_ps, _mm256_fnmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_madd_epi16,
        _mm256_maddubs_epi16, _mm256_mul_ps, _mm256_permute2x128_si256, _mm256_set1_epi16, _mm256_set1_epi32,
        _mm256_set1_ps, _mm256_setzero_ps, _mm256_setzero_si256, _mm256_srli_epi16, _mm256_storeu_ps,
        _mm256_storeu_si256, _mm256_unpackhi_epi32, _mm256_unpackhi_epi64, _mm256_unpacklo_epi32,
        _mm256_unpacklo_epi64,
    },
    ops::Range,
};

/// Columns of a panel, those that meet rows at once, and vectors of these.
const PANEL: usize = 64;
const COLUMNS: usize = 16;
const VECTORS: usize = 2;

/// Lanes of a vector.
const LANES: usize = 8;

/// Bytes of a step of sixteen columns, and of a panel; of a row.
const STEP_BYTES: usize = 4 * COLUMNS;
const PANEL_BYTES: usize = 4 * PANEL;
const ROW_BYTES: usize = 4;

/// How products are added.
trait Step {
    /// Bytes of a code.
    const CODE: usize;

    /// Rows of which there are registers for the sums.
    const ROWS: usize;

    /// Steps at a time.
    const STEPS: usize = 1;

    /// Adds the products of [`Self::STEPS`] steps of each of `R` rows with sixteen columns.
    ///
    /// # Safety
    /// The processor has what the way uses; `row` points to the steps' codes, as do `R` pointers from there `ld` bytes apart, and
    /// `panel` to two vectors for each step, [`STEP_BYTES`] apart.
    unsafe fn step<const R: usize>(tile: &mut [[__m256i; VECTORS]; R], row: *const u8, ld: usize, panel: *const u8);
}

impl Step for Vnni {
    const CODE: usize = 1;
    const ROWS: usize = 6;

    #[inline(always)]
    unsafe fn step<const R: usize>(tile: &mut [[__m256i; VECTORS]; R], row: *const u8, ld: usize, panel: *const u8) {
        // SAFETY: the caller's promise.
        unsafe {
            let b: [__m256i; VECTORS] = [load(panel), load(panel.add(32))];
            for (r, tile) in tile.iter_mut().enumerate() {
                let a = _mm256_set1_epi32(row.add(r * ld).cast::<i32>().read_unaligned());
                for (tile, b) in tile.iter_mut().zip(b) {
                    *tile = _mm256_dpbusd_avx_epi32(*tile, b, a);
                }
            }
        }
    }
}

impl Step for Plain {
    const CODE: usize = 2;
    const ROWS: usize = 6;

    #[inline(always)]
    unsafe fn step<const R: usize>(tile: &mut [[__m256i; VECTORS]; R], row: *const u8, ld: usize, panel: *const u8) {
        // SAFETY: the caller's promise.
        unsafe {
            let b: [__m256i; VECTORS] = [load(panel), load(panel.add(32))];
            for (r, tile) in tile.iter_mut().enumerate() {
                let a = _mm256_set1_epi32(row.add(r * ld).cast::<i32>().read_unaligned());
                for (tile, b) in tile.iter_mut().zip(b) {
                    *tile = _mm256_add_epi32(*tile, _mm256_madd_epi16(b, a));
                }
            }
        }
    }
}

/// By columns of four bits.
enum Narrow {}

impl Step for Narrow {
    const CODE: usize = 1;
    const ROWS: usize = 3;
    // Twice 24 · 128 a step: 16 bits hold five.
    const STEPS: usize = 4;

    #[inline(always)]
    unsafe fn step<const R: usize>(tile: &mut [[__m256i; VECTORS]; R], row: *const u8, ld: usize, panel: *const u8) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [[_mm256_setzero_si256(); VECTORS]; R];
            for s in 0..Self::STEPS {
                let panel = panel.add(s * STEP_BYTES);
                let b: [__m256i; VECTORS] = [load(panel), load(panel.add(32))];
                for (r, sums) in sums.iter_mut().enumerate() {
                    let a = _mm256_set1_epi32(row.add(r * ld + ROW_BYTES * s).cast::<i32>().read_unaligned());
                    for (sum, b) in sums.iter_mut().zip(b) {
                        *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(b, a));
                    }
                }
            }
            for (tile, sums) in tile.iter_mut().zip(sums) {
                for (tile, sum) in tile.iter_mut().zip(sums) {
                    *tile = _mm256_add_epi32(*tile, _mm256_madd_epi16(sum, _mm256_set1_epi16(1)));
                }
            }
        }
    }
}

macro_rules! sets {
    ($($features:literal $step:ident $name:ident $whole:ident $scaled:ident)*) => {$(
        #[doc = concat!("Loops for `", $features, "`: for scales that change along k if `scaled`.")]
        pub(crate) fn $name(scaled: bool) -> Loops {
            match scaled {
                false => Loops::Whole([$whole::<1>, $whole::<2>, $whole::<3>, $whole::<4>, $whole::<5>, $whole::<6>]),
                true => Loops::Scaled([
                    $scaled::<1>, $scaled::<2>, $scaled::<3>, $scaled::<4>, $scaled::<5>, $scaled::<6>
                ]),
            }
        }

        /// [`super::tile::whole`] without counts.
        ///
        /// # Panics
        /// If rows or sums are short.
        #[target_feature(enable = $features)]
        fn $whole<const R: usize>(
            a: Rows<'_>, b: &[u8], _: Ahead, first: bool, sums: &mut [i32], _: &mut [[i32; 16]],
        ) {
            // SAFETY: the features are those of this function.
            unsafe { whole::<$step, R>(a, b, first, sums) }
        }

        /// [`super::tile::scaled`].
        ///
        /// # Panics
        /// If any part is short.
        #[target_feature(enable = $features)]
        fn $scaled<const R: usize>(a: Rows<'_>, b: &[u8], by: Segments<'_>, sums: &mut [f32]) {
            // SAFETY: the features are those of this function.
            unsafe { scaled::<$step, R>(a, b, by, sums) }
        }
    )*};
}
sets! {
    "avx2,fma,avxvnni" Vnni vnni_loops vnni_whole vnni_scaled
    "avx2,fma" Plain plain_loops plain_whole plain_scaled
    "avx2,fma" Narrow narrow_loops narrow_whole narrow_scaled
}

/// Passes rows on, as many at a time as there are registers for.
macro_rules! some_rows {
    ($ways:ident, $rows:ident, $some:ident($($operand:expr),*)) => {
        match $rows {
            4 if $ways::ROWS == 3 => {
                $some::<$ways, 2>(0, $($operand),*);
                $some::<$ways, 2>(2, $($operand),*);
            }
            5 if $ways::ROWS == 3 => {
                $some::<$ways, 3>(0, $($operand),*);
                $some::<$ways, 2>(3, $($operand),*);
            }
            6 if $ways::ROWS == 3 => {
                $some::<$ways, 3>(0, $($operand),*);
                $some::<$ways, 3>(3, $($operand),*);
            }
            _ => $some::<$ways, $rows>(0, $($operand),*),
        }
    };
}

/// # Safety
/// The processor has what `S` uses.
#[inline(always)]
unsafe fn whole<S: Step, const R: usize>(a: Rows<'_>, b: &[u8], first: bool, sums: &mut [i32]) {
    // SAFETY: passed on.
    unsafe { some_rows!(S, R, whole_of(a, b, first, sums)) }
}

/// # Safety
/// The processor has what `S` uses.
#[inline(always)]
unsafe fn scaled<S: Step, const R: usize>(a: Rows<'_>, b: &[u8], by: Segments<'_>, sums: &mut [f32]) {
    // SAFETY: passed on.
    unsafe { some_rows!(S, R, scaled_of(a, b, by, sums)) }
}

/// [`whole`] of `R` rows from `row` on.
///
/// # Safety
/// As that.
#[expect(clippy::needless_range_loop, reason = "one index serves sums and registers")]
#[inline(always)]
unsafe fn whole_of<S: Step, const R: usize>(row: usize, a: Rows<'_>, b: &[u8], first: bool, sums: &mut [i32]) {
    let steps = b.len() / PANEL_BYTES;
    let codes = start::<S, R>(row, a, steps);
    let sums = &mut sums[row * PANEL..][..R * PANEL];
    for (column, b) in (0..PANEL).step_by(COLUMNS).zip(b.chunks_exact(steps.max(1) * STEP_BYTES)) {
        // SAFETY: the caller's promise; sixteen sums of each row, and steps of each and of the panel, as asserted.
        unsafe {
            let mut tile = [[_mm256_setzero_si256(); VECTORS]; R];
            let place = |r: usize, v: usize| r * PANEL + column + v * LANES;
            if !first {
                for r in 0..R {
                    for v in 0..VECTORS {
                        tile[r][v] = load(sums.as_ptr().add(place(r, v)).cast());
                    }
                }
            }
            add::<S, R>(&mut tile, codes, a.ld, b.as_ptr(), steps);
            for r in 0..R {
                for v in 0..VECTORS {
                    _mm256_storeu_si256(sums.as_mut_ptr().add(place(r, v)).cast(), tile[r][v]);
                }
            }
        }
    }
}

/// [`scaled`] of `R` rows from `row` on.
///
/// # Safety
/// As that.
#[inline(always)]
unsafe fn scaled_of<S: Step, const R: usize>(row: usize, a: Rows<'_>, b: &[u8], by: Segments<'_>, sums: &mut [f32]) {
    let steps = b.len() / PANEL_BYTES;
    let codes = start::<S, R>(row, a, steps);
    let of_segment = by.steps * S::CODE;
    let segments = steps.div_ceil(of_segment);
    assert!(of_segment.is_multiple_of(S::STEPS), "segments of whole calls");
    let sums = &mut sums[row * PANEL..][..R * PANEL];
    // Asked at run time, to have fewer loops.
    let (vary, shifted) = (!by.row_scales.is_empty(), !by.zeros.is_empty());
    assert!(by.scales.len() >= segments * PANEL && (!shifted || by.zeros.len() >= segments * PANEL), "scales");
    assert!(by.taken.len() >= (row + R - 1) * by.ld + segments, "sums of rows");
    assert!(!vary || by.row_scales.len() >= (row + R - 1) * by.ld + segments, "scales of rows");
    for (column, b) in (0..PANEL).step_by(COLUMNS).zip(b.chunks_exact(steps.max(1) * STEP_BYTES)) {
        for s in 0..segments {
            let some = s * of_segment..((s + 1) * of_segment).min(steps);
            let of_row = |r: usize| (row + r) * by.ld + s;
            // SAFETY: the caller's promise; of all lists, rows and the panel as much is there as was asserted.
            unsafe {
                let taken = |r: usize| *by.taken.as_ptr().add(of_row(r));
                let mut tile = [[_mm256_setzero_si256(); VECTORS]; R];
                if !shifted {
                    for (r, tile) in tile.iter_mut().enumerate() {
                        *tile = [_mm256_set1_epi32(taken(r) as i32); VECTORS];
                    }
                }
                let (codes, panel) = (codes.add(some.start * ROW_BYTES), b.as_ptr().add(some.start * STEP_BYTES));
                add::<S, R>(&mut tile, codes, a.ld, panel, some.len());
                for v in 0..VECTORS {
                    let at = column + v * LANES;
                    let scale = _mm256_loadu_ps(by.scales.as_ptr().add(s * PANEL + at));
                    let mut numbers = [_mm256_setzero_ps(); R];
                    for (number, tile) in numbers.iter_mut().zip(&tile) {
                        *number = _mm256_cvtepi32_ps(tile[v]);
                    }
                    if shifted {
                        let zero = _mm256_loadu_ps(by.zeros.as_ptr().add(s * PANEL + at));
                        for (r, number) in numbers.iter_mut().enumerate() {
                            // Whole numbers, mostly below 2²⁴.
                            *number = _mm256_fnmadd_ps(zero, _mm256_set1_ps(f32::from_bits(taken(r))), *number);
                        }
                    }
                    if vary {
                        for (r, number) in numbers.iter_mut().enumerate() {
                            *number = _mm256_mul_ps(*number, _mm256_set1_ps(*by.row_scales.as_ptr().add(of_row(r))));
                        }
                    }
                    for (r, number) in numbers.into_iter().enumerate() {
                        let place = sums.as_mut_ptr().add(r * PANEL + at);
                        _mm256_storeu_ps(place, _mm256_fmadd_ps(number, scale, _mm256_loadu_ps(place)));
                    }
                }
            }
        }
    }
}

/// Adds products of steps to `R` rows of sixteen sums.
///
/// # Safety
/// The processor has what `S` uses; there are as many steps, a multiple of [`Step::STEPS`], of each row, `ld` bytes apart, and of
/// the panel.
#[inline(always)]
unsafe fn add<S: Step, const R: usize>(
    tile: &mut [[__m256i; VECTORS]; R],
    row: *const u8,
    ld: usize,
    panel: *const u8,
    steps: usize,
) {
    for s in (0..steps).step_by(S::STEPS) {
        // SAFETY: passed on; steps are whole calls.
        unsafe { S::step(tile, row.add(s * ROW_BYTES), ld, panel.add(s * STEP_BYTES)) };
    }
}

/// The first code of `R` rows, from `row` on, of `steps` steps.
///
/// # Panics
/// If they are not there, or not whole calls.
fn start<S: Step, const R: usize>(row: usize, a: Rows<'_>, steps: usize) -> *const u8 {
    assert!(steps.is_multiple_of(S::STEPS), "whole calls");
    assert!((row + R - 1) * a.ld + ROW_BYTES * steps <= a.codes.len(), "{R} rows of {steps} steps");
    a.codes[row * a.ld..].as_ptr()
}

/// # Safety
/// The processor has AVX2, and 32 bytes can be read.
#[inline(always)]
unsafe fn load(at: *const u8) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe { _mm256_loadu_si256(at.cast()) }
}

/// [`super::pack::pack`] of columns, a panel of them, whose codes become as many `bytes`: `out` is what the loops get.
///
/// # Panics
/// If `out` is short.
#[target_feature(enable = "avx2")]
pub(crate) fn pack(
    b: &Side<'_>,
    batch: usize,
    columns: Range<usize>,
    inner: Range<usize>,
    bytes: usize,
    (lift, turned): (&Lift, &mut Turned<'_>),
    out: &mut [u8],
) {
    let bits = b.matrix.dtype().bits() as usize;
    let lines = (inner.len() * bits).div_ceil(512);
    let quarter = out.len() / (PANEL / COLUMNS);
    // SAFETY: the feature is that of this function.
    let lifting = unsafe { Lifting::new(lift) };
    // SAFETY: as above.
    let of_columns = unsafe { columns_of(b, batch, &columns, &inner, turned) };
    for first in (0..PANEL).step_by(LANES) {
        let mut all: [&[u8]; LANES] = [&[]; LANES];
        for (codes, o) in all.iter_mut().zip(columns.start + first..columns.end) {
            *codes = of_columns.column(o);
        }
        // Half lines.
        for half in 0..2 * lines {
            let mut rows = [_mm256_setzero_si256(); LANES];
            for (row, codes) in rows.iter_mut().zip(all) {
                let codes = codes.get(32 * half..).unwrap_or(&[]);
                let mut last = [0; 32];
                let whole = codes.first_chunk::<32>().unwrap_or_else(|| {
                    last[..codes.len()].copy_from_slice(codes);
                    &last
                });
                // SAFETY: 32 bytes.
                *row = unsafe { load(whole.as_ptr()) };
            }
            for (i, codes) in transposed(rows).into_iter().enumerate() {
                let mut put = |step: usize, codes: __m256i| {
                    let out = &mut out[first / COLUMNS * quarter + step * STEP_BYTES + first % COLUMNS * 4..][..32];
                    // SAFETY: 32 bytes.
                    unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), codes) };
                };
                let step = LANES * half + i;
                // SAFETY: the feature is that of this function.
                unsafe {
                    if bytes == 2 {
                        let codes = lifting.bytes(codes);
                        put(2 * step, _mm256_and_si256(codes, _mm256_set1_epi16(0xff)));
                        put(2 * step + 1, _mm256_srli_epi16::<8>(codes));
                    } else if bits == 8 {
                        put(step, lifting.bytes(codes));
                    } else {
                        let [even, odd] = lifting.four_bits(codes);
                        put(2 * step, even);
                        put(2 * step + 1, odd);
                    }
                }
            }
        }
    }
}

/// Eight vectors of eight dwords, rows made columns.
#[inline]
#[target_feature(enable = "avx2")]
fn transposed(r: [__m256i; LANES]) -> [__m256i; LANES] {
    let (mut t, mut u, mut out) = (r, r, r);
    // Pairs of rows, then fours, within 128 bits.
    for i in (0..LANES).step_by(2) {
        t[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
    }
    for i in (0..LANES).step_by(4) {
        u[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
        u[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
        u[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
        u[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for c in 0..4 {
        out[c] = _mm256_permute2x128_si256::<0x20>(u[c], u[4 + c]);
        out[4 + c] = _mm256_permute2x128_si256::<0x31>(u[c], u[4 + c]);
    }
    out
}

/// [`super::rows::ready`] of rows whose codes are `code` bytes: see above.
///
/// # Panics
/// As that.
#[target_feature(enable = "avx2")]
pub(crate) fn ready(codes: &[u8], bits: usize, code: usize, out: &mut [u8], segment: usize, sums: &mut [i32]) {
    for (part, sum) in codes.chunks(segment.min(codes.len().max(1))).zip(sums) {
        let more = part.iter().map(|&code| i32::from(code as i8)).sum::<i32>();
        *sum = sum.wrapping_add(more);
    }
    for (eight, out) in codes.chunks(8).zip(out.chunks_mut(8 * code)) {
        let mut line = [0_u8; 8];
        line[..eight.len()].copy_from_slice(eight);
        if bits == 4 {
            // Those of even place first, where the column has them so.
            line = [0, 2, 4, 6, 1, 3, 5, 7].map(|i| line[i]);
        }
        if code == 1 {
            out.copy_from_slice(&line[..out.len()]);
        } else {
            for (fours, out) in line.as_chunks::<4>().0.iter().zip(out.as_chunks_mut::<8>().0) {
                let words = [0, 2, 1, 3].map(|i| i16::from(fours[i] as i8).to_le_bytes());
                out.copy_from_slice(words.as_flattened());
            }
        }
    }
}
