//! The rows of K and V of some keys, four at a time: in which order, as vectors, and their products with the rows of a query.

use super::{
    places::Source,
    product::LANES,
    sight::Tile,
    soon::{LINE, prefetch},
    turn::Turns,
};
use crate::{
    memory::numbers_mut,
    numbers,
    simd::{Avx512, vector::Vectors, widen::Widen},
};
use kp_hal::DType;
use std::ops::Range;

/// Keys whose scores are in cache at one time: sixteen pages of sixteen rows of 256 bytes.
pub(super) const CHUNK: usize = 256;

/// Rows that meet those of a query together.
pub(super) const FOUR: usize = 4;

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
    /// Keys of a step: four in turn; or sixteen, as far apart as they can be.
    wide: usize,
    apart: usize,
}

impl Order {
    pub(super) fn in_turn(keys: usize) -> Self {
        Self { keys, wide: FOUR, apart: 1 }
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
    /// Where the first head's rows begin, in the order in which they are read: those of K, of V, and the next few of K.
    rows: [&'a [u8]; 2 * CHUNK + AHEAD_ROWS],
    /// Where those of V begin.
    values: usize,
    /// Bytes from head to head, and of a row.
    k_bytes: [usize; 2],
    v_bytes: [usize; 2],
    /// Rows between one that is read and one that is asked for.
    ahead: Option<usize>,
}

/// Runs `$body` with the codes of a source, and whether its rows are whole vectors of them; where they are not, they are
/// read as numbers first.
macro_rules! by_codes {
    ($source:expr, $Codes:ident $LIE:ident => $body:expr) => {{
        macro_rules! of {
            ($codes:ident, $lie:literal) => {{
                type $Codes = $codes;
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

impl<'c, 'a> Chunk<'c, 'a> {
    #[inline(always)]
    pub(super) fn new(
        tile: &'c Tile<'c>,
        keys: Range<usize>,
        [k, v]: [&'c Source<'a>; 2],
        (first_head, heads, group): (usize, usize, usize),
        order: Order,
    ) -> Self {
        let ahead = AHEAD.div_ceil((heads * k.bits(k.rows.dim) / 8).max(1)).next_multiple_of(FOUR).min(AHEAD_ROWS);
        // What has no key stands for one that is read anyway.
        let any = k.from(tile.sequence.key(keys.start), first_head);
        let mut rows = [any; 2 * CHUNK + AHEAD_ROWS];
        let (values, next) = (order.end(), keys.end..tile.end.min(keys.end + ahead));
        let in_turn = Order::in_turn(next.len());
        for (source, keys, order, begin) in
            [(k, keys.clone(), &order, 0), (v, keys.clone(), &order, values), (k, next, &in_turn, 2 * values)]
        {
            for (at, token, many) in tile.sequence.stretches(keys) {
                for i in 0..many {
                    rows[begin + order.place(at + i)] = source.from((token.0, token.1 + i), first_head);
                }
            }
        }
        let ahead = (order.wide == FOUR).then_some(ahead);
        let [k_bytes, v_bytes] = [k, v].map(|source| [source.rows.head, source.rows.dim].map(|n| source.bits(n) / 8));
        Self { tile, keys, k, v, first_head, heads, group, order, rows, values, k_bytes, v_bytes, ahead }
    }

    /// Products of rows of Q with those of K, a chunk's places for each.
    #[inline(always)]
    pub(super) fn scores(&self, q: &[f32], room: &mut [u8], s: &mut [f32]) {
        by_codes!(self.k, Codes LIE => self.scores_by::<Codes, LIE>(q, room, s));
        self.scale(self.k, s);
    }

    /// Adds rows of V, times what `s` has at their places, to sums.
    #[inline(always)]
    pub(super) fn add_values(&self, s: &mut [f32], room: &mut [u8], acc: &mut [f32]) {
        self.scale(self.v, s);
        by_codes!(self.v, Codes LIE => self.add_values_by::<Codes, LIE>(s, room, acc));
    }

    #[inline(always)]
    fn scores_by<C: Codes, const LIE: bool>(&self, q: &[f32], room: &mut [u8], s: &mut [f32]) {
        for step in 0..self.order.steps() {
            let (places, mut next) = (self.order.places(step), (0, 0));
            for head in 0..self.heads {
                for place in places.clone().step_by(FOUR) {
                    self.ask(places.start, &mut next);
                    let k = self.four::<C, LIE>((self.k, self.k_bytes), place, head, room);
                    self.dots::<C>(&k, q, (place, head), s);
                }
            }
        }
    }

    #[inline(always)]
    fn add_values_by<C: Codes, const LIE: bool>(&self, s: &[f32], room: &mut [u8], acc: &mut [f32]) {
        for step in 0..self.order.steps() {
            let (places, mut next) = (self.order.places(step), (0, 0));
            for head in 0..self.heads {
                for place in places.clone().step_by(FOUR) {
                    self.ask(self.values + places.start, &mut next);
                    let v = self.four::<C, LIE>((self.v, self.v_bytes), self.values + place, head, room);
                    // A weight of 0 would not take away what is infinite.
                    let v = &v[..self.order.count(place).min(FOUR)];
                    self.add::<C>(v, s, (place, head), acc);
                }
            }
        }
    }

    /// Asks for as much as four rows are of what is read a while after the step at `at`, beginning at a token and a byte: as it
    /// lies, all heads of a token. Four tokens of a head at a time took a third longer on Zen 5.
    #[inline(always)]
    fn ask(&self, at: usize, (token, byte): &mut (usize, usize)) {
        let Some(ahead) = self.ahead else { return };
        let (at, values) = (at + ahead, self.values);
        let [_, bytes] = if (values..2 * values).contains(&at) { self.v_bytes } else { self.k_bytes };
        let rows: &[&[u8]; FOUR] = self.rows[at..].first_chunk().expect("there are as many ahead");
        for _ in 0..(FOUR * bytes).div_ceil(LINE) {
            prefetch::<1>(rows[*token % FOUR].as_ptr().wrapping_add(*byte));
            *byte += LINE;
            if *byte >= self.heads * bytes {
                (*token, *byte) = (*token + 1, 0);
            }
        }
    }

    /// Four rows of a head: where they lie, or as numbers that are filled up with zeros.
    #[inline(always)]
    fn four<'r, C: Codes, const LIE: bool>(
        &self,
        (source, [first, bytes]): (&Source<'_>, [usize; 2]),
        at: usize,
        head: usize,
        room: &'r mut [u8],
    ) -> [&'r [C::Sixteen]; FOUR]
    where
        'a: 'r,
    {
        let mut four = [[].as_slice(); FOUR];
        if LIE {
            let rows: &[&[u8]; FOUR] = self.rows[at..].first_chunk().expect("places come in fours");
            for (out, row) in four.iter_mut().zip(rows) {
                *out = C::cut(&row[head * first..][..bytes]);
            }
            return four;
        }
        let (dim, width) = (source.rows.dim, source.rows.dim.next_multiple_of(LANES));
        for (i, row) in room.chunks_exact_mut(4 * width).take(FOUR).enumerate() {
            let key = self.order.key(at % self.values + i).min(self.keys.len() - 1);
            let first = source.rows.first(self.tile.sequence.key(self.keys.start + key), self.first_head + head);
            let row = numbers_mut::<f32>(row);
            numbers::read(source.rows.dtype, source.codes, first, &mut row[..dim]);
            row[dim..].fill(0.0);
        }
        let room: &'r [u8] = room;
        for (out, row) in four.iter_mut().zip(room.chunks_exact(4 * width)) {
            *out = C::cut(row);
        }
        four
    }

    /// Multiplies what `s` has at each place by what scales the row there.
    #[inline(always)]
    fn scale(&self, source: &Source<'_>, s: &mut [f32]) {
        if !source.is_scaled() {
            return;
        }
        for (head, s) in s.chunks_exact_mut(self.group * CHUNK).enumerate() {
            let mut scales = [1.0_f32; CHUNK];
            for (at, token, many) in self.tile.sequence.stretches(self.keys.clone()) {
                for i in 0..many {
                    scales[self.order.place(at + i)] = source.scale((token.0, token.1 + i), self.first_head + head);
                }
            }
            for s in s.as_chunks_mut::<CHUNK>().0 {
                s.iter_mut().zip(&scales).for_each(|(s, scale)| *s *= scale);
            }
        }
    }

    #[inline(always)]
    fn dots<C: Codes>(&self, k: &[&[C::Sixteen]; FOUR], q: &[f32], (place, head): (usize, usize), s: &mut [f32]) {
        let width = k[0].len() * LANES;
        let (q, s) = (&q[head * self.group * width..], &mut s[head * self.group * CHUNK + place..]);
        let mut row = 0;
        while row + TOGETHER <= self.group {
            dots::<Avx512, TOGETHER, C>(&q[row * width..], k, &mut s[row * CHUNK..]);
            row += TOGETHER;
        }
        while row < self.group {
            dots::<Avx512, 1, C>(&q[row * width..], k, &mut s[row * CHUNK..]);
            row += 1;
        }
    }

    #[inline(always)]
    fn add<C: Codes>(&self, v: &[&[C::Sixteen]], s: &[f32], (place, head): (usize, usize), acc: &mut [f32]) {
        let width = v.first().map_or(0, |v| v.len()) * LANES;
        let (s, acc) = (&s[head * self.group * CHUNK + place..], &mut acc[head * self.group * width..]);
        let mut row = 0;
        while row + TOGETHER <= self.group {
            add::<Avx512, TOGETHER, C>(&s[row * CHUNK..], v, &mut acc[row * width..]);
            row += TOGETHER;
        }
        while row < self.group {
            add::<Avx512, 1, C>(&s[row * CHUNK..], v, &mut acc[row * width..]);
            row += 1;
        }
    }
}

/// Products of rows of Q with four rows of K: to the front of `s` and each multiple of a chunk.
#[inline(always)]
fn dots<I: Turns<f32>, const ROWS: usize, C: Codes>(q: &[f32], k: &[&[C::Sixteen]; FOUR], s: &mut [f32]) {
    let vectors = k[0].len();
    let (q, mut rows) = (q.as_chunks::<LANES>().0, [[].as_slice(); ROWS]);
    for row in 0..ROWS {
        rows[row] = &q[row * vectors..][..vectors];
    }
    let k = [&k[0][..vectors], &k[1][..vectors], &k[2][..vectors], &k[3][..vectors]];
    let mut sums = [[I::splat(0.0); FOUR]; ROWS];
    for c in 0..vectors {
        for i in 0..FOUR {
            let k = I::load(&C::numbers(&k[i][c]));
            for row in 0..ROWS {
                sums[row][i] = I::times_plus(I::load(&rows[row][c]), k, sums[row][i]);
            }
        }
    }
    for row in 0..ROWS {
        s[row * CHUNK..][..FOUR].copy_from_slice(&I::four_sums(sums[row]));
    }
}

/// Adds at most four rows of V times their weights, at the front of `s` and each multiple of a chunk, to rows of sums.
#[inline(always)]
fn add<I: Vectors<f32>, const ROWS: usize, C: Codes>(s: &[f32], v: &[&[C::Sixteen]], acc: &mut [f32]) {
    let vectors = v.first().map_or(0, |v| v.len());
    let acc = &mut acc.as_chunks_mut::<LANES>().0[..ROWS * vectors];
    let mut at = 0;
    while at + 4 <= vectors {
        add_columns::<I, ROWS, 4, C>(s, v, acc, at);
        at += 4;
    }
    while at < vectors {
        add_columns::<I, ROWS, 1, C>(s, v, acc, at);
        at += 1;
    }
}

/// The same for some vectors of each row, which stay in registers.
#[inline(always)]
fn add_columns<I: Vectors<f32>, const ROWS: usize, const WIDE: usize, C: Codes>(
    s: &[f32],
    v: &[&[C::Sixteen]],
    acc: &mut [[f32; LANES]],
    at: usize,
) {
    let vectors = acc.len() / ROWS;
    let mut sums = [[I::splat(0.0); WIDE]; ROWS];
    for row in 0..ROWS {
        let acc: &[[f32; LANES]; WIDE] = acc[row * vectors + at..].first_chunk().expect("as wide as the rows");
        for wide in 0..WIDE {
            sums[row][wide] = I::load(&acc[wide]);
        }
    }
    let s = &s[..(ROWS - 1) * CHUNK + FOUR];
    for (i, v) in v.iter().enumerate().take(FOUR) {
        let v: &[C::Sixteen; WIDE] = v[at..].first_chunk().expect("as wide as the rows");
        for wide in 0..WIDE {
            let v = I::load(&C::numbers(&v[wide]));
            for row in 0..ROWS {
                sums[row][wide] = I::times_plus(I::splat(s[row * CHUNK + i]), v, sums[row][wide]);
            }
        }
    }
    for row in 0..ROWS {
        let acc: &mut [[f32; LANES]; WIDE] = acc[row * vectors + at..].first_chunk_mut().expect("as wide as the rows");
        for wide in 0..WIDE {
            I::store(sums[row][wide], &mut acc[wide]);
        }
    }
}

/// A type of numbers, sixteen at a time.
trait Codes {
    type Sixteen;

    /// The whole sixteens of some bytes.
    fn cut(row: &[u8]) -> &[Self::Sixteen];

    fn numbers(codes: &Self::Sixteen) -> [f32; LANES];
}

macro_rules! codes {
    ($($name:ident $bytes:literal $codes:ident $numbers:expr),*) => {$(
        enum $name {}

        impl Codes for $name {
            type Sixteen = [u8; $bytes];

            #[inline(always)]
            fn cut(row: &[u8]) -> &[Self::Sixteen] {
                row.as_chunks().0
            }

            #[inline(always)]
            fn numbers($codes: &Self::Sixteen) -> [f32; LANES] {
                $numbers
            }
        }
    )*};
}
codes!(
    F32s 64 codes Avx512::f32(codes),
    Bf16s 32 codes Avx512::bf16(codes),
    F16s 32 codes Avx512::f16(codes),
    E4m3s 16 codes Avx512::e4m3(codes),
    E5m2s 16 codes Avx512::e5m2(codes)
);
