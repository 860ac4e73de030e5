//! Rows of A as bytes in the order in which panels hold a column's, and the sums of their codes.

use super::avx2;
use crate::gemm::{
    few::codes::Set,
    product::{Item, Product},
    rounded::{RUN, round_anywhere},
    side::{LINE, Scaling},
    vnni_few_rows::unit,
};
use std::arch::x86_64::{
    __m512i, _mm_setr_epi8, _mm512_broadcast_i32x4, _mm512_dpbusd_epi32, _mm512_mask_storeu_epi8,
    _mm512_maskz_loadu_epi8, _mm512_reduce_add_epi32, _mm512_set1_epi8, _mm512_setzero_si512, _mm512_shuffle_epi8,
    _mm512_storeu_si512,
};

/// Copies the codes of a row to `out`, for columns of `bits` bits, and adds to each of `sums` the codes of a segment of
/// `segment` elements: a power of two from 16 on, or all.
///
/// # Panics
/// If `out` is shorter than the row and what its last eight codes lack, or there are too few sums.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(crate) fn ready(codes: &[u8], bits: usize, out: &mut [u8], segment: usize, sums: &mut [i32]) {
    // Parted, the last codes may lie beyond.
    let whole = |codes: usize| codes.next_multiple_of(8);
    let out = &mut out[..whole(codes.len())];
    // Of eight elements those of even place first, where the column has them so.
    let parted = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
    let ones = _mm512_set1_epi8(1);
    for (line, part) in codes.chunks(64).enumerate() {
        let mask = u64::MAX >> (64 - part.len());
        // SAFETY: of 64 bytes, those that are there.
        let code = unsafe { _mm512_maskz_loadu_epi8(mask, part.as_ptr().cast()) };
        let fours: __m512i = _mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, code);
        if segment >= 64 {
            let sum = &mut sums[64 * line / segment];
            *sum = sum.wrapping_add(_mm512_reduce_add_epi32(fours));
        } else {
            let mut all = [0_i32; 16];
            // SAFETY: sixteen of them.
            unsafe { _mm512_storeu_si512(all.as_mut_ptr().cast(), fours) };
            let first = 64 * line / segment;
            for (sum, fours) in sums[first..].iter_mut().zip(all.chunks_exact(segment / 4)) {
                *sum = fours.iter().sum();
            }
        }
        let code = if bits == 4 { _mm512_shuffle_epi8(code, parted) } else { code };
        let mask = u64::MAX >> (64 - whole(part.len()));
        // SAFETY: as many bytes as were read, at the same place, in whole eights, for which there is room.
        unsafe { _mm512_mask_storeu_epi8(out.as_mut_ptr().add(64 * line).cast(), mask, code) };
    }
}

impl Set {
    /// Bytes of a code in rows of A, for columns of `bits` bits.
    pub(crate) fn code(self, bits: usize) -> usize {
        if self == Self::Plain && bits == 8 { 2 } else { 1 }
    }

    /// Copies the codes of a row as [`ready`] does, [`Self::code`] bytes each.
    ///
    /// # Safety
    /// The processor has what the set uses.
    ///
    /// # Panics
    /// As that.
    pub(crate) unsafe fn ready(self, codes: &[u8], bits: usize, out: &mut [u8], segment: usize, sums: &mut [i32]) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::Avx512 => ready(codes, bits, out, segment, sums),
                Self::Vnni | Self::Plain => avx2::ready(codes, bits, self.code(bits), out, segment, sums),
            }
        }
    }
}

/// A row of A that is no run of bytes.
pub(crate) struct Row<'r, 'p> {
    pub(crate) product: &'r Product<'p>,
    pub(crate) item: Item,
    pub(crate) row: usize,
    /// As [`ready`] wants them.
    pub(crate) bits: usize,
    pub(crate) segment: usize,
    pub(crate) set: Set,
}

impl Row<'_, '_> {
    /// Makes whole numbers [`ready`], whatever they are stored as.
    ///
    /// # Panics
    /// As [`ready`].
    pub(crate) fn unpack(&self, codes: &mut [u8], sums: &mut [i32]) {
        let whole_steps = 1.0 / unit(self.product.spec.a.format);
        self.each_line(|first, len, numbers| {
            let line = numbers.map(|x| (x * whole_steps) as i32 as u8);
            let sums = &mut sums[first / self.segment..];
            self.ready(&line[..len], &mut codes[first * self.set.code(self.bits)..], sums);
        });
    }

    /// Rounds numbers to bytes, of which it makes [`ready`] codes, and tells the scale of each segment: at most a run, as the
    /// row's segments are then.
    ///
    /// # Panics
    /// As [`ready`].
    pub(crate) fn round(&self, codes: &mut [u8], sums: &mut [i32], scales: &mut [f32]) {
        self.each_line(|first, len, numbers| {
            let (mut rounded, mut of_runs) = ([0; LINE], [0.0; LINE / RUN]);
            round_anywhere(numbers.as_chunks().0, rounded.as_chunks_mut().0, &mut of_runs);
            let done = first / self.segment;
            let line = rounded.map(|code| code as u8);
            self.ready(&line[..len], &mut codes[first * self.set.code(self.bits)..], &mut sums[done..]);
            for (run, scales) in of_runs.iter().zip(scales[done..].chunks_mut(RUN / self.segment)) {
                scales.fill(*run);
            }
        });
    }

    /// Makes codes ready as [`Set::ready`] does.
    fn ready(&self, line: &[u8], codes: &mut [u8], sums: &mut [i32]) {
        // SAFETY: whoever made the set was promised its features.
        unsafe { self.set.ready(line, self.bits, codes, self.segment, sums) }
    }

    /// The row's numbers, zeros past the end, as many at a time as are unpacked at once; where these begin and how many are there.
    fn each_line(&self, mut f: impl FnMut(usize, usize, &[f32; LINE])) {
        let k = self.product.spec.k as usize;
        for first in (0..k).step_by(LINE) {
            let inner = first..(first + LINE).min(k);
            let mut line = [0.0; LINE];
            let len = inner.len();
            let some = &mut line[..len];
            self.product.a.row(self.item.row_batch, self.item.row + self.row, inner, Scaling::Left, some);
            f(first, len, &line);
        }
    }
}
