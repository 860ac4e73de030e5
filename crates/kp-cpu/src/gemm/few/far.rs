//! Asking for memory long before it is read.

use crate::{
    caps::{fetches_runs, streams_by_second_cache},
    memory::{LINE, PAGE, ask_again, prefetch},
};

/// Lines that are asked for in the order of memory, long before they are read, so that they are in L2 when lines of the columns
/// at hand ask for them once more, to be in L1. Loops over several columns that ask for L1 alone wait a fifth longer on a core of
/// Zen 5: there what is on its way to L1 is soon too much, and lines of several columns in turn are not the order that memory
/// likes best.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Far {
    at: *const u8,
    /// Lines of this run that are left, and of each run, bytes from one to the next, and from what follows a run to the next one.
    left: usize,
    run: usize,
    step: usize,
    gap: usize,
    /// Whether lines are asked for again by loops that say so.
    again: bool,
}

/// How long before its use a panel is asked for where it streams by the first cache, in bytes.
const AHEAD: usize = 32 << 10;

impl Far {
    /// Nothing.
    pub(crate) const NONE: Self = Self { at: std::ptr::null(), left: 0, run: 0, step: 0, gap: 0, again: false };

    /// Runs of `run` bytes, `ld` bytes apart, from `at` on, wherever that points.
    pub(crate) fn new(at: *const u8, run: usize, ld: usize) -> Self {
        let run = run / LINE;
        let gap = ld.saturating_sub(run * LINE);
        Self { at, left: run, run, step: LINE, gap, again: streams_by_second_cache() }
    }

    /// The `bytes` bytes of a panel that lie [`AHEAD`] behind those from `at` on; a line of each page in turn where the processor then
    /// fetches on in each.
    pub(crate) fn behind(at: *const u8, bytes: usize) -> Self {
        let lines = Self::new(at.wrapping_add(AHEAD), bytes, bytes);
        let pages = bytes / PAGE;
        if pages > 1 && bytes.is_multiple_of(PAGE) && fetches_runs() {
            // Back to the first page's next line.
            let gap = LINE.wrapping_sub(bytes);
            return Self { left: pages, run: pages, step: PAGE, gap, ..lines };
        }
        lines
    }

    /// Asks for turn `turn`'s share of the next `lines` lines, of `turns` that begin with turn 0: a few at a time, between loads
    /// and products. As many as a step has, all at once, keep the loads behind them waiting. `AGAIN`: see [`Self::ask`].
    #[inline(always)]
    pub(super) fn ask_in_turn<const AGAIN: bool>(&mut self, turn: usize, turns: usize, lines: usize) {
        self.ask::<AGAIN>((turn + 1) * lines / turns - turn * lines / turns);
    }

    /// Asks for the next `lines` lines; `AGAIN`, in loops that from cache are much faster than memory: as [`ask_again`] says, where that is
    /// better. Others lose what asking takes: four rows of bf16 a sixth, and eight had no registers for the question.
    #[inline(always)]
    pub(super) fn ask<const AGAIN: bool>(&mut self, lines: usize) {
        if self.run == 0 {
            return;
        }
        for _ in 0..lines {
            if AGAIN && self.again {
                ask_again(self.at);
            } else {
                prefetch::<2>(self.at);
            }
            self.at = self.at.wrapping_add(self.step);
            self.left -= 1;
            if self.left == 0 {
                self.at = self.at.wrapping_add(self.gap);
                self.left = self.run;
            }
        }
    }
}
