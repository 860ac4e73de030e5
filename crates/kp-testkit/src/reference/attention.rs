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
//!   per key, P being scaled so that its greatest is about 1; below the smallest normal f32 it may be flushed to 0.

use super::{
    ball::{Ball, TINY, unit},
    heads::Tensors,
};
use crate::{
    formats::{smallest, unit_roundoff},
    judge::{Output, Plain, Want},
    operands::Operands,
};
use kp_hal::{
    DType,
    op::{AttentionProblem, AttentionSpec},
};

/// What `o` and `lse` should hold.
pub(crate) fn attention(p: &AttentionProblem, operands: &Operands) -> Vec<Output> {
    let (o, lse) = results(p, operands);
    let plain = |operand, dtype, results: Elements| {
        let wants = results.into_iter().map(|(at, ball)| (at, Want::from(ball))).collect();
        Output::from(Plain { wants, ..Plain::list(operand, dtype, []) })
    };
    let mut outputs = vec![plain("o", p.o, o)];
    if p.lse {
        outputs.push(plain("lse", DType::F32, lse));
    }
    outputs
}

/// Elements of an output by their index.
pub(crate) type Elements = Vec<(u64, Ball)>;

/// The elements of O, and the log-sum-exps.
pub(crate) fn results(p: &AttentionSpec, operands: &Operands) -> (Elements, Elements) {
    let tensors = Tensors::new(p, operands);
    let (u, rounding) = (unit(p.q.dtype), Rounding::of(p.kv.dtype));
    let (mut o, mut lse) = (Vec::new(), Vec::new());
    for sequence in tensors.sequences() {
        for head in 0..p.q_heads {
            for query in 0..sequence.queries {
                let weighed = weigh(&tensors.scores(&sequence, head, query, u), tensors.sink(head), u);
                let value = |key| tensors.v.get(tensors.key(&sequence, key), head / tensors.group);
                for (i, out) in weighed.mean(p.v_dim, value, rounding, u).into_iter().enumerate() {
                    o.push((tensors.o.index(sequence.place(query), head, i as u32), out));
                }
                lse.push((tensors.lse_index(&sequence, head, query), weighed.lse));
            }
        }
    }
    (o, lse)
}

/// What storing a number in a narrow type costs.
#[derive(Clone, Copy)]
pub(crate) struct Rounding {
    /// Relatively.
    pub(crate) relative: f64,
    /// Near zero.
    pub(crate) absolute: f64,
}

impl Rounding {
    /// Of what may be rounded to `t` on its way to a matrix unit. Nothing is computed in 4 bits: E4M3 stands for them.
    pub(crate) fn of(t: DType) -> Self {
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
pub(crate) type Scores = Vec<(u32, Ball)>;

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
                out.error += v.abs() * (share * off + (p.absolute + TINY) / self.sum);
            }
        }
        // Where nothing is seen there are zeros, not small numbers.
        let least = if self.keys.is_empty() { 0.0 } else { TINY };
        out.into_iter().map(|o| o.plus(2.0 * self.sum_off * o.value.abs() + least)).collect()
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
