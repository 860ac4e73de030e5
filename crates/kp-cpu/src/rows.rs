//! The loop of every row-wise op: read rows as numbers, compute, store them in a format.

use crate::{
    kernel::Output,
    numbers::{self, Real},
    store::Store,
    threads,
};
use kp_hal::{DType, op::Rows};

/// Work below this many elements is not worth a second thread.
const GRAIN: u64 = 16 << 10;

/// How many parts a loop over `units` units of `elements` elements in all is split into.
pub(crate) fn parts(units: u32, elements: u64) -> usize {
    let useful = elements.div_ceil(GRAIN).max(1);
    (threads::count() as u64).min(useful).min(units.into()) as usize
}

/// The units of part `part` of `parts`.
pub(crate) fn units_of(part: usize, parts: usize, units: u32) -> std::ops::Range<u32> {
    let at = |part: usize| (u64::from(units) * part as u64 / parts as u64) as u32;
    at(part)..at(part + 1)
}

/// Scratch of a thread for `numbers` numbers of `R`.
pub(crate) fn scratch_bytes<R>(numbers: u64) -> u64 {
    numbers.saturating_mul(size_of::<R>() as u64).next_multiple_of(64).saturating_mul(threads::count() as u64)
}

/// Part `part`'s share of a scratch that `scratch_bytes` sized.
///
/// # Safety
/// No two threads use the same part.
pub(crate) unsafe fn scratch_of<'a, R: Real>(scratch: &Output<'a>, part: usize, numbers: usize) -> &'a mut [R] {
    let bytes = (numbers * size_of::<R>()).next_multiple_of(64);
    // SAFETY: parts do not overlap; which thread has which is the caller's promise.
    let bytes = unsafe { scratch.part(part * bytes..(part + 1) * bytes) };
    // SAFETY: any bits are a number of `R`.
    let (before, numbers_of_r, _) = unsafe { bytes.align_to_mut::<R>() };
    assert!(before.is_empty(), "scratch is aligned to 256 bytes and parts to 64");
    &mut numbers_of_r[..numbers]
}

/// Runs `row(i, out)` for every row, parallel over the units of `store`, and stores what it leaves in `out`.
///
/// # Safety
/// `scratch` is this launch's and has `scratch_bytes::<R>(unit · cols)`; `store`'s outputs are this launch's.
pub(crate) unsafe fn each_row<R: Real>(store: &Store<'_>, scratch: &mut [u8], row: impl Fn(u32, &mut [R]) + Sync) {
    let (rows, cols) = store.shape;
    if rows == 0 || cols == 0 {
        return;
    }
    let scratch = Output::of(scratch);
    let units = store.units();
    let parts = parts(units, u64::from(rows) * u64::from(cols));
    let room = store.unit().min(rows) as usize * cols as usize;
    threads::for_each(parts, |part| {
        // SAFETY: one thread per part.
        let out = unsafe { scratch_of::<R>(&scratch, part, room) };
        for unit in units_of(part, parts, units) {
            let range = store.rows_of(unit);
            let out = &mut out[..range.len() * cols as usize];
            for (i, out) in range.zip(out.chunks_exact_mut(cols as usize)) {
                row(i, out);
            }
            // SAFETY: one part per unit.
            unsafe { store.unit_of(unit, out) };
        }
    });
}

/// Reads `out.len()` numbers of row `row`, from column `first` on.
pub(crate) fn read<R: Real>(rows: &Rows, bytes: &[u8], row: u32, first: u32, out: &mut [R]) {
    let start = u64::from(row) * u64::from(rows.ld) + u64::from(first);
    numbers::read(rows.dtype(), bytes, start as usize, out);
}

/// Reads a whole vector that may be absent: `absent` then.
pub(crate) fn vector<R: Real>(dtype: Option<DType>, bytes: &[u8], i: usize, absent: R) -> R {
    dtype.map_or(absent, |dtype| numbers::get(dtype, bytes, i))
}

/// The sum of a row, in sixteen running sums so that its rounding error grows with a sixteenth of the length.
pub(crate) fn sum<R: Real>(x: &[R], term: impl Fn(R) -> R) -> R {
    let mut sums = [R::ZERO; 16];
    let chunks = x.chunks_exact(16);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (sum, &x) in sums.iter_mut().zip(chunk) {
            *sum += term(x);
        }
    }
    for (sum, &x) in sums.iter_mut().zip(rest) {
        *sum += term(x);
    }
    sums.into_iter().sum()
}

/// Chooses f64 arithmetic if `wide`, else f32.
macro_rules! with_real {
    ($wide:expr, $R:ident => $body:expr) => {
        if $wide {
            type $R = f64;
            $body
        } else {
            type $R = f32;
            $body
        }
    };
}
pub(crate) use with_real;
