//! The operands of attention by sequence, head, token and number: layouts, lengths, pages and masks.

use super::{attention::Scores, ball::Ball};
use crate::operands::Operands;
use kp_hal::op::{AttentionSpec, HeadLayout, Kv, Lens, Mask, Scheme, Vars};

/// The numbers of one operand by token and head, scales applied.
pub(crate) struct Heads {
    /// As stored; empty for outputs.
    values: Vec<f64>,
    layout: HeadLayout,
    heads: u64,
    dim: u64,
    len: u64,
    ld: u64,
}

/// A token: its sequence as stored, and its place there.
pub(crate) type Place = (u64, u64);

impl Heads {
    /// The index of number `i` of `head` of a token.
    pub(crate) fn index(&self, (sequence, token): Place, head: u32, i: u32) -> u64 {
        let (head, i) = (u64::from(head), u64::from(i));
        match self.layout {
            HeadLayout::Bshd => (sequence * self.len + token) * self.ld + head * self.dim + i,
            HeadLayout::Bhsd => ((sequence * self.heads + head) * self.len + token) * self.ld + i,
        }
    }

    /// The numbers of one head of a token.
    pub(crate) fn get(&self, place: Place, head: u32) -> &[f64] {
        &self.values[self.index(place, head, 0) as usize..][..self.dim as usize]
    }

    /// The numbers there are room for in so many sequences.
    pub(crate) fn span(&self, sequences: u32) -> usize {
        (u64::from(sequences) * self.len * self.ld * if self.layout == HeadLayout::Bhsd { self.heads } else { 1 })
            as usize
    }

    /// The index of every number of these tokens.
    pub(crate) fn indices(&self, tokens: impl Iterator<Item = Place>) -> impl Iterator<Item = u64> {
        let heads = tokens.flat_map(|place| (0..self.heads as u32).map(move |head| (place, head)));
        heads.flat_map(|(place, head)| {
            let first = self.index(place, head, 0);
            first..first + self.dim
        })
    }

    /// The same layout with the numbers of operand `name`.
    pub(crate) fn with(&self, operands: &Operands, name: &str) -> Self {
        let values = operands.maybe(name).map_or(Vec::new(), |c| (0..c.len()).map(|i| c.value(i)).collect());
        Self { values, ..*self }
    }

    /// Multiplies each number by its scale: one for all, or one per token and head.
    fn scaled(mut self, operands: &Operands, name: &str, scheme: Scheme, sequences: u32) -> Self {
        if scheme == Scheme::None {
            return self;
        }
        let scale = operands.codes(name);
        for sequence in 0..u64::from(sequences) {
            for token in 0..self.len {
                for head in 0..self.heads {
                    let at =
                        if scheme == Scheme::Tensor { 0 } else { (sequence * self.len + token) * self.heads + head };
                    let first = self.index((sequence, token), head as u32, 0) as usize;
                    self.values[first..][..self.dim as usize].iter_mut().for_each(|x| *x *= scale.value(at));
                }
            }
        }
        self
    }
}

/// One sequence of the batch.
#[derive(Clone, Copy)]
pub(crate) struct Sequence {
    index: u32,
    first_query: Place,
    pub(crate) queries: u32,
    first_key: Place,
    pub(crate) keys: u32,
}

impl Sequence {
    /// Where its query `i` is stored.
    pub(crate) fn place(&self, i: u32) -> Place {
        (self.first_query.0, self.first_query.1 + u64::from(i))
    }
}

/// The operands of attention by sequence, head, token and number.
pub(crate) struct Tensors<'a> {
    p: &'a AttentionSpec,
    operands: &'a Operands,
    pub(crate) q: Heads,
    pub(crate) k: Heads,
    pub(crate) v: Heads,
    pub(crate) o: Heads,
    /// Query heads that share a key head.
    pub(crate) group: u32,
}

impl<'a> Tensors<'a> {
    /// Reads the operands; those that are not there yet are empty.
    pub(crate) fn new(p: &'a AttentionSpec, operands: &'a Operands) -> Self {
        let (q_sequences, q_len) =
            if let Lens::Packed { q_total, .. } = p.lens { (1, q_total) } else { (p.batch, p.q_len) };
        let (kv_sequences, kv_len) = match (p.storage, p.lens) {
            (Kv::Paged { page, pages }, _) => (pages, page),
            (Kv::Dense, Lens::Packed { kv_total, .. }) => (1, kv_total),
            (Kv::Dense, _) => (p.batch, p.kv_len),
        };
        let blank = |heads: u32, dim: u32, len: u32, ld: u32| Heads {
            values: Vec::new(),
            layout: p.layout,
            heads: heads.into(),
            dim: dim.into(),
            len: len.into(),
            ld: ld.into(),
        };
        let [ldq, ldk, ldv, ldo] = p.ld;
        let q = blank(p.q_heads, p.qk_dim, q_len, ldq).with(operands, "q");
        let k = blank(p.kv_heads, p.qk_dim, kv_len, ldk).with(operands, "k");
        let v = blank(p.kv_heads, p.v_dim, kv_len, ldv).with(operands, "v");
        Self {
            q: q.scaled(operands, "q_scale", p.q.scheme, q_sequences),
            k: k.scaled(operands, "k_scale", p.kv.scheme, kv_sequences),
            v: v.scaled(operands, "v_scale", p.kv.scheme, kv_sequences),
            o: blank(p.q_heads, p.v_dim, q_len, ldo),
            group: p.q_heads / p.kv_heads,
            p,
            operands,
        }
    }

    pub(crate) fn sequences(&self) -> Vec<Sequence> {
        let int = |name, i: u32| self.operands.codes(name).int(i.into()) as u32;
        let paged = matches!(self.p.storage, Kv::Paged { .. });
        let one = |b: u32| {
            let (first_query, queries) = match self.p.lens {
                Lens::Packed { .. } => {
                    let first = int("q_offsets", b);
                    ((0, first.into()), int("q_offsets", b + 1) - first)
                }
                _ => ((b.into(), 0), self.p.q_len),
            };
            let (first_key, keys) = match self.p.lens {
                _ if paged => ((0, 0), int("kv_lens", b)),
                Lens::Packed { .. } => {
                    let first = int("kv_offsets", b);
                    ((0, first.into()), int("kv_offsets", b + 1) - first)
                }
                Lens::Padded => ((b.into(), 0), int("kv_lens", b)),
                Lens::Fixed => ((b.into(), 0), self.p.kv_len),
            };
            Sequence { index: b, first_query, queries, first_key, keys }
        };
        (0..self.p.batch).map(one).collect()
    }

    /// Where a key of a sequence is stored.
    pub(crate) fn key(&self, sequence: &Sequence, key: u32) -> Place {
        match self.p.storage {
            Kv::Dense => (sequence.first_key.0, sequence.first_key.1 + u64::from(key)),
            Kv::Paged { page, .. } => {
                let row = u64::from(self.p.kv_len.div_ceil(page)) * u64::from(sequence.index);
                let number = self.operands.codes("page_table").int(row + u64::from(key / page));
                (number as u64, u64::from(key % page))
            }
        }
    }

    /// Whether a query sees a key; both count from the start of the sequence.
    pub(crate) fn sees(&self, sequence: &Sequence, head: u32, query: u32, key: u32) -> bool {
        let q = i64::from(query) + i64::from(sequence.keys) - i64::from(sequence.queries);
        let k = i64::from(key);
        match self.p.mask {
            Mask::Full => true,
            Mask::Causal => k <= q,
            Mask::Window { left, right } => q - k <= i64::from(left) && k - q <= i64::from(right),
            Mask::Prefix { len } => k <= q || key < len,
            Mask::Blocks { q: rows, k: cols } => {
                let across = u64::from(self.p.kv_len.div_ceil(cols));
                let at = u64::from(query / rows) * across + u64::from(key / cols);
                self.operands.codes("blocks").int(at) != 0
            }
            Mask::Expr(expr) => expr.eval(Vars { q, k, h: head.into(), b: sequence.index.into() }) != 0,
        }
    }

    /// The scores of the keys that a query sees.
    pub(crate) fn scores(&self, sequence: &Sequence, head: u32, query: u32, u: f64) -> Scores {
        let seen = (0..sequence.keys).filter(|&key| self.sees(sequence, head, query, key));
        seen.map(|key| (key, self.score(sequence, head, (query, key), u).1)).collect()
    }

    /// The score of a key before the soft cap, and as it enters the softmax.
    pub(crate) fn score(&self, sequence: &Sequence, head: u32, (query, key): (u32, u32), u: f64) -> (Ball, Ball) {
        let (at_q, at_k) = (sequence.place(query), self.key(sequence, key));
        let (mut product, mut magnitude) = (0.0, 0.0);
        for (q, k) in self.q.get(at_q, head).iter().zip(self.k.get(at_k, head / self.group)) {
            product += q * k;
            magnitude += (q * k).abs();
        }
        let scale = f64::from(self.p.score_scale());
        let raw =
            Ball { value: product * scale, error: u * (f64::from(self.p.qk_dim) + 4.0) * magnitude * scale.abs() };
        let mut score = raw;
        if let Some(cap) = self.p.softcap {
            let cap = f64::from(cap.get());
            let value = cap * (score.value / cap).tanh();
            score = Ball { value, error: score.error + 8.0 * u * value.abs() };
        }
        if self.p.alibi {
            let slope = self.operands.codes("slopes").value(head.into());
            let from = i64::from(query) + i64::from(sequence.keys) - i64::from(sequence.queries);
            let bias = slope * (i64::from(key) - from) as f64;
            let value = score.value + bias;
            score = Ball { value, error: score.error + u * (bias.abs() + value.abs()) };
        }
        (raw, score)
    }

    pub(crate) fn sink(&self, head: u32) -> Option<f64> {
        self.operands.maybe("sinks").map(|sinks| sinks.value(head.into()))
    }

    /// Where the log-sum-exp of a query lies.
    pub(crate) fn lse_index(&self, sequence: &Sequence, head: u32, query: u32) -> u64 {
        let (stored, token) = sequence.place(query);
        (stored * self.q.heads + u64::from(head)) * self.q.len + token
    }
}
