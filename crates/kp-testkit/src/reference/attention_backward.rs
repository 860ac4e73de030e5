//! Gradients of attention, from the definition of softmax, query by query.
//!
//! With dO the loss by O, and P, S as in `attention`:
//!
//! ```text
//! dV_j = Σ_i P_ij dO_i
//! dP_ij = dO_i · v_j           D_i = dO_i · O_i = Σ_j P_ij dP_ij
//! dS_ij = P_ij (dP_ij − D_i)   times 1 − (S / softcap)² before the cap
//! dQ_i = scale · Σ_j dS_ij k_j     dK_j = scale · Σ_i dS_ij q_i     dsink = −Σ_i exp(sink − LSE_i) D_i
//! ```
//! Sums over i run over all query heads of a key head. D is computed here from P; kernels may use O as it is stored,
//! and P from the log-sum-exp as it is stored.
//!
//! Bound, u being the loss of one operation, r the rounding of a number to Q's type on its way to a matrix unit:
//! - P is off relatively by ε of `attention`, by 2⁻²⁴ |LSE| for the stored one, and by r in dV; it may be flushed to 0.
//! - dP by (v_dim + 1) u Σ|dO v|; D by the same of Σ|dO O|, and by the rounding of O to its type, near 0 half its smallest number.
//! - dS by its factors' errors by the product rule; by the slope of the cap, 2 |S / cap| times the error of S / cap and
//!   32 u; and by r.
//! - Each sum of n terms adds (n + 2) u of their magnitudes.

use super::{
    attention::{Rounding, weigh},
    ball::{Ball, TINY, unit},
    heads::{Heads, Place, Sequence, Tensors},
};
use crate::{
    formats::{decode, encode, smallest, unit_roundoff},
    judge::{Output, Plain},
    operands::Operands,
};
use kp_hal::{
    DType,
    op::{AttentionBackwardProblem, AttentionSpec, Lens, Overflow},
};

/// What `grad_q`, `grad_k`, `grad_v` and `grad_sinks` should hold.
pub(crate) fn attention_backward(problem: &AttentionBackwardProblem, operands: &Operands) -> Vec<Output> {
    let p = &problem.forward;
    let tensors = Tensors::new(p, operands);
    let u = unit(p.q.dtype);
    let (q_sequences, kv_sequences) = (p.q_extent().0, p.kv_extent().0);
    let sums = |n: usize| vec![Term::default(); n];
    let mut grads = Grads {
        q: sums(tensors.q.span(q_sequences)),
        k: sums(tensors.k.span(kv_sequences)),
        v: sums(tensors.v.span(kv_sequences)),
        sinks: sums(p.q_heads as usize),
    };
    let grad_o = tensors.o.with(operands, "grad_o");
    for sequence in tensors.sequences() {
        for head in 0..p.q_heads {
            for query in 0..sequence.queries {
                grads.add(p, &tensors, grad_o.get(sequence.place(query), head), (&sequence, head, query), u);
            }
        }
    }
    let scale = f64::from(p.score_scale());
    // Tokens of no packed sequence are nobody's; padding has gradients, zeros.
    let (mut queries, mut keys) = (Vec::new(), Vec::new());
    for sequence in tensors.sequences() {
        queries.extend((0..sequence.queries).map(|query| sequence.place(query)));
        let stored = if p.lens == Lens::Padded { p.kv_len } else { sequence.keys };
        keys.extend((0..stored).map(|key| tensors.key(&sequence, key)));
    }
    let plain = |operand, dtype, heads: &Heads, tokens: &[Place], sums: &[Term], factor| {
        let indices = heads.indices(tokens.iter().copied());
        let wants = indices.map(|at| (at, sums[at as usize].ball(factor, u).into())).collect();
        Plain { wants, ..Plain::list(operand, dtype, []) }.into()
    };
    let mut outputs = vec![
        plain("grad_q", p.q.dtype, &tensors.q, &queries, &grads.q, scale),
        plain("grad_k", p.kv.dtype, &tensors.k, &keys, &grads.k, scale),
        plain("grad_v", p.kv.dtype, &tensors.v, &keys, &grads.v, 1.0),
    ];
    if p.sinks {
        outputs.push(Plain::list("grad_sinks", DType::F32, grads.sinks.iter().map(|s| s.ball(1.0, u).into())).into());
    }
    outputs
}

/// The sums that the gradients are, by index of the operand; sinks by head.
struct Grads {
    q: Vec<Term>,
    k: Vec<Term>,
    v: Vec<Term>,
    sinks: Vec<Term>,
}

/// A sum with its error, the magnitudes of its terms and their number.
#[derive(Clone, Copy, Default)]
struct Term {
    value: f64,
    error: f64,
    magnitude: f64,
    count: f64,
}

impl Term {
    fn add(&mut self, value: f64, error: f64) {
        self.value += value;
        self.error += error;
        self.magnitude += value.abs();
        self.count += 1.0;
    }

    fn ball(self, factor: f64, u: f64) -> Ball {
        let error = self.error + (self.count + 2.0) * u * self.magnitude;
        // What nobody contributes to is exactly 0.
        let least = if self.count == 0.0 { 0.0 } else { TINY };
        Ball { value: self.value * factor, error: error * factor.abs() + least }
    }
}

impl Grads {
    /// Adds what one query of one head contributes.
    fn add(
        &mut self,
        p: &AttentionSpec,
        tensors: &Tensors<'_>,
        grad_o: &[f64],
        (sequence, head, query): (&Sequence, u32, u32),
        u: f64,
    ) {
        let (kv_head, v_dim) = (head / tensors.group, f64::from(p.v_dim));
        let weighed = weigh(&tensors.scores(sequence, head, query, u), tensors.sink(head), u);
        let narrow = coarser(Rounding::of(p.q.dtype), Rounding::of(p.kv.dtype));
        // Relative error of a weight: that of the forward pass, and the log-sum-exp as it is stored.
        let of_lse = weighed.lse.error + unit_roundoff(DType::F32) * weighed.lse.value.abs();
        let dot = |v: &[f64]| -> (f64, f64) {
            let terms = grad_o.iter().zip(v).map(|(g, v)| g * v);
            terms.fold((0.0, 0.0), |(sum, magnitude), term| (sum + term, magnitude + term.abs()))
        };
        let mut out = vec![0.0; p.v_dim as usize];
        for &(key, share, _) in &weighed.keys {
            let v = tensors.v.get(tensors.key(sequence, key), kv_head);
            out.iter_mut().zip(v).for_each(|(o, v)| *o += share * v);
        }
        let (inner, inner_magnitude) = dot(&out);
        // What O's type does not hold is what D is made of.
        let stored = |o: &f64| decode(p.o, encode(p.o, *o, Overflow::Saturate)).is_finite();
        let of_o = if out.iter().all(stored) { (smallest(p.o) / 2.0).max(TINY) } else { f64::INFINITY };
        let loss: f64 = grad_o.iter().map(|g| g.abs()).sum();
        let inner_error = inner_magnitude * ((v_dim + 1.0) * u + unit_roundoff(p.o)) + loss * of_o;
        if let Some(sink) = tensors.sink(head) {
            let share = (sink - weighed.lse.value).exp();
            let off = (of_lse + u * (8.0 + 4.0 * (sink.abs() + weighed.lse.value.abs()))).exp_m1();
            let error = (share * off + TINY) * inner.abs() + share * (1.0 + off) * inner_error;
            self.sinks[head as usize].add(-share * inner, error);
        }
        let at_q = sequence.place(query);
        for &(key, share, off) in &weighed.keys {
            let place = tensors.key(sequence, key);
            let v = tensors.v.get(place, kv_head);
            let off = off + of_lse;
            for (i, g) in grad_o.iter().enumerate() {
                let error = g.abs() * (share * (off + narrow.relative).exp_m1() + narrow.absolute + TINY);
                self.v[tensors.v.index(place, kv_head, i as u32) as usize].add(share * g, error);
            }
            let (by_share, magnitude) = dot(v);
            let (slope, slope_error) = slope_of_cap(p, tensors.score(sequence, head, (query, key), u).0, u);
            let difference = by_share - inner;
            let value = share * difference * slope;
            // What a kernel has for P at most: far from the score, a log-sum-exp of 24 bits makes another P of it.
            let most = share * off.exp();
            let error = (share * off.exp_m1() + TINY) * difference.abs() * slope
                + most * ((v_dim + 1.0) * u * magnitude + inner_error) * (slope + slope_error)
                + most * difference.abs() * slope_error
                + value.abs() * (4.0 * u + narrow.relative)
                + narrow.absolute;
            let (q, k) = (tensors.q.get(at_q, head), tensors.k.get(place, kv_head));
            for (i, (q, k)) in q.iter().zip(k).enumerate() {
                self.q[tensors.q.index(at_q, head, i as u32) as usize].add(value * k, error * k.abs());
                self.k[tensors.k.index(place, kv_head, i as u32) as usize].add(value * q, error * q.abs());
            }
        }
    }
}

fn coarser(a: Rounding, b: Rounding) -> Rounding {
    Rounding { relative: a.relative.max(b.relative), absolute: a.absolute.max(b.absolute) }
}

/// 1 − tanh²(S / cap) for a score before the cap, and its error; 1 without a cap.
fn slope_of_cap(p: &AttentionSpec, raw: Ball, u: f64) -> (f64, f64) {
    let Some(cap) = p.softcap else { return (1.0, 0.0) };
    let cap = f64::from(cap.get());
    let capped = (raw.value / cap).tanh();
    let slope = 1.0 - capped * capped;
    (slope, 2.0 * capped.abs() * slope * raw.error / cap + 32.0 * u)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fill::{Fill, FillKind},
        judge::Want,
        reference::attention::attention,
    };
    use kp_hal::op::{Attention, AttentionBackward, AttentionProblem, Spec};

    fn value(want: Want) -> f64 {
        if let Want::Number { value, .. } = want { value } else { f64::NAN }
    }

    fn wants(output: &Output) -> &[(u64, Want)] {
        let Output::Plain(plain) = output else { panic!("attention has no scales here") };
        &plain.wants
    }

    /// Σ grad_o · O.
    fn loss(problem: &AttentionProblem, operands: &Operands, grad_o: &Operands) -> f64 {
        let o = attention(problem, operands).remove(0);
        wants(&o).iter().map(|&(at, want)| value(want) * grad_o.codes("grad_o").value(at)).sum()
    }

    #[test]
    fn gradients_are_differences_of_the_forward_pass() {
        for text in [
            "1x2x3:4x3 f64:f64:f64",
            "2x4:2x3:4x2:3 f64:f64:f64 mask=causal layout=bhsd",
            "1x2x4x2 f64:f64:f64 mask=window/1/1 softcap=1.5 scale=0.7",
            "1x2:1x3:4x2 f64:f64:f64 alibi sinks mask=causal",
            "1x1x4:2x2 f64:f64:f64 sinks mask=causal",
            "1x1x2:3x3 f64:f64:f64 softcap=0.5 alibi ldq=5 ldk=4",
        ] {
            let problem: AttentionBackwardProblem = format!("attention_backward {text}").parse().expect(text);
            let forward = problem.forward.build().expect(text);
            let mut fill = Fill::new(FillKind::Normal, 7);
            let mut given = Operands::new::<AttentionBackward>(&problem, FillKind::Normal);
            let mut operands = Operands::new::<Attention>(&forward, FillKind::Normal);
            for name in ["q", "k", "v", "slopes", "sinks"] {
                operands.fill_all(name, &mut fill);
                if operands.has(name) {
                    given.set_bytes(name, operands.codes(name).bytes);
                }
            }
            given.fill_all("grad_o", &mut fill);
            for output in attention_backward(&problem, &given) {
                let Output::Plain(plain) = &output else { panic!("plain") };
                let name = plain.operand.strip_prefix("grad_").expect("a gradient");
                let h = if name == "sinks" { 2_f64.powi(-9) } else { 1e-5 };
                for &(at, want) in &plain.wants {
                    let moved = |h: f64| {
                        let mut operands = operands.clone();
                        let mut codes = operands.codes_mut(name);
                        let x = Operands::codes(&given, name).value(at);
                        codes.set_value(at, x + h);
                        let step = operands.codes(name).value(at) - x;
                        (loss(&forward, &operands, &given), step)
                    };
                    let ((above, up), (below, down)) = (moved(h), moved(-h));
                    let numeric = (above - below) / (up - down);
                    let got = value(want);
                    let slack = if name == "sinks" { 1e-5 } else { 1e-8 };
                    assert!((got - numeric).abs() < slack, "{text}: {} {at}: {got} {numeric}", plain.operand);
                }
            }
        }
    }
}
