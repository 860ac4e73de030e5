//! Operands as tiles: lines of 64 bytes, each a step of k of one row, or four bytes of k of sixteen.

use super::codes::Codes;
use crate::{
    amx::{ROW_BYTES, ROWS, TILE_BYTES},
    caps::streams_by_second_cache,
    gemm::{
        across::{Turned, lies_across},
        few::columns::Codes as Columns,
        side::{Scaling, Side},
        vnni::pack::transposed,
    },
    memory::fetch_ahead,
    numbers,
    simd::Avx512,
};
use kp_hal::{
    DType,
    op::{Matrix, Order, Overflow, Scheme},
};
use std::{
    arch::x86_64::{
        __m512i, _MM_HINT_T1, _mm_loadu_si128, _mm_prefetch, _mm256_maskz_loadu_epi8, _mm512_and_si512,
        _mm512_broadcast_i32x4, _mm512_cvtepu8_epi16, _mm512_loadu_si512, _mm512_maskz_loadu_epi8,
        _mm512_maskz_loadu_epi16, _mm512_maskz_shuffle_epi8, _mm512_or_si512, _mm512_permutexvar_epi64,
        _mm512_set1_epi8, _mm512_setr_epi64, _mm512_setzero_si512, _mm512_slli_epi16, _mm512_storeu_si512,
        _mm512_unpackhi_epi16, _mm512_unpacklo_epi16,
    },
    ops::Range,
};

/// Rows that are packed together: those of two tiles.
pub(crate) const BLOCK: usize = 2 * ROWS;

/// Bytes of a step of a block.
pub(crate) const STEP_BYTES: usize = 2 * TILE_BYTES;

/// How many rows ahead of their use rows of A are asked for: on Zen 4 packing 2048² of bf16 takes 0.7 ms so, instead of 0.9.
const ROWS_AHEAD: usize = 4;

/// What lines hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Holds {
    Bf16,
    Bytes,
}

impl Holds {
    /// Elements of a line.
    pub(crate) fn elements(self) -> usize {
        match self {
            Self::Bf16 => ROW_BYTES / 2,
            Self::Bytes => ROW_BYTES,
        }
    }
}

/// How rows become lines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lines {
    pub(super) how: How,
    /// Whether they lie across, so that their codes are [turned](Turned) first.
    pub(super) turned: bool,
}

/// What becomes of codes.
#[derive(Clone, Copy, Debug)]
pub(super) enum How {
    /// Their codes are what lines hold.
    Same,
    /// Two codes a byte, each of which stands for a byte.
    Pairs([u8; 16]),
    /// Codes that stand for numbers of bf16.
    Codes(Codes),
    /// As numbers, with scales or without, of which a line holds multiples of `unit` as `dtype`.
    Numbers { dtype: DType, unit: f32, scaling: Scaling },
}

impl Lines {
    /// How the rows of an operand, B's columns among them, become lines that hold `holds`: bytes are multiples of `unit`,
    /// numbers have their scales or not.
    pub(crate) fn of(matrix: &Matrix, is_b: bool, k: u32, holds: Holds, unit: f32, scaling: Scaling) -> Self {
        let turned = lies_across(matrix, is_b);
        let lies = turned || matches!((matrix.order, is_b), (Order::Row, false) | (Order::Col, true));
        let codes = || Codes::of(matrix, k, scaling == Scaling::Applied).filter(|_| lies).map(Codes::without_global);
        let pairs = |value: fn(usize) -> i8| How::Pairs(std::array::from_fn(|code| value(code) as u8));
        let how = match (holds, matrix.dtype()) {
            (Holds::Bf16, DType::Bf16) if lies && matrix.format.scheme == Scheme::None => How::Same,
            (Holds::Bf16, _) => codes().map_or(How::Numbers { dtype: DType::Bf16, unit, scaling }, How::Codes),
            (Holds::Bytes, DType::I8 | DType::U8) if lies => How::Same,
            (Holds::Bytes, DType::U4) if lies => pairs(|code| code as i8),
            (Holds::Bytes, DType::I4) if lies => pairs(|code| (code as i8 ^ 8) - 8),
            (Holds::Bytes, DType::E2m1) if lies => {
                const TWICE: [i8; 8] = [0, 1, 2, 3, 4, 6, 8, 12];
                pairs(|code| if code < 8 { TWICE[code] } else { -TWICE[code - 8] })
            }
            (Holds::Bytes, dtype) => {
                let dtype = if dtype == DType::U8 { dtype } else { DType::I8 };
                How::Numbers { dtype, unit, scaling: Scaling::Left }
            }
        };
        Self { how, turned: turned && !matches!(how, How::Numbers { .. }) }
    }

    /// Whether lines are rows as they lie.
    pub(crate) fn are_rows(self) -> bool {
        matches!(self.how, How::Same) && !self.turned
    }

    /// Packs outer rows `outer`, a block at most, of elements `inner` to the rows of two tiles a step; what is missing
    /// becomes zeros. `inner` starts at a line's first element. Codes of such rows and elements are asked for meanwhile, a row for each, since
    /// memory would rest while lines are made, and lines wait while it is asked for all at once. `turned` has room if codes are turned.
    ///
    /// # Panics
    /// If `out` is short.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    pub(crate) fn pack(
        self,
        side: &Side<'_>,
        batch: usize,
        (outer, inner): (Range<usize>, Range<usize>),
        (soon, of_soon): (Range<usize>, Range<usize>),
        turned: &mut Turned<'_>,
        out: &mut [u8],
    ) {
        if !self.turned {
            let columns = Columns::of(side, batch, inner.clone());
            return self.how.pack(side, (batch, columns), (outer, inner), (soon, of_soon), out);
        }
        for first in inner.clone().step_by(turned.most().max(1)) {
            let some = first..inner.end.min(first + turned.most());
            // SAFETY: a feature of this function.
            let columns = unsafe { turned.columns(side, batch, outer.clone(), some.clone()) };
            let out = &mut out[self.how.steps(side, first - inner.start) * STEP_BYTES..];
            self.how.pack(side, (batch, columns), (outer.clone(), some), (0..0, 0..0), out);
        }
    }
}

impl How {
    /// Packs rows whose codes are `columns`, as [`Lines::pack`] does.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    fn pack(
        self,
        side: &Side<'_>,
        (batch, columns): (usize, Columns<'_>),
        (outer, inner): (Range<usize>, Range<usize>),
        (soon, of_soon): (Range<usize>, Range<usize>),
        out: &mut [u8],
    ) {
        // Asked once, and not of each line.
        let steps = self.steps(side, inner.len());
        assert!(outer.len() <= BLOCK && out.len() >= steps * STEP_BYTES, "room for a block");
        let store = |out: &mut [u8], row: usize, step: usize, line: __m512i| {
            debug_assert!(row < BLOCK && step < steps, "a line of the block");
            // SAFETY: the block has that line.
            unsafe { _mm512_storeu_si512(out.as_mut_ptr().add(step * STEP_BYTES + row * ROW_BYTES).cast(), line) };
        };
        let there = outer.len();
        // Columns of B are asked for while others are multiplied.
        let asks = side.inner_is_contiguous() && !side.columns && streams_by_second_cache();
        let wanted = Columns::of(side, batch, of_soon.clone());
        let mut soon = soon.filter(|_| !matches!(self, Self::Same | Self::Numbers { .. }) && !of_soon.is_empty());
        let mut ask = || {
            if let Some(o) = soon.next() {
                fetch_ahead(wanted.column(o));
            }
        };
        let rows = match self {
            Self::Codes(codes) => {
                let rows = (outer, inner.clone());
                codes.lines(side, (batch, columns), rows, &mut ask, |r, s, line| store(out, r, s, line));
                0..0
            }
            Self::Numbers { dtype, unit, scaling } => {
                numbers_of(side, batch, (outer, inner.clone()), scaling, |r, first, numbers| {
                    if unit != 1.0 {
                        numbers.iter_mut().for_each(|x| *x *= 1.0 / unit);
                    }
                    let mut line = [0_u8; 2 * SOME];
                    let codes = &mut line[..dtype.bytes(numbers.len() as u64) as usize];
                    numbers::write(dtype, numbers, codes, 0, Overflow::Propagate);
                    let step = dtype.bytes(first as u64) as usize / ROW_BYTES;
                    for (s, codes) in codes.chunks(ROW_BYTES).enumerate() {
                        store(out, r, step + s, bytes(codes));
                    }
                });
                0..0
            }
            _ => outer,
        };
        for (r, o) in rows.enumerate() {
            ask();
            match self {
                Self::Same => {
                    if asks && o + ROWS_AHEAD < side.outer as usize {
                        fetch_ahead(columns.column(o + ROWS_AHEAD));
                    }
                    let (lines, rest) = columns.column(o).as_chunks::<ROW_BYTES>();
                    for (line, step) in lines.iter().zip(out.as_chunks_mut::<STEP_BYTES>().0) {
                        step[r * ROW_BYTES..][..ROW_BYTES].copy_from_slice(line);
                    }
                    if !rest.is_empty() {
                        store(out, r, lines.len(), bytes(rest));
                    }
                }
                Self::Pairs(table) => {
                    // SAFETY: sixteen bytes.
                    let table = _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(table.as_ptr().cast()) });
                    for (s, codes) in columns.column(o).chunks(ROW_BYTES / 2).enumerate() {
                        let mask = !0 >> (ROW_BYTES / 2 - codes.len());
                        // The last byte may hold something else's code.
                        let elements = (inner.len() - s * ROW_BYTES).min(ROW_BYTES);
                        let there = !0 >> (ROW_BYTES - elements);
                        // SAFETY: of 32 bytes, those that are there.
                        let pairs = unsafe { _mm256_maskz_loadu_epi8(mask, codes.as_ptr().cast()) };
                        let pairs = _mm512_cvtepu8_epi16(pairs);
                        let each = _mm512_or_si512(pairs, _mm512_slli_epi16::<4>(pairs));
                        let places = _mm512_and_si512(each, _mm512_set1_epi8(15));
                        store(out, r, s, _mm512_maskz_shuffle_epi8(there, table, places));
                    }
                }
                Self::Codes(_) | Self::Numbers { .. } => unreachable!("all rows were made above"),
            }
        }
        for r in there..BLOCK {
            (0..steps).for_each(|s| store(out, r, s, _mm512_setzero_si512()));
        }
    }

    /// Lines of `elements` elements of a row.
    fn steps(self, side: &Side<'_>, elements: usize) -> usize {
        let of_line = match self {
            Self::Same => 8 * ROW_BYTES / side.matrix.dtype().bits() as usize,
            Self::Pairs(_) => ROW_BYTES,
            Self::Codes(_) => ROW_BYTES / 2,
            Self::Numbers { dtype, .. } => 8 * ROW_BYTES / dtype.bits() as usize,
        };
        elements.div_ceil(of_line)
    }
}

/// Elements of rows that are numbers at a time.
const SOME: usize = 128;

/// Calls `write` with the numbers of elements `inner` of outer rows `outer`, a block at most: of each row some at a time, with how many were before.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn numbers_of(
    side: &Side<'_>,
    batch: usize,
    (outer, inner): (Range<usize>, Range<usize>),
    scaling: Scaling,
    mut write: impl FnMut(usize, usize, &mut [f32]),
) {
    const LD: usize = SOME + ROWS;
    // It fills all bits of a number, and is left to sums.
    let side = Side { global: &[], ..*side };
    let mut room = [0.0; BLOCK * LD];
    for first in inner.clone().step_by(SOME) {
        let some = first..inner.end.min(first + SOME);
        side.pack_rows::<Avx512, f32>(batch, outer.clone(), some.clone(), LD, scaling, &mut room);
        for (r, numbers) in room.chunks_exact_mut(LD).take(outer.len()).enumerate() {
            write(r, first - inner.start, &mut numbers[..some.len()]);
        }
    }
}

/// At most 64 bytes, and zeros.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn bytes(codes: &[u8]) -> __m512i {
    // SAFETY: of 64 bytes, those that are there.
    unsafe {
        match codes.len() {
            ROW_BYTES => _mm512_loadu_si512(codes.as_ptr().cast()),
            len => _mm512_maskz_loadu_epi8((1 << len) - 1, codes.as_ptr().cast()),
        }
    }
}

/// Exchanges rows and columns of each of some tiles, in units of four bytes.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn turn(tiles: &mut [u8]) {
    for tile in tiles.as_chunks_mut::<TILE_BYTES>().0 {
        let mut rows = [_mm512_setzero_si512(); ROWS];
        for (row, line) in rows.iter_mut().zip(tile.as_chunks::<ROW_BYTES>().0) {
            *row = bytes(line);
        }
        for (line, row) in tile.as_chunks_mut::<ROW_BYTES>().0.iter_mut().zip(transposed(rows)) {
            // SAFETY: 64 bytes.
            unsafe { _mm512_storeu_si512(line.as_mut_ptr().cast(), row) };
        }
    }
}

/// Writes 32 rows of 32 sums, `from` apart, as columns, rows of `out` `ld` apart.
///
/// # Panics
/// If `block` is short.
///
/// # Safety
/// `out` has all of those rows, and nothing else uses them.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn turn_sums((block, from): (&[u32], usize), (out, ld): (*mut u32, usize)) {
    for (i, j) in [(0, 0), (0, ROWS), (ROWS, 0), (ROWS, ROWS)] {
        let mut rows = [_mm512_setzero_si512(); ROWS];
        for (r, row) in rows.iter_mut().enumerate() {
            let sums = &block[(i + r) * from + j..][..ROWS];
            // SAFETY: sixteen sums.
            *row = unsafe { _mm512_loadu_si512(sums.as_ptr().cast()) };
        }
        for (c, row) in transposed(rows).into_iter().enumerate() {
            // SAFETY: as the caller promises.
            unsafe { _mm512_storeu_si512(out.add((j + c) * ld + i).cast(), row) };
        }
    }
}

/// Packs elements `inner` of columns `outer`, a block at most, of bf16 that lies in rows of columns, to the lines of two
/// tiles a step: pairs of elements of sixteen columns. What is missing becomes zeros.
///
/// # Panics
/// If `out` is short.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn pack_across(side: &Side<'_>, batch: usize, outer: Range<usize>, inner: Range<usize>, out: &mut [u8]) {
    let (count, mask) = (inner.len(), ((1_u64 << outer.len()) - 1) as u32);
    let first = side.place(batch, outer.start, inner.start);
    let ld = if count > 1 { side.place(batch, outer.start, inner.start + 1) - first } else { 0 };
    let codes = side.codes[2 * first..][..2 * (count.saturating_sub(1) * ld + outer.len())].as_ptr();
    // What the two that are interleaved take of each 128 bits: the first 16 columns, and the last.
    let places = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    let row = |i: usize| {
        if i >= count {
            return _mm512_setzero_si512();
        }
        let at = codes.wrapping_add(2 * i * ld);
        // SAFETY: of 32 codes, those that are there. The next block is made of what lies beside.
        unsafe {
            _mm_prefetch::<_MM_HINT_T1>(at.wrapping_add(ROW_BYTES).cast());
            _mm512_permutexvar_epi64(places, _mm512_maskz_loadu_epi16(mask, at.cast()))
        }
    };
    let steps = count.div_ceil(Holds::Bf16.elements());
    for (s, step) in out[..steps * STEP_BYTES].as_chunks_mut::<STEP_BYTES>().0.iter_mut().enumerate() {
        let (left, right) = step.split_at_mut(TILE_BYTES);
        let lines = left.as_chunks_mut::<ROW_BYTES>().0.iter_mut().zip(right.as_chunks_mut::<ROW_BYTES>().0);
        for (line, (left, right)) in lines.enumerate() {
            let first = s * Holds::Bf16.elements() + 2 * line;
            let (even, odd) = (row(first), row(first + 1));
            // SAFETY: 64 bytes each.
            unsafe {
                _mm512_storeu_si512(left.as_mut_ptr().cast(), _mm512_unpacklo_epi16(even, odd));
                _mm512_storeu_si512(right.as_mut_ptr().cast(), _mm512_unpackhi_epi16(even, odd));
            }
        }
    }
}
