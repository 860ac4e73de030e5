//! Rows of K and V against all rows of a query that share them, by tiles of AMX, 32 keys at a time.
//!
//! ```text
//!              left                       right                          made
//!   scores     K [key][32 numbers]        Q [pair of numbers][row]       S [key][row], over the numbers of a head
//!   sums       w [row][16 pairs of keys]  V [pair of keys][16 numbers]   added to A [row][number]
//! ```
//! Numbers are pairs of bf16 as in [`super::paired`], in its order. Tiles are as narrow as a head of keys has rows, so the other rows
//! of a whole one cost nothing. Scores of all heads are turned at the end of a step, when they have long been stored.
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
        x86_64::{__m512, __m512i, _mm512_permutex2var_ps, _mm512_setr_epi32, _mm512_storeu_si512},
    },
    marker::PhantomData,
    mem::size_of,
};

/// What a processor must have besides what pairs take.
pub(super) const FEATURES: [&str; 2] = ["amx-tile", "amx-bf16"];

/// Keys that are multiplied together: rows of two tiles of scores, or of one of values. Of half as many sums would be loaded and stored
/// twice as often, which takes as long as multiplying.
pub(super) const KEYS: usize = 2 * ROWS;

/// Rows of a query that a head of keys has, at most.
pub(super) const MOST_ROWS: usize = ROWS;

/// Numbers of a row, at most: the room of a row's scores takes half of one while Q is arranged.
pub(super) const MOST_NUMBERS: usize = 2 * LD;

/// Numbers of a step of scores, lines of a tile of values, and tiles of a unit.
const STEP: usize = ROW_BYTES / 2;
const PAIRS: usize = KEYS / 2;
const OF_UNIT: usize = UNIT / LANES;

/// Numbers of room for `heads` heads of `rows` rows of a query and at most `width` numbers.
pub(super) const fn room(heads: usize, rows: usize, width: usize) -> usize {
    KEYS * width + heads * KEYS * rows.next_power_of_two()
}

/// Tiles for heads of `rows` rows.
///
/// # Safety
/// As [`Tiles::shaped`].
pub(super) unsafe fn tiles(rows: usize) -> Tiles {
    let of_rows = size_of::<f32>() * rows;
    let (scores, q, sums, weights) = ((ROWS, of_rows), (STEP / 2, of_rows), (rows, ROW_BYTES), (rows, 2 * KEYS));
    // Rows of K, or pairs of V.
    const { assert!(PAIRS == ROWS, "one shape") };
    // SAFETY: the caller's promise.
    unsafe { Tiles::shaped(&[scores, q, (ROWS, ROW_BYTES), sums, weights]) }
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
#[inline(always)]
pub(super) fn scores<C: Coded>(chunk: &Chunk<'_, '_>, q: &[f32], room: &mut [u8], s: &mut [f32], tiles: &Tiles) {
    let (group, heads) = (chunk.group, chunk.heads);
    let (places, made) = places(room, q.len() / (heads * group));
    let made = &mut made[..heads * KEYS * group.next_power_of_two()];
    chunk.each_key::<KEYS>(InTurn::<C, _>::new(places, Scores { q, s, made, group, heads, tiles }));
}

/// Adds a chunk's rows of V times their weights, rows of them packed by [`Paired::pack`](super::paired::Paired::pack), to sums.
#[inline(always)]
pub(super) fn add_values<C: Coded>(chunk: &Chunk<'_, '_>, s: &[f32], room: &mut [u8], acc: &mut [f32], tiles: &Tiles) {
    let group = chunk.group;
    let width = acc.len() / (chunk.heads * group);
    let (places, _) = places(room, width);
    chunk.each_value::<KEYS>(InTurn::<C, _>::new(places, Values { s, acc, group, width, tiles }));
}

/// A line of a tile.
type TileLine = [u8; ROW_BYTES];

/// Two places for rows of a head of `width` numbers that are made ready, and what is left of room.
#[inline(always)]
fn places(room: &mut [u8], width: usize) -> ([&mut [TileLine]; 2], &mut [f32]) {
    let lines = KEYS * width / STEP;
    let (places, rest) = room.split_at_mut(2 * lines * ROW_BYTES);
    let (first, second) = places.as_chunks_mut().0.split_at_mut(lines);
    ([first, second], numbers_mut(rest))
}

/// What becomes of rows of a head.
trait Multiplies {
    /// Makes rows ready.
    fn widen<C: Coded>(rows: &Few<'_, KEYS>, lines: &mut [TileLine], soon: Lines);

    /// Multiplies those of the keys from a place on.
    fn multiply(&mut self, head: usize, place: usize, lines: &[TileLine]);
}

/// Multiplies rows of a head when the next ones are ready, in the other of two places: tiles would wait for what was just stored.
struct InTurn<'m, C, M> {
    places: [&'m mut [TileLine]; 2],
    last: usize,
    /// The head and the place of the keys whose rows wait in the last one.
    waiting: Option<(usize, usize)>,
    work: M,
    codes: PhantomData<fn() -> C>,
}

impl<'m, C, M: Multiplies> InTurn<'m, C, M> {
    #[inline(always)]
    fn new(places: [&'m mut [TileLine]; 2], work: M) -> Self {
        Self { places, last: 0, waiting: None, work, codes: PhantomData }
    }
}

impl<C: Coded, M: Multiplies> Takes<KEYS> for InTurn<'_, C, M> {
    #[inline(always)]
    fn take(&mut self, head: usize, place: usize, rows: &Few<'_, KEYS>, soon: Lines) {
        let before = self.last;
        self.last = 1 - before;
        M::widen::<C>(rows, self.places[self.last], soon);
        if let Some((head, place)) = self.waiting.replace((head, place)) {
            self.work.multiply(head, place, self.places[before]);
        }
    }

    #[inline(always)]
    fn end(&mut self) {
        if let Some((head, place)) = self.waiting {
            self.work.multiply(head, place, self.places[self.last]);
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
    tiles: &'m Tiles,
}

impl Multiplies for Scores<'_> {
    #[inline(always)]
    fn widen<C: Coded>(k: &Few<'_, KEYS>, lines: &mut [TileLine], soon: Lines) {
        widen_keys::<C>(k, lines, soon);
    }

    /// Turns the scores of all heads after the last one's.
    #[inline(always)]
    fn multiply(&mut self, head: usize, place: usize, lines: &[TileLine]) {
        let (group, of_head) = (self.group, self.made.len() / self.heads);
        let q = &self.q[head * self.q.len() / self.heads..];
        multiply(lines, q, &mut self.made[head * of_head..][..of_head], group, self.tiles);
        if head + 1 == self.heads {
            for (made, s) in self.made.chunks_exact(of_head).zip(self.s.chunks_exact_mut(group * LD)) {
                let (upper, lower) = made.split_at(of_head / 2);
                turn(upper, group, &mut s[place..]);
                turn(lower, group, &mut s[place + ROWS..]);
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
    tiles: &'m Tiles,
}

impl Multiplies for Values<'_> {
    #[inline(always)]
    fn widen<C: Coded>(v: &Few<'_, KEYS>, lines: &mut [TileLine], soon: Lines) {
        widen_values::<C>(v, lines, soon);
    }

    #[inline(always)]
    fn multiply(&mut self, head: usize, place: usize, lines: &[TileLine]) {
        let (group, width) = (self.group, self.width);
        let weights = &self.s[head * group * LD + place / 2..][..(group - 1) * LD + PAIRS];
        add(weights, lines, group, &mut self.acc[head * group * width..][..group * width], self.tiles);
    }
}

#[inline(always)]
fn store(pairs: __m512i, line: &mut TileLine) {
    // SAFETY: only code compiled for `paired::FEATURES` calls this, on processors that have them; a line is 64 bytes.
    unsafe { _mm512_storeu_si512(line.as_mut_ptr().cast(), pairs) };
}

/// Rows of K as left rows, one after the other.
#[inline(always)]
fn widen_keys<C: Coded>(k: &Few<'_, KEYS>, lines: &mut [TileLine], mut soon: Lines) {
    let units = k.units::<C::Unit>();
    for (key, row) in lines.chunks_exact_mut(2 * units).enumerate() {
        for (unit, lines) in row.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            soon.ask(size_of::<C::Unit>() / LINE);
            // SAFETY: there are as many rows, of as many units.
            let [codes] = unsafe { k.some(key, unit) };
            for (pairs, line) in C::pairs(codes).into_iter().zip(lines) {
                store(pairs, line);
            }
        }
    }
}

/// Rows of V as right tiles, one after the other.
#[inline(always)]
fn widen_values<C: Coded>(v: &Few<'_, KEYS>, lines: &mut [TileLine], mut soon: Lines) {
    for two in 0..PAIRS {
        for (unit, lines) in lines.as_chunks_mut::<{ OF_UNIT * PAIRS }>().0.iter_mut().enumerate() {
            soon.ask(2 * size_of::<C::Unit>() / LINE);
            // SAFETY: there are as many rows, of as many units.
            let ([a], [b]) = unsafe { (v.some(2 * two, unit), v.some(2 * two + 1, unit)) };
            for (tile, pairs) in C::of_two([a, b]).into_iter().enumerate() {
                store(pairs, &mut lines[tile * PAIRS + two]);
            }
        }
    }
}

/// `made[key][row]` of rows of K and right tiles of Q; rows of it are as far apart as the next power of two.
#[inline(always)]
fn multiply(left: &[TileLine], right: &[f32], made: &mut [f32], group: usize, _: &Tiles) {
    let steps = left.len() / KEYS;
    assert!(steps > 0 && left.len() == KEYS * steps, "{KEYS} rows");
    assert!(right.len() >= steps * STEP / 2 * group && made.len() >= KEYS * group.next_power_of_two());
    #[cfg(test)]
    if crate::amx::is_imitated() {
        let left = left.as_flattened();
        let right = bytes_of(right);
        for (key, made) in made.chunks_exact_mut(group.next_power_of_two()).enumerate() {
            for (row, made) in made[..group].iter_mut().enumerate() {
                let pairs = (0..steps * STEP / 2)
                    .map(|pair| [&left[4 * (key * steps * STEP / 2 + pair)..], &right[4 * (pair * group + row)..]]);
                *made = pairs.map(imitated).sum();
            }
        }
        return;
    }
    let right = right.as_ptr();
    for (left, made) in left.chunks_exact(ROWS * steps).zip(made.chunks_exact_mut(ROWS * group.next_power_of_two())) {
        // SAFETY: tiles have their shape, since there is a value that says so, and as much memory is there.
        unsafe {
            asm!(
                "tilezero tmm0",
                "2:",
                "tileloadd tmm1, [{right} + {right_ld}]",
                "tileloadd tmm2, [{left} + {left_ld}]",
                "tdpbf16ps tmm0, tmm2, tmm1",
                "add {left}, {bytes}",
                "add {right}, {step}",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{made} + {made_ld}], tmm0",
                left = inout(reg) left.as_ptr() => _,
                left_ld = in(reg) steps * ROW_BYTES,
                right = inout(reg) right => _,
                right_ld = in(reg) 4 * group,
                step = in(reg) 4 * group * STEP / 2,
                steps = inout(reg) steps => _,
                made = in(reg) made.as_mut_ptr(),
                made_ld = in(reg) 4 * group.next_power_of_two(),
                bytes = const ROW_BYTES,
                out("tmm0") _, out("tmm1") _, out("tmm2") _,
                options(nostack),
            );
        }
    }
}

/// Adds right tiles of V times packed weights, rows of which are [`LD`] apart, to rows of sums.
#[inline(always)]
fn add(weights: &[f32], right: &[TileLine], group: usize, acc: &mut [f32], _: &Tiles) {
    let (tiles, width) = (right.len() / PAIRS, acc.len() / group);
    assert!(tiles > 0 && width == tiles * LANES && weights.len() >= (group - 1) * LD + PAIRS);
    #[cfg(test)]
    if crate::amx::is_imitated() {
        let (weights, right) = (bytes_of(weights), right.as_flattened());
        for (row, acc) in acc.chunks_exact_mut(width).enumerate() {
            for (column, sum) in acc.iter_mut().enumerate() {
                let line = |pair| (column / LANES * PAIRS + pair) * ROW_BYTES + column % LANES * 4;
                let pairs = (0..PAIRS).map(|pair| [&weights[4 * (row * LD + pair)..], &right[line(pair)..]]);
                *sum += pairs.map(imitated).sum::<f32>();
            }
        }
        return;
    }
    // SAFETY: as in `multiply`.
    unsafe {
        asm!(
            "tileloadd tmm4, [{weights} + {weights_ld}]",
            "2:",
            "tileloadd tmm3, [{acc} + {acc_ld}]",
            "tileloadd tmm2, [{right} + {right_ld}]",
            "tdpbf16ps tmm3, tmm4, tmm2",
            "tilestored [{acc} + {acc_ld}], tmm3",
            "add {right}, {step}",
            "add {acc}, {right_ld}",
            "dec {tiles}",
            "jnz 2b",
            weights = in(reg) weights.as_ptr(),
            weights_ld = in(reg) 4 * LD,
            right = inout(reg) right.as_ptr() => _,
            right_ld = in(reg) ROW_BYTES,
            acc = inout(reg) acc.as_mut_ptr() => _,
            acc_ld = in(reg) 4 * width,
            tiles = inout(reg) tiles => _,
            step = const PAIRS * ROW_BYTES,
            out("tmm2") _, out("tmm3") _, out("tmm4") _,
            options(nostack),
        );
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
    let mut rows: [__m512; N] = std::array::from_fn(|i| <Avx512 as Vectors<f32>>::load(&made[i * LANES..]));
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
