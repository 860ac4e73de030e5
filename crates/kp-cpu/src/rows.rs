//! The loop of every row-wise op: read rows as numbers, compute, store them in a format.

#[cfg(test)]
pub(crate) mod streamed;

use crate::{
    kernel::Output,
    memory::{Soon, as_numbers_mut, settle, stream_numbers},
    numbers::{self, Real},
    simd::{Work, vector::Vectors},
    store::Store,
    threads,
};
use kp_hal::{DType, op::Rows};
use std::ops::Range;

/// Work below this many elements is not worth a second thread.
const GRAIN: u64 = 16 << 10;

/// How many parts a loop over `units` units of `elements` elements in all is split into.
pub(crate) fn parts(units: u32, elements: u64) -> usize {
    let useful = elements.div_ceil(GRAIN).max(1);
    (threads::count() as u64).min(useful).min(units.into()) as usize
}

/// The units of part `part` of `parts`.
pub(crate) fn units_of(part: usize, parts: usize, units: u32) -> Range<u32> {
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

/// Runs `row(i, out)` for every row, parallel over the units of `store`, and stores what it leaves in `out`, of which it
/// may read nothing that it did not write.
///
/// # Safety
/// `scratch` is this launch's and has `scratch_bytes::<R>(unit · cols)`; `store`'s outputs are this launch's.
pub(crate) unsafe fn each_row<R: Real>(store: &Store<'_>, scratch: &mut [u8], row: impl Fn(u32, &mut [R]) + Sync) {
    let cols = store.shape.1 as usize;
    let unit = |unit: u32, room: &mut [R]| {
        // SAFETY: `each_unit` runs each unit once, and it has its own rows.
        unsafe {
            if let Some(out) = store.place(unit) {
                return row(unit, out);
            }
            let out = &mut room[..store.rows_of(unit).len() * cols];
            store.rows_of(unit).zip(out.chunks_exact_mut(cols)).for_each(|(i, out)| row(i, out));
            store.unit_of(unit, out);
        }
    };
    // SAFETY: the caller's promise.
    unsafe { each_unit(store, scratch, unit) };
}

/// The same for rows that [`Out::fill`] or [`stretches`] ends: what goes past the caches is stored as it is made, and takes no room in the first.
///
/// # Safety
/// As [`each_row`].
pub(crate) unsafe fn each_row_by_parts<R: Real>(
    store: &Store<'_>,
    scratch: &mut [u8],
    row: impl Fn(u32, Out<'_, R>) + Sync,
) {
    if !store.streams_plainly(R::DTYPE) {
        // SAFETY: the caller's promise.
        return unsafe { each_row(store, scratch, |i, out| row(i, Out::of(out))) };
    }
    let unit = |i: u32, room: &mut [R]| {
        // SAFETY: `each_unit` runs each unit, here a row, once.
        unsafe {
            if let Some(past) = as_numbers_mut(store.row(i)) {
                return row(i, Out { room, past: Some(past) });
            }
            row(i, Out::of(room));
            store.unit_of(i, room);
        }
    };
    // SAFETY: the caller's promise.
    unsafe { each_unit(store, scratch, unit) };
}

/// Where a row goes.
pub(crate) struct Out<'a, R> {
    /// The row's place or, if it goes elsewhere, room for what leads to it.
    pub(crate) room: &'a mut [R],
    /// Its place, past the caches.
    past: Option<&'a mut [R]>,
}

impl<'a, R> Out<'a, R> {
    pub(crate) fn of(room: &'a mut [R]) -> Self {
        Self { room, past: None }
    }
}

impl<R: Real> Out<'_, R> {
    /// Stores the whole row, `N` numbers at a time: what `part(first, out)` leaves in `out`.
    pub(crate) fn fill<const N: usize>(self, mut part: impl FnMut(usize, &mut [R])) {
        let Some(past) = self.past else {
            return self.room.chunks_mut(N).enumerate().for_each(|(i, out)| part(i * N, out));
        };
        let mut tile = Aligned([R::ZERO; N]);
        for (i, past) in past.chunks_mut(N).enumerate() {
            let tile = &mut tile.0[..past.len()];
            part(i * N, tile);
            stream_numbers(tile, past);
        }
    }
}

/// Runs `unit(i, room)` for every unit of `store`, in parallel; there is room for a unit.
///
/// # Safety
/// `scratch` is this launch's and has `scratch_bytes::<R>(unit · cols)`.
pub(crate) unsafe fn each_unit<R: Real>(store: &Store<'_>, scratch: &mut [u8], unit: impl Fn(u32, &mut [R]) + Sync) {
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
        units_of(part, parts, units).for_each(|i| unit(i, out));
        if store.streams {
            settle();
        }
    });
}

/// Reads `out.len()` numbers of row `row`, from column `first` on.
pub(crate) fn read<R: Real>(rows: &Rows, bytes: &[u8], row: u32, first: u32, out: &mut [R]) {
    numbers::read(rows.dtype(), bytes, start(rows, row) + first as usize, out);
}

/// `len` numbers of row `row` from column `first` on where they lie, if they are of `R`.
pub(crate) fn lying<'a, R: Real>(rows: &Rows, bytes: &'a [u8], row: u32, first: usize, len: usize) -> Option<&'a [R]> {
    numbers::lying(rows.dtype(), bytes, start(rows, row) + first, len)
}

fn start(rows: &Rows, row: u32) -> usize {
    row as usize * rows.ld as usize
}

/// A vector of `len` numbers that may be absent: where it lies, or read to `room`, or `absent` throughout.
pub(crate) fn vector<'a, R: Real>(
    dtype: Option<DType>,
    bytes: &'a [u8],
    len: usize,
    absent: R,
    room: &'a mut [R],
) -> &'a [R] {
    let Some(dtype) = dtype else {
        room[..len].fill(absent);
        return &room[..len];
    };
    match numbers::lying(dtype, bytes, 0, len) {
        Some(numbers) => numbers,
        None => {
            numbers::read(dtype, bytes, 0, &mut room[..len]);
            &room[..len]
        }
    }
}

/// How many running sums a row is summed in, on every instruction set, so that its rounding error grows with a part of
/// its length only. Half as many are two chains of AVX-512, which wait for their additions.
const LANES: usize = 64;

/// The most vectors they take: two f64 in each.
const MOST_VECTORS: usize = LANES / 2;

/// `step` of each run of `LANES` numbers and what was found in those before, from `start` on; then `join` of the lanes,
/// half to half. The last run is filled up with `pad`.
#[inline(always)]
fn fold<I: Vectors<R>, R: Real>(
    x: &[R],
    start: R,
    pad: R,
    step: impl Fn(I::V, I::V) -> I::V,
    join: impl Fn(R, R) -> R,
) -> R {
    let vectors = LANES / I::N;
    let mut found = [I::splat(start); MOST_VECTORS];
    let (runs, rest) = x.as_chunks::<LANES>();
    for run in runs {
        for v in 0..vectors {
            found[v] = step(found[v], I::load(&run[v * I::N..]));
        }
    }
    if !rest.is_empty() {
        let mut run = [pad; LANES];
        run[..rest.len()].copy_from_slice(rest);
        for v in 0..vectors {
            found[v] = step(found[v], I::load(&run[v * I::N..]));
        }
    }
    joined::<I, R>(&found, join)
}

/// What the lanes hold, half to half.
#[inline(always)]
fn joined<I: Vectors<R>, R: Real>(found: &[I::V; MOST_VECTORS], join: impl Fn(R, R) -> R) -> R {
    let mut lanes = [R::ZERO; LANES];
    for (v, &found) in found[..LANES / I::N].iter().enumerate() {
        I::store(found, &mut lanes[v * I::N..]);
    }
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = join(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// The sum of the products of two rows of one length.
#[inline(always)]
pub(crate) fn products<I: Vectors<R>, R: Real>(x: &[R], y: &[R]) -> R {
    let mut sums = [I::splat(R::ZERO); MOST_VECTORS];
    let mut add = |x: &[R; LANES], y: &[R; LANES]| {
        for (v, sum) in sums[..LANES / I::N].iter_mut().enumerate() {
            *sum = I::plus(*sum, I::times(I::load(&x[v * I::N..]), I::load(&y[v * I::N..])));
        }
    };
    let ((xs, x_rest), (ys, y_rest)) = (x.as_chunks(), y.as_chunks());
    xs.iter().zip(ys).for_each(|(x, y)| add(x, y));
    let filled = |rest: &[R]| std::array::from_fn(|i| rest.get(i).copied().unwrap_or(R::ZERO));
    if !x_rest.is_empty() {
        add(&filled(x_rest), &filled(y_rest));
    }
    joined::<I, R>(&sums, |a, b| a + b)
}

/// The sum of a row.
#[inline(always)]
pub(crate) fn sum<I: Vectors<R>, R: Real>(x: &[R]) -> R {
    fold::<I, R>(x, R::ZERO, R::ZERO, I::plus, |a, b| a + b)
}

/// The sum of the squared distances from `mean`.
#[inline(always)]
pub(crate) fn squares<I: Vectors<R>, R: Real>(x: &[R], mean: R) -> R {
    let from = I::splat(mean);
    let step = |sum, x| {
        let x = I::minus(x, from);
        I::plus(sum, I::times(x, x))
    };
    fold::<I, R>(x, R::ZERO, mean, step, |a, b| a + b)
}

/// The largest number of a row; it may ignore NaN.
#[inline(always)]
pub(crate) fn largest<I: Vectors<R>, R: Real>(x: &[R]) -> R {
    largest_of::<I, R>(x, |x| x)
}

/// The largest of what `of` makes of a row that is not empty.
#[inline(always)]
pub(crate) fn largest_of<I: Vectors<R>, R: Real>(x: &[R], of: impl Fn(I::V) -> I::V) -> R {
    let first = x.first().copied().unwrap_or(R::ZERO);
    let step = |most, x| I::larger(of(x), most);
    fold::<I, R>(x, -R::INFINITY, first, step, |a, b| if a > b { a } else { b })
}

/// `out = f(i, x)` for each number of a row: of `x`, or of what `out` holds if there is none.
#[inline(always)]
pub(crate) fn map<R: Real>(x: Option<&[R]>, out: &mut [R], f: impl Fn(usize, R) -> R) {
    match x {
        Some(x) => out.iter_mut().zip(x).enumerate().for_each(|(i, (out, &x))| *out = f(i, x)),
        None => out.iter_mut().enumerate().for_each(|(i, out)| *out = f(i, *out)),
    }
}

/// Runs `part(range, x, out)` for each stretch of a row: of `x`, or of what is in the room of `to` if there is none. Meanwhile `next`, which
/// the thread reads after it, is brought near: computing on a row would leave memory idle otherwise.
#[inline(always)]
pub(crate) fn stretches<R: Real>(
    x: Option<&[R]>,
    to: Out<'_, R>,
    next: &[u8],
    part: impl Fn(Range<usize>, Option<&[R]>, &mut [R]),
) {
    let cols = to.room.len();
    let soon = Soon::of(next, cols.div_ceil(STRETCH));
    let ranges = (0..cols).step_by(STRETCH).map(|first| first..(first + STRETCH).min(cols)).enumerate();
    let Some(past) = to.past else {
        if next.is_empty() {
            return part(0..cols, x, to.room);
        }
        for (s, range) in ranges {
            soon.ask(s);
            part(range.clone(), x.map(|x| &x[range.clone()]), &mut to.room[range]);
        }
        return;
    };
    let mut tile = Aligned([R::ZERO; STRETCH]);
    let x = x.unwrap_or(to.room);
    for (s, range) in ranges {
        soon.ask(s);
        let tile = &mut tile.0[..range.len()];
        part(range.clone(), Some(&x[range.clone()]), tile);
        stream_numbers(tile, &mut past[range]);
    }
}

/// Starts with a line.
#[repr(align(64))]
struct Aligned<T>(T);

/// Numbers that are computed, and stored, together.
const STRETCH: usize = 256;

/// The bytes of row `row`, none if there is no such row among the first `rows.0` of `rows.1` columns.
pub(crate) fn bytes_of<'a>(x: &Rows, bytes: &'a [u8], row: u32, (rows, cols): (u32, u32)) -> &'a [u8] {
    if row >= rows {
        return &[];
    }
    let first = x.dtype().bytes(start(x, row) as u64) as usize;
    &bytes[first..first + x.dtype().bytes(cols.into()) as usize]
}

/// A value for each block of `inner` numbers to one for each number, as many as there is room for.
#[inline(always)]
pub(crate) fn spread<R: Real, const N: usize>(values: impl Iterator<Item = R>, inner: usize) -> [R; N] {
    #[inline(always)]
    fn fixed<R: Real, const B: usize>(values: impl Iterator<Item = R>, out: &mut [R]) {
        out.as_chunks_mut::<B>().0.iter_mut().zip(values).for_each(|(out, value)| *out = [value; B]);
    }
    let mut out = [R::ZERO; N];
    match inner {
        16 => fixed::<R, 16>(values, &mut out),
        32 => fixed::<R, 32>(values, &mut out),
        64 => fixed::<R, 64>(values, &mut out),
        _ => out.chunks_mut(inner).zip(values).for_each(|(out, value)| out.fill(value)),
    }
    out
}

/// Adds one row to another.
pub(crate) struct Add<'a, R> {
    pub(crate) x: &'a [R],
    pub(crate) out: &'a mut [R],
}

impl<R: Real> Work for Add<'_, R> {
    #[inline(always)]
    fn run(self) {
        self.out.iter_mut().zip(self.x).for_each(|(out, &x)| *out += x);
    }
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
