//! The product of attention: `out[i][j] = start + Σ over t of a[i][t] · b[t][j]`, blocked so that the sums stay in registers.
//!
//! ```text
//!                      b [t][j]   LV vectors
//!   a [i][t]  MR of    ─────────
//!   them, each in      out[i][j]  MR × LV sums
//!   all lanes
//! ```
//! Every element is one chain of multiply-adds in the order of t, whatever the blocking: the factors of a product may
//! change places, and its rows may be computed in any company.

use super::soon::Soon;
use crate::simd::{Isa, Work, arith::Arith, vector::Vectors};
use std::marker::PhantomData;

/// Numbers whose element of row `i` and term `t` is at `i · row + t · term`.
#[derive(Clone, Copy)]
pub(crate) struct Spread<'a, R> {
    pub(crate) at: &'a [R],
    pub(crate) row: usize,
    pub(crate) term: usize,
}

/// What sums begin with.
#[derive(Clone, Copy)]
pub(crate) enum Start<'a, R> {
    Zero,
    /// What `out` holds.
    Sums,
    /// The same times a factor for each row, or each lane.
    ByRow(&'a [R]),
    ByLane(&'a [R]),
}

/// One product; rows of `b` and of `out` lie a distance apart.
pub(crate) struct Product<'a, R> {
    pub(crate) rows: usize,
    pub(crate) terms: usize,
    /// A multiple of [`LANES`].
    pub(crate) lanes: usize,
    pub(crate) a: Spread<'a, R>,
    pub(crate) b: (&'a [R], usize),
    pub(crate) start: Start<'a, R>,
    pub(crate) out: (&'a mut [R], usize),
    /// What to ask for meanwhile.
    pub(crate) soon: Option<&'a mut Soon>,
}

/// Lanes come in multiples of the longest vector there is.
pub(crate) const LANES: usize = 16;

/// Computes a product on an instruction set, `MR` rows by `LV` vectors at a time.
pub(crate) struct Multiply<'a, R, I, const MR: usize, const LV: usize> {
    pub(crate) product: Product<'a, R>,
    pub(crate) isa: PhantomData<fn() -> I>,
}

impl<R: Arith, I: Vectors<R>, const MR: usize, const LV: usize> Work for Multiply<'_, R, I, MR, LV> {
    #[inline(always)]
    fn run(self) {
        let mut p = self.product;
        const { assert!(LANES.is_multiple_of(I::N) && MR.is_multiple_of(2)) };
        if p.rows == 0 || p.lanes == 0 {
            return;
        }
        let last = |rows: usize, ld: usize| (rows - 1) * ld + p.lanes;
        assert!(p.lanes.is_multiple_of(LANES), "whole vectors");
        assert!(last(p.rows, p.out.1) <= p.out.0.len(), "room for every sum");
        if p.terms > 0 {
            assert!((p.rows - 1) * p.a.row + (p.terms - 1) * p.a.term < p.a.at.len(), "a number of A for each term");
            assert!(last(p.terms, p.b.1) <= p.b.0.len(), "numbers of B for each term");
        }
        match p.start {
            Start::ByRow(factors) => assert!(p.rows <= factors.len(), "a factor for each row"),
            Start::ByLane(factors) => assert!(p.lanes <= factors.len(), "a factor for each lane"),
            Start::Zero | Start::Sums => {}
        }
        let mut lane = 0;
        while lane + LV * I::N <= p.lanes {
            // SAFETY: what follows stays below the last elements, which were just seen to be there.
            unsafe { column::<I, R, MR, LV>(&mut p, lane) };
            lane += LV * I::N;
        }
        // One vector alone would wait for its own sums.
        while LV > 2 && lane + 2 * I::N <= p.lanes {
            // SAFETY: as above.
            unsafe { column::<I, R, MR, 2>(&mut p, lane) };
            lane += 2 * I::N;
        }
        while lane < p.lanes {
            // SAFETY: as above.
            unsafe { column::<I, R, MR, 1>(&mut p, lane) };
            lane += I::N;
        }
    }
}

/// All rows of `LV` vectors from `lane` on.
///
/// # Safety
/// The last row, term and lane are inside the operands.
#[inline(always)]
unsafe fn column<I: Vectors<R>, R: Arith, const MR: usize, const LV: usize>(p: &mut Product<'_, R>, lane: usize) {
    let whole = p.rows / MR * MR;
    for first in (0..whole).step_by(MR) {
        // SAFETY: the caller's promise.
        unsafe { block::<I, R, MR, LV>(p, first, lane) };
    }
    let pairs = whole..p.rows - p.rows % 2;
    for first in pairs.clone().step_by(2) {
        // SAFETY: the caller's promise.
        unsafe { block::<I, R, 2, LV>(p, first, lane) };
    }
    for row in pairs.end..p.rows {
        // SAFETY: the caller's promise.
        unsafe { block::<I, R, 1, LV>(p, row, lane) };
    }
}

/// # Safety
/// As [`column()`], of rows `first .. first + MR`.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "what iterates over the sums keeps them in memory")]
unsafe fn block<I: Vectors<R>, R: Arith, const MR: usize, const LV: usize>(
    p: &mut Product<'_, R>,
    first: usize,
    lane: usize,
) {
    if let Some(soon) = &mut p.soon {
        soon.ask();
    }
    let mut sums = [[I::splat(R::ZERO); LV]; MR];
    for i in 0..MR {
        for v in 0..LV {
            let at = lane + v * I::N;
            // SAFETY: of all vectors here: the caller's promise.
            let old = || unsafe { load::<I, R>(p.out.0, (first + i) * p.out.1 + at) };
            sums[i][v] = match p.start {
                Start::Zero => I::splat(R::ZERO),
                Start::Sums => old(),
                Start::ByRow(factors) => I::times(old(), I::splat(factors[first + i])),
                // SAFETY: as above.
                Start::ByLane(factors) => I::times(old(), unsafe { load::<I, R>(factors, at) }),
            };
        }
    }
    for t in 0..p.terms {
        let mut b = [I::splat(R::ZERO); LV];
        for v in 0..LV {
            // SAFETY: as above.
            b[v] = unsafe { load::<I, R>(p.b.0, t * p.b.1 + lane + v * I::N) };
        }
        for i in 0..MR {
            // SAFETY: as above.
            let a = I::splat(unsafe { *p.a.at.get_unchecked((first + i) * p.a.row + t * p.a.term) });
            for v in 0..LV {
                sums[i][v] = I::times_plus(a, b[v], sums[i][v]);
            }
        }
    }
    for i in 0..MR {
        for v in 0..LV {
            let at = (first + i) * p.out.1 + lane + v * I::N;
            // SAFETY: as above.
            I::store(sums[i][v], unsafe { p.out.0.get_unchecked_mut(at..at + I::N) });
        }
    }
}

/// # Safety
/// A vector is there.
#[inline(always)]
unsafe fn load<I: Vectors<R>, R: Arith>(x: &[R], at: usize) -> I::V {
    // SAFETY: the caller's promise.
    I::load(unsafe { x.get_unchecked(at..at + I::N) })
}

/// Which factor of a product is a weight.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weight {
    A,
    B,
}

/// The same product, but a weight of 0 keeps even NaN and infinity out: for keys that are hidden.
#[inline(always)]
pub(crate) fn product_seen<I: Isa, R: Arith>(product: Product<'_, R>, weight: Weight) {
    I::run(Seen::<R, I> { product, weight, isa: PhantomData });
}

struct Seen<'a, R, I> {
    product: Product<'a, R>,
    weight: Weight,
    isa: PhantomData<fn() -> I>,
}

impl<R: Arith, I: Isa> Work for Seen<'_, R, I> {
    #[inline(always)]
    fn run(self) {
        let Self { product: p, weight, .. } = self;
        for i in 0..p.rows {
            let sums = &mut p.out.0[i * p.out.1..][..p.lanes];
            match p.start {
                Start::Zero => sums.fill(R::ZERO),
                Start::Sums => {}
                Start::ByRow(factors) => sums.iter_mut().for_each(|sum| *sum *= factors[i]),
                Start::ByLane(factors) => sums.iter_mut().zip(factors).for_each(|(sum, &factor)| *sum *= factor),
            }
            for t in 0..p.terms {
                let a = p.a.at[i * p.a.row + t * p.a.term];
                if weight == Weight::A && a == R::ZERO {
                    continue;
                }
                for (sum, &b) in sums.iter_mut().zip(&p.b.0[t * p.b.1..][..p.lanes]) {
                    let more = a.times_plus::<I>(b, *sum);
                    *sum = if weight == Weight::B && b == R::ZERO { *sum } else { more };
                }
            }
        }
    }
}
