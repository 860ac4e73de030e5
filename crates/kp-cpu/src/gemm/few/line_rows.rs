//! Few rows of numbers by a B whose rows are contiguous: what makes rows ready, and which strips they meet, whichever loops multiply them.
//!
//! ```text
//!            n ─▶ some columns, each thread its own
//!           ├─────────────┼─
//!        k  │▓▓▓▓│        │   a strip of some lines meets all rows, then the strip beside it; sums in cache
//!           ├─────────────┼─
//! ```
//! Memory is read a piece of each line after the other, so columns of a thread are many: 2048 took 0.9 of the time of 512.

use super::{
    columns::{self, Dots, HEIGHTS, MOST, Task, overlapped},
    lines::{Asks, DTYPES, LINES, Strip, Table},
    list_rows::{SIXTEEN, lists_as_rows},
    lists::{Lists, can_list},
};
use crate::{
    act::Tail,
    caps::fetches_runs_of,
    gemm::{
        product::{Item, Product},
        side::{Scaling, varies},
    },
    kernel::Disjoint,
    memory::numbers_mut,
    threads,
};
use kp_hal::{
    Caps, DType, Nanos, Unsupported,
    op::{GemmProblem, GemmSpec, Order},
};

/// Most columns that a thread has at once, and what their number is a multiple of: the widest strip.
const COLUMNS: usize = 8192;
pub(crate) const UNIT: usize = 128;

/// The same where lines are read along, so that few end early.
const COLUMNS_ALONG: usize = 2 * COLUMNS;

pub(crate) const fn most_columns(is_along: bool) -> usize {
    if is_along { COLUMNS_ALONG } else { COLUMNS }
}

/// Tasks that columns are shared among, at least.
pub(crate) fn least_tasks(is_along: bool) -> usize {
    if is_along { threads::count() } else { 2 * threads::count() }
}

/// The same where scales change along k: those of so many blocks stay near.
const SCALED_COLUMNS: usize = 2048;
const BLOCKS: usize = 16;

/// Whether loops of `features` suit `p`.
///
/// # Errors
/// The first part that does not.
pub(crate) fn suits(caps: &Caps, features: &[&'static str], p: &GemmProblem) -> std::result::Result<(), Unsupported> {
    columns::suits(caps, features, p, MOST, Order::Row)?;
    if !DTYPES.contains(&p.b.dtype()) {
        return Err(Unsupported::DType { operand: "b", got: p.b.dtype() });
    }
    if varies(&p.b, p.k) && !can_list(&p.b, p.k) {
        return Err(Unsupported::Scheme { operand: "b", got: p.b.format.to_string() });
    }
    Ok(())
}

/// Time of loops whose vectors have so many `lanes`.
pub(crate) fn estimate(caps: &Caps, p: &GemmProblem, lanes: f64) -> Nanos {
    let (_, memory) = Nanos::floors(caps, p);
    // For each vector some instructions to make it numbers, one for each row; two at a time.
    let numbers = f64::from(p.batch) * f64::from(p.n) * f64::from(p.k);
    let made = match p.b.dtype() {
        DType::E4m3 | DType::E5m2 => 6.0,
        _ if p.b.dtype().bits() == 4 => 5.0,
        _ => 2.0,
    };
    let zeros = if p.b.format.has_zero() { 1.0 } else { 0.0 };
    let cycles = numbers / lanes * (made + zeros + height(p) as f64) / 1.6;
    // A scale takes some cycles to be read and turned.
    let cycles =
        cycles + if varies(&p.b, p.k) { numbers / f64::from(p.b.format.block().1) * (3.0 + zeros) } else { 0.0 };
    let compute = cycles / (caps.clock_hz.max(1e9) * f64::from(caps.units.max(1)));
    Nanos::from_secs(overlapped(memory, compute) + 2e-6 * f64::from(p.batch.max(1)))
}

/// Adds the products of rows, so far apart, with a strip to sums, so far apart.
pub(crate) type Loop = unsafe fn((&[f32], usize), Strip<'_>, (&mut [f32], usize));

/// Rows that loops are compiled for.
pub(crate) fn height(spec: &GemmSpec) -> usize {
    HEIGHTS[columns::height((spec.m as usize).max(1))]
}

/// Sums of strips.
pub(crate) struct Lines {
    spec: GemmSpec,
    multiply: Loop,
    strip: usize,
    /// Lines that meet all rows at once.
    lines: usize,
    /// Whether few threads read whole lines, each of which the processor fetches on in.
    is_along: bool,
    table: Table,
    /// Elements of k that share a scale, if scales change along it.
    share: Option<usize>,
}

/// Lines of so many bytes that meet all rows at once.
pub(crate) fn together(line: usize) -> usize {
    (SPAN / line.max(1) / LEAST * LEAST).clamp(LEAST, LINES)
}

/// Writes the first `there` bytes of each of some lines, `ld` apart, and zeros to `strip` bytes.
pub(crate) fn pad(codes: &[u8], ld: usize, there: usize, strip: usize, out: &mut [u8]) {
    for (out, line) in out.chunks_exact_mut(strip).zip(codes.chunks(ld)) {
        out[..there].copy_from_slice(&line[..there]);
        out[there..].fill(0);
    }
}

/// Bytes from the first of these lines to what follows the last one, if they are more than [`LEAST`]. Eight rows of f32 with n = 11008 took 0.67 of the time by eight lines, not 32; of
/// bf16 0.95 by sixteen, and with n = 4096 1.1.
const SPAN: usize = 400 << 10;
const LEAST: usize = 8;

/// As many where lines are read along, of numbers of so many `bits`. On Granite Rapids thirty-two of f32 took 1.3 of the time for eight rows
/// with n = 11008, sixteen 1.05 for one.
fn together_along(rows: usize, bits: usize) -> usize {
    match (rows, bits) {
        (_, ..=8) => LINES,
        (1, _) => 24,
        _ => 16,
    }
}

/// Whether reading is most of the time, so that it counts how lines are read: two threads took 1.07 of the time for e4m3 along them.
fn mostly_reads(dtype: DType) -> bool {
    !matches!(dtype, DType::E4m3 | DType::E5m2) && dtype.bits() > 4
}

impl Lines {
    /// By `multiply`, of a strip of so many columns. Whoever makes them promises that the processor has what it uses.
    pub(crate) fn new(spec: &GemmSpec, caps: &Caps, (multiply, strip): (Loop, usize)) -> Self {
        let b = &spec.b;
        let share = varies(b, spec.k).then(|| (b.format.block().1 as usize).min(spec.k.next_multiple_of(16) as usize));
        let is_along = share.is_none() && mostly_reads(b.dtype()) && fetches_runs_of(caps);
        let bits = b.dtype().bits() as usize;
        let lines = if is_along { together_along(height(spec), bits) } else { together(b.ld as usize * bits / 8) };
        Self { spec: *spec, multiply, strip, lines, is_along, table: Table::of(b.dtype()), share }
    }

    /// Most columns of a task.
    fn most(&self) -> usize {
        match self.share {
            Some(_) => SCALED_COLUMNS,
            None => most_columns(self.is_along),
        }
    }

    /// Reads scales and zero points of [`BLOCKS`] blocks of k from element `first` on: rows of as many as there are columns, rounded up, `ld` apart.
    fn read_scales(&self, task: &Task<'_, '_>, first: usize, [scales, zeros]: [&mut [f32]; 2], ld: usize) {
        let (b, share) = (&task.product.b, self.share.expect("scales that change"));
        let lists = Lists::new(b, task.item.b, first, share);
        let count = (self.spec.k as usize - first).div_ceil(share).min(BLOCKS);
        let mut list = [0.0; SIXTEEN * BLOCKS];
        let mut gather = |out: &mut [f32], read: &dyn Fn(usize, &mut [f32])| {
            lists_as_rows(task.columns.clone(), count, &mut list, (out, ld), read);
        };
        match b.matrix.format.scale_dtype() {
            Some(_) => gather(scales, &|o, list| lists.scales(o, list)),
            None => scales.fill(1.0),
        }
        if b.matrix.format.has_zero() {
            gather(zeros, &|o, list| lists.zeros(o, list));
        }
    }

    /// From one row of A to the next.
    fn ld(&self) -> usize {
        (self.spec.k as usize).next_multiple_of(LINES)
    }
}

impl<E: Tail> Dots<E> for Lines {
    fn a_bytes(&self) -> usize {
        height(&self.spec) * self.ld() * size_of::<f32>()
    }

    fn work_bytes(&self) -> usize {
        let end = LINES * self.strip * size_of::<f32>();
        let scales = if self.share.is_some() { 2 * BLOCKS * SCALED_COLUMNS } else { 0 };
        (height(&self.spec) * self.most() + scales) * size_of::<f32>() + end
    }

    fn columns(&self, all: usize) -> usize {
        (all / least_tasks(self.is_along)).min(self.most())
    }

    fn prepare(&self, product: &Product<'_>, item: Item, a: &mut [u8]) {
        let (rows, ld, k) = (height(&self.spec), self.ld(), self.spec.k as usize);
        let a = Disjoint::of(&mut numbers_mut::<f32>(a)[..rows * ld]);
        threads::for_each(rows * ld / LINES, |i| {
            // SAFETY: each part once.
            let out = unsafe { a.part(i * LINES..(i + 1) * LINES) };
            out.fill(0.0);
            let (row, first) = (i * LINES / ld, i * LINES % ld);
            let inner = first..(first + LINES).min(k);
            if row < item.rows {
                let line = &mut out[..inner.len()];
                product.a.row(item.row_batch, item.row + row, inner, Scaling::Applied, line);
            }
        });
    }

    fn sums(&self, task: Task<'_, '_>, sums: &mut [E], ld: usize, work: &mut [u8]) {
        let (b, item, columns) = (&task.product.b, task.item, &task.columns);
        let (k, a_ld, rows, most) = (self.spec.k as usize, self.ld(), height(&self.spec), self.most());
        let a = &columns::numbers::<f32>(task.a)[..rows * a_ld];
        let bytes = |elements: usize| elements * b.matrix.dtype().bits() as usize / 8;
        let wide = columns.len().next_multiple_of(self.strip.max(SIXTEEN));
        let (totals, rest) = columns::take::<f32>(work, rows * most);
        let of_blocks = if self.share.is_some() { BLOCKS * most } else { 0 };
        let (scales, rest) = columns::take::<f32>(rest, of_blocks);
        let (zeros, end) = columns::take::<f32>(rest, of_blocks);
        let totals = &mut totals[..rows * wide];
        totals.fill(0.0);
        let line = bytes(b.matrix.ld as usize);
        let asks = Asks::of(self.is_along, bytes(columns.len()), self.lines * line);
        let has_zeros = b.matrix.format.has_zero();
        let mut first = 0;
        while first < k {
            let mut count = self.lines.min(k - first);
            let [mut scales_of, mut zeros_of]: [&[f32]; 2] = [&[], &[]];
            if let Some(share) = self.share {
                if first.is_multiple_of(share * BLOCKS) {
                    self.read_scales(&task, first, [scales, zeros], wide);
                }
                count = count.min(share - first % share);
                let block = first / share % BLOCKS * wide..(first / share % BLOCKS + 1) * wide;
                scales_of = &scales[block.clone()];
                zeros_of = if has_zeros { &zeros[block] } else { &[] };
            }
            let a = &a[first..];
            // Whole strips, then what is left of each line and zeros.
            let whole = columns.len() / self.strip * self.strip;
            for part in [0..whole, whole..columns.len().next_multiple_of(self.strip)] {
                if part.is_empty() {
                    continue;
                }
                let there = b.matrix.dtype().bytes((part.end.min(columns.len()) - part.start) as u64) as usize;
                let codes = &b.codes[bytes(b.place(item.b, columns.start + part.start, first))..];
                let codes = &codes[..(count - 1) * line + there];
                let of_part = |list: &'_ [f32]| if list.is_empty() { 0..0 } else { part.clone() };
                let mut strip = Strip {
                    codes,
                    ld: line,
                    lines: count,
                    columns: part.len(),
                    asks,
                    scales: &scales_of[of_part(scales_of)],
                    zeros: &zeros_of[of_part(zeros_of)],
                    table: &self.table,
                };
                if part.end > columns.len() {
                    let ld = bytes(part.len());
                    let end = &mut end[..count * ld];
                    pad(codes, line, there, ld, end);
                    strip = Strip { codes: end, ld, asks: Asks::Nothing, ..strip };
                }
                // SAFETY: the promise of whoever made these.
                unsafe { (self.multiply)((a, a_ld), strip, (&mut totals[part.start..], wide)) };
            }
            first += count;
        }
        for (sums, totals) in sums.chunks_mut(ld).zip(totals.chunks_exact(wide)).take(item.rows) {
            for (sum, &total) in sums.iter_mut().zip(&totals[..columns.len()]) {
                *sum = E::from_f32(total);
            }
        }
        columns::scale(b, item, columns.clone(), self.share.is_some(), &|_| E::ONE, sums, ld);
    }
}

#[cfg(test)]
mod tests {
    use crate::gemm::tests::check;

    /// Strips that end within a vector and blocks of lines that do, rows of any number, and what follows the sums.
    #[test]
    fn strips_meet_rows() {
        let types = ["f32:f32:f32", "bf16:bf16:f32", "f32:f16:f32", "f16:i8@row:f32", "f32:u8:f32", "i8@row:f32:f32"];
        for types in types.into_iter().chain(["f32:e4m3@row:f32", "bf16:e5m2:f32", "f32:u4:f32", "bf16:nf4@row:f32"]) {
            for size in ["2x1x70x100", "1x2x300x33", "1x3x129x64", "3x7x33x130", "1x8x260x31"] {
                check(&format!("gemm {size} {types} b=row/310"), (0.5, 1.0));
            }
        }
        for types in [
            "f32:i4@g32/f16:f32",
            "bf16:u4@g48/f32z:f32",
            "f32:nf4@g64/f32:f32",
            "f32:e2m1@nv:bf16",
            "bf16:e2m1@mx:f32",
        ]
        .into_iter()
        .chain(["f32:u8@g16/f32z:f32", "f32:e4m3@128x128:f32", "bf16:i8@g128/bf16:f32"])
        {
            for size in ["2x1x70x768", "1x2x300x192", "1x3x129x576", "1x8x260x192"] {
                check(&format!("gemm {size} {types} b=row/310"), (0.5, 1.0));
            }
        }
        for options in ["bias=f32 act=silu gate=halves", "gate=pairs", "d=col", "a=col residual=f32"] {
            check(&format!("gemm 1x5x300x70 f32:bf16:f32 {options}"), (1.0, 1.0));
        }
    }
}
