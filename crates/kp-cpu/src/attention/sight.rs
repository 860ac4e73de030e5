//! Which keys the rows of a tile see. Most masks give each query one interval of keys; blocks and expressions
//! take single keys out of it.

use super::{chunk::BLOCK, places::Sequence};
use crate::{numbers::Real, simd::arith::Arith};
use kp_hal::op::{AttentionSpec, Expr, Mask, Vars};
use std::ops::Range;

/// One row of a tile: a query in one head.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    /// Which query of the sequence, and which query head.
    pub(crate) query: usize,
    pub(crate) head: usize,
    /// Where the query stands among the keys.
    position: i64,
    /// The keys outside which it sees nothing.
    first: usize,
    end: usize,
}

/// The operands and options that say what is seen, and how scores depend on distance.
#[derive(Clone, Copy)]
pub(crate) struct Sight<'a> {
    pub(crate) mask: Mask,
    pub(crate) blocks: &'a [u8],
    /// Blocks of a row of `blocks`.
    pub(crate) columns: usize,
    pub(crate) slopes: &'a [u8],
    /// Query heads per key head.
    pub(crate) group: usize,
}

impl<'a> Sight<'a> {
    pub(crate) fn new(spec: &AttentionSpec, blocks: &'a [u8], slopes: &'a [u8]) -> Self {
        let columns = if let Mask::Blocks { k, .. } = spec.mask { spec.kv_len.div_ceil(k) as usize } else { 0 };
        let group = (spec.q_heads / spec.kv_heads) as usize;
        Self { mask: spec.mask, blocks, columns, slopes, group }
    }

    /// Row `row` of the queries of a sequence that share a key head: query by query, each in every head of the group.
    fn row(&self, sequence: &Sequence<'_>, kv_head: usize, row: usize) -> Row {
        let (query, head) = (row / self.group, kv_head * self.group + row % self.group);
        let position = sequence.position(query);
        let keys = sequence.kv_len as i64;
        let (first, end) = match self.mask {
            Mask::Full | Mask::Blocks { .. } | Mask::Expr(_) => (0, keys),
            Mask::Causal => (0, position + 1),
            Mask::Window { left, right } => (position - i64::from(left), position + 1 + i64::from(right)),
            Mask::Prefix { len } => (0, (position + 1).max(len.into())),
        };
        let [first, end] = [first, end].map(|key| key.clamp(0, keys) as usize);
        Row { query, head, position, first, end }
    }

    /// What a head's scores lose per key of distance; 0 without ALiBi.
    pub(super) fn slope(&self, head: usize) -> f32 {
        if self.slopes.is_empty() { 0.0 } else { crate::numbers::get(kp_hal::DType::F32, self.slopes, head) }
    }

    /// Whether a mask takes single keys out of the rows' intervals.
    pub(crate) fn picks(&self) -> bool {
        matches!(self.mask, Mask::Blocks { .. } | Mask::Expr(_))
    }
}

/// The rows a tile computes together; they share a key head, so each key is loaded once for all.
pub(crate) struct Tile<'a> {
    sight: &'a Sight<'a>,
    pub(crate) sequence: Sequence<'a>,
    pub(crate) kv_head: usize,
    pub(crate) rows: usize,
    /// Its first row among those of the sequence and key head.
    from: usize,
    /// The keys outside which no row sees anything.
    pub(crate) first: usize,
    pub(crate) end: usize,
}

impl<'a> Tile<'a> {
    /// Rows `from ..` of the sequence, at most `most`.
    pub(crate) fn new(sight: &'a Sight<'a>, sequence: Sequence<'a>, kv_head: usize, from: usize, most: usize) -> Self {
        let rows = (sequence.q_len * sight.group).saturating_sub(from).min(most);
        let mut tile = Self { sight, sequence, kv_head, rows, from, first: 0, end: 0 };
        if rows > 0 {
            let Range { start, end } = tile.seen_by_some(0..rows);
            (tile.first, tile.end) = (start.min(end), end);
        }
        tile
    }

    /// Row `i`.
    pub(crate) fn row(&self, i: usize) -> Row {
        self.sight.row(&self.sequence, self.kv_head, self.from + i)
    }

    /// The rows that are there.
    pub(crate) fn rows(&self) -> impl Iterator<Item = Row> {
        (0..self.rows).map(|i| self.row(i))
    }

    /// Keys outside which none of `rows` sees any: a later query's interval neither begins nor ends earlier.
    fn seen_by_some(&self, rows: Range<usize>) -> Range<usize> {
        self.row(rows.start).first..self.row(rows.end - 1).end
    }

    /// Keys that each of `rows` sees, as far as intervals tell.
    fn seen_by_all(&self, rows: Range<usize>) -> Range<usize> {
        self.row(rows.end - 1).first..self.row(rows.start).end
    }

    /// How rows `rows`, at most a panel of them, see keys `start .. end`, at most a block; `None` if they do not.
    pub(crate) fn panel(&self, rows: Range<usize>, (start, end): (usize, usize)) -> Option<Panel<'_>> {
        let some = self.seen_by_some(rows.clone());
        // What no row sees past the last key seen need not be computed at all.
        let end = end.min(some.end);
        if some.start.max(start) >= end {
            return None;
        }
        let all = self.seen_by_all(rows.clone());
        Some(Panel { tile: self, rows, start, keys: end - start, all: all.start <= start && end <= all.end })
    }
}

/// Which index of a block of scores, which is rows of `W` or [`BLOCK`] numbers, is the lane.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lanes {
    /// `[key][row]`.
    Rows,
    /// `[row][key]`.
    Keys,
}

/// How neighbouring rows, `W` at most, see a block of keys.
pub(crate) struct Panel<'t> {
    tile: &'t Tile<'t>,
    pub(crate) rows: Range<usize>,
    start: usize,
    /// Keys of the block, up to the last one seen.
    pub(crate) keys: usize,
    /// Whether all rows see all keys, as far as intervals tell.
    pub(crate) all: bool,
}

impl Panel<'_> {
    /// Adds what distance costs to scores, in units of which there are `unit` in 1.
    #[inline(always)]
    pub(crate) fn bias<R: Arith, const W: usize>(&self, lanes: Lanes, unit: R, s: &mut [R]) {
        if self.tile.sight.slopes.is_empty() {
            return;
        }
        let (mut slope, mut distance) = ([R::ZERO; W], [R::ZERO; W]);
        for (i, row) in self.rows.clone().map(|row| self.tile.row(row)).enumerate() {
            slope[i] = R::from_f32(self.tile.sight.slope(row.head)) * unit;
            distance[i] = R::from_f64((self.start as i64 - row.position) as f64);
        }
        self.each::<R, W>(lanes, s, |row, key, s| *s += slope[row] * (distance[row] + R::from_f32(key as f32)));
    }

    /// Writes −∞ where a row does not see a key, as far as intervals tell.
    #[inline(always)]
    pub(crate) fn cut<R: Arith, const W: usize>(&self, lanes: Lanes, s: &mut [R]) {
        if self.all && (lanes == Lanes::Rows || self.keys == BLOCK) {
            return;
        }
        // Rows that are not there may see whatever they like.
        let (mut first, mut end) = ([0_i32; W], [0_i32; W]);
        for (i, row) in self.rows.clone().map(|row| self.tile.row(row)).enumerate() {
            first[i] = row.first.saturating_sub(self.start).min(BLOCK) as i32;
            end[i] = row.end.saturating_sub(self.start).min(BLOCK) as i32;
        }
        self.each::<R, W>(lanes, s, |row, key, s| {
            let key = key as i32;
            *s = if first[row] <= key && key < end[row] { *s } else { -R::INFINITY };
        });
    }

    /// Calls `f` with row, key and score of each, lanes innermost.
    #[inline(always)]
    fn each<R: Real, const W: usize>(&self, lanes: Lanes, s: &mut [R], f: impl Fn(usize, usize, &mut R)) {
        if lanes == Lanes::Rows {
            for (key, s) in s.as_chunks_mut::<W>().0[..self.keys].iter_mut().enumerate() {
                s.iter_mut().enumerate().for_each(|(row, s)| f(row, key, s));
            }
        } else {
            for (row, s) in s.as_chunks_mut::<BLOCK>().0[..self.rows.len()].iter_mut().enumerate() {
                s.iter_mut().enumerate().for_each(|(key, s)| f(row, key, s));
            }
        }
    }

    /// Writes −∞ where blocks or an expression hide the key; answers whether any score is left.
    pub(crate) fn pick<R: Real, const W: usize>(&self, lanes: Lanes, s: &mut [R]) -> bool {
        let at = |row: usize, key: usize| if lanes == Lanes::Rows { key * W + row } else { row * BLOCK + key };
        let rows = || self.rows.clone().map(|row| self.tile.row(row)).enumerate();
        let mut any = false;
        match self.tile.sight.mask {
            Mask::Blocks { q, k } => {
                let Sight { blocks, columns, .. } = *self.tile.sight;
                for (i, row) in rows() {
                    let blocks = &blocks[row.query / q as usize * columns..][..columns];
                    let mut key = 0;
                    while key < self.keys {
                        let block = (self.start + key) / k as usize;
                        let end = ((block + 1) * k as usize - self.start).min(self.keys);
                        if blocks[block] == 0 {
                            (key..end).for_each(|key| s[at(i, key)] = -R::INFINITY);
                        } else {
                            any = true;
                        }
                        key = end;
                    }
                }
            }
            Mask::Expr(ref expr) => {
                for (i, row) in rows() {
                    for key in 0..self.keys {
                        if self.hides(expr, &row, key) {
                            s[at(i, key)] = -R::INFINITY;
                        } else {
                            any = true;
                        }
                    }
                }
            }
            _ => return true,
        }
        any
    }

    fn hides(&self, expr: &Expr, row: &Row, key: usize) -> bool {
        let b = self.tile.sequence.b as i64;
        expr.eval(Vars { q: row.position, k: (self.start + key) as i64, h: row.head as i64, b }) == 0
    }
}
