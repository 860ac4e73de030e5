//! The rows of K and V of some keys, four at a time: in which order, and how they meet the rows of a query.

#[cfg(target_arch = "x86_64")]
use super::paired::{Bf16Pairs, E4m3Pairs, E5m2Pairs, Paired};
use super::{
    places::Source,
    product::LANES,
    sight::Tile,
    soon::{LINE, prefetch},
    widened::{Bf16s, E4m3s, E5m2s, F16s, F32s, Widened},
};
use crate::{memory::numbers_mut, numbers};
use kp_hal::DType;
use std::ops::Range;

/// Keys whose scores are in cache at one time: sixteen pages of sixteen rows of 256 bytes.
pub(super) const CHUNK: usize = 256;

/// Numbers from a row's scores to the next one's: of many rows the same keys' are not in one set of the cache.
pub(super) const LD: usize = CHUNK + LANES;

/// Rows that meet those of a query together.
pub(super) const FOUR: usize = 4;

/// And in pairs, so that sums are loaded and stored half as often; 16 rows of 8 heads leave too little of the first cache.
pub(super) const EIGHT: usize = 8;

/// Rows of the query that meet them in registers.
const TOGETHER: usize = 4;

/// Bytes of a page, within which a processor fetches ahead.
pub(super) const PAGE: usize = 4096;

/// How far ahead memory is asked for, in bytes: 8 to 32 kilobytes are alike on Zen 5, one is too little.
const AHEAD: usize = 8 << 10;

/// The same in rows, at most.
const AHEAD_ROWS: usize = 128;

/// In which order the rows of a chunk are read.
#[derive(Clone, Copy)]
pub(super) struct Order {
    keys: usize,
    /// Keys of a step: some in turn; or sixteen, as far apart as they can be.
    wide: usize,
    apart: usize,
}

impl Order {
    pub(super) fn in_turn(keys: usize, wide: usize) -> Self {
        Self { keys, wide, apart: 1 }
    }

    /// Rows of a page or more are of sixteen pages as they come.
    pub(super) fn of_pages(keys: usize, row_bytes: usize) -> Self {
        Self { keys, wide: LANES, apart: if row_bytes < PAGE { keys.div_ceil(LANES) } else { 1 } }
    }

    fn steps(&self) -> usize {
        if self.apart == 1 { self.keys.div_ceil(self.wide) } else { self.apart }
    }

    /// The places of a step's keys.
    fn places(&self, step: usize) -> Range<usize> {
        step * self.wide..(step + 1) * self.wide
    }

    /// The places of all steps, and with those up to whole vectors.
    fn end(&self) -> usize {
        self.steps() * self.wide
    }

    pub(super) fn all(&self) -> usize {
        self.end().next_multiple_of(LANES)
    }

    /// Which of the chunk's keys has a place, unless it is past the last one.
    #[inline(always)]
    pub(super) fn key(&self, place: usize) -> usize {
        if self.apart == 1 { place } else { place % self.wide * self.apart + place / self.wide }
    }

    /// The place of a key.
    #[inline(always)]
    fn place(&self, key: usize) -> usize {
        if self.apart == 1 { key } else { key % self.apart * self.wide + key / self.apart }
    }

    /// How many of the places from `place` to the end of its step have keys: the first ones.
    #[inline(always)]
    pub(super) fn count(&self, place: usize) -> usize {
        if self.apart == 1 {
            self.keys.saturating_sub(place)
        } else {
            let (step, lane) = (place / self.wide, place % self.wide);
            self.keys.saturating_sub(step).div_ceil(self.apart).saturating_sub(lane)
        }
    }
}

/// Some keys of a sequence, at most [`CHUNK`], in heads of K and V that are read together.
pub(super) struct Chunk<'c, 'a> {
    tile: &'c Tile<'c>,
    keys: Range<usize>,
    k: &'c Source<'a>,
    v: &'c Source<'a>,
    first_head: usize,
    heads: usize,
    /// Rows of the query for each of them.
    group: usize,
    order: Order,
    /// Where the first head's rows begin, in the order in which they are read: those of K, of V, and the next few of K. Each
    /// is followed by those of the other heads.
    rows: [*const u8; 2 * CHUNK + AHEAD_ROWS],
    /// Where those of V begin.
    values: usize,
    /// Bytes from head to head, and of a row.
    k_bytes: [usize; 2],
    v_bytes: [usize; 2],
    /// Rows between one that is read and one that is asked for.
    ahead: Option<usize>,
    /// A row of V of zeros.
    zeros: &'c [u8],
}

/// How rows of K or V of a type, `N` of them at a time, a multiple of [`FOUR`], meet those of a query.
pub(super) trait Meets {
    /// Some numbers of a row, as they are stored.
    type Unit;

    /// Whether as much of what comes soon is asked for as is read, a little at a time. Of numbers of 16 bits that reads a
    /// fifth faster on Zen 5 than all of it before, of f32 a tenth slower.
    const ASKS: bool;

    /// The whole units of some bytes.
    fn cut(row: &[u8]) -> &[Self::Unit];

    /// Products of rows of Q, one after the other, with rows of K: to the front of `s` and each multiple of [`LD`].
    fn dots<const ROWS: usize, const N: usize>(q: &[f32], k: &[&[Self::Unit]; N], s: &mut [f32], soon: &mut Ahead<'_>);

    /// Adds rows of V times their weights, from `place` on of each row of weights, to rows of sums.
    fn add<const ROWS: usize, const N: usize>(
        s: &[f32],
        place: usize,
        v: &[&[Self::Unit]; N],
        acc: &mut [f32],
        soon: &mut Ahead<'_>,
    );
}

/// Runs `$body` with how rows of a source meet those of Q, as numbers, and whether rows are whole units; where they are not,
/// they are read as numbers first.
macro_rules! as_numbers {
    ($source:expr, $Rows:ident $LIE:ident => $body:expr) => {{
        macro_rules! of {
            ($codes:ident, $lie:literal) => {{
                type $Rows = Widened<$codes>;
                const $LIE: bool = $lie;
                $body
            }};
        }
        match $source.rows.dtype {
            _ if !$source.rows.dim.is_multiple_of(LANES) => of!(F32s, false),
            DType::F32 => of!(F32s, true),
            DType::Bf16 => of!(Bf16s, true),
            DType::F16 => of!(F16s, true),
            DType::E4m3 => of!(E4m3s, true),
            DType::E5m2 => of!(E5m2s, true),
            _ => of!(F32s, false),
        }
    }};
}

/// The same in pairs of bf16, of the types that there are for.
macro_rules! as_pairs {
    ($source:expr, $Rows:ident => $body:expr) => {{
        #[cfg(target_arch = "x86_64")]
        macro_rules! of {
            ($codes:ident) => {{
                type $Rows = Paired<$codes>;
                $body
            }};
        }
        #[cfg(target_arch = "x86_64")]
        match $source.rows.dtype {
            DType::Bf16 => of!(Bf16Pairs),
            DType::E4m3 => of!(E4m3Pairs),
            DType::E5m2 => of!(E5m2Pairs),
            dtype => unreachable!("{dtype} is not planned in pairs"),
        }
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("planned for AVX-512, not {:?}", $source.rows.dtype)
    }};
}

impl<'c, 'a> Chunk<'c, 'a> {
    #[inline(always)]
    pub(super) fn new(
        tile: &'c Tile<'c>,
        keys: Range<usize>,
        [k, v]: [&'c Source<'a>; 2],
        (first_head, heads, group): (usize, usize, usize),
        order: Order,
        zeros: &'c [u8],
    ) -> Self {
        let ahead =
            AHEAD.div_ceil((heads * k.bits(k.rows.dim) / 8).max(1)).next_multiple_of(order.wide).min(AHEAD_ROWS);
        let (values, next) = (order.end(), keys.end..tile.end.min(keys.end + ahead));
        // What has no key stands for one that is read anyway.
        let any = [k, v].map(|source| source.of_heads(tile.sequence.key(keys.start), first_head, heads).as_ptr());
        let mut rows = [any[0]; 2 * CHUNK + AHEAD_ROWS];
        rows[values..2 * values].fill(any[1]);
        let in_turn = Order::in_turn(next.len(), order.wide);
        for (source, keys, order, begin) in
            [(k, keys.clone(), &order, 0), (v, keys.clone(), &order, values), (k, next, &in_turn, 2 * values)]
        {
            for (at, token, many) in tile.sequence.stretches(keys) {
                for i in 0..many {
                    rows[begin + order.place(at + i)] =
                        source.of_heads((token.0, token.1 + i), first_head, heads).as_ptr();
                }
            }
        }
        let ahead = (order.apart == 1).then_some(ahead);
        let [k_bytes, v_bytes] = [k, v].map(|source| [source.rows.head, source.rows.dim].map(|n| source.bits(n) / 8));
        Self { tile, keys, k, v, first_head, heads, group, order, rows, values, k_bytes, v_bytes, ahead, zeros }
    }

    /// Products of rows of Q with those of K times a factor, a chunk's places for each; `PAIRS`: Q is as [`arrange`] leaves it.
    #[inline(always)]
    pub(super) fn scores<const PAIRS: bool>(&self, q: &[f32], factor: f32, room: &mut [u8], s: &mut [f32]) {
        if PAIRS {
            as_pairs!(self.k, Rows => self.scores_by::<Rows, true, EIGHT>(q, room, s));
        } else {
            as_numbers!(self.k, Rows LIE => self.scores_by::<Rows, LIE, FOUR>(q, room, s));
        }
        self.scale(self.k, factor, s);
    }

    /// Adds rows of V, times what `s` has at their places, to sums; `PAIRS`: those are as [`settle`] takes them.
    #[inline(always)]
    pub(super) fn add_values<const PAIRS: bool>(&self, s: &mut [f32], room: &mut [u8], acc: &mut [f32]) {
        self.scale(self.v, 1.0, s);
        if PAIRS {
            as_pairs!(self.v, Rows => {
                for s in s.as_chunks_mut::<LD>().0 {
                    Rows::pack(s);
                }
                self.add_values_by::<Rows, true, EIGHT>(s, room, acc);
            });
        } else {
            as_numbers!(self.v, Rows LIE => self.add_values_by::<Rows, LIE, FOUR>(s, room, acc));
        }
    }

    #[inline(always)]
    fn scores_by<M: Meets, const LIE: bool, const N: usize>(&self, q: &[f32], room: &mut [u8], s: &mut [f32]) {
        let mut soon = self.soon(0, [self.k_bytes[1], self.v_bytes[1]]);
        for step in 0..self.order.steps() {
            let places = self.order.places(step);
            for head in 0..self.heads {
                for place in places.clone().step_by(N) {
                    let k = self.some::<M, LIE, N>((self.k, self.k_bytes), place, head, room);
                    if !M::ASKS {
                        soon.ask((N * self.k_bytes[1]).div_ceil(LINE));
                    }
                    self.dots::<M, N>(&k, q, (place, head), s, &mut soon);
                }
            }
        }
    }

    #[inline(always)]
    fn add_values_by<M: Meets, const LIE: bool, const N: usize>(&self, s: &[f32], room: &mut [u8], acc: &mut [f32]) {
        let mut soon = self.soon(self.values, [self.v_bytes[1], self.k_bytes[1]]);
        for step in 0..self.order.steps() {
            let places = self.order.places(step);
            for head in 0..self.heads {
                for place in places.clone().step_by(N) {
                    let mut v = self.some::<M, LIE, N>((self.v, self.v_bytes), self.values + place, head, room);
                    // A weight of 0 would not take away what is infinite.
                    let zeros = M::cut(self.zeros);
                    for v in v.iter_mut().skip(self.order.count(place)) {
                        *v = &zeros[..v.len()];
                    }
                    if !M::ASKS {
                        soon.ask((N * self.v_bytes[1]).div_ceil(LINE));
                    }
                    self.add::<M, N>(&v, s, (place, head), acc, &mut soon);
                }
            }
        }
    }

    /// What is read a while after rows from place `begin` on: some of the same operand, whose rows have so many bytes, then
    /// of the other one.
    #[inline(always)]
    fn soon(&self, begin: usize, bytes: [usize; 2]) -> Ahead<'_> {
        let Some(ahead) = self.ahead else { return Ahead::NOTHING };
        let of_row = bytes.map(|bytes| (self.heads * bytes).div_ceil(LINE));
        Ahead { rows: &self.rows[begin + ahead..], of_row, until: self.values.saturating_sub(ahead), ..Ahead::NOTHING }
    }

    /// Some rows of a head: where they lie, or as numbers that are filled up with zeros.
    #[inline(always)]
    fn some<'r, M: Meets, const LIE: bool, const N: usize>(
        &self,
        (source, [first, bytes]): (&Source<'_>, [usize; 2]),
        at: usize,
        head: usize,
        room: &'r mut [u8],
    ) -> [&'r [M::Unit]; N]
    where
        'a: 'r,
        'c: 'r,
    {
        let mut some = [[].as_slice(); N];
        if LIE {
            let rows: &[*const u8; N] = self.rows[at..].first_chunk().expect("a step has as many places");
            for (out, row) in some.iter_mut().zip(rows) {
                // SAFETY: `new` found the rows of all heads where they are said to be.
                *out = M::cut(unsafe { std::slice::from_raw_parts(row.add(head * first), bytes) });
            }
            return some;
        }
        let (dim, width) = (source.rows.dim, source.rows.dim.next_multiple_of(LANES));
        for (i, row) in room.chunks_exact_mut(4 * width).take(N).enumerate() {
            let key = self.order.key(at % self.values + i).min(self.keys.len() - 1);
            let first = source.rows.first(self.tile.sequence.key(self.keys.start + key), self.first_head + head);
            let row = numbers_mut::<f32>(row);
            numbers::read(source.rows.dtype, source.codes, first, &mut row[..dim]);
            row[dim..].fill(0.0);
        }
        let room: &'r [u8] = room;
        for (out, row) in some.iter_mut().zip(room.chunks_exact(4 * width)) {
            *out = M::cut(row);
        }
        some
    }

    /// Multiplies what `s` has at each place by a factor and by what scales the row there.
    #[inline(always)]
    fn scale(&self, source: &Source<'_>, factor: f32, s: &mut [f32]) {
        if !source.is_scaled() {
            if factor != 1.0 {
                s.iter_mut().for_each(|s| *s *= factor);
            }
            return;
        }
        for (head, s) in s.chunks_exact_mut(self.group * LD).enumerate() {
            let mut scales = [factor; CHUNK];
            for (at, token, many) in self.tile.sequence.stretches(self.keys.clone()) {
                let of_rows = source.scales(token, self.first_head + head);
                for (i, scale) in of_rows.take(many).enumerate() {
                    scales[self.order.place(at + i)] *= scale;
                }
            }
            for s in s.as_chunks_mut::<LD>().0 {
                s[..CHUNK].iter_mut().zip(&scales).for_each(|(s, scale)| *s *= scale);
            }
        }
    }

    #[inline(always)]
    fn dots<M: Meets, const N: usize>(
        &self,
        k: &[&[M::Unit]; N],
        q: &[f32],
        (place, head): (usize, usize),
        s: &mut [f32],
        soon: &mut Ahead<'_>,
    ) {
        let width = self.k.rows.dim.next_multiple_of(LANES);
        let (q, s) = (&q[head * self.group * width..], &mut s[head * self.group * LD + place..]);
        let (mut row, mut nothing) = (0, Ahead::NOTHING);
        while row < self.group {
            let soon = if row == 0 { &mut *soon } else { &mut nothing };
            let (q, s) = (&q[row * width..], &mut s[row * LD..]);
            row += if row + TOGETHER <= self.group {
                M::dots::<TOGETHER, N>(q, k, s, soon);
                TOGETHER
            } else {
                M::dots::<1, N>(q, k, s, soon);
                1
            };
        }
    }

    #[inline(always)]
    fn add<M: Meets, const N: usize>(
        &self,
        v: &[&[M::Unit]; N],
        s: &[f32],
        (place, head): (usize, usize),
        acc: &mut [f32],
        soon: &mut Ahead<'_>,
    ) {
        let width = self.v.rows.dim.next_multiple_of(LANES);
        let (s, acc) = (&s[head * self.group * LD..], &mut acc[head * self.group * width..]);
        let (mut row, mut nothing) = (0, Ahead::NOTHING);
        while row < self.group {
            let soon = if row == 0 { &mut *soon } else { &mut nothing };
            let (s, acc) = (&s[row * LD..], &mut acc[row * width..]);
            row += if row + TOGETHER <= self.group {
                M::add::<TOGETHER, N>(s, place, v, acc, soon);
                TOGETHER
            } else {
                M::add::<1, N>(s, place, v, acc, soon);
                1
            };
        }
    }
}

/// Lines of rows that are read later, in the order in which they lie, all heads of a token: four tokens of a head at a time
/// took a third longer on Zen 5.
pub(super) struct Ahead<'r> {
    rows: &'r [*const u8],
    /// The next line, and how many are left of its row.
    at: *const u8,
    lines: usize,
    /// Lines of each of the first rows, and after so many of those of the others.
    of_row: [usize; 2],
    until: usize,
    row: usize,
}

impl Ahead<'_> {
    const NOTHING: Self = Self { rows: &[], at: std::ptr::null(), lines: 0, of_row: [0; 2], until: 0, row: 0 };

    /// Asks for the next lines, if there are any.
    #[inline(always)]
    pub(super) fn ask(&mut self, lines: usize) {
        for _ in 0..lines {
            if self.lines == 0 {
                let Some(row) = self.rows.get(self.row) else { return };
                (self.at, self.lines) = (*row, self.of_row[usize::from(self.row >= self.until)]);
                self.row += 1;
            }
            prefetch::<1>(self.at);
            (self.at, self.lines) = (self.at.wrapping_add(LINE), self.lines - 1);
        }
    }
}

/// Makes numbers of rows of Q what pairs of K meet, in their place.
#[inline(always)]
pub(super) fn arrange(k: &Source<'_>, q: &mut [f32]) {
    as_pairs!(k, Rows => Rows::arrange(q));
}

/// Brings sums of values that were made in pairs into their order.
#[inline(always)]
pub(super) fn settle(v: &Source<'_>, acc: &mut [f32]) {
    as_pairs!(v, Rows => Rows::settle(acc));
}
