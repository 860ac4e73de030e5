//! Products of several rows with columns of four bits, sets of 32 columns at a time: what is alike whether rows are numbers or
//! bytes.
//!
//! ```text
//!                n ─▶ sets of 32 columns, each thread a run of them
//!            ┌────┬────┬────┐
//!          k │    │    │    │  a step of k at a time turned, so that lanes are columns, in L1
//!            └────┴────┴────┘
//!   A  ┌─────┐
//!    m ├─────┤  eight rows side by side for each k, a block of k in L2
//!      └─────┘
//! ```

use super::{
    columns::{self, Codes, Dots, Task},
    dots::{BROAD_SHARE, STEP, ends},
    lanes::{EIGHT, Each, LANES, Later, SET, SQUARE, VECTORS, turn},
    lists::Lists,
};
use crate::{
    act::Tail,
    gemm::product::{Item, Product},
    memory::Number,
    numbers::Real,
};
use kp_hal::op::GemmSpec;
use std::ops::Range;

/// Rows in groups of one height, the last filled up with zeros.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) height: usize,
    pub(crate) groups: usize,
}

impl Rows {
    /// `rows` in groups of at most `most`, which is 4 or 8.
    pub(crate) fn of(rows: usize, most: usize) -> Self {
        let height = rows.next_power_of_two().clamp(2, most);
        Self { height, groups: rows.div_ceil(height) }
    }

    pub(crate) fn all(self) -> usize {
        self.height * self.groups
    }
}

/// Bytes of A that meet all columns of a task before the rest does: half of L2.
const NEAR: usize = 512 << 10;

/// Steps that are turned at once, whose lists are whole squares too.
const UNIT: usize = LANES * BROAD_SHARE / STEP;

/// Turned columns, how many vectors of them share an entry of the lists, and these: scales, and shifts if there are any.
#[derive(Clone, Copy)]
pub(crate) struct Turned<'t> {
    pub(crate) codes: &'t [Each<u32>],
    pub(crate) shared: usize,
    pub(crate) scales: &'t [Each<f32>],
    pub(crate) shifts: &'t [Each<u32>],
}

/// Rows of A, made ready, that meet turned columns.
pub(crate) trait Meet: Send + Sync + 'static {
    /// How they are grouped.
    fn rows(&self) -> Rows;

    /// Bytes of A made ready.
    fn bytes(&self) -> usize;

    /// Makes the rows of `item` ready.
    fn prepare(&self, product: &Product<'_>, item: Item, a: &mut [u8]);

    /// Adds the products of group `group` and steps `steps` with turned columns to `sums`; asks for `later` meanwhile.
    ///
    /// # Safety
    /// The processor has the features that `supports` asked for.
    unsafe fn multiply(
        &self,
        a: &[u8],
        group: usize,
        steps: Range<usize>,
        columns: Turned<'_>,
        later: Option<Later<'_, '_>>,
        sums: &mut [Each<f32>],
    );

    /// The sum of row `row` over share `share`.
    fn sum(&self, a: &[u8], row: usize, share: usize) -> f32;

    /// What sums of row `row` of the item are worth.
    fn factor<E: Real>(&self, product: &Product<'_>, item: Item, row: usize) -> E;
}

/// Sums of sets of columns.
pub(crate) struct Sets<M> {
    spec: GemmSpec,
    meet: M,
    /// Whether scales of columns change along k.
    varies: bool,
    /// Elements that share an entry of the lists.
    share: usize,
}

impl<M: Meet> Sets<M> {
    pub(crate) fn new(spec: &GemmSpec, varies: bool, share: usize, meet: M) -> Self {
        Self { spec: *spec, meet, varies, share }
    }

    fn steps(&self) -> usize {
        (self.spec.k as usize).div_ceil(STEP)
    }

    /// Steps of a block of k.
    fn near(&self) -> usize {
        let most = NEAR * self.steps() / self.meet.bytes().max(1);
        most.min(self.steps()).next_multiple_of(UNIT).max(UNIT)
    }

    /// Entries of a column's list.
    fn list(&self) -> usize {
        self.near() * STEP / self.share
    }
}

impl<M: Meet> Dots for Sets<M> {
    fn a_bytes(&self) -> usize {
        self.meet.bytes()
    }

    fn work_bytes(&self) -> usize {
        let (list, sums) = (self.list(), self.meet.rows().all() * SET);
        // The lists of a set before they are turned, and after that of both scales and shifts; sums.
        (3 * list * SET + sums) * size_of::<f32>()
    }

    fn prepare(&self, product: &Product<'_>, item: Item, a: &mut [u8]) {
        self.meet.prepare(product, item, a);
    }

    fn sums<E: Tail>(&self, task: Task<'_, '_>, sums: &mut [E], ld: usize, work: &mut [u8]) {
        let Task { product, item, columns, a } = task;
        let (b, k, all_steps) = (&product.b, self.spec.k as usize, self.steps());
        let Rows { height, groups } = self.meet.rows();
        let list = self.list();
        let (rows, rest) = columns::take::<f32>(work, list * SET);
        let (scales, rest) = columns::take::<f32>(rest, list * SET);
        let (shifts, rest) = columns::take::<u32>(rest, list * SET);
        let (totals, _) = columns::take::<f32>(rest, groups * height * SET);
        let (scales, totals) = (each_mut(scales), each_mut(totals));
        let shifts: &mut [Each<u32>] = shifts.as_chunks_mut().0.as_chunks_mut().0;
        let has_zero = b.matrix.format.has_zero();
        if !self.varies {
            scales.as_flattened_mut().as_flattened_mut().fill(1.0);
        }
        for sums in sums.chunks_mut(ld).take(item.rows) {
            sums[..columns.len()].fill(E::ZERO);
        }
        let mut turned = [[[[0_u32; LANES]; VECTORS]; LANES]; UNIT];
        for first in (0..all_steps).step_by(self.near()) {
            let steps = first..(first + self.near()).min(all_steps);
            let inner = steps.start * STEP..(steps.end * STEP).min(k);
            let lists = Lists::new(b, item.b, inner.start, self.share);
            let codes = Codes::of(b, item.b, inner.clone());
            for o in columns.clone().step_by(SET) {
                // Past the last column, that one again.
                let place = |c: usize| (o + c).min(columns.end - 1);
                let mut is_beyond = [false; SET];
                // SAFETY: `supports` asked for the features.
                unsafe {
                    if self.varies {
                        turn_lists(|c, out| lists.scales(place(c), out), rows, scales);
                    }
                    if has_zero {
                        // Bytes take less room.
                        let rows = &mut columns::bytes_mut(rows)[..list.next_multiple_of(SQUARE) * SET];
                        turn_lists(|c, out| is_beyond[c] = lists.shifts(place(c), out), rows, shifts);
                    }
                }
                let mut lines: [&[u8]; SET] = [&[]; SET];
                for (c, line) in lines.iter_mut().enumerate() {
                    *line = codes.column(place(c));
                }
                totals.as_flattened_mut().as_flattened_mut().fill(0.0);
                for some in (0..steps.len()).step_by(UNIT) {
                    let some = some..(some + UNIT).min(steps.len());
                    for (s, turned) in some.clone().zip(&mut turned) {
                        // SAFETY: as above.
                        unsafe {
                            if (s + 1) * SQUARE <= lines[0].len() {
                                turn(&lines, s * SQUARE, turned);
                            } else {
                                let last = ends(lines, s * SQUARE);
                                turn(&last.each_ref().map(|end| &end[..SQUARE]), 0, turned);
                            }
                        }
                    }
                    let shares = some.start * STEP / self.share..some.end * STEP / self.share;
                    let turned = Turned {
                        codes: turned[..some.len()].as_flattened(),
                        shared: self.share / EIGHT,
                        scales: &scales[shares.clone()],
                        shifts: if has_zero { &shifts[shares.start / 4..] } else { &[] },
                    };
                    let later = (&lines, SET * codes.step() + some.start * SQUARE);
                    for (group, totals) in totals.chunks_exact_mut(height).enumerate() {
                        let some = steps.start + some.start..steps.start + some.end;
                        let later = (group == 0).then_some(later);
                        // SAFETY: as above.
                        unsafe { self.meet.multiply(a, group, some, turned, later, totals) };
                    }
                }
                for c in (0..SET).filter(|&c| is_beyond[c]) {
                    for (row, totals) in totals.iter_mut().enumerate() {
                        let (entries, first) = (steps.len() * STEP / self.share, steps.start * STEP / self.share);
                        let beyond = lists.beyond(place(c), entries, |i| self.meet.sum(a, row, first + i));
                        totals.as_flattened_mut()[c] -= beyond;
                    }
                }
                let places = o - columns.start..(o + SET).min(columns.end) - columns.start;
                for (sums, totals) in sums.chunks_mut(ld).take(item.rows).zip(&*totals) {
                    for (sum, &more) in sums[places.clone()].iter_mut().zip(totals.as_flattened()) {
                        *sum += E::from_f32(more);
                    }
                }
            }
        }
        columns::scale(b, item, columns, self.varies, |r| self.meet.factor(product, item, r), sums, ld);
    }
}

/// Numbers as those of sets of columns.
fn each_mut(numbers: &mut [f32]) -> &mut [Each<f32>] {
    numbers.as_chunks_mut().0.as_chunks_mut().0
}

/// Makes the lists of a set's columns in `rows`, and turns them to `out`, four bytes to a lane.
///
/// # Safety
/// The processor has [`columns::FEATURES`].
unsafe fn turn_lists<T: Number, U: Number>(mut list: impl FnMut(usize, &mut [T]), rows: &mut [T], out: &mut [Each<U>]) {
    let len = rows.len() / SET;
    for (c, row) in rows.chunks_exact_mut(len).enumerate() {
        list(c, row);
    }
    let bytes = len * size_of::<T>();
    let mut lines: [&[u8]; SET] = [&[]; SET];
    for (line, row) in lines.iter_mut().zip(columns::bytes_mut(rows).chunks_exact(bytes)) {
        *line = row;
    }
    for (i, out) in out.as_chunks_mut().0.iter_mut().enumerate().take(bytes / SQUARE) {
        // SAFETY: the caller's promise.
        unsafe { turn(&lines, i * SQUARE, out) };
    }
}
