//! Scales of a column times those of a row, made as they are read: by two passes they took a tenth of a row by 4-bit weights.

use super::lists::{AHEAD, Lists, sixteen};
use crate::memory::{LINE, prefetch};
use kp_hal::DType;
use std::arch::x86_64::{_mm512_loadu_ps, _mm512_mul_ps, _mm512_storeu_ps};

/// Numbers of a vector.
const LANES: usize = 16;

/// The scales of outer row `o`, without the global one, times those of `row`; 1 past the end.
///
/// # Panics
/// If `row` is shorter than `out`, or there are no scales.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(crate) fn folded(lists: &Lists<'_, '_>, o: usize, row: &[f32], out: &mut [f32]) {
    let row = &row[..out.len()];
    let Some((dtype, codes)) = lying(lists, o, out.len()) else {
        lists.scales(o, out);
        return out.iter_mut().zip(row).for_each(|(scale, by)| *scale *= by);
    };
    // What some other column will read soon.
    (0..codes.len()).step_by(LINE).for_each(|at| prefetch::<1>(codes.as_ptr().wrapping_add(at + AHEAD)));
    let (vectors, rest) = out.as_chunks_mut::<LANES>();
    let (of_row, row_rest) = row.as_chunks::<LANES>();
    let size = dtype.bits() as usize / 8;
    macro_rules! read {
        ($($dtype:ident)*) => {
            match dtype {
                $(DType::$dtype => for (i, (out, by)) in vectors.iter_mut().zip(of_row).enumerate() {
                    // SAFETY: a vector of codes, and of numbers.
                    unsafe {
                        let scales = sixteen(DType::$dtype, codes.as_ptr().add(LANES * size * i));
                        let scales = _mm512_mul_ps(scales, _mm512_loadu_ps(by.as_ptr()));
                        _mm512_storeu_ps(out.as_mut_ptr(), scales);
                    }
                })*
                _ => panic!("scales of {dtype:?}"),
            }
        };
    }
    read!(F32 F16 Bf16 E8m0 Ue4m3);
    if !rest.is_empty() {
        let (mut last, mut scales) = ([0; 4 * LANES], [0.0; LANES]);
        let codes = &codes[vectors.len() * LANES * size..];
        last[..codes.len()].copy_from_slice(codes);
        // SAFETY: a vector of codes, and of numbers.
        unsafe { _mm512_storeu_ps(scales.as_mut_ptr(), sixteen(dtype, last.as_ptr())) };
        rest.iter_mut().zip(scales).zip(row_rest).for_each(|((out, scale), by)| *out = scale * by);
    }
}

/// The `entries` scales of outer row `o` as they lie side by side, if each is that of one share.
fn lying<'a>(lists: &Lists<'_, 'a>, o: usize, entries: usize) -> Option<(DType, &'a [u8])> {
    let dtype = lists.side.matrix.format.scale_dtype()?;
    let first = lists.batch + o * lists.each.filter(|_| lists.times == 1 && entries <= lists.there)? + lists.block;
    let [first, len] = [first, entries].map(|count| dtype.bytes(count as u64) as usize);
    Some((dtype, &lists.side.scales[first..][..len]))
}
