//! Scales and zero points of part of an outer row as numbers, one for each so many inner elements, and columns that have them.

use super::{
    dots::{MOST_SHIFT, SHARE, STEP},
    far::Far,
};
use crate::{
    gemm::side::Side,
    numbers,
    simd::{self, Level, has_avx512},
};
use kp_hal::{
    DType,
    op::{Matrix, ScaleLayout},
};
use std::arch::x86_64::{
    __m256, __m512, _MM_HINT_T0, _mm_cmpge_epu8_mask, _mm_cvtepu8_epi16, _mm_loadl_epi64, _mm_loadu_si128,
    _mm_prefetch, _mm_set1_epi8, _mm_slli_epi16, _mm256_and_si256, _mm256_blendv_ps, _mm256_castsi256_ps,
    _mm256_cmpeq_epi32, _mm256_cmpgt_epi32, _mm256_cvtepi32_ps, _mm256_cvtepu8_epi16, _mm256_cvtepu8_epi32,
    _mm256_cvtepu16_epi32, _mm256_cvtph_ps, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_mul_ps, _mm256_or_si256,
    _mm256_set1_epi32, _mm256_set1_ps, _mm256_slli_epi16, _mm256_slli_epi32, _mm256_storeu_ps, _mm512_adds_epu8,
    _mm512_castps256_ps512, _mm512_castsi512_ps, _mm512_cmpeq_epi32_mask, _mm512_cvtepi32_ps, _mm512_cvtepu8_epi32,
    _mm512_cvtepu16_epi32, _mm512_cvtph_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_mask_cmpgt_epu8_mask,
    _mm512_mask_mov_ps, _mm512_mask_or_epi32, _mm512_mask_storeu_epi8, _mm512_maskz_loadu_epi8, _mm512_mul_ps,
    _mm512_permutexvar_epi8, _mm512_permutexvar_ps, _mm512_set1_epi8, _mm512_set1_epi32, _mm512_set1_ps,
    _mm512_setr_epi32, _mm512_slli_epi32, _mm512_storeu_ps, _mm512_storeu_si512, _mm512_subs_epu8,
    _mm512_testn_epi32_mask,
};
use std::slice;

/// Whether lists can tell the scales of `matrix`, of `inner` elements a row, that change along them.
pub(crate) fn can_list(matrix: &Matrix, inner: u32) -> bool {
    (matrix.format.block().1 as usize).is_multiple_of(SHARE) && (inner as usize).is_multiple_of(SHARE)
}

/// Entries that a list has room for.
pub(crate) const LIST: usize = 720;

/// Entries that are read past the last.
const PAST: usize = STEP / SHARE;

/// Scales or zero points of a column, one for each share, and what is read past them.
pub(crate) type List = [f32; LIST];

/// Columns of one length, from some step on. Their lists lie one after the other, so that loops need no pointer to each:
/// reading these again in every step made a row by four bits with zero points take a fifth longer.
#[derive(Clone, Copy)]
pub(crate) struct Columns<'a> {
    /// Codes of each, up to the last one.
    pub(crate) codes: &'a [&'a [u8]],
    /// Elements that share an entry of the lists.
    pub(crate) share: usize,
    /// A scale for each share; empty if there are none.
    pub(crate) scales: &'a [List],
    /// Zero points alike; for loops that look four bits up, the bytes of [`Lists::shifts`] in the same room.
    pub(crate) zeros: &'a [List],
    /// How many bytes ahead memory is asked for, and what is read later still.
    pub(crate) ahead: usize,
    pub(crate) far: Far,
}

impl Columns<'_> {
    /// Asserts that there are lists of `entries` for each column, if there are any.
    #[inline]
    pub(super) fn check(&self, entries: usize) {
        let Self { codes, scales, zeros, .. } = self;
        for lists in [scales.len(), zeros.len()] {
            assert!(lists == 0 || lists >= codes.len(), "{lists} lists for {} columns", codes.len());
        }
        assert!(entries + PAST <= LIST, "{entries} entries in lists of {LIST}");
    }
}

/// What lists of a side's outer rows from some inner element on have in common: found once, since a row is soon read.
#[derive(Clone, Copy)]
pub(crate) struct Lists<'s, 'a> {
    pub(super) side: &'s Side<'a>,
    /// The first block, and the place of the first scale of the batch.
    pub(super) block: usize,
    pub(super) batch: usize,
    /// Entries that a block has, and how many of the first one's are earlier.
    pub(super) times: usize,
    before: usize,
    /// Entries of inner elements that are there.
    pub(super) there: usize,
    /// Where each outer row has its own scales, side by side: how many.
    pub(super) each: Option<usize>,
}

impl<'s, 'a> Lists<'s, 'a> {
    /// Lists of `side` from inner element `first` on, an entry for each `share` elements, which divides both `first` and what
    /// a scale is for, unless that is all of them.
    pub(crate) fn new(side: &'s Side<'a>, batch: usize, first: usize, share: usize) -> Self {
        let format = side.matrix.format;
        let (outer, inner) = format.block();
        let block = first / inner as usize;
        Self {
            side,
            block,
            batch: batch * format.scale_count(side.outer, side.inner) as usize,
            times: (inner as usize / share).max(1),
            before: (first - block * inner as usize) / share,
            there: (side.inner as usize).saturating_sub(first).div_ceil(share),
            each: (format.scales == ScaleLayout::Inner && outer == 1).then(|| side.inner.div_ceil(inner) as usize),
        }
    }

    /// The scales, without the global one, of outer row `o`; 1 past the end.
    pub(crate) fn scales(&self, o: usize, out: &mut [f32]) {
        let dtype = self.side.matrix.format.scale_dtype().expect("it has scales");
        self.list((dtype, self.side.scales), o, 1.0, out);
    }

    /// The zero points alike; 0 past the end.
    pub(crate) fn zeros(&self, o: usize, out: &mut [f32]) {
        self.list((DType::U8, self.side.zeros), o, 0.0, out);
    }

    /// What loops over four bits want of the zero points of outer row `o`: [`MOST_SHIFT`] less each, or 0. Answers whether
    /// some zero point is larger than that, so that [`Lists::beyond`] is to be subtracted.
    ///
    /// # Safety
    /// The processor has AVX-512 F, BW, VL and VBMI.
    pub(crate) unsafe fn shifts(&self, o: usize, out: &mut [u8]) -> bool {
        // SAFETY: the caller's promise.
        self.shifts_by(
            o,
            out,
            |unsigned, zeros, out| unsafe { shift(unsigned, zeros, out) },
            |out, first, times| unsafe { spread_bytes(out, first, times) },
        )
    }

    /// The same on any processor.
    pub(crate) fn shifts_anywhere(&self, o: usize, out: &mut [u8]) -> bool {
        self.shifts_by(o, out, shift_anywhere, spread_bytes_anywhere)
    }

    #[inline(always)]
    fn shifts_by(
        &self,
        o: usize,
        out: &mut [u8],
        shift: impl Fn(u8, &[u8], &mut [u8]) -> bool,
        spread: impl Fn(&mut [u8], usize, usize),
    ) -> bool {
        let (out, rest) = out.split_at_mut(self.there.min(out.len()));
        rest.fill(MOST_SHIFT);
        if out.is_empty() {
            return false;
        }
        let blocks = self.blocks(out.len());
        let (zeros, blocks) = (self.side.zeros, &mut out[..blocks]);
        let mut is_beyond = false;
        if self.each.is_some() {
            is_beyond = shift(unsigned(self.side), &zeros[self.place(o, 0)..], blocks);
        } else {
            for (block, shift) in blocks.iter_mut().enumerate() {
                is_beyond |=
                    shift_anywhere(unsigned(self.side), &zeros[self.place(o, block)..], slice::from_mut(shift));
            }
        }
        if self.times > 1 {
            spread(out, self.before, self.times);
        }
        is_beyond
    }

    /// What the shifts of outer row `o` leave to be subtracted from its sum with a row whose sums over `entries` entries are
    /// `a`. Codes are less than those zero points, so that both parts of a sum have its sign, and no digits cancel.
    #[cold]
    pub(crate) fn beyond(&self, o: usize, entries: usize, a: impl Fn(usize) -> f32) -> f32 {
        let dtype = self.side.matrix.format.scale_dtype().expect("it has scales");
        let mut sum = 0.0;
        for i in 0..entries.min(self.there) {
            let place = self.place(o, (self.before + i) / self.times);
            let zero = self.side.zeros[place].saturating_add(unsigned(self.side));
            if zero > MOST_SHIFT {
                sum += f32::from(zero - MOST_SHIFT) * numbers::get::<f32>(dtype, self.side.scales, place) * a(i);
            }
        }
        sum
    }

    /// Blocks of the first `entries` entries.
    fn blocks(&self, entries: usize) -> usize {
        (self.before + entries).div_ceil(self.times)
    }

    /// Where the scale and the zero point of a block of outer row `o` are, counted from the first one.
    fn place(&self, o: usize, block: usize) -> usize {
        let format = self.side.matrix.format;
        let block = (o as u32 / format.block().0, (self.block + block) as u32);
        self.batch + format.scale_index(block, (self.side.outer, self.side.inner)) as usize
    }

    /// Scales or zero points; `past` the end.
    #[inline(always)]
    fn list(&self, (dtype, src): (DType, &[u8]), o: usize, past: f32, out: &mut [f32]) {
        let (out, rest) = out.split_at_mut(self.there.min(out.len()));
        rest.fill(past);
        if out.is_empty() {
            return;
        }
        let blocks = self.blocks(out.len());
        let numbers = &mut out[..blocks];
        if let Some(each) = self.each {
            read_anywhere(dtype, src, self.batch + o * each + self.block, numbers);
        } else if self.side.matrix.format.scales == ScaleLayout::Tiles {
            self.of_tiles((dtype, src), o, numbers);
        } else {
            for (block, number) in numbers.iter_mut().enumerate() {
                *number = numbers::get(dtype, src, self.place(o, block));
            }
        }
        if self.times > 1 {
            spread_anywhere(out, self.before, self.times);
        }
    }
}

impl Lists<'_, '_> {
    /// Scales of blocks that lie in [tiles](ScaleLayout::Tiles), a byte each, four of them side by side.
    fn of_tiles(&self, (dtype, src): (DType, &[u8]), o: usize, out: &mut [f32]) {
        const SOME: usize = 64;
        const WIDE: usize = 4;
        const TILE: usize = 512;
        let (before, mut codes) = (self.block % WIDE, [0; SOME + WIDE]);
        for (i, out) in out.chunks_mut(SOME).enumerate() {
            let first = self.place(o, i * SOME) - before;
            let tiles = (before + out.len()).div_ceil(WIDE);
            for (tile, four) in codes.as_chunks_mut::<WIDE>().0.iter_mut().take(tiles).enumerate() {
                four.copy_from_slice(&src[first + tile * TILE..][..WIDE]);
            }
            read_anywhere(dtype, &codes, before, out);
        }
    }
}

/// What is to be added to codes of four bits so that they are unsigned.
fn unsigned(side: &Side<'_>) -> u8 {
    if side.matrix.dtype() == DType::I4 { 8 } else { 0 }
}

/// How far ahead lists are asked for, in bytes: some columns' worth.
pub(super) const AHEAD: usize = 2048;

/// Element `start` of `src` and those after it.
fn read_anywhere(dtype: DType, src: &[u8], start: usize, out: &mut [f32]) {
    match simd::level() {
        // SAFETY: it was just asked for.
        Level::Avx512 => unsafe { read_by_sixteen(dtype, src, start, out) },
        // SAFETY: as above.
        Level::Avx2 => unsafe { read_by_eight(dtype, src, start, out) },
        Level::Baseline => numbers::read(dtype, src, start, out),
    }
}

macro_rules! reads {
    ($name:ident, $lanes:literal, $load:ident, $store:ident, $features:literal, $($dtype:ident)*) => {
        /// The same with vectors.
        #[target_feature(enable = $features)]
        fn $name(dtype: DType, src: &[u8], start: usize, out: &mut [f32]) {
            let size = dtype.bits() as usize / 8;
            let src = &src[start * size..][..out.len() * size];
            // What some other column will read soon.
            for at in (0..src.len()).step_by(64) {
                _mm_prefetch::<_MM_HINT_T0>(src.as_ptr().wrapping_add(at + AHEAD).cast());
            }
            let (vectors, rest) = out.as_chunks_mut::<$lanes>();
            // A loop for each type: asked for every vector, reading took twice as long.
            match dtype {
                $(DType::$dtype => {
                    for (i, out) in vectors.iter_mut().enumerate() {
                        // SAFETY: a vector of codes, and of numbers.
                        unsafe { $store(out.as_mut_ptr(), $load(DType::$dtype, src.as_ptr().add($lanes * size * i))) };
                    }
                })*
                _ => panic!("scales of {dtype:?}"),
            }
            if !rest.is_empty() {
                let (mut last, mut numbers) = ([0; 4 * $lanes], [0.0; $lanes]);
                let codes = &src[vectors.len() * $lanes * size..];
                last[..codes.len()].copy_from_slice(codes);
                // SAFETY: as above.
                unsafe { $store(numbers.as_mut_ptr(), $load(dtype, last.as_ptr())) };
                rest.copy_from_slice(&numbers[..rest.len()]);
            }
        }
    };
}
reads!(read_by_sixteen, 16, sixteen, _mm512_storeu_ps, "avx512f,avx512bw,avx512vl", F32 F16 Bf16 U8 E8m0 Ue4m3);
reads!(read_by_eight, 8, eight, _mm256_storeu_ps, "avx2,f16c", F32 F16 Bf16 U8 E8m0 Ue4m3);

/// Makes shifts of zero points, see [`Lists::shifts`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn shift(unsigned: u8, zeros: &[u8], out: &mut [u8]) -> bool {
    let (unsigned, most) = (_mm512_set1_epi8(unsigned as i8), _mm512_set1_epi8(MOST_SHIFT as i8));
    let mut beyond = 0;
    for (zeros, out) in zeros[..out.len()].chunks(64).zip(out.chunks_mut(64)) {
        _mm_prefetch::<_MM_HINT_T0>(zeros.as_ptr().wrapping_add(AHEAD).cast());
        let there = u64::MAX >> (64 - out.len());
        // SAFETY: as many bytes of both.
        unsafe {
            let zero = _mm512_adds_epu8(_mm512_maskz_loadu_epi8(there, zeros.as_ptr().cast()), unsigned);
            beyond |= _mm512_mask_cmpgt_epu8_mask(there, zero, most);
            _mm512_mask_storeu_epi8(out.as_mut_ptr().cast(), there, _mm512_subs_epu8(most, zero));
        }
    }
    beyond != 0
}

/// The same on any processor.
fn shift_anywhere(unsigned: u8, zeros: &[u8], out: &mut [u8]) -> bool {
    let mut is_beyond = false;
    for (&zero, out) in zeros.iter().zip(out) {
        let zero = zero.saturating_add(unsigned);
        *out = MOST_SHIFT.saturating_sub(zero);
        is_beyond |= zero > MOST_SHIFT;
    }
    is_beyond
}

/// Sixteen scales or zero points.
///
/// # Panics
/// If they are of another type than these have.
///
/// # Safety
/// Sixteen codes can be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn sixteen(dtype: DType, codes: *const u8) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            DType::F32 => _mm512_loadu_ps(codes.cast()),
            DType::F16 => _mm512_cvtph_ps(_mm256_loadu_si256(codes.cast())),
            DType::Bf16 => {
                let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(codes.cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
            }
            DType::U8 => _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(codes.cast()))),
            DType::E8m0 => {
                let code = _mm512_cvtepu8_epi32(_mm_loadu_si128(codes.cast()));
                let bits = _mm512_slli_epi32::<23>(code);
                // The bit below makes 2⁻¹²⁷ of the first code, and of the last, which is infinity so far, NaN.
                let ends = _mm512_testn_epi32_mask(code, code) | _mm512_cmpeq_epi32_mask(code, _mm512_set1_epi32(255));
                _mm512_castsi512_ps(_mm512_mask_or_epi32(bits, ends, bits, _mm512_set1_epi32(1 << 22)))
            }
            DType::Ue4m3 => {
                let code = _mm_loadu_si128(codes.cast());
                let no_number = _mm_cmpge_epu8_mask(code, _mm_set1_epi8(0x7f));
                // As an f16 it has 8 too little in its exponent.
                let small = _mm512_cvtph_ps(_mm256_slli_epi16::<7>(_mm256_cvtepu8_epi16(code)));
                let number = _mm512_mul_ps(small, _mm512_set1_ps(256.0));
                _mm512_mask_mov_ps(number, no_number, _mm512_set1_ps(f32::NAN))
            }
            _ => panic!("scales of {dtype:?}"),
        }
    }
}

/// Eight of them.
///
/// # Panics
/// As [`sixteen`].
///
/// # Safety
/// Eight codes can be read.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn eight(dtype: DType, codes: *const u8) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            DType::F32 => _mm256_loadu_ps(codes.cast()),
            DType::F16 => _mm256_cvtph_ps(_mm_loadu_si128(codes.cast())),
            DType::Bf16 => {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(codes.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            }
            DType::U8 => _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(codes.cast()))),
            DType::E8m0 => {
                let code = _mm256_cvtepu8_epi32(_mm_loadl_epi64(codes.cast()));
                let is = |end: i32| _mm256_cmpeq_epi32(code, _mm256_set1_epi32(end));
                let below = _mm256_and_si256(_mm256_or_si256(is(0), is(255)), _mm256_set1_epi32(1 << 22));
                _mm256_castsi256_ps(_mm256_or_si256(_mm256_slli_epi32::<23>(code), below))
            }
            DType::Ue4m3 => {
                let code = _mm_loadl_epi64(codes.cast());
                let small = _mm256_cvtph_ps(_mm_slli_epi16::<7>(_mm_cvtepu8_epi16(code)));
                let no_number = _mm256_cmpgt_epi32(_mm256_cvtepu8_epi32(code), _mm256_set1_epi32(0x7e));
                let number = _mm256_mul_ps(small, _mm256_set1_ps(256.0));
                _mm256_blendv_ps(number, _mm256_set1_ps(f32::NAN), _mm256_castsi256_ps(no_number))
            }
            _ => panic!("scales of {dtype:?}"),
        }
    }
}

/// Gives each of the numbers at the front of `out` its `times` places, the first of them without the `first` that are earlier.
fn spread_anywhere(out: &mut [f32], first: usize, times: usize) {
    if has_avx512() {
        // SAFETY: it was just asked for.
        return unsafe { spread(out, first, times) };
    }
    let earlier = first % times;
    match (earlier, times) {
        (0, 2) => return spread_by::<2>(out),
        (0, 4) => return spread_by::<4>(out),
        (0, 8) => return spread_by::<8>(out),
        _ => {}
    }
    spread_blocks(out, earlier, times);
}

/// The same with a question for each block.
fn spread_blocks<T: Copy>(out: &mut [T], earlier: usize, times: usize) {
    let mut end = out.len();
    // From the back, so that no number is overwritten before it has been read.
    for block in (0..(earlier + end).div_ceil(times)).rev() {
        let start = (block * times).saturating_sub(earlier);
        let number = out[block];
        out[start..end].fill(number);
        end = start;
    }
}

/// The same of bytes.
fn spread_bytes_anywhere(out: &mut [u8], first: usize, times: usize) {
    spread_blocks(out, first % times, times);
}

/// The same of so many times, the usual ones: questions about lengths would be most of the work.
fn spread_by<const TIMES: usize>(out: &mut [f32]) {
    let blocks = out.len() / TIMES;
    if let Some(&last) = out.get(blocks) {
        out[blocks * TIMES..].fill(last);
    }
    for block in (0..blocks).rev() {
        let number = out[block];
        out[block * TIMES..][..TIMES].copy_from_slice(&[number; TIMES]);
    }
}

/// The same with AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn spread(out: &mut [f32], first: usize, times: usize) {
    let from = |i: usize| (first + i) / times - first / times;
    let mut end = out.len();
    if times.is_power_of_two() && first.is_multiple_of(times) {
        let count = _mm512_set1_epi32(times.trailing_zeros() as i32);
        let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let source = std::arch::x86_64::_mm512_srlv_epi32(lanes, count);
        // From the back, so that no number is overwritten before it has been read.
        let vectors = out.len() / 16;
        for i in (vectors * 16..out.len()).rev() {
            out[i] = out[from(i)];
        }
        for v in (0..vectors).rev() {
            let at = 16 * v / times;
            let vector = if times >= 16 {
                _mm512_set1_ps(out[at])
            } else {
                // SAFETY: eight numbers; of `out` there are at least sixteen more than `at`.
                let numbers = unsafe { _mm256_loadu_ps(out[at..at + 8].as_ptr()) };
                _mm512_permutexvar_ps(source, _mm512_castps256_ps512(numbers))
            };
            // SAFETY: sixteen numbers.
            unsafe { _mm512_storeu_ps(out[16 * v..16 * v + 16].as_mut_ptr(), vector) };
        }
        end = 0;
    }
    for i in (0..end).rev() {
        out[i] = out[from(i)];
    }
}

/// The same of bytes with AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
fn spread_bytes(out: &mut [u8], first: usize, times: usize) {
    const LEN: usize = 64;
    let from = |i: usize| (first + i) / times - first / times;
    let whole = if LEN.is_multiple_of(times) && first.is_multiple_of(times) { out.len() / LEN } else { 0 };
    for i in (whole * LEN..out.len()).rev() {
        out[i] = out[from(i)];
    }
    let source: [u8; LEN] = std::array::from_fn(|lane| from(lane) as u8);
    for v in (0..whole).rev() {
        let (at, to) = (from(v * LEN), v * LEN);
        // SAFETY: as many bytes each.
        unsafe {
            let source = _mm512_loadu_si512(source.as_ptr().cast());
            let bytes = _mm512_loadu_si512(out[at..at + LEN].as_ptr().cast());
            _mm512_storeu_si512(out[to..to + LEN].as_mut_ptr().cast(), _mm512_permutexvar_epi8(source, bytes));
        }
    }
}
