//! Dot products of a row of numbers with columns of codes, as the columns lie in memory.
//!
//! ```text
//!   column   │ 128 elements of k │ 128 │ …    a step: 64 to 512 bytes, made eight vectors of 16 numbers
//!   row      │ 8 × 16 numbers    │ … │        beforehand put in the order in which the codes come out
//! ```
//! A column is read once, front to back, with memory asked for ahead. Where four bits make a number, one look-up in a
//! register of sixteen makes sixteen of them, and since every lane then holds eight neighbours, scales multiply sums
//! of eight rather than elements.

use super::{
    columns::sixteen,
    lists::{Columns, LIST, List},
};
use crate::numbers;
use kp_hal::{DType, op::Format};
use std::arch::x86_64::{
    __m512, __m512i, _MM_HINT_T0, _mm_loadu_ps, _mm_loadu_si128, _mm_prefetch, _mm256_loadu_ps, _mm256_loadu_si256,
    _mm512_add_epi8, _mm512_add_ps, _mm512_and_si512, _mm512_castpd_ps, _mm512_castps_pd, _mm512_castps128_ps512,
    _mm512_castps256_ps512, _mm512_castsi512_ps, _mm512_cvtepi8_epi32, _mm512_cvtepi32_ps, _mm512_cvtepu8_epi32,
    _mm512_cvtepu16_epi32, _mm512_cvtph_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_mul_ps,
    _mm512_mullo_epi32, _mm512_permutex2var_epi8, _mm512_permutex2var_ps, _mm512_permutexvar_epi8,
    _mm512_permutexvar_ps, _mm512_set1_epi8, _mm512_set1_epi32, _mm512_set1_epi64, _mm512_set1_ps, _mm512_setr_epi32,
    _mm512_setzero_pd, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_shuffle_f32x4, _mm512_slli_epi32,
    _mm512_srli_epi32, _mm512_srlv_epi32, _mm512_storeu_ps, _mm512_sub_ps, _mm512_ternarylogic_epi32,
    _mm512_unpackhi_epi8, _mm512_unpackhi_pd, _mm512_unpackhi_ps, _mm512_unpacklo_epi8, _mm512_unpacklo_pd,
    _mm512_unpacklo_ps,
};

/// Elements of a step.
pub(crate) const STEP: usize = 128;

/// Elements that share an entry of the lists of scales and zero points; of four bits, [`BROAD_SHARE`] may.
pub(crate) const SHARE: usize = 16;

/// Twice as many, which most 4-bit formats have: half as long a list.
pub(crate) const BROAD_SHARE: usize = 32;

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
    /// That of `dtype`, if there is one.
    pub(crate) fn of(dtype: DType) -> Option<Self> {
        Some(match dtype {
            DType::F32 => Self::F32,
            DType::Bf16 => Self::Bf16,
            DType::F16 => Self::F16,
            DType::I8 => Self::I8,
            DType::U8 => Self::U8,
            DType::E4m3 | DType::E5m2 => Self::Bytes,
            DType::I4 | DType::U4 | DType::Nf4 | DType::E2m1 => Self::Nibbles,
            _ => return None,
        })
    }

    /// Bytes of a step.
    pub(crate) const fn step_bytes(self) -> usize {
        match self {
            Self::F32 => 4 * STEP,
            Self::Bf16 | Self::F16 => 2 * STEP,
            Self::I8 | Self::U8 | Self::Bytes => STEP,
            Self::Nibbles => STEP / 2,
        }
    }

    /// Bytes from a step's first half to its second; its four bits are in the same bytes.
    const fn half_bytes(self) -> usize {
        match self {
            Self::Nibbles => 0,
            _ => self.step_bytes() / 2,
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

impl Table {
    /// What the codes of `format`, of that kind, are looked up in.
    pub(crate) fn of(kind: Kind, format: Format) -> Self {
        let dtype = format.dtype;
        let mut table = Self([[0; 64]; 4]);
        match kind {
            Kind::Nibbles if format.has_zero() => return Self::shifted(dtype == DType::I4),
            Kind::Nibbles => {
                for (bytes, value) in table.0[0].chunks_exact_mut(4).zip(sixteen(dtype)) {
                    bytes.copy_from_slice(&value.to_le_bytes());
                }
            }
            Kind::Bytes => {
                let codes: [u8; 128] = std::array::from_fn(|i| i as u8);
                let mut values = [0.0_f32; 128];
                numbers::read(dtype, &codes, 0, &mut values);
                for (i, value) in values.into_iter().enumerate() {
                    // Exact: they have fewer bits than a bf16.
                    let [.., low, high] = value.to_le_bytes();
                    (table.0[i / 64][i % 64], table.0[2 + i / 64][i % 64]) = (low, high);
                }
            }
            _ => {}
        }
        table
    }

    /// For four bits, signed or not, with zero points: a code made unsigned, and 16 less the zero point, add up to five bits,
    /// and these are looked up. So four zero points are subtracted by one addition of bytes.
    fn shifted(is_signed: bool) -> Self {
        let mut table = Self([[0; 64]; 4]);
        let [low, high, inverted, _] = &mut table.0;
        for (i, bytes) in low.as_chunks_mut().0.iter_mut().chain(high.as_chunks_mut().0).enumerate() {
            *bytes = (i as f32 - f32::from(MOST_SHIFT)).to_le_bytes();
        }
        inverted.fill(if is_signed { 8 } else { 0 });
        table
    }

    /// In registers.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn load(&self) -> [__m512i; 4] {
        let mut tables = [_mm512_setzero_si512(); 4];
        for (table, bytes) in tables.iter_mut().zip(&self.0) {
            // SAFETY: 64 bytes.
            *table = unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) };
        }
        tables
    }
}

/// The shift of a zero point that is zero; the others are less.
pub(crate) const MOST_SHIFT: u8 = 16;

/// Adds to `sums` the products of a row `a`, zeros past the end, with each of `C` columns. Those of four bits have scales;
/// lists have an entry for every [`SHARE`] elements, unless they are four bits.
///
/// # Panics
/// If `a` or the lists do not cover the columns' steps.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
pub(crate) fn dots<T: Code, const C: usize>(table: &Table, a: &[f32], columns: &Columns<'_>, sums: &mut [f32]) {
    // There is so little else to do that questions show: bytes are read at three quarters of the rate with them, and where
    // four bits have two ways in one loop, the compiler shifts all codes before it asks which to take, and has no registers
    // for them.
    let has_lists = match T::KIND {
        Kind::F32 | Kind::Bf16 | Kind::F16 => false,
        Kind::I8 | Kind::U8 | Kind::Bytes => !columns.scales.is_empty() || !columns.zeros.is_empty(),
        Kind::Nibbles => !columns.zeros.is_empty(),
    };
    if has_lists {
        dots_of::<T, C, true>(table, a, columns, sums);
    } else {
        dots_of::<T, C, false>(table, a, columns, sums);
    }
}

/// The same; columns have lists if `LISTED`, those of four bits zero points.
#[expect(clippy::needless_range_loop, reason = "one index serves several squares of registers")]
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
fn dots_of<T: Code, const C: usize, const LISTED: bool>(
    table: &Table,
    a: &[f32],
    columns: &Columns<'_>,
    sums: &mut [f32],
) {
    let &Columns { codes, share, scales, zeros, ahead, mut far } = columns;
    let codes: &[&[u8]; C] = codes.try_into().expect("as many columns as the loop is for");
    let bytes = T::KIND.step_bytes();
    let steps = codes[0].len().div_ceil(bytes);
    // Asked at run time: a loop for each answer would be most of this crate's machine code.
    let (scaled, shifted) = (LISTED && !scales.is_empty(), LISTED && !zeros.is_empty());
    // The scale of eight neighbours multiplies their sum.
    let sums_are_scaled = T::KIND == Kind::Nibbles;
    let entries = STEP / share;
    columns.check(steps * entries);
    assert!(!scales.is_empty() || !sums_are_scaled, "four bits have scales");
    assert!(codes.iter().all(|some| some.len() == codes[0].len()), "columns of one length");
    assert!(a.len() >= steps * STEP, "a row of {} numbers for {steps} steps", a.len());
    let (tables, spread) = (table.load(), spread(entries));
    let spread_bytes = _mm512_mullo_epi32(spread, _mm512_set1_epi32(0x0101_0101));
    // A single column has four sums, so that no multiply-add waits for the one before; the others of more go unused.
    let chains = const { if C == 1 { CHAINS } else { 1 } };
    let mut totals = [[_mm512_setzero_ps(); C]; CHAINS];
    let mut last: Ends<C>;
    for s in 0..steps {
        let mut starts = [std::ptr::null(); C];
        if (s + 1) * bytes <= codes[0].len() {
            for c in 0..C {
                starts[c] = codes[c][s * bytes..].as_ptr();
                ask(starts[c], ahead, bytes);
            }
        } else {
            last = ends(*codes, s * bytes);
            for c in 0..C {
                starts[c] = last[c].as_ptr();
            }
        }
        let mut sums = if sums_are_scaled { [[_mm512_setzero_ps(); C]; CHAINS] } else { totals };
        let part = |lists: &[List], c: usize| lists.as_ptr().cast::<f32>().wrapping_add(c * LIST + s * entries);
        // Written out, so that places are constants.
        macro_rules! vectors {
            ($half:expr, $scaled:expr, $shifted:expr, $($j:literal)*) => {$({
                if T::KIND == Kind::Nibbles {
                    far.ask_in_turn::<false>(4 * $half + $j, 8, C * bytes / 64);
                } else {
                    far.ask_in_turn::<true>(4 * $half + $j, 8, C * bytes / 64);
                }
                let mut numbers = [_mm512_setzero_ps(); C];
                for c in 0..C {
                    numbers[c] = vector::<T>(&tables, starts[c], $half, $j);
                }
                if $shifted {
                    for c in 0..C {
                        let zeros = shared::<T>(part(zeros, c), spread, $half, $j);
                        numbers[c] = _mm512_sub_ps(numbers[c], zeros);
                    }
                }
                if $scaled {
                    for c in 0..C {
                        let scales = shared::<T>(part(scales, c), spread, $half, $j);
                        numbers[c] = _mm512_mul_ps(numbers[c], scales);
                    }
                }
                let a = _mm512_loadu_ps(a.as_ptr().add((s * 8 + 4 * $half + $j) * 16));
                for c in 0..C {
                    sums[$j % chains][c] = _mm512_fmadd_ps(numbers[c], a, sums[$j % chains][c]);
                }
            })*};
        }
        // SAFETY: a whole step of codes is there, and of all else, as asserted; where it is empty, it is not read.
        unsafe {
            if !sums_are_scaled {
                for half in 0..2 {
                    vectors!(half, scaled, shifted, 0 1 2 3);
                }
                totals = sums;
                continue;
            }
            // Not in loops: counts of shifts that are no constants show as well.
            if LISTED {
                let mut five = [[_mm512_setzero_si512(); C]; 2];
                for c in 0..C {
                    let shift = zeros.as_ptr().cast::<u8>().wrapping_add(c * size_of::<List>() + s * entries);
                    let shift = _mm512_set1_epi64(shift.cast::<i64>().read_unaligned());
                    let shift = _mm512_permutexvar_epi8(spread_bytes, shift);
                    let codes = _mm512_loadu_si512(starts[c].cast());
                    for (parity, five) in five.iter_mut().enumerate() {
                        five[c] = five_bits(tables[2], codes, parity, shift);
                    }
                }
                macro_rules! vectors {
                    ($($j:literal)*) => {$({
                        far.ask_in_turn::<false>($j, 8, C * bytes / 64);
                        let a = _mm512_loadu_ps(a.as_ptr().add((s * 8 + $j) * 16));
                        for c in 0..C {
                            let code = _mm512_srli_epi32::<{ $j / 2 * 8 }>(five[$j % 2][c]);
                            let numbers = five_bit_numbers(&tables, code);
                            sums[$j % chains][c] = _mm512_fmadd_ps(numbers, a, sums[$j % chains][c]);
                        }
                    })*};
                }
                // Those that need no shift last, in place.
                vectors!(2 4 6 0 3 5 7 1);
            } else {
                vectors!(0, false, false, 0 1 2 3);
                vectors!(1, false, false, 0 1 2 3);
            }
            for c in 0..C {
                let scale = shared::<T>(part(scales, c), spread, 0, 0);
                totals[0][c] = _mm512_fmadd_ps(added(&sums, chains, c), scale, totals[0][c]);
            }
        }
    }
    let mut vectors = [_mm512_setzero_ps(); SUMS];
    for c in 0..C {
        vectors[c] = added(&totals, chains, c);
    }
    add_lanes(&vectors, &mut sums[..C]);
}

/// Sums of a single column.
const CHAINS: usize = 4;

/// The sum of column `c`'s.
#[inline]
#[target_feature(enable = "avx512f")]
fn added<const C: usize>(sums: &[[__m512; C]; CHAINS], chains: usize, c: usize) -> __m512 {
    if chains == 1 {
        return sums[0][c];
    }
    _mm512_add_ps(_mm512_add_ps(sums[0][c], sums[1][c]), _mm512_add_ps(sums[2][c], sums[3][c]))
}

/// Which of eight entries each lane of a step of four bits has, of which `entries` are the step's.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn spread(entries: usize) -> __m512i {
    if entries == 8 {
        _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7)
    } else {
        _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3)
    }
}

/// The most sums of a loop.
pub(crate) const SUMS: usize = 16;

/// Adds to `sums` the sums of the lanes of as many vectors: a third of the instructions of one sum after the other.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn add_lanes(v: &[__m512; SUMS], sums: &mut [f32]) {
    // Halves, then quarters of each four lanes; then the fours.
    let mut halves = [_mm512_setzero_pd(); SUMS / 2];
    for i in 0..SUMS / 2 {
        let (a, b) = (v[2 * i], v[2 * i + 1]);
        halves[i] = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
    }
    let mut fours = [_mm512_setzero_ps(); SUMS / 4];
    for i in 0..SUMS / 4 {
        let (a, b) = (halves[2 * i], halves[2 * i + 1]);
        let (low, high) = (_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b));
        fours[i] = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
    }
    let [a, b, c, d] = fours;
    let (a, b) = (pairs(a, b), pairs(c, d));
    let mut all = [0.0; SUMS];
    // SAFETY: sixteen numbers.
    unsafe { _mm512_storeu_ps(all.as_mut_ptr(), pairs(a, b)) };
    for (sum, more) in sums.iter_mut().zip(all) {
        *sum += more;
    }
}

/// Sums of neighbouring quarters: two of `a`, then two of `b`.
#[inline]
#[target_feature(enable = "avx512f")]
fn pairs(a: __m512, b: __m512) -> __m512 {
    _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b))
}

/// The ends of columns that are no whole step, filled up with zeros; taken apart from them, so that columns of whole steps
/// cost nothing.
pub(crate) type Ends<const C: usize> = [[u8; 4 * STEP]; C];

/// Copies what each of `codes` has from byte `first` on.
#[cold]
#[inline(never)]
pub(crate) fn ends<const C: usize>(codes: [&[u8]; C], first: usize) -> Ends<C> {
    let mut ends = [[0; 4 * STEP]; C];
    for (end, codes) in ends.iter_mut().zip(codes) {
        let rest = &codes[first..];
        end[..rest.len()].copy_from_slice(rest);
    }
    ends
}

/// Asks for the `bytes` bytes that lie `ahead` of `at`, wherever that is; for nothing if that is 0.
#[inline(always)]
pub(super) fn ask(at: *const u8, ahead: usize, bytes: usize) {
    if ahead == 0 {
        return;
    }
    let at = at.wrapping_add(ahead);
    for line in 0..bytes / 64 {
        // SAFETY: nothing is read; an address that is none is ignored.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(64 * line).cast()) };
    }
}

/// The numbers that vector `j` of a half of a step shares, each in the lanes it belongs to; of four bits as `spread` says.
///
/// # Safety
/// Eight numbers can be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
pub(super) unsafe fn shared<T: Code>(numbers: *const f32, spread: __m512i, half: usize, j: usize) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe {
        match T::KIND {
            Kind::Nibbles => _mm512_permutexvar_ps(spread, _mm512_castps256_ps512(_mm256_loadu_ps(numbers))),
            Kind::Bytes => {
                let fours = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
                _mm512_permutexvar_ps(fours, _mm512_castps128_ps512(_mm_loadu_ps(numbers.add(4 * half))))
            }
            _ => _mm512_set1_ps(*numbers.add(4 * half + j)),
        }
    }
}

/// The even or odd ones of 128 codes of four bits, in a byte each, made five bits by the shifts in all bytes of each lane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn five_bits(inverted: __m512i, codes: __m512i, parity: usize, shift: __m512i) -> __m512i {
    let codes = if parity == 0 { codes } else { _mm512_srli_epi32::<4>(codes) };
    // (codes ^ inverted) & 15
    _mm512_add_epi8(_mm512_ternarylogic_epi32::<0x28>(codes, inverted, _mm512_set1_epi8(15)), shift)
}

/// What the lowest five bits of each lane mean.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn five_bit_numbers(tables: &[__m512i; 4], codes: __m512i) -> __m512 {
    _mm512_permutex2var_ps(_mm512_castsi512_ps(tables[0]), codes, _mm512_castsi512_ps(tables[1]))
}

/// The lower and the upper halves of the bf16s that 64 bytes stand for.
///
/// # Safety
/// 64 bytes can be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
pub(super) unsafe fn byte_halves(tables: &[__m512i; 4], codes: *const u8) -> [__m512i; 2] {
    // SAFETY: the caller's promise.
    let code = unsafe { _mm512_loadu_si512(codes.cast()) };
    let low = _mm512_permutex2var_epi8(tables[0], code, tables[1]);
    let high = _mm512_permutex2var_epi8(tables[2], code, tables[3]);
    // code & sign | high: the look-up ignores the sign.
    [low, _mm512_ternarylogic_epi32::<0xec>(code, high, _mm512_set1_epi8(-128))]
}

/// Vector `j` of the numbers of a half of a step; see [`Kind::element`] for their order. What vectors share is computed
/// once, since halves are unrolled.
///
/// # Safety
/// A step of codes can be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
pub(super) unsafe fn vector<T: Code>(tables: &[__m512i; 4], codes: *const u8, half: usize, j: usize) -> __m512 {
    // SAFETY: the caller's promise: eight vectors of as many bytes as elements have.
    unsafe {
        let codes = codes.add(half * T::KIND.half_bytes());
        match T::KIND {
            Kind::F32 => _mm512_loadu_ps(codes.add(64 * j).cast()),
            Kind::Bf16 => {
                let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(codes.add(32 * j).cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
            }
            Kind::F16 => _mm512_cvtph_ps(_mm256_loadu_si256(codes.add(32 * j).cast())),
            Kind::I8 => _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(codes.add(16 * j).cast()))),
            Kind::U8 => _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(codes.add(16 * j).cast()))),
            Kind::Bytes => {
                let [low, high] = byte_halves(tables, codes);
                let pairs = match j / 2 {
                    0 => _mm512_unpacklo_epi8(low, high),
                    _ => _mm512_unpackhi_epi8(low, high),
                };
                _mm512_castsi512_ps(match j % 2 {
                    0 => _mm512_slli_epi32::<16>(pairs),
                    _ => _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000_u32 as i32)),
                })
            }
            Kind::Nibbles => {
                // The look-up ignores all but four bits. In two shifts, since that by `j` is a constant.
                let half = _mm512_srlv_epi32(_mm512_loadu_si512(codes.cast()), _mm512_set1_epi32(16 * half as i32));
                let code = _mm512_srlv_epi32(half, _mm512_set1_epi32(4 * j as i32));
                _mm512_permutexvar_ps(code, _mm512_castsi512_ps(tables[0]))
            }
        }
    }
}
