//! The order in which rows of K and V are read: in turn, or from sixteen pages at a time.

use super::product::LANES;
use std::ops::Range;

/// Bytes of a page, within which a processor fetches ahead.
const PAGE: usize = 4096;

/// In which order the rows of a chunk are read.
#[derive(Clone, Copy)]
pub(super) struct Order {
    keys: usize,
    /// Keys of a step: some in turn; or sixteen, as far apart as they can be.
    pub(super) wide: usize,
    apart: usize,
    /// Whether memory is asked for ahead.
    pub(super) asks: bool,
}

impl Order {
    pub(super) fn in_turn(keys: usize, wide: usize) -> Self {
        Self { keys, wide, apart: 1, asks: true }
    }

    /// Rows of a page or more are of sixteen pages as they come.
    pub(super) fn of_pages(keys: usize, row_bytes: usize) -> Self {
        let apart = if row_bytes < PAGE { keys.div_ceil(LANES) } else { 1 };
        Self { keys, wide: LANES, apart, asks: false }
    }

    pub(super) fn steps(&self) -> usize {
        if self.apart == 1 { self.keys.div_ceil(self.wide) } else { self.apart }
    }

    /// The places of a step's keys.
    pub(super) fn places(&self, step: usize) -> Range<usize> {
        step * self.wide..(step + 1) * self.wide
    }

    /// The places of all steps, and with those up to whole vectors.
    pub(super) fn end(&self) -> usize {
        self.steps() * self.wide
    }

    pub(super) fn all(&self) -> usize {
        self.end().next_multiple_of(LANES)
    }

    /// Which of the chunk's keys has a place, unless it is past the last one.
    #[inline(always)]
    pub(super) fn key(&self, place: usize) -> usize {
        if self.apart == 1 { place } else { place % self.wide * self.apart + place / self.wide }
    }

    /// The place of a key.
    #[inline(always)]
    pub(super) fn place(&self, key: usize) -> usize {
        if self.apart == 1 { key } else { key % self.apart * self.wide + key / self.apart }
    }

    /// How many of the places from `place` to the end of its step have keys: the first ones.
    #[inline(always)]
    pub(super) fn count(&self, place: usize) -> usize {
        if self.apart == 1 {
            self.keys.saturating_sub(place)
        } else {
            let (step, lane) = (place / self.wide, place % self.wide);
            self.keys.saturating_sub(step).div_ceil(self.apart).saturating_sub(lane)
        }
    }
}
