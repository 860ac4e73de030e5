//! Rows of K and V against all rows of a query that share them, by tiles of AMX, a piece of 64 numbers of some keys at a time.
//!
//! ```text
//!              left                       right                          made
//!   scores     K [key][32 numbers]        Q [pair of numbers][row]       S [key][row], over the numbers of a head
//!   sums       w [row][16 pairs of keys]  V [pair of keys][16 numbers]   added to A [row][number]
//! ```
//! Numbers are pairs of bf16 as in [`super::paired`], in its order. While a piece is made ready, tiles multiply the one before, a product
//! for every eight units: units of their own, which one after the other would wait for each other. Tiles are as narrow as a head of keys
//! has rows, so the other rows of a whole one cost nothing. Scores of all heads are turned at the end of a step, when they have long been stored.
//! Limits: sixteen rows to a head of keys, [`MOST_NUMBERS`] numbers.

use super::{
    ahead::Lines,
    fours::{Chunk, Few, LD},
    meets::Takes,
    paired::{Coded, UNIT},
    product::LANES,
};
use crate::{
    amx::{ROW_BYTES, ROWS, Tiles},
    memory::{LINE, numbers_mut},
    simd::{Avx512, vector::Vectors},
};
use std::{
    arch::{
        asm,
        x86_64::{__m512i, _mm512_permutex2var_ps, _mm512_setr_epi32, _mm512_storeu_si512},
    },
    marker::PhantomData,
    mem::size_of,
};

/// What a processor must have besides what pairs take.
pub(super) const FEATURES: [&str; 2] = ["amx-tile", "amx-bf16"];

/// Keys of a step: sums of values are loaded and stored once for it, which takes as long as multiplying.
pub(super) const KEYS: usize = 4 * ROWS;

/// Rows of a query that a head of keys has, at most.
pub(super) const MOST_ROWS: usize = ROWS;

/// Numbers of a row, at most: the room of a row's scores takes half of one while Q is arranged.
pub(super) const MOST_NUMBERS: usize = 2 * LD;

/// Numbers of a line of a left tile, lines of pairs of a right one, and right tiles of a unit.
const STEP: usize = ROW_BYTES / 2;
const PAIRS: usize = ROW_BYTES / 4;
const OF_UNIT: usize = UNIT / LANES;

/// Units that are made ready for each product.
const UNITS: usize = 8;

/// Numbers of room for `heads` heads of `rows` rows of a query.
pub(super) const fn room(heads: usize, rows: usize) -> usize {
    KEYS * UNIT + heads * KEYS * rows.next_power_of_two()
}

/// Leave to use tiles.
#[derive(Clone, Copy)]
pub(super) struct Tiled(());

impl Tiled {
    /// # Safety
    /// The processor has `paired::FEATURES` and [`FEATURES`], and where this leads nothing else on the thread uses [`Tiles`].
    pub(super) unsafe fn new() -> Self {
        Self(())
    }
}

/// Makes rounded rows of Q of a head, as [`Paired::arrange`](super::paired::Paired::arrange) leaves them, right tiles one after the other.
pub(super) fn arrange(q: &mut [f32], rows: usize, spare: &mut [f32]) {
    let (width, all) = (q.len() / rows, q.len() / 2);
    for (row, q) in q.chunks_exact(width).enumerate() {
        spare[row..all].iter_mut().step_by(rows).zip(q).for_each(|(out, &word)| *out = word);
    }
    q[..all].copy_from_slice(&spare[..all]);
}

/// Products of a chunk's rows of K with those of Q, to the places of their keys in `s`; `room` is as [`room`] says.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bf16,avx2,fma,bmi2,f16c")]
pub(super) fn scores<C: Coded>(chunk: &Chunk<'_, '_>, q: &[f32], room: &mut [u8], s: &mut [f32], _: Tiled) {
    let (group, heads) = (chunk.group, chunk.heads);
    let of_rows = size_of::<f32>() * group;
    let shape = (ROWS, of_rows);
    // SAFETY: `Tiled` says so. Sums of two blocks of keys, Q, and K.
    let tiles = unsafe { Tiles::shaped(&[shape, shape, (PAIRS, of_rows), (ROWS, ROW_BYTES)]) };
    let (places, made) = places(room);
    let made = &mut made[..heads * KEYS * group.next_power_of_two()];
    chunk.each_key::<KEYS>(InTurn::<C, _>::new(places, Scores { q, s, made, group, heads, tiles }));
}

/// Adds a chunk's rows of V times their weights, rows of them packed by [`Paired::pack`](super::paired::Paired::pack), to sums.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bf16,avx2,fma,bmi2,f16c")]
pub(super) fn add_values<C: Coded>(chunk: &Chunk<'_, '_>, s: &[f32], room: &mut [u8], acc: &mut [f32], _: Tiled) {
    let (group, shape) = (chunk.group, (chunk.group, ROW_BYTES));
    let width = acc.len() / (chunk.heads * group);
    // SAFETY: as above. Weights of two blocks of pairs of keys, sums, and V.
    let tiles = unsafe { Tiles::shaped(&[shape, shape, shape, (PAIRS, ROW_BYTES)]) };
    let (places, _) = places(room);
    chunk.each_value::<KEYS>(InTurn::<C, _>::new(places, Values { s, acc, group, width, tiles }));
}

/// A line of a tile.
type TileLine = [u8; ROW_BYTES];

/// Two places for pieces that are made ready, and what is left of room.
#[inline(always)]
fn places(room: &mut [u8]) -> ([&mut [TileLine]; 2], &mut [f32]) {
    let lines = KEYS * UNIT / STEP;
    let (places, rest) = room.split_at_mut(2 * lines * ROW_BYTES);
    let (first, second) = places.as_chunks_mut().0.split_at_mut(lines);
    ([first, second], numbers_mut(rest))
}

/// A unit of the rows of some keys of a step of a head, which starts at a place.
#[derive(Clone, Copy)]
struct Piece {
    head: usize,
    place: usize,
    part: usize,
    unit: usize,
    is_last: bool,
}

/// What becomes of rows of a head.
trait Multiplies {
    /// Parts of the keys of a step, and products of a piece of one.
    const PARTS: usize;
    const PRODUCTS: usize;

    /// Makes the units of a piece ready that come with a product.
    fn widen<C: Coded>(rows: &Few<'_, KEYS>, piece: Piece, product: usize, lines: &mut [TileLine], soon: &mut Lines);

    /// Makes a product of a piece.
    fn multiply(&mut self, piece: Piece, product: usize, lines: &[TileLine]);
}

/// Multiplies a piece while the next one is made ready, in the other of two places.
struct InTurn<'m, C, M> {
    places: [&'m mut [TileLine]; 2],
    /// The piece that waits in the first one.
    waiting: Option<Piece>,
    work: M,
    codes: PhantomData<fn() -> C>,
}

impl<'m, C, M: Multiplies> InTurn<'m, C, M> {
    #[inline(always)]
    fn new(places: [&'m mut [TileLine]; 2], work: M) -> Self {
        Self { places, waiting: None, work, codes: PhantomData }
    }
}

impl<C: Coded, M: Multiplies> Takes<KEYS> for InTurn<'_, C, M> {
    #[inline(always)]
    fn take(&mut self, head: usize, place: usize, rows: &Few<'_, KEYS>, mut soon: Lines) {
        let units = rows.units::<C::Unit>();
        for part in 0..M::PARTS {
            for unit in 0..units {
                self.places.swap(0, 1);
                let [to, from] = &mut self.places;
                let piece = Piece { head, place, part, unit, is_last: unit + 1 == units };
                let before = self.waiting.replace(piece);
                for product in 0..M::PRODUCTS {
                    M::widen::<C>(rows, piece, product, to, &mut soon);
                    if let Some(before) = before {
                        self.work.multiply(before, product, from);
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn end(&mut self) {
        if let Some(piece) = self.waiting {
            for product in 0..M::PRODUCTS {
                self.work.multiply(piece, product, self.places[0]);
            }
        }
    }
}

/// Rows of K that meet those of Q.
struct Scores<'m> {
    q: &'m [f32],
    s: &'m mut [f32],
    /// Scores of a step's keys, of each head.
    made: &'m mut [f32],
    group: usize,
    heads: usize,
    tiles: Tiles,
}

/// Keys of a part: rows of two tiles.
const OF_PART: usize = 2 * ROWS;

impl Multiplies for Scores<'_> {
    const PARTS: usize = KEYS / OF_PART;
    const PRODUCTS: usize = OF_PART / UNITS;

    /// Rows, each two lines.
    #[inline(always)]
    fn widen<C: Coded>(k: &Few<'_, KEYS>, piece: Piece, product: usize, lines: &mut [TileLine], soon: &mut Lines) {
        let first = product * UNITS;
        let lines: &mut [[TileLine; 2]; UNITS] = lines.as_chunks_mut().0[first..].first_chunk_mut().expect("a place");
        let tables = C::tables();
        for (i, lines) in lines.iter_mut().enumerate() {
            soon.ask_second(size_of::<C::Unit>() / LINE);
            // SAFETY: there are as many rows, of as many units.
            let [codes] = unsafe { k.some(piece.part * OF_PART + first + i, piece.unit) };
            for (pairs, line) in C::pairs(tables, codes).into_iter().zip(lines) {
                store(pairs, line);
            }
        }
    }

    /// Turns the scores of all heads after the last one's.
    #[inline(always)]
    fn multiply(&mut self, piece: Piece, product: usize, lines: &[TileLine]) {
        let Piece { head, place, part, unit, is_last } = piece;
        let (group, apart) = (self.group, self.group.next_power_of_two());
        let (half, block) = (product / 2, product % 2);
        let q = &self.q[head * self.q.len() / self.heads + (2 * unit + half) * PAIRS * group..][..PAIRS * group];
        let made = &mut self.made[(head * KEYS + part * OF_PART + block * ROWS) * apart..][..ROWS * apart];
        let left = &lines[2 * block * ROWS + half..][..2 * ROWS - 1];
        let (first, last) = (unit == 0 && half == 0, is_last && half == 1);
        match block {
            0 => multiply::<0>(left, q, made, group, [first, last], &self.tiles),
            _ => multiply::<1>(left, q, made, group, [first, last], &self.tiles),
        }
        if last && block == 1 && part + 1 == Self::PARTS && head + 1 == self.heads {
            for (made, s) in self.made.chunks_exact(KEYS * apart).zip(self.s.chunks_exact_mut(group * LD)) {
                for (i, made) in made.chunks_exact(ROWS * apart).enumerate() {
                    turn(made, group, &mut s[place + i * ROWS..]);
                }
            }
        }
    }
}

/// Rows of V that are added.
struct Values<'m> {
    s: &'m [f32],
    acc: &'m mut [f32],
    group: usize,
    width: usize,
    tiles: Tiles,
}

impl Multiplies for Values<'_> {
    const PARTS: usize = 1;
    const PRODUCTS: usize = KEYS / UNITS;

    /// Two rows at a time, a line of each tile of the unit.
    #[inline(always)]
    fn widen<C: Coded>(v: &Few<'_, KEYS>, piece: Piece, product: usize, lines: &mut [TileLine], soon: &mut Lines) {
        let tables = C::tables();
        for two in product * UNITS / 2..(product + 1) * UNITS / 2 {
            soon.ask_second(2 * size_of::<C::Unit>() / LINE);
            // SAFETY: there are as many rows, of as many units.
            let ([a], [b]) = unsafe { (v.some(2 * two, piece.unit), v.some(2 * two + 1, piece.unit)) };
            for (tile, pairs) in C::of_two(tables, [a, b]).into_iter().enumerate() {
                store(pairs, &mut lines[tile * KEYS / 2 + two]);
            }
        }
    }

    /// A tile's first pairs of keys, then its others.
    #[inline(always)]
    fn multiply(&mut self, piece: Piece, product: usize, lines: &[TileLine]) {
        let (group, width) = (self.group, self.width);
        let (tile, block) = (product / 2, product % 2);
        let at = piece.head * group * LD + piece.place / 2 + block * PAIRS;
        let weights = (&self.s[at..], piece.unit == 0 && tile == 0);
        let right = lines[product * PAIRS..].first_chunk().expect("a place");
        let first = piece.head * group * width + (piece.unit * OF_UNIT + tile) * LANES;
        let acc = &mut self.acc[first..][..(group - 1) * width + LANES];
        match block {
            0 => add::<0>(weights, right, group, (acc, width), &self.tiles),
            _ => add::<1>(weights, right, group, (acc, width), &self.tiles),
        }
    }
}
#[inline(always)]
fn store(pairs: __m512i, line: &mut TileLine) {
    // SAFETY: only code compiled for `paired::FEATURES` calls this, on processors that have them; a line is 64 bytes.
    unsafe { _mm512_storeu_si512(line.as_mut_ptr().cast(), pairs) };
}

/// Adds a step of scores, of rows of K two lines apart and a right tile of Q, to the sums of a block of keys: from 0 if it is their first
/// one; if it is the last they go to `made[key][row]`, rows of it as far apart as the next power of two. Q is loaded for both blocks.
#[inline(always)]
fn multiply<const BLOCK: usize>(
    left: &[TileLine],
    right: &[f32],
    made: &mut [f32],
    group: usize,
    [first, last]: [bool; 2],
    _: &Tiles,
) {
    let apart = group.next_power_of_two();
    assert!(left.len() > 2 * (ROWS - 1) && right.len() >= PAIRS * group && made.len() >= ROWS * apart);
    #[cfg(test)]
    if crate::amx::is_imitated() {
        for (made, left) in made.chunks_exact_mut(apart).zip(left.iter().step_by(2)) {
            for (row, made) in made[..group].iter_mut().enumerate() {
                let pairs = (0..PAIRS).map(|pair| [&left[4 * pair..], &bytes_of(right)[4 * (pair * group + row)..]]);
                *made = if first { 0.0 } else { *made } + pairs.map(imitated).sum::<f32>();
            }
        }
        return;
    }
    macro_rules! block {
        ($sums:literal $q:literal) => {
            // SAFETY: tiles have their shape, since there is a value that says so, nothing else changes them, and as much memory is there.
            unsafe {
                if first {
                    asm!(concat!("tilezero ", $sums), options(nostack, preserves_flags));
                }
                asm!(
                    $q,
                    "tileloadd tmm3, [{left} + {left_ld}]",
                    concat!("tdpbf16ps ", $sums, ", tmm3, tmm2"),
                    right = in(reg) right.as_ptr(),
                    right_ld = in(reg) size_of::<f32>() * group,
                    left = in(reg) left.as_ptr(),
                    left_ld = in(reg) 2 * ROW_BYTES,
                    options(nostack, preserves_flags),
                );
                if last {
                    asm!(
                        concat!("tilestored [{made} + {made_ld}], ", $sums),
                        made = in(reg) made.as_mut_ptr(),
                        made_ld = in(reg) size_of::<f32>() * apart,
                        options(nostack, preserves_flags),
                    );
                }
            }
        };
    }
    match BLOCK {
        0 => block!("tmm0" "tileloadd tmm2, [{right} + {right_ld}]"),
        _ => block!("tmm1" "/* {right} {right_ld} */"),
    }
}

/// Adds a right tile of V times packed weights, rows of which are [`LD`] apart, of a block of pairs of keys, to a tile of rows of sums, `width` apart:
/// loaded for the first block, stored after the other. Weights are loaded if that is said, and stay for the next tiles.
#[inline(always)]
fn add<const BLOCK: usize>(
    (weights, loads): (&[f32], bool),
    right: &[TileLine; PAIRS],
    group: usize,
    (acc, width): (&mut [f32], usize),
    _: &Tiles,
) {
    assert!(acc.len() >= (group - 1) * width + LANES);
    assert!(weights.len() >= (group - 1) * LD + PAIRS);
    #[cfg(test)]
    if crate::amx::is_imitated() {
        let (weights, right) = (bytes_of(weights), right.as_flattened());
        for (row, acc) in acc.chunks_mut(width).enumerate() {
            for (column, sum) in acc[..LANES].iter_mut().enumerate() {
                let line = |pair| pair * ROW_BYTES + column * 4;
                let pairs = (0..PAIRS).map(|pair| [&weights[4 * (row * LD + pair)..], &right[line(pair)..]]);
                *sum += pairs.map(imitated).sum::<f32>();
            }
        }
        return;
    }
    macro_rules! block {
        ($weights:literal, $before:literal, $after:literal) => {
            // SAFETY: as in `multiply`.
            unsafe {
                if loads {
                    asm!(
                        concat!("tileloadd ", $weights, ", [{weights} + {ld}]"),
                        weights = in(reg) weights.as_ptr(),
                        ld = in(reg) size_of::<f32>() * LD,
                        options(nostack, preserves_flags),
                    );
                }
                asm!(
                    $before,
                    "tileloadd tmm3, [{right} + {right_ld}]",
                    concat!("tdpbf16ps tmm2, ", $weights, ", tmm3"),
                    $after,
                    right = in(reg) right.as_ptr(),
                    right_ld = in(reg) ROW_BYTES,
                    acc = in(reg) acc.as_mut_ptr(),
                    acc_ld = in(reg) size_of::<f32>() * width,
                    options(nostack, preserves_flags),
                );
            }
        };
    }
    match BLOCK {
        0 => block!("tmm0", "tileloadd tmm2, [{acc} + {acc_ld}]", ""),
        _ => block!("tmm1", "", "tilestored [{acc} + {acc_ld}], tmm2"),
    }
}

#[cfg(test)]
fn bytes_of(numbers: &[f32]) -> &[u8] {
    // SAFETY: any number is bytes.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}

/// What tiles make of a pair.
#[cfg(test)]
fn imitated([left, right]: [&[u8]; 2]) -> f32 {
    let number = |codes: &[u8], i: usize| f32::from_bits(u32::from_le_bytes([0, 0, codes[2 * i], codes[2 * i + 1]]));
    (0..2).map(|i| number(left, i) * number(right, i)).sum()
}

/// Turns scores of sixteen keys, those of a key side by side, into rows [`LD`] apart.
#[inline(always)]
fn turn(made: &[f32], group: usize, s: &mut [f32]) {
    match group.next_power_of_two() {
        1 => turned::<1>(made, group, s),
        2 => turned::<2>(made, group, s),
        4 => turned::<4>(made, group, s),
        8 => turned::<8>(made, group, s),
        _ => turned::<16>(made, group, s),
    }
}

/// The same of `N` scores to a key: numbers of even and of odd places part, then those of either half, until each half is a row.
#[inline(always)]
fn turned<const N: usize>(made: &[f32], group: usize, s: &mut [f32]) {
    let mut rows = [<Avx512 as Vectors<f32>>::splat(0.0); N];
    for (row, made) in rows.iter_mut().zip(made.as_chunks::<LANES>().0) {
        *row = <Avx512 as Vectors<f32>>::load(made);
    }
    // SAFETY: as in `store`.
    let [even, odd] = unsafe {
        [
            _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30),
            _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31),
        ]
    };
    let mut many = N;
    while many > 1 {
        let before = rows;
        for first in (0..N).step_by(many) {
            for i in 0..many / 2 {
                let (a, b) = (before[first + 2 * i], before[first + 2 * i + 1]);
                // SAFETY: as in `store`.
                unsafe {
                    rows[first + i] = _mm512_permutex2var_ps(a, even, b);
                    rows[first + many / 2 + i] = _mm512_permutex2var_ps(a, odd, b);
                }
            }
        }
        many /= 2;
    }
    for (at, &row) in rows.iter().enumerate() {
        // The last parting decides of the highest bit.
        let number = if N == 1 { 0 } else { at.reverse_bits() >> (usize::BITS - N.ilog2()) };
        if number < group {
            <Avx512 as Vectors<f32>>::store(row, &mut s[number * LD..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_become_rows() {
        if !crate::simd::has_avx512() {
            println!("skipped: this processor has no AVX-512");
            return;
        }
        for group in 1..=MOST_ROWS {
            let apart = group.next_power_of_two();
            let made: Vec<f32> = (0..ROWS * apart).map(|i| i as f32).collect();
            let mut s = vec![-1.0; group * LD];
            turn(&made, group, &mut s);
            for row in 0..group {
                for key in 0..ROWS {
                    assert_eq!(s[row * LD + key], (key * apart + row) as f32, "row {row} of {group}, key {key}");
                }
            }
        }
    }
}
