//! Q, K and V of bf16 as they are, weights rounded to it: one product of pairs, by tiles of AMX or by dot products of AVX-512.
//!
//! ```text
//!   Q, of a panel            [pair of numbers][row]
//!   K, of a block            [key][number]
//!   V, of a run              [step of 32 keys][number][key]
//!   weights, of a step       [pair of keys][row]
//! ```

use super::{
    chunk::{BLOCK as KEYS, Inputs, PANEL},
    dots,
    held::RUN,
    pairs::{BLOCK, Engine, Reads, STEP, Sizes},
    places::{Dims, Source},
    sight::Tile as Rows,
    soon::Soon,
    turn::Turns,
};
use crate::{
    amx::{ROW_BYTES, ROWS, Tiles},
    gemm::{
        amx::tile::{Dot, Operand, Passes, Tile},
        few::columns::{bytes, bytes_mut},
        vnni::pack::transposed,
    },
    simd::Avx512,
};
use kp_hal::op::Format;
use std::{
    arch::x86_64::{
        __m512, __m512i, __mmask32, _mm512_add_epi32, _mm512_and_si512, _mm512_castps_si512, _mm512_cmpge_epu16_mask,
        _mm512_mask_blend_epi16, _mm512_maskz_loadu_epi16, _mm512_max_epu16, _mm512_set1_epi16, _mm512_set1_epi32,
        _mm512_setzero_si512, _mm512_srli_epi32, _mm512_storeu_si512, _mm512_unpackhi_epi16, _mm512_unpacklo_epi16,
    },
    ops::Range,
};

/// Bytes from a line of Q, of scores, of weights or of sums to the next.
const LD: usize = 4 * PANEL;

/// Bytes of a row of Q or K: pairs of numbers, filled up with zeros to whole steps.
fn row_bytes(dims: Dims) -> usize {
    2 * dims.qk.next_multiple_of(STEP)
}

/// Bytes of a step of V.
fn step_bytes(dims: Dims) -> usize {
    ROW_BYTES * dims.v_width.next_multiple_of(BLOCK)
}

/// By tiles, or by dot products.
pub(super) struct OfBf16<const TILED: bool>(Option<Tiles>);

impl<const TILED: bool> Engine for OfBf16<TILED> {
    /// For tiles all of a run, so that a panel's rows and sums stay in the first cache meanwhile; dot products take long enough to bring
    /// near what comes next, of which the second cache holds no more where rows lie a power of two apart.
    const AT_ONCE: usize = if TILED { RUN } else { KEYS };

    /// 32 KB.
    const WAIT: usize = 8;

    /// 2 MB with 128 numbers a head, about what a second cache holds.
    const PLACES: usize = 8;

    /// Within 3·10⁻⁶, which is nothing beside what bf16 loses: of a fourth degree, and exactly 1 of 0.
    const POWERS: &'static [f32] = &[0.009_582_841, 0.055_906_422, 0.240_240_99, 0.693_124_2, 1.0];

    unsafe fn new(_: &Inputs<'_, f32>) -> Self {
        // SAFETY: passed on.
        Self(TILED.then(|| unsafe { Tiles::new() }))
    }

    fn sizes(_: Format, _: Format, dims: Dims) -> Sizes {
        Sizes {
            queries: row_bytes(dims) * PANEL,
            keys: row_bytes(dims) * KEYS,
            values: RUN / STEP * step_bytes(dims),
            weights: Self::WAIT * ROWS * LD,
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    unsafe fn queries(reads: Reads<'_>, rows: Range<usize>, out: &mut [u8]) -> bool {
        let Reads { inputs, tile, lines } = reads;
        let (ld, out) = (row_bytes(inputs.dims), out.as_chunks_mut::<LD>().0);
        let lines = &mut bytes_mut(lines)[..PANEL * ld];
        let (there, rest) = lines.split_at_mut(rows.len() * ld);
        for (row, line) in rows.map(|row| tile.row(row)).zip(there.chunks_exact_mut(ld)) {
            for (at, codes) in row_of(&inputs.q, inputs.q.rows.first(tile.sequence.query(row.query), row.head)) {
                store(codes, &mut line[at..]);
            }
        }
        rest.fill(0);
        for lane in (0..PANEL).step_by(ROWS) {
            for word in (0..ld / 4).step_by(ROWS) {
                let places = std::array::from_fn(|i| (lane + i) * ld + 4 * word);
                let mut turned = [[0; ROWS]; ROWS];
                <Avx512 as Turns<f32>>::words(lines, &places, &mut turned);
                for (out, turned) in out[word..].iter_mut().zip(&turned) {
                    out[4 * lane..4 * (lane + ROWS)].copy_from_slice(bytes(turned));
                }
            }
        }
        true
    }

    /// Tiles take whatever bf16 there is.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    unsafe fn keys(&self, reads: Reads<'_>, keys: Range<usize>, out: &mut [u8]) -> bool {
        let Reads { inputs, tile, .. } = reads;
        copy_rows(&inputs.k, tile, keys, row_bytes(inputs.dims), out);
        true
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    unsafe fn values(&self, reads: Reads<'_>, keys: Range<usize>, (step, out): (usize, &mut [u8])) -> bool {
        let Reads { inputs, tile, .. } = reads;
        let each = step_bytes(inputs.dims);
        turn_rows(&inputs.v, tile, keys, each, &mut out[step * each..])
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    unsafe fn scores(&self, dims: Dims, k: &[u8], q: &[u8], [keys, rows]: [usize; 2], s: &mut [f32], soon: &mut Soon) {
        let ld = row_bytes(dims);
        for (k, s) in k.chunks_exact(BLOCK * ld).zip(s.chunks_exact_mut(BLOCK * PANEL)).take(keys / BLOCK) {
            let left = Operand { at: [k.as_ptr(), k[ld * ROWS..].as_ptr()], ld, step: ROW_BYTES };
            for lane in (0..rows).step_by(BLOCK) {
                soon.ask();
                // SAFETY: rows of K, pairs of Q and room for scores are there; the rest is passed on.
                unsafe { self.product(left, right(q, lane), ld / ROW_BYTES, s, lane, true) };
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    unsafe fn put(pair: usize, lane: usize, [low, high]: [__m512; 2], out: *mut u8) {
        // Ties away from 0: a factor of a sum has no better side.
        let half = _mm512_set1_epi32(0x8000);
        let [low, high] = [low, high].map(|x| _mm512_add_epi32(_mm512_castps_si512(x), half));
        let codes = _mm512_mask_blend_epi16(0xaaaa_aaaa, _mm512_srli_epi32::<16>(low), high);
        // SAFETY: the caller's promise.
        unsafe { _mm512_storeu_si512(out.wrapping_add(pair * LD + 4 * lane).cast(), codes) };
    }

    fn weight(weights: &[u8], key: usize, lane: usize) -> f32 {
        let code = &weights[key / 2 * LD + 4 * lane + key % 2 * 2..];
        f32::from_bits(u32::from(u16::from_le_bytes([code[0], code[1]])) << 16)
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    unsafe fn add(&self, dims: Dims, values: &[u8], steps: Range<usize>, weights: &[u8], rows: usize, acc: &mut [f32]) {
        let (each, weights) = (step_bytes(dims), &weights[steps.start % Self::WAIT * ROWS * LD..]);
        let codes = &values[steps.start * each..steps.end * each];
        for value in (0..dims.v_width).step_by(BLOCK) {
            let first = codes[value * ROW_BYTES..].as_ptr();
            // Where a second tile of values is none, the first one once more.
            let second = if value + ROWS < dims.v_width { ROWS } else { 0 };
            let at = [first, first.wrapping_add(ROW_BYTES * second)];
            let left = Operand { at, ld: ROW_BYTES, step: each };
            let sums = &mut acc[value * PANEL..][..(ROWS + second) * PANEL];
            for lane in (0..rows).step_by(BLOCK) {
                // SAFETY: columns of V, pairs of weights and sums are there; the rest is passed on.
                unsafe { self.product(left, right(weights, lane), steps.len(), sums, lane, false) };
            }
        }
    }
}

/// Pairs of the block of rows that begins at `lane` as right operand, 16 lines a step.
fn right(pairs: &[u8], lane: usize) -> Operand {
    let at = pairs[4 * lane..].as_ptr();
    Operand { at: [at, at.wrapping_add(ROW_BYTES)], ld: LD, step: ROWS * LD }
}

impl<const TILED: bool> OfBf16<TILED> {
    /// A product to columns `lane` and after, of 16 or 32 rows of sums.
    ///
    /// # Safety
    /// - The operands have `steps` steps.
    /// - The processor has the instructions.
    unsafe fn product(&self, left: Operand, right: Operand, steps: usize, sums: &mut [f32], lane: usize, first: bool) {
        let halves = sums.len() / (ROWS * PANEL);
        let upper = sums[lane..].as_mut_ptr().cast::<u32>();
        let sums = [upper, upper.wrapping_add(ROWS * PANEL)];
        let tile =
            Tile { left, right, passes: Passes::Left, halves, ahead: [None; 2], steps, sums, sums_ld: LD, first };
        match &self.0 {
            // SAFETY: passed on.
            Some(tiles) => unsafe { tile.run(Dot::Bf16, tiles) },
            // SAFETY: as above.
            None => unsafe { dots::product(&tile) },
        }
    }
}

/// The codes of a row from number `first` on, 64 bytes at a time, and the byte of the row at which they stand.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn row_of(source: &Source<'_>, first: usize) -> impl Iterator<Item = (usize, __m512i)> {
    let (dim, codes) = (source.rows.dim, source.bytes(first));
    (0..dim).step_by(STEP).map(move |at| {
        let mask = u32::MAX >> (STEP - (dim - at).min(STEP));
        // SAFETY: of 32 codes, those that are there.
        (2 * at, unsafe { _mm512_maskz_loadu_epi16(mask, codes[2 * at..].as_ptr().cast()) })
    })
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn store(codes: __m512i, out: &mut [u8]) {
    let out = &mut out[..ROW_BYTES];
    // SAFETY: there is room.
    unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), codes) };
}

/// Copies at most a block of a tile's keys as rows of `ld` bytes, filled up with zeros; rows of no key keep what they had.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn copy_rows(source: &Source<'_>, tile: &Rows<'_>, keys: Range<usize>, ld: usize, out: &mut [u8]) {
    for (at, token, count) in tile.sequence.stretches(keys) {
        let first = source.rows.first(token, tile.kv_head);
        for (i, out) in out[at * ld..].chunks_exact_mut(ld).take(count).enumerate() {
            for (at, codes) in row_of(source, first + i * source.rows.ld) {
                store(codes, &mut out[at..]);
            }
        }
    }
}

/// Turns at most a block of a tile's values: steps of so many bytes, `[number][key]` of 32 keys, zeros where there is none. Answers whether
/// all are finite; those that are not become zeros.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn turn_rows(source: &Source<'_>, tile: &Rows<'_>, keys: Range<usize>, step_bytes: usize, out: &mut [u8]) -> bool {
    let dim = source.rows.dim;
    let mut firsts = [usize::MAX; KEYS];
    for (at, token, count) in tile.sequence.stretches(keys.clone()) {
        let first = source.rows.first(token, tile.kv_head);
        firsts[at..at + count].iter_mut().enumerate().for_each(|(i, place)| *place = first + i * source.rows.ld);
    }
    let (magnitude, infinity) = (_mm512_set1_epi16(0x7fff), _mm512_set1_epi16(0x7f80));
    let mut bounded = true;
    for (step, firsts) in firsts.chunks_exact(STEP).take(keys.len().div_ceil(STEP)).enumerate() {
        for at in (0..dim).step_by(STEP) {
            let mask: __mmask32 = u32::MAX >> (STEP - (dim - at).min(STEP));
            let mut largest = _mm512_setzero_si512();
            let mut read = |first: usize| {
                if first == usize::MAX {
                    return _mm512_setzero_si512();
                }
                let codes = &source.codes[2 * (first + at)..2 * (first + (at + STEP).min(dim))];
                // SAFETY: of 32 codes, those that are there.
                let codes = unsafe { _mm512_maskz_loadu_epi16(mask, codes.as_ptr().cast()) };
                largest = _mm512_max_epu16(largest, _mm512_and_si512(codes, magnitude));
                codes
            };
            // Of each 128 bits the lower and the upper four numbers, in pairs of keys.
            let (mut low, mut high) = ([_mm512_setzero_si512(); ROWS], [_mm512_setzero_si512(); ROWS]);
            for (pair, firsts) in firsts.as_chunks::<2>().0.iter().enumerate() {
                let (even, odd) = (read(firsts[0]), read(firsts[1]));
                (low[pair], high[pair]) = (_mm512_unpacklo_epi16(even, odd), _mm512_unpackhi_epi16(even, odd));
            }
            let is_bounded = _mm512_cmpge_epu16_mask(largest, infinity) == 0;
            bounded &= is_bounded;
            for (first, pairs) in [(at, &low), (at + 4, &high)] {
                let out = &mut out[step_bytes * step + ROW_BYTES * first..];
                for (i, codes) in transposed(*pairs).into_iter().enumerate() {
                    let codes = if is_bounded { codes } else { bounded_only(codes) };
                    store(codes, &mut out[ROW_BYTES * (i / 4 * 8 + i % 4)..]);
                }
            }
        }
    }
    bounded
}

/// Codes, but 0 for those of NaN and infinity.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn bounded_only(codes: __m512i) -> __m512i {
    let magnitude = _mm512_and_si512(codes, _mm512_set1_epi16(0x7fff));
    let unbounded = _mm512_cmpge_epu16_mask(magnitude, _mm512_set1_epi16(0x7f80));
    _mm512_mask_blend_epi16(unbounded, codes, _mm512_setzero_si512())
}
