//! Products in blocks that fit the caches.
//!
//! ```text
//!            n ─▶  panels of NR columns            a chunk: some rows × some panels, all of k, by one thread
//!          ┌──┬──┬──┬──┐
//!        k │  │  │  │  │  B, a run of k at a time packed in L2: where it lies, if it lies in such panels
//!          └──┴──┴──┴──┘
//!     k          n
//!   ┌────┐ ┌──┬──┬──┬──┐
//! m ├────┤ ├──┼──┼──┼──┤  register tiles of ROWS × NR, a run of k added to D, where D holds such numbers and nothing
//!   ├────┤ ├──┼──┼──┼──┤  follows; else to sums in L2, from which what follows makes D
//!   └────┘ └──┴──┴──┴──┘
//! ```
//! Some rows of A stay in L2 while the chunk's panels pass by; each panel, or what it is packed from, is asked for while the
//! one before is in use.
//! A thread computes neighbouring chunks and then helps others, and none waits for another: each packs what it needs for itself, which
//! costs a part in a few hundred of what it does with it. Operands become numbers when they are packed: f32, or f64 if
//! they are f64; A with numbers in its rows is read where it lies, unless many panels meet rows far apart. Each element of D
//! is the sum over blocks of k in order, each block summed in order: neither m, n, the chunk nor the thread changes its bits.

use super::{
    cuts::{Cuts, LONG, largest},
    finish::{Finish, Panels, finish_len},
    product::{Item, Product, Summing, Sums, add},
    side::{LINE, Side},
    tile::{Ahead, ROWS, Tile, Wanted, next_rows},
};
use crate::{
    act::Tail,
    kernel::Disjoint,
    memory::{Number, cut},
    numbers::Real,
    simd::{Work, vector::transpose::Transpose},
    threads::{self, Shares},
};
use std::{any::TypeId, marker::PhantomData, ops::Range};

/// Elements of k that are packed at a time: a whole number of blocks of any sum.
pub(super) const RUN: usize = LINE;

/// Most rows of A that stay in L2, beside two panels of B, while all panels pass by; and the distance between them where
/// they are packed: no multiple of a page, which would leave them few places in L1.
const BLOCK_ROWS: usize = 144;
const PACKED_LD: usize = RUN + 16;

/// From so many panels on, rows of A that are a page apart or more are copied though they are numbers: as neighbours in L2,
/// 1024 of 1024 take 4 % less time on Zen 3. Nearer rows lose what the copy costs, and so do wide panels, which meet them seldom:
/// with AVX-512 1024 and 2048 columns take 2 to 5 % more on Sapphire Rapids, 4096 as long.
const PANELS: usize = 64;
const PAGE: usize = 4096;

/// Scratch of one item: what each thread has for itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    threads: usize,
    /// Numbers: packed A, packed B.
    a: usize,
    b: usize,
    /// What follows: sums, and work space.
    sums: usize,
    work: usize,
    bytes: usize,
}

impl Room {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes * self.threads
    }
}

/// The loops for one instruction set, operands as `R`, what follows as `E`, and panels of `NV` vectors.
pub(crate) struct Blocks<I, R, E, const NV: usize>(PhantomData<(I, R, E)>);

impl<I: Transpose<R>, R: Real + Number, E: Tail, const NV: usize> Blocks<I, R, E, NV> {
    /// Columns of a panel.
    pub(crate) const NR: usize = NV * I::N;

    /// The panels of a product.
    pub(crate) fn panels(spec: &kp_hal::op::GemmSpec) -> Panels {
        Panels::of(spec, Self::NR)
    }

    /// What an item of at most `rows` rows needs when `threads` threads share it.
    pub(crate) fn room(panels: &Panels, rows: usize, k: usize, threads: usize) -> Room {
        const { assert!(ROWS.is_multiple_of(2) && Self::NR.is_multiple_of(2), "4-bit codes of D share bytes") };
        const { assert!(Self::NR <= WIDEST && largest(false).1.is_multiple_of(Self::NR), "a chunk is whole panels") };
        // A chunk is cut to at most this, rounded up to whole register tiles and units.
        let most = |b_lies| {
            let (most_rows, most_columns) = largest(b_lies);
            let columns = (panels.count() * panels.width).min(most_columns.max(panels.unit() * panels.width));
            (rows.next_multiple_of(ROWS).min(most_rows + ROWS), columns)
        };
        let ((low, broad), (high, narrow)) = (most(true), most(false));
        let (a, b) = (high.min(BLOCK_ROWS) * PACKED_LD, narrow * k.min(RUN));
        let (sums, work) = ((low * broad).max(high * narrow), finish_len(broad) + high + broad);
        let bytes = [a * size_of::<R>(), b * size_of::<R>(), sums * size_of::<E>(), work * size_of::<E>()];
        Room { threads, a, b, sums, work, bytes: bytes.iter().map(|bytes| bytes.next_multiple_of(64)).sum() }
    }

    /// Computes an item.
    ///
    /// # Safety
    /// No other thread computes the same rows of D.
    pub(crate) unsafe fn item(
        product: &Product<'_>,
        item: Item,
        summing: Summing,
        room: &Room,
        scratch: &mut [u8],
        stage: Option<Disjoint<'_, E>>,
    ) {
        let panels = Self::panels(product.spec);
        if item.rows == 0 || panels.count() == 0 {
            return;
        }
        let finish = Finish { product, item, summing, panels, stage };
        let whole = Whole::<R, E> {
            a: product
                .a
                .numbers_in_rows(item.row_batch)
                .filter(|(_, ld)| panels.count() < PANELS || ld * size_of::<R>() < PAGE),
            b: product.b.numbers_in_panels(item.b, panels.width).filter(|_| panels.are_those_of_b()),
            d: finish.d_as_sums().map(|(d, ld)| (d.cast(), ld)).filter(|_| TypeId::of::<R>() == TypeId::of::<E>()),
            finish,
        };
        let lies = [whole.a.is_some(), whole.b.is_some()];
        let cuts = Cuts::of(&panels, item.rows, product.spec.k as usize, room.threads, lies);
        let slots = room.threads.min(cuts.chunks());
        let multiply_adds = item.rows as u64 * product.spec.n as u64 * product.spec.k as u64;
        // A thread takes chunks beside each other, so that it knows what to ask for.
        let shares = Shares::new(cuts.chunks(), slots, slots).helping(multiply_adds >= LONG);
        let scratch = Disjoint::of(&mut scratch[..room.bytes()]);
        threads::for_each(slots, |slot| {
            // SAFETY: a slot belongs to one thread.
            let mut rest = unsafe { scratch.part(slot * room.bytes..(slot + 1) * room.bytes) };
            let (a, b) = (cut::<R>(&mut rest, room.a), cut::<R>(&mut rest, room.b));
            let (sums, work) = (cut::<E>(&mut rest, room.sums), cut::<E>(&mut rest, room.work));
            for chunk in shares.of(slot) {
                let part = |chunk| cuts.chunk(chunk, item.rows, panels.unit());
                let next = shares.after(chunk).map(|chunk| part(chunk).1.start);
                let (rows, panels) = part(chunk);
                let chunk = Chunk::<R, E> { whole: &whole, ld: panels.len() * Self::NR, rows, panels, next };
                // SAFETY: a chunk has its own elements of D.
                unsafe { Self::chunk(&chunk, a, b, sums, work) };
            }
        });
    }

    /// Computes a chunk.
    ///
    /// # Safety
    /// No other thread computes the same elements of D.
    unsafe fn chunk(chunk: &Chunk<'_, '_, '_, R, E>, a: &mut [R], b: &mut [R], sums: &mut [E], work: &mut [E]) {
        let Chunk { whole, ref rows, ref panels, ld, next } = *chunk;
        let Finish { product, item, summing, .. } = whole.finish;
        let k = product.spec.k as usize;
        let adds = TypeId::of::<R>() == TypeId::of::<E>() && summing.sums == Sums::Added;
        if !adds {
            sums[..rows.len() * ld].fill(E::ZERO);
        }
        let mut run = 0..k.min(RUN);
        loop {
            let blocks = rows.len().div_ceil(BLOCK_ROWS);
            let tiles = rows.len().div_ceil(ROWS);
            let at = |i: usize| (rows.start + i * tiles / blocks * ROWS).min(rows.end);
            let later = run.end..(run.end + RUN).min(k);
            for i in 0..blocks {
                let (first, some) = (at(i), at(i)..at(i + 1));
                let (from, lda) = match &whole.a {
                    Some((numbers, ld)) => (&numbers[(item.row + first) * ld + run.start..] as &[R], *ld),
                    None => {
                        let outer = item.row + some.start..item.row + some.end;
                        let (side, batch, scaling) = (&product.a, item.row_batch, summing.scaling);
                        let (inner, out) = (run.clone(), &mut *a);
                        I::run(PackRows::<I, R> { side, batch, outer, inner, scaling, out, isa: PhantomData });
                        (&*a, PACKED_LD)
                    }
                };
                let a = from.as_ptr();
                let step = Step { chunk, some, run: run.clone(), a, lda, apart: !adds || blocks > 1 };
                if !adds {
                    if i == 0 {
                        panels.clone().for_each(|p| Self::pack(&step, p, b));
                    }
                    // SAFETY: A and B are as they were just packed, or lie as numbers; the rest is passed on.
                    unsafe { Self::add_numbers(&step, b, sums, work) };
                    continue;
                }
                // A panel is packed just before its first use, and what follows it is asked for meanwhile.
                for p in panels.clone() {
                    if i == 0 {
                        Self::pack(&step, p, b);
                    }
                    let next = match (p + 1 < panels.end, i + 1 < blocks) {
                        (true, _) => Self::wanted(&step, b, p + 1, &run, i == 0),
                        (false, true) => Self::wanted(&step, b, panels.start, &run, false),
                        (false, false) if !later.is_empty() => Self::wanted(&step, b, panels.start, &later, true),
                        (false, false) => next.and_then(|p| Self::wanted(&step, b, p, &(0..k.min(RUN)), true)),
                    };
                    // SAFETY: as above.
                    unsafe { Self::add_tiles(&step, b, p, next, sums) };
                }
            }
            run = later;
            if run.is_empty() {
                break;
            }
        }
        if whole.d.is_none() {
            // SAFETY: passed on.
            unsafe { whole.finish.tile(rows.clone(), panels.clone(), sums, ld, work) };
        }
    }

    /// Packs panel `p` of a run to its place in `b`, unless B lies in panels.
    fn pack(step: &Step<'_, '_, '_, '_, R, E>, p: usize, b: &mut [R]) {
        let Step { chunk: Chunk { whole, .. }, run, .. } = step;
        if whole.b.is_some() {
            return;
        }
        let Finish { product, item, summing, .. } = whole.finish;
        let out = &mut b[step.packed(p) * Self::NR..][..run.len() * Self::NR];
        let (side, batch, outer) = (&product.b, item.b, whole.finish.panels.columns(p));
        let (inner, width, scaling) = (run.clone(), Self::NR, summing.scaling);
        I::run(Pack::<I, R> { side, batch, outer, inner, width, scaling, out, isa: PhantomData });
    }

    /// Panel `p` of the run where it lies, else of the packed ones.
    fn panel(step: &Step<'_, '_, '_, '_, R, E>, packed: &[R], p: usize) -> *const R {
        let Step { chunk, run, .. } = step;
        match chunk.whole.b {
            Some(b) => b[Self::place(chunk, p, run.start)..].as_ptr(),
            None => packed[step.packed(p) * Self::NR..].as_ptr(),
        }
    }

    /// Where row `k` of panel `p` begins in a B that lies in panels.
    fn place(chunk: &Chunk<'_, '_, '_, R, E>, p: usize, k: usize) -> usize {
        let finish = &chunk.whole.finish;
        finish.panels.columns(p).start / Self::NR * finish.product.spec.k as usize * Self::NR + k * Self::NR
    }

    /// What is read for panel `p` of a run: the panel, or if it is to be packed `yet`, what it is made of.
    fn wanted(
        step: &Step<'_, '_, '_, '_, R, E>,
        packed: &[R],
        p: usize,
        run: &Range<usize>,
        yet: bool,
    ) -> Option<Wanted> {
        let chunk = step.chunk;
        let Finish { product, item, panels, .. } = &chunk.whole.finish;
        let bytes = run.len() * Self::NR * size_of::<R>();
        match chunk.whole.b {
            _ if run.is_empty() => None,
            Some(b) => Some(Wanted::row(b.as_ptr().wrapping_add(Self::place(chunk, p, run.start)), bytes)),
            None if yet => product.b.wanted(item.b, &panels.columns(p), run),
            None => Some(Wanted::row(Self::panel(step, packed, p), bytes)),
        }
    }

    /// Adds the products of a run with panel `p` to D or to the sums, which are numbers of the same type.
    ///
    /// # Safety
    /// The step's rows and panels are there; no other thread has the same elements of D.
    unsafe fn add_tiles(
        step: &Step<'_, '_, '_, '_, R, E>,
        packed: &[R],
        p: usize,
        next: Option<Wanted>,
        sums: &mut [E],
    ) {
        let Step { chunk, some, run, a, lda, .. } = step;
        let Chunk { whole, ref rows, ref panels, ld, .. } = **chunk;
        let sums = sums.as_mut_ptr().cast::<R>();
        let (first, b, columns) = (run.start == 0, Self::panel(step, packed, p), whole.finish.panels.columns(p));
        let next = next.map(|next| next.shared(some.len().div_ceil(ROWS), run.len()));
        let (mut row, mut i) = (some.start, 0);
        while row < some.end {
            let height = next_rows(some.end - row);
            let done = row - some.start;
            let ahead = next.as_ref().map_or(Ahead::NONE, |next| next.part(i));
            let (k, a, lda, ldb) = (run.len(), a.wrapping_add(done * lda), *lda, Self::NR);
            let tile = Tile { rows: height, k, a, lda, b, ldb, c: sums, ldc: ld, first, ahead };
            // SAFETY: rows and columns are inside the chunk, whose sums hold whole panels.
            unsafe {
                match whole.d {
                    None => {
                        let at = (row - rows.start) * ld + (p - panels.start) * Self::NR;
                        Tile { c: sums.wrapping_add(at), ..tile }.run::<I, NV>();
                    }
                    Some((d, ldc)) if columns.len() == Self::NR => {
                        let at = row * ldc + columns.start;
                        Tile { c: d.wrapping_add(at), ldc, ..tile }.run::<I, NV>();
                    }
                    Some((d, ldc)) => {
                        let mut edge = [R::ZERO; ROWS * WIDEST];
                        Tile { c: edge.as_mut_ptr(), ldc: Self::NR, first: true, ..tile }.run::<I, NV>();
                        for (r, edge) in edge.chunks_exact(Self::NR).take(height).enumerate() {
                            let at = d.wrapping_add((row + r) * ldc + columns.start);
                            let d = std::slice::from_raw_parts_mut(at, columns.len());
                            for (d, &x) in d.iter_mut().zip(edge) {
                                *d = if first { x } else { *d + x };
                            }
                        }
                    }
                }
            }
            (row, i) = (row + height, i + 1);
        }
    }

    /// Adds the products of a run to the sums as `Summing` says, block by block.
    ///
    /// # Safety
    /// As [`Self::add_tiles`].
    unsafe fn add_numbers(step: &Step<'_, '_, '_, '_, R, E>, packed: &[R], sums: &mut [E], work: &mut [E]) {
        let (run, summing) = (&step.run, step.chunk.whole.finish.summing);
        let mut start = run.start;
        loop {
            let block = start..summing.end(start, run.end);
            start = block.end;
            // SAFETY: passed on.
            unsafe { Self::add_block(step, packed, block, sums, work) };
            if start == run.end {
                return;
            }
        }
    }

    /// # Safety
    /// As [`Self::add_tiles`].
    unsafe fn add_block(
        step: &Step<'_, '_, '_, '_, R, E>,
        packed: &[R],
        block: Range<usize>,
        sums: &mut [E],
        work: &mut [E],
    ) {
        let Step { chunk, some, run, a, lda, .. } = step;
        let Chunk { whole, ref rows, ref panels, ld, .. } = **chunk;
        let Finish { product, item, summing, .. } = whole.finish;
        let from = block.start - run.start;
        let (row_scales, column_scales) = work.split_at_mut(some.len());
        if summing.sums == Sums::Scaled {
            let at = |side: &Side<'_>| block.start / side.matrix.format.block().1 as usize;
            let outer = item.row + some.start..item.row + some.end;
            product.a.scales_of(item.row_batch, outer, at(&product.a), row_scales);
            for (p, out) in panels.clone().zip(column_scales.chunks_exact_mut(Self::NR)) {
                let columns = whole.finish.panels.columns(p);
                let out = &mut out[..columns.len()];
                product.b.scales_of(item.b, columns, at(&product.b), out);
            }
        }
        let mut numbers = [R::ZERO; ROWS * WIDEST];
        let mut row = some.start;
        while row < some.end {
            let height = next_rows(some.end - row);
            let (a, lda) = (a.wrapping_add((row - some.start) * lda + from), *lda);
            for (j, p) in panels.clone().enumerate() {
                let b = Self::panel(step, packed, p).wrapping_add(from * Self::NR);
                let (c, ldc) = (numbers.as_mut_ptr(), Self::NR);
                let (k, ldb, ahead) = (block.len(), Self::NR, Ahead::NONE);
                let tile = Tile { rows: height, k, a, lda, b, ldb, c, ldc, first: true, ahead };
                // SAFETY: passed on; the numbers are this thread's.
                unsafe { tile.run::<I, NV>() };
                I::run(Add::<R, E> {
                    sums: summing.sums,
                    numbers: numbers[..height * Self::NR].chunks_exact(Self::NR),
                    totals: sums[(row - rows.start) * ld + j * Self::NR..].chunks_mut(ld),
                    row_scales: &row_scales[row - some.start..],
                    column_scales: &column_scales[j * Self::NR..][..Self::NR],
                });
            }
            row += height;
        }
    }
}

/// Columns of the widest panel.
const WIDEST: usize = 64;

/// What all chunks of an item share.
struct Whole<'p, 'a, R, E> {
    finish: Finish<'p, 'a, E>,
    /// A where it lies, with the distance between its rows, if it is numbers.
    a: Option<(&'a [R], usize)>,
    /// B where it lies, if it is numbers in panels.
    b: Option<&'a [R]>,
    /// The item's rows of D and the distance between them, if D is the sums.
    d: Option<(*mut R, usize)>,
}

// SAFETY: chunks write disjoint elements of D through the pointer; all else is shared.
unsafe impl<R: Real, E: Real> Sync for Whole<'_, '_, R, E> {}

/// What a thread computes at a time.
struct Chunk<'w, 'p, 'a, R, E> {
    whole: &'w Whole<'p, 'a, R, E>,
    rows: Range<usize>,
    panels: Range<usize>,
    /// Distance between rows of sums.
    ld: usize,
    /// The first panel of the chunk that follows, which the thread most likely computes next.
    next: Option<usize>,
}

/// Some rows of a chunk times a run of k.
struct Step<'c, 'w, 'p, 'a, R, E> {
    chunk: &'c Chunk<'w, 'p, 'a, R, E>,
    some: Range<usize>,
    run: Range<usize>,
    /// The rows' numbers of the run, `lda` apart.
    a: *const R,
    lda: usize,
    /// Whether panels are packed to places of their own, since each is read more than once.
    apart: bool,
}

impl<R, E> Step<'_, '_, '_, '_, R, E> {
    /// How many packed rows of k are before those of panel `p`. One place for all of them stays in L2, where a megabyte
    /// would push out what was asked for.
    fn packed(&self, p: usize) -> usize {
        if self.apart { (p - self.chunk.panels.start) * self.run.len() } else { 0 }
    }
}

/// Packs one panel of a side.
pub(super) struct Pack<'p, 'a, I, R> {
    pub(super) side: &'p Side<'a>,
    pub(super) batch: usize,
    pub(super) outer: Range<usize>,
    pub(super) inner: Range<usize>,
    pub(super) width: usize,
    pub(super) scaling: super::side::Scaling,
    pub(super) out: &'p mut [R],
    pub(super) isa: PhantomData<fn() -> I>,
}

impl<I: Transpose<R>, R: Real> Work for Pack<'_, '_, I, R> {
    #[inline(always)]
    fn run(self) {
        self.side.pack::<I, R>(self.batch, self.outer, self.inner, self.width, self.scaling, self.out);
    }
}

/// Packs some rows of A.
struct PackRows<'p, 'a, I, R> {
    side: &'p Side<'a>,
    batch: usize,
    outer: Range<usize>,
    inner: Range<usize>,
    scaling: super::side::Scaling,
    out: &'p mut [R],
    isa: PhantomData<fn() -> I>,
}

impl<I: Transpose<R>, R: Real> Work for PackRows<'_, '_, I, R> {
    #[inline(always)]
    fn run(self) {
        self.side.pack_rows::<I, R>(self.batch, self.outer, self.inner, PACKED_LD, self.scaling, self.out);
    }
}

/// Adds the sums of a block.
struct Add<'s, R, E> {
    sums: Sums,
    numbers: std::slice::ChunksExact<'s, R>,
    totals: std::slice::ChunksMut<'s, E>,
    row_scales: &'s [E],
    column_scales: &'s [E],
}

impl<R: Real, E: Real> Work for Add<'_, R, E> {
    #[inline(always)]
    fn run(self) {
        let rows = self.numbers.zip(self.totals);
        macro_rules! each {
            ($sums:expr) => {
                for (numbers, totals) in rows {
                    for (total, &x) in totals.iter_mut().zip(numbers) {
                        add($sums, total, x, E::ONE);
                    }
                }
            };
        }
        match self.sums {
            Sums::Added | Sums::Whole => each!(Sums::Added),
            Sums::Half => each!(Sums::Half),
            Sums::Scaled => {
                for ((numbers, totals), &row) in rows.zip(self.row_scales) {
                    for ((total, &x), &column) in totals.iter_mut().zip(numbers).zip(self.column_scales) {
                        add(Sums::Scaled, total, x, row * column);
                    }
                }
            }
        }
    }
}
