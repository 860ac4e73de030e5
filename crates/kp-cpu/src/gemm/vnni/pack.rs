//! Columns of codes as panels of unsigned bytes: of each column four at a time, side by side.

use super::avx2;
use crate::gemm::{
    across::{Lines, Turned, lies_across},
    few::{byte_dots::Lift, codes::Set, columns::Codes},
    interleaved::{FOUR, interleaved},
    side::Side,
};
use kp_hal::op::{Matrix, Order};
use std::{
    arch::x86_64::{
        __m128i, __m512i, _MM_HINT_T1, _mm_loadu_si128, _mm_prefetch, _mm512_and_si512, _mm512_broadcast_i32x4,
        _mm512_loadu_si512, _mm512_maskz_loadu_epi8, _mm512_set1_epi8, _mm512_setzero_si512, _mm512_shuffle_epi8,
        _mm512_shuffle_i32x4, _mm512_srli_epi16, _mm512_storeu_si512, _mm512_unpackhi_epi32, _mm512_unpackhi_epi64,
        _mm512_unpacklo_epi32, _mm512_unpacklo_epi64, _mm512_xor_si512,
    },
    ops::Range,
};

/// Whether panels can be made of `matrix`: its columns are contiguous, or already panels of whole vectors and steps.
pub(crate) fn can_pack(matrix: &Matrix) -> bool {
    match matrix.order {
        Order::Col => true,
        Order::Row => lies_across(matrix, true),
        Order::Panel { width, depth } => width.is_multiple_of(16) && u32::from(depth) * matrix.dtype().bits() == 32,
    }
}

/// Packs `columns`, at most `width`, of elements `inner` to `out`, step by step, whole lines of 64 bytes of each column;
/// what is past the end becomes some code. `inner` starts at a multiple of 128.
///
/// # Panics
/// If `out` is short.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn pack(
    b: &Side<'_>,
    batch: usize,
    columns: Range<usize>,
    inner: Range<usize>,
    width: usize,
    (lift, turned): (&Lift, &mut Turned<'_>),
    out: &mut [u8],
) {
    let bits = b.matrix.dtype().bits() as usize;
    // Bytes of all columns for four bytes of each.
    let lines = (inner.len() * bits).div_ceil(512);
    let unpacked = lines * 16 * (8 / bits) * width * 4;
    let out = &mut out[..unpacked];
    // SAFETY: sixteen bytes.
    let table = _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(lift.table.as_ptr().cast::<__m128i>()) });
    let flip = _mm512_set1_epi8(lift.flip as i8);
    let low = _mm512_set1_epi8(15);
    let mut store = |step: usize, first: usize, codes: __m512i| {
        let mut put = |step: usize, codes: __m512i| {
            let out = &mut out[(step * width + first) * 4..][..64];
            // SAFETY: 64 bytes.
            unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), codes) };
        };
        if bits == 8 {
            put(step, _mm512_xor_si512(codes, flip));
        } else {
            put(2 * step, _mm512_shuffle_epi8(table, _mm512_and_si512(codes, low)));
            put(2 * step + 1, _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16::<4>(codes), low)));
        }
    };
    if bits == 8 && b.matrix.order == Order::Row && !columns.is_empty() {
        let rows = Lines::of(b, batch, &columns, &inner);
        for step in 0..lines * 16 {
            for (v, codes) in interleaved(&rows, FOUR * step, 0).into_iter().enumerate() {
                store(step, 16 * v, codes);
            }
        }
        return;
    }
    for first in (0..width).step_by(16) {
        let there = columns.len().saturating_sub(first).min(16);
        match b.matrix.order {
            Order::Panel { width: panel, .. } => {
                let panel = usize::from(panel);
                // A panel's columns are all there, padded.
                let column = (columns.start + first).min(b.outer as usize - 1) / 16 * 16;
                let at = batch as u64 * b.matrix.stride + b.matrix.index(inner.start as u32, column as u32, b.inner);
                let codes = &b.codes[b.matrix.dtype().bytes(at) as usize..];
                let steps = (inner.len() * bits).div_ceil(32);
                for step in 0..lines * 16 {
                    let codes = &codes[step.min(steps - 1) * panel * 4..][..64];
                    // SAFETY: 64 bytes.
                    store(step, first, unsafe { _mm512_loadu_si512(codes.as_ptr().cast()) });
                }
            }
            _ => {
                // SAFETY: features of this function are more.
                let of_columns = unsafe { columns_of(b, batch, &columns, &inner, turned) };
                let all: [&[u8]; 16] = std::array::from_fn(|j| match j < there {
                    true => of_columns.column(columns.start + first + j),
                    false => &[],
                });
                for line in 0..lines {
                    let at = 64 * line;
                    let mut rows = [_mm512_setzero_si512(); 16];
                    for (row, codes) in rows.iter_mut().zip(all) {
                        let codes = codes.get(at..).unwrap_or(&[]);
                        // SAFETY: an address that is none is ignored; nothing past the codes is read.
                        *row = unsafe {
                            _mm_prefetch::<_MM_HINT_T1>(codes.as_ptr().wrapping_add(AHEAD).cast());
                            if codes.len() >= 64 {
                                _mm512_loadu_si512(codes.as_ptr().cast())
                            } else {
                                _mm512_maskz_loadu_epi8((1 << codes.len()) - 1, codes.as_ptr().cast())
                            }
                        };
                    }
                    for (i, codes) in transposed(rows).into_iter().enumerate() {
                        store(16 * line + i, first, codes);
                    }
                }
            }
        }
    }
}

impl Set {
    /// Packs `columns` of elements `inner` as [`pack`] does, or as [`avx2::pack`]: to so many columns, and bytes of a code.
    ///
    /// # Safety
    /// The processor has what the set uses.
    ///
    /// # Panics
    /// As those.
    pub(super) unsafe fn pack(
        self,
        b: &Side<'_>,
        batch: usize,
        (columns, inner): (Range<usize>, Range<usize>),
        (width, bytes): (usize, usize),
        by: (&Lift, &mut Turned<'_>),
        out: &mut [u8],
    ) {
        // SAFETY: passed on.
        unsafe {
            match self {
                Self::Avx512 => pack(b, batch, columns, inner, width, by, out),
                Self::Vnni | Self::Plain => avx2::pack(b, batch, columns, inner, bytes, by, out),
            }
        }
    }
}

/// The codes of elements `inner` of columns `columns`, turned if they lie across.
///
/// # Safety
/// The processor has AVX2.
pub(super) unsafe fn columns_of<'c>(
    b: &Side<'c>,
    batch: usize,
    columns: &Range<usize>,
    inner: &Range<usize>,
    turned: &'c mut Turned<'_>,
) -> Codes<'c> {
    match b.matrix.order {
        // SAFETY: passed on.
        Order::Row if !columns.is_empty() => unsafe { turned.columns(b, batch, columns.clone(), inner.clone()) },
        _ => Codes::of(b, batch, inner.clone()),
    }
}

/// Asks for part `part` of `parts` of the codes that [`pack`] will read, column by column.
pub(crate) fn ask(b: &Side<'_>, batch: usize, columns: Range<usize>, inner: Range<usize>, part: usize, parts: usize) {
    if b.matrix.order != Order::Col || inner.is_empty() {
        return;
    }
    let some = columns.start + columns.len() * part / parts..columns.start + columns.len() * (part + 1) / parts;
    let codes = Codes::of(b, batch, inner);
    for o in some {
        for line in codes.column(o).chunks(64) {
            // SAFETY: nothing is read.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast()) };
        }
    }
}

/// How far ahead each column's memory is asked for, in bytes.
const AHEAD: usize = 512;

/// Sixteen vectors of sixteen dwords, rows made columns.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) fn transposed(r: [__m512i; 16]) -> [__m512i; 16] {
    let mut t = r;
    // Pairs of rows, then fours, within 128 bits.
    for i in (0..16).step_by(2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    let mut u = t;
    for i in (0..16).step_by(4) {
        u[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        u[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        u[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        u[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    // u[4g + c] has in part q, of rows 4g to 4g + 3, dword 4q + c: gather parts q of all g.
    let mut out = r;
    for c in 0..4 {
        let even = [_mm512_shuffle_i32x4::<0x88>(u[c], u[4 + c]), _mm512_shuffle_i32x4::<0x88>(u[8 + c], u[12 + c])];
        let odd = [_mm512_shuffle_i32x4::<0xdd>(u[c], u[4 + c]), _mm512_shuffle_i32x4::<0xdd>(u[8 + c], u[12 + c])];
        out[c] = _mm512_shuffle_i32x4::<0x88>(even[0], even[1]);
        out[8 + c] = _mm512_shuffle_i32x4::<0xdd>(even[0], even[1]);
        out[4 + c] = _mm512_shuffle_i32x4::<0x88>(odd[0], odd[1]);
        out[12 + c] = _mm512_shuffle_i32x4::<0xdd>(odd[0], odd[1]);
    }
    out
}
