//! D = A·B for at most eight rows whose B has contiguous rows, in f32: weights as they lie.
//!
//! ```text
//!            n ─▶ some columns, each thread its own
//!           ├─────────────┼─
//!        k  │▓▓▓▓│        │   a strip of some lines meets all rows, then the strip beside it; sums in cache
//!           ├─────────────┼─
//! ```
//! Memory is read a piece of each line after the other, so columns of a thread are many. See [`super::few::lines`] for the loop. Limits: numbers of 32 or 16 bits
//! without scales, and bytes with those of columns; not `batch-invariant`, since `packed` adds blocks of k apart.

use super::{
    few::{
        columns::{self, Dots, HEIGHTS, MOST, Task, overlapped},
        dots::{Bf16, F16, F32, I8, U8},
        lines::{LINES, Strip, lines},
    },
    product::{Item, Product},
    side::{Scaling, varies},
};
use crate::{act::Tail, kernel::Disjoint, memory::numbers_mut, threads};
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Gemm, GemmProblem, GemmSpec, Order},
    source_hash,
};
use std::sync::Arc;

/// The kernel for decoding with weights in rows.
pub(crate) struct Avx512FewLines;

/// Columns of the widest strip, and the most that a thread has at once: a page of bf16.
const STRIP: usize = 128;
const COLUMNS: usize = 2048;

impl Kernel<Gemm> for Avx512FewLines {
    fn name(&self) -> &'static str {
        "avx512_few_lines"
    }

    fn code(&self) -> u64 {
        const {
            source_hash(include_bytes!("avx512_few_lines.rs"))
                ^ source_hash(include_bytes!("few/lines.rs")).rotate_left(1)
                ^ source_hash(include_bytes!("few/dots.rs")).rotate_left(2)
                ^ source_hash(include_bytes!("few/columns.rs")).rotate_left(3)
        }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        columns::suits(caps, &columns::FEATURES, p, MOST, Order::Row)?;
        if !matches!(p.b.dtype(), DType::F32 | DType::Bf16 | DType::F16 | DType::I8 | DType::U8) {
            return Err(Unsupported::DType { operand: "b", got: p.b.dtype() });
        }
        if varies(&p.b, p.k) {
            return Err(Unsupported::Scheme { operand: "b", got: p.b.format.to_string() });
        }
        Ok(Variants::ONE)
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, _: Variant) -> Nanos {
        let (_, memory) = Nanos::floors(caps, p);
        // For each sixteen elements an instruction or two to make them numbers, one for each row; two at a time.
        let vectors = f64::from(p.batch) * f64::from(p.n) * f64::from(p.k) / 16.0;
        let cycles = (2.0 + height(p) as f64) / 1.6;
        let compute = vectors * cycles / (caps.clock_hz.max(1e9) * f64::from(caps.units.max(1)));
        Nanos::from_secs(
            overlapped(Nanos::from_secs(memory.as_secs() / 0.9), compute) + 2e-6 * f64::from(p.batch.max(1)),
        )
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        macro_rules! loops {
            ($kind:ident) => {
                match height(p) {
                    1 => (lines::<$kind, 1, 8> as Loop, 128),
                    2 => (lines::<$kind, 2, 8> as Loop, 128),
                    4 => (lines::<$kind, 4, 4> as Loop, 64),
                    _ => (lines::<$kind, 8, 2> as Loop, 32),
                }
            };
        }
        let (multiply, strip) = match p.b.dtype() {
            DType::F32 => loops!(F32),
            DType::Bf16 => loops!(Bf16),
            DType::F16 => loops!(F16),
            DType::I8 => loops!(I8),
            _ => loops!(U8),
        };
        Ok(columns::plan(self, device, p, variant, STRIP, Lines { spec: *p.spec(), multiply, strip }))
    }
}

type Loop = unsafe fn((&[f32], usize), Strip<'_>, (&mut [f32], usize));

/// Rows that loops are compiled for.
fn height(spec: &GemmSpec) -> usize {
    HEIGHTS[columns::height((spec.m as usize).max(1))]
}

/// Sums of strips.
struct Lines {
    spec: GemmSpec,
    multiply: Loop,
    /// Columns of a strip.
    strip: usize,
}

impl Lines {
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

    fn most_columns(&self) -> usize {
        COLUMNS
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
        for first in (0..k).step_by(LINES) {
            let count = LINES.min(k - first);
            let a = &a[first..];
            for (i, column) in columns.clone().step_by(self.strip).enumerate() {
                let (there, of_strip) = (size * self.strip.min(columns.end - column), size * self.strip);
                let codes = &b.codes[size * b.place(item.b, column, first)..][..(count - 1) * line + there];
                let mut strip = Strip { codes, ld: line, lines: count, ahead: LINES * line };
                if there < of_strip {
                    // What is left of each line, and zeros.
                    let end = &mut end[..count * of_strip];
                    for (end, line) in end.chunks_exact_mut(of_strip).zip(codes.chunks(line)) {
                        end[..there].copy_from_slice(&line[..there]);
                        end[there..].fill(0);
                    }
                    strip = Strip { codes: end, ld: of_strip, ahead: 0, ..strip };
                }
                // SAFETY: `supports` asked for the features.
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
