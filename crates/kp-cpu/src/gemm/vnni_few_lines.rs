//! D = A·B for at most eight rows of 8- or 4-bit codes whose B, of bytes, has contiguous rows: exact sums in i32.
//!
//! ```text
//!            n ─▶ some columns, each thread its own
//!           ├─────────────┼─
//!        k  │▓▓▓▓│        │   a strip of some lines meets all rows, then the strip beside it; sums in cache
//!           ├─────────────┼─
//! ```
//! See [`super::few::byte_lines`] for the loop. Limits: as `vnni_few_rows`, and no scales that change along k.

use super::{
    few::{
        byte_lines::{STRIP, Strip, byte_lines, place},
        columns::{self, Dots, MOST, Task, overlapped},
        fours::{FOUR, Fours},
        line_rows::{least_tasks, most_columns, pad, together},
        lines::{Asks, LINES},
    },
    product::{Item, Product},
    vnni_few_rows::{has_features, lift_for, suits_whole, unit},
};
use crate::{act::Tail, caps::fetches_runs_of};
use kp_hal::{
    Caps, DType, Device, Kernel, Nanos, Plan, Result, Support, Unsupported, Variant, Variants,
    op::{Gemm, GemmProblem, GemmSpec, Order},
    source_hash,
};
use std::sync::Arc;

/// The kernel for decoding with bytes in rows.
pub(crate) struct VnniFewLines;

impl Kernel<Gemm> for VnniFewLines {
    fn name(&self) -> &'static str {
        "vnni_few_lines"
    }

    fn code(&self) -> u64 {
        const {
            source_hash(include_bytes!("vnni_few_lines.rs"))
                ^ source_hash(include_bytes!("few/byte_lines.rs")).rotate_left(1)
                ^ source_hash(include_bytes!("few/columns.rs")).rotate_left(2)
                ^ source_hash(include_bytes!("few/bytes.rs")).rotate_left(3)
                ^ source_hash(include_bytes!("few/fours.rs")).rotate_left(4)
                ^ source_hash(include_bytes!("few/line_rows.rs")).rotate_left(5)
                ^ source_hash(include_bytes!("few/lines.rs")).rotate_left(6)
        }
    }

    fn supports(&self, caps: &Caps, p: &GemmProblem) -> Support {
        has_features(caps)?;
        if p.m as usize > MOST {
            return Err(Unsupported::TooLarge { dim: "m", max: MOST as u64, got: p.m.into() });
        }
        if p.b.order != Order::Row {
            return Err(Unsupported::Layout { operand: "b", got: p.b.order.to_string() });
        }
        if !matches!(p.b.dtype(), DType::I8 | DType::U8) {
            return Err(Unsupported::DType { operand: "b", got: p.b.dtype() });
        }
        suits_whole(p)?;
        Ok(Variants::ONE)
    }

    fn estimate(&self, caps: &Caps, p: &GemmProblem, _: Variant) -> Nanos {
        let (_, memory) = Nanos::floors(caps, p);
        let rows = Fours::of(p).rows as f64;
        // For a line of 64 bytes: what brings it and puts it beside others, and an instruction for each row, two at a time.
        let lines = f64::from(p.batch) * f64::from(p.n) * f64::from(p.k) / 64.0;
        let compute = lines * (5.0 + rows) / (1.6 * caps.clock_hz.max(1e9) * f64::from(caps.units.max(1)));
        Nanos::from_secs(overlapped(memory, compute) + 2e-6 * f64::from(p.batch.max(1)))
    }

    fn plan(&self, device: &Arc<dyn Device>, p: &GemmProblem, variant: Variant) -> Result<Plan<Gemm>> {
        Ok(columns::plan(self, device, p, variant, STRIP, Codes::new(p, &device.info().caps)))
    }
}

type Loop = unsafe fn(&[u32], Strip<'_>, (&mut [i32], usize));

/// Sums of codes.
struct Codes {
    spec: GemmSpec,
    a: Fours,
    multiply: Loop,
    flip: u8,
    /// What codes of the side that is unsigned have too much, times each of the other.
    offset: i32,
    /// Whether few threads read whole lines, each of which the processor fetches on in.
    is_along: bool,
    /// Lines that meet all rows at once.
    lines: usize,
}

impl Codes {
    fn new(spec: &GemmSpec, caps: &Caps) -> Self {
        let a = Fours::of(spec);
        let (lift, offset) = lift_for(spec.a.dtype(), spec.b.dtype());
        let multiply: Loop = match (a.rows, a.signed) {
            (1, true) => byte_lines::<1, true>,
            (2, true) => byte_lines::<2, true>,
            (4, true) => byte_lines::<4, true>,
            (_, true) => byte_lines::<8, true>,
            (1, false) => byte_lines::<1, false>,
            (2, false) => byte_lines::<2, false>,
            (4, false) => byte_lines::<4, false>,
            (_, false) => byte_lines::<8, false>,
        };
        let is_along = fetches_runs_of(caps);
        let lines = if is_along { LINES } else { together(spec.b.ld as usize) };
        Self { spec: *spec, a, multiply, flip: lift.flip, offset, is_along, lines }
    }
}

impl<E: Tail> Dots<E> for Codes {
    fn a_bytes(&self) -> usize {
        self.a.bytes()
    }

    fn work_bytes(&self) -> usize {
        self.a.rows * most_columns(self.is_along) * size_of::<i32>() + LINES * STRIP
    }

    fn columns(&self, all: usize) -> usize {
        (all / least_tasks(self.is_along)).min(most_columns(self.is_along))
    }

    fn prepare(&self, product: &Product<'_>, item: Item, a: &mut [u8]) {
        self.a.prepare(product, item, a);
    }

    fn sums(&self, task: Task<'_, '_>, sums: &mut [E], ld: usize, work: &mut [u8]) {
        let Task { product, item, columns, a } = task;
        let (b, k, rows) = (&product.b, self.spec.k as usize, self.a.rows);
        let (a, of_rows) = self.a.ready(a);
        let wide = columns.len().next_multiple_of(STRIP);
        let (totals, end) = columns::take::<i32>(work, rows * most_columns(self.is_along));
        let totals = &mut totals[..rows * wide];
        for (totals, sum) in totals.chunks_exact_mut(wide).zip(of_rows) {
            totals.fill(self.offset.wrapping_mul(sum).wrapping_neg());
        }
        let line = b.matrix.ld as usize;
        let asks = Asks::of(self.is_along, columns.len(), self.lines * line);
        for first in (0..k).step_by(self.lines) {
            let count = self.lines.min(k - first);
            let a = &a[first / FOUR * rows..];
            for (i, column) in columns.clone().step_by(STRIP).enumerate() {
                let there = STRIP.min(columns.end - column);
                let codes = &b.codes[b.place(item.b, column, first)..][..(count - 1) * line + there];
                let mut strip = Strip { codes, ld: line, lines: count, asks, flip: self.flip };
                if there < STRIP {
                    // What is left of each line, and zeros.
                    let end = &mut end[..count * STRIP];
                    pad(codes, line, there, STRIP, end);
                    strip = Strip { codes: end, ld: STRIP, asks: Asks::Nothing, ..strip };
                }
                // SAFETY: `supports` asked for the features.
                unsafe { (self.multiply)(a, strip, (&mut totals[i * STRIP..], wide)) };
            }
        }
        for (sums, totals) in sums.chunks_mut(ld).zip(totals.chunks_exact(wide)).take(item.rows) {
            for (sums, totals) in sums[..columns.len()].chunks_mut(STRIP).zip(totals.as_chunks::<STRIP>().0) {
                for (column, sum) in sums.iter_mut().enumerate() {
                    *sum = E::from_f64(f64::from(totals[place(column)]));
                }
            }
        }
        let mut factors = [E::ONE; MOST];
        product.a.scales_of(item.row_batch, item.row..item.row + item.rows, 0, &mut factors[..item.rows]);
        let unit = E::from_f32(unit(self.spec.a.format) * unit(self.spec.b.format));
        columns::scale(b, item, columns, false, &|r| factors[r] * unit, sums, ld);
    }
}

#[cfg(test)]
mod tests {
    use crate::gemm::tests::check;

    /// Codes of all signs, strips that end within a vector and lines that do within four, rows of any number.
    #[test]
    fn strips_of_bytes_meet_rows() {
        for types in ["i8:i8:i32", "u8:i8:i32", "i8:u8:i32", "u8:u8:i32", "i4@row:i8@row:f32", "e2m1@row:i8@row:bf16"] {
            for size in ["2x1x70x112", "1x2x300x64", "1x3x129x64", "3x7x34x144", "1x8x260x32"] {
                check(&format!("gemm {size} {types} b=row/310"), (1.0, 1.0));
            }
        }
        for (size, types) in [("1x1x70x35", "i8:i8:i32"), ("1x5x65x1", "u8:i8:i32"), ("1x3x64x9", "u8:u8:i32")] {
            check(&format!("gemm {size} {types}"), (1.0, 1.0));
        }
        check("gemm 1x5x300x64 i8@row:i8@row:f32 bias=f32 act=silu gate=halves", (1.0, 1.0));
    }
}
