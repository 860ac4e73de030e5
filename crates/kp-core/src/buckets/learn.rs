//! Buckets that follow the sizes a program really has.

use super::{Observed, solve};
use std::{
    fmt,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

/// At most k buckets, chosen anew each time the number of observed sizes has doubled.
///
/// Shared by threads. Memory is fixed, about 40 KB: sizes below 256 are counted one by one, larger ones in cells
/// less than 1/128 of the size wide, each of which stands for the largest size it saw. So a size that comes again
/// and again is a bucket exactly, and what the sketch adds to the best cost is less than 1/128. The counts do not
/// depend on the order of sizes, and the same sequence always gives the same buckets.
pub struct Buckets {
    cost: Box<dyn Fn(u32) -> u64 + Send + Sync>,
    cells: Box<[Cell]>,
    seen: AtomicU64,
    /// The current set; unused places hold 0. See `round_up` for why this needs no lock.
    current: Box<[AtomicU32]>,
    solving: Mutex<()>,
    used: AtomicU64,
    padded: AtomicU64,
}

#[derive(Default)]
struct Cell {
    count: AtomicU64,
    largest: AtomicU32,
}

/// What padding has cost so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Waste {
    /// The sum of all sizes that were padded.
    pub used: u64,
    /// The sum of the buckets they were padded to.
    pub padded: u64,
}

impl Waste {
    /// The share of the padded work that was padding, from 0 up to 1.
    pub fn fraction(self) -> f64 {
        if self.padded == 0 { 0.0 } else { (self.padded - self.used) as f64 / self.padded as f64 }
    }
}

impl fmt::Display for Waste {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} padded to {} ({:.1} % waste)", self.used, self.padded, 100.0 * self.fraction())
    }
}

impl Buckets {
    /// Learns at most `k` buckets (at least 1, at most 256) for work that grows linearly with the size.
    pub fn learn(k: usize) -> Self {
        Self::learn_cost(k, u64::from)
    }

    /// The same for work that grows as `cost`, which must not fall: where it does, the largest cost of a smaller
    /// size counts. It may be called from any thread that observes; if it panics, so does that call, and the buckets
    /// stay as they were.
    pub fn learn_cost(k: usize, cost: impl Fn(u32) -> u64 + Send + Sync + 'static) -> Self {
        Self {
            cost: Box::new(cost),
            cells: (0..CELLS).map(|_| Cell::default()).collect(),
            seen: AtomicU64::new(0),
            current: (0..k.clamp(1, 256)).map(|_| AtomicU32::new(0)).collect(),
            solving: Mutex::new(()),
            used: AtomicU64::new(0),
            padded: AtomicU64::new(0),
        }
    }

    /// Counts a size. Three atomic additions; each time the count reaches a power of two, also a search for the
    /// best set, which takes microseconds for a few distinct sizes and tens of milliseconds for thousands.
    pub fn observe(&self, size: u32) {
        let cell = &self.cells[cell_of(size)];
        cell.largest.fetch_max(size, Ordering::Relaxed);
        cell.count.fetch_add(1, Ordering::Relaxed);
        let seen = self.seen.fetch_add(1, Ordering::Relaxed) + 1;
        if seen.is_power_of_two() {
            self.solve_again();
        }
    }

    /// The size to pad `size` to: the smallest bucket that holds it, or, past the largest, the next power of two
    /// (2³¹ and more stay as they are), so that sizes never seen make few shapes too. 0 stays 0. Wait-free.
    pub fn round_up(&self, size: u32) -> u32 {
        if size == 0 {
            return 0;
        }
        // While another thread stores a new set, this may see part of the old one. Every number there is or was a
        // bucket, and the least that is large enough is an answer that one of the two sets allows.
        let fits = self.current.iter().map(|bucket| bucket.load(Ordering::Relaxed)).filter(|&bucket| bucket >= size);
        fits.min().unwrap_or_else(|| size.checked_next_power_of_two().unwrap_or(size))
    }

    /// Counts `size`, rounds it up and counts the waste.
    pub fn pad(&self, size: u32) -> u32 {
        self.observe(size);
        let bucket = self.round_up(size);
        // In this order, and read in the other one, so that never more is used than padded.
        self.padded.fetch_add(bucket.into(), Ordering::Relaxed);
        self.used.fetch_add(size.into(), Ordering::Release);
        bucket
    }

    /// The current buckets, ascending.
    pub fn sizes(&self) -> Vec<u32> {
        let mut sizes: Vec<u32> = self.current.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        sizes.sort_unstable();
        sizes.retain(|&size| size > 0);
        sizes
    }

    /// How many sizes were observed.
    pub fn observed(&self) -> u64 {
        self.seen.load(Ordering::Relaxed)
    }

    /// What [`Buckets::pad`] has added so far.
    pub fn waste(&self) -> Waste {
        let used = self.used.load(Ordering::Acquire);
        Waste { used, padded: self.padded.load(Ordering::Relaxed) }
    }

    /// The sizes observed so far as the sketch knows them, ascending.
    pub fn sketch(&self) -> Vec<Observed> {
        self.cells
            .iter()
            .map(|cell| Observed {
                size: cell.largest.load(Ordering::Relaxed),
                count: cell.count.load(Ordering::Relaxed),
            })
            .filter(|seen| seen.size > 0 && seen.count > 0)
            .collect()
    }

    #[cold]
    fn solve_again(&self) {
        // Nothing is guarded but the order of solving, so a panic of the cost leaves nothing half done.
        let _one = self.solving.lock().unwrap_or_else(PoisonError::into_inner);
        let sketch = self.sketch();
        let mut most = 0;
        let costs: Vec<u64> = sketch
            .iter()
            .map(|seen| {
                most = (self.cost)(seen.size).max(most);
                most
            })
            .collect();
        let cost_of = |size| costs[sketch.partition_point(|seen| seen.size < size)];
        let set = solve(&sketch, self.current.len(), cost_of).expect("a running maximum does not fall");
        let sizes = set.sizes().iter().copied().chain(std::iter::repeat(0));
        for (bucket, size) in self.current.iter().zip(sizes) {
            bucket.store(size, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Buckets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buckets").field("sizes", &self.sizes()).field("observed", &self.observed()).finish()
    }
}

/// Cells per doubling of the size.
const PER_OCTAVE: u32 = 128;
/// Below twice this, every size has its own cell.
const CELLS: usize = cell_of(u32::MAX) + 1;

/// The cell of a size: the size itself below 256, then by its eight leading bits.
const fn cell_of(size: u32) -> usize {
    if size < 2 * PER_OCTAVE {
        return size as usize;
    }
    let shift = size.ilog2() - PER_OCTAVE.ilog2();
    (shift * PER_OCTAVE + (size >> shift)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_cover_all_sizes_in_order_and_are_narrow() {
        assert_eq!(CELLS, 3328);
        let mut sizes: Vec<u32> =
            (0..32).flat_map(|bit| (0..3).map(move |d| (1_u32 << bit) - 1 + d)).chain([u32::MAX]).collect();
        sizes.sort_unstable();
        let mut last = 0;
        for size in sizes {
            let cell = cell_of(size);
            assert!(cell >= last && cell < CELLS, "{size}");
            assert!(cell_of(size.saturating_sub(1)) + 1 >= cell, "no cell is skipped at {size}");
            last = cell;
            let narrowest = size - size / PER_OCTAVE;
            assert!(cell_of(narrowest.saturating_sub(1)) != cell || size == 0, "cell of {size} is too wide");
        }
    }
}
