//! O = softmax(scale · Q·Kᵀ + mask) · V, query by query.
//!
//! Bound, u being the loss of one operation:
//! - A score is a sum of `qk_dim` products, scaled by up to three factors: (qk_dim + 4) u · scale · Σ|q k|. The soft cap
//!   does not magnify that, and adds 8 u of itself for tanh; the slope adds two operations.
//! - A weight exp(s − max) is off relatively by the score's error, by the roundings of s and max, 4 u (|s| + |max|), and
//!   by 8 u of its own: ε. An error of max itself falls out of the quotient.
//! - The sum of n weights is off by the mean of ε under the weights and by 4 n u: an addition and, where a kernel learns
//!   the maximum as it goes, a rescaling per key.
//! - O is off by Σ P |v| ε, by as much as the sum is, times |o|, and by 4 n u Σ P |v|.
//! - P may be rounded to V's type before the second product: its roundoff more in ε, and near 0 half its smallest number
//!   per key, P being scaled so that its greatest is about 1.

use super::ball::{Ball, TINY, unit};
use crate::{
    formats::{smallest, unit_roundoff},
    judge::{Output, Plain, Want},
    operands::Operands,
};
use kp_hal::{
    DType,
    op::{AttentionProblem, AttentionSpec, Format, HeadLayout, Kv, Lens, Mask, Scheme},
};

/// What `o` and `lse` should hold.
pub(crate) fn attention(p: &AttentionProblem, operands: &Operands) -> Vec<Output> {
    let tensors = Tensors::new(p, operands);
    let (u, rounding) = (unit(p.q.dtype), Rounding::of(p.kv.dtype));
    let (mut o, mut lse) = (Vec::new(), Vec::new());
    for sequence in tensors.sequences() {
        for head in 0..p.q_heads {
            for query in 0..sequence.queries {
                let row = tensors.scores(&sequence, head, query, u);
                let weighed = weigh(&row, tensors.sink(head), u);
                let value = |key| tensors.v.get(tensors.key(&sequence, key), head / tensors.group);
                for (i, out) in weighed.mean(p.v_dim, value, rounding, u).into_iter().enumerate() {
                    o.push((tensors.o.index(sequence.place(query), head, i as u32), out.into()));
                }
                lse.push((tensors.lse_index(&sequence, head, query), weighed.lse.into()));
            }
        }
    }
    let plain = |operand, dtype, wants: Vec<(u64, Want)>| Plain { wants, ..Plain::list(operand, dtype, []) };
    let mut outputs = vec![plain("o", p.o, o).into()];
    if p.lse {
        outputs.push(plain("lse", DType::F32, lse).into());
    }
    outputs
}

/// What storing a number in a narrow type costs.
#[derive(Clone, Copy)]
pub(super) struct Rounding {
    /// Relatively.
    pub(super) relative: f64,
    /// Near zero.
    pub(super) absolute: f64,
}

impl Rounding {
    /// Of what may be rounded to `t` on its way to a matrix unit. Nothing is computed in 4 bits: E4M3 stands for them.
    pub(super) fn of(t: DType) -> Self {
        match t {
            DType::F64 | DType::F32 | DType::Tf32 => Self { relative: 0.0, absolute: 0.0 },
            _ => {
                let t = if t.bits() < 8 { DType::E4m3 } else { t };
                Self { relative: unit_roundoff(t), absolute: smallest(t) / 2.0 }
            }
        }
    }
}

/// The scores of one query: key and score, for the keys that it sees.
pub(super) type Scores = Vec<(u32, Ball)>;

/// Keys with the shares that they have in a query's result.
pub(super) struct Weighed {
    /// Key, P, and the relative error of P before it is divided by the sum.
    pub(super) keys: Vec<(u32, f64, f64)>,
    /// The relative error of the sum.
    pub(super) sum_off: f64,
    /// The sum, the greatest weight being 1.
    pub(super) sum: f64,
    /// The logarithm of the sum, −∞ if nothing is seen.
    pub(super) lse: Ball,
}

/// exp(S) / (Σ exp(S) + exp(sink)), with the greatest score taken off first.
pub(super) fn weigh(scores: &Scores, sink: Option<f64>, u: f64) -> Weighed {
    let max = scores.iter().map(|s| s.1.value).chain(sink).fold(f64::NEG_INFINITY, f64::max);
    if max == f64::NEG_INFINITY {
        return Weighed { keys: Vec::new(), sum_off: 0.0, sum: 0.0, lse: Ball::exact(max) };
    }
    let off = |s: Ball| s.error + u * (8.0 + 4.0 * (s.value.abs() + max.abs()));
    let weight = |s: Ball| (s.value - max).exp();
    let sink = sink.map(Ball::exact);
    let terms = || scores.iter().map(|s| s.1).chain(sink);
    let sum: f64 = terms().map(weight).sum();
    let sum_off = terms().map(|s| weight(s) * off(s)).sum::<f64>() / sum + 4.0 * u * terms().count() as f64;
    let lse = max + sum.ln();
    Weighed {
        keys: scores.iter().map(|&(key, s)| (key, weight(s) / sum, off(s))).collect(),
        sum_off,
        sum,
        lse: Ball { value: lse, error: 2.0 * sum_off + 4.0 * u * (1.0 + max.abs() + lse.abs()) },
    }
}

impl Weighed {
    /// Σ P · v, number by number.
    fn mean<'v>(&self, dim: u32, v: impl Fn(u32) -> &'v [f64], p: Rounding, u: f64) -> Vec<Ball> {
        let mut out = vec![Ball::exact(0.0); dim as usize];
        let sums = 4.0 * u * (self.keys.len() as f64 + 2.0);
        for &(key, share, off) in &self.keys {
            let off = (off + p.relative).exp_m1() + sums;
            for (out, v) in out.iter_mut().zip(v(key)) {
                out.value += share * v;
                out.error += v.abs() * (share * off + p.absolute / self.sum);
            }
        }
        // Where nothing is seen there are zeros, not small numbers.
        let least = if self.keys.is_empty() { 0.0 } else { TINY };
        out.into_iter().map(|o| o.plus(2.0 * self.sum_off * o.value.abs() + least)).collect()
    }
}

/// The numbers of one operand by token and head, scales applied.
pub(super) struct Heads {
    /// As stored; empty for outputs.
    values: Vec<f64>,
    layout: HeadLayout,
    heads: u64,
    dim: u64,
    len: u64,
    ld: u64,
}

/// A token: its sequence as stored, and its place there.
pub(super) type Place = (u64, u64);

impl Heads {
    /// The index of number `i` of `head` of a token.
    pub(super) fn index(&self, (sequence, token): Place, head: u32, i: u32) -> u64 {
        let (head, i) = (u64::from(head), u64::from(i));
        match self.layout {
            HeadLayout::Bshd => (sequence * self.len + token) * self.ld + head * self.dim + i,
            HeadLayout::Bhsd => ((sequence * self.heads + head) * self.len + token) * self.ld + i,
        }
    }

    /// The numbers of one head of a token.
    pub(super) fn get(&self, place: Place, head: u32) -> &[f64] {
        &self.values[self.index(place, head, 0) as usize..][..self.dim as usize]
    }

    /// The numbers there are room for in so many sequences.
    pub(super) fn span(&self, sequences: u32) -> usize {
        (u64::from(sequences) * self.len * self.ld * if self.layout == HeadLayout::Bhsd { self.heads } else { 1 })
            as usize
    }

    /// The index of every number of so many sequences; what lies between tokens has none.
    pub(super) fn indices(&self, sequences: u32) -> impl Iterator<Item = u64> {
        let tokens = (0..u64::from(sequences)).flat_map(|s| (0..self.len).map(move |t| (s, t)));
        let heads = tokens.flat_map(|place| (0..self.heads as u32).map(move |head| (place, head)));
        heads.flat_map(|(place, head)| {
            let first = self.index(place, head, 0);
            first..first + self.dim
        })
    }

    /// The same layout with the numbers of operand `name`.
    pub(super) fn with(&self, operands: &Operands, name: &str) -> Self {
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
pub(super) struct Sequence {
    index: u32,
    first_query: Place,
    pub(super) queries: u32,
    first_key: Place,
    pub(super) keys: u32,
}

impl Sequence {
    /// Where its query `i` is stored.
    pub(super) fn place(&self, i: u32) -> Place {
        (self.first_query.0, self.first_query.1 + u64::from(i))
    }
}

/// The operands of attention by sequence, head, token and number.
pub(super) struct Tensors<'a> {
    p: &'a AttentionSpec,
    operands: &'a Operands,
    pub(super) q: Heads,
    pub(super) k: Heads,
    pub(super) v: Heads,
    pub(super) o: Heads,
    /// Query heads that share a key head.
    pub(super) group: u32,
}

impl<'a> Tensors<'a> {
    pub(super) fn new(p: &'a AttentionSpec, operands: &'a Operands) -> Self {
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

    pub(super) fn sequences(&self) -> Vec<Sequence> {
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
    pub(super) fn key(&self, sequence: &Sequence, key: u32) -> Place {
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
    fn sees(&self, sequence: &Sequence, head: u32, query: u32, key: u32) -> bool {
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
            Mask::Expr(expr) => expr.eval(kp_hal::op::Vars { q, k, h: head.into(), b: sequence.index.into() }) != 0,
        }
    }

    /// The scores of the keys that a query sees.
    pub(super) fn scores(&self, sequence: &Sequence, head: u32, query: u32, u: f64) -> Scores {
        let seen = (0..sequence.keys).filter(|&key| self.sees(sequence, head, query, key));
        seen.map(|key| (key, self.score(sequence, head, (query, key), u).1)).collect()
    }

    /// The score of a key before the soft cap, and as it enters the softmax.
    pub(super) fn score(&self, sequence: &Sequence, head: u32, (query, key): (u32, u32), u: f64) -> (Ball, Ball) {
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

    pub(super) fn sink(&self, head: u32) -> Option<f64> {
        self.operands.maybe("sinks").map(|sinks| sinks.value(head.into()))
    }

    /// Where the log-sum-exp of a query lies.
    pub(super) fn lse_index(&self, sequence: &Sequence, head: u32, query: u32) -> u64 {
        let (stored, token) = sequence.place(query);
        (stored * self.q.heads + u64::from(head)) * self.q.len + token
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scores(values: &[f64]) -> Scores {
        values.iter().enumerate().map(|(i, &s)| (i as u32, Ball::exact(s))).collect()
    }

    #[test]
    fn equal_scores_give_the_mean_and_a_sink_takes_its_share() {
        let v = [[1.0], [2.0], [6.0]];
        let exact = Rounding::of(DType::F32);
        let mean = |w: &Weighed| w.mean(1, |key| &v[key as usize], exact, 0.0)[0].value;
        let plain = weigh(&scores(&[5.0; 3]), None, 0.0);
        assert!((mean(&plain) - 3.0).abs() < 1e-15 && (plain.lse.value - 5.0 - 3_f64.ln()).abs() < 1e-15);
        let with_sink = weigh(&scores(&[5.0; 3]), Some(5.0), 0.0);
        assert!((mean(&with_sink) - 2.25).abs() < 1e-15);
        assert!((with_sink.lse.value - 5.0 - 4_f64.ln()).abs() < 1e-15);
    }

    #[test]
    fn a_query_that_sees_nothing_gets_zeros() {
        let nothing = weigh(&Vec::new(), None, 1e-7);
        assert_eq!(nothing.lse, Ball::exact(f64::NEG_INFINITY));
        assert_eq!(nothing.mean(2, |_| &[], Rounding::of(DType::Bf16), 1e-7), [Ball::exact(0.0); 2]);
        let sink = weigh(&Vec::new(), Some(0.5), 0.0);
        assert_eq!((sink.lse.value, sink.mean(1, |_| &[], Rounding::of(DType::Bf16), 0.0)[0].value), (0.5, 0.0));
    }
}
