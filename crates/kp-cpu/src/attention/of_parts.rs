//! Numbers of Q, K and V as sums of up to three of bf16, weights of three: as many products of pairs by tiles of AMX as
//! [f32 takes](crate::gemm::amx::parts).
//!
//! ```text
//!   Q, of a panel            [32 rows][step of 32 numbers][part][16 rows]: lines of pairs of numbers
//!   K, of a block            [16 keys][step of 32 numbers][part]: rows of pairs of numbers
//!   V, of a run              [16 numbers][step of 32 keys][part]: rows of pairs of keys
//!   weights                  [32 rows][step of 32 keys][part][16 rows]: lines of pairs of keys
//! ```
//! What has scales may fill all bits of f32, and has three parts.

use super::{
    chunk::{BLOCK as KEYS, Inputs, PANEL},
    held::RUN,
    pairs::{BLOCK, Engine, Reads, STEP, Sizes},
    places::Dims,
    soon::Soon,
};
use crate::{
    amx::{ROW_BYTES, ROWS, TILE_BYTES, Tiles},
    gemm::amx::{
        lines::turn,
        parts::{PARTS, Places, left_bytes, right_bytes, split_lines, split_plain, split_rows},
        terms::{Split, add_products},
    },
    simd::{Avx512, arith::exp2::TERMS},
};
use kp_hal::{
    DType,
    op::{Format, Scheme},
};
use std::{
    arch::x86_64::{__m512, _mm512_storeu_si512},
    ops::Range,
};

/// Steps of a run of keys.
const RUN_STEPS: usize = RUN / STEP;

/// Bytes of weights of a step of 32 rows.
const WEIGHTS: usize = right_bytes(PARTS);

/// How many parts numbers have.
pub(super) fn parts_of(format: Format) -> usize {
    match format.dtype {
        _ if format.scheme != Scheme::None => PARTS,
        DType::Bf16 | DType::E4m3 | DType::E5m2 => 1,
        DType::F16 => 2,
        _ => PARTS,
    }
}

/// Steps of a row of Q or K.
fn steps(dims: Dims) -> usize {
    dims.qk.div_ceil(STEP)
}

/// The engine, for numbers of Q, and of K and V, of so many parts.
pub(super) struct OfParts {
    q: usize,
    kv: usize,
    tiles: Tiles,
}

impl Engine for OfParts {
    const AT_ONCE: usize = RUN;

    /// 24 KB of 32 rows.
    const WAIT: usize = 4;

    /// 1.5 MB of f32 with 128 numbers a head.
    const PLACES: usize = 2;

    const POWERS: &'static [f32] = &[TERMS[4], TERMS[3], TERMS[2], TERMS[1], TERMS[0], 1.0];

    unsafe fn new(inputs: &Inputs<'_, f32>) -> Self {
        // SAFETY: passed on.
        let tiles = unsafe { Tiles::new() };
        Self { q: parts_of(inputs.q.format), kv: parts_of(inputs.k.format), tiles }
    }

    fn sizes(q: Format, kv: Format, dims: Dims) -> Sizes {
        let [q, kv] = [q, kv].map(parts_of);
        Sizes {
            queries: PANEL / BLOCK * steps(dims) * right_bytes(q),
            keys: KEYS / ROWS * steps(dims) * left_bytes(kv),
            values: dims.v_width.next_multiple_of(BLOCK) / ROWS * RUN_STEPS * left_bytes(kv),
            weights: PANEL / BLOCK * Self::WAIT * WEIGHTS,
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    unsafe fn queries(reads: Reads<'_>, rows: Range<usize>, out: &mut [u8]) -> bool {
        let Reads { inputs, tile, lines } = reads;
        let (dims, ld, parts) = (inputs.dims, inputs.dims.qk_ld(), parts_of(inputs.q.format));
        for (row, line) in rows.clone().map(|row| tile.row(row)).zip(lines.chunks_exact_mut(ld)) {
            inputs.q.read::<Avx512, _>(tile.sequence.query(row.query), row.head, &mut line[..dims.qk_width]);
        }
        let mut special = false;
        for (block, out) in out.chunks_exact_mut(steps(dims) * right_bytes(parts)).enumerate() {
            for tile in 0..BLOCK / ROWS {
                let first = block * BLOCK + tile * ROWS;
                let (there, to) = (rows.len().saturating_sub(first).min(ROWS), &mut out[tile * TILE_BYTES..]);
                special |= split_rows((&lines[first * ld..], ld), there, dims.qk, parts, (Places::right(parts), to));
            }
            turn(out);
        }
        !special
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    unsafe fn keys(&self, reads: Reads<'_>, keys: Range<usize>, out: &mut [u8]) -> bool {
        let Reads { inputs, tile, lines } = reads;
        let (dims, ld) = (inputs.dims, inputs.dims.qk_ld());
        let count = keys.len();
        inputs.k.read_rows::<Avx512, _>(tile, keys, ld, lines);
        let mut special = false;
        for (i, out) in out.chunks_exact_mut(steps(dims) * left_bytes(self.kv)).enumerate() {
            let (first, there) = (i * ROWS, count.saturating_sub(i * ROWS).min(ROWS));
            let to = (Places::left(self.kv), out);
            special |= split_rows((&lines[first * ld..], ld), there, dims.qk, self.kv, to);
        }
        !special
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    unsafe fn values(&self, reads: Reads<'_>, keys: Range<usize>, (step, out): (usize, &mut [u8])) -> bool {
        let Reads { inputs, tile, lines } = reads;
        let (dims, ld) = (inputs.dims, inputs.dims.v_ld());
        let count = keys.len();
        inputs.v.read_rows::<Avx512, _>(tile, keys, ld, lines);
        let of_step = left_bytes(self.kv);
        let places = Places { step: of_step, part: TILE_BYTES, tile: RUN_STEPS * of_step, is_apart: false };
        let mut special = false;
        for (i, out) in out.chunks_exact_mut(2 * places.tile).enumerate() {
            let columns = (dims.v_width - i * BLOCK).min(BLOCK);
            let to = (places, &mut out[step * of_step..]);
            special |= split_lines((&lines[i * BLOCK..], ld), columns, count, self.kv, to);
            for out in out.chunks_exact_mut(places.tile) {
                turn(&mut out[step * of_step..][..count.div_ceil(STEP) * of_step]);
            }
        }
        !special
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    unsafe fn scores(&self, dims: Dims, k: &[u8], q: &[u8], [keys, rows]: [usize; 2], s: &mut [f32], soon: &mut Soon) {
        let of_keys = steps(dims) * left_bytes(self.kv);
        for (lane, q) in (0..rows).step_by(BLOCK).zip(q.chunks_exact(steps(dims) * right_bytes(self.q))) {
            (0..keys / BLOCK).for_each(|_| soon.ask());
            let left = (Split { tiles: k, parts: self.kv }, of_keys, keys / ROWS);
            let right = Split { tiles: q, parts: self.q };
            // SAFETY: both were split to as many steps; the rest is passed on.
            unsafe { add_products(left, right, steps(dims), (&mut s[lane..], PANEL), true, &self.tiles) };
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    unsafe fn put(pair: usize, lane: usize, [low, high]: [__m512; 2], out: *mut u8) {
        let out = out.wrapping_add(place(pair, lane));
        for (part, line) in split_plain(low, high).into_iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { _mm512_storeu_si512(out.wrapping_add(2 * part * TILE_BYTES).cast(), line) };
        }
    }

    fn weight(weights: &[u8], key: usize, lane: usize) -> f32 {
        let at = place(key / 2, lane) + lane % ROWS * 4 + key % 2 * 2;
        let part = |part: usize| {
            let code = &weights[at + 2 * part * TILE_BYTES..];
            f32::from_bits(u32::from(u16::from_le_bytes([code[0], code[1]])) << 16)
        };
        part(2) + part(1) + part(0)
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    unsafe fn add(&self, dims: Dims, values: &[u8], steps: Range<usize>, weights: &[u8], rows: usize, acc: &mut [f32]) {
        let of_step = left_bytes(self.kv);
        let left = Split { tiles: &values[steps.start * of_step..], parts: self.kv };
        let left = (left, RUN_STEPS * of_step, dims.v_width / ROWS);
        for lane in (0..rows).step_by(BLOCK) {
            let right = Split { tiles: &weights[place(steps.start % Self::WAIT * ROWS, lane)..], parts: PARTS };
            let sums = (&mut acc[lane..], PANEL);
            // SAFETY: values and weights of these steps are there; the rest is passed on.
            unsafe { add_products(left, right, steps.len(), sums, false, &self.tiles) };
        }
    }
}

/// Where the first part of a line of weights begins: the line of a pair of keys and the 16 rows of a lane.
fn place(pair: usize, lane: usize) -> usize {
    let of_rows = lane / BLOCK * OfParts::WAIT * WEIGHTS;
    of_rows + pair / ROWS * WEIGHTS + lane % BLOCK / ROWS * TILE_BYTES + pair % ROWS * ROW_BYTES
}
