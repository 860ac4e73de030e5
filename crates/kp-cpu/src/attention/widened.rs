//! Rows of K and V against those of a query in f32, to which codes are widened in registers.

use super::{
    ahead::Lines,
    fours::{FOUR, Few, LD, Meets},
    product::LANES,
    soon::LINE,
    turn::Turns,
};
use crate::simd::{Avx512, vector::Vectors, widen::Widen};
use std::marker::PhantomData;

/// Rows of a type, by sixteen numbers.
pub(super) struct Widened<C>(PhantomData<fn() -> C>);

impl<C: Codes> Meets for Widened<C> {
    #[inline(always)]
    fn dots<const ROWS: usize, const N: usize>(q: &[f32], k: &Few<'_, N>, s: &mut [f32], mut soon: Lines) {
        dots::<Avx512, ROWS, N, C>(q, k, s, &mut soon);
    }

    #[inline(always)]
    fn add<const ROWS: usize, const N: usize>(
        s: &[f32],
        place: usize,
        v: &Few<'_, N>,
        acc: &mut [f32],
        mut soon: Lines,
    ) {
        let vectors = v.units::<C::Sixteen>();
        let (s, acc, mut at) = (&s[place..], &mut acc.as_chunks_mut::<LANES>().0[..ROWS * vectors], 0);
        while at + 4 <= vectors {
            add_columns::<Avx512, ROWS, 4, N, C>(s, v, acc, at, &mut soon);
            at += 4;
        }
        while at < vectors {
            add_columns::<Avx512, ROWS, 1, N, C>(s, v, acc, at, &mut soon);
            at += 1;
        }
    }
}

#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "rows and sums of one number belong together")]
fn dots<I: Turns<f32>, const ROWS: usize, const N: usize, C: Codes>(
    q: &[f32],
    k: &Few<'_, N>,
    s: &mut [f32],
    soon: &mut Lines,
) {
    let vectors = k.units::<C::Sixteen>();
    let (q, mut rows) = (q.as_chunks::<LANES>().0, [[].as_slice(); ROWS]);
    for row in 0..ROWS {
        rows[row] = &q[row * vectors..][..vectors];
    }
    let mut sums = [[I::splat(0.0); FOUR]; ROWS];
    for c in 0..vectors {
        for i in 0..N {
            soon.ask(lines::<C, 1>(i));
            // SAFETY: there are as many, of as many bytes.
            let [k] = unsafe { k.some(i, c) };
            let k = I::load(&C::numbers(k));
            for row in 0..ROWS {
                sums[row][i] = I::times_plus(I::load(&rows[row][c]), k, sums[row][i]);
            }
        }
    }
    for row in 0..ROWS {
        s[row * LD..][..N].copy_from_slice(&I::four_sums(sums[row])[..N]);
    }
}

/// Some vectors of each row of V, from vector `at` on; their sums stay in registers.
#[inline(always)]
fn add_columns<I: Vectors<f32>, const ROWS: usize, const WIDE: usize, const N: usize, C: Codes>(
    s: &[f32],
    v: &Few<'_, N>,
    acc: &mut [[f32; LANES]],
    at: usize,
    soon: &mut Lines,
) {
    let vectors = acc.len() / ROWS;
    let mut sums = [[I::splat(0.0); WIDE]; ROWS];
    for row in 0..ROWS {
        let acc: &[[f32; LANES]; WIDE] = acc[row * vectors + at..].first_chunk().expect("as wide as the rows");
        for wide in 0..WIDE {
            sums[row][wide] = I::load(&acc[wide]);
        }
    }
    let s = &s[..(ROWS - 1) * LD + N];
    for i in 0..N {
        soon.ask(lines::<C, WIDE>(i));
        // SAFETY: there are as many, of as many bytes.
        let v: &[C::Sixteen; WIDE] = unsafe { v.some(i, at) };
        for wide in 0..WIDE {
            let v = I::load(&C::numbers(&v[wide]));
            for row in 0..ROWS {
                sums[row][wide] = I::times_plus(I::splat(s[row * LD + i]), v, sums[row][wide]);
            }
        }
    }
    for row in 0..ROWS {
        let acc: &mut [[f32; LANES]; WIDE] = acc[row * vectors + at..].first_chunk_mut().expect("as wide as the rows");
        for wide in 0..WIDE {
            I::store(sums[row][wide], &mut acc[wide]);
        }
    }
}

/// How many lines more are read with `WIDE` vectors of row `i` of four.
const fn lines<C: Codes, const WIDE: usize>(i: usize) -> usize {
    let bytes = WIDE * size_of::<C::Sixteen>();
    (i + 1) * bytes / LINE - i * bytes / LINE
}

/// A type of numbers, sixteen at a time.
pub(super) trait Codes {
    type Sixteen;

    fn numbers(codes: &Self::Sixteen) -> [f32; LANES];
}

macro_rules! codes {
    ($($name:ident $bytes:literal $codes:ident $numbers:expr),*) => {$(
        pub(super) enum $name {}

        impl Codes for $name {
            type Sixteen = [u8; $bytes];

            #[inline(always)]
            fn numbers($codes: &Self::Sixteen) -> [f32; LANES] {
                $numbers
            }
        }
    )*};
}
codes!(
    F32s 64 codes Avx512::f32(codes),
    Bf16s 32 codes Avx512::bf16(codes),
    F16s 32 codes Avx512::f16(codes),
    E4m3s 16 codes Avx512::e4m3(codes),
    E5m2s 16 codes Avx512::e5m2(codes)
);
