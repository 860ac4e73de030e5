//! Reductions: whole rows, or strips of columns over all their rows.

use crate::{
    kernel::{Output, input, optional},
    numbers::{self, Real},
    portable::Portable,
    rows::{largest, largest_of, lying, parts, read, sum, units_of, with_real},
    simd::{
        Work, run_widest,
        vector::{Vectors, Wide, WorkOn},
    },
    threads,
};
use kp_hal::{
    DType, Problem,
    op::{Overflow, Reduce, ReduceArgs, ReduceOp, ReduceProblem, ReduceSpec, Reduced},
    source_hash,
};
use std::ops::Range;

impl Portable for Reduce {
    const CODE: u64 = source_hash(include_bytes!("portable.rs"));

    unsafe fn run(p: &Problem<ReduceSpec>, _: &mut [u8], args: &ReduceArgs<'_>) {
        // SAFETY: the caller's promise.
        with_real!(p.x.dtype() == DType::F64, R => unsafe { run::<R>(p, args) });
    }
}

/// Columns of a strip; also what is read of a row at a time.
const STRIP: usize = 512;

/// # Safety
/// As `Portable::run`.
unsafe fn run<R: Wide>(p: &ReduceProblem, args: &ReduceArgs<'_>) {
    // SAFETY: within a launch, whose arguments were checked.
    let (x, offsets, y) = unsafe { (input(&args.x), optional(&args.offsets), Output::new(&args.y)) };
    let elements = u64::from(p.rows) * u64::from(p.cols);
    let put = |at: usize, results: &[R]| {
        let bytes = p.y.bits() as usize / 8;
        // SAFETY: every result is of one row, or of one strip of one segment, and each has one thread.
        let place = unsafe { y.part(at * bytes..(at + results.len()) * bytes) };
        numbers::write(p.y, results, place, 0, Overflow::Saturate);
    };
    match p.over {
        Reduced::Cols => {
            let parts = parts(p.rows, elements).max(1);
            threads::for_each(parts, |part| {
                for row in units_of(part, parts, p.rows) {
                    put(row as usize, &[along_row(p, x, row)]);
                }
            });
        }
        Reduced::Rows => strips(p, x, 1, elements, |_| 0..p.rows, put),
        Reduced::Segments(n) => {
            let rows = |s: u32| {
                let at =
                    |i: u32| numbers::index(offsets, i as usize).clamp(0, p.rows.min(i32::MAX as u32) as i32) as u32;
                at(s)..at(s + 1)
            };
            strips(p, x, n, elements, rows, put);
        }
    }
}

/// One row to one number: strips are reduced one by one, so the rounding error grows with a strip's share.
fn along_row<R: Wide>(p: &ReduceProblem, x: &[u8], row: u32) -> R {
    let mut tile = [R::ZERO; STRIP];
    let mut total = start(p.op);
    for first in (0..p.cols).step_by(STRIP) {
        let width = STRIP.min((p.cols - first) as usize);
        let strip = match lying(&p.x, x, row, first as usize, width) {
            Some(strip) => strip,
            None => {
                read(&p.x, x, row, first, &mut tile[..width]);
                &tile[..width]
            }
        };
        let mut part = start(p.op);
        R::run_widest(width, Fold { op: p.op, x: strip, total: &mut part });
        total = combine(p.op, total, part);
    }
    finish(p.op, total, p.cols)
}

/// A strip of a row to one number.
struct Fold<'a, R> {
    op: ReduceOp,
    x: &'a [R],
    total: &'a mut R,
}

impl<R: Real> WorkOn<R> for Fold<'_, R> {
    #[inline(always)]
    fn run_on<I: Vectors<R>>(self) {
        let Self { op, x, total } = self;
        macro_rules! each {
            ($op:ident) => {
                x.iter().fold(start(ReduceOp::$op), |total, &x| combine(ReduceOp::$op, total, x))
            };
        }
        *total = match op {
            ReduceOp::Sum | ReduceOp::Mean => sum::<I, R>(x),
            // Vectors compare without looking for NaN, which a sum shows.
            _ if sum::<I, R>(x).is_nan() => match op {
                ReduceOp::Max => each!(Max),
                ReduceOp::Min => each!(Min),
                _ => each!(Amax),
            },
            ReduceOp::Max => largest::<I, R>(x),
            ReduceOp::Min => -largest_of::<I, R>(x, |x| I::minus(I::splat(R::ZERO), x)),
            ReduceOp::Amax => largest_of::<I, R>(x, |x| I::larger(x, I::minus(I::splat(R::ZERO), x))),
        };
    }
}

/// A row to the row of results that it joins.
struct Join<'a, R> {
    op: ReduceOp,
    x: &'a [R],
    totals: &'a mut [R],
}

impl<R: Real> Work for Join<'_, R> {
    #[inline(always)]
    fn run(self) {
        let Self { op, x, totals } = self;
        macro_rules! join {
            ($op:ident) => {
                totals.iter_mut().zip(x).for_each(|(total, &x)| *total = combine(ReduceOp::$op, *total, x))
            };
        }
        match op {
            ReduceOp::Sum | ReduceOp::Mean => join!(Sum),
            ReduceOp::Max => join!(Max),
            ReduceOp::Min => join!(Min),
            ReduceOp::Amax => join!(Amax),
        }
    }
}

/// Each column of each of `segments` segments to one number, strip by strip.
fn strips<R: Real>(
    p: &ReduceProblem,
    x: &[u8],
    segments: u32,
    elements: u64,
    rows: impl Fn(u32) -> Range<u32> + Sync,
    put: impl Fn(usize, &[R]) + Sync,
) {
    let strips = u64::from(p.cols.div_ceil(STRIP as u32));
    let units = strips * u64::from(segments);
    let parts = parts(u32::try_from(units).unwrap_or(u32::MAX), elements).max(1) as u64;
    threads::for_each(parts as usize, |part| {
        for unit in units * part as u64 / parts..units * (part as u64 + 1) / parts {
            let (segment, strip) = ((unit / strips) as u32, (unit % strips) as u32);
            let first = strip * STRIP as u32;
            let width = STRIP.min((p.cols - first) as usize);
            let (mut totals, mut tile) = ([start::<R>(p.op); STRIP], [R::ZERO; STRIP]);
            let (totals, tile) = (&mut totals[..width], &mut tile[..width]);
            // Rows in runs, for the same reason as strips of a row.
            let range = rows(segment);
            let mut run_start = range.start;
            while run_start < range.end {
                let run = run_start..run_start.saturating_add(RUN).min(range.end);
                run_start = run.end;
                let mut sums = [start::<R>(p.op); STRIP];
                for row in run {
                    let x = match lying(&p.x, x, row, first as usize, width) {
                        Some(x) => x,
                        None => {
                            read(&p.x, x, row, first, tile);
                            &*tile
                        }
                    };
                    run_widest(width, Join { op: p.op, x, totals: &mut sums[..width] });
                }
                run_widest(width, Join { op: p.op, x: &sums[..width], totals });
            }
            totals.iter_mut().for_each(|total| *total = finish(p.op, *total, range.len() as u32));
            put(segment as usize * p.cols as usize + first as usize, totals);
        }
    });
}

/// Rows whose sum is kept apart before it joins the total.
const RUN: u32 = 256;

#[inline(always)]
fn start<R: Real>(op: ReduceOp) -> R {
    match op {
        ReduceOp::Sum | ReduceOp::Mean | ReduceOp::Amax => R::ZERO,
        ReduceOp::Max => -R::INFINITY,
        ReduceOp::Min => R::INFINITY,
    }
}

/// NaN wins: a comparison with NaN is false, so `total` is kept only where it is known to be the one.
#[inline(always)]
fn combine<R: Real>(op: ReduceOp, total: R, x: R) -> R {
    match op {
        ReduceOp::Sum | ReduceOp::Mean => total + x,
        ReduceOp::Max if total >= x || total.is_nan() => total,
        ReduceOp::Min if total <= x || total.is_nan() => total,
        ReduceOp::Amax if total >= x.abs() || total.is_nan() => total,
        ReduceOp::Max | ReduceOp::Min => x,
        ReduceOp::Amax => x.abs(),
    }
}

fn finish<R: Real>(op: ReduceOp, total: R, count: u32) -> R {
    if op == ReduceOp::Mean { total / R::from_f64(count.into()) } else { total }
}
