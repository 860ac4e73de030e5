//! Products of bytes, those of B signed, whose B is read where it lies, neither turned nor copied.
//!
//! ```text
//!      contiguous columns of B                  panels of B
//!
//!          64 rows of A                         64 columns of B
//!         ┌─┬─┬─┬─┐                            ┌─┬─┬─┬─┐
//!       k │ │ │ │ │ codes of A + 128         k │ │ │ │ │ codes of B
//!         └─┴─┴─┴─┘                            └─┴─┴─┴─┘
//!      columns of B, as they lie,            rows of A's codes + 128
//!      meet this panel by sixes              meet this panel by sixes
//! ```
//! Either way one side is unsigned, as the instruction wants it. Each sum has 128 times the codes of its column of B too much, which is counted in
//! passing, unless codes of A were unsigned before.

use super::{
    pack::transposed,
    product::ROWS,
    tile::{self, Rows, Whole},
};
use crate::{
    gemm::{
        few::columns::Codes,
        finish::Panels,
        side::{Side, varies},
        tile::Wanted,
    },
    kernel::Disjoint,
    threads,
};
use kp_hal::{
    DType,
    op::{GemmSpec, Order},
};
use std::{
    arch::x86_64::{
        __m512i, _mm512_add_epi32, _mm512_loadu_si512, _mm512_mask_storeu_epi8, _mm512_maskz_loadu_epi8,
        _mm512_set1_epi8, _mm512_setzero_si512, _mm512_slli_epi32, _mm512_storeu_si512, _mm512_sub_epi32,
        _mm512_xor_si512,
    },
    ops::Range,
};

/// Rows or columns of a panel.
pub(super) const SIDE: usize = 16 * tile::WIDE;

/// What is added to codes of A to make them unsigned.
pub(super) fn lift_of_a(spec: &GemmSpec) -> u8 {
    if spec.a.dtype() == DType::U8 { 0 } else { 128 }
}

/// How B is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// It is made panels of unsigned bytes.
    Packed,
    /// Its columns are read where they lie, and A is made panels.
    Columns,
    /// Its panels are read where they lie.
    Panels,
}

impl Way {
    /// The best for products of `spec`.
    pub(crate) fn of(spec: &GemmSpec) -> Self {
        let bytes = spec.b.dtype() == DType::I8 && matches!(spec.a.dtype(), DType::I8 | DType::U8);
        let vary = varies(&spec.a, spec.k) || varies(&spec.b, spec.k);
        // Where nothing is read, nothing would write the sums.
        if !bytes || spec.a.order != Order::Row || vary || spec.k == 0 || !spec.k.is_multiple_of(4) {
            return Self::Packed;
        }
        match spec.b.order {
            Order::Panel { width: 64, depth: 4 } if Panels::of(spec, SIDE).are_those_of_b() => Self::Panels,
            // Rows that are not there would take time too.
            Order::Col if spec.m.next_multiple_of(SIDE as u32) <= spec.m + spec.m / 8 => Self::Columns,
            _ => Self::Packed,
        }
    }

    /// Rows that a chunk of `rows` rows takes the room of: whole panels, or a row of ones besides, whose sums are those of B's
    /// columns.
    pub(super) fn held(self, rows: usize) -> usize {
        match self {
            Self::Packed => rows,
            Self::Columns => rows.next_multiple_of(SIDE),
            Self::Panels => rows + 1,
        }
    }

    /// The same of all `rows` rows.
    pub(super) fn all_held(self, rows: usize) -> usize {
        (0..rows.div_ceil(ROWS)).map(|i| self.held(self.chunk(rows, i).len())).sum()
    }

    /// Where row `row` of `rows` rows lies.
    fn place(self, rows: usize, row: usize) -> usize {
        let before = (0..rows.div_ceil(ROWS)).map(|i| self.chunk(rows, i)).take_while(|chunk| chunk.end <= row);
        row + if self == Self::Panels { before.count() } else { 0 }
    }

    /// Chunk `i` of all that `rows` rows are cut into, at most [`ROWS`] each.
    pub(super) fn chunk(self, rows: usize, i: usize) -> Range<usize> {
        let (step, chunks) = (self.step(), rows.div_ceil(ROWS));
        let units = rows.div_ceil(step);
        // Of nearly equal height.
        (units * i / chunks * step)..(units * (i + 1) / chunks * step).min(rows)
    }

    /// Rows that are not parted.
    fn step(self) -> usize {
        if self == Self::Columns { SIDE } else { 1 }
    }

    /// Makes rows of A unsigned codes by a `flip` of bits, in panels or `ld` apart.
    ///
    /// # Safety
    /// The processor has AVX-512 with VNNI.
    pub(super) unsafe fn prepare<'c>(
        self,
        rows: usize,
        (row, flip): (impl Fn(usize) -> &'c [u8] + Sync, u8),
        out: &mut [u8],
        ld: usize,
    ) {
        let step = self.step();
        let out = Disjoint::of(out);
        threads::for_each_of(rows.div_ceil(step), rows * ld, |i| {
            let at = self.place(rows, step * i);
            // SAFETY: each part once; the features were promised.
            unsafe {
                let out = out.part(at * ld..(at + step) * ld);
                match self {
                    Self::Columns => lift_panel((rows - step * i).min(step), |r| row(step * i + r), flip, out),
                    _ => lift_row(row(i), flip, out),
                }
            }
        });
        if self == Self::Panels {
            for chunk in (0..rows.div_ceil(ROWS)).map(|i| self.chunk(rows, i)) {
                let at = self.place(rows, chunk.end - 1) + 1;
                // SAFETY: between the rows of two chunks.
                unsafe { out.part(at * ld..(at + 1) * ld) }.fill(1);
            }
        }
    }
}

/// The sums of an item's panels of B.
pub(super) struct InPlace<'t> {
    pub(super) way: Way,
    /// Rows of the item.
    pub(super) rows: usize,
    /// One for each number of rows from 1 to [`tile::MOST`].
    pub(super) loops: &'t [Whole; tile::MOST],
    pub(super) panels: &'t Panels,
    /// The panel that the thread most likely takes next.
    pub(super) next: usize,
    /// Elements of k that are read at a time.
    pub(super) depth: usize,
    pub(super) k: usize,
    pub(super) b: &'t Side<'t>,
    pub(super) batch: usize,
    /// What [`Way::prepare`] made of A, and what was added to its codes.
    pub(super) a: &'t [u8],
    pub(super) lifted: i32,
    pub(super) ld: usize,
}

impl InPlace<'_> {
    /// The sums of rows `rows` and panel `p` in `sums`, rows of a panel's width. Of panels that are read as they lie, the row after
    /// the last is what each column has too much.
    pub(super) fn sums(&self, rows: Range<usize>, p: usize, sums: &mut [i32]) {
        let columns = self.panels.columns(p);
        let is_turned = self.way == Way::Columns;
        let (squares, tall) =
            if is_turned { (rows.len().div_ceil(SIDE), columns.len()) } else { (1, self.way.held(rows.len())) };
        let place = self.way.place(self.rows, rows.start);
        // Tiles of nearly equal height, two at least of panels: the first of them does little else than bring codes near.
        let tiles = tall.div_ceil(tile::MOST).max(if is_turned { 1 } else { 2 });
        let mut counts = (is_turned && self.lifted != 0).then_some(Counts([[0; 16]; SIDE]));
        for first in (0..self.k).step_by(self.depth) {
            let inner = first..(first + self.depth).min(self.k);
            let next = self.wanted_after(p, &inner).shared(squares * tiles, inner.len() / 4);
            let of_b = Codes::of(self.b, self.batch, inner.clone());
            let panel_of_b = if is_turned { &[] } else { self.panel(&columns, &inner) };
            for (q, t) in (0..squares).flat_map(|q| (0..tiles).map(move |t| (q, t))) {
                let some = tall * t / tiles..tall * (t + 1) / tiles;
                let (codes, panel) = if is_turned {
                    let panel = (place + SIDE * q) * self.ld + first * SIDE;
                    let codes = Rows { codes: of_b.from(columns.start + some.start), ld: of_b.step() };
                    (codes, &self.a[panel..][..inner.len() * SIDE])
                } else {
                    let codes = &self.a[(place + some.start) * self.ld + first..];
                    (Rows { codes, ld: self.ld }, panel_of_b)
                };
                let ahead = next.part(q * tiles + t);
                let sums = &mut sums[(q * SIDE + some.start) * SIDE..(q * SIDE + some.end) * SIDE];
                // Columns are counted once.
                let counted = counts.as_mut().filter(|_| q == t % squares).map(|counts| &mut counts.0[some.clone()]);
                let counted = counted.unwrap_or(&mut []);
                // SAFETY: whoever made A ready was promised the features.
                unsafe { self.loops[some.len() - 1](codes, panel, ahead, first == 0, sums, counted) };
            }
        }
        if is_turned {
            // SAFETY: as above.
            unsafe {
                let more = counts.map_or([0; SIDE], |counts| total(&counts));
                sums.chunks_exact_mut(SIDE * SIDE).for_each(|square| turn(square, &more));
            }
        } else {
            sums[rows.len() * SIDE..].iter_mut().for_each(|sum| *sum = sum.wrapping_mul(self.lifted));
        }
    }

    /// Elements `inner` of the panel of `columns`.
    fn panel(&self, columns: &Range<usize>, inner: &Range<usize>) -> &[u8] {
        let b = self.b;
        let within = b.matrix.index(inner.start as u32, columns.start as u32, b.inner);
        &b.codes[(self.batch as u64 * b.matrix.stride + within) as usize..][..inner.len() * SIDE]
    }

    /// What is read after elements `inner` of panel `p`.
    fn wanted_after(&self, p: usize, inner: &Range<usize>) -> Wanted {
        let (p, first) = if inner.end < self.k { (p, inner.end) } else { (self.next, 0) };
        if p >= self.panels.count() {
            return Wanted::row(std::ptr::null::<u8>(), 0);
        }
        let (columns, inner) = (self.panels.columns(p), first..(first + self.depth).min(self.k));
        if self.way == Way::Panels {
            return Wanted::row(self.panel(&columns, &inner).as_ptr(), inner.len() * SIDE);
        }
        let codes = Codes::of(self.b, self.batch, inner.clone());
        Wanted {
            at: codes.column(columns.start).as_ptr(),
            bytes: inner.len(),
            count: columns.len(),
            step: codes.step(),
        }
    }
}

/// Copies the codes of a row of A as unsigned ones.
///
/// # Panics
/// If `out` is shorter than the row.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn lift_row(codes: &[u8], flip: u8, out: &mut [u8]) {
    let flip = _mm512_set1_epi8(flip as i8);
    for (codes, out) in codes.chunks(64).zip(out[..codes.len()].chunks_mut(64)) {
        let mask = there(codes);
        // SAFETY: of 64 bytes, those that are there.
        unsafe {
            let codes = _mm512_maskz_loadu_epi8(mask, codes.as_ptr().cast());
            _mm512_mask_storeu_epi8(out.as_mut_ptr().cast(), mask, _mm512_xor_si512(codes, flip));
        }
    }
}

/// Makes at most [`SIDE`] rows of A of equal length a panel of unsigned codes, whole lines of k.
///
/// # Panics
/// If `out` is short.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn lift_panel<'c>(rows: usize, row: impl Fn(usize) -> &'c [u8], flip: u8, out: &mut [u8]) {
    let flip = _mm512_set1_epi8(flip as i8);
    for first in (0..rows).step_by(16) {
        let mut all: [&[u8]; 16] = [&[]; 16];
        for (all, r) in all.iter_mut().zip(first..rows) {
            *all = row(r);
        }
        for (line, out) in out.chunks_exact_mut(64 * SIDE).enumerate().take(all[0].len().div_ceil(64)) {
            let mut fours = [_mm512_setzero_si512(); 16];
            for (fours, codes) in fours.iter_mut().zip(all) {
                let codes = codes.get(64 * line..).unwrap_or(&[]);
                let codes = &codes[..codes.len().min(64)];
                // SAFETY: of 64 bytes, those that are there.
                *fours = unsafe { _mm512_maskz_loadu_epi8(there(codes), codes.as_ptr().cast()) };
            }
            for (step, fours) in transposed(fours).into_iter().enumerate() {
                let out = &mut out[(step * SIDE + first) * 4..][..64];
                // SAFETY: 64 bytes.
                unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), _mm512_xor_si512(fours, flip)) };
            }
        }
    }
}

/// Of each column of a panel sixteen numbers, the sum of which is that of its codes.
#[repr(align(64))]
struct Counts([[i32; 16]; SIDE]);

/// What each column of a panel has too much, negative.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn total(counts: &Counts) -> [i32; SIDE] {
    let mut more = [0; SIDE];
    for (counts, more) in counts.0.as_chunks::<16>().0.iter().zip(more.as_chunks_mut::<16>().0) {
        // SAFETY: sixteen numbers each.
        unsafe {
            let rows = counts.each_ref().map(|counts| _mm512_loadu_si512(counts.as_ptr().cast()));
            let sum = transposed(rows).into_iter().fold(_mm512_setzero_si512(), |sum, x| _mm512_add_epi32(sum, x));
            let taken = _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32::<7>(sum));
            _mm512_storeu_si512(more.as_mut_ptr().cast(), taken);
        }
    }
    more
}

/// Makes a square of [`SIDE`] columns of sums rows, and adds `more` to each.
///
/// # Panics
/// If it is not one.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn turn(sums: &mut [i32], more: &[i32; SIDE]) {
    let sums: &mut [i32; SIDE * SIDE] = sums.try_into().expect("a square");
    let at = |i: usize, j: usize| 16 * (i * SIDE + j);
    for i in 0..SIDE / 16 {
        for j in i..SIDE / 16 {
            let (upper, lower) = (turned(sums, at(i, j)), turned(sums, at(j, i)));
            put(sums, at(j, i), upper, &more[16 * i..]);
            put(sums, at(i, j), lower, &more[16 * j..]);
        }
    }
}

/// Sixteen by sixteen sums from `first` on, turned.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn turned(sums: &[i32; SIDE * SIDE], first: usize) -> [__m512i; 16] {
    let mut rows = [_mm512_setzero_si512(); 16];
    for (r, row) in rows.iter_mut().enumerate() {
        let sums = &sums[first + r * SIDE..][..16];
        // SAFETY: sixteen numbers.
        *row = unsafe { _mm512_loadu_si512(sums.as_ptr().cast()) };
    }
    transposed(rows)
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn put(sums: &mut [i32; SIDE * SIDE], first: usize, rows: [__m512i; 16], more: &[i32]) {
    // SAFETY: sixteen numbers.
    let more = unsafe { _mm512_loadu_si512(more[..16].as_ptr().cast()) };
    for (r, row) in rows.into_iter().enumerate() {
        let sums = &mut sums[first + r * SIDE..][..16];
        // SAFETY: sixteen numbers.
        unsafe { _mm512_storeu_si512(sums.as_mut_ptr().cast(), _mm512_add_epi32(row, more)) };
    }
}

/// Which of 64 bytes are there.
fn there(bytes: &[u8]) -> u64 {
    if bytes.len() >= 64 { !0 } else { (1 << bytes.len()) - 1 }
}
