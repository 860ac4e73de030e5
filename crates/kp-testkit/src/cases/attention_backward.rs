//! What gradients of attention are judged on.

use super::{
    attention::{MASKS, STORED, dense},
    attention_laws as laws,
    pairwise::{lines, words},
    sequences,
};
use crate::{
    fill::Fill,
    judge::{Depth, Judge, Output, Property},
    operands::Operands,
    reference::{attention, attention_backward as reference},
};
use kp_hal::op::{Attention, AttentionBackward, AttentionBackwardProblem, Spec};

const FLOOR: &[&str] = &[
    "attention_backward 1x2x16x32 f32:f32:f32",
    "attention_backward 2x4:2x9:17x64 f32:f32:f32 mask=causal",
    "attention_backward 1x4:1x33x64 bf16:bf16:bf16 mask=causal",
    "attention_backward 1x1x5:3x16 f32:f32:f32 mask=causal",
    "attention_backward 2x2x3:0x16 f32:f32:f32",
];

impl Judge for AttentionBackward {
    fn cases(depth: Depth) -> Vec<String> {
        let mut stored: Vec<String> = STORED.iter().filter(|s| dense(s)).map(|&s| s.to_owned()).collect();
        if depth == Depth::Quick {
            stored.retain(|s| !s.starts_with("1x3") && !s.contains("70x64"));
        }
        lines(
            "attention_backward",
            &[
                stored,
                words("f32:f32:f32 bf16:bf16:bf16 f16:f16:f16 f64:f64:f64 bf16:bf16:f32 f32:f32:bf16 f32:bf16:f32"),
                words("- layout=bhsd"),
                words(MASKS),
                words("- - scale=0.3"),
                words("- - softcap=2.5 softcap=50.0"),
                words("- alibi"),
                words("- sinks"),
                words("- - ldq=1026"),
                words("- - ldk=1028"),
                words("- - ldv=1030"),
                words("- - ldo=1025"),
                words("- - repro=fast"),
                words("- - align=4"),
            ],
            |line| line.parse::<AttentionBackwardProblem>().is_ok(),
        )
    }

    fn floor() -> &'static [&'static str] {
        FLOOR
    }

    /// O and the log-sum-exp are those of the forward pass, as it would store them.
    fn inputs(problem: &AttentionBackwardProblem, fill: &mut Fill) -> Operands {
        let p = &problem.forward;
        let mut operands = Operands::new::<Self>(problem, fill.kind());
        sequences::fill(p, &mut operands, fill);
        sequences::tokens(p, &mut operands, fill, &["grad_o"], &[]);
        let forward = p.build().expect("the forward pass of a problem that was checked");
        let mut given = Operands::new::<Attention>(&forward, fill.kind());
        for operand in given.list().iter().filter(|o| !o.output) {
            if given.has(operand.name) {
                given.set_bytes(operand.name, operands.codes(operand.name).bytes);
            }
        }
        let (o, lse) = attention::results(p, &given);
        for (name, elements) in [("o", o), ("lse", lse)] {
            let mut codes = operands.codes_mut(name);
            elements.into_iter().for_each(|(at, ball)| codes.set_value(at, ball.value));
        }
        operands
    }

    fn cost(problem: &AttentionBackwardProblem) -> f64 {
        let p = &problem.forward;
        let asked = f64::from(p.batch) * f64::from(p.q_heads) * f64::from(p.q_len) * f64::from(p.kv_len);
        3.0 * problem.flops() / 2.0 + 4.0 * asked
    }

    fn reference(problem: &AttentionBackwardProblem, operands: &Operands) -> Vec<Output> {
        reference::attention_backward(problem, operands)
    }

    /// As for the forward pass.
    fn special(_: &AttentionBackwardProblem) -> bool {
        false
    }

    fn properties() -> &'static [Property<Self>] {
        laws::BACKWARD
    }
}
