//! From sums to D: alpha, C, bias, activation, gate, residual, store.

use super::product::{self, Item, Product, Summing, Sums};
use crate::{
    act::{self, Tail},
    caps::asks_first_cache,
    kernel::{Disjoint, Output},
    memory::{LINE, prefetch},
    numbers::{self, Real},
    rows::{parts, units_of},
    simd::{Work, run_widest},
    store::Store,
};
use kp_hal::{
    DType,
    op::{Addend, Epilogue, Format, Gate, GemmSpec, Order, Overflow, Scheme},
};
use std::ops::Range;

/// Rows that are finished together: even, so that two 4-bit codes of a column share a byte of one group.
const GROUP: usize = 8;

/// How many rows ahead of being stored D is asked for: on Zen 4 storing 2048² of bf16 takes 0.8 ms so, instead of 1.4.
const ROWS_AHEAD: usize = 4;

/// Columns of A·B cut into panels of `width`, the last one shorter. With `Gate::Halves` panels of g and of u
/// alternate, so that two neighbours always hold what belongs together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Panels {
    pub(crate) width: usize,
    cols: usize,
    gate: Gate,
}

impl Panels {
    pub(crate) fn of(spec: &GemmSpec, width: usize) -> Self {
        Self { width, cols: spec.n as usize, gate: spec.epilogue.gate }
    }

    /// Panels there are.
    pub(crate) fn count(&self) -> usize {
        match self.gate {
            Gate::Halves => 2 * (self.cols / 2).div_ceil(self.width),
            Gate::None | Gate::Pairs => self.cols.div_ceil(self.width),
        }
    }

    /// Panels must be cut into runs of a multiple of this.
    pub(crate) fn unit(&self) -> usize {
        if self.gate == Gate::Halves { 2 } else { 1 }
    }

    /// The columns of panel `p`.
    pub(crate) fn columns(&self, p: usize) -> Range<usize> {
        match self.gate {
            Gate::Halves => {
                let half = self.cols / 2;
                let (first, end) = (p / 2 * self.width, ((p / 2 + 1) * self.width).min(half));
                let offset = p % 2 * half;
                first + offset..end + offset
            }
            Gate::None | Gate::Pairs => p * self.width..((p + 1) * self.width).min(self.cols),
        }
    }

    /// Whether panel `p` starts where a panel of B does.
    pub(crate) fn are_those_of_b(&self) -> bool {
        self.gate != Gate::Halves || (self.cols / 2).is_multiple_of(self.width)
    }

    /// The columns of D that panels `run` make.
    fn d_columns(&self, run: &Range<usize>) -> Range<usize> {
        let (first, last) = (self.columns(run.start), self.columns(run.end - 1));
        match self.gate {
            Gate::None => first.start..last.end,
            Gate::Pairs => first.start / 2..last.end / 2,
            Gate::Halves => first.start..last.end - self.cols / 2,
        }
    }
}

/// Sums that wait in the stage: all of D's of an item, if it [is staged](is_staged).
pub(crate) fn stage_len(spec: &GemmSpec) -> usize {
    if is_staged(spec) { spec.m as usize * spec.d_cols() as usize } else { 0 }
}

/// Whether D cannot be stored as it is computed: its scales need whole blocks, or its bytes hold two rows.
pub(crate) fn is_staged(spec: &GemmSpec) -> bool {
    spec.d.format.scheme != Scheme::None || is_transposed_pairs(spec)
}

fn is_transposed_pairs(spec: &GemmSpec) -> bool {
    spec.d.dtype().bits() == 4 && spec.d.order == Order::Col
}

/// Bytes of codes that wait to be transposed.
pub(crate) fn codes_bytes(spec: &GemmSpec) -> usize {
    if is_staged(spec) && spec.d.order == Order::Col { spec.m as usize * row_bytes(spec) } else { 0 }
}

fn row_bytes(spec: &GemmSpec) -> usize {
    spec.d.dtype().bytes(spec.d_cols().into()) as usize
}

/// What follows the sums of one item.
pub(crate) struct Finish<'p, 'a, E> {
    pub(crate) product: &'p Product<'a>,
    pub(crate) item: Item,
    pub(crate) summing: Summing,
    pub(crate) panels: Panels,
    /// Where finished rows wait if D is staged: `m` rows of D's columns.
    pub(crate) stage: Option<Disjoint<'p, E>>,
}

/// A step of some rows of `ld` numbers, in vectors; what lies past their columns is computed too, and never stored.
pub(super) struct Step<'w, E> {
    pub(super) x: &'w mut [E],
    pub(super) ld: usize,
    pub(super) by: By<'w, E>,
}

pub(super) enum By<'w, E> {
    /// They become others times a number.
    Times(E, &'w [E]),
    /// Others times a number are added to them.
    Plus(E, &'w [E]),
    /// One row is added to each.
    Row(&'w [E]),
}

impl<E: Real> Work for Step<'_, E> {
    #[inline(always)]
    fn run(self) {
        let Self { x, ld, by } = self;
        match by {
            By::Times(times, y) => x.iter_mut().zip(y).for_each(|(x, &y)| *x = times * y),
            By::Plus(times, y) => x.iter_mut().zip(y).for_each(|(x, &y)| *x += times * y),
            By::Row(row) => {
                for x in x.chunks_exact_mut(ld) {
                    x.iter_mut().zip(row).for_each(|(x, &y)| *x += y);
                }
            }
        }
    }
}

/// Elements of work space that `Finish::tile` needs for tiles of `ld` columns.
pub(crate) const fn finish_len(ld: usize) -> usize {
    2 * GROUP * ld
}

impl<E: Tail> Finish<'_, '_, E> {
    /// The item's rows of D and the distance between them, if D holds numbers of `E` in rows and is the sums.
    pub(crate) fn d_as_sums(&self) -> Option<(*mut E, usize)> {
        if self.stage.is_some() || !self.is_plain() || self.summing.sums != Sums::Added {
            return None;
        }
        self.rows_as_numbers()
    }

    /// The same if D holds numbers of i32, as sums of whole numbers are.
    pub(crate) fn d_as_whole_sums(&self) -> Option<(*mut u32, usize)> {
        if self.stage.is_some() || !self.is_plain() { None } else { self.rows_of(DType::I32) }
    }

    /// Whether nothing happens to the sums but that they are stored.
    fn is_plain(&self) -> bool {
        let Product { spec, alpha, beta, .. } = *self.product;
        let adds = beta != 0.0 && spec.c != Addend::None;
        alpha == 1.0 && !adds && spec.epilogue == Epilogue::default() && self.summing.sums != Sums::Whole
    }

    /// Finishes `rows` of the item and the columns of panels `run`, whose sums lie in `sums`, a row every `ld`.
    ///
    /// # Safety
    /// No other thread has the same elements of D.
    // Not inlined into the tiles of each instruction set: it would be compiled for all of them and gain little.
    #[inline(never)]
    pub(crate) unsafe fn tile(&self, rows: Range<usize>, run: Range<usize>, sums: &mut [E], ld: usize, work: &mut [E]) {
        let cols = self.panels.d_columns(&run);
        if cols.is_empty() {
            return;
        }
        if let Some(straight) = self.straight() {
            let act = self.product.spec.epilogue.act;
            for (i, x) in sums.chunks_mut(GROUP * ld).enumerate().take(rows.len().div_ceil(GROUP)) {
                let first = rows.start + i * GROUP;
                let group = first..(first + GROUP).min(rows.end);
                // SAFETY: passed on.
                unsafe { straight.rows(group, cols.clone(), act, x, ld) };
            }
            return;
        }
        if self.is_plain() && self.stage.is_none() && self.product.spec.d.order == Order::Row {
            let d = &self.product.spec.d;
            let ahead = asks_first_cache().then(|| ROWS_AHEAD * d.dtype().bytes(d.ld.into()) as usize);
            for (row, sums) in rows.zip(sums.chunks_exact(ld)) {
                // SAFETY: passed on.
                let bytes = unsafe { self.d_bytes(self.d_place(row, cols.start), cols.len()) };
                if let Some(ahead) = ahead {
                    let soon = bytes.as_ptr().wrapping_add(ahead);
                    (0..bytes.len()).step_by(LINE).for_each(|line| prefetch::<1>(soon.wrapping_add(line)));
                }
                numbers::write(d.dtype(), &sums[..cols.len()], bytes, 0, Overflow::Saturate);
            }
            return;
        }
        let (x, y) = work.split_at_mut(GROUP * ld);
        for first in rows.clone().step_by(GROUP) {
            let group = first..(first + GROUP).min(rows.end);
            let x = &mut x[..group.len() * ld];
            let sums = &sums[(group.start - rows.start) * ld..][..x.len()];
            if self.summing.sums == Sums::Whole {
                for (r, (x, sums)) in group.clone().zip(x.chunks_exact_mut(ld).zip(sums.chunks_exact(ld))) {
                    self.scale_row(r, run.clone(), sums, x);
                }
            } else {
                let alpha = E::from_f32(self.product.alpha);
                run_widest(x.len(), Step { x, ld, by: By::Times(alpha, sums) });
            }
            // SAFETY: passed on.
            unsafe { self.add_c(group.clone(), run.clone(), x, y, ld) };
            self.add_bias(&run, x, y, ld);
            if self.product.spec.epilogue.gate == Gate::None {
                act::each(self.product.spec.epilogue.act, x);
            } else {
                x.chunks_exact_mut(ld).for_each(|x| self.gate(&run, x, y));
            }
            self.add_residual(group.clone(), cols.clone(), x, y, ld);
            // SAFETY: passed on.
            unsafe { self.store(group, cols.clone(), x, y, ld) };
        }
    }

    /// alpha times whole sums, times what the row and its columns are worth.
    fn scale_row(&self, row: usize, run: Range<usize>, sums: &[E], x: &mut [E]) {
        let alpha = E::from_f32(self.product.alpha);
        let (a, b) = (&self.product.a, &self.product.b);
        let mut row_scale = [E::ONE];
        a.scales_of(self.item.row_batch, self.item.row + row..self.item.row + row + 1, 0, &mut row_scale);
        for (p, (x, sums)) in run.zip(x.chunks_exact_mut(self.panels.width).zip(sums.chunks_exact(self.panels.width))) {
            let columns = self.panels.columns(p);
            b.scales_of(self.item.b, columns.clone(), 0, &mut x[..columns.len()]);
            for (x, &sum) in x[..columns.len()].iter_mut().zip(sums) {
                // The sum is exact, and wraps to 32 bits as the problem says.
                let sum = E::from_f64(f64::from(sum.to_f64() as i64 as i32));
                *x = alpha * (sum * (row_scale[0] * *x));
            }
        }
    }

    /// x + beta · C
    ///
    /// # Safety
    /// No other thread has the same elements of D.
    unsafe fn add_c(&self, rows: Range<usize>, run: Range<usize>, x: &mut [E], c: &mut [E], ld: usize) {
        let spec = self.product.spec;
        if self.product.beta == 0.0 || spec.c == Addend::None {
            return;
        }
        let beta = E::from_f32(self.product.beta);
        for (t, p) in run.enumerate() {
            let at = t * self.panels.width;
            let columns = self.panels.columns(p);
            let width = columns.len();
            match spec.c {
                Addend::None => return,
                Addend::Given(dtype) => {
                    let first = (self.item.row_batch * spec.m as usize + self.item.row) * spec.n as usize;
                    for (r, c) in rows.clone().zip(c.chunks_exact_mut(ld)) {
                        let start = first + r * spec.n as usize + columns.start;
                        numbers::read(dtype, self.product.c, start, &mut c[at..at + width]);
                    }
                }
                Addend::InPlace => {
                    let read = |start: usize, out: &mut [E]| {
                        // SAFETY: this thread's elements of D, which nothing else has now.
                        let bytes = unsafe { self.d_bytes(start, out.len()) };
                        numbers::read(spec.d.dtype(), bytes, 0, out);
                    };
                    self.load_as_d(rows.clone(), columns, &mut c[at..], ld, read);
                }
            }
        }
        let c = &c[..x.len()];
        run_widest(x.len(), Step { x, ld, by: By::Plus(beta, c) });
    }

    fn add_bias(&self, run: &Range<usize>, x: &mut [E], bias: &mut [E], ld: usize) {
        let Some(dtype) = self.product.spec.epilogue.bias else { return };
        let first = if self.item.own_bias { self.item.b * self.product.spec.n as usize } else { 0 };
        let bias = &mut bias[..ld];
        for (p, bias) in run.clone().zip(bias.chunks_exact_mut(self.panels.width)) {
            let columns = self.panels.columns(p);
            numbers::read(dtype, self.product.bias, first + columns.start, &mut bias[..columns.len()]);
        }
        run_widest(x.len(), Step { x, ld, by: By::Row(bias) });
    }

    /// Activation and gate of one row; the results lie at the start of `x`.
    fn gate(&self, run: &Range<usize>, x: &mut [E], g: &mut [E]) {
        let Epilogue { act, gate, .. } = self.product.spec.epilogue;
        let width = self.panels.width;
        match gate {
            Gate::None => {}
            Gate::Pairs => {
                let g = &mut g[..x.len() / 2];
                for (g, &[x, _]) in g.iter_mut().zip(x.as_chunks::<2>().0) {
                    *g = x;
                }
                act::each(act, g);
                for (j, &g) in g.iter().enumerate() {
                    x[j] = g * x[2 * j + 1];
                }
            }
            Gate::Halves => {
                for q in 0..run.len() / 2 {
                    let g = &mut g[..width];
                    g.copy_from_slice(&x[2 * q * width..][..width]);
                    act::each(act, g);
                    for (j, &g) in g.iter().enumerate() {
                        x[q * width + j] = g * x[(2 * q + 1) * width + j];
                    }
                }
            }
        }
    }

    fn add_residual(&self, rows: Range<usize>, cols: Range<usize>, x: &mut [E], residual: &mut [E], ld: usize) {
        let Some(dtype) = self.product.spec.epilogue.residual else { return };
        let read = |start: usize, out: &mut [E]| numbers::read(dtype, self.product.residual, start, out);
        self.load_as_d(rows, cols, residual, ld, read);
        let residual = &residual[..x.len()];
        run_widest(x.len(), Step { x, ld, by: By::Plus(E::ONE, residual) });
    }

    /// Loads what is laid out as D, by runs that `read` fills from their first element on, to rows of `out`.
    fn load_as_d(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        out: &mut [E],
        ld: usize,
        read: impl Fn(usize, &mut [E]),
    ) {
        if self.product.spec.d.order == Order::Col {
            let mut column = [E::ZERO; GROUP];
            for (j, col) in cols.enumerate() {
                let column = &mut column[..rows.len()];
                read(self.d_place(rows.start, col), column);
                for (r, &value) in column.iter().enumerate() {
                    out[r * ld + j] = value;
                }
            }
        } else {
            for (r, row) in rows.enumerate() {
                read(self.d_place(row, cols.start), &mut out[r * ld..r * ld + cols.len()]);
            }
        }
    }

    /// # Safety
    /// No other thread has the same elements of D.
    unsafe fn store(&self, rows: Range<usize>, cols: Range<usize>, x: &[E], y: &mut [E], ld: usize) {
        let spec = self.product.spec;
        let dtype = spec.d.dtype();
        if let Some(stage) = &self.stage {
            for (row, x) in rows.zip(x.chunks_exact(ld)) {
                let first = (self.item.row + row) * spec.d_cols() as usize;
                // SAFETY: the stage is divided as D is.
                unsafe { stage.part(first + cols.start..first + cols.end) }.copy_from_slice(&x[..cols.len()]);
            }
        } else if spec.d.order == Order::Col {
            for (j, col) in cols.enumerate() {
                let column = &mut y[..rows.len()];
                for (r, value) in column.iter_mut().enumerate() {
                    *value = x[r * ld + j];
                }
                // SAFETY: passed on.
                let bytes = unsafe { self.d_bytes(self.d_place(rows.start, col), column.len()) };
                numbers::write(dtype, column, bytes, 0, Overflow::Saturate);
            }
        } else {
            for (row, x) in rows.zip(x.chunks_exact(ld)) {
                // SAFETY: passed on.
                let bytes = unsafe { self.d_bytes(self.d_place(row, cols.start), cols.len()) };
                numbers::write(dtype, &x[..cols.len()], bytes, 0, Overflow::Saturate);
            }
        }
    }

    pub(super) fn d_place(&self, row: usize, col: usize) -> usize {
        let Product { spec, .. } = self.product;
        let within = spec.d.index((self.item.row + row) as u32, col as u32, spec.m) as usize;
        self.item.row_batch * spec.d.stride as usize + within
    }

    /// The bytes of a run of D.
    ///
    /// # Safety
    /// No other thread has them.
    #[expect(clippy::mut_from_ref, reason = "the exclusiveness is the caller's promise")]
    unsafe fn d_bytes(&self, start: usize, len: usize) -> &mut [u8] {
        let dtype = self.product.spec.d.dtype();
        let first = dtype.bytes(start as u64) as usize;
        // SAFETY: passed on.
        unsafe { self.product.d.part(first..first + dtype.bytes(len as u64) as usize) }
    }
}

/// Lets `compute` do the items of a plain product one after the other; sums that must wait for their rows go to `stage`, and are
/// stored once all of the item's are there.
pub(crate) fn each_item<E: Real>(
    product: &Product<'_>,
    stage: &mut [E],
    codes: &mut [u8],
    mut compute: impl FnMut(Item, Option<Disjoint<'_, E>>),
) {
    for batch in 0..product.spec.batch as usize {
        let item = product::item(product.spec, batch);
        compute(item, (!stage.is_empty()).then(|| Disjoint::of(&mut *stage)));
        if !stage.is_empty() {
            store_staged(product, batch, item.rows, stage, codes);
        }
    }
}

/// Stores the rows `rows` of D number `batch` that wait in `stage`; `codes` is room for those that are transposed.
pub(crate) fn store_staged<E: Real>(product: &Product<'_>, batch: usize, rows: usize, stage: &[E], codes: &mut [u8]) {
    let spec = product.spec;
    let cols = spec.d_cols() as usize;
    if rows == 0 || cols == 0 {
        return;
    }
    let scales = scale_bytes(spec.d.format, spec.m, spec.d_cols());
    let scales = match product.d_scale.bytes() {
        0 => Output::of(&mut []),
        _ => product.d_scale.range(batch * scales..(batch + 1) * scales),
    };
    let first = spec.d.dtype().bytes(batch as u64 * spec.d.stride) as usize;
    let d = product.d.range(first..product.d.bytes());
    let is_transposed = spec.d.order == Order::Col;
    let (target, ld) = if is_transposed {
        (Output::of(codes), (row_bytes(spec) * spec.d.dtype().per_byte() as usize) as u32)
    } else {
        (d, spec.d.ld)
    };
    let store = Store::fused(spec.d.format, (spec.m, spec.d_cols()), ld, target, scales, product.d_global);
    let units = rows.div_ceil(store.unit() as usize) as u32;
    let shares = parts(units, (rows * cols) as u64);
    crate::threads::for_each(shares, |share| {
        for unit in units_of(share, shares, units) {
            let range = store.rows_of(unit);
            let (first, end) = (range.start as usize, (range.end as usize).min(rows));
            // SAFETY: each unit once.
            unsafe { store.unit_of(unit, &stage[first * cols..end * cols]) };
        }
    });
    if is_transposed {
        // SAFETY: as above; nothing else uses D or `codes` now.
        crate::threads::for_each(cols, |col| unsafe { transpose(spec, rows, col, target, d) });
    }
}

/// Moves the codes of one column of D from rows to where they belong.
///
/// # Safety
/// No other thread has the same column, and none writes `codes`.
unsafe fn transpose(spec: &GemmSpec, rows: usize, col: usize, codes: Output<'_>, d: Output<'_>) {
    let dtype = spec.d.dtype();
    let packed = dtype.bits() == 4;
    let first = dtype.bytes(col as u64 * u64::from(spec.d.ld)) as usize;
    // SAFETY: columns do not share bytes: their distance is even.
    let column = unsafe { d.part(first..first + dtype.bytes(rows as u64) as usize) };
    for row in 0..rows {
        let at = row * row_bytes(spec) + if packed { col / 2 } else { col };
        // SAFETY: nothing writes the codes now.
        let byte = unsafe { codes.shared(at..at + 1) }[0];
        if packed {
            let code = byte >> (col % 2 * 4) & 15;
            let place = &mut column[row / 2];
            *place = if row % 2 == 0 { code } else { *place & 15 | code << 4 };
        } else {
            column[row] = byte;
        }
    }
}

fn scale_bytes(format: Format, rows: u32, cols: u32) -> usize {
    let dtype = format.scale_dtype().unwrap_or(DType::F32);
    dtype.bytes(format.scale_count(rows, cols)) as usize
}
