//! Few rows of numbers by contiguous columns of codes, in f32: what makes rows ready, which lists loops are given, and what is done
//! with the sums, whichever instructions these are made of.

use super::{
    apart::{AtOnce, are_apart},
    columns::{self, BROAD, Codes, Dots, Reading, Task},
    dots::SHARE,
    far::Far,
    lists::{Columns, LIST, List, Lists},
};
use crate::{
    act::Tail,
    gemm::{
        product::{Item, Product},
        side::{Scaling, varies},
    },
    kernel::Disjoint,
    memory::numbers_mut,
    threads,
};
use kp_hal::op::GemmSpec;

/// Loops for the rows and the codes of a problem.
pub(crate) trait Loops: Send + Sync + 'static {
    /// Elements of a step.
    const STEP: usize;

    /// Numbers of a row that lie together before those of the next row, a part of a step.
    const TOGETHER: usize = Self::STEP;

    /// Rows they are for, of which the last may be zeros, and columns that meet these at once.
    fn shape(&self) -> (usize, usize);

    /// Steps that rows are near for at a time.
    fn near(&self) -> usize;

    /// Most elements that may share an entry of the lists, [`SHARE`] times a power of two.
    fn share(&self) -> usize;

    /// Which element of a step is at place `place` of a row made ready.
    fn element(&self, place: usize) -> usize;

    /// Numbers of work space.
    fn room(&self) -> usize {
        0
    }

    /// Lists the zero points of column `o` as the loops want them. Answers whether [`Lists::beyond`] is to be subtracted.
    fn zeros(&self, lists: &Lists<'_, '_>, o: usize, out: &mut [f32]) -> bool {
        lists.zeros(o, out);
        false
    }

    /// Adds to `sums` the products of rows `a`, step by step, with `columns`; column by column. Of four bits these have scales in
    /// any case.
    ///
    /// # Safety
    /// The processor has the features that `supports` asked for.
    unsafe fn add(&self, a: &[f32], columns: &Columns<'_>, room: &mut [f32], sums: &mut [f32]);
}

/// The most sums of loops, and elements of a step.
pub(crate) const SUMS: usize = 24;
const MOST_STEP: usize = 128;

/// Sums of numbers.
pub(crate) struct Numbers<L> {
    spec: GemmSpec,
    reading: Reading,
    /// Whether scales or zero points are applied within sums.
    varies: bool,
    /// Elements that share an entry of the lists.
    share: usize,
    /// Whether columns that are read at once are far from each other.
    is_apart: bool,
    loops: L,
}

impl<L: Loops> Numbers<L> {
    pub(crate) fn new(spec: &GemmSpec, reading: Reading, loops: L) -> Self {
        const { assert!(L::STEP <= MOST_STEP, "a line has room for a step") };
        let (varies, block) = (varies(&spec.b, spec.k), spec.b.format.block().1 as usize);
        let mut share = loops.share();
        while varies && share > SHARE && !block.is_multiple_of(share) {
            share /= 2;
        }
        // Several rows meet numbers that are made of one column after the other.
        let is_apart = loops.shape().0 == 1 && are_apart(spec, reading);
        Self { spec: *spec, reading, varies, share, is_apart, loops }
    }

    fn steps(&self) -> usize {
        (self.spec.k as usize).div_ceil(L::STEP)
    }

    /// Numbers of a step of all rows.
    fn step(&self) -> usize {
        self.loops.shape().0 * L::STEP
    }
}

impl<E: Tail, L: Loops> Dots<E> for Numbers<L> {
    fn a_bytes(&self) -> usize {
        self.steps() * self.step() * size_of::<f32>()
    }

    fn work_bytes(&self) -> usize {
        (2 * BROAD * LIST + self.loops.room()) * size_of::<f32>()
    }

    fn prepare(&self, product: &Product<'_>, item: Item, a: &mut [u8]) {
        let (step_len, k) = (self.step(), self.spec.k as usize);
        let a = Disjoint::of(&mut numbers_mut::<f32>(a)[..self.steps() * step_len]);
        let elements: [usize; MOST_STEP] =
            std::array::from_fn(|place| if place < L::STEP { self.loops.element(place) } else { 0 });
        threads::for_each(self.steps(), |step| {
            // SAFETY: each step once.
            let out = unsafe { a.part(step * step_len..(step + 1) * step_len) };
            let inner = step * L::STEP..((step + 1) * L::STEP).min(k);
            for row in 0..self.loops.shape().0 {
                let mut line = [0.0; MOST_STEP];
                if row < item.rows {
                    let line = &mut line[..inner.len()];
                    product.a.row(item.row_batch, item.row + row, inner.clone(), Scaling::Applied, line);
                }
                let parts = out.chunks_exact_mut(L::TOGETHER).skip(row).step_by(self.loops.shape().0);
                for (out, elements) in parts.zip(elements.chunks_exact(L::TOGETHER)) {
                    for (out, &element) in out.iter_mut().zip(elements) {
                        // Less in any case, which the compiler need not ask then.
                        *out = line[element % MOST_STEP];
                    }
                }
            }
        });
    }

    fn sums(&self, task: Task<'_, '_>, sums: &mut [E], ld: usize, work: &mut [u8]) {
        let Task { product, item, columns, a } = task;
        let (b, k, step) = (&product.b, self.spec.k as usize, self.step());
        let (rows, breadth) = self.loops.shape();
        let a = &columns::numbers::<f32>(a)[..self.steps() * step];
        let (scales, rest) = columns::take::<f32>(work, BROAD * LIST);
        let (zeros, rest) = columns::take::<f32>(rest, BROAD * LIST);
        let (room, _) = columns::take::<f32>(rest, self.loops.room());
        let (scales, zeros): (&mut [List], &mut [List]) = (scales.as_chunks_mut().0, zeros.as_chunks_mut().0);
        for sums in sums.chunks_mut(ld).take(item.rows) {
            sums[..columns.len()].fill(E::ZERO);
        }
        let is_scaled = self.varies || b.matrix.dtype().bits() == 4;
        if is_scaled && !self.varies {
            scales.as_flattened_mut().fill(1.0);
        }
        let has_zero = b.matrix.format.has_zero();
        for first in (0..self.steps()).step_by(self.loops.near()) {
            let steps = first..(first + self.loops.near()).min(self.steps());
            let inner = steps.start * L::STEP..(steps.end * L::STEP).min(k);
            let a = &a[steps.start * step..steps.end * step];
            let lists = Lists::new(b, item.b, inner.start, self.share);
            let shares = steps.len() * L::STEP / self.share;
            let codes = Codes::of(b, item.b, inner.clone());
            let sets = AtOnce::new(columns.clone(), breadth, self.is_apart);
            for o in sets.firsts() {
                let place = |c: usize| sets.column(o, c);
                let mut some: [&[u8]; BROAD] = [&[]; BROAD];
                let mut is_beyond = [false; BROAD];
                for (c, some) in some[..breadth].iter_mut().enumerate() {
                    *some = codes.column(place(c));
                    if self.varies {
                        lists.scales(place(c), &mut scales[c][..shares]);
                    }
                    if has_zero {
                        is_beyond[c] = self.loops.zeros(&lists, place(c), &mut zeros[c][..shares]);
                    }
                }
                let (ahead, far) = match self.reading {
                    Reading::InOrder => codes.ahead(self.reading, o, breadth, inner.len() == k),
                    _ if self.is_apart => (columns::AHEAD, Far::NONE),
                    // Several rows compute for so long that lines asked for twice cost more than they bring.
                    _ => (columns::ahead(self.reading, breadth, codes.step(), inner.len() == k), Far::NONE),
                };
                let some = Columns {
                    codes: &some[..breadth],
                    share: self.share,
                    scales: if is_scaled { scales } else { &[] },
                    zeros: if has_zero { zeros } else { &[] },
                    ahead,
                    far,
                };
                let mut of_rows = [0.0; SUMS];
                // SAFETY: `supports` asked for the features.
                unsafe { self.loops.add(a, &some, room, &mut of_rows) };
                for c in (0..breadth).filter(|&c| is_beyond[c]) {
                    // Of a single row, as lists say.
                    let sum = |i: usize| {
                        let (step, share) = (i * self.share / L::STEP, i % (L::STEP / self.share));
                        let places = (0..L::STEP).filter(|&place| self.loops.element(place) / self.share == share);
                        places.map(|place| a[step * L::STEP + place]).sum()
                    };
                    of_rows[c] -= lists.beyond(place(c), shares, sum);
                }
                columns::add(sums, ld, sets.places(o), &of_rows, (rows, item.rows));
            }
        }
        columns::scale(b, item, columns, self.varies, &|_| E::ONE, sums, ld);
    }
}
