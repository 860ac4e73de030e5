//! Products of a few rows of numbers with lines of a B whose rows are contiguous.
//!
//! ```text
//!                 V vectors, a strip
//!            ├────────────┤
//!        k   │ ────────── │ ─────────   lines, each far from the next
//!            │ ────────── │ ─────────
//!   R rows, each number in all lanes: R × V vectors of sums, from memory and back to it for some lines
//! ```
//! Codes of 4 bits are looked up among their sixteen numbers, floats of 8 bits among those of bf16. Scales that change along k multiply sums of
//! lines that share them.

use crate::{
    gemm::amx::convert::{E4M3, E5M2, Floats, float},
    memory::{LINE, prefetch},
};
use kp_hal::DType;
use std::arch::x86_64::{
    __m512, _mm_loadu_si128, _mm256_loadu_si256, _mm512_castsi512_ps, _mm512_castsi512_si256, _mm512_cvtepi8_epi32,
    _mm512_cvtepi32_ps, _mm512_cvtepu8_epi32, _mm512_cvtepu16_epi32, _mm512_cvtph_ps, _mm512_extracti64x4_epi64,
    _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_mask_set1_epi32, _mm512_permutexvar_ps, _mm512_set1_epi32, _mm512_set1_ps,
    _mm512_setr_epi32, _mm512_setzero_ps, _mm512_slli_epi32, _mm512_srlv_epi32, _mm512_storeu_ps, _mm512_sub_ps,
};

/// Numbers of a vector.
const LANES: usize = 16;

/// Most lines that meet all rows at once.
pub(crate) const LINES: usize = 32;

/// How codes of a line become numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    F32,
    Bf16,
    F16,
    I8,
    U8,
    Float,
    Four,
}

impl Kind {
    /// Their bits.
    pub(crate) const fn bits(self) -> usize {
        match self {
            Self::F32 => 32,
            Self::Bf16 | Self::F16 => 16,
            Self::I8 | Self::U8 | Self::Float => 8,
            Self::Four => 4,
        }
    }
}

/// Types whose codes loops take.
pub(crate) const DTYPES: [DType; 11] = [
    DType::F32,
    DType::Bf16,
    DType::F16,
    DType::I8,
    DType::U8,
    DType::E4m3,
    DType::E5m2,
    DType::I4,
    DType::U4,
    DType::Nf4,
    DType::E2m1,
];

/// A [`Kind`] as a type, so that loops are compiled for each.
pub(crate) trait Code {
    const KIND: Kind;
}

macro_rules! codes {
    ($($name:ident),*) => {$(
        pub(crate) enum $name {}
        impl Code for $name {
            const KIND: Kind = Kind::$name;
        }
    )*};
}
codes!(F32, Bf16, F16, I8, U8, Float, Four);

/// What of lines is asked for while they are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asks {
    Nothing,
    /// What follows in each line, of the first cache.
    Along,
    /// What is read later and lies so many bytes further, of the second.
    Later(usize),
}

/// How far ahead in a line: 512 bytes took 1.03 to 1.1 of the time of 256 on Granite Rapids.
const ALONG: usize = 256;

/// Least bytes of a line's part for that: what is asked for beyond its end is for nobody.
const LEAST_ALONG: usize = 2048;

impl Asks {
    /// For parts of `bytes` bytes of lines, `later` bytes before what is read later: along them, if that is wanted and they are long.
    pub(crate) fn of(is_along: bool, bytes: usize, later: usize) -> Self {
        if is_along && bytes >= LEAST_ALONG { Self::Along } else { Self::Later(later) }
    }

    /// Asks for as many bytes as are read from `at` on.
    #[inline(always)]
    pub(super) fn ask(self, at: *const u8, bytes: usize) {
        for line in (0..bytes).step_by(LINE) {
            match self {
                Self::Nothing => {}
                Self::Along => prefetch::<1>(at.wrapping_add(ALONG + line)),
                Self::Later(later) => prefetch::<2>(at.wrapping_add(later + line)),
            }
        }
    }
}

/// Some columns of some lines: their bytes, from the first one's on, and how far it is from one to the next.
#[derive(Clone, Copy)]
pub(crate) struct Strip<'a> {
    pub(crate) codes: &'a [u8],
    pub(crate) ld: usize,
    pub(crate) lines: usize,
    pub(crate) columns: usize,
    pub(crate) asks: Asks,
    /// Of each column a scale that all of these lines share, and a zero point; nothing, if there are none.
    pub(crate) scales: &'a [f32],
    pub(crate) zeros: &'a [f32],
    pub(crate) table: &'a Table,
}

/// What codes are looked up among.
#[derive(Clone, Copy)]
pub(crate) struct Table {
    pub(super) four: [f32; 16],
    floats: &'static Floats,
    pub(super) halves: Halves,
}

/// How floats of 8 bits become those of 16.
#[derive(Clone, Copy)]
pub(crate) struct Halves {
    /// Bits that move by eight places, and by seven.
    pub(super) by_eight: i16,
    pub(super) by_seven: i16,
    /// What numbers are times those.
    pub(super) factor: f32,
    /// Which bits but for the sign are no number's though they would be, if any are.
    pub(super) no_number: i16,
}

impl Table {
    /// For codes of `dtype`.
    pub(crate) fn of(dtype: DType) -> Self {
        let four = if dtype.bits() == 4 { super::columns::sixteen(dtype) } else { [0.0; 16] };
        // An exponent of four bits counts from 8 less than one of five.
        let halves = match dtype {
            DType::E5m2 => Halves { by_eight: 0xff00_u16 as i16, by_seven: 0, factor: 1.0, no_number: -1 },
            _ => Halves { by_eight: i16::MIN, by_seven: 0x7f << 7, factor: 256.0, no_number: 0x7f },
        };
        Self { four, floats: if dtype == DType::E5m2 { &E5M2 } else { &E4M3 }, halves }
    }
}

/// Adds to `sums`, rows `ld` apart, the products of `R` rows `a`, `a_ld` apart, with the numbers of strips, `V` vectors at a
/// time, an even number where codes are floats of 8 bits.
///
/// # Panics
/// If rows, sums or lines are short, or columns no whole vectors.
#[expect(clippy::needless_range_loop, reason = "one index serves several squares of registers")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
pub(crate) fn lines<T: Code, const R: usize, const V: usize>(
    (a, a_ld): (&[f32], usize),
    strip: Strip<'_>,
    (sums, ld): (&mut [f32], usize),
) {
    let strip_bytes = V * LANES * T::KIND.bits() / 8;
    let Strip { codes, ld: line, lines, columns, asks, scales, zeros, table } = strip;
    let bytes = columns * T::KIND.bits() / 8;
    assert!(columns.is_multiple_of(V * LANES), "{columns} columns by {V} vectors");
    assert!(a.len() >= (R - 1) * a_ld + lines, "{R} rows of {lines} numbers");
    assert!(lines == 0 || codes.len() >= (lines - 1) * line + bytes, "{lines} lines of {bytes} bytes");
    assert!([scales, zeros].iter().all(|list| list.is_empty() || list.len() >= columns), "a number of each column");
    let sums = &mut sums[..(R - 1) * ld + columns];
    for first in (0..columns).step_by(V * LANES) {
        let codes = codes.as_ptr().wrapping_add(first * T::KIND.bits() / 8);
        let place = |r: usize, v: usize| r * ld + first + LANES * v;
        let mut totals = [[_mm512_setzero_ps(); V]; R];
        if scales.is_empty() {
            for r in 0..R {
                for v in 0..V {
                    // SAFETY: sixteen sums.
                    totals[r][v] = unsafe { _mm512_loadu_ps(sums.as_ptr().add(place(r, v))) };
                }
            }
        }
        for s in 0..lines {
            let codes = codes.wrapping_add(s * line);
            asks.ask(codes, strip_bytes);
            // SAFETY: a line of the strip, as asserted.
            let mut b = unsafe { numbers::<T, V>(codes, table) };
            if !zeros.is_empty() {
                for v in 0..V {
                    // SAFETY: as many as columns, as asserted.
                    b[v] = _mm512_sub_ps(b[v], unsafe { _mm512_loadu_ps(zeros.as_ptr().add(first + LANES * v)) });
                }
            }
            for r in 0..R {
                // SAFETY: a number of each row, as asserted.
                let number = _mm512_set1_ps(unsafe { *a.get_unchecked(r * a_ld + s) });
                for v in 0..V {
                    totals[r][v] = _mm512_fmadd_ps(b[v], number, totals[r][v]);
                }
            }
        }
        for r in 0..R {
            for v in 0..V {
                // SAFETY: as above.
                unsafe {
                    let sums = sums.as_mut_ptr().add(place(r, v));
                    if !scales.is_empty() {
                        let scales = _mm512_loadu_ps(scales.as_ptr().add(first + LANES * v));
                        totals[r][v] = _mm512_fmadd_ps(totals[r][v], scales, _mm512_loadu_ps(sums));
                    }
                    _mm512_storeu_ps(sums, totals[r][v]);
                }
            }
        }
    }
}

/// The numbers of part of a line.
///
/// # Safety
/// `V` vectors of them can be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn numbers<T: Code, const V: usize>(codes: *const u8, table: &Table) -> [__m512; V] {
    let mut all = [_mm512_setzero_ps(); V];
    if T::KIND == Kind::Float {
        for (i, two) in all.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            // SAFETY: the caller's promise: two vectors of bytes.
            let words = float(table.floats, unsafe { &*codes.add(2 * LANES * i).cast() });
            let halves = [_mm512_castsi512_si256(words), _mm512_extracti64x4_epi64::<1>(words)];
            *two = halves.map(|half| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(half))));
        }
        return all;
    }
    for (v, vector) in all.iter_mut().enumerate() {
        let codes = codes.wrapping_add(v * LANES * T::KIND.bits() / 8);
        // SAFETY: the caller's promise.
        *vector = unsafe {
            match T::KIND {
                Kind::F32 => _mm512_loadu_ps(codes.cast()),
                Kind::Bf16 => {
                    let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(codes.cast()));
                    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
                }
                Kind::F16 => _mm512_cvtph_ps(_mm256_loadu_si256(codes.cast())),
                Kind::I8 => _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(codes.cast()))),
                Kind::U8 => _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(codes.cast()))),
                Kind::Float => unreachable!("made above"),
                Kind::Four => {
                    // Eight codes to a word; the look-up ignores all but four bits.
                    let [first, last] = [0, 1].map(|i| codes.cast::<i32>().add(i).read_unaligned());
                    let words = _mm512_mask_set1_epi32(_mm512_set1_epi32(first), 0xff00, last);
                    let places = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
                    _mm512_permutexvar_ps(_mm512_srlv_epi32(words, places), _mm512_loadu_ps(table.four.as_ptr()))
                }
            }
        };
    }
    all
}
