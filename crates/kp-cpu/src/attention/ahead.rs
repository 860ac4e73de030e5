//! What is read next while products are computed: asked for a line at a time, in the order of memory or of some pages in turn.

use crate::memory::{LINE, PAGE, ask_again, prefetch};

/// Whom memory is asked of.
#[derive(Clone, Copy)]
pub(super) enum Asks {
    First,
    Second,
    /// The second cache, which may drop what it is asked for.
    SecondAgain,
}

/// What is read later: all heads of a token as they lie, then those of the next one. Asked for in the order in which it is
/// used, four tokens of a head at a time, it took a third longer on Zen 5.
pub(super) struct Ahead<'r> {
    rows: &'r [*const u8],
    /// The next byte, and how many are left of its row and of those that follow it without a gap.
    at: *const u8,
    left: usize,
    /// Bytes of pages that are asked for side by side, which end at `at`, of which nobody has asked yet.
    paged: usize,
    /// Bytes of each of the first rows, and after so many of those of the others.
    of_row: [usize; 2],
    until: usize,
    row: usize,
    asks: Asks,
}

impl<'r> Ahead<'r> {
    /// Of rows of so many bytes, and of those from row `until` on.
    #[inline(always)]
    pub(super) fn of(rows: &'r [*const u8], until: usize, of_row: [usize; 2], asks: Asks) -> Self {
        Self { rows, at: std::ptr::null(), left: 0, paged: 0, of_row, until, row: 0, asks }
    }

    /// The next bytes, to be asked for while as many others are read, which begin at `read`.
    #[inline(always)]
    pub(super) fn next(&mut self, bytes: usize, read: *const u8) -> Lines {
        if self.paged == 0 && self.left < bytes {
            self.find();
        }
        if matches!(self.asks, Asks::Second) && PAGED.is_multiple_of(bytes) && bytes.is_multiple_of(PAGES * LINE) {
            if self.paged == 0 && self.left >= PAGED {
                (self.at, self.left, self.paged) = (self.at.wrapping_add(PAGED), self.left - PAGED, PAGED);
            }
            if self.paged > 0 {
                let first = self.at.wrapping_sub(PAGED).wrapping_add((PAGED - self.paged) / PAGES);
                self.paged -= bytes;
                return Lines { at: first, step: PAGE, back: PAGED - LINE, asked: 0, asks: self.asks };
            }
        }
        if self.left < bytes {
            self.ask(bytes);
            return Lines::none(read);
        }
        let at = self.at;
        (self.at, self.left) = (at.wrapping_add(bytes), self.left - bytes);
        Lines { at, step: LINE, back: 0, asked: 0, asks: self.asks }
    }

    /// Takes in the rows that lie side by side.
    #[cold]
    #[inline(never)]
    fn find(&mut self) {
        while let Some(&row) = self.rows.get(self.row)
            && (self.left == 0 || row == self.at.wrapping_add(self.left))
        {
            self.take(row);
        }
    }

    /// Asks for the next bytes, wherever they lie, at once.
    #[cold]
    #[inline(never)]
    pub(super) fn ask(&mut self, bytes: usize) {
        for _ in 0..bytes.div_ceil(LINE) {
            if self.left == 0 {
                let Some(&row) = self.rows.get(self.row) else { return };
                self.take(row);
            }
            ask(self.at, self.asks);
            let line = self.left.min(LINE);
            (self.at, self.left) = (self.at.wrapping_add(line), self.left - line);
        }
    }

    fn take(&mut self, row: *const u8) {
        if self.left == 0 {
            self.at = row;
        }
        self.left += self.of_row[usize::from(self.row >= self.until)];
        self.row += 1;
    }
}

/// Pages that are asked for side by side, a line of each in turn, so that the processor fetches what follows in all of them: it goes on by
/// itself within a page, but has to find each page anew.
const PAGES: usize = 8;
const PAGED: usize = PAGES * PAGE;

/// Lines side by side, or one of each page in turn.
#[derive(Clone, Copy)]
pub(super) struct Lines {
    at: *const u8,
    step: usize,
    /// How far back it goes after a line of each page.
    back: usize,
    asked: usize,
    asks: Asks,
}

impl Lines {
    /// No more than the one at `read`, which is read anyway.
    #[inline(always)]
    pub(super) fn none(read: *const u8) -> Self {
        Self { at: read, step: 0, back: 0, asked: 0, asks: Asks::First }
    }

    /// Asks for the next ones.
    #[inline(always)]
    pub(super) fn ask(&mut self, lines: usize) {
        self.ask_of(lines, self.asks);
    }

    /// The same of the second cache, whatever else is said.
    #[inline(always)]
    pub(super) fn ask_second(&mut self, lines: usize) {
        self.ask_of(lines, Asks::Second);
    }

    #[inline(always)]
    fn ask_of(&mut self, lines: usize, asks: Asks) {
        for _ in 0..lines {
            ask(self.next(), asks);
        }
    }

    /// The next one.
    #[inline(always)]
    fn next(&mut self) -> *const u8 {
        let at = self.at;
        self.at = at.wrapping_add(self.step);
        self.asked += 1;
        if self.asked.is_multiple_of(PAGES) {
            self.at = self.at.wrapping_sub(self.back);
        }
        at
    }
}

#[inline(always)]
fn ask(at: *const u8, asks: Asks) {
    match asks {
        Asks::First => prefetch::<1>(at),
        Asks::Second => prefetch::<2>(at),
        Asks::SecondAgain => ask_again(at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows that lie side by side are asked for line by line, each once, whether pages take turns or a piece is no part of these.
    #[test]
    fn every_line_is_asked_for_once() {
        for (row, piece) in [(1024, 8192), (2048, 4096), (512, 1536), (1024, 512), (4096, 16384)] {
            let (count, memory) = (96, vec![0_u8; 96 * row]);
            let rows: Vec<*const u8> = memory.chunks_exact(row).map(<[u8]>::as_ptr).collect();
            for asks in [Asks::First, Asks::Second] {
                let mut ahead = Ahead::of(&rows, count, [row; 2], asks);
                let mut times = vec![0; memory.len() / LINE];
                for _ in 0..memory.len() / piece {
                    let mut lines = ahead.next(piece, memory.as_ptr());
                    for _ in 0..piece / LINE {
                        times[(lines.next() as usize - memory.as_ptr() as usize) / LINE] += 1;
                    }
                }
                let whole = memory.len() / piece * piece / LINE;
                assert!(times[..whole].iter().all(|&times| times == 1), "rows of {row}, {piece} at a time: {times:?}");
            }
        }
    }
}
