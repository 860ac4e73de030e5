//! Rows of K and V against those of a query by dot products of pairs of bf16, in which numbers of 8 bits are exact.
//!
//! ```text
//!   scores   a pair is two numbers of a row:     q q │ q q │ …   ·   k k │ k k │ …   the sixteen sums of a key are one
//!   sums     a pair is a number of two rows:     w w │ w w │ …   ·   v v │ v v │ …   each is that of a number
//!                                                  │   └ weight of the second row         │ └ second row
//! ```
//! A number of 8 bits has two tables of 128 bytes: the upper byte of its bf16 but for the sign, and the lower one. Bytes of
//! each interleave within 128 bits, so that numbers of Q are arranged, and sums settled, as that leaves those of K and V.
//! Limits: 64 numbers at a time; weights are rounded to bf16; numbers below 2⁻¹²⁶ count as 0.

use super::{
    ahead::Lines,
    fours::{CHUNK, EIGHT, FOUR, Few, LD},
    meets::Meets,
    product::LANES,
    turn::Turns,
};
use crate::{
    memory::LINE,
    numbers::small::{E4M3, E5M2, Small},
    simd::{Avx512, Work, vector::Vectors},
};
use std::{
    arch::x86_64::{
        __m512, __m512bh, __m512i, _mm512_castsi512_ps, _mm512_cvtne2ps_pbh, _mm512_dpbf16_ps, _mm512_loadu_si512,
        _mm512_permutex2var_epi8, _mm512_set1_epi8, _mm512_shuffle_i64x2, _mm512_ternarylogic_epi32,
        _mm512_unpackhi_epi8, _mm512_unpackhi_epi16, _mm512_unpacklo_epi8, _mm512_unpacklo_epi16,
    },
    hint::black_box,
    marker::PhantomData,
    mem::transmute,
};

/// What a processor must have.
pub(super) const FEATURES: [&str; 2] = ["avx512bf16", "avx512vbmi"];

/// Runs work compiled for [`FEATURES`] and AVX-512, as [`Isa::run`](crate::simd::Isa::run) does.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bf16,avx2,fma,bmi2,f16c")]
pub(super) fn run(work: impl Work) {
    work.run();
}

/// Numbers of a unit.
pub(super) const UNIT: usize = 64;

/// Vectors of pairs of a unit, and of a unit of two rows.
const PAIRS: usize = UNIT / (2 * LANES);
const OF_TWO: usize = 2 * PAIRS;

/// Rows of a type.
pub(super) struct Paired<C>(PhantomData<fn() -> C>);

impl<C: Coded> Paired<C> {
    /// Rows that meet those of a query together, few or many, see [`super::fours::together`].
    pub(super) const TOGETHER: usize = if size_of::<C::Unit>() > UNIT { FOUR } else { EIGHT };
    pub(super) const MANY: usize = if size_of::<C::Unit>() > UNIT { EIGHT } else { 4 * EIGHT };

    /// Rounds numbers of Q to bf16, each unit's to where its pairs are met: the front half of each row.
    #[inline(always)]
    pub(super) fn arrange(q: &mut [f32]) {
        for unit in 0..q.len() / UNIT {
            let numbers = &q[unit * UNIT..];
            let [first, second] = C::as_pairs_lie([rounded(numbers), rounded(&numbers[2 * LANES..])]);
            store(first, &mut q[unit * UNIT / 2..]);
            store(second, &mut q[unit * UNIT / 2 + LANES..]);
        }
    }

    /// Rounds a row of weights to bf16: its front half.
    #[inline(always)]
    pub(super) fn pack(s: &mut [f32; LD]) {
        for at in 0..CHUNK / (2 * LANES) {
            let pairs = rounded(&s[2 * LANES * at..]);
            store(pairs, &mut s[LANES * at..]);
        }
    }

    /// Brings the sums of each unit into the order of their numbers.
    #[inline(always)]
    pub(super) fn settle(acc: &mut [f32]) {
        for unit in acc.as_chunks_mut::<UNIT>().0 {
            let sums = *unit;
            for (at, sums) in sums.as_chunks::<4>().0.iter().enumerate() {
                unit[C::column(4 * at)..][..4].copy_from_slice(sums);
            }
        }
    }
}

impl<C: Coded> Meets for Paired<C> {
    #[inline(always)]
    #[expect(clippy::needless_range_loop, reason = "rows and sums of one number belong together")]
    fn dots<const ROWS: usize, const N: usize>(q: &[f32], k: &Few<'_, N>, s: &mut [f32], mut soon: Lines) {
        let units = k.units::<C::Unit>();
        let (q, mut rows) = (q.as_chunks::<{ PAIRS * LANES }>().0, [[].as_slice(); ROWS]);
        for row in 0..ROWS {
            rows[row] = &q[2 * row * units..][..units];
        }
        let (s, tables) = (&mut s[..(ROWS - 1) * LD + N], C::tables());
        for first in (0..N).step_by(FOUR) {
            let mut sums = [[<Avx512 as Vectors<f32>>::splat(0.0); FOUR]; ROWS];
            for unit in 0..units {
                for i in 0..FOUR {
                    soon.ask(size_of::<C::Unit>() / LINE);
                    // SAFETY: there are as many, of as many bytes.
                    let [k] = unsafe { k.some(first + i, unit) };
                    let k = C::pairs(tables, k);
                    for row in 0..ROWS {
                        for half in 0..PAIRS {
                            let q = <Avx512 as Vectors<f32>>::load(&rows[row][unit][half * LANES..]);
                            sums[row][i] = times_plus(q, k[half], sums[row][i]);
                        }
                    }
                }
            }
            for row in 0..ROWS {
                let sums = <Avx512 as Turns<f32>>::four_sums(sums[row]);
                s[row * LD + first..][..FOUR].copy_from_slice(&sums);
            }
        }
    }

    #[inline(always)]
    fn add<const ROWS: usize, const N: usize>(
        s: &[f32],
        place: usize,
        v: &Few<'_, N>,
        acc: &mut [f32],
        mut soon: Lines,
    ) {
        let units = v.units::<C::Unit>();
        let acc = &mut acc.as_chunks_mut::<UNIT>().0[..ROWS * units];
        let (s, tables) = (&s[place / 2..][..(ROWS - 1) * LD + N / 2], C::tables());
        for unit in 0..units {
            let mut sums = [[<Avx512 as Vectors<f32>>::splat(0.0); OF_TWO]; ROWS];
            for row in 0..ROWS {
                for at in 0..OF_TWO {
                    sums[row][at] = <Avx512 as Vectors<f32>>::load(&acc[row * units + unit][at * LANES..]);
                }
            }
            for two in 0..N / 2 {
                soon.ask(2 * size_of::<C::Unit>() / LINE);
                // SAFETY: there are as many, of as many bytes.
                let ([a], [b]) = unsafe { (v.some(2 * two, unit), v.some(2 * two + 1, unit)) };
                let v = C::of_two(tables, [a, b]);
                for row in 0..ROWS {
                    let weights = <Avx512 as Vectors<f32>>::splat(s[row * LD + two]);
                    for at in 0..OF_TWO {
                        sums[row][at] = times_plus(weights, v[at], sums[row][at]);
                    }
                }
            }
            for row in 0..ROWS {
                for at in 0..OF_TWO {
                    <Avx512 as Vectors<f32>>::store(sums[row][at], &mut acc[row * units + unit][at * LANES..]);
                }
            }
        }
    }
}

/// The first 32 numbers, rounded to bf16.
#[inline(always)]
fn rounded(numbers: &[f32]) -> __m512i {
    let low = <Avx512 as Vectors<f32>>::load(numbers);
    let high = <Avx512 as Vectors<f32>>::load(&numbers[LANES..]);
    // SAFETY: only code compiled for `FEATURES` calls this, on processors that have them; plain bits.
    unsafe { transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low)) }
}

#[inline(always)]
fn load(codes: &[u8]) -> __m512i {
    let codes = &codes[..64];
    // SAFETY: as in `rounded`; 64 bytes are there.
    unsafe { _mm512_loadu_si512(codes.as_ptr().cast()) }
}

#[inline(always)]
fn store(pairs: __m512i, out: &mut [f32]) {
    // SAFETY: as in `rounded`.
    <Avx512 as Vectors<f32>>::store(unsafe { _mm512_castsi512_ps(pairs) }, out);
}

/// Adds the products of pairs.
#[inline(always)]
fn times_plus(a: __m512, b: __m512i, sums: __m512) -> __m512 {
    // SAFETY: as in `rounded`.
    unsafe { _mm512_dpbf16_ps(sums, transmute::<__m512, __m512bh>(a), transmute::<__m512i, __m512bh>(b)) }
}

/// A type of numbers that are pairs of bf16 in registers, 64 at a time.
pub(super) trait Coded {
    type Unit;

    /// What numbers are looked up in, in registers.
    type Tables: Copy;

    fn tables() -> Self::Tables;

    /// Pairs of numbers of a row.
    fn pairs(tables: Self::Tables, codes: &Self::Unit) -> [__m512i; PAIRS];

    /// Numbers in their order, as those stand.
    fn as_pairs_lie(numbers: [__m512i; PAIRS]) -> [__m512i; PAIRS];

    /// Pairs of a number of each of two rows.
    fn of_two(tables: Self::Tables, rows: [&Self::Unit; 2]) -> [__m512i; OF_TWO];

    /// Which number each of those is of; four beside each other are of four beside each other.
    fn column(at: usize) -> usize;
}

/// Of 16 bits.
pub(super) enum Bf16Pairs {}

impl Coded for Bf16Pairs {
    type Unit = [u8; 2 * UNIT];
    type Tables = ();

    #[inline(always)]
    fn tables() {}

    #[inline(always)]
    fn pairs((): (), codes: &Self::Unit) -> [__m512i; PAIRS] {
        [load(&codes[..UNIT]), load(&codes[UNIT..])]
    }

    #[inline(always)]
    fn as_pairs_lie(numbers: [__m512i; PAIRS]) -> [__m512i; PAIRS] {
        numbers
    }

    #[inline(always)]
    fn of_two((): (), rows: [&Self::Unit; 2]) -> [__m512i; OF_TWO] {
        let ([a, b], [c, d]) = (Self::pairs((), rows[0]), Self::pairs((), rows[1]));
        // SAFETY: as in `rounded`.
        unsafe {
            [
                _mm512_unpacklo_epi16(a, c),
                _mm512_unpackhi_epi16(a, c),
                _mm512_unpacklo_epi16(b, d),
                _mm512_unpackhi_epi16(b, d),
            ]
        }
    }

    /// Of 128 bits, eight words, the first vector has the lower four and the second the upper four.
    fn column(at: usize) -> usize {
        let (vector, part, word) = (at / LANES, at % LANES / 4, at % 4);
        vector / 2 * (UNIT / 2) + 8 * part + 4 * (vector % 2) + word
    }
}

/// Both bytes of a number's bf16, without its sign, by its code.
type Tables = [[u8; 128]; 2];

const fn tables(small: Small) -> Tables {
    let (mut tables, mut code) = ([[0; 128]; 2], 0);
    while code < 128 {
        let [_, _, low, high] = small.decode(code as u32).to_bits().to_le_bytes();
        (tables[0][code], tables[1][code]) = (low, high);
        code += 1;
    }
    tables
}

/// Bf16 of 64 codes: of each 128 bits those of the lower eight, and of the upper eight.
#[inline(always)]
fn look_up([low, high]: [[__m512i; 2]; 2], codes: __m512i) -> [__m512i; PAIRS] {
    // SAFETY: as in `rounded`.
    unsafe {
        let low = _mm512_permutex2var_epi8(low[0], codes, low[1]);
        let high = _mm512_permutex2var_epi8(high[0], codes, high[1]);
        // The sign of the code, else what was looked up.
        let high = _mm512_ternarylogic_epi32::<0xf8>(high, codes, _mm512_set1_epi8(i8::MIN));
        [_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)]
    }
}

macro_rules! of_8_bits {
    ($($name:ident $small:ident),*) => {$(
        /// Of 8 bits.
        pub(super) enum $name {}

        impl Coded for $name {
            type Unit = [u8; UNIT];
            type Tables = [[__m512i; 2]; 2];

            #[inline(always)]
            fn tables() -> Self::Tables {
                static TABLES: Tables = tables($small);
                let [low, high] = black_box(&TABLES);
                [[load(&low[..64]), load(&low[64..])], [load(&high[..64]), load(&high[64..])]]
            }

            #[inline(always)]
            fn pairs(tables: Self::Tables, codes: &Self::Unit) -> [__m512i; PAIRS] {
                look_up(tables, load(codes))
            }

            /// Of 128 bits, sixteen codes, the first vector has the lower eight and the second the upper eight.
            #[inline(always)]
            fn as_pairs_lie([low, high]: [__m512i; PAIRS]) -> [__m512i; PAIRS] {
                // SAFETY: as in `rounded`.
                unsafe { [_mm512_shuffle_i64x2::<0x88>(low, high), _mm512_shuffle_i64x2::<0xdd>(low, high)] }
            }

            /// The codes of two rows interleave before they are looked up.
            #[inline(always)]
            fn of_two(tables: Self::Tables, rows: [&Self::Unit; 2]) -> [__m512i; OF_TWO] {
                let (a, b) = (load(rows[0]), load(rows[1]));
                // SAFETY: as in `rounded`.
                let (low, high) = unsafe { (_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b)) };
                let ([a, b], [c, d]) = (look_up(tables, low), look_up(tables, high));
                [a, b, c, d]
            }

            /// Of 128 bits, sixteen codes, each vector has four.
            fn column(at: usize) -> usize {
                let (vector, part, word) = (at / LANES, at % LANES / 4, at % 4);
                16 * part + 4 * vector + word
            }
        }
    )*};
}
of_8_bits!(E4m3Pairs E4M3, E5m2Pairs E5M2);
