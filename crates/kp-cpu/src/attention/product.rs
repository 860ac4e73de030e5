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

/// The factor that is spread over lanes.
#[derive(Clone, Copy)]
pub(crate) enum Spread<'a, R> {
    /// Rows so far apart, of terms side by side.
    Rows(&'a [R], usize),
    /// Terms so far apart, of rows side by side.
    Terms(&'a [R], usize),
}

impl<R: Copy> Spread<'_, R> {
    /// Where row `i` has term `t`.
    #[inline(always)]
    fn place(&self, i: usize, t: usize) -> usize {
        match *self {
            Self::Rows(_, ld) => i * ld + t,
            Self::Terms(_, ld) => t * ld + i,
        }
    }

    #[inline(always)]
    fn numbers(&self) -> &[R] {
        match *self {
            Self::Rows(at, _) | Self::Terms(at, _) => at,
        }
    }
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
            assert!(p.a.place(p.rows - 1, p.terms - 1) < p.a.numbers().len(), "a number of A for each term");
            assert!(last(p.terms, p.b.1) <= p.b.0.len(), "numbers of B for each term");
        }
        match p.start {
            Start::ByRow(factors) => assert!(p.rows <= factors.len(), "a factor for each row"),
            Start::ByLane(factors) => assert!(p.lanes <= factors.len(), "a factor for each lane"),
            Start::Zero | Start::Sums => {}
        }
        // SAFETY: what follows stays below the last elements, which were just seen to be there.
        unsafe {
            match p.a {
                Spread::Rows(..) => columns::<I, R, MR, LV, true>(&mut p),
                Spread::Terms(..) => columns::<I, R, MR, LV, false>(&mut p),
            }
        }
    }
}

/// All of a product; `BY_ROWS` says how A lies, so that no loop asks.
///
/// # Safety
/// The last row, term and lane are inside the operands, and A lies so.
#[inline(always)]
unsafe fn columns<I: Vectors<R>, R: Arith, const MR: usize, const LV: usize, const BY_ROWS: bool>(
    p: &mut Product<'_, R>,
) {
    let mut lane = 0;
    while lane + LV * I::N <= p.lanes {
        // SAFETY: the caller's promise.
        unsafe { column::<I, R, MR, LV, BY_ROWS>(p, lane) };
        lane += LV * I::N;
    }
    // One vector alone would wait for its own sums.
    while LV > 2 && lane + 2 * I::N <= p.lanes {
        // SAFETY: as above.
        unsafe { column::<I, R, MR, 2, BY_ROWS>(p, lane) };
        lane += 2 * I::N;
    }
    while lane < p.lanes {
        // SAFETY: as above.
        unsafe { column::<I, R, MR, 1, BY_ROWS>(p, lane) };
        lane += I::N;
    }
}

/// All rows of `LV` vectors from `lane` on.
///
/// # Safety
/// As [`columns()`].
#[inline(always)]
unsafe fn column<I: Vectors<R>, R: Arith, const MR: usize, const LV: usize, const BY_ROWS: bool>(
    p: &mut Product<'_, R>,
    lane: usize,
) {
    let highest = highest(p.rows, MR);
    for first in (0..highest).step_by(MR) {
        // SAFETY: the caller's promise.
        unsafe { block::<I, R, MR, LV, BY_ROWS>(p, first, lane) };
    }
    let fours = if MR > 4 { highest + (p.rows - highest) / 4 * 4 } else { highest };
    for first in (highest..fours).step_by(4) {
        // SAFETY: the caller's promise.
        unsafe { block::<I, R, 4, LV, BY_ROWS>(p, first, lane) };
    }
    let pairs = p.rows - p.rows % 2;
    for first in (fours..pairs).step_by(2) {
        // SAFETY: the caller's promise.
        unsafe { block::<I, R, 2, LV, BY_ROWS>(p, first, lane) };
    }
    for row in pairs..p.rows {
        // SAFETY: the caller's promise.
        unsafe { block::<I, R, 1, LV, BY_ROWS>(p, row, lane) };
    }
}

/// How many of `rows` rows are taken `mr` at a time: as many as leave fours, since two or three wait for their own sums.
#[inline(always)]
fn highest(rows: usize, mr: usize) -> usize {
    let mut blocks = rows / mr;
    while mr > 4 && blocks > 0 && (rows - blocks * mr) % 4 > 1 {
        blocks -= 1;
    }
    blocks * mr
}

/// # Safety
/// As [`columns()`], of rows `first .. first + MR`.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "what iterates over the sums keeps them in memory")]
unsafe fn block<I: Vectors<R>, R: Arith, const MR: usize, const LV: usize, const BY_ROWS: bool>(
    p: &mut Product<'_, R>,
    first: usize,
    lane: usize,
) {
    if let Some(soon) = &mut p.soon {
        soon.ask();
    }
    let mut sums = [[I::splat(R::ZERO); LV]; MR];
    if !matches!(p.start, Start::Zero) {
        for i in 0..MR {
            for v in 0..LV {
                // SAFETY: of all vectors here: the caller's promise.
                sums[i][v] = unsafe { load::<I, R>(p.out.0, (first + i) * p.out.1 + lane + v * I::N) };
            }
        }
    }
    match p.start {
        Start::Zero | Start::Sums => {}
        Start::ByRow(factors) => {
            for i in 0..MR {
                let factor = I::splat(factors[first + i]);
                for v in 0..LV {
                    sums[i][v] = I::times(sums[i][v], factor);
                }
            }
        }
        Start::ByLane(factors) => {
            for v in 0..LV {
                // SAFETY: as above.
                let factor = unsafe { load::<I, R>(factors, lane + v * I::N) };
                for i in 0..MR {
                    sums[i][v] = I::times(sums[i][v], factor);
                }
            }
        }
    }
    let mut t = 0;
    // SAFETY: of both loops: the caller's promise.
    unsafe {
        while MR >= 4 && t + steps(MR) <= p.terms {
            for step in 0..steps(MR) {
                add::<I, R, MR, LV, BY_ROWS>(p, (first, lane), t + step, &mut sums);
            }
            t += steps(MR);
        }
        while t < p.terms {
            add::<I, R, MR, LV, BY_ROWS>(p, (first, lane), t, &mut sums);
            t += 1;
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

/// Terms of a turn of the loop of so many rows: 4 to 10 % less time than one on Zen 3, where the compiler knows how A lies.
const fn steps(rows: usize) -> usize {
    if rows > 4 { 2 } else { 4 }
}

/// Adds term `t` to the sums of a block.
///
/// # Safety
/// As [`block()`], and the term is there.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "what iterates over the sums keeps them in memory")]
unsafe fn add<I: Vectors<R>, R: Arith, const MR: usize, const LV: usize, const BY_ROWS: bool>(
    p: &Product<'_, R>,
    (first, lane): (usize, usize),
    t: usize,
    sums: &mut [[I::V; LV]; MR],
) {
    let mut b = [I::splat(R::ZERO); LV];
    for v in 0..LV {
        // SAFETY: the caller's promise.
        b[v] = unsafe { load::<I, R>(p.b.0, t * p.b.1 + lane + v * I::N) };
    }
    for i in 0..MR {
        let place = match p.a {
            Spread::Rows(_, ld) if BY_ROWS => (first + i) * ld + t,
            Spread::Terms(_, ld) if !BY_ROWS => t * ld + first + i,
            // SAFETY: as above.
            _ => unsafe { std::hint::unreachable_unchecked() },
        };
        // SAFETY: as above.
        let a = I::splat(unsafe { *p.a.numbers().get_unchecked(place) });
        for v in 0..LV {
            sums[i][v] = I::times_plus(a, b[v], sums[i][v]);
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
                let a = p.a.numbers()[p.a.place(i, t)];
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
