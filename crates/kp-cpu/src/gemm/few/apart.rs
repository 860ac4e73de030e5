//! Which columns of B are read at once: neighbours, or some that are as far from each other as can be.
//!
//! ```text
//!   neighbours                         apart
//!   column  0 1 2 3 │ 4 5 6 7 │ …      0   q   2q   3q    each goes on in the column beside it,
//!                                      1  q+1 2q+1 3q+1   so memory is read in four long runs
//! ```

use super::columns::Reading;
use crate::caps::fetches_runs;
use kp_hal::op::GemmSpec;
use std::ops::Range;

/// Most bytes of short columns.
const SHORT: u64 = 8 << 10;

/// Whether columns of B that are read at once are best far from each other: short ones, whose end the processor fetches past, into the next one. On
/// Emerald Rapids one row took 0.80 to 0.97 of the time so, by columns of 22 KB 1.05; one that computes meanwhile waits unless lines are
/// asked for, too ([`super::columns::AHEAD`]).
pub(crate) fn are_apart(spec: &GemmSpec, reading: Reading) -> bool {
    let bytes = spec.b.dtype().bytes(spec.k.into());
    reading == Reading::Beside && fetches_runs() && bytes <= SHORT && spec.b.ld == spec.k
}

/// Columns in sets of `breadth`.
pub(crate) struct AtOnce {
    columns: Range<usize>,
    breadth: usize,
    apart: usize,
}

impl AtOnce {
    pub(crate) fn new(columns: Range<usize>, breadth: usize, is_apart: bool) -> Self {
        let apart = if is_apart { columns.len().div_ceil(breadth).max(1) } else { 1 };
        Self { columns, breadth, apart }
    }

    /// The first column of each.
    pub(crate) fn firsts(&self) -> impl Iterator<Item = usize> + use<> {
        match self.apart {
            1 => self.columns.clone().step_by(self.breadth),
            apart => (self.columns.start..self.columns.start + apart).step_by(1),
        }
    }

    /// Column `c` of the set whose first one is `first`; past the last column, that one again.
    pub(crate) fn column(&self, first: usize, c: usize) -> usize {
        (first + c * self.apart).min(self.columns.end - 1)
    }

    /// Which of all columns those are that are there.
    pub(crate) fn places(&self, first: usize) -> impl Iterator<Item = usize> + use<> {
        let (start, len) = (first - self.columns.start, self.columns.len());
        (start..len).step_by(self.apart).take(self.breadth)
    }
}

#[cfg(test)]
mod tests {
    use super::AtOnce;

    /// Each column once, whichever way they are put together.
    #[test]
    fn every_column_has_a_place() {
        for (columns, breadth) in [(3..3, 4), (3..4, 4), (0..10, 4), (16..272, 8), (5..12, 8), (2..9, 1)] {
            for is_apart in [false, true] {
                let sets = AtOnce::new(columns.clone(), breadth, is_apart);
                let mut met = vec![0; columns.len()];
                for first in sets.firsts() {
                    for (c, place) in sets.places(first).enumerate() {
                        assert_eq!(sets.column(first, c), columns.start + place, "{columns:?} by {breadth}");
                        met[place] += 1;
                    }
                    assert!((0..breadth).all(|c| columns.contains(&sets.column(first, c))), "{columns:?} by {breadth}");
                }
                assert!(met.iter().all(|&times| times == 1), "{columns:?} by {breadth}: {met:?}");
            }
        }
    }
}
