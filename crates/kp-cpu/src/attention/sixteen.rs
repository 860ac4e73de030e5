//! Sixteen rows of K or V at a time: which ones, as numbers, and their products with the rows of one query.

use super::{
    places::{Source, Token},
    product::LANES,
    sight::Tile,
    soon::{LINE, prefetch},
    turn::Turns,
};
use crate::{
    numbers,
    simd::{Avx512, vector::Vectors, widen::Widen},
};
use kp_hal::DType;
use std::ops::Range;

/// Keys whose scores are in cache at one time: sixteen pages of sixteen rows of 256 bytes.
pub(super) const CHUNK: usize = 256;

/// Bytes of a page, within which a processor fetches ahead.
pub(super) const PAGE: usize = 4096;

/// The keys of a chunk in the order in which they are read, sixteen in each step.
pub(super) struct Order {
    tokens: [Token; CHUNK],
    keys: usize,
    /// How far apart the keys of a step are.
    apart: usize,
}

impl Order {
    #[inline(always)]
    pub(super) fn new(tile: &Tile<'_>, keys: Range<usize>, apart: bool) -> Self {
        let count = keys.len();
        let mut order = Self { tokens: [tile.sequence.key(keys.start); CHUNK], keys: count, apart: 1 };
        if apart {
            order.apart = count.div_ceil(LANES);
        }
        for (at, token, many) in tile.sequence.stretches(keys) {
            for i in 0..many {
                let (lane, step) = if apart { ((at + i) / order.apart, (at + i) % order.apart) } else { (0, at + i) };
                order.tokens[if apart { step * LANES + lane } else { step }] = (token.0, token.1 + i);
            }
        }
        order
    }

    pub(super) fn steps(&self) -> usize {
        self.keys.div_ceil(LANES)
    }

    /// Keys of a step; the other lanes stand for no key, and their tokens for any.
    #[inline(always)]
    pub(super) fn count(&self, step: usize) -> usize {
        if self.apart == 1 {
            (self.keys - step * LANES).min(LANES)
        } else {
            self.keys.saturating_sub(step).div_ceil(self.apart)
        }
    }

    /// Which of the chunk's keys a lane of a step is.
    #[inline(always)]
    pub(super) fn key(&self, step: usize, lane: usize) -> usize {
        if self.apart == 1 { step * LANES + lane } else { lane * self.apart + step }
    }

    pub(super) fn tokens(&self, step: usize) -> &[Token; LANES] {
        &self.tokens.as_chunks().0[step]
    }
}

/// Asks for sixteen rows of `heads` heads side by side that will be read next: the share of one `head` of the rows being read.
#[inline(always)]
pub(super) fn ask(source: &Source<'_>, tokens: &[Token; LANES], first_head: usize, (head, heads): (usize, usize)) {
    let bits = source.rows.dtype.bits() as usize;
    for &token in &tokens[LANES * head / heads..LANES * (head + 1) / heads] {
        let first = source.rows.first(token, first_head) * bits / 8;
        for at in (first..first + heads * source.rows.dim * bits / 8).step_by(LINE) {
            prefetch(source.codes.as_ptr().wrapping_add(at));
        }
    }
}

/// Sixteen rows of a head: where they lie if they are whole vectors of f32, else in `room`, filled up with zeros.
#[inline(always)]
pub(super) fn sixteen<'r>(
    source: &Source<'r>,
    tokens: &[Token; LANES],
    head: usize,
    width: usize,
    room: &'r mut [f32],
) -> [&'r [[f32; LANES]]; LANES] {
    let (dtype, dim) = (source.rows.dtype, source.rows.dim);
    let mut rows = [[].as_slice(); LANES];
    if dtype == DType::F32 && dim == width {
        let mut there = 0;
        for (row, &token) in rows.iter_mut().zip(tokens) {
            if let Some(x) = numbers::lying::<f32>(dtype, source.codes, source.rows.first(token, head), dim) {
                *row = x.as_chunks().0;
                there += 1;
            }
        }
        if there == LANES {
            return rows;
        }
    }
    macro_rules! widen {
        ($size:literal, $widen:expr) => {
            for (out, &token) in room.chunks_exact_mut(width).zip(tokens) {
                let first = source.rows.first(token, head) * $size;
                let codes = &source.codes[first..first + dim * $size];
                for (out, codes) in out.as_chunks_mut::<LANES>().0.iter_mut().zip(codes.as_chunks().0) {
                    *out = $widen(codes);
                }
            }
        };
    }
    match dtype {
        DType::Bf16 if dim == width => widen!(2, bf16),
        DType::F16 if dim == width => widen!(2, Avx512::f16),
        DType::E4m3 if dim == width => widen!(1, Avx512::e4m3),
        DType::E5m2 if dim == width => widen!(1, Avx512::e5m2),
        _ => {
            for (out, &token) in room.chunks_exact_mut(width).zip(tokens) {
                numbers::read(dtype, source.codes, source.rows.first(token, head), &mut out[..dim]);
            }
        }
    }
    if dim < width {
        room.chunks_exact_mut(width).take(LANES).for_each(|row| row[dim..].fill(0.0));
    }
    let room: &'r [f32] = room;
    for (row, x) in rows.iter_mut().zip(room.chunks_exact(width)) {
        *row = x.as_chunks().0;
    }
    rows
}

/// Sixteen bf16: the upper halves of f32.
#[inline(always)]
fn bf16(codes: &[u8; 2 * LANES]) -> [f32; LANES] {
    let mut out = [0.0; LANES];
    for (out, &code) in out.iter_mut().zip(codes.as_chunks().0) {
        *out = f32::from_bits(u32::from(u16::from_le_bytes(code)) << 16);
    }
    out
}

/// Multiplies what rows have of a step by the scales of its keys.
#[inline(always)]
pub(super) fn scale(source: &Source<'_>, tokens: &[Token; LANES], head: usize, step: usize, s: &mut [f32]) {
    let by = source.scales(tokens, head);
    for s in s.as_chunks_mut::<CHUNK>().0 {
        s[step * LANES..][..LANES].iter_mut().zip(&by).for_each(|(s, by)| *s *= by);
    }
}

/// Products of rows of Q with sixteen rows of K: to the front of `s` and each multiple of a chunk.
#[inline(always)]
pub(super) fn dots<I: Turns<f32>, const ROWS: usize>(q: &[f32], k: &[&[[f32; LANES]]; LANES], s: &mut [f32]) {
    let zero = I::splat(0.0);
    let vectors = k[0].len();
    let q = &q.as_chunks::<LANES>().0[..ROWS * vectors];
    let mut sums = [[zero; LANES]; ROWS];
    for first in (0..LANES).step_by(4) {
        let k = [&k[first][..vectors], &k[first + 1][..vectors], &k[first + 2][..vectors], &k[first + 3][..vectors]];
        let mut four = [[zero; 4]; ROWS];
        for c in 0..vectors {
            for i in 0..4 {
                let k = I::load(&k[i][c]);
                for row in 0..ROWS {
                    four[row][i] = I::times_plus(I::load(&q[row * vectors + c]), k, four[row][i]);
                }
            }
        }
        for row in 0..ROWS {
            sums[row][first..first + 4].copy_from_slice(&four[row]);
        }
    }
    for row in 0..ROWS {
        I::store(I::sums(sums[row]), &mut s[row * CHUNK..]);
    }
}

/// Adds rows of V times their weights, at the front of `s` and each multiple of a chunk, to rows of sums.
#[inline(always)]
pub(super) fn add<I: Vectors<f32>, const ROWS: usize>(s: &[f32], v: &[&[[f32; LANES]]], acc: &mut [f32]) {
    let vectors = v.first().map_or(0, |v| v.len());
    let acc = &mut acc.as_chunks_mut::<LANES>().0[..ROWS * vectors];
    let mut at = 0;
    while at + 4 <= vectors {
        add_columns::<I, ROWS, 4>(s, v, acc, vectors, at);
        at += 4;
    }
    while at < vectors {
        add_columns::<I, ROWS, 1>(s, v, acc, vectors, at);
        at += 1;
    }
}

/// The same for some vectors of each row, which stay in registers.
#[inline(always)]
fn add_columns<I: Vectors<f32>, const ROWS: usize, const WIDE: usize>(
    s: &[f32],
    v: &[&[[f32; LANES]]],
    acc: &mut [[f32; LANES]],
    vectors: usize,
    at: usize,
) {
    let mut sums: [[I::V; WIDE]; ROWS] = [[I::splat(0.0); WIDE]; ROWS];
    for row in 0..ROWS {
        for wide in 0..WIDE {
            sums[row][wide] = I::load(&acc[row * vectors + at + wide]);
        }
    }
    let s = &s[..(ROWS - 1) * CHUNK + LANES];
    for (i, v) in v.iter().enumerate().take(LANES) {
        let v: &[[f32; LANES]; WIDE] = v[at..].first_chunk().expect("as wide as the rows");
        for row in 0..ROWS {
            let weight = I::splat(s[row * CHUNK + i]);
            for wide in 0..WIDE {
                sums[row][wide] = I::times_plus(weight, I::load(&v[wide]), sums[row][wide]);
            }
        }
    }
    for row in 0..ROWS {
        for wide in 0..WIDE {
            I::store(sums[row][wide], &mut acc[row * vectors + at + wide]);
        }
    }
}
