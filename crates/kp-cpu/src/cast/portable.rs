//! Y = X, tile by tile: loaded in the order X lies in, stored in the order Y does.
//!
//! ```text
//!   X  ─ runs ▶  tile of 4096 elements, row-major  ─ runs ▶  Y
//! ```
//! Codes of equal type are moved without looking at them; others pass through f32, or f64 where f32 would round twice.
//! Limits: none.

use crate::{
    caps::exceeds_caches,
    kernel::{Output, input},
    memory::{self, settle},
    numbers::{self, Real},
    portable::Portable,
    threads,
};
use kp_hal::{
    DType, Problem,
    op::{Cast, CastArgs, CastProblem, CastSpec, Matrix, Order, Overflow},
    source_hash,
};
use std::{marker::PhantomData, ops::Range};

impl Portable for Cast {
    const CODE: u64 = source_hash(include_bytes!("portable.rs"));

    unsafe fn run(p: &Problem<CastSpec>, _: &mut [u8], args: &CastArgs<'_>) {
        // SAFETY: within a launch, whose arguments were checked.
        let (x, y) = unsafe { (input(&args.x), Output::new(&args.y)) };
        let wide = |t: DType| matches!(t, DType::F64 | DType::I32 | DType::I64);
        let (from, to) = (p.x.dtype(), p.y.dtype());
        match (from == to, to.bits()) {
            (true, 4) => copy(p, Nibbles { zero: numbers::encode(to, 0.0, p.overflow) }, x, y),
            (true, 8) => copy(p, Whole::<u8>::CODES, x, y),
            (true, 16) => copy(p, Whole::<u16>::CODES, x, y),
            (true, 32) => copy(p, Whole::<u32>::CODES, x, y),
            (true, _) => copy(p, Whole::<u64>::CODES, x, y),
            (false, _) if wide(from) || wide(to) => {
                copy(p, Numbers::<f64> { from, to, overflow: p.overflow, kind: PhantomData }, x, y);
            }
            (false, _) => copy(p, Numbers::<f32> { from, to, overflow: p.overflow, kind: PhantomData }, x, y),
        }
    }
}

/// How elements are loaded and stored on their way.
trait Through: Copy + Sync {
    /// An element in the tile.
    type Element: Copy + Default;

    /// What padding holds.
    fn zero(self) -> Self::Element {
        Self::Element::default()
    }

    /// `len` elements from element `start` of `src` on where they lie, if they are such.
    fn lying(self, _src: &[u8], _start: usize, _len: usize) -> Option<&[Self::Element]> {
        None
    }

    /// Loads `out.len()` elements from element `start` of `src` on.
    fn load(self, src: &[u8], start: usize, out: &mut [Self::Element]);

    /// Stores `x` to the start of `dst`, whose first byte holds a 4-bit element before `x` if `odd`.
    fn store(self, x: &[Self::Element], dst: &mut [u8], odd: bool);
}

/// Two codes to a byte.
#[derive(Clone, Copy)]
struct Nibbles {
    /// The code of 0, which in NF4 is not 0.
    zero: u8,
}

impl Through for Nibbles {
    type Element = u8;

    fn zero(self) -> u8 {
        self.zero
    }

    fn load(self, src: &[u8], start: usize, out: &mut [u8]) {
        for (i, out) in (start..).zip(out) {
            *out = src[i / 2] >> (i % 2 * 4) & 15;
        }
    }

    fn store(self, x: &[u8], dst: &mut [u8], odd: bool) {
        for (i, &code) in (usize::from(odd)..).zip(x) {
            let byte = &mut dst[i / 2];
            // An even element starts its byte anew; the odd one after it, if any, is stored next.
            *byte = if i % 2 == 0 { code } else { *byte & 15 | code << 4 };
        }
    }
}

/// Codes of whole bytes, as the unsigned integer of their width.
#[derive(Clone, Copy)]
struct Whole<T>(PhantomData<T>);

macro_rules! whole {
    ($($t:ty),*) => {$(
        impl Whole<$t> {
            const CODES: Self = Self(PhantomData);
        }

        impl Through for Whole<$t> {
            type Element = $t;

            fn load(self, src: &[u8], start: usize, out: &mut [$t]) {
                let src = src[start * size_of::<$t>()..].as_chunks().0;
                let src = &src[..out.len()];
                for (out, &bytes) in out.iter_mut().zip(src) {
                    *out = <$t>::from_le_bytes(bytes);
                }
            }

            fn store(self, x: &[$t], dst: &mut [u8], _: bool) {
                for (bytes, &x) in dst.as_chunks_mut().0.iter_mut().zip(x) {
                    *bytes = x.to_le_bytes();
                }
            }
        }
    )*};
}
whole!(u8, u16, u32, u64);

/// Numbers in `R`.
#[derive(Clone, Copy)]
struct Numbers<R> {
    from: DType,
    to: DType,
    overflow: Overflow,
    kind: PhantomData<R>,
}

impl<R: Real> Through for Numbers<R> {
    type Element = R;

    fn lying(self, src: &[u8], start: usize, len: usize) -> Option<&[R]> {
        numbers::lying(self.from, src, start, len)
    }

    fn load(self, src: &[u8], start: usize, out: &mut [R]) {
        numbers::read(self.from, src, start, out);
    }

    fn store(self, x: &[R], dst: &mut [u8], odd: bool) {
        if !odd {
            return numbers::write(self.to, x, dst, 0, self.overflow);
        }
        let Some((&first, rest)) = x.split_first() else { return };
        dst[0] = dst[0] & 15 | numbers::encode(self.to, first.to_f64(), self.overflow) << 4;
        numbers::write(self.to, rest, &mut dst[1..], 0, self.overflow);
    }
}

/// Elements of a tile.
const TILE: usize = 4096;

/// Elements of a piece of a run: cleared rooms of a whole tile took a third of the time of f32 to e4m3.
const RUN: usize = 512;

/// Bytes of such a piece.
const STAGE: usize = RUN * size_of::<u64>();

fn copy<T: Through>(p: &CastProblem, through: T, x: &[u8], y: Output<'_>) {
    let (rows, cols) = (p.rows as usize, p.cols as usize);
    if rows == 0 || cols == 0 {
        return;
    }
    let [from, to] = [p.x.dtype(), p.y.dtype()].map(|dtype| u64::from(dtype.bits()));
    let elements = u64::from(p.batch) * u64::from(p.rows) * u64::from(p.cols);
    // Reading that is most of the time has no lines to spare for streams: f32 to bf16 took 1.2 times as long so, bf16 to f32 0.74.
    let streams = to > from && exceeds_caches(elements * (from + to) / 8);
    let one = One { spec: p.spec(), through, x, y, streams };
    let (down, across) = match p.y.order {
        // A panel belongs to one task: elements of two columns may share a byte.
        Order::Panel { width, .. } => (rows, usize::from(width)),
        _ => one.tile(),
    };
    let (tiles_down, tiles_across) = (rows.div_ceil(down), cols.div_ceil(across));
    let tiles = tiles_down * tiles_across;
    let all = p.batch as usize * tiles;
    let tile = |t: usize| {
        let (batch, t) = (t / tiles, t % tiles);
        let (i, j) = (t / tiles_across * down, t % tiles_across * across);
        let (rows, cols) = (i..(i + down).min(rows), j..(j + across).min(cols));
        // SAFETY: tiles do not share bytes: their edges are even, and so are distances of packed types.
        unsafe {
            match p.y.order {
                Order::Panel { width, depth } => one.panel(batch, cols, width.into(), depth.into()),
                _ => one.copy(batch, rows, cols),
            }
        }
    };
    if !streams {
        return threads::for_each(all, tile);
    }
    threads::for_each(all.div_ceil(TOGETHER), |some| {
        (some * TOGETHER..((some + 1) * TOGETHER).min(all)).for_each(tile);
        settle();
    });
}

/// Tiles whose streams are waited for together.
const TOGETHER: usize = 16;

/// One cast.
struct One<'a, T> {
    spec: &'a CastSpec,
    through: T,
    x: &'a [u8],
    y: Output<'a>,
    /// Whether runs are written past the caches.
    streams: bool,
}

impl<T: Through> One<'_, T> {
    /// Rows and columns of a tile: long runs where both sides have them in the same direction, else a square.
    fn tile(&self) -> (usize, usize) {
        let (rows, cols) = (self.spec.rows as usize, self.spec.cols as usize);
        let along = |len: usize| {
            let len = len.min(TILE);
            (len, TILE / len)
        };
        match (self.spec.x.order, self.spec.y.order) {
            (Order::Row, Order::Row) => {
                let (across, down) = along(cols);
                (down, across)
            }
            (Order::Col, Order::Col) => along(rows),
            _ => (64, 64),
        }
    }

    /// # Safety
    /// No other thread has the same bytes of Y.
    unsafe fn copy(&self, batch: usize, rows: Range<usize>, cols: Range<usize>) {
        // SAFETY: passed on.
        unsafe {
            match (self.spec.x.order, self.spec.y.order) {
                (Order::Row, Order::Row) => rows.for_each(|row| self.straight(batch, (row, cols.start), cols.len())),
                (Order::Col, Order::Col) => cols.for_each(|col| self.straight(batch, (rows.start, col), rows.len())),
                _ => self.turned(batch, rows, cols),
            }
        }
    }

    /// Copies a run that has the same direction on both sides.
    ///
    /// # Safety
    /// As [`Self::copy`].
    unsafe fn straight(&self, batch: usize, (row, col): (usize, usize), len: usize) {
        let [x, y] = [&self.spec.x, &self.spec.y].map(|matrix| place(matrix, batch, row, col, self.spec.rows));
        let mut stage = if self.streams { Some([0; STAGE]) } else { None };
        let mut put = |at: usize, run: &[T::Element]| match &mut stage {
            Some(stage) => {
                for (x, at) in run.chunks(RUN).zip((at..).step_by(RUN)) {
                    // SAFETY: passed on; pieces of a run are stored one after the other.
                    unsafe { self.stream(at, x, stage) };
                }
            }
            // SAFETY: as above.
            None => unsafe { self.store(at, run) },
        };
        if let Some(run) = self.through.lying(self.x, x, len) {
            return put(y, run);
        }
        let mut some = [T::Element::default(); RUN];
        for first in (0..len).step_by(RUN) {
            let some = &mut some[..RUN.min(len - first)];
            self.through.load(self.x, x + first, some);
            put(y + first, some);
        }
    }

    /// Copies what changes its direction.
    ///
    /// # Safety
    /// As [`Self::copy`].
    unsafe fn turned(&self, batch: usize, rows: Range<usize>, cols: Range<usize>) {
        let mut tile = [T::Element::default(); TILE];
        let width = cols.len();
        self.load(batch, rows.clone(), cols.clone(), &mut tile);
        let mut column = [T::Element::default(); TILE];
        match self.spec.y.order {
            Order::Col => {
                for (j, col) in cols.enumerate() {
                    for (r, x) in column[..rows.len()].iter_mut().enumerate() {
                        *x = tile[r * width + j];
                    }
                    // SAFETY: passed on.
                    unsafe {
                        self.store(place(&self.spec.y, batch, rows.start, col, self.spec.rows), &column[..rows.len()])
                    };
                }
            }
            _ => {
                for (row, x) in rows.zip(tile.chunks_exact(width)) {
                    // SAFETY: passed on.
                    unsafe { self.store(place(&self.spec.y, batch, row, cols.start, self.spec.rows), x) };
                }
            }
        }
    }

    /// Writes the panel of columns `cols`, its padding included.
    ///
    /// # Safety
    /// No other thread has the same panel.
    unsafe fn panel(&self, batch: usize, cols: Range<usize>, width: usize, depth: usize) {
        let rows = self.spec.rows as usize;
        // As many columns of a group as fit, or a part of one column.
        let (some_cols, some_rows) = if depth <= TILE { (TILE / depth, depth) } else { (1, TILE) };
        let mut tile = [T::Element::default(); TILE];
        let mut run = [T::Element::default(); TILE];
        let first = place(&self.spec.y, batch, 0, cols.start, self.spec.rows);
        for group in 0..rows.div_ceil(depth) {
            for from in (0..width).step_by(some_cols) {
                let to = (from + some_cols).min(width);
                for top in (0..depth).step_by(some_rows) {
                    let bottom = (top + some_rows).min(depth);
                    let (lines, columns) = (bottom - top, to - from);
                    // The part of this that X has.
                    let clip = |at: usize, end: usize| at.min(end);
                    let row = group * depth;
                    let there_rows = clip(row + top, rows)..clip(row + bottom, rows);
                    let there_cols = clip(cols.start + from, cols.end)..clip(cols.start + to, cols.end);
                    let run = &mut run[..lines * columns];
                    run.fill(self.through.zero());
                    if !there_rows.is_empty() && !there_cols.is_empty() {
                        self.load(batch, there_rows.clone(), there_cols.clone(), &mut tile);
                        for (r, line) in tile.chunks_exact(there_cols.len()).take(there_rows.len()).enumerate() {
                            for (c, &x) in line.iter().enumerate() {
                                run[c * lines + r] = x;
                            }
                        }
                    }
                    // SAFETY: passed on; the pieces of a panel are stored one after the other.
                    unsafe { self.store(first + row * width + from * depth + top, run) };
                }
            }
        }
    }

    /// Loads rows × columns of X to `tile`, row-major.
    fn load(&self, batch: usize, rows: Range<usize>, cols: Range<usize>, tile: &mut [T::Element]) {
        let CastSpec { x: matrix, rows: all, .. } = self.spec;
        let width = cols.len();
        let mut column = [T::Element::default(); TILE];
        match matrix.order {
            Order::Row => {
                for (row, out) in rows.zip(tile.chunks_exact_mut(width)) {
                    self.through.load(self.x, place(matrix, batch, row, cols.start, *all), out);
                }
            }
            Order::Col => {
                for (j, col) in cols.enumerate() {
                    let column = &mut column[..rows.len()];
                    self.through.load(self.x, place(matrix, batch, rows.start, col, *all), column);
                    for (r, &x) in column.iter().enumerate() {
                        tile[r * width + j] = x;
                    }
                }
            }
            Order::Panel { depth, .. } => {
                let depth = usize::from(depth);
                for (j, col) in cols.enumerate() {
                    let mut row = rows.start;
                    while row < rows.end {
                        let end = (row / depth * depth + depth).min(rows.end);
                        let column = &mut column[..end - row];
                        self.through.load(self.x, place(matrix, batch, row, col, *all), column);
                        for (r, &x) in (row - rows.start..).zip(&*column) {
                            tile[r * width + j] = x;
                        }
                        row = end;
                    }
                }
            }
        }
    }

    /// Stores a run to element `start` of Y on.
    ///
    /// # Safety
    /// No other thread has the same bytes of Y.
    unsafe fn store(&self, start: usize, x: &[T::Element]) {
        let (codes, odd) = self.codes(start, x.len());
        // SAFETY: passed on.
        self.through.store(x, unsafe { self.y.part(codes) }, odd);
    }

    /// The same past the caches, for `RUN` elements of whole bytes at most.
    ///
    /// # Safety
    /// As [`Self::store`].
    unsafe fn stream(&self, start: usize, x: &[T::Element], stage: &mut [u8; STAGE]) {
        let (codes, odd) = self.codes(start, x.len());
        let stage = &mut stage[..codes.len()];
        self.through.store(x, stage, odd);
        // SAFETY: passed on.
        memory::stream(stage, unsafe { self.y.part(codes) });
    }

    /// The bytes of `len` elements from element `start` of Y on, and whether the first of them holds another.
    fn codes(&self, start: usize, len: usize) -> (Range<usize>, bool) {
        let dtype = self.spec.y.dtype();
        let per_byte = dtype.per_byte() as usize;
        let odd = start % per_byte;
        let first = dtype.bytes((start - odd) as u64) as usize;
        let bytes = dtype.bytes((len + odd) as u64) as usize;
        (first..first + bytes, odd == 1)
    }
}

/// Where element (`row`, `col`) of matrix `batch` lies.
fn place(matrix: &Matrix, batch: usize, row: usize, col: usize, rows: u32) -> usize {
    batch * matrix.stride as usize + matrix.index(row as u32, col as u32, rows) as usize
}
