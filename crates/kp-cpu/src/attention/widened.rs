//! Rows of K and V against those of a query in f32, to which codes are widened in registers.

use super::{
    ahead::Lines,
    fours::{FOUR, Few, LD, Numbers, TWO},
    meets::Meets,
    product::LANES,
};
use crate::{memory::LINE, simd::widen::Widen};
use std::marker::PhantomData;

/// Rows of a type, by sixteen numbers.
pub(super) struct Widened<I, C>(PhantomData<fn() -> (I, C)>);

impl<I: Numbers, C: Codes> Meets for Widened<I, C> {
    #[inline(always)]
    fn dots<const ROWS: usize, const N: usize>(q: &[f32], k: &Few<'_, N>, s: &mut [f32], mut soon: Lines) {
        if ROWS * N > FOUR && is_narrow::<I>() {
            for first in (0..N).step_by(TWO) {
                dots::<I, ROWS, TWO, N, C>(q, k, first, s, &mut soon);
            }
        } else {
            dots::<I, ROWS, N, N, C>(q, k, 0, s, &mut soon);
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
        let vectors = v.units::<C::Sixteen>();
        let (s, acc, mut at) = (&s[place..], &mut acc.as_chunks_mut::<LANES>().0[..ROWS * vectors], 0);
        while at + 4 <= vectors && (ROWS == 1 || !is_narrow::<I>()) {
            add_columns::<I, ROWS, 4, N, C>(s, v, acc, at, &mut soon);
            at += 4;
        }
        while at < vectors {
            add_columns::<I, ROWS, 1, N, C>(s, v, acc, at, &mut soon);
            at += 1;
        }
    }
}

/// Whether sixteen sums of sixteen numbers each are more than there are registers.
const fn is_narrow<I: Numbers>() -> bool {
    I::N < LANES
}

/// `MANY` of the rows of K, from row `first` on.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "rows and sums of one number belong together")]
fn dots<I: Numbers, const ROWS: usize, const MANY: usize, const N: usize, C: Codes>(
    q: &[f32],
    k: &Few<'_, N>,
    first: usize,
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
        for i in 0..MANY {
            soon.ask(lines::<C, 1>(first + i));
            // SAFETY: there are as many, of as many bytes.
            let [k] = unsafe { k.some(first + i, c) };
            let k = C::numbers::<I>(k);
            for row in 0..ROWS {
                for part in (0..LANES).step_by(I::N) {
                    let q = I::load(&rows[row][c][part..]);
                    sums[row][i] = I::times_plus(q, I::load(&k[part..]), sums[row][i]);
                }
            }
        }
    }
    for row in 0..ROWS {
        s[row * LD + first..][..MANY].copy_from_slice(&I::four_sums(sums[row])[..MANY]);
    }
}

/// Sixteen numbers `WIDE` times of each row of V, from those at `at` on; their sums stay in registers.
#[inline(always)]
fn add_columns<I: Numbers, const ROWS: usize, const WIDE: usize, const N: usize, C: Codes>(
    s: &[f32],
    v: &Few<'_, N>,
    acc: &mut [[f32; LANES]],
    at: usize,
    soon: &mut Lines,
) {
    let (vectors, parts) = (acc.len() / ROWS, LANES / I::N);
    // As many vectors as any instruction set takes for sixteen numbers; what is not used is no register.
    let mut sums = [[[I::splat(0.0); PARTS]; WIDE]; ROWS];
    for row in 0..ROWS {
        let acc: &[[f32; LANES]; WIDE] = acc[row * vectors + at..].first_chunk().expect("as wide as the rows");
        for wide in 0..WIDE {
            for part in 0..parts {
                sums[row][wide][part] = I::load(&acc[wide][part * I::N..]);
            }
        }
    }
    let s = &s[..(ROWS - 1) * LD + N];
    for i in 0..N {
        soon.ask(lines::<C, WIDE>(i));
        // SAFETY: there are as many, of as many bytes.
        let v: &[C::Sixteen; WIDE] = unsafe { v.some(i, at) };
        for wide in 0..WIDE {
            let v = C::numbers::<I>(&v[wide]);
            for row in 0..ROWS {
                let (weight, sums) = (I::splat(s[row * LD + i]), &mut sums[row][wide]);
                for part in 0..parts {
                    sums[part] = I::times_plus(weight, I::load(&v[part * I::N..]), sums[part]);
                }
            }
        }
    }
    for row in 0..ROWS {
        let acc: &mut [[f32; LANES]; WIDE] = acc[row * vectors + at..].first_chunk_mut().expect("as wide as the rows");
        for wide in 0..WIDE {
            for part in 0..parts {
                I::store(sums[row][wide][part], &mut acc[wide][part * I::N..]);
            }
        }
    }
}

/// Most vectors that sixteen numbers take.
const PARTS: usize = 4;

/// How many lines more are read with `WIDE` vectors of row `i` of four.
const fn lines<C: Codes, const WIDE: usize>(i: usize) -> usize {
    let bytes = WIDE * size_of::<C::Sixteen>();
    (i + 1) * bytes / LINE - i * bytes / LINE
}

/// A type of numbers, sixteen at a time.
pub(super) trait Codes {
    type Sixteen;

    fn numbers<I: Widen>(codes: &Self::Sixteen) -> [f32; LANES];
}

macro_rules! codes {
    ($($name:ident $bytes:literal $widen:ident),*) => {$(
        pub(super) enum $name {}

        impl Codes for $name {
            type Sixteen = [u8; $bytes];

            #[inline(always)]
            fn numbers<I: Widen>(codes: &Self::Sixteen) -> [f32; LANES] {
                I::$widen(codes)
            }
        }
    )*};
}
codes!(F32s 64 f32, Bf16s 32 bf16, F16s 32 f16, E4m3s 16 e4m3, E5m2s 16 e5m2);
