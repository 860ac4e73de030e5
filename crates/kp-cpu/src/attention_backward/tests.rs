//! Every variant against the gradients as calculus gives them, in nested loops in f64.

use crate::{
    attention::{
        machine::VARIANTS,
        tests::{Naive, Operands, fill, launch},
    },
    numbers,
};
use kp_hal::{
    DType, Kernel, Variant,
    op::{Attention, AttentionBackward, AttentionBackwardProblem, AttentionProblem, Lens, Overflow, Spec},
};

/// Gradients by memory index; NaN where nothing is said.
struct Gradients {
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    sinks: Vec<f64>,
}

fn naive(p: &kp_hal::op::AttentionSpec, operands: &Operands) -> Gradients {
    let n = Naive { p, operands };
    let blank = |name: &str, dtype: DType| vec![f64::NAN; operands.get(name).len() * 8 / dtype.bits() as usize];
    let mut g = Gradients {
        q: blank("q", p.q.dtype),
        k: blank("k", p.kv.dtype),
        v: blank("v", p.kv.dtype),
        sinks: vec![0.0; p.q_heads as usize],
    };
    let scale = f64::from(p.score_scale());
    for b in 0..p.batch {
        let (first_q, queries, first_k, keys) = n.sequence(b);
        let rows = if p.lens == Lens::Padded { p.kv_len } else { keys };
        for (key, head) in (0..rows).flat_map(|k| (0..p.kv_heads).map(move |h| (k, h))) {
            let place = n.key(b, first_k, key);
            (0..p.qk_dim).for_each(|c| g.k[n.at("k", place, head, c)] = 0.0);
            (0..p.v_dim).for_each(|c| g.v[n.at("v", place, head, c)] = 0.0);
        }
        for (i, head) in (0..queries).flat_map(|i| (0..p.q_heads).map(move |h| (i, h))) {
            let kv_head = head / (p.q_heads / p.kv_heads);
            let place = (first_q.0, first_q.1 + i);
            (0..p.qk_dim).for_each(|c| g.q[n.at("q", place, head, c)] = 0.0);
            let (weights, lse) = n.weights(b, head, i);
            let grad_o = |c: u32| n.number("grad_o", place, head, c);
            let value = |key: u32, c: u32| n.number("v", n.key(b, first_k, key), kv_head, c);
            let by_p: Vec<f64> = (0..keys).map(|key| (0..p.v_dim).map(|c| grad_o(c) * value(key, c)).sum()).collect();
            let d: f64 = weights.iter().zip(&by_p).map(|((w, _), g)| w * g).sum();
            if p.sinks && lse > f64::NEG_INFINITY {
                g.sinks[head as usize] -= (n.per_head("sinks", head) - lse).exp() * d;
            }
            for (key, ((w, slope), by_p)) in (0..keys).zip(weights.iter().zip(&by_p)) {
                let at = n.key(b, first_k, key);
                let by_score = w * (by_p - d) * slope * scale;
                for c in 0..p.v_dim {
                    g.v[n.at("v", at, kv_head, c)] += w * grad_o(c);
                }
                for c in 0..p.qk_dim {
                    g.q[n.at("q", place, head, c)] += by_score * n.number("k", at, kv_head, c);
                    g.k[n.at("k", at, kv_head, c)] += by_score * n.number("q", place, head, c);
                }
            }
        }
    }
    g
}

fn check(text: &str) {
    let problem: AttentionBackwardProblem = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
    let p = problem.forward;
    let mut operands = fill::<AttentionBackward>(&problem, &p, 11);
    // O and the log-sum-exp as the forward pass leaves them.
    let forward: AttentionProblem = p.build().expect("its twin is a problem");
    let caps = crate::caps::info().caps;
    let mut inputs = fill::<Attention>(&forward, &p, 11);
    for (name, bytes) in &mut inputs.0 {
        if !operands.get(name).is_empty() && !["o", "lse"].contains(name) {
            bytes.copy_from_slice(operands.get(name));
        }
    }
    let done = launch::<Attention>(
        *crate::attention::KERNELS.last().expect("one runs everything"),
        &forward,
        Variant(0),
        &inputs,
    );
    for name in ["o", "lse"] {
        operands.get_mut(name).copy_from_slice(done.get(name));
    }
    let want = naive(&p, &operands);
    let kernel: &dyn Kernel<AttentionBackward> = super::KERNELS[0];
    let variants = kernel.supports(&caps, &problem).expect("every problem");
    for variant in (0..VARIANTS).map(Variant).filter(|&v| variants.contains(v)) {
        let got = launch::<AttentionBackward>(kernel, &problem, variant, &operands);
        for (name, dtype, want) in [
            ("grad_q", p.q.dtype, &want.q),
            ("grad_k", p.kv.dtype, &want.k),
            ("grad_v", p.kv.dtype, &want.v),
            ("grad_sinks", DType::F32, &want.sinks),
        ] {
            if got.get(name).is_empty() {
                continue;
            }
            let rounding = match dtype {
                DType::Bf16 => 0.01,
                DType::F16 => 0.002,
                // The log-sum-exp is stored in f32.
                _ => 3e-6,
            };
            let largest = want.iter().filter(|w| !w.is_nan()).fold(0.0_f64, |m, w| m.max(w.abs()));
            assert!(largest < 1e6, "{text}: the definition gives {largest}");
            for (i, &want) in want.iter().enumerate() {
                let found: f64 = numbers::get(dtype, got.get(name), i);
                let bytes = dtype.bits() as usize / 8;
                if want.is_nan() {
                    assert_eq!(got.get(name)[i * bytes..(i + 1) * bytes], vec![0xff; bytes], "{text}: {name}[{i}]");
                } else {
                    let close = (found - want).abs() <= rounding * (want.abs() + largest);
                    assert!(close, "{text} #{}: {name}[{i}] is {found}, should be {want}", variant.0);
                }
            }
        }
    }
}

#[test]
fn options_follow_calculus() {
    for text in [
        "attention_backward 1x1x1x1 f32:f32:f32",
        "attention_backward 1x2x6x16 f32:f32:f32 mask=causal",
        "attention_backward 1x2x70:150x24:40 f32:f32:f32 mask=causal",
        "attention_backward 2x4:2x40:30x16 f32:f32:f32 mask=causal sinks",
        "attention_backward 1x4:1x6x32 bf16:bf16:bf16 mask=causal",
        "attention_backward 1x4x5x16 f32:f32:f32 mask=causal alibi",
        "attention_backward 2x3x4:6x16 f32:f32:f32 layout=bhsd mask=causal scale=-0.3 ldq=20 ldk=18 ldv=19 ldo=17",
        "attention_backward 2x2x4:5x16 f32:f32:f32 ldq=40 ldk=36 ldv=48 ldo=33",
        "attention_backward 1x2x5:3x16 f32:f32:f32 mask=causal sinks",
        "attention_backward 1x2x4:6x32 f32:f32:f32 softcap=0.5",
        "attention_backward 1x2x80:200x8 f32:f32:f32 softcap=0.5 mask=window/30/3",
        "attention_backward 2x2x50:70x8 f32:f32:f32 mask=blocks/7/13",
        "attention_backward 2x2x8x16 f32:f32:f32 mask=(q>=k&&q-k<3||k<1+b+h)",
        "attention_backward 1x2x6x16 f32:f32:f32 mask=prefix/2",
        "attention_backward 1x2x20:30x5:7 f64:f64:f64 mask=causal softcap=1",
        "attention_backward 1x2x12x16 f16:f16:f32",
    ] {
        check(text);
    }
}

#[test]
fn padding_gets_zeros_and_gaps_nothing() {
    for text in [
        "attention_backward 3x2x3:8x16 f32:f32:f32 lens=padded mask=causal",
        "attention_backward 3x4:2x3:200x16 f32:f32:f32 lens=padded layout=bhsd",
        "attention_backward 5x2x9:13x16 f32:f32:f32 lens=packed/60/70 mask=causal",
        "attention_backward 5x4:2x9:13x16 f32:f32:f32 lens=packed/60/70 layout=bhsd sinks",
    ] {
        check(text);
    }
}

#[test]
fn a_hidden_pair_leaves_no_trace() {
    let problem: AttentionBackwardProblem =
        "attention_backward 1x1x4:70x8 f32:f32:f32 mask=causal".parse().expect("a problem");
    let mut operands = fill::<AttentionBackward>(&problem, &problem.forward, 5);
    numbers::write(DType::F32, &[4.0; 4], operands.get_mut("lse"), 0, Overflow::Saturate);
    let run = |operands: &Operands| launch::<AttentionBackward>(super::KERNELS[0], &problem, Variant(0), operands);
    let want = run(&operands);
    // The last key is seen by the last query only.
    for name in ["k", "v"] {
        let bytes = operands.get_mut(name);
        let last = bytes.len() - 8 * 4;
        bytes[last..].chunks_exact_mut(4).for_each(|b| b.copy_from_slice(&f32::NAN.to_le_bytes()));
    }
    let got = run(&operands);
    let rows = 3 * 8 * 4;
    assert_eq!(got.get("grad_q")[..rows], want.get("grad_q")[..rows]);
    assert!(got.get("grad_q")[rows..].chunks_exact(4).all(|b| f32::from_le_bytes(b.try_into().expect("4")).is_nan()));
}
