//! Blocks of keys as numbers: row by row, or as columns.

use super::{
    chunk::BLOCK,
    places::{Source, Token},
    product::LANES,
    sight::Tile,
    turn::{Turns, turn},
};
use crate::{
    memory::{LINE, prefetch},
    numbers::{self, Real, small},
    simd::{Isa, Work, arith::Arith},
};
use kp_hal::DType;
use std::ops::Range;

/// Runs `$body` with `$value`, which makes a number of a code of `$bytes` bytes, for the types that long loops read:
/// once per type, so that no loop asks. Other types run `$other`.
macro_rules! by_type {
    ($dtype:expr, $R:ident, $bytes:ident $value:ident => $body:expr, $other:expr) => {{
        macro_rules! of {
            ($size:literal, $from:expr) => {{
                const $bytes: usize = $size;
                let $value = |code: u32| $R::from_f32($from(code));
                $body
            }};
        }
        match $dtype {
            DType::F32 => of!(4, f32::from_bits),
            DType::F16 => of!(2, |code: u32| small::F16.decode(code)),
            DType::Bf16 => of!(2, |code: u32| f32::from_bits(code << 16)),
            DType::E4m3 => of!(1, |code: u32| small::E4M3.decode(code)),
            DType::E5m2 => of!(1, |code: u32| small::E5M2.decode(code)),
            _ => $other,
        }
    }};
}

/// Where the keys of a block begin, in elements, and what scales them.
struct Places<R> {
    first: [usize; BLOCK],
    scale: [R; BLOCK],
}

impl Source<'_> {
    /// Of at most a block of keys.
    #[inline(always)]
    fn places<R: Real>(&self, tile: &Tile<'_>, keys: Range<usize>) -> Places<R> {
        let mut places = Places { first: [0; BLOCK], scale: [R::ONE; BLOCK] };
        for (at, token, count) in tile.sequence.stretches(keys) {
            let first = self.rows.first(token, tile.kv_head);
            for i in 0..count {
                places.first[at + i] = first + i * self.rows.ld;
                places.scale[at + i] = self.scale((token.0, token.1 + i), tile.kv_head);
            }
        }
        places
    }

    /// Reads one row to the front of `out` and fills the rest with zeros.
    #[inline(always)]
    pub(crate) fn read<I: Isa, R: Real>(&self, token: Token, head: usize, out: &mut [R]) {
        I::run(Row { source: self, token, head, out });
    }

    /// Reads at most a block of a tile's keys as rows `ld` apart, filled up with zeros to whole lanes.
    #[inline(always)]
    pub(crate) fn read_rows<I: Isa, R: Real>(&self, tile: &Tile<'_>, keys: Range<usize>, ld: usize, out: &mut [R]) {
        I::run(Keys { source: self, tile, keys, ld, out });
    }

    /// Reads at most a block of a tile's keys as columns: `[dim][BLOCK]`, of which those past the last key hold
    /// anything. `rows` has room for the keys `ld` apart.
    #[inline(always)]
    pub(crate) fn read_columns<I: Turns<R>, R: Arith>(
        &self,
        tile: &Tile<'_>,
        keys: Range<usize>,
        (rows, ld): (&mut [R], usize),
        out: &mut [R],
    ) {
        let (dim, count) = (self.rows.dim, keys.len());
        let Places { mut first, scale } = self.places::<R>(tile, keys.clone());
        let any = first[0];
        first[count..].fill(any);
        by_type!(self.rows.dtype, R, BYTES value => {
            const PER_WORD: usize = 4 / BYTES;
            if I::WORDS && dim.is_multiple_of(LANES * PER_WORD) {
                for lane in (0..BLOCK).step_by(LANES) {
                    for word in (0..dim / PER_WORD).step_by(LANES) {
                        let mut words = [[0; LANES]; LANES];
                        let mut places = [0; LANES];
                        for (place, first) in places.iter_mut().zip(&first[lane..]) {
                            *place = first * BYTES + 4 * word;
                        }
                        I::words(self.codes, &places, &mut words);
                        let scale: &[R; LANES] = scale[lane..].first_chunk().expect("a block is whole lanes");
                        for (j, words) in words.iter().enumerate() {
                            for part in 0..PER_WORD {
                                let column = (word + j) * PER_WORD + part;
                                let out = out[column * BLOCK + lane..].first_chunk_mut::<LANES>().expect("whole lanes");
                                for ((out, word), &scale) in out.iter_mut().zip(words).zip(scale) {
                                    let code = (word >> (8 * BYTES * part)) & (u32::MAX >> (32 - 8 * BYTES));
                                    *out = value(code) * scale;
                                }
                            }
                        }
                    }
                }
                return;
            }
        }, {});
        self.read_rows::<I, R>(tile, keys, ld, rows);
        rows[count * ld..].fill(R::ZERO);
        turn::<I, R>((rows, ld), (BLOCK, dim.next_multiple_of(LANES)), R::ONE, (out, BLOCK));
    }

    /// Asks for the keys a block after these: where little is computed, memory would rest meanwhile.
    #[inline(always)]
    pub(crate) fn expect(&self, tile: &Tile<'_>, keys: Range<usize>) {
        let next = keys.start + BLOCK..tile.end.min(keys.end + BLOCK).max(keys.start + BLOCK);
        let (count, mut at) = (next.len(), [std::ptr::null(); BLOCK]);
        let lines = self.starts(tile, next, &mut at);
        for row in &at[..count] {
            (0..lines).for_each(|line| prefetch::<2>(row.wrapping_add(LINE * line)));
        }
    }

    /// Where at most a block of keys begin, and how many lines each takes at least.
    #[inline(always)]
    pub(super) fn starts(&self, tile: &Tile<'_>, keys: Range<usize>, out: &mut [*const u8]) -> usize {
        let bits = self.rows.dtype.bits() as usize;
        for (at, token, count) in tile.sequence.stretches(keys) {
            let first = self.rows.first(token, tile.kv_head);
            for (i, out) in out[at..at + count].iter_mut().enumerate() {
                *out = self.codes.as_ptr().wrapping_add((first + i * self.rows.ld) * bits / 8);
            }
        }
        (self.rows.dim * bits / 8).div_ceil(LINE)
    }
}

/// Reads numbers from number `first` of `codes` on.
#[inline(always)]
fn each<R: Real, const BYTES: usize>(out: &mut [R], codes: &[u8], first: usize, value: impl Fn(u32) -> R) {
    let codes = &codes[first * BYTES..(first + out.len()) * BYTES];
    for (out, code) in out.iter_mut().zip(codes.as_chunks::<BYTES>().0) {
        let mut word = [0; 4];
        word[..BYTES].copy_from_slice(code);
        *out = value(u32::from_le_bytes(word));
    }
}

/// A row that is read. A work, as blocks of keys are, so that the loops over each type are compiled once, not wherever rows are read.
struct Row<'r, 'a, R> {
    source: &'r Source<'a>,
    token: Token,
    head: usize,
    out: &'r mut [R],
}

impl<R: Real> Work for Row<'_, '_, R> {
    #[inline(always)]
    fn run(self) {
        let Self { source, token, head, out } = self;
        let (row, rest) = out.split_at_mut(source.rows.dim);
        let (first, scale) = (source.rows.first(token, head), source.scale(token, head));
        by_type!(source.rows.dtype, R, BYTES value => {
            each::<R, BYTES>(row, source.codes, first, |code| value(code) * scale);
        }, {
            numbers::read(source.rows.dtype, source.codes, first, row);
            row.iter_mut().for_each(|x| *x *= scale);
        });
        rest.fill(R::ZERO);
    }
}

/// Rows of keys.
struct Keys<'r, 'a, R> {
    source: &'r Source<'a>,
    tile: &'r Tile<'r>,
    keys: Range<usize>,
    ld: usize,
    out: &'r mut [R],
}

impl<R: Real> Work for Keys<'_, '_, R> {
    #[inline(always)]
    fn run(self) {
        let Self { source, tile, keys, ld, out } = self;
        let (dtype, dim, count) = (source.rows.dtype, source.rows.dim, keys.len());
        let Places { first, scale } = source.places::<R>(tile, keys);
        by_type!(dtype, R, BYTES value => {
            for (i, row) in out.chunks_exact_mut(ld).take(count).enumerate() {
                each::<R, BYTES>(&mut row[..dim], source.codes, first[i], |code| value(code) * scale[i]);
            }
        }, {
            for (i, row) in out.chunks_exact_mut(ld).take(count).enumerate() {
                numbers::read(dtype, source.codes, first[i], &mut row[..dim]);
                row[..dim].iter_mut().for_each(|x| *x *= scale[i]);
            }
        });
        let width = dim.next_multiple_of(LANES);
        if dim < width {
            out.chunks_exact_mut(ld).take(count).for_each(|row| row[dim..width].fill(R::ZERO));
        }
    }
}
