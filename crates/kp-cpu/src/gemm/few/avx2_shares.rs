//! Dot products of few rows of bytes with a column of four bits that has a scale for each so many elements, on processors that have
//! AVX2 and no more: exact sums of these shares in i32, scaled and added in f32.
//!
//! ```text
//!   column   │ 8 shares │ 8 shares │ …    a stretch: 64 bytes, or 128
//!   rows   r │ 8 shares │ …               in the order in which the column's codes come out
//! ```
//! A load of the column has two shares or four, so sums of a stretch are added across lanes until each of its eight shares has a
//! lane: then one conversion and one multiply-add serve all eight, and scales need no spreading. Products of bytes are in 16 bits
//! until then, since those of four bits are so small that 16 of them fit. What needs more than a byte is multiplied as words.

use super::{
    avx2::lanes,
    byte_dots::Lift,
    byte_row::{FINE, FLIPPED, LOOKED_UP, SHIFTED},
    dots::ask,
};
use std::arch::x86_64::{
    __m256, __m256i, _mm_loadu_si128, _mm256_add_epi16, _mm256_add_epi32, _mm256_and_si256,
    _mm256_broadcastsi128_si256, _mm256_castsi256_ps, _mm256_cvtepi32_ps, _mm256_fmadd_ps, _mm256_fnmadd_ps,
    _mm256_hadd_epi16, _mm256_hadd_epi32, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_maddubs_epi16,
    _mm256_mul_ps, _mm256_permutevar8x32_ps, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_setr_epi32, _mm256_setzero_ps,
    _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_srli_epi16, _mm256_unpackhi_epi8, _mm256_unpacklo_epi8,
    _mm256_xor_si256,
};

/// Shares of a stretch: the lanes of a vector.
pub(crate) const SHARES: usize = 8;

/// Bytes of a vector.
const VECTOR: usize = 32;

/// Which share of a stretch lane `lane` of its sums is, of shares of `share` elements.
pub(crate) const fn share_of(share: usize, lane: usize) -> usize {
    let (half, i) = (lane / 4, lane % 4);
    if share == 32 { 2 * i + half } else { 4 * (i / 2) + 2 * half + i % 2 }
}

/// Which element of a stretch place `place` of a row has: bytes beside those of a vector's codes of even place, then of odd; or
/// words, eight of each half of a vector at a time.
const fn element(is_words: bool, place: usize) -> usize {
    let (vector, place) = (place / (2 * VECTOR), place % (2 * VECTOR));
    let (parity, place) = (place / VECTOR, place % VECTOR);
    let byte = if is_words { place / 8 % 2 * 16 + place / 16 * 8 + place % 8 } else { place };
    2 * (vector * VECTOR + byte) + parity
}

/// [`element`] of each place of a stretch of bytes, and of words.
pub(crate) const ELEMENTS: [[u8; 256]; 2] = [elements(false), elements(true)];

const fn elements(is_words: bool) -> [u8; 256] {
    let mut elements = [0; 256];
    let mut place = 0;
    while place < elements.len() {
        elements[place] = element(is_words, place) as u8;
        place += 1;
    }
    elements
}

/// Some stretches of rows of A. Each part holds for each stretch and row as much as is said.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    /// Codes in the order of [`ELEMENTS`], zeros past the end: i8, or i16 if columns are [`FINE`].
    pub(crate) codes: &'a [u8],
    /// For each share − offset · the sum of its codes; where zero points are given, that sum as f32.
    pub(crate) sums: &'a [u32],
    /// The scale of each share. Both are in the order of [`share_of`].
    pub(crate) scales: &'a [f32],
}

/// A column, from some stretch on.
#[derive(Clone, Copy)]
pub(crate) struct Column<'a> {
    /// Its codes, up to the last one.
    pub(crate) codes: &'a [u8],
    /// A scale for each share of whole stretches.
    pub(crate) scales: &'a [f32],
    /// Zero points alike, of codes as they are when unsigned, if codes are [`SHIFTED`].
    pub(crate) zeros: &'a [f32],
    /// How many bytes ahead memory is asked for.
    pub(crate) ahead: usize,
}

/// Adds to `sums` the products of `R` rows with a column whose shares have `SHARE` elements, 16 or 32. See [`super::byte_row`] for
/// how, by `HOW`, codes become bytes; those that are [`FINE`] become words, signed.
///
/// # Panics
/// If rows or lists do not cover the column's stretches.
#[expect(clippy::needless_range_loop, reason = "one index serves several arrays of registers")]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn shares<const R: usize, const HOW: u8, const SHARE: usize>(
    lift: &Lift,
    a: Rows<'_>,
    column: Column<'_>,
    sums: &mut [f32],
) {
    const { assert!(SHARE == 16 || SHARE == 32, "loads have whole shares") };
    let elements = const { SHARES * SHARE };
    let vectors = const { SHARES * SHARE / (2 * VECTOR) };
    let width = const { if HOW == FINE { 2 } else { 1 } };
    let Column { codes, scales, zeros, ahead } = column;
    let count = codes.len().div_ceil(elements / 2);
    let (rows, taken) = (&a.codes[..count * R * elements * width], &a.sums[..count * R * SHARES]);
    let (row_scales, scales) = (&a.scales[..count * R * SHARES], &scales[..count * SHARES]);
    let zeros = if HOW == SHIFTED { &zeros[..count * SHARES] } else { &[] };
    let order: [i32; SHARES] = std::array::from_fn(|lane| share_of(SHARE, lane) as i32);
    let [o0, o1, o2, o3, o4, o5, o6, o7] = order;
    let order = _mm256_setr_epi32(o0, o1, o2, o3, o4, o5, o6, o7);
    let turn = |numbers: __m256| _mm256_permutevar8x32_ps(numbers, order);
    let lifting = Lifting::new(lift);
    let mut last = [0_u8; 4 * VECTOR];
    let mut totals = [_mm256_setzero_ps(); R];
    for g in 0..count {
        let rest = &codes[g * elements / 2..];
        let mut start = rest.as_ptr();
        if rest.len() < elements / 2 {
            last[..rest.len()].copy_from_slice(rest);
            start = last.as_ptr();
        } else if ahead > 0 {
            ask(start, ahead, elements / 2);
        }
        // SAFETY: a stretch of codes is there, of each row, and of lists.
        unsafe {
            let mut parts = [[_mm256_setzero_si256(); 4]; 4];
            for v in 0..vectors {
                parts[v] = lifting.vector::<HOW>(start.add(v * VECTOR));
            }
            let scale = turn(_mm256_loadu_ps(scales.as_ptr().add(g * SHARES)));
            let mut zero = _mm256_setzero_ps();
            if HOW == SHIFTED {
                zero = turn(_mm256_loadu_ps(zeros.as_ptr().add(g * SHARES)));
            }
            for r in 0..R {
                let row = rows.as_ptr().add((g * R + r) * elements * width);
                let whole = if HOW == FINE { words::<SHARE>(&parts, row) } else { bytes::<HOW, SHARE>(&parts, row) };
                let at = (g * R + r) * SHARES;
                let taken = _mm256_loadu_si256(taken.as_ptr().add(at).cast());
                let number = if HOW == SHIFTED {
                    // Whole numbers below 2²⁴: exact.
                    _mm256_fnmadd_ps(zero, _mm256_castsi256_ps(taken), _mm256_cvtepi32_ps(whole))
                } else {
                    _mm256_cvtepi32_ps(_mm256_add_epi32(whole, taken))
                };
                let by = _mm256_mul_ps(scale, _mm256_loadu_ps(row_scales.as_ptr().add(at)));
                totals[r] = _mm256_fmadd_ps(number, by, totals[r]);
            }
        }
    }
    for (first, sums) in sums[..R].chunks_mut(4).enumerate() {
        let four = std::array::from_fn(|i| totals.get(4 * first + i).copied().unwrap_or(_mm256_setzero_ps()));
        sums.iter_mut().zip(lanes(&four)).for_each(|(sum, more)| *sum += more);
    }
}

/// The sums of a stretch's shares, of bytes.
///
/// # Safety
/// The processor has AVX2, and the row has a stretch.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn bytes<const HOW: u8, const SHARE: usize>(parts: &[[__m256i; 4]; 4], row: *const u8) -> __m256i {
    let sums = |v: usize| {
        let [even, odd, ..] = parts[v];
        // SAFETY: the caller's promise.
        let half = |half: usize| unsafe { _mm256_loadu_si256(row.add((2 * v + half) * VECTOR).cast()) };
        _mm256_add_epi16(_mm256_maddubs_epi16(even, half(0)), _mm256_maddubs_epi16(odd, half(1)))
    };
    let wide = |sums: __m256i| _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
    // Eight products each.
    let two = _mm256_hadd_epi16(sums(0), sums(1));
    if SHARE == 16 {
        return wide(two);
    }
    let others = _mm256_hadd_epi16(sums(2), sums(3));
    if HOW == LOOKED_UP {
        // Sixteen of up to 24 · 128 would be too much for 16 bits.
        _mm256_hadd_epi32(wide(two), wide(others))
    } else {
        wide(_mm256_hadd_epi16(two, others))
    }
}

/// The same of words.
///
/// # Safety
/// The processor has AVX2, and the row has a stretch.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn words<const SHARE: usize>(parts: &[[__m256i; 4]; 4], row: *const u8) -> __m256i {
    // Those of the first eight bytes of each half of a vector, or of the others. Closures that `map` of an array would call are not
    // always inlined there, and cost three times what they compute.
    let sums = |v: usize, part: usize| {
        // SAFETY: the caller's promise.
        let row = |parity: usize| unsafe { _mm256_loadu_si256(row.add((4 * v + 2 * parity + part) * VECTOR).cast()) };
        let even = _mm256_madd_epi16(parts[v][part], row(0));
        _mm256_add_epi32(even, _mm256_madd_epi16(parts[v][2 + part], row(1)))
    };
    let both = |v: usize| _mm256_add_epi32(sums(v, 0), sums(v, 1));
    if SHARE == 32 {
        let two = _mm256_hadd_epi32(both(0), both(1));
        return _mm256_hadd_epi32(two, _mm256_hadd_epi32(both(2), both(3)));
    }
    let quarters = |v: usize| _mm256_hadd_epi32(sums(v, 0), sums(v, 1));
    _mm256_hadd_epi32(quarters(0), quarters(1))
}

/// A [`Lift`] in registers.
struct Lifting {
    flip: __m256i,
    table: __m256i,
    fine: __m256i,
}

impl Lifting {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn new(lift: &Lift) -> Self {
        // SAFETY: sixteen bytes.
        let table = |table: &[u8; 16]| _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(table.as_ptr().cast()) });
        // In both codes of a byte.
        let flip = _mm256_set1_epi8((lift.flip | lift.flip << 4) as i8);
        Self { flip, table: table(&lift.table), fine: table(&lift.fine) }
    }

    /// The codes of a vector: bytes of even place and of odd; or words of these, see [`ELEMENTS`].
    ///
    /// # Safety
    /// The processor has AVX2, and a vector can be read.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn vector<const HOW: u8>(&self, codes: *const u8) -> [__m256i; 4] {
        let low = _mm256_set1_epi8(15);
        // SAFETY: the caller's promise.
        let codes = unsafe { _mm256_loadu_si256(codes.cast()) };
        let codes = if matches!(HOW, FLIPPED | SHIFTED) { _mm256_xor_si256(codes, self.flip) } else { codes };
        let (even, odd) = (_mm256_and_si256(codes, low), _mm256_and_si256(_mm256_srli_epi16::<4>(codes), low));
        match HOW {
            LOOKED_UP => {
                let (even, odd) = (_mm256_shuffle_epi8(self.table, even), _mm256_shuffle_epi8(self.table, odd));
                [even, odd, even, odd]
            }
            FINE => {
                let words = |codes: __m256i| {
                    let (upper, lower) =
                        (_mm256_shuffle_epi8(self.table, codes), _mm256_shuffle_epi8(self.fine, codes));
                    [_mm256_unpacklo_epi8(lower, upper), _mm256_unpackhi_epi8(lower, upper)]
                };
                let ([e0, e1], [o0, o1]) = (words(even), words(odd));
                [e0, e1, o0, o1]
            }
            _ => [even, odd, even, odd],
        }
    }
}
