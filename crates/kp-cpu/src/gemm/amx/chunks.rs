//! How products of [numbers of f32 by tiles](super::floats) are cut for threads.

use super::{floats::PANEL, woven};
use crate::{amx::ROWS, gemm::finish::Panels};
use kp_hal::op::GemmSpec;

/// Most rows and columns of a chunk: 1 MB of sums and 400 KB of A are in the second cache together.
const MOST_ROWS: usize = 512;
const MOST_COLUMNS: usize = 512;

/// The least rows that are worth a chunk, operations that are worth handing to a thread, and chunks that a thread finds.
const LEAST_ROWS: usize = 4 * ROWS;
const GRAIN: f64 = 8e6;
const CHUNKS: usize = 2;

/// Chunks along m and n for so many threads: each splits its rows of A and its columns of B.
pub(crate) fn grid(spec: &GemmSpec, threads: usize) -> [usize; 2] {
    let panels = Panels::of(spec, PANEL);
    let (rows, unit) = (spec.m as usize, panels.unit());
    let (units, wide) = (panels.count() / unit, unit * PANEL);
    if rows == 0 || units == 0 {
        return [0, 0];
    }
    let (most_rows, most_columns) = match woven::suits(spec) {
        true => (woven::MOST_ROWS, woven::MOST_SUMS / rows.clamp(ROWS, woven::MOST_ROWS)),
        false => (MOST_ROWS, MOST_COLUMNS),
    };
    let (mut down, mut across) = (rows.div_ceil(most_rows), units.div_ceil(most_columns / wide));
    let operations = 2.0 * f64::from(spec.m) * f64::from(spec.n) * f64::from(spec.k);
    // Where there is little, one for each thread, so that A is not split more often: 256³ on two took 0.85 of the time so.
    let wanted = match (operations / GRAIN) as usize {
        _ if threads == 1 => 1,
        many if many > threads * CHUNKS => threads * CHUNKS,
        few => few.min(threads),
    };
    while down * across < wanted {
        let (high, wide) = (rows / down, units * wide / across);
        match (high >= 2 * LEAST_ROWS && high > 2 * wide, across < units) {
            (false, true) => across += 1,
            (true, _) => down += 1,
            (false, false) if high >= 2 * LEAST_ROWS => down += 1,
            (false, false) => break,
        }
    }
    // As much for one thread as for another.
    if threads > 1 && down % threads != 0 && across > threads {
        across = across.next_multiple_of(threads).min(units);
    }
    [down, across]
}
