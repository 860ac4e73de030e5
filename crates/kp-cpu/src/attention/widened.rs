//! Rows of K and V against those of a query in f32, to which codes are widened in registers.

use super::{
    fours::{Ahead, FOUR, LD, Meets},
    product::LANES,
    turn::Turns,
};
use crate::simd::{Avx512, vector::Vectors, widen::Widen};
use std::marker::PhantomData;

/// Rows of a type, by sixteen numbers.
pub(super) struct Widened<C>(PhantomData<fn() -> C>);

impl<C: Codes> Meets for Widened<C> {
    type Unit = C::Sixteen;
    const ASKS: bool = false;

    #[inline(always)]
    fn cut(row: &[u8]) -> &[Self::Unit] {
        C::cut(row)
    }

    #[inline(always)]
    fn dots<const ROWS: usize, const N: usize>(q: &[f32], k: &[&[Self::Unit]; N], s: &mut [f32], _: &mut Ahead<'_>) {
        for (at, k) in k.as_chunks().0.iter().enumerate() {
            dots::<Avx512, ROWS, C>(q, k, &mut s[at * FOUR..]);
        }
    }

    #[inline(always)]
    fn add<const ROWS: usize, const N: usize>(
        s: &[f32],
        place: usize,
        v: &[&[Self::Unit]; N],
        acc: &mut [f32],
        _: &mut Ahead<'_>,
    ) {
        for (at, v) in v.as_chunks().0.iter().enumerate() {
            add::<Avx512, ROWS, C>(&s[place + at * FOUR..], v, acc);
        }
    }
}

#[inline(always)]
fn dots<I: Turns<f32>, const ROWS: usize, C: Codes>(q: &[f32], k: &[&[C::Sixteen]; FOUR], s: &mut [f32]) {
    let vectors = k[0].len();
    let (q, mut rows) = (q.as_chunks::<LANES>().0, [[].as_slice(); ROWS]);
    for row in 0..ROWS {
        rows[row] = &q[row * vectors..][..vectors];
    }
    let k = [&k[0][..vectors], &k[1][..vectors], &k[2][..vectors], &k[3][..vectors]];
    let mut sums = [[I::splat(0.0); FOUR]; ROWS];
    for c in 0..vectors {
        for i in 0..FOUR {
            let k = I::load(&C::numbers(&k[i][c]));
            for row in 0..ROWS {
                sums[row][i] = I::times_plus(I::load(&rows[row][c]), k, sums[row][i]);
            }
        }
    }
    for row in 0..ROWS {
        s[row * LD..][..FOUR].copy_from_slice(&I::four_sums(sums[row]));
    }
}

#[inline(always)]
fn add<I: Vectors<f32>, const ROWS: usize, C: Codes>(s: &[f32], v: &[&[C::Sixteen]; FOUR], acc: &mut [f32]) {
    let vectors = v[0].len();
    let acc = &mut acc.as_chunks_mut::<LANES>().0[..ROWS * vectors];
    let mut at = 0;
    while at + 4 <= vectors {
        add_columns::<I, ROWS, 4, C>(s, v, acc, at);
        at += 4;
    }
    while at < vectors {
        add_columns::<I, ROWS, 1, C>(s, v, acc, at);
        at += 1;
    }
}

/// The same for some vectors of each row, which stay in registers.
#[inline(always)]
fn add_columns<I: Vectors<f32>, const ROWS: usize, const WIDE: usize, C: Codes>(
    s: &[f32],
    v: &[&[C::Sixteen]; FOUR],
    acc: &mut [[f32; LANES]],
    at: usize,
) {
    let vectors = acc.len() / ROWS;
    let mut sums = [[I::splat(0.0); WIDE]; ROWS];
    for row in 0..ROWS {
        let acc: &[[f32; LANES]; WIDE] = acc[row * vectors + at..].first_chunk().expect("as wide as the rows");
        for wide in 0..WIDE {
            sums[row][wide] = I::load(&acc[wide]);
        }
    }
    let s = &s[..(ROWS - 1) * LD + FOUR];
    for i in 0..FOUR {
        let v: &[C::Sixteen; WIDE] = v[i][at..].first_chunk().expect("as wide as the rows");
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

/// A type of numbers, sixteen at a time.
pub(super) trait Codes {
    type Sixteen;

    /// The whole sixteens of some bytes.
    fn cut(row: &[u8]) -> &[Self::Sixteen];

    fn numbers(codes: &Self::Sixteen) -> [f32; LANES];
}

macro_rules! codes {
    ($($name:ident $bytes:literal $codes:ident $numbers:expr),*) => {$(
        pub(super) enum $name {}

        impl Codes for $name {
            type Sixteen = [u8; $bytes];

            #[inline(always)]
            fn cut(row: &[u8]) -> &[Self::Sixteen] {
                row.as_chunks().0
            }

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
