//! Products by columns of B that are numbers where they lie: they meet panels of A's rows, since a few of these cost less to pack than B.
//!
//! ```text
//!            m ─▶  panels of rows of A, packed before the loop
//!          ┌──┬──┐
//!        k │  │  │
//!          └──┴──┘
//!     k          m
//!   ┌────┐ ┌──┬──┐
//! n ├────┤ ├──┼──┤  tiles of six columns of B by a panel: turned sums, of which rows of D are made when k is done
//!   ├────┤ ├──┼──┤
//!   └────┘ └──┴──┘
//! ```
//! Columns are read from beginning to end, or as far as what they meet of A stays in L2, and what the next six hold is asked for
//! meanwhile. The sums are those of [`super::blocks`], bit for bit. Limits: sums that are added; at most [`MOST_ROWS`] rows.

use super::{
    blocks::{Pack, RUN},
    cuts::LONG,
    finish::{Finish, Panels, finish_len},
    product::{Item, Product, Summing, Sums},
    side::turn,
    tile::{Ahead, GROUP, ROWS, Tile, next_rows},
};
use crate::{
    act::Tail,
    caps::asks_first_cache,
    kernel::Disjoint,
    memory::{LINE, Number, cut},
    numbers::Real,
    simd::{Work, vector::transpose::Transpose},
    threads::{self, Shares},
};
use kp_hal::op::{GemmSpec, Order, Scheme};
use std::{any::TypeId, marker::PhantomData, ops::Range};

/// Rows of A from which on packing B is worth its while.
const MOST_ROWS: usize = 256;

/// Bytes of A that columns meet again and again, of which tests take several, and of a chunk's sums.
const SPAN_BYTES: usize = if cfg!(test) { 64 << 10 } else { 512 << 10 };
const SUMS_BYTES: usize = 128 << 10;

/// Bytes that packed A takes at most.
const MOST_BYTES: usize = 64 << 20;

/// Most columns of a chunk, and chunks there are at least on several threads.
const MOST_COLUMNS: usize = 1024;
const CHUNKS: usize = 4;

/// Bytes of B from which on it is read so, and for each thread: what comes from memory. What is in L2 is packed as fast; tests read all.
const LEAST_BYTES: usize = if cfg!(test) { 1 } else { 8 << 20 };
const OF_THREAD: usize = if cfg!(test) { 0 } else { 2 << 20 };

/// How a product is cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turned {
    /// Vectors of a panel of A, its rows, and those of all panels.
    vectors: usize,
    width: usize,
    height: usize,
    /// Panels of columns of a chunk, and columns of each.
    chunk: usize,
    columns: usize,
    /// Elements of k that columns are read at a time.
    span: usize,
}

impl Turned {
    /// Of a product in panels of at most `NV` vectors, if that suits it. Not on AMD's processors, where it was not timed.
    pub(crate) fn of<I: Transpose<R>, R: Real, E: Real, const NV: usize>(spec: &GemmSpec) -> Option<Self> {
        let adds = TypeId::of::<R>() == TypeId::of::<E>() && Summing::of(spec).sums == Sums::Added;
        let lies = spec.b.order == Order::Col && spec.b.dtype() == R::DTYPE && spec.b.format.scheme == Scheme::None;
        let (m, k) = (spec.m as usize, spec.k as usize);
        let is_large = spec.n as usize * k * size_of::<R>() >= LEAST_BYTES.max(threads::count() * OF_THREAD);
        let is_timed = cfg!(test) || !asks_first_cache();
        if !adds || !lies || !is_large || !is_timed || !(1..=MOST_ROWS).contains(&m) {
            return None;
        }
        // Rows that are not there take time too.
        let pads_little = |cut: &Self| cut.height == cut.width || cut.height <= m + m / 16;
        let has_room = |cut: &Self| cut.height * k * size_of::<R>() <= MOST_BYTES;
        Some(Self::cut::<I, R, NV>(spec)).filter(|cut| pads_little(cut) && has_room(cut))
    }

    fn cut<I: Transpose<R>, R: Real, const NV: usize>(spec: &GemmSpec) -> Self {
        let (m, k) = (spec.m as usize, spec.k as usize);
        // One narrow panel, if it holds all rows; three take longer than two wide ones.
        let narrow = [1, 2].into_iter().find(|vectors| has_narrow::<I, R, NV>() && m <= vectors * I::N);
        let vectors = narrow.unwrap_or(NV);
        let (height, columns) = (m.next_multiple_of(vectors * I::N), NV * I::N);
        let panels = Panels::of(spec, columns);
        let (unit, panels) = (panels.unit(), panels.count());
        let most = (SUMS_BYTES / (height * size_of::<R>())).min(MOST_COLUMNS) / columns;
        // As many for one thread as for another.
        let threads = threads::count();
        let chunks = panels.div_ceil(most.max(1)).max(CHUNKS).next_multiple_of(threads);
        let chunk = if threads == 1 { most } else { panels.div_ceil(chunks) }.next_multiple_of(unit);
        let span = (SPAN_BYTES / (height * size_of::<R>())).max(RUN) / RUN * RUN;
        Self {
            vectors,
            width: vectors * I::N,
            height,
            chunk: chunk.max(unit),
            columns,
            span: span.min(k.next_multiple_of(RUN)),
        }
    }

    /// Rows of a panel.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// Rows that are computed.
    pub(crate) fn height(&self) -> usize {
        self.height
    }

    /// Numbers of packed A, of sums of a chunk, and elements of what follows them.
    fn lens(&self, k: usize) -> [usize; 3] {
        let ld = self.chunk * self.columns;
        [self.height * k, ld * self.height, ld * self.height + finish_len(ld)]
    }

    /// Bytes of scratch for `threads` threads.
    pub(crate) fn bytes<R, E>(&self, k: usize, threads: usize) -> usize {
        let [a, sums, ends] = self.lens(k);
        cut_bytes::<R>(a) + threads * own_bytes::<R, E>(sums, ends)
    }

    /// Computes an item.
    ///
    /// # Safety
    /// No other thread computes the same rows of D.
    pub(crate) unsafe fn item<I: Transpose<R>, R: Real + Number, E: Tail, const NV: usize>(
        &self,
        product: &Product<'_>,
        item: Item,
        summing: Summing,
        scratch: &mut [u8],
        stage: Option<Disjoint<'_, E>>,
    ) {
        let panels = Panels::of(product.spec, self.columns);
        if item.rows == 0 || panels.count() == 0 {
            return;
        }
        let k = product.spec.k as usize;
        let (b, ld) = product.b.numbers_in_rows::<R>(item.b).expect("operands are aligned to their numbers");
        let ([a_len, sums, ends], mut rest) = (self.lens(k), scratch);
        let a = cut::<R>(&mut rest, a_len);
        self.pack::<I, R>(product, item, summing, a);
        let finish = Finish { product, item, summing, panels, stage };
        let turning = Turning { cut: *self, a: &*a, b, ld, k, finish };
        let chunks = panels.count().div_ceil(self.chunk);
        let slots = threads::count().min(chunks);
        let multiply_adds = item.rows as u64 * u64::from(product.spec.n) * k as u64;
        let shares = Shares::new(chunks, slots, slots).helping(multiply_adds >= LONG);
        let (bytes, own) = (own_bytes::<R, E>(sums, ends), Disjoint::of(rest));
        threads::for_each(slots, |slot| {
            // SAFETY: a slot belongs to one thread.
            let mut rest = unsafe { own.part(slot * bytes..(slot + 1) * bytes) };
            let (sums, ends) = (cut::<R>(&mut rest, sums), cut::<E>(&mut rest, ends));
            for chunk in shares.of(slot) {
                let run = chunk * self.chunk..((chunk + 1) * self.chunk).min(panels.count());
                // SAFETY: a chunk has its own elements of D.
                unsafe {
                    match self.vectors {
                        2 if has_narrow::<I, R, NV>() => turning.chunk::<I, 2>(run, sums, ends),
                        1 if has_narrow::<I, R, NV>() => turning.chunk::<I, 1>(run, sums, ends),
                        _ => turning.chunk::<I, NV>(run, sums, ends),
                    }
                }
            }
        });
    }

    /// Packs the item's rows of A: panels of a run of k, one after the other.
    fn pack<I: Transpose<R>, R: Real>(&self, product: &Product<'_>, item: Item, summing: Summing, a: &mut [R]) {
        let (k, width) = (product.spec.k as usize, self.width);
        let (panels, bytes) = (self.height / width, size_of_val(a));
        let a = Disjoint::of(a);
        threads::for_each_of(k.div_ceil(RUN) * panels, bytes, |t| {
            let (p, inner) = (t % panels, t / panels * RUN..((t / panels + 1) * RUN).min(k));
            let first = inner.start * self.height + p * width * inner.len();
            // SAFETY: each panel of a run once.
            let out = unsafe { a.part(first..first + width * inner.len()) };
            let outer = item.row + (p * width).min(item.rows)..item.row + ((p + 1) * width).min(item.rows);
            let (side, batch, scaling) = (&product.a, item.row_batch, summing.scaling);
            I::run(Pack::<I, R> { side, batch, outer, inner, width, scaling, out, isa: PhantomData });
        });
    }
}

/// Bytes of a thread's own sums and of what follows them.
fn own_bytes<R, E>(sums: usize, ends: usize) -> usize {
    cut_bytes::<R>(sums) + cut_bytes::<E>(ends)
}

/// Bytes that [`cut`] takes for so many numbers.
fn cut_bytes<T>(len: usize) -> usize {
    (len * size_of::<T>()).next_multiple_of(64)
}

/// Whether there are panels of fewer vectors than `NV`: of the widest vectors, whose panels have many rows.
const fn has_narrow<I: Transpose<R>, R: Real, const NV: usize>() -> bool {
    I::N >= 16 && NV > 2
}

/// What chunks share.
struct Turning<'t, 'p, 'a, R, E> {
    cut: Turned,
    /// A as it was packed; B, with the distance between its columns.
    a: &'t [R],
    b: &'t [R],
    ld: usize,
    k: usize,
    finish: Finish<'p, 'a, E>,
}

impl<R: Real + Number, E: Tail> Turning<'_, '_, '_, R, E> {
    /// Computes the columns of panels `run`.
    ///
    /// # Safety
    /// No other thread has the same elements of D.
    unsafe fn chunk<I: Transpose<R>, const NV: usize>(&self, run: Range<usize>, sums: &mut [R], ends: &mut [E]) {
        let Self { cut: Turned { height, columns, span, .. }, ref finish, k, .. } = *self;
        for start in (0..k).step_by(span) {
            let span = start..(start + span).min(k);
            for (j, p) in run.clone().enumerate() {
                let (all, sums) = (finish.panels.columns(p), &mut sums[j * columns * height..][..columns * height]);
                let mut column = all.start;
                while column < all.end {
                    let (high, done) = (next_rows(all.end - column), column - all.start);
                    // Columns of the next panel, or of none, may follow those of this one: what is asked for may be anything.
                    let next = if column + high < all.end || p + 1 == run.end {
                        column + high
                    } else {
                        finish.panels.columns(p + 1).start
                    };
                    // SAFETY: the columns are the panel's, and so many sums are there.
                    unsafe { self.add::<I, NV>(column, high, span.clone(), next, &mut sums[done * height..]) };
                    column += high;
                }
            }
        }
        let (ld, rows) = (run.len() * columns, finish.item.rows);
        let (out, work) = ends.split_at_mut(ld * height);
        for (j, p) in run.clone().enumerate() {
            let (from, count) = (&sums[j * columns * height..], finish.panels.columns(p).len());
            // SAFETY: `Turned::of` asked that these are numbers of one type.
            let out = unsafe { std::slice::from_raw_parts_mut(out.as_mut_ptr().cast::<R>(), out.len()) };
            I::run(Turn::<I, R> { from, height, count, out: &mut out[j * columns..], ld, isa: PhantomData });
        }
        // SAFETY: passed on.
        unsafe { finish.tile(0..rows, run, out, ld, work) };
    }

    /// Adds the products of a span of k to the sums of `high` columns from `column` on, and asks for those of `next` on.
    ///
    /// # Safety
    /// The columns are there, and so many sums.
    unsafe fn add<I: Transpose<R>, const NV: usize>(
        &self,
        column: usize,
        high: usize,
        span: Range<usize>,
        next: usize,
        sums: &mut [R],
    ) {
        let Self { cut: Turned { height, width, .. }, ld, .. } = *self;
        let (b, panels) = (self.b.as_ptr(), height / width);
        assert!(sums.len() >= high * height && self.b.len() >= (column + high - 1) * ld + span.end);
        let bytes = span.len() * size_of::<R>();
        let asks = Asks::of(
            b.wrapping_add(next * ld + span.start).cast(),
            ld * size_of::<R>(),
            bytes,
            span.len().div_ceil(RUN) * panels,
        );
        for (i, start) in span.clone().step_by(RUN).enumerate() {
            let block = start..(start + RUN).min(span.end);
            for p in 0..panels {
                let a = &self.a[block.start * height + p * width * block.len()..][..width * block.len()];
                let tile = Tile {
                    rows: high,
                    k: block.len(),
                    a: b.wrapping_add(column * ld + block.start),
                    lda: ld,
                    b: a.as_ptr(),
                    ldb: width,
                    c: sums[p * width..].as_mut_ptr(),
                    ldc: height,
                    first: block.start == 0,
                    ahead: asks.part(i * panels + p),
                };
                // SAFETY: the assertion above, and a panel of so many lines.
                unsafe { tile.run::<I, NV>() };
            }
        }
    }
}

/// What is asked for while some columns are multiplied: a span of the next six, in pieces of [`PIECE`] bytes of some of them side by side.
struct Asks {
    at: *const u8,
    ld: usize,
    bytes: usize,
    lanes: usize,
}

/// What a tile asks for of each of its lanes: a line before each group of steps.
const PIECE: usize = RUN / GROUP * LINE;

impl Asks {
    /// For so many tiles.
    fn of(at: *const u8, ld: usize, bytes: usize, tiles: usize) -> Self {
        let pieces = ROWS * bytes.div_ceil(PIECE);
        let lanes = [1, 2, 3].into_iter().find(|lanes| lanes * tiles >= pieces).unwrap_or(ROWS);
        Self { at, ld, bytes, lanes }
    }

    fn part(&self, tile: usize) -> Ahead {
        let Self { at, ld, bytes, lanes } = *self;
        let turns = ROWS / lanes;
        let (lane, piece) = (tile % turns * lanes, tile / turns * PIECE);
        if piece < bytes { Ahead::lines(at.wrapping_add(lane * ld + piece), lanes, ld) } else { Ahead::NONE }
    }
}

/// Turns the sums of `count` columns to rows.
struct Turn<'t, I, R> {
    from: &'t [R],
    height: usize,
    count: usize,
    out: &'t mut [R],
    ld: usize,
    isa: PhantomData<fn() -> I>,
}

impl<I: Transpose<R>, R: Real> Work for Turn<'_, I, R> {
    #[inline(always)]
    fn run(self) {
        turn::<I, R>((self.from, self.height), (self.count, self.height), (self.out, self.ld));
    }
}

#[cfg(test)]
mod tests {
    use crate::gemm::tests::check;

    /// That the sums are those of other loops, bit for bit, is [`super::super::tests`]'s to see.
    #[test]
    fn columns_meet_rows_of_every_type_and_number() {
        for types in ["f32:f32:f32", "bf16:f32:f32", "i8@row:f32:bf16", "i4@g32/f16:f32:f32", "f64:f64:f64 acc=f64"] {
            for m in [1, 16, 18, 61, 128] {
                check(&format!("gemm 2x{m}x70x1030 {types} b=col"), (1.0, 1.0));
            }
        }
        check("gemm 1x33x600x40 f32:f32:f32 b=col/56", (1.0, 1.0));
        check("gemm 3x20x129x70 f32:f32:f32 a=col b=col", (1.0, 1.0));
    }

    #[test]
    fn what_follows_the_sums_finds_their_rows() {
        for options in [
            "f32:f32:f32 c=d d=col/40",
            "f32:f32:f32 act=silu gate=halves bias=f32",
            "f32:f32:f32 act=silu gate=pairs bias=f32 c=f32",
            "f32:f32:f16 act=relu gate=halves residual=f16 d=col",
            "f32:f32:e4m3@1x128",
            "f32:f32:i4@g32/f32 d=col",
        ] {
            for (m, n) in [(3, 70), (37, 300)] {
                check(&format!("gemm 2x{m}x{n}x300 {options} b=col"), (0.5, -2.0));
            }
        }
    }
}
