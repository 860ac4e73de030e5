//! Which part of a product a thread computes at a time.

use super::{finish::Panels, tile::ROWS};
use std::ops::Range;

/// The rows and columns of the largest chunk: 2 MB of sums, if there are any. Where B is read as it lies, its columns are
/// many, so that rows of A are met seldom; where it is packed, its rows, so that B is packed seldom.
pub(super) const fn largest(b_lies: bool) -> (usize, usize) {
    if b_lies { (512, 1024) } else { (1024, 512) }
}

/// The least rows that are worth a chunk.
const LEAST_ROWS: usize = 8 * ROWS;

/// Operations that are worth handing to a thread, and chunks a thread finds at least, so that all end together.
pub(super) const GRAIN: f64 = 1e6;
const CHUNKS: usize = 8;

/// Multiply-adds of an item from which on threads that are done help others.
pub(super) const LONG: u64 = 1 << 20;

/// How an item is cut into chunks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cuts {
    /// Register tiles of rows, and units of panels.
    rows: usize,
    units: usize,
    /// Chunks.
    down: usize,
    across: usize,
}

impl Cuts {
    /// Cuts an item of `rows` rows and `k` numbers a sum for `threads` threads; whether A and B are read as they lie.
    pub(super) fn of(panels: &Panels, rows: usize, k: usize, threads: usize, [a_lies, b_lies]: [bool; 2]) -> Self {
        let (units, per_unit) = (panels.count() / panels.unit(), panels.unit() * panels.width);
        let (most_rows, most_columns) = largest(b_lies);
        let most_units = (most_columns / per_unit).max(1);
        let tiles = rows.div_ceil(ROWS);
        let (mut down, mut across) = (rows.div_ceil(most_rows), units.div_ceil(most_units));
        // Elements that are packed once more for another chunk.
        let more_b = if b_lies { 0 } else { units * per_unit };
        let more_a = if a_lies { 0 } else { rows };
        let operations = 2.0 * (rows * k) as f64 * (units * per_unit) as f64;
        let wanted = ((operations / GRAIN) as usize).clamp(1, threads * CHUNKS);
        while threads > 1 && down * across < wanted {
            let (high, wide) = (rows / down, units / across * per_unit);
            let is_cheaper = more_b < more_a || more_b == more_a && high > wide;
            // Fewer rows are worth a thread that would find nothing to do.
            let least = if down * across < threads { LEAST_ROWS } else { 2 * LEAST_ROWS };
            match (high >= least, across < units) {
                (false, false) => break,
                (true, false) => down += 1,
                (true, true) if is_cheaper => down += 1,
                _ => across += 1,
            }
        }
        // As much for one thread as for another.
        if down % threads != 0 && across > threads {
            across = across.next_multiple_of(threads).min(units);
        }
        Self { rows: tiles, units, down, across }
    }

    /// Chunks there are.
    pub(super) fn chunks(&self) -> usize {
        self.down * self.across
    }

    /// The rows and panels of chunk `i`; `rows` and `unit` as they were cut.
    pub(super) fn chunk(&self, i: usize, rows: usize, unit: usize) -> (Range<usize>, Range<usize>) {
        let at = |i: usize, of: usize, total: usize| i * total / of;
        let (i, j) = (i % self.down, i / self.down);
        let row = |i: usize| (at(i, self.down, self.rows) * ROWS).min(rows);
        let panel = |j: usize| at(j, self.across, self.units) * unit;
        (row(i)..row(i + 1), panel(j)..panel(j + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_the_item_and_none_is_too_large() {
        for (m, n, k, options) in [
            (1, 1, 1, ""),
            (7, 65, 0, ""),
            (256, 256, 256, ""),
            (1025, 4097, 300, ""),
            (2048, 11008, 4096, ""),
            (513, 1282, 77, " act=silu gate=halves"),
        ] {
            let text = format!("gemm 1x{m}x{n}x{k} f32:f32:f32{options}");
            let problem: kp_hal::op::GemmProblem = text.parse().expect("a problem");
            for (width, threads, lies) in
                [(4, 1, [true; 2]), (16, 2, [false; 2]), (64, 2, [true, false]), (64, 7, [true; 2])]
            {
                let panels = Panels::of(problem.spec(), width);
                let cuts = Cuts::of(&panels, m, k, threads, lies);
                let (most_rows, most_columns) = largest(lies[1]);
                let mut seen = vec![0; m * panels.count()];
                for i in 0..cuts.chunks() {
                    let (rows, run) = cuts.chunk(i, m, panels.unit());
                    assert!(
                        rows.len() <= most_rows + ROWS && run.len() * width <= most_columns,
                        "{text} {rows:?} {run:?}"
                    );
                    for row in rows {
                        run.clone().for_each(|p| seen[row * panels.count() + p] += 1);
                    }
                }
                assert!(seen.iter().all(|&times| times == 1), "{text} in panels of {width} for {threads}");
            }
        }
    }
}
