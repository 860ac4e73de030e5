//! Memory that is asked for while products are computed.
//!
//! The rows of a head lie far apart where heads of a token lie side by side: the processor does not fetch them ahead by
//! itself, and even from the last cache a block of them took a tenth of the time of the block's products. Asked for all at
//! once they would fill the queue of what is on its way, and everything else would wait; so a few are, for every few
//! hundred multiply-adds.

use super::{chunk::BLOCK, places::Source, sight::Tile};
use crate::memory::{LINE, prefetch};
use std::ops::Range;

/// Rows of K and V that will be read next.
pub(crate) struct Soon {
    /// Where they begin: those of K, then those of V.
    at: [*const u8; 2 * BLOCK],
    /// How many there are of each, and the lines that each takes.
    keys: usize,
    lines: [usize; 2],
    /// How many are asked for at a time, and how many have been.
    each: usize,
    done: usize,
}

impl Soon {
    /// At most a block of a tile's keys, over `times` calls of [`Self::ask`].
    #[inline(always)]
    pub(crate) fn of([k, v]: [&Source<'_>; 2], tile: &Tile<'_>, keys: Range<usize>, times: usize) -> Self {
        let mut at = [std::ptr::null(); 2 * BLOCK];
        let (k_at, v_at) = at.split_at_mut(BLOCK);
        let lines = [k.starts(tile, keys.clone(), k_at), v.starts(tile, keys.clone(), v_at)];
        at.copy_within(BLOCK..BLOCK + keys.len(), keys.len());
        Self { at, keys: keys.len(), lines, each: (2 * keys.len()).div_ceil(times.max(1)), done: 0 }
    }

    /// Asks for the next few rows, if any are left.
    #[inline(always)]
    pub(crate) fn ask(&mut self) {
        let rows = self.done..(self.done + self.each).min(2 * self.keys);
        self.done = rows.end;
        for i in rows {
            for line in 0..self.lines[usize::from(i >= self.keys)] {
                prefetch::<2>(self.at[i].wrapping_add(LINE * line));
            }
        }
    }
}
