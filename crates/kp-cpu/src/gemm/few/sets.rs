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
    avx2_lanes,
    columns::{self, Codes, Dots, Task},
    dots::{BROAD_SHARE, STEP, ends},
    lanes::{self, EIGHT, Each, LANES, Later, SET, SQUARE, VECTORS},
    lists::Lists,
};
use crate::{
    act::Tail,
    caps::asks_first_cache,
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

    /// `rows` in as few groups of at most `most` as there can be, all of one height.
    pub(crate) fn even(rows: usize, most: usize) -> Self {
        let rows = rows.max(1);
        let groups = rows.div_ceil(most);
        Self { height: rows.div_ceil(groups), groups }
    }

    pub(crate) fn all(self) -> usize {
        self.height * self.groups
    }
}

/// Bytes of A that meet all columns of a task before the rest does: half of L2.
const NEAR: usize = 512 << 10;

/// Steps that are turned at once, whose lists are whole squares too.
const UNIT: usize = LANES * BROAD_SHARE / STEP;

/// Vectors of opened codes, those of half the first cache.
const OPENED: usize = UNIT * LANES * 2;

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
    /// Whether the processor has [`columns::FEATURES`]; else it has AVX2.
    const WIDE: bool = true;

    /// What a thread holds while it multiplies.
    type Held;

    /// How they are grouped.
    fn rows(&self) -> Rows;

    /// Holds it.
    fn hold(&self) -> Self::Held;

    /// Bytes of A made ready.
    fn bytes(&self) -> usize;

    /// Makes the rows of `item` ready.
    fn prepare(&self, product: &Product<'_>, item: Item, a: &mut [u8]);

    /// Vectors that eight codes of columns are opened to before rows meet them; 0 if they meet them as they were turned.
    fn opened(&self) -> usize {
        0
    }

    /// Opens turned columns; asks for `later` meanwhile.
    ///
    /// # Safety
    /// As [`Self::multiply`].
    unsafe fn open(&self, _columns: Turned<'_>, _later: Later<'_, '_>, _out: &mut [Each<u32>]) {
        unreachable!("nothing is opened");
    }

    /// Adds the products of a group and of steps, the `part`, with turned columns, opened if they are to be, to `sums`; asks for
    /// `later` meanwhile.
    ///
    /// # Safety
    /// The processor has the features that `supports` asked for.
    unsafe fn multiply(
        &self,
        a: &[u8],
        part: (usize, Range<usize>),
        columns: Turned<'_>,
        later: Option<Later<'_, '_>>,
        sums: &mut [Each<f32>],
        held: &Self::Held,
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

    /// Steps that rows meet at once, and vectors that these are opened to.
    fn at_once(&self) -> (usize, usize) {
        match self.meet.opened() {
            0 => (UNIT, 0),
            opened => (OPENED / (LANES * opened), OPENED),
        }
    }

    /// Entries of a column's list.
    fn list(&self) -> usize {
        self.near() * STEP / self.share
    }
}

impl<E: Tail, M: Meet> Dots<E> for Sets<M> {
    fn a_bytes(&self) -> usize {
        self.meet.bytes()
    }

    fn work_bytes(&self) -> usize {
        let (list, sums) = (self.list(), self.meet.rows().all() * SET);
        // The lists of a set before they are turned, and after that of both scales and shifts; sums; opened codes.
        (3 * list * SET + sums + self.at_once().1 * SET) * size_of::<f32>()
    }

    fn prepare(&self, product: &Product<'_>, item: Item, a: &mut [u8]) {
        self.meet.prepare(product, item, a);
    }

    fn sums(&self, task: Task<'_, '_>, sums: &mut [E], ld: usize, work: &mut [u8]) {
        let Task { product, item, columns, a } = task;
        let (b, k, all_steps) = (&product.b, self.spec.k as usize, self.steps());
        let Rows { height, groups } = self.meet.rows();
        let (list, (at_once, opened)) = (self.list(), self.at_once());
        let (rows, rest) = columns::take::<f32>(work, list * SET);
        let (scales, rest) = columns::take::<f32>(rest, list * SET);
        let (shifts, rest) = columns::take::<u32>(rest, list * SET);
        let (totals, rest) = columns::take::<f32>(rest, groups * height * SET);
        let (opened, _) = columns::take::<u32>(rest, opened * SET);
        let (scales, totals) = (each_mut(scales), each_mut(totals));
        let (shifts, opened) = (each_mut(shifts), each_mut(opened));
        let has_zero = b.matrix.format.has_zero();
        if !self.varies {
            scales.as_flattened_mut().as_flattened_mut().fill(1.0);
        }
        for sums in sums.chunks_mut(ld).take(item.rows) {
            sums[..columns.len()].fill(E::ZERO);
        }
        let mut turned = [[[[0_u32; LANES]; VECTORS]; LANES]; UNIT];
        let held = self.meet.hold();
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
                        turn_lists::<M, _, _>(|c, out| lists.scales(place(c), out), rows, scales);
                    }
                    if has_zero {
                        // Bytes take less room.
                        let rows = &mut columns::bytes_mut(rows)[..list.next_multiple_of(SQUARE) * SET];
                        let shifts_of = if M::WIDE { Lists::shifts } else { Lists::shifts_anywhere };
                        turn_lists::<M, _, _>(|c, out| is_beyond[c] = shifts_of(&lists, place(c), out), rows, shifts);
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
                                turn::<M, _>(&lines, s * SQUARE, turned);
                            } else {
                                let last = ends(lines, s * SQUARE);
                                turn::<M, _>(&last.each_ref().map(|end| &end[..SQUARE]), 0, turned);
                            }
                        }
                    }
                    for part in some.clone().step_by(at_once) {
                        let part = part..(part + at_once).min(some.end);
                        let shares = part.start * STEP / self.share..part.end * STEP / self.share;
                        let mut turned = Turned {
                            codes: turned[part.start - some.start..part.end - some.start].as_flattened(),
                            shared: self.share / EIGHT,
                            scales: &scales[shares.clone()],
                            shifts: if has_zero { &shifts[shares.start / 4..] } else { &[] },
                        };
                        let ahead = SET * codes.step() + part.start * SQUARE;
                        let mut later = Some(Later { lines: &lines, ahead, by_second: !asks_first_cache() });
                        if !opened.is_empty() {
                            let opened = &mut opened[..turned.codes.len() * self.meet.opened()];
                            // SAFETY: as above.
                            unsafe { self.meet.open(turned, later.take().expect("it was just made"), opened) };
                            turned = Turned { codes: opened, shared: turned.shared * self.meet.opened(), ..turned };
                        }
                        let steps = steps.start + part.start..steps.start + part.end;
                        for (group, totals) in totals.chunks_exact_mut(height).enumerate() {
                            // SAFETY: as above.
                            unsafe {
                                self.meet.multiply(a, (group, steps.clone()), turned, later.take(), totals, &held)
                            };
                        }
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
        columns::scale(b, item, columns, self.varies, &|r| self.meet.factor(product, item, r), sums, ld);
    }
}

/// Numbers as those of sets of columns.
fn each_mut<T>(numbers: &mut [T]) -> &mut [Each<T>] {
    numbers.as_chunks_mut().0.as_chunks_mut().0
}

/// Makes the lists of a set's columns in `rows`, and turns them to `out`, four bytes to a lane.
///
/// # Safety
/// As [`turn`].
unsafe fn turn_lists<M: Meet, T: Number, U: Number>(
    mut list: impl FnMut(usize, &mut [T]),
    rows: &mut [T],
    out: &mut [Each<U>],
) {
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
        unsafe { turn::<M, _>(&lines, i * SQUARE, out) };
    }
}

/// [`lanes::turn`].
///
/// # Safety
/// The processor has what `M` says.
unsafe fn turn<M: Meet, T: Number>(lines: &[&[u8]; SET], at: usize, out: &mut [Each<T>; LANES]) {
    // SAFETY: the caller's promise.
    unsafe { if M::WIDE { lanes::turn(lines, at, out) } else { avx2_lanes::turn(lines, at, out) } }
}
