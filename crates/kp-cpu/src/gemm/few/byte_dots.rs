//! Dot products of a few rows of 8-bit codes with one column of 8- or 4-bit codes, summed exactly in i32.
//!
//! ```text
//!   column   │ 64 bytes │ 64 bytes │ …    a line: 64 codes, or 128 of four bits, those of even place first
//!   rows   r │ 64 codes │ …             i8, in the same order
//! ```
//! `vpdpbusd` multiplies unsigned by signed bytes and adds four products to each lane. So the column's codes are moved
//! up until none is negative, by an *offset* that is taken off again: offset · sum of the row. Scales that change along
//! k multiply the sums of a line, lane by lane.

use super::{
    dots::{Ends, SHARE, STEP, SUMS, add_lanes, ask, ends},
    far::Far,
};
use crate::gemm::vnni::pack::transposed;
use std::arch::x86_64::{
    __m512, __m512i, _mm_loadu_ps, _mm_loadu_si128, _mm256_loadu_ps, _mm512_add_epi32, _mm512_and_si512,
    _mm512_broadcast_i32x4, _mm512_castps128_ps512, _mm512_castps256_ps512, _mm512_castsi512_ps, _mm512_cvtepi32_ps,
    _mm512_dpbusd_epi32, _mm512_fmadd_ps, _mm512_fnmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_mul_ps,
    _mm512_permutexvar_ps, _mm512_reduce_add_epi32, _mm512_set1_epi8, _mm512_setr_epi32, _mm512_setzero_ps,
    _mm512_setzero_si512, _mm512_shuffle_epi8, _mm512_srli_epi16, _mm512_storeu_si512, _mm512_xor_si512,
};

/// Width of the column's codes.
pub(crate) trait Width {
    const BITS: usize;
    /// Lines of a step.
    const LINES: usize = Self::BITS / 4;
}

/// A byte each.
pub(crate) enum Eight {}
/// Two to a byte.
pub(crate) enum Four {}

impl Width for Eight {
    const BITS: usize = 8;
}
impl Width for Four {
    const BITS: usize = 4;
}

/// Which element of a line byte `byte` of its codes is, when four bits have become a byte each.
pub(crate) const fn place(bits: usize, byte: usize) -> usize {
    match bits {
        4 => byte % 64 * 2 + byte / 64,
        _ => byte,
    }
}

/// How codes become unsigned bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lift {
    /// Bits of a whole byte that are turned around.
    pub(crate) flip: u8,
    /// What each code of four bits becomes.
    pub(crate) table: [u8; 16],
    /// And how many 256ths more, where a byte alone is too coarse.
    pub(crate) fine: [u8; 16],
}

/// One column, from some step on.
#[derive(Clone, Copy)]
pub(crate) struct Column<'a> {
    /// Its codes, up to the last one.
    pub(crate) codes: &'a [u8],
    /// A scale for every 16 elements of whole steps.
    pub(crate) scales: &'a [f32],
    /// Zero points alike, of codes as they are when lifted; empty if there are none.
    pub(crate) zeros: &'a [f32],
}

/// Rows of A from the same step on. Each part holds for each step and row as much as is said.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    /// 128 codes, zeros past the end.
    pub(crate) codes: &'a [i8],
    /// A vector for each line: − offset · the sum of each lane's codes; where zero points are given, that sum as f32.
    pub(crate) lanes: &'a [u32],
    /// A vector for each line: the scale of each lane. Empty if scales do not change along k.
    pub(crate) scales: &'a [f32],
}

/// Adds to `sums` the products of `R` rows with lifted codes of `C` columns of one length, column by column; sums wrap. Either side has signs, rows
/// if they are `SIGNED`. Each line asks for another `ahead` bytes behind it, and for one that is read later.
///
/// # Panics
/// If the rows do not cover the columns' steps.
#[expect(clippy::needless_range_loop, reason = "one index serves several squares of registers")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(crate) fn whole<T: Width, const R: usize, const C: usize, const SIGNED: bool>(
    lift: &Lift,
    a: Rows<'_>,
    columns: &[Column<'_>],
    mut ahead: (usize, Far),
    sums: &mut [i32],
) {
    let (columns, count) = alike::<T, C>(columns);
    let a = &a.codes[..count * R * STEP];
    // A single sum would wait for its own last product.
    let chains = const { if R * C == 1 { 2 } else { 1 } };
    let mut totals = [[[_mm512_setzero_si512(); C]; R]; 2];
    let lift = Lifting::new(lift);
    let mut last = None;
    for s in 0..count {
        let starts = starts::<T, C>(columns, s, ahead.0, &mut last);
        // SAFETY: a whole step of codes is there, and of each row.
        unsafe {
            let a = a.as_ptr().add(s * R * STEP);
            for line in 0..T::LINES {
                let mut parts = [[_mm512_setzero_si512(); 2]; C];
                for c in 0..C {
                    parts[c] = lift.line::<T>(starts[c].add(64 * line));
                }
                for h in 0..2 / T::LINES {
                    let i = 2 * line / T::LINES + h;
                    for r in 0..R {
                        if h == 0 {
                            ahead.1.ask_in_turn::<true>(r, R, C);
                        }
                        let row = _mm512_loadu_si512(a.add(r * STEP + i * 64).cast());
                        for c in 0..C {
                            let total = &mut totals[i % chains][r][c];
                            let (unsigned, signed) = if SIGNED { (parts[c][h], row) } else { (row, parts[c][h]) };
                            *total = _mm512_dpbusd_epi32(*total, unsigned, signed);
                        }
                    }
                }
            }
        }
    }
    let mut vectors = [_mm512_setzero_si512(); SUMS];
    for r in 0..R {
        for c in 0..C {
            vectors[c * R + r] =
                if chains == 1 { totals[0][r][c] } else { _mm512_add_epi32(totals[0][r][c], totals[1][r][c]) };
        }
    }
    let mut all = [0_i32; SUMS];
    if const { R * C <= 4 } {
        for i in 0..R * C {
            all[i] = _mm512_reduce_add_epi32(vectors[i]);
        }
    } else {
        // A lane of each, sixteen times: of many a third of the instructions of one sum after the other.
        let lanes =
            transposed(vectors).into_iter().fold(_mm512_setzero_si512(), |sum, lane| _mm512_add_epi32(sum, lane));
        // SAFETY: sixteen numbers.
        unsafe { _mm512_storeu_si512(all.as_mut_ptr().cast(), lanes) };
    }
    for (sum, more) in sums[..R * C].iter_mut().zip(all) {
        *sum = sum.wrapping_add(more);
    }
}

/// Adds to `sums` the products alike, with scales that change along k: those of columns, and of rows if there are some; and
/// with zero points if columns have them. Neither rows nor zero points are asked for if all is `SIMPLE`.
///
/// # Panics
/// If rows, scales or zero points do not cover the columns' steps.
#[expect(clippy::needless_range_loop, reason = "one index serves several squares of registers")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(crate) fn scaled<T: Width, const R: usize, const C: usize, const SIMPLE: bool>(
    lift: &Lift,
    a: Rows<'_>,
    columns: &[Column<'_>],
    mut ahead: (usize, Far),
    sums: &mut [f32],
) {
    let (columns, count) = alike::<T, C>(columns);
    let lanes = count * R * T::LINES * 16;
    let (rows, given) = (&a.codes[..count * R * STEP], &a.lanes[..lanes]);
    // Asked at run time, to have fewer loops.
    let (vary, shifted) = (!SIMPLE && !a.scales.is_empty(), !SIMPLE && !columns[0].zeros.is_empty());
    let row_scales = if vary { &a.scales[..lanes] } else { &[] };
    let entries = count * STEP / SHARE;
    for column in columns {
        assert!(column.scales.len() >= entries, "{entries} shares by {} scales", column.scales.len());
        assert!(!shifted || column.zeros.len() >= entries, "{entries} shares by {} zero points", column.zeros.len());
    }
    let mut totals = [[_mm512_setzero_ps(); C]; R];
    let lift = Lifting::new(lift);
    let mut last = None;
    for s in 0..count {
        let share = s * STEP / SHARE;
        let starts = starts::<T, C>(columns, s, ahead.0, &mut last);
        for line in 0..T::LINES {
            let mut parts = [[_mm512_setzero_si512(); 2]; C];
            let (mut scales, mut zeros) = ([_mm512_setzero_ps(); C], [_mm512_setzero_ps(); C]);
            for c in 0..C {
                // SAFETY: a whole step of codes is there, and of lists, as asserted.
                unsafe {
                    parts[c] = lift.line::<T>(starts[c].add(64 * line));
                    scales[c] = shared::<T>(columns[c].scales.as_ptr().add(share), line);
                    if shifted {
                        zeros[c] = shared::<T>(columns[c].zeros.as_ptr().add(share), line);
                    }
                }
            }
            for r in 0..R {
                ahead.1.ask_in_turn::<true>(r, R, C);
                let at = ((s * R + r) * T::LINES + line) * 16;
                // SAFETY: vectors of this step, line and row, which are there.
                unsafe {
                    let given = _mm512_loadu_si512(given.as_ptr().add(at).cast());
                    let mut sums = [if shifted { _mm512_setzero_si512() } else { given }; C];
                    for h in 0..2 / T::LINES {
                        let i = 2 * line / T::LINES + h;
                        let row = _mm512_loadu_si512(rows.as_ptr().add((s * R + r) * STEP + i * 64).cast());
                        for c in 0..C {
                            sums[c] = _mm512_dpbusd_epi32(sums[c], parts[c][h], row);
                        }
                    }
                    let mut numbers = [_mm512_setzero_ps(); C];
                    for c in 0..C {
                        numbers[c] = _mm512_cvtepi32_ps(sums[c]);
                    }
                    if shifted {
                        // Whole numbers below 2²⁴: exact.
                        let given = _mm512_castsi512_ps(given);
                        for c in 0..C {
                            numbers[c] = _mm512_fnmadd_ps(zeros[c], given, numbers[c]);
                        }
                    }
                    if vary {
                        let scale = _mm512_loadu_ps(row_scales.as_ptr().add(at));
                        for c in 0..C {
                            numbers[c] = _mm512_mul_ps(numbers[c], scale);
                        }
                    }
                    for c in 0..C {
                        totals[r][c] = _mm512_fmadd_ps(numbers[c], scales[c], totals[r][c]);
                    }
                }
            }
        }
    }
    let mut vectors = [_mm512_setzero_ps(); SUMS];
    for r in 0..R {
        for c in 0..C {
            vectors[c * R + r] = totals[r][c];
        }
    }
    add_lanes(&vectors, &mut sums[..R * C]);
}

/// `columns` and how many steps each has.
///
/// # Panics
/// If they are not `C` of one length.
pub(super) fn alike<'c, 'a, T: Width, const C: usize>(columns: &'c [Column<'a>]) -> (&'c [Column<'a>; C], usize) {
    let columns: &[Column<'_>; C] = columns.try_into().expect("as many columns as the loop is for");
    let len = columns[0].codes.len();
    assert!(columns.iter().all(|column| column.codes.len() == len), "columns of one length");
    (columns, len.div_ceil(T::LINES * 64))
}

/// Where step `s` of each column lies, in `last` if columns end within it; asks for what lies `ahead` bytes further.
#[inline(always)]
pub(super) fn starts<T: Width, const C: usize>(
    columns: &[Column<'_>; C],
    s: usize,
    ahead: usize,
    last: &mut Option<Ends<C>>,
) -> [*const u8; C] {
    let bytes = T::LINES * 64;
    let mut starts = [std::ptr::null(); C];
    if (s + 1) * bytes <= columns[0].codes.len() {
        for c in 0..C {
            starts[c] = columns[c].codes[s * bytes..].as_ptr();
            ask(starts[c], ahead, bytes);
        }
    } else {
        let mut codes: [&[u8]; C] = [&[]; C];
        for c in 0..C {
            codes[c] = columns[c].codes;
        }
        let last = last.insert(ends(codes, s * bytes));
        for c in 0..C {
            starts[c] = last[c].as_ptr();
        }
    }
    starts
}

/// A [`Lift`] in registers.
#[derive(Clone, Copy)]
struct Lifting {
    flip: __m512i,
    table: __m512i,
}

impl Lifting {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn new(lift: &Lift) -> Self {
        // SAFETY: sixteen bytes.
        let table = unsafe { _mm_loadu_si128(lift.table.as_ptr().cast()) };
        Self { flip: _mm512_set1_epi8(lift.flip as i8), table: _mm512_broadcast_i32x4(table) }
    }

    /// The unsigned codes of a line: one vector, or those of even and those of odd place.
    ///
    /// # Safety
    /// 64 bytes can be read.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn line<T: Width>(self, codes: *const u8) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        let codes = unsafe { _mm512_loadu_si512(codes.cast()) };
        if T::BITS == 8 {
            return [_mm512_xor_si512(codes, self.flip); 2];
        }
        // Not by `map`, which is compiled without the features: its closure would be called for every line.
        let low = _mm512_set1_epi8(15);
        let (even, odd) = (_mm512_and_si512(codes, low), _mm512_and_si512(_mm512_srli_epi16::<4>(codes), low));
        [_mm512_shuffle_epi8(self.table, even), _mm512_shuffle_epi8(self.table, odd)]
    }
}

/// What the lanes of line `line` share of the eight numbers of a step.
///
/// # Safety
/// Eight numbers can be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn shared<T: Width>(numbers: *const f32, line: usize) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe {
        if T::BITS == 4 {
            let pairs = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
            _mm512_permutexvar_ps(pairs, _mm512_castps256_ps512(_mm256_loadu_ps(numbers)))
        } else {
            let fours = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
            _mm512_permutexvar_ps(fours, _mm512_castps128_ps512(_mm_loadu_ps(numbers.add(4 * line))))
        }
    }
}
