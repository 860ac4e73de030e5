//! The rows of K and V of some keys, four at a time: in which order, and by what they meet the rows of a query.

use super::{
    ahead::{Ahead, Asks, Lines},
    decode::By,
    meets::{Adds, Dots, Meets, Takes},
    order::Order,
    paired::{self, Bf16Pairs, E4m3Pairs, E5m2Pairs, Paired},
    places::{Dims, Source},
    product::LANES,
    sight::Tile,
    tiled::{self, Tiled},
    turn::Turns,
    widened::{Bf16s, E4m3s, E5m2s, F16s, F32s, Widened},
};
use crate::{
    caps,
    memory::numbers_mut,
    numbers,
    simd::{Work, widen::Widen},
};
use kp_hal::DType;
use std::{marker::PhantomData, ops::Range};

/// Keys whose scores are in cache at one time: sixteen pages of sixteen rows of 256 bytes.
pub(super) const CHUNK: usize = 256;

/// Numbers from a row's scores to the next one's: of many rows the same keys' are not in one set of the cache.
pub(super) const LD: usize = CHUNK + LANES;

/// Rows that meet those of a query together: of sixteen pages four, in turn as many as [`together`] says.
pub(super) const FOUR: usize = 4;
pub(super) const TWO: usize = 2;
pub(super) const EIGHT: usize = 8;

/// Bytes that the rows of a step have at most, of all heads that are read together.
pub(super) const STEP: usize = 32 << 10;

/// Rows that are asked for ahead, at most.
const AHEAD_ROWS: usize = 128;

/// How far ahead of a step memory is asked for, in bytes, and whom it is asked of: 8 to 32 kilobytes are alike on Zen 5, one
/// is too little; on Zen 4 eight are too little for heads that are shared; Emerald Rapids took a seventh longer for 8 bits when it
/// asked the first cache, and is slower by 16 or 64.
fn ahead() -> (usize, Asks) {
    if caps::streams_by_second_cache() {
        (64 << 10, Asks::SecondAgain)
    } else if caps::asks_first_cache() {
        (8 << 10, Asks::First)
    } else {
        (32 << 10, Asks::Second)
    }
}

/// Some keys of a sequence, at most [`CHUNK`], in heads of K and V that are read together.
pub(super) struct Chunk<'c, 'a> {
    tile: &'c Tile<'c>,
    keys: Range<usize>,
    k: &'c Source<'a>,
    v: &'c Source<'a>,
    first_head: usize,
    pub(super) heads: usize,
    /// Rows of the query for each of them.
    pub(super) group: usize,
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
    asks: Asks,
    /// A row of V of zeros.
    zeros: &'c [u8],
}

/// Rows of K or V of a head that meet those of a query together.
#[derive(Clone, Copy)]
pub(super) struct Few<'r, const N: usize> {
    /// Where those of the first head begin, and how many bytes after that this one's.
    at: &'r [*const u8; N],
    after: usize,
    /// Bytes of each.
    bytes: usize,
}

impl<'r, const N: usize> Few<'r, N> {
    /// # Safety
    /// There are so many bytes so far after each, for `'r`.
    #[inline(always)]
    unsafe fn new(at: &'r [*const u8; N], after: usize, bytes: usize) -> Self {
        Self { at, after, bytes }
    }

    /// The first `count` rows, and zeros for the others.
    #[inline(always)]
    fn only<'s>(self, count: usize, zeros: &'s [u8], at: &'s mut [*const u8; N]) -> Few<'s, N>
    where
        'r: 's,
    {
        assert!(self.bytes <= zeros.len());
        *at = *self.at;
        at[count..].fill(zeros.as_ptr().wrapping_sub(self.after));
        Few { at, ..self }
    }

    /// Where the first one begins.
    pub(super) fn first(&self) -> *const u8 {
        self.at[0].wrapping_add(self.after)
    }

    /// Units of each.
    #[inline(always)]
    pub(super) fn units<U>(&self) -> usize {
        self.bytes / size_of::<U>()
    }

    /// Units from unit `at` of a row on.
    ///
    /// # Safety
    /// There are so many rows, and the row has `MANY` units from there on; units are bytes.
    #[inline(always)]
    pub(super) unsafe fn some<U, const MANY: usize>(&self, row: usize, at: usize) -> &'r [U; MANY] {
        const { assert!(align_of::<U>() == 1) };
        debug_assert!(row < N && at + MANY <= self.units::<U>());
        // SAFETY: the promises here and of `new`.
        unsafe { &*self.at.get_unchecked(row).wrapping_add(self.after + at * size_of::<U>()).cast() }
    }
}

/// What an instruction set needs for that.
pub(super) trait Numbers: Turns<f32> + Widen {}

impl<I: Turns<f32> + Widen> Numbers for I {}

/// Runs `$body` with the codes that are widened to be numbers of a source, and whether rows are whole units; where they are
/// not, they are read as numbers first.
macro_rules! as_numbers {
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

/// The same with the codes that are pairs of bf16 in registers, for the types that there are.
macro_rules! as_pairs {
    ($dtype:expr, $Codes:ident => $body:expr) => {{
        macro_rules! of {
            ($codes:ident) => {{
                type $Codes = $codes;
                $body
            }};
        }
        match $dtype {
            DType::Bf16 => of!(Bf16Pairs),
            DType::E4m3 => of!(E4m3Pairs),
            DType::E5m2 => of!(E5m2Pairs),
            dtype => unreachable!("{dtype} is not planned in pairs"),
        }
    }};
}

/// How many meet in turn. The more there are, the less often sums are loaded and stored. But a step, the rows of all heads of
/// as many tokens, should take little of the first cache: f32 of 16 heads of 128 is read faster by two than by four, bf16 by
/// four than by eight. Where the second cache is asked it is not in the way: on Zen 4 heads that are shared are read faster by
/// four. Pairs are many there, if as many whole rows of `heads` fit the first cache, in which they take turns to be read: 8 bits of 16
/// heads of 64 took 0.79 of the time by 32 as by 8, but of 128 1.67. Zen 5 took a tenth longer by 16.
pub(super) fn together(dtype: DType, (dims, heads): (&Dims, usize), by: By) -> usize {
    match dtype {
        _ if by == By::Tiles => tiled::KEYS,
        _ if by == By::Pairs => as_pairs!(dtype, Codes => {
            let row = heads * dims.qk.max(dims.v) * dtype.bits() as usize / 8;
            let room = if dtype.bits() > 8 { STEP / 2 } else { STEP };
            let is_many = caps::streams_by_second_cache() && Paired::<Codes>::MANY * row <= room;
            if is_many { Paired::<Codes>::MANY } else { Paired::<Codes>::TOGETHER }
        }),
        DType::F32 if dims.qk == dims.qk_width && dims.v == dims.v_width && !caps::streams_by_second_cache() => TWO,
        _ => FOUR,
    }
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
        let (ahead, asks) = ahead();
        let ahead =
            ahead.div_ceil((heads * k.bits(k.rows.dim) / 8).max(1)).next_multiple_of(order.wide).min(AHEAD_ROWS);
        let (values, next) = (order.end(), keys.end..tile.end.min(keys.end + ahead));
        // What has no key stands for one that is read anyway.
        let any = [k, v].map(|source| source.of_heads(tile.sequence.key(keys.start), first_head, heads).as_ptr());
        let mut rows = [any[0]; 2 * CHUNK + AHEAD_ROWS];
        rows[values..2 * values].fill(any[1]);
        let (in_turn, is_asked) = (Order::in_turn(next.len(), order.wide), order.asks);
        for (source, keys, order, begin) in
            [(k, keys.clone(), &order, 0), (v, keys.clone(), &order, values), (k, next, &in_turn, 2 * values)]
        {
            for (at, token, many) in tile.sequence.stretches(keys) {
                for i in 0..many {
                    let token = (token.0, token.1 + i);
                    rows[begin + order.place(at + i)] = source.of_heads(token, first_head, heads).as_ptr();
                }
                if is_asked && source.scales_rows() {
                    source.ask_for_scales(token, many, first_head, heads);
                }
            }
        }
        let ahead = is_asked.then_some(ahead);
        let [k_bytes, v_bytes] = [k, v].map(|source| [source.rows.head, source.rows.dim].map(|n| source.bits(n) / 8));
        Self { tile, keys, k, v, first_head, heads, group, order, rows, values, k_bytes, v_bytes, ahead, asks, zeros }
    }

    /// Products of rows of Q with those of K times a factor, a chunk's places for each; `PAIRS`: Q is as [`arrange`] leaves it.
    #[inline(always)]
    pub(super) fn scores<I: Numbers, const PAIRS: bool>(
        &self,
        (q, factor): (&[f32], f32),
        room: &mut [u8],
        s: &mut [f32],
        tiles: Option<Tiled>,
    ) {
        if PAIRS {
            as_pairs!(self.k.rows.dtype, Codes => match tiles {
                // SAFETY: there are tiles where the processor has what they take.
                Some(tiles) => unsafe { tiled::scores::<Codes>(self, q, room, s, tiles) },
                None if self.order.wide == Paired::<Codes>::MANY => {
                    const N: usize = Paired::<Codes>::MANY;
                    // SAFETY: pairs are planned where the processor has what they take, here and below.
                    unsafe { paired::run(Meeting::<Paired<Codes>, true, N, false>::new(self, room, q, s)) };
                }
                None => {
                    const N: usize = Paired::<Codes>::TOGETHER;
                    // SAFETY: as above.
                    unsafe { paired::run(Meeting::<Paired<Codes>, true, N, false>::new(self, room, q, s)) };
                }
            });
        } else {
            match self.order.wide {
                TWO => I::run(Meeting::<Widened<I, F32s>, true, TWO, false>::new(self, room, q, s)),
                _ => as_numbers!(self.k, Codes LIE => {
                    I::run(Meeting::<Widened<I, Codes>, LIE, FOUR, false>::new(self, room, q, s));
                }),
            }
        }
        self.scale::<I>(self.k, factor, s);
    }

    /// Adds rows of V, times what `s` has at their places, to sums; `PAIRS`: those are as [`settle`] takes them.
    #[inline(always)]
    pub(super) fn add_values<I: Numbers, const PAIRS: bool>(
        &self,
        s: &mut [f32],
        room: &mut [u8],
        acc: &mut [f32],
        tiles: Option<Tiled>,
    ) {
        self.scale::<I>(self.v, 1.0, s);
        if PAIRS {
            as_pairs!(self.v.rows.dtype, Codes => {
                for s in s.as_chunks_mut::<LD>().0 {
                    Paired::<Codes>::pack(s);
                }
                match tiles {
                    // SAFETY: as for scores, here and below.
                    Some(tiles) => unsafe { tiled::add_values::<Codes>(self, s, room, acc, tiles) },
                    None if self.order.wide == Paired::<Codes>::MANY => {
                        const N: usize = Paired::<Codes>::MANY;
                        // SAFETY: as above.
                        unsafe { paired::run(Meeting::<Paired<Codes>, true, N, true>::new(self, room, s, acc)) };
                    }
                    None => {
                        const N: usize = Paired::<Codes>::TOGETHER;
                        // SAFETY: as above.
                        unsafe { paired::run(Meeting::<Paired<Codes>, true, N, true>::new(self, room, s, acc)) };
                    }
                }
            });
        } else {
            match self.order.wide {
                TWO => I::run(Meeting::<Widened<I, F32s>, true, TWO, true>::new(self, room, s, acc)),
                _ => as_numbers!(self.v, Codes LIE => {
                    I::run(Meeting::<Widened<I, Codes>, LIE, FOUR, true>::new(self, room, s, acc));
                }),
            }
        }
    }

    #[inline(always)]
    fn scores_by<M: Meets, const LIE: bool, const N: usize>(&self, q: &[f32], room: &mut [u8], s: &mut [f32]) {
        let (group, width) = (self.group, self.k.rows.dim.next_multiple_of(LANES));
        self.each::<LIE, false, N>(room, Dots { q, s, group, width, by: PhantomData::<fn() -> M> });
    }

    #[inline(always)]
    fn add_values_by<M: Meets, const LIE: bool, const N: usize>(&self, s: &[f32], room: &mut [u8], acc: &mut [f32]) {
        let (group, width) = (self.group, self.v.rows.dim.next_multiple_of(LANES));
        self.each::<LIE, true, N>(room, Adds { s, acc, group, width, by: PhantomData::<fn() -> M> });
    }

    /// Gives `takes` rows of K where they lie, `N` keys of a head at a time.
    #[inline(always)]
    pub(super) fn each_key<const N: usize>(&self, takes: impl Takes<N>) {
        self.each::<true, false, N>(&mut [], takes);
    }

    /// The same with rows of V, which are zeros where there is no key.
    #[inline(always)]
    pub(super) fn each_value<const N: usize>(&self, takes: impl Takes<N>) {
        self.each::<true, true, N>(&mut [], takes);
    }

    /// Either, of rows where they lie or as numbers in `room`.
    #[inline(always)]
    fn each<const LIE: bool, const VALUES: bool, const N: usize>(&self, room: &mut [u8], mut takes: impl Takes<N>) {
        let (source, bytes, begin, then) = match VALUES {
            false => (self.k, self.k_bytes, 0, self.v_bytes),
            true => (self.v, self.v_bytes, self.values, self.k_bytes),
        };
        let mut soon = self.soon(begin, [bytes[1], then[1]]);
        for step in 0..self.order.steps() {
            for head in 0..self.heads {
                for place in self.order.places(step).step_by(N) {
                    let (mut own, mut some) = ([std::ptr::null(); N], [std::ptr::null(); N]);
                    let mut rows = self.few::<LIE, N>((source, bytes), (begin + place, head), room, &mut own);
                    let count = self.order.count(place);
                    if VALUES && count < N {
                        // A weight of 0 would not take away what is infinite.
                        rows = rows.only(count, self.zeros, &mut some);
                    }
                    let lines = Self::next::<LIE, N>(&mut soon, bytes[1], &rows);
                    takes.take(head, place, &rows, lines);
                }
            }
        }
        takes.end();
    }

    /// What is read a while after rows from place `begin` on: some of the same operand, whose rows have so many bytes, then
    /// of the other one.
    #[inline(always)]
    fn soon(&self, begin: usize, bytes: [usize; 2]) -> Ahead<'_> {
        let of_row = bytes.map(|bytes| self.heads * bytes);
        let (rows, until) = match self.ahead {
            Some(ahead) => (&self.rows[begin + ahead..], self.values.saturating_sub(ahead)),
            None => ([].as_slice(), 0),
        };
        Ahead::of(rows, until, of_row, self.asks)
    }

    /// What is asked for while `N` rows of a head, of so many bytes, are read: at once if they are not read as they lie.
    #[inline(always)]
    fn next<const LIE: bool, const N: usize>(soon: &mut Ahead<'_>, bytes: usize, rows: &Few<'_, N>) -> Lines {
        if LIE {
            return soon.next(N * bytes, rows.first());
        }
        soon.ask(N * bytes);
        Lines::none(rows.first())
    }

    /// Some rows of a head, from place `at` on: where they lie, or as numbers that are filled up with zeros.
    #[inline(always)]
    fn few<'r, const LIE: bool, const N: usize>(
        &'r self,
        (source, [first, bytes]): (&Source<'_>, [usize; 2]),
        (at, head): (usize, usize),
        room: &'r mut [u8],
        own: &'r mut [*const u8; N],
    ) -> Few<'r, N> {
        if LIE {
            let rows = self.rows[at..].first_chunk().expect("a step has as many places");
            // SAFETY: `new` found the rows of all heads where they are said to be.
            return unsafe { Few::new(rows, head * first, bytes) };
        }
        let (dim, width) = (source.rows.dim, source.rows.dim.next_multiple_of(LANES));
        for (i, (row, own)) in room.chunks_exact_mut(4 * width).zip(&mut *own).enumerate() {
            let key = self.order.key(at % self.values + i).min(self.keys.len() - 1);
            let first = source.rows.first(self.tile.sequence.key(self.keys.start + key), self.first_head + head);
            *own = row.as_ptr();
            let row = numbers_mut::<f32>(row);
            numbers::read(source.rows.dtype, source.codes, first, &mut row[..dim]);
            row[dim..].fill(0.0);
        }
        // SAFETY: there are as many, just written.
        unsafe { Few::new(own, 0, 4 * width) }
    }

    /// Multiplies what `s` has at each place by a factor and by what scales the row there.
    #[inline(always)]
    fn scale<I: Numbers>(&self, source: &Source<'_>, factor: f32, s: &mut [f32]) {
        if !source.scales_rows() {
            let factor = factor * source.scale::<f32>((0, 0), 0);
            if factor != 1.0 {
                s.iter_mut().for_each(|s| *s *= factor);
            }
            return;
        }
        for place in (0..self.order.end()).step_by(LANES) {
            let count = self.order.count(place).min(LANES);
            let mut tokens = [(0, 0); LANES];
            for (i, token) in tokens.iter_mut().enumerate() {
                let key = self.order.key(place + i).min(self.keys.len() - 1);
                *token = self.tile.sequence.key(self.keys.start + key);
            }
            for first in (0..self.heads).step_by(LANES) {
                let heads = LANES.min(self.heads - first);
                let mut scales = source.scales::<I>(&tokens, self.first_head + first, heads);
                for (head, scales) in scales[..heads].iter_mut().enumerate() {
                    scales[count..].fill(1.0_f32.to_bits());
                    for row in 0..self.group {
                        let s = &mut s[((first + head) * self.group + row) * LD + place..][..LANES];
                        s.iter_mut().zip(&*scales).for_each(|(s, &scale)| *s *= factor * f32::from_bits(scale));
                    }
                }
            }
        }
    }
}

/// One way in which rows of a chunk meet those of a query, not inlined: the compiler took a sixth of its time for this crate where all
/// of them were one function.
struct Meeting<'m, 'c, 'a, M, const LIE: bool, const N: usize, const ADDS: bool> {
    chunk: &'m Chunk<'c, 'a>,
    room: &'m mut [u8],
    /// Rows of Q and their scores; or, if it `ADDS`, those and rows of sums.
    from: &'m [f32],
    to: &'m mut [f32],
    by: PhantomData<fn() -> M>,
}

impl<'m, 'c, 'a, M, const LIE: bool, const N: usize, const ADDS: bool> Meeting<'m, 'c, 'a, M, LIE, N, ADDS> {
    #[inline(always)]
    fn new(chunk: &'m Chunk<'c, 'a>, room: &'m mut [u8], from: &'m [f32], to: &'m mut [f32]) -> Self {
        Self { chunk, room, from, to, by: PhantomData }
    }
}

impl<M: Meets, const LIE: bool, const N: usize, const ADDS: bool> Work for Meeting<'_, '_, '_, M, LIE, N, ADDS> {
    #[inline(always)]
    fn run(self) {
        let Self { chunk, room, from, to, .. } = self;
        if ADDS {
            chunk.add_values_by::<M, LIE, N>(from, room, to);
        } else {
            chunk.scores_by::<M, LIE, N>(from, room, to);
        }
    }
}

/// Makes numbers of rows of Q what pairs of K meet, in their place.
#[inline(always)]
pub(super) fn arrange(k: &Source<'_>, q: &mut [f32]) {
    as_pairs!(k.rows.dtype, Codes => Paired::<Codes>::arrange(q));
}

/// Brings sums of values that were made in pairs into their order.
#[inline(always)]
pub(super) fn settle(v: &Source<'_>, acc: &mut [f32]) {
    as_pairs!(v.rows.dtype, Codes => Paired::<Codes>::settle(acc));
}
