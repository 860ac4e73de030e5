//! How runs of A and B become [parts](super::parts), and what numbers take part that have none.

use super::{
    bits::scaling,
    codes::{Codes, ENTRIES},
    floats::{A_LD, Job, PANEL, SumPlaces},
    parts::{PARTS, Places, STEP, WIDE, is_special, right_bytes, split_rows},
};
use crate::{
    amx::{ROW_BYTES, ROWS, TILE_BYTES},
    gemm::{
        few::columns::Codes as Columns,
        finish::Finish,
        side::{Scaling, Side},
    },
    simd::{Avx512, Isa, Work},
};
use kp_hal::op::{GemmSpec, Order};
use std::{arch::x86_64::_mm512_storeu_si512, ops::Range};

/// B's columns, if they are contiguous codes to look up.
pub(crate) fn codes_of(spec: &GemmSpec) -> Option<Codes> {
    let is_applied = scaling(&spec.b, spec.k) == Scaling::Applied;
    Codes::of(&spec.b, spec.k, is_applied && spec.b.format.scale_dtype().is_some())
        .filter(|_| spec.b.order == Order::Col)
}

impl Job<'_, '_> {
    /// Splits a run of at most 16 rows of A; whether a number is special.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    pub(super) fn split_a(&self, rows: Range<usize>, run: Range<usize>, room: &mut [f32], out: &mut [u8]) -> bool {
        let (Finish { product, item, .. }, parts) = (self.finish, self.parts[0]);
        let outer = item.row + rows.start..item.row + rows.end;
        let scaling = self.floats.scaling[0];
        let places = self.floats.places(Places::left(parts));
        split_side((&product.a, scaling), item.row_batch, (outer, run), parts, room, (places, out))
    }

    /// Splits a run of at most 32 columns of B, as [`Self::split_a`] does rows.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    pub(super) fn split_columns(
        &self,
        columns: Range<usize>,
        run: Range<usize>,
        room: &mut [f32],
        out: &mut [u8],
    ) -> bool {
        let (Finish { product, item, .. }, parts) = (self.finish, self.parts[1]);
        let (places, mut special) = (self.floats.places(Places::right(parts)), false);
        for tile in 0..2 {
            let first = columns.end.min(columns.start + tile * ROWS);
            let (some, out) = (first..columns.end.min(first + ROWS), &mut out[tile * places.tile..]);
            let side = (&product.b, self.floats.scaling[1]);
            special |= split_side(side, item.b, (some, run.clone()), parts, room, (places, out));
        }
        special
    }

    /// A run of a panel of B as lines of numbers, and the distance between them: where they lie, or made in `room`.
    pub(super) fn lines_of_b<'s>(
        &'s self,
        columns: Range<usize>,
        run: Range<usize>,
        room: &'s mut [f32],
    ) -> (&'s [f32], usize) {
        let Finish { product, item, .. } = self.finish;
        let lying = product.b.numbers_across(item.b, &columns, run.start);
        lying.unwrap_or_else(|| {
            self.lines(columns, run, room);
            (room, PANEL)
        })
    }

    /// A run of a panel of B as lines of numbers.
    fn lines(&self, columns: Range<usize>, run: Range<usize>, out: &mut [f32]) {
        struct Pack<'p, 'a>(&'p Side<'a>, usize, Range<usize>, Range<usize>, Scaling, &'p mut [f32]);
        impl Work for Pack<'_, '_> {
            #[inline(always)]
            fn run(self) {
                let Self(side, batch, columns, run, scaling, out) = self;
                let out = &mut out[..run.len() * PANEL];
                side.pack::<Avx512, f32>(batch, columns, run, PANEL, scaling, out);
            }
        }
        let Finish { product, item, .. } = self.finish;
        <Avx512 as Isa>::run(Pack(&product.b, item.b, columns, run, self.floats.scaling[1], out));
    }

    /// Looks a run of at most 32 columns of B up, by scales and zero points as [`Codes::scales`] reads them; whether a number is special.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    pub(super) fn split_codes(
        &self,
        codes: Codes,
        columns: Range<usize>,
        run: Range<usize>,
        by: [&[f32]; 2],
        out: &mut [u8],
    ) -> bool {
        let Finish { product, item, .. } = self.finish;
        let (lines, steps) = (Columns::of(&product.b, item.b, run.clone()), run.len().div_ceil(STEP));
        let mut all = [&[][..]; WIDE];
        for (column, o) in all.iter_mut().zip(columns.clone()) {
            *column = lines.column(o);
        }
        let all = &all[..columns.len()];
        match self.parts[1] {
            1 => look_up::<1>(codes, all, by, steps, out),
            2 => look_up::<2>(codes, all, by, steps, out),
            _ => look_up::<PARTS>(codes, all, by, steps, out),
        }
    }

    /// Adds the products of a run that [special](is_special) numbers take part in, one by one.
    #[cold]
    pub(super) fn add_specials(
        &self,
        (rows, columns): (Range<usize>, Range<usize>),
        run: Range<usize>,
        (row, of_b): (&mut [f32], &mut [f32]),
        (sums, places): (&mut [f32], SumPlaces),
    ) {
        let Finish { product, item, .. } = self.finish;
        let count = columns.len();
        self.lines(columns, run.clone(), of_b);
        let of_b = &of_b.as_chunks::<PANEL>().0[..run.len()];
        let some: Vec<bool> = of_b.iter().map(|b| b[..count].iter().any(|&b| is_special(b))).collect();
        for (i, r) in rows.enumerate() {
            let row = &mut row[..run.len()];
            product.a.row(item.row_batch, item.row + r, run.clone(), self.floats.scaling[0], row);
            for ((&a, b), &some) in row.iter().zip(of_b).zip(&some) {
                let each = sums[i * places.row..].iter_mut().step_by(places.column).zip(&b[..count]);
                if is_special(a) {
                    each.for_each(|(sum, b)| *sum += a * b);
                } else if some {
                    each.filter(|(_, b)| is_special(**b)).for_each(|(sum, b)| *sum += a * b);
                }
            }
        }
    }
}

/// Splits a run of at most 16 rows of a side, or columns: those that lie as numbers, or are made such in `room`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn split_side(
    (side, scaling): (&Side<'_>, Scaling),
    batch: usize,
    (outer, run): (Range<usize>, Range<usize>),
    parts: usize,
    room: &mut [f32],
    to: (Places, &mut [u8]),
) -> bool {
    let count = outer.len();
    if let Some((numbers, ld)) = side.numbers_in_rows::<f32>(batch).filter(|_| count > 0) {
        return split_rows((&numbers[outer.start * ld + run.start..], ld), count, run.len(), parts, to);
    }
    side.pack_rows::<Avx512, f32>(batch, outer, run.clone(), A_LD, scaling, room);
    split_rows((room, A_LD), count, run.len(), parts, to)
}

/// Looks a run of at most 32 columns of B up as lines of right tiles, by the scales and zero points of each from that run on; whether a number is special.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn look_up<const N: usize>(
    codes: Codes,
    columns: &[&[u8]],
    [scales, zeros]: [&[f32]; 2],
    steps: usize,
    out: &mut [u8],
) -> bool {
    let out = &mut out[..steps * right_bytes(N)];
    let mut special = false;
    for column in 0..WIDE {
        let at = |step: usize, part: usize| {
            step * right_bytes(N) + (2 * part + column / ROWS) * TILE_BYTES + column % ROWS * ROW_BYTES
        };
        if let Some(of_column) = columns.get(column) {
            let by = [&scales[column * ENTRIES..], &zeros[column * ENTRIES..]];
            special |= codes.some_lines::<N, false>(of_column, by, |step, lines| {
                for (part, line) in lines.into_iter().enumerate() {
                    let out = &mut out[at(step, part)..][..ROW_BYTES];
                    // SAFETY: 64 bytes.
                    unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), line) };
                }
            });
        } else {
            for (step, part) in (0..steps).flat_map(|step| (0..N).map(move |part| (step, part))) {
                out[at(step, part)..][..ROW_BYTES].fill(0);
            }
        }
    }
    special
}
