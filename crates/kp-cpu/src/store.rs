//! Rows of numbers to codes and scales: what `quantize` does, and every op that quantizes as it stores.
//!
//! ```text
//!   row ─ blocks ▶ largest magnitudes ─▶ scales, stored ─▶ divisors
//!       ─ tiles of 512, divided ▶ numbers ─ rounded ▶ codes
//! ```

mod divide;
mod scale;
#[cfg(test)]
mod tests;

use crate::{
    caps::exceeds_caches,
    kernel::Output,
    memory::{as_bytes, as_numbers_mut, fetch_ahead, stream},
    numbers::{self, Real},
    simd::{run_widest_in, vector::Wide},
};
use divide::{Bytes, Divide, Divisor, Largest, Quantiles, Range};
use kp_hal::{
    DType,
    op::{Format, Overflow, ScaleLayout, ScaleRule, Scheme},
};
pub(crate) use scale::scale_of;
use scale::{Scales, amax, rounded};

/// Where rows go and how they are scaled.
pub(crate) struct Store<'a> {
    /// Codes and scales.
    pub(crate) format: Format,
    /// Rows and columns in all.
    pub(crate) shape: (u32, u32),
    /// Distance between rows, in elements.
    pub(crate) ld: u32,
    /// Codes.
    pub(crate) codes: Output<'a>,
    /// Scales, where they are computed.
    pub(crate) scales: Output<'a>,
    /// Zero points, where they are computed.
    pub(crate) zeros: Output<'a>,
    /// Scales to use as they are.
    pub(crate) given_scales: &'a [u8],
    /// Zero points to use as they are.
    pub(crate) given_zeros: &'a [u8],
    /// What everything is divided by before its block is looked at: the scale of `@tensor`, the global of `@nv`, else 1.
    pub(crate) global: f64,
    /// How scales are rounded.
    pub(crate) rule: ScaleRule,
    /// What becomes of numbers past the largest code.
    pub(crate) overflow: Overflow,
    /// Whether codes are written past the caches; `memory::settle` then ends the work of each thread.
    pub(crate) streams: bool,
}

impl<'a> Store<'a> {
    /// For an op that quantizes as it stores: the usual rule, saturating, `global` as the caller gave it.
    pub(crate) fn fused(
        format: Format,
        shape: (u32, u32),
        ld: u32,
        codes: Output<'a>,
        scales: Output<'a>,
        global: &[u8],
    ) -> Self {
        Self {
            format,
            shape,
            ld,
            codes,
            scales,
            zeros: Output::of(&mut []),
            given_scales: &[],
            given_zeros: &[],
            global: if global.is_empty() { 1.0 } else { numbers::get(DType::F32, global, 0) },
            rule: ScaleRule::of(format),
            overflow: Overflow::Saturate,
            streams: false,
        }
    }

    /// The same for a launch that reads a number of `x` for each that it stores: past the caches, if they cannot hold all.
    pub(crate) fn of_launch(self, x: DType) -> Self {
        let bits = u64::from(x.bits() + self.format.dtype.bits());
        Self { streams: exceeds_caches(u64::from(self.shape.0) * u64::from(self.shape.1) * bits / 8), ..self }
    }

    /// Rows that must be stored together, since a block spans them.
    pub(crate) fn unit(&self) -> u32 {
        match self.format.scheme {
            Scheme::Block { outer, .. } => outer.into(),
            _ => 1,
        }
    }

    /// Units there are.
    pub(crate) fn units(&self) -> u32 {
        self.shape.0.div_ceil(self.unit())
    }

    /// Rows of unit `i`.
    pub(crate) fn rows_of(&self, i: u32) -> std::ops::Range<u32> {
        let first = i * self.unit();
        first..first.saturating_add(self.unit()).min(self.shape.0)
    }

    /// Row `i` as numbers of `R` to write in place, if that is all there is to storing it.
    ///
    /// # Safety
    /// No other thread has the same row.
    pub(crate) unsafe fn place<R: Real>(&self, i: u32) -> Option<&'a mut [R]> {
        if self.streams || self.format != Format::from(R::DTYPE) {
            return None;
        }
        // SAFETY: the caller's promise.
        as_numbers_mut(unsafe { self.row(i) })
    }

    /// Whether rows are numbers of `dtype`, and are written past the caches.
    pub(crate) fn streams_plainly(&self, dtype: DType) -> bool {
        self.streams && self.format == Format::from(dtype)
    }

    /// Stores unit `i`, whose rows lie one behind the other in `x`.
    ///
    /// # Safety
    /// No other thread stores the same unit.
    pub(crate) unsafe fn unit_of<R: Real>(&self, i: u32, x: &[R]) {
        // SAFETY: the caller's promise.
        unsafe { self.unit_before(i, x, &[]) };
    }

    /// The same. Meanwhile `next`, which the thread reads after it, is brought near: memory would be idle otherwise.
    ///
    /// # Safety
    /// As [`Self::unit_of`].
    pub(crate) unsafe fn unit_before<R: Real>(&self, i: u32, x: &[R], next: &[u8]) {
        let cols = self.shape.1 as usize;
        // SAFETY: a unit has its own rows.
        let rows = || self.rows_of(i).map(|row| unsafe { self.row(row) }).zip(x.chunks_exact(cols.max(1)));
        if self.format.scheme == Scheme::None {
            rows().for_each(|(row, x)| self.put(self.format.dtype, x, row, 0));
            return;
        }
        let inner = (self.format.block().1 as usize).min(cols.max(1));
        let mut of_next = Share { next, numbers: x.len().max(1), done: 0 };
        // SAFETY: passed on.
        if inner == cols && self.unit() == 1 && unsafe { self.row_as_bytes(i, x, &mut of_next) } {
            return;
        }
        // As many blocks as fill a tile, or one that takes several.
        let span = (TILE / inner).clamp(1, BLOCKS) * inner;
        let mut divisors = [Divisor::new(1.0, 0.0); BLOCKS];
        let mut tile = [R::ZERO; TILE];
        for first in (0..cols).step_by(span) {
            let span = first..(first + span).min(cols);
            let divisors = &mut divisors[..span.len().div_ceil(inner)];
            // SAFETY: a unit has its own scales.
            unsafe {
                let x = rows().map(|(_, x)| &x[span.clone()]);
                self.divisors::<R, BLOCKS>((i, (first / inner) as u32), x, inner, divisors);
            };
            for (row, x) in rows() {
                for (t, x) in x[span.clone()].chunks(TILE).enumerate() {
                    let tile = &mut tile[..x.len()];
                    // In two parts: a processor asks for a dozen lines at a time, and for more it waits.
                    let dtype = self.divide(x, inner, divisors, tile);
                    of_next.fetch(tile.len() / 2);
                    self.put(dtype, tile, row, first + t * TILE);
                    of_next.fetch(tile.len() - tile.len() / 2);
                }
            }
        }
    }

    /// Stores row `i`, which has one scale, as signed bytes, straight from its numbers; `false` if it must go through tiles.
    ///
    /// # Safety
    /// As [`Self::unit_of`].
    unsafe fn row_as_bytes<R: Real>(&self, i: u32, x: &[R], of_next: &mut Share<'_>) -> bool {
        let is_plain = self.format.dtype == DType::I8 && !self.format.has_zero() && !self.streams;
        let Some(x) = R::floats(x).filter(|_| is_plain) else { return false };
        let mut by = [Divisor::new(1.0, 0.0)];
        // SAFETY: a unit has its own rows and scales.
        let row = unsafe {
            self.divisors::<f32, 1>((i, 0), std::iter::once(x), x.len(), &mut by);
            self.row(i)
        };
        if !by[0].is_quick() {
            return false;
        }
        for (x, out) in x.chunks(TILE).zip(row.chunks_mut(TILE)) {
            run_widest_in(x.len(), Bytes { x, by: by[0], out });
            of_next.fetch(x.len());
        }
        true
    }

    /// Divides `x` to numbers that `put` rounds to codes, as which type it says.
    fn divide<R: Real>(&self, x: &[R], inner: usize, by: &[Divisor], out: &mut [R]) -> DType {
        let dtype = self.format.dtype;
        // The range is symmetric: -128 and -8 are not used once there is a scale.
        let limit = if matches!(dtype, DType::I8 | DType::I4) { -numbers::largest(dtype) } else { f64::NEG_INFINITY };
        let zeros = self.format.has_zero();
        match R::floats_with(x, out) {
            Some((x, out)) if dtype == DType::Nf4 && by.iter().all(Divisor::has_quantiles) => {
                run_widest_in(x.len(), Quantiles { x, inner, by, out });
                return DType::U4;
            }
            Some((x, out)) if zeros => {
                run_widest_in(x.len(), Divide::<true> { x, inner, by, limit: limit as f32, out });
            }
            Some((x, out)) if dtype != DType::Nf4 => {
                run_widest_in(x.len(), Divide::<false> { x, inner, by, limit: limit as f32, out });
            }
            _ => {
                for ((x, out), by) in x.chunks(inner).zip(out.chunks_mut(inner)).zip(by) {
                    for (x, out) in x.iter().zip(out) {
                        let quotient = by.quotient(x.to_f64(), zeros);
                        *out = R::from_f64(if quotient < limit { limit } else { quotient });
                    }
                }
            }
        }
        dtype
    }

    /// Writes numbers to element `at` of a row on, as codes of `dtype`.
    fn put<R: Real>(&self, dtype: DType, x: &[R], row: &mut [u8], at: usize) {
        let (x, at) = match at % dtype.per_byte() as usize {
            0 => (x, at),
            _ => {
                let Some((&first, rest)) = x.split_first() else { return };
                let byte = &mut row[at / 2];
                *byte = *byte & 15 | numbers::encode(dtype, first.to_f64(), self.overflow) << 4;
                (rest, at + 1)
            }
        };
        if !self.streams {
            return numbers::write(dtype, x, row, at, self.overflow);
        }
        if let Some(x) = as_bytes(x).filter(|_| dtype == R::DTYPE) {
            let first = at * size_of::<R>();
            return stream(x, &mut row[first..first + x.len()]);
        }
        let mut stage = [0; STAGE];
        let some = (STAGE as u64 * 8 / u64::from(dtype.bits())) as usize;
        for (t, x) in x.chunks(some).enumerate() {
            let (first, bytes) = (dtype.bytes((at + t * some) as u64) as usize, dtype.bytes(x.len() as u64) as usize);
            numbers::write(dtype, x, &mut stage[..bytes], 0, self.overflow);
            stream(&stage[..bytes], &mut row[first..first + bytes]);
        }
    }

    /// The bytes of one row.
    ///
    /// # Safety
    /// No other thread has the same row.
    pub(crate) unsafe fn row(&self, row: u32) -> &'a mut [u8] {
        let bits = u64::from(self.format.dtype.bits());
        let first = (u64::from(row) * u64::from(self.ld) * bits / 8) as usize;
        let bytes = self.format.dtype.bytes(self.shape.1.into()) as usize;
        // SAFETY: rows do not overlap; the rest is the caller's promise.
        unsafe { self.codes.part(first..first + bytes) }
    }

    /// The divisors of at most `N` blocks of `inner` columns from `place` on, in all of `rows`: of scales computed and stored, or
    /// given.
    ///
    /// # Safety
    /// No other thread has the same blocks.
    unsafe fn divisors<'x, R: Real, const N: usize>(
        &self,
        place: (u32, u32),
        rows: impl Iterator<Item = &'x [R]>,
        inner: usize,
        out: &mut [Divisor],
    ) {
        let Some(dtype) = self.format.scale_dtype().filter(|_| self.format.scheme != Scheme::Tensor) else {
            out.fill(Divisor::new(self.global, 0.0));
            return;
        };
        let at = |block: usize| self.format.scale_index((place.0, place.1 + block as u32), self.shape) as usize;
        if !self.given_scales.is_empty() {
            for (block, out) in out.iter_mut().enumerate() {
                let zero = if self.format.has_zero() { self.given_zeros[at(block)].into() } else { 0.0 };
                *out = Divisor::new(numbers::get::<f64>(dtype, self.given_scales, at(block)) * self.global, zero);
            }
            return;
        }
        let (mut lows, mut highs) = ([0.0; N], [0.0; N]);
        let (lows, highs) = (&mut lows[..out.len()], &mut highs[..out.len()]);
        for x in rows {
            if self.format.has_zero() { range(x, inner, lows, highs) } else { largest(x, inner, highs) }
        }
        let (mut scales, mut zeros) = ([0.0; N], [0.0; N]);
        let (scales, zeros) = (&mut scales[..out.len()], &mut zeros[..out.len()]);
        if self.format.has_zero() {
            let range = numbers::largest(self.format.dtype);
            for ((scale, zero), (low, high)) in scales.iter_mut().zip(&mut *zeros).zip(lows.iter().zip(&*highs)) {
                *scale = if low == high { 1.0 } else { rounded(dtype, (high - low) / range) };
                *zero = (-low / *scale).round_ties_even().clamp(0.0, range);
            }
        } else {
            let Self { format, global, rule, .. } = *self;
            let amax = &*highs;
            let scales = Scales { amax, global, codes: format.dtype, scale: dtype, rule, out: &mut *scales };
            run_widest_in(out.len(), scales);
        }
        for (out, (&scale, &zero)) in out.iter_mut().zip(scales.iter().zip(&*zeros)) {
            *out = Divisor::new(scale * self.global, zero);
        }
        let bytes = dtype.bits() as usize / 8;
        // SAFETY: blocks have their own scales and zero points.
        unsafe {
            if self.format.scales == ScaleLayout::Inner {
                let place = self.scales.part(at(0) * bytes..(at(0) + scales.len()) * bytes);
                numbers::write(dtype, scales, place, 0, Overflow::Saturate);
            } else {
                for (block, scale) in scales.iter().enumerate() {
                    let place = self.scales.part(at(block) * bytes..(at(block) + 1) * bytes);
                    numbers::write(dtype, std::slice::from_ref(scale), place, 0, Overflow::Saturate);
                }
            }
            if self.format.has_zero() {
                for (block, &zero) in zeros.iter().enumerate() {
                    self.zeros.part(at(block)..at(block) + 1)[0] = zero as u8;
                }
            }
        }
    }
}

/// What is read after some numbers, brought near in shares as these are stored.
struct Share<'n> {
    next: &'n [u8],
    numbers: usize,
    done: usize,
}

impl Share<'_> {
    /// The share of `numbers` more.
    fn fetch(&mut self, numbers: usize) {
        let at = |numbers: usize| numbers * self.next.len() / self.numbers;
        fetch_ahead(&self.next[at(self.done)..at(self.done + numbers)]);
        self.done += numbers;
    }
}

/// Numbers that are divided at a time: they stay in the first cache until they are rounded.
const TILE: usize = 512;

/// Blocks of a tile, at most: its share of the shortest ones that matter, of 16.
const BLOCKS: usize = 32;

/// Bytes of codes that wait to be streamed.
const STAGE: usize = 2048;

/// Raises `out` to the largest finite magnitudes of the blocks of a row.
pub(crate) fn largest<R: Real>(x: &[R], inner: usize, out: &mut [f64]) {
    match R::floats(x) {
        Some(x) => f32::run_widest(x.len(), Largest { x, inner, out }),
        None => x.chunks(inner).zip(out).for_each(|(x, out)| *out = out.max(amax(x.iter().map(|x| x.to_f64())))),
    }
}

/// Widens `low ..= high` to all finite numbers of the blocks of a row.
fn range<R: Real>(x: &[R], inner: usize, low: &mut [f64], high: &mut [f64]) {
    match R::floats(x) {
        Some(x) => f32::run_widest(x.len(), Range { x, inner, low, high }),
        None => {
            for ((x, low), high) in x.chunks(inner).zip(low).zip(high) {
                for x in x.iter().map(|x| x.to_f64()).filter(|x| x.is_finite()) {
                    (*low, *high) = (low.min(x), high.max(x));
                }
            }
        }
    }
}
