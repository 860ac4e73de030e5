//! Which keys the rows of a tile see. Most masks give each query one interval of keys; blocks and expressions
//! take single keys out of it.

use super::places::Sequence;
use crate::numbers::Real;
use kp_hal::op::{AttentionSpec, Expr, Mask, Vars};

/// Most rows of a tile.
pub(crate) const MAX_ROWS: usize = 64;

/// One row of a tile: a query in one head.
#[derive(Clone, Copy, Default)]
pub(crate) struct Row<R> {
    /// Which query of the sequence, and which query head.
    pub(crate) query: usize,
    pub(crate) head: usize,
    /// Where the query stands among the keys.
    position: i64,
    /// The keys outside which it sees nothing.
    first: usize,
    end: usize,
    /// What its scores lose per key of distance; 0 without ALiBi.
    slope: R,
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
    pub(crate) fn row<R: Real>(&self, sequence: &Sequence<'_>, kv_head: usize, row: usize) -> Row<R> {
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
        let slope = if self.slopes.is_empty() { 0.0 } else { slope(self.slopes, head) };
        Row { query, head, position, first, end, slope: R::from_f32(slope) }
    }

    /// Whether a mask takes single keys out of the rows' intervals.
    pub(crate) fn picks(&self) -> bool {
        matches!(self.mask, Mask::Blocks { .. } | Mask::Expr(_))
    }
}

fn slope(slopes: &[u8], head: usize) -> f32 {
    crate::numbers::get(kp_hal::DType::F32, slopes, head)
}

/// The rows a tile computes together; they share a key head, so each key is loaded once for all.
pub(crate) struct Tile<'a, R> {
    pub(crate) sequence: Sequence<'a>,
    pub(crate) kv_head: usize,
    pub(crate) rows: usize,
    row: [Row<R>; MAX_ROWS],
    /// The keys outside which no row sees anything.
    pub(crate) first: usize,
    pub(crate) end: usize,
}

impl<'a, R: Real> Tile<'a, R> {
    /// Rows `from ..` of the sequence, at most `most`.
    pub(crate) fn new(sight: &Sight<'_>, sequence: Sequence<'a>, kv_head: usize, from: usize, most: usize) -> Self {
        let rows = (sequence.q_len * sight.group).saturating_sub(from).min(most);
        let mut row = [Row::default(); MAX_ROWS];
        let (mut first, mut end) = (usize::MAX, 0);
        for (i, row) in row[..rows].iter_mut().enumerate() {
            *row = sight.row(&sequence, kv_head, from + i);
            if row.first < row.end {
                (first, end) = (first.min(row.first), end.max(row.end));
            }
        }
        Self { sequence, kv_head, rows, row, first: first.min(end), end }
    }

    /// The rows that are there.
    pub(crate) fn rows(&self) -> &[Row<R>] {
        &self.row[..self.rows]
    }

    /// Row `i`, which past the last one sees nothing.
    pub(crate) fn row(&self, i: usize) -> &Row<R> {
        &self.row[i]
    }
}

/// How `L` neighbouring rows see a block of keys.
pub(crate) struct Panel<'t, R, const L: usize> {
    rows: &'t [Row<R>],
    /// The first key each row sees and the one past the last, counted from the block's first.
    first: [i32; L],
    end: [i32; L],
    /// The first key's distance from each row's query, and what it costs per key.
    distance: [R; L],
    slope: [R; L],
    /// Whether a row sees any key, and whether all see all.
    pub(crate) any: bool,
    pub(crate) all: bool,
}

impl<'t, R: Real, const L: usize> Panel<'t, R, L> {
    /// Rows `L · panel ..` of the tile, keys `start .. start + keys`.
    #[inline(always)]
    pub(crate) fn new(tile: &'t Tile<'_, R>, panel: usize, start: usize, keys: usize) -> Self {
        let (mut first, mut end) = ([0; L], [0; L]);
        let (mut distance, mut slope) = ([R::ZERO; L], [R::ZERO; L]);
        let (mut any, mut all) = (false, true);
        for lane in 0..L {
            let row = tile.row(panel * L + lane);
            first[lane] = row.first.saturating_sub(start).min(keys) as i32;
            end[lane] = row.end.saturating_sub(start).min(keys) as i32;
            distance[lane] = R::from_f64((start as i64 - row.position) as f64);
            slope[lane] = row.slope;
            any |= first[lane] < end[lane];
            // Rows that are not there may see whatever they like.
            all &= panel * L + lane >= tile.rows || (first[lane], end[lane]) == (0, keys as i32);
        }
        let rows = &tile.rows()[(panel * L).min(tile.rows)..((panel + 1) * L).min(tile.rows)];
        Self { rows, first, end, distance, slope, any, all }
    }

    /// Adds what the distance costs to the scores of key `key` of the block.
    #[inline(always)]
    pub(crate) fn bias(&self, key: usize, scores: &mut [R; L]) {
        let key = R::from_f32(key as f32);
        for (lane, score) in scores.iter_mut().enumerate() {
            *score += self.slope[lane] * (self.distance[lane] + key);
        }
    }

    /// Writes −∞ where a row does not see key `key` of the block, as far as intervals tell.
    #[inline(always)]
    pub(crate) fn cut(&self, key: usize, scores: &mut [R; L]) {
        let key = key as i32;
        for (lane, score) in scores.iter_mut().enumerate() {
            let seen = self.first[lane] <= key && key < self.end[lane];
            *score = if seen { *score } else { -R::INFINITY };
        }
    }

    /// Writes −∞ into `scores[key][lane]` where blocks or an expression hide the key; answers whether any is left.
    pub(crate) fn pick(&self, sight: &Sight<'_>, b: usize, start: usize, keys: usize, scores: &mut [R]) -> bool {
        match sight.mask {
            Mask::Blocks { q, k } => {
                let mut any = false;
                for (lane, row) in self.rows.iter().enumerate() {
                    let blocks = &sight.blocks[row.query / q as usize * sight.columns..][..sight.columns];
                    let mut key = 0;
                    while key < keys {
                        let block = (start + key) / k as usize;
                        let end = ((block + 1) * k as usize - start).min(keys);
                        if blocks[block] == 0 {
                            (key..end).for_each(|key| scores[key * L + lane] = -R::INFINITY);
                        } else {
                            any = true;
                        }
                        key = end;
                    }
                }
                any
            }
            Mask::Expr(ref expr) => self.pick_by(expr, b, start, keys, scores),
            _ => true,
        }
    }

    fn pick_by(&self, expr: &Expr, b: usize, start: usize, keys: usize, scores: &mut [R]) -> bool {
        let mut any = false;
        for (lane, row) in self.rows.iter().enumerate() {
            for key in 0..keys {
                let vars = Vars { q: row.position, k: (start + key) as i64, h: row.head as i64, b: b as i64 };
                if expr.eval(vars) == 0 {
                    scores[key * L + lane] = -R::INFINITY;
                } else {
                    any = true;
                }
            }
        }
        any
    }
}
