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
    lines::{LINES, Strip},
};
use crate::{
    act::Tail,
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

/// Whether loops of `features` suit `p`.
///
/// # Errors
/// The first part that does not.
pub(crate) fn suits(caps: &Caps, features: &[&'static str], p: &GemmProblem) -> std::result::Result<(), Unsupported> {
    columns::suits(caps, features, p, MOST, Order::Row)?;
    if !matches!(p.b.dtype(), DType::F32 | DType::Bf16 | DType::F16 | DType::I8 | DType::U8) {
        return Err(Unsupported::DType { operand: "b", got: p.b.dtype() });
    }
    if varies(&p.b, p.k) {
        return Err(Unsupported::Scheme { operand: "b", got: p.b.format.to_string() });
    }
    Ok(())
}

/// Time of loops whose vectors have so many `lanes`.
pub(crate) fn estimate(caps: &Caps, p: &GemmProblem, lanes: f64) -> Nanos {
    let (_, memory) = Nanos::floors(caps, p);
    // For each vector an instruction or two to make it numbers, one for each row; two at a time.
    let vectors = f64::from(p.batch) * f64::from(p.n) * f64::from(p.k) / lanes;
    let cycles = (2.0 + height(p) as f64) / 1.6;
    let compute = vectors * cycles / (caps.clock_hz.max(1e9) * f64::from(caps.units.max(1)));
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
}

/// Bytes from the first of these lines to what follows the last one, if they are more than [`LEAST`]. Eight rows of f32 with n = 11008 took 0.67 of the time by eight lines, not 32; of
/// bf16 0.95 by sixteen, and with n = 4096 1.1.
const SPAN: usize = 400 << 10;
const LEAST: usize = 8;

impl Lines {
    /// By `multiply`, of a strip of so many columns. Whoever makes them promises that the processor has what it uses.
    pub(crate) fn new(spec: &GemmSpec, (multiply, strip): (Loop, usize)) -> Self {
        let line = (spec.b.ld as usize * spec.b.dtype().bits() as usize / 8).max(1);
        let lines = (SPAN / line / LEAST * LEAST).clamp(LEAST, LINES);
        Self { spec: *spec, multiply, strip, lines }
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
        height(&self.spec) * COLUMNS * size_of::<f32>() + end
    }

    fn columns(&self, all: usize) -> usize {
        (all / (2 * threads::count())).min(COLUMNS)
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
        let Task { product, item, columns, a } = task;
        let (b, k, a_ld) = (&product.b, self.spec.k as usize, self.ld());
        let rows = height(&self.spec);
        let a = &columns::numbers::<f32>(a)[..rows * a_ld];
        let size = b.matrix.dtype().bits() as usize / 8;
        let wide = columns.len().next_multiple_of(self.strip);
        let (totals, end) = columns::take::<f32>(work, rows * COLUMNS);
        let totals = &mut totals[..rows * wide];
        totals.fill(0.0);
        let line = size * b.matrix.ld as usize;
        for first in (0..k).step_by(self.lines) {
            let count = self.lines.min(k - first);
            let a = &a[first..];
            for (i, column) in columns.clone().step_by(self.strip).enumerate() {
                let (there, of_strip) = (size * self.strip.min(columns.end - column), size * self.strip);
                let codes = &b.codes[size * b.place(item.b, column, first)..][..(count - 1) * line + there];
                let mut strip = Strip { codes, ld: line, lines: count, ahead: self.lines * line };
                if there < of_strip {
                    // What is left of each line, and zeros.
                    let end = &mut end[..count * of_strip];
                    for (end, line) in end.chunks_exact_mut(of_strip).zip(codes.chunks(line)) {
                        end[..there].copy_from_slice(&line[..there]);
                        end[there..].fill(0);
                    }
                    strip = Strip { codes: end, ld: of_strip, ahead: 0, ..strip };
                }
                // SAFETY: the promise of whoever made these.
                unsafe { (self.multiply)((a, a_ld), strip, (&mut totals[i * self.strip..], wide)) };
            }
        }
        for (sums, totals) in sums.chunks_mut(ld).zip(totals.chunks_exact(wide)).take(item.rows) {
            for (sum, &total) in sums.iter_mut().zip(&totals[..columns.len()]) {
                *sum = E::from_f32(total);
            }
        }
        columns::scale(b, item, columns, false, &|_| E::ONE, sums, ld);
    }
}

#[cfg(test)]
mod tests {
    use crate::gemm::tests::check;

    /// Strips that end within a vector and blocks of lines that do, rows of any number, and what follows the sums.
    #[test]
    fn strips_meet_rows() {
        for types in ["f32:f32:f32", "bf16:bf16:f32", "f32:f16:f32", "f16:i8@row:f32", "f32:u8:f32", "i8@row:f32:f32"] {
            for size in ["2x1x70x100", "1x2x300x33", "1x3x129x64", "3x7x33x130", "1x8x260x31"] {
                check(&format!("gemm {size} {types} b=row/310"), (0.5, 1.0));
            }
        }
        for options in ["bias=f32 act=silu gate=halves", "gate=pairs", "d=col", "a=col residual=f32"] {
            check(&format!("gemm 1x5x300x70 f32:bf16:f32 {options}"), (1.0, 1.0));
        }
    }
}
