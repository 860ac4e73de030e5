//! Where the tokens of each sequence lie, dense, padded, packed or paged.

use super::{product::LANES, turn::Turns};
use crate::{
    memory::{LINE, prefetch},
    numbers::{self, Real, index},
};
use kp_hal::{
    DType,
    op::{AttentionSpec, Format, Kv, Lens, Scheme},
};
use std::{borrow::Cow, ops::Range};

/// A token as an operand stores it: sequence (or page) and place in it.
pub(crate) type Token = (usize, usize);

/// Q, K, V, O or a gradient: rows of one token and head.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) dtype: DType,
    pub(crate) dim: usize,
    pub(super) ld: usize,
    /// Distance between heads, and between sequences, in elements.
    pub(super) head: usize,
    sequence: usize,
}

impl Rows {
    fn new(spec: &AttentionSpec, dtype: DType, ld: u32, heads: u32, dim: u32, len: u32) -> Self {
        let (head, sequence) = spec.strides(ld, heads, dim, len);
        Self { dtype, dim: dim as usize, ld: ld as usize, head: head as usize, sequence: sequence as usize }
    }

    pub(crate) fn q(spec: &AttentionSpec) -> Self {
        Self::new(spec, spec.q.dtype, spec.ld[0], spec.q_heads, spec.qk_dim, spec.q_extent().1)
    }

    pub(crate) fn k(spec: &AttentionSpec) -> Self {
        Self::new(spec, spec.kv.dtype, spec.ld[1], spec.kv_heads, spec.qk_dim, spec.kv_extent().1)
    }

    pub(crate) fn v(spec: &AttentionSpec) -> Self {
        Self::new(spec, spec.kv.dtype, spec.ld[2], spec.kv_heads, spec.v_dim, spec.kv_extent().1)
    }

    pub(crate) fn o(spec: &AttentionSpec) -> Self {
        Self::new(spec, spec.o, spec.ld[3], spec.q_heads, spec.v_dim, spec.q_extent().1)
    }

    /// The first element of a row.
    pub(crate) fn first(&self, (sequence, token): Token, head: usize) -> usize {
        sequence * self.sequence + head * self.head + token * self.ld
    }
}

/// Numbers of a head of Q and K and of V, and the distances at which their rows lie in cache.
#[derive(Clone, Copy)]
pub(crate) struct Dims {
    pub(crate) qk: usize,
    pub(crate) v: usize,
    /// Both rounded up to whole lanes; the last ones are zeros.
    pub(crate) qk_width: usize,
    pub(crate) v_width: usize,
}

impl Dims {
    pub(crate) fn new(spec: &AttentionSpec) -> Self {
        let (qk, v) = (spec.qk_dim as usize, spec.v_dim as usize);
        Self { qk, v, qk_width: qk.next_multiple_of(LANES), v_width: v.next_multiple_of(LANES) }
    }

    /// An odd multiple of the lanes, so that the same column of many rows is not in one set of the cache.
    pub(crate) fn ld(width: usize) -> usize {
        ((width / LANES) | 1) * LANES
    }

    pub(crate) fn qk_ld(&self) -> usize {
        Self::ld(self.qk_width)
    }

    pub(crate) fn v_ld(&self) -> usize {
        Self::ld(self.v_width)
    }
}

/// An operand that is read: its rows and what scales them.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub(crate) rows: Rows,
    pub(super) codes: &'a [u8],
    scales: &'a [u8],
    pub(super) format: Format,
    /// Tokens of a stored sequence, and heads: scales are `[sequences][len][heads]` whatever the layout.
    len: usize,
    heads: usize,
}

impl<'a> Source<'a> {
    pub(crate) fn q(spec: &AttentionSpec, codes: &'a [u8], scales: &'a [u8]) -> Self {
        Self::new(Rows::q(spec), spec.q, codes, scales, (spec.q_extent().1, spec.q_heads))
    }

    pub(crate) fn k(spec: &AttentionSpec, codes: &'a [u8], scales: &'a [u8]) -> Self {
        Self::new(Rows::k(spec), spec.kv, codes, scales, (spec.kv_extent().1, spec.kv_heads))
    }

    pub(crate) fn v(spec: &AttentionSpec, codes: &'a [u8], scales: &'a [u8]) -> Self {
        Self::new(Rows::v(spec), spec.kv, codes, scales, (spec.kv_extent().1, spec.kv_heads))
    }

    /// O, or its gradient.
    pub(crate) fn o(spec: &AttentionSpec, codes: &'a [u8]) -> Self {
        Self::new(Rows::o(spec), spec.o.into(), codes, &[], (spec.q_extent().1, spec.q_heads))
    }

    fn new(rows: Rows, format: Format, codes: &'a [u8], scales: &'a [u8], (len, heads): (u32, u32)) -> Self {
        Self { rows, codes, scales, format, len: len as usize, heads: heads as usize }
    }

    /// Whether each row has a number that scales it.
    pub(super) fn scales_rows(&self) -> bool {
        matches!(self.format.scheme, Scheme::Row)
    }

    /// The bytes of the row of a token and head.
    #[inline(always)]
    pub(super) fn row_of(&self, token: Token, head: usize) -> &'a [u8] {
        self.bytes(self.rows.first(token, head))
    }

    /// The bytes of the row that begins at number `first`.
    #[inline(always)]
    pub(super) fn bytes(&self, first: usize) -> &'a [u8] {
        &self.codes[self.bits(first) / 8..self.bits(first + self.rows.dim) / 8]
    }

    /// What is stored from the row of a token and head to the end of that of the last of some heads.
    #[inline(always)]
    pub(super) fn of_heads(&self, token: Token, head: usize, heads: usize) -> &'a [u8] {
        let first = self.rows.first(token, head);
        &self.codes[self.bits(first) / 8..self.bits(first + (heads - 1) * self.rows.head + self.rows.dim) / 8]
    }

    /// Bits of some numbers.
    pub(super) fn bits(&self, numbers: usize) -> usize {
        numbers * self.rows.dtype.bits() as usize
    }

    /// Bytes from a token's row to the next one's.
    pub(super) fn row_bytes(&self) -> usize {
        self.bits(self.rows.ld) / 8
    }

    /// What scales the rows of sixteen tokens, for each of at most as many heads: the bits of numbers.
    #[inline(always)]
    pub(super) fn scales<I: Turns<f32>>(
        &self,
        tokens: &[Token; LANES],
        head: usize,
        heads: usize,
    ) -> [[u32; LANES]; LANES] {
        let (mut places, mut scales, mut end) = ([0; LANES], [[0; LANES]; LANES], 0);
        for (place, (sequence, token)) in places.iter_mut().zip(tokens) {
            *place = 4 * ((sequence * self.len + token) * self.heads + head);
            end = end.max(*place + 4 * LANES);
        }
        if I::WORDS && end <= self.scales.len() {
            I::words(self.scales, &places, &mut scales);
        } else {
            for (head, scales) in scales[..heads].iter_mut().enumerate() {
                for (scale, place) in scales.iter_mut().zip(places) {
                    *scale = u32::from_le_bytes(
                        self.scales[place + 4 * head..].first_chunk().copied().expect("each row has one"),
                    );
                }
            }
        }
        scales
    }

    /// Asks for what scales the rows of some tokens side by side in some heads.
    #[inline(always)]
    pub(super) fn ask_for_scales(&self, (sequence, token): Token, many: usize, head: usize, heads: usize) {
        let first = 4 * ((sequence * self.len + token) * self.heads + head);
        let (of_token, of_heads) = (4 * self.heads, 4 * heads);
        // Those of neighbouring tokens share lines, or each has its own.
        let (stretches, apart, bytes) = match of_token - of_heads < LINE {
            true => (1, 0, (many - 1) * of_token + of_heads),
            false => (many, of_token, of_heads),
        };
        for stretch in 0..stretches {
            let at = self.scales.as_ptr().wrapping_add(first + stretch * apart);
            for line in (0..bytes + at.addr() % LINE).step_by(LINE) {
                prefetch::<2>(at.wrapping_add(line));
            }
        }
    }

    /// What scales a row: 1 where nothing does.
    #[inline(always)]
    pub(super) fn scale<R: Real>(&self, token: Token, head: usize) -> R {
        let at = match self.format.scheme {
            Scheme::Tensor => 0,
            Scheme::Row => (token.0 * self.len + token.1) * self.heads + head,
            _ => return R::ONE,
        };
        numbers::get(DType::F32, self.scales, at)
    }
}

/// The operands that say where sequences begin and end; empty where the problem has none.
#[derive(Clone, Copy)]
pub(crate) struct Places<'a> {
    pub(crate) spec: &'a AttentionSpec,
    pub(crate) q_offsets: &'a [u8],
    pub(crate) kv_offsets: &'a [u8],
    pub(crate) kv_lens: &'a [u8],
    pub(crate) page_table: &'a [u8],
}

/// One sequence of the batch.
#[derive(Clone, Copy)]
pub(crate) struct Sequence<'a> {
    /// Which.
    pub(crate) b: usize,
    pub(crate) q_len: usize,
    pub(crate) kv_len: usize,
    /// Its first query and first key, as stored.
    q: Token,
    kv: Token,
    paged: Option<Paged<'a>>,
}

/// Where a sequence's keys are, if in pages.
#[derive(Clone, Copy)]
struct Paged<'a> {
    /// Tokens of a page.
    page: usize,
    /// The numbers of this sequence's pages.
    table: &'a [u8],
    /// The last that there is.
    last: i32,
}

/// Offsets of packed sequences such that no two have a token in common, whose rows threads write side by side: each at least the largest
/// before it.
pub(crate) fn ascending(offsets: &[u8]) -> Cow<'_, [u8]> {
    let count = offsets.len() / 4;
    if (1..count).all(|i| index(offsets, i - 1) <= index(offsets, i)) {
        return Cow::Borrowed(offsets);
    }
    let largest = (0..count).scan(0, |largest, i| {
        *largest = index(offsets, i).max(*largest);
        Some(*largest)
    });
    Cow::Owned(largest.flat_map(i32::to_le_bytes).collect())
}

impl<'a> Places<'a> {
    /// Sequence `b`. Lengths and pages beyond what the problem promises are cut to it.
    pub(crate) fn sequence(&self, b: usize) -> Sequence<'a> {
        let spec = self.spec;
        let (q_max, kv_max) = (spec.q_len as usize, spec.kv_len as usize);
        let offsets = |of: &[u8], total: u32| {
            let [first, last] = [b, b + 1].map(|i| index(of, i).clamp(0, total.min(i32::MAX as u32) as i32) as usize);
            (first, last.saturating_sub(first))
        };
        let lens = || (index(self.kv_lens, b).max(0) as usize).min(kv_max);
        let (q, q_len) = match spec.lens {
            Lens::Packed { q_total, .. } => {
                let (first, len) = offsets(self.q_offsets, q_total);
                ((0, first), len.min(q_max))
            }
            _ => ((b, 0), q_max),
        };
        let (kv, kv_len, paged) = match (spec.storage, spec.lens) {
            (Kv::Paged { page, pages }, _) => {
                let row = kv_max.div_ceil(page as usize) * 4;
                let table = &self.page_table[b * row..(b + 1) * row];
                let (len, last) = if pages == 0 { (0, 0) } else { (lens(), (pages - 1).min(i32::MAX as u32) as i32) };
                ((0, 0), len, Some(Paged { page: page as usize, table, last }))
            }
            (Kv::Dense, Lens::Packed { kv_total, .. }) => {
                let (first, len) = offsets(self.kv_offsets, kv_total);
                ((0, first), len.min(kv_max), None)
            }
            (Kv::Dense, Lens::Padded) => ((b, 0), lens(), None),
            (Kv::Dense, Lens::Fixed) => ((b, 0), kv_max, None),
        };
        Sequence { b, q_len, kv_len, q, kv, paged }
    }
}

impl Sequence<'_> {
    /// Query `i` as Q and O store it.
    pub(crate) fn query(&self, i: usize) -> Token {
        (self.q.0, self.q.1 + i)
    }

    /// Key `k` as K and V store it.
    #[inline(always)]
    pub(crate) fn key(&self, k: usize) -> Token {
        match self.paged {
            Some(Paged { page, table, last }) => (index(table, k / page).clamp(0, last) as usize, k % page),
            None => (self.kv.0, self.kv.1 + k),
        }
    }

    /// Keys `keys` in stretches that lie one after another: place among them, first token, how many.
    #[inline(always)]
    pub(crate) fn stretches(&self, keys: Range<usize>) -> impl Iterator<Item = (usize, Token, usize)> {
        let mut next = keys.start;
        std::iter::from_fn(move || {
            if next >= keys.end {
                return None;
            }
            let (at, token) = (next - keys.start, self.key(next));
            let room = self.paged.map_or(usize::MAX, |paged| paged.page - token.1);
            let count = room.min(keys.end - next);
            next += count;
            Some((at, token, count))
        })
    }

    /// Where query `i` stands among the keys.
    pub(crate) fn position(&self, i: usize) -> i64 {
        i as i64 + self.kv_len as i64 - self.q_len as i64
    }
}

/// Where the log-sum-exp of a query lies: `[sequences][heads][len]` whatever the layout.
pub(crate) fn lse_index(spec: &AttentionSpec, (sequence, token): Token, head: usize) -> usize {
    (sequence * spec.q_heads as usize + head) * spec.q_extent().1 as usize + token
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_sequences_share_a_token() {
        let raised = |offsets: &[i32]| {
            let bytes: Vec<u8> = offsets.iter().flat_map(|x| x.to_le_bytes()).collect();
            let raised = ascending(&bytes).into_owned();
            (0..offsets.len()).map(|i| index(&raised, i)).collect::<Vec<_>>()
        };
        assert_eq!(raised(&[0, 4, 4, 9]), [0, 4, 4, 9]);
        assert_eq!(raised(&[0, 4, 0, 4]), [0, 4, 4, 4]);
        assert_eq!(raised(&[7, i32::MIN, 9, 8, i32::MAX]), [7, 7, 9, 9, i32::MAX]);
        assert_eq!(raised(&[]), [0; 0]);
    }
}
