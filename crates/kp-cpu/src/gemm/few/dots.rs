//! Dot products of a few rows of numbers with one column of codes, as the column lies in memory.
//!
//! ```text
//!   column   │ 128 elements of k │ 128 │ …    a step: 64 to 512 bytes, made eight vectors of 16 numbers
//!   rows   r │ 8 × 16 numbers    │ … │        beforehand put in the order in which the codes come out
//! ```
//! A column is read once, front to back, with memory asked for ahead. Where four bits make a number, one look-up in a
//! register of sixteen makes sixteen of them, and since every lane then holds eight neighbours, scales multiply sums
//! of eight rather than elements.

use std::arch::x86_64::{
    __m512, __m512i, _MM_HINT_T0, _mm_loadu_ps, _mm_loadu_si128, _mm_prefetch, _mm256_loadu_ps, _mm256_loadu_si256,
    _mm512_add_ps, _mm512_and_si512, _mm512_castps128_ps512, _mm512_castps256_ps512, _mm512_castsi512_ps,
    _mm512_cvtepi8_epi32, _mm512_cvtepi32_ps, _mm512_cvtepu8_epi32, _mm512_cvtepu16_epi32, _mm512_cvtph_ps,
    _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_mul_ps, _mm512_permutex2var_epi8,
    _mm512_permutexvar_ps, _mm512_reduce_add_ps, _mm512_set1_epi8, _mm512_set1_epi32, _mm512_set1_ps,
    _mm512_setr_epi32, _mm512_setzero_ps, _mm512_slli_epi32, _mm512_srli_epi32, _mm512_sub_ps,
    _mm512_ternarylogic_epi32, _mm512_unpackhi_epi8, _mm512_unpacklo_epi8,
};

/// Elements of a step.
pub(crate) const STEP: usize = 128;

/// Elements that share an entry of the lists of scales and zero points.
pub(crate) const SHARE: usize = 16;

/// How stored codes become numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    F32,
    Bf16,
    F16,
    I8,
    U8,
    /// A byte, by its upper and lower half as bf16: 8-bit floats.
    Bytes,
    /// Four bits, by a table.
    Nibbles,
}

impl Kind {
    /// Bytes of a step.
    pub(crate) const fn step_bytes(self) -> usize {
        match self {
            Self::F32 => 4 * STEP,
            Self::Bf16 | Self::F16 => 2 * STEP,
            Self::I8 | Self::U8 | Self::Bytes => STEP,
            Self::Nibbles => STEP / 2,
        }
    }

    /// Which element of a step lane `lane` of vector `vector` holds.
    pub(crate) const fn element(self, vector: usize, lane: usize) -> usize {
        match self {
            Self::Nibbles => 8 * lane + vector,
            // Interleaved within 16 bytes, then parted in even and odd.
            Self::Bytes => vector / 4 * 64 + lane / 4 * 16 + vector % 4 / 2 * 8 + lane % 4 * 2 + vector % 2,
            _ => 16 * vector + lane,
        }
    }
}

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
codes!(F32, Bf16, F16, I8, U8, Bytes, Nibbles);

/// What codes are looked up in: the sixteen numbers of four bits, or the lower and upper halves of the bf16s that 128
/// bytes stand for.
#[derive(Clone)]
#[repr(align(64))]
pub(crate) struct Table(pub(crate) [[u8; 64]; 4]);

/// One column, from some step on.
#[derive(Clone, Copy)]
pub(crate) struct Column<'a> {
    /// Its codes, up to the last one.
    pub(crate) codes: &'a [u8],
    /// A scale for every 16 elements of whole steps; empty if they have none.
    pub(crate) scales: &'a [f32],
    /// Zero points alike.
    pub(crate) zeros: &'a [f32],
    /// How many bytes ahead memory is asked for.
    pub(crate) ahead: usize,
}

/// Adds to `sums` the products of `R` rows `a` with `column`; `a` holds for each step and row eight vectors, zeros past
/// the end. Each row's sums are kept in `N` vectors.
///
/// # Panics
/// If `a`, the scales or the zero points do not cover the column's steps.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
pub(crate) fn dots<T: Code, const R: usize, const N: usize, const SCALED: bool, const SHIFTED: bool>(
    table: &Table,
    a: &[f32],
    column: Column<'_>,
    sums: &mut [f32],
) {
    let Column { codes, scales, zeros, ahead } = column;
    let bytes = T::KIND.step_bytes();
    let steps = codes.len().div_ceil(bytes);
    assert!(a.len() >= steps * R * STEP, "rows of {} numbers for {steps} steps", a.len() / R);
    assert!(!SCALED || scales.len() * SHARE >= steps * STEP, "{} scales for {steps} steps", scales.len());
    assert!(!SHIFTED || zeros.len() * SHARE >= steps * STEP, "{} zero points for {steps} steps", zeros.len());
    // SAFETY: each is 64 bytes.
    let tables = unsafe { table.0.each_ref().map(|t| _mm512_loadu_si512(t.as_ptr().cast())) };
    let mut totals = [[_mm512_setzero_ps(); N]; R];
    let codes = Steps::new(codes, bytes, ahead);
    for s in 0..steps {
        let code = codes.at(s);
        // SAFETY: a whole step of codes is there, and of all else, as asserted; where it is empty, it is not read.
        unsafe {
            let (a, scales) = (a.as_ptr().add(s * R * STEP), scales.as_ptr().wrapping_add(s * STEP / SHARE));
            let zeros = zeros.as_ptr().wrapping_add(s * STEP / SHARE);
            step::<T, R, N, SCALED, SHIFTED>(&tables, code, a, scales, zeros, &mut totals);
        }
    }
    for (sum, totals) in sums.iter_mut().zip(totals) {
        let mut total = totals[0];
        for &more in &totals[1..] {
            total = _mm512_add_ps(total, more);
        }
        *sum += _mm512_reduce_add_ps(total);
    }
}

/// The codes of a column, step by step; the last is filled up with zeros.
pub(super) struct Steps<'a> {
    codes: &'a [u8],
    bytes: usize,
    whole: usize,
    ahead: usize,
    tail: [u8; 4 * STEP],
}

impl<'a> Steps<'a> {
    #[inline(always)]
    pub(super) fn new(codes: &'a [u8], bytes: usize, ahead: usize) -> Self {
        let whole = codes.len() / bytes;
        let mut tail = [0; 4 * STEP];
        let rest = &codes[whole * bytes..];
        tail[..rest.len()].copy_from_slice(rest);
        Self { codes, bytes, whole, ahead, tail }
    }

    /// The `bytes` bytes of step `s`; asks for memory that is needed later.
    #[inline(always)]
    pub(super) fn at(&self, s: usize) -> *const u8 {
        let step = if s < self.whole { self.codes[s * self.bytes..].as_ptr() } else { self.tail.as_ptr() };
        for line in 0..self.bytes / 64 {
            // SAFETY: nothing is read; an address that is none is ignored.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(step.wrapping_add(self.ahead + 64 * line).cast()) };
        }
        step
    }
}

/// # Safety
/// - A step of codes, and of `R` rows of `a`, can be read.
/// - If scaled or shifted, so can eight scales or zero points.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
unsafe fn step<T: Code, const R: usize, const N: usize, const SCALED: bool, const SHIFTED: bool>(
    tables: &[__m512i; 4],
    codes: *const u8,
    a: *const f32,
    scales: *const f32,
    zeros: *const f32,
    totals: &mut [[__m512; N]; R],
) {
    // SAFETY: the caller's promise.
    let mut v = unsafe { vectors::<T>(tables, codes) };
    let of_lanes = T::KIND == Kind::Nibbles;
    if SHIFTED {
        for (j, v) in v.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *v = _mm512_sub_ps(*v, unsafe { shared::<T>(zeros, j) });
        }
    }
    if SCALED && !of_lanes {
        for (j, v) in v.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *v = _mm512_mul_ps(*v, unsafe { shared::<T>(scales, j) });
        }
    }
    for r in 0..R {
        // SAFETY: vector `j` of row `r` of this step.
        let row = |j: usize| unsafe { _mm512_loadu_ps(a.add((8 * r + j) * 16)) };
        if SCALED && of_lanes {
            let mut halves = [_mm512_mul_ps(v[0], row(0)), _mm512_mul_ps(v[1], row(1))];
            for j in 2..8 {
                halves[j % 2] = _mm512_fmadd_ps(v[j], row(j), halves[j % 2]);
            }
            // SAFETY: the caller's promise.
            let scale = unsafe { shared::<T>(scales, 0) };
            totals[r][0] = _mm512_fmadd_ps(_mm512_add_ps(halves[0], halves[1]), scale, totals[r][0]);
        } else {
            for j in 0..8 {
                totals[r][j % N] = _mm512_fmadd_ps(v[j], row(j), totals[r][j % N]);
            }
        }
    }
}

/// The eight numbers that vector `j` of a step shares, each in the lanes it belongs to.
///
/// # Safety
/// Eight numbers can be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
unsafe fn shared<T: Code>(numbers: *const f32, j: usize) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe {
        match T::KIND {
            Kind::Nibbles => {
                let pairs = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
                _mm512_permutexvar_ps(pairs, _mm512_castps256_ps512(_mm256_loadu_ps(numbers)))
            }
            Kind::Bytes => {
                let fours = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
                _mm512_permutexvar_ps(fours, _mm512_castps128_ps512(_mm_loadu_ps(numbers.add(j / 4 * 4))))
            }
            _ => _mm512_set1_ps(*numbers.add(j)),
        }
    }
}

/// The numbers of a step; see [`Kind::element`] for their order.
///
/// # Safety
/// A step of codes can be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
unsafe fn vectors<T: Code>(tables: &[__m512i; 4], codes: *const u8) -> [__m512; 8] {
    let mut v = [_mm512_setzero_ps(); 8];
    // SAFETY: the caller's promise: eight vectors of as many bytes as elements have.
    unsafe {
        let half = |j: usize| _mm256_loadu_si256(codes.add(32 * j).cast());
        let quarter = |j: usize| _mm_loadu_si128(codes.add(16 * j).cast());
        let line = |i: usize| _mm512_loadu_si512(codes.add(64 * i).cast());
        match T::KIND {
            Kind::F32 => (0..8).for_each(|j| v[j] = _mm512_castsi512_ps(line(j))),
            Kind::Bf16 => {
                (0..8)
                    .for_each(|j| v[j] = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(half(j)))));
            }
            Kind::F16 => (0..8).for_each(|j| v[j] = _mm512_cvtph_ps(half(j))),
            Kind::I8 => (0..8).for_each(|j| v[j] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(quarter(j)))),
            Kind::U8 => (0..8).for_each(|j| v[j] = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(quarter(j)))),
            Kind::Bytes => {
                let sign = _mm512_set1_epi8(-128);
                let upper = _mm512_set1_epi32(0xffff_0000_u32 as i32);
                for i in 0..2 {
                    let code = line(i);
                    let low = _mm512_permutex2var_epi8(tables[0], code, tables[1]);
                    let high = _mm512_permutex2var_epi8(tables[2], code, tables[3]);
                    // code & sign | high: the look-up ignores the sign.
                    let high = _mm512_ternarylogic_epi32::<0xec>(code, high, sign);
                    for (h, pairs) in
                        [_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)].iter().enumerate()
                    {
                        v[4 * i + 2 * h] = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(*pairs));
                        v[4 * i + 2 * h + 1] = _mm512_castsi512_ps(_mm512_and_si512(*pairs, upper));
                    }
                }
            }
            Kind::Nibbles => {
                let table = _mm512_castsi512_ps(tables[0]);
                // The look-up ignores all but four bits.
                let mut code = line(0);
                for v in &mut v {
                    *v = _mm512_permutexvar_ps(code, table);
                    code = _mm512_srli_epi32::<4>(code);
                }
            }
        }
    }
    v
}
