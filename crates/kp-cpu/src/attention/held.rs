//! Keys and values that lie ready in a thread's room, as products want them: the next tile of their head needs them again.
//!
//! ```text
//!   keys of a head   │ run 0 │ run 1 │  …  │ run 7 │ run 8 │ …      a run: 512 keys, eight blocks
//!   places           │   0   │   1   │  …  │          7            as many as there are runs, eight at most
//! ```
//! Runs that find no place of their own take turns in the last one.

use super::{chunk::BLOCK, plan::PANELS, sight::Tile};
use std::ops::Range;

/// Keys of a run.
pub(super) const RUN: usize = BLOCKS * BLOCK;

const BLOCKS: usize = 8;

/// Most places that there may be.
const MOST: usize = 8;

/// Places for runs of so many keys, of which at most so many stay.
pub(super) fn places(keys: usize, most: usize) -> usize {
    keys.div_ceil(RUN).clamp(1, most.min(MOST))
}

/// What lies in which place.
#[derive(Default)]
pub(crate) struct Held {
    runs: [Run; MOST],
    /// Of each panel of a tile, whether what is ready of Q holds all its numbers.
    pub(super) queries: [bool; PANELS],
}

/// What lies in a place.
#[derive(Clone, Copy, Default)]
pub(super) struct Run {
    /// Sequence, key head, and which run of theirs.
    of: [usize; 3],
    pub(super) blocks: [Block; BLOCKS],
}

/// What is ready of a block.
#[derive(Clone, Copy, Default)]
pub(super) struct Block {
    /// How many of its keys.
    pub(super) keys: usize,
    /// Whether what is ready holds all their numbers, and all values.
    pub(super) holds_keys: bool,
    pub(super) holds_values: bool,
}

impl Held {
    /// The place, one of `places`, of the run that key `key` of a tile belongs to, and what is ready of it.
    pub(super) fn run(&mut self, tile: &Tile<'_>, key: usize, places: usize) -> (usize, &mut Run) {
        let (place, of) = place(tile, key, places);
        let run = &mut self.runs[place];
        if run.of != of {
            *run = Run { of, ..Run::default() };
        }
        (place, run)
    }

    /// Whether some keys of one run are ready.
    pub(super) fn has(&self, tile: &Tile<'_>, keys: Range<usize>, places: usize) -> bool {
        let (place, of) = place(tile, keys.start, places);
        let run = &self.runs[place];
        let block = |start: usize| run.blocks[start % RUN / BLOCK].keys >= keys.end.min(start + BLOCK) - start;
        run.of == of && (keys.start / BLOCK * BLOCK..keys.end).step_by(BLOCK).all(block)
    }
}

fn place(tile: &Tile<'_>, key: usize, places: usize) -> (usize, [usize; 3]) {
    let run = key / RUN;
    (run.min(places - 1), [tile.sequence.b, tile.kv_head, run])
}
