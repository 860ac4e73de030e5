//! Lists of numbers of columns, such as scales, as rows: of each column one number beside the other.

use crate::{gemm::vnni::pack::transposed, simd::has_avx512};
use std::{
    arch::x86_64::{_mm512_maskz_loadu_epi32, _mm512_setzero_si512, _mm512_storeu_si512},
    ops::Range,
};

/// Columns whose lists are read together.
pub(crate) const SIXTEEN: usize = 16;

/// Writes lists of `count` numbers of `columns`, which `read` reads, as `count` rows, `ld` apart, of as many columns, rounded up to [`SIXTEEN`]. `room` is for
/// sixteen lists.
///
/// # Panics
/// If the room or rows are short.
pub(crate) fn lists_as_rows(
    columns: Range<usize>,
    count: usize,
    room: &mut [f32],
    (out, ld): (&mut [f32], usize),
    read: &dyn Fn(usize, &mut [f32]),
) {
    let room = &mut room[..SIXTEEN * count];
    for (i, first) in columns.clone().step_by(SIXTEEN).enumerate() {
        for (column, list) in (first..columns.end).zip(room.chunks_exact_mut(count)) {
            read(column, list);
        }
        transposed_numbers_anywhere(room, count, &mut out[i * SIXTEEN..], ld);
    }
}

/// [`transposed_numbers`] on any processor.
fn transposed_numbers_anywhere(lists: &[f32], count: usize, out: &mut [f32], ld: usize) {
    if has_avx512() {
        // SAFETY: it was just asked for.
        return unsafe { transposed_numbers(lists, count, out, ld) };
    }
    for i in 0..count {
        for (out, list) in out[i * ld..][..16].iter_mut().zip(lists.chunks_exact(count)) {
            *out = list[i];
        }
    }
}

/// Sixteen lists of `count` numbers as `count` rows of sixteen, `ld` apart.
///
/// # Panics
/// If lists or rows are short.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn transposed_numbers(lists: &[f32], count: usize, out: &mut [f32], ld: usize) {
    for first in (0..count).step_by(16) {
        let some = (count - first).min(16);
        let mut rows = [_mm512_setzero_si512(); 16];
        for (j, row) in rows.iter_mut().enumerate() {
            let list = &lists[j * count + first..][..some];
            // SAFETY: of sixteen numbers, those that are there.
            *row = unsafe { _mm512_maskz_loadu_epi32(((1_u32 << some) - 1) as u16, list.as_ptr().cast()) };
        }
        for (i, row) in transposed(rows).into_iter().enumerate().take(some) {
            let out = &mut out[(first + i) * ld..][..16];
            // SAFETY: sixteen numbers.
            unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), row) };
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::gemm::tests::check;

    /// Scales of B in tiles of 128 columns by four blocks, of which a list takes part of a row.
    #[test]
    fn scales_in_tiles() {
        for types in ["bf16:e2m1@nv^tiles:f32", "f32:e2m1@mx^tiles:f32", "f32:e4m3@mx^tiles:bf16"] {
            for size in ["1x1x150x2080", "2x3x34x288", "1x20x130x1152"] {
                for order in ["", "b=col"] {
                    check(&format!("gemm {size} {types} {order}"), (1.0, 1.0));
                }
            }
        }
    }
}
